"""What pools take and what they cost, as far as the settings say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

BUCKETS: Final = (512, 2_048, 8_192, 32_768, 131_072)  # tokens, the last one of each
TYPICAL_ANSWER_TOKENS: Final = 500  # to compare prices by


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One pool. Where nothing is said, it takes everything that is sent to it by name."""

    name: str
    best_effort: bool = False
    """Its answers are worth less than those of others."""
    context: int = 0
    """How many tokens prompt and answer may have together; 0: not known."""
    input_price: float | None = None
    output_price: float | None = None
    """For a million tokens, in any currency that all pools share."""
    intents: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    above: int = 0
    up_to: int = 0
    """It serves prompts of more tokens than `above`, and of no more than `up_to` unless that is 0;
    both 0: of any length."""
    fallback: str = ""
    """The pool that serves in its stead; none if empty."""

    @property
    def has_range(self) -> bool:
        """Whether it serves prompts of some lengths only."""
        return bool(self.above or self.up_to)

    @property
    def by_task(self) -> bool:
        """Whether it serves some tasks only."""
        return bool(self.intents or self.domains)

    @property
    def serves(self) -> bool:
        """Whether it is chosen by what a request is, not only by its name."""
        return self.by_task or self.has_range

    def spans(self, tokens: int) -> bool:
        """Tell whether it serves prompts of such a length."""
        return tokens > self.above and (not self.up_to or tokens <= self.up_to)

    def holds(self, tokens: int, room: int) -> bool:
        """Tell whether a prompt and `room` for its answer fit into the context."""
        return not self.context or tokens + room <= self.context

    def cost(self, tokens: int) -> float:
        """Return what a prompt and a typical answer cost; without a price more than with any."""
        if self.input_price is None or self.output_price is None:
            return float("inf")
        return self.input_price * tokens + self.output_price * TYPICAL_ANSWER_TOKENS


class Pools:
    """All pools of one snapshot of the settings, with what is worked out from them once."""

    __slots__ = (
        "_guarded", "by_name", "by_task", "choose", "contexts", "edges", "lesser_fallbacks",
        "measures", "plans", "serving",
    )  # fmt: skip

    def __init__(
        self, offers: Iterable[Offer] = (), *, guarded: Collection[str] | None = None
    ) -> None:
        """Take all offers; `guarded` names pools with limit, breaker or stage (None: any may)."""
        self.by_name: Final = {offer.name: offer for offer in offers}
        self._guarded: Final = guarded
        everyone = self.by_name.values()
        self.serving: Final[Sequence[Offer]] = tuple(offer for offer in everyone if offer.serves)
        """Those that are chosen by what a request is, in the order of the settings."""
        self.by_task: Final = any(offer.by_task for offer in self.serving)
        self.lesser_fallbacks: Final = any(
            offer.fallback and self[offer.fallback].best_effort for offer in everyone
        )
        self.contexts: Final = sorted({offer.context for offer in everyone if offer.context})
        ranged = [offer for offer in self.serving if offer.has_range]
        edges = {edge for offer in ranged for edge in (offer.above, offer.up_to) if edge}
        self.edges: Final = sorted(edges.union(BUCKETS))
        """The last lengths, in tokens, that are treated like those before."""
        self.measures: Final = bool(self.contexts or ranged)
        """Whether it matters how long a prompt is."""
        self.choose: Final = bool(self.serving) or self.measures
        """Whether it matters what a request is."""
        self.plans: Final[dict[Any, Any]] = {}
        """What was decided, by all that decides; `filters.routing` keeps it."""

    def __getitem__(self, name: str) -> Offer:
        """Return the offer of a pool; one that is not known takes everything."""
        return self.by_name.get(name) or Offer(name=name)

    def guards(self, name: str) -> bool:
        """Tell whether a pool may send an exchange elsewhere, or wants to hear how it ended."""
        return self._guarded is None or name in self._guarded

    def fallbacks(self, name: str) -> Iterator[Offer]:
        """Return who serves in the stead of a pool, who in that one's stead, and so on."""
        seen = {name}
        while (name := self[name].fallback) and name not in seen:
            seen.add(name)
            yield self[name]
