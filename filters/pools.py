"""What pools take and what they cost, as far as the settings say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

TYPICAL_ANSWER_TOKENS: Final = 500  # to compare prices by, where the client sets no limit


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
    def serves(self) -> bool:
        """Whether it is chosen by what a request is, not only by its name."""
        return bool(self.intents or self.domains or self.has_range)

    def spans(self, tokens: int) -> bool:
        """Tell whether it serves prompts of such a length."""
        return tokens > self.above and (not self.up_to or tokens <= self.up_to)

    def holds(self, tokens: int, room: int) -> bool:
        """Tell whether a prompt and `room` for its answer fit into the context."""
        return not self.context or tokens + room <= self.context

    def cost(self, tokens: int, room: int) -> float:
        """Return what such a request costs at most; without a price more than with any."""
        if self.input_price is None or self.output_price is None:
            return float("inf")
        return self.input_price * tokens + self.output_price * (room or TYPICAL_ANSWER_TOKENS)


class Pools:
    """All pools of one snapshot of the settings. Immutable."""

    __slots__ = ("by_name", "contexts", "measures", "serving")

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self.by_name: Final = {offer.name: offer for offer in offers}
        self.serving: Final[Sequence[Offer]] = tuple(
            offer for offer in self.by_name.values() if offer.serves
        )
        """Those that are chosen by what a request is, in the order of the settings."""
        self.contexts: Final = tuple(
            sorted({offer.context for offer in self.by_name.values() if offer.context})
        )
        self.measures: Final = bool(self.contexts or any(offer.has_range for offer in self.serving))
        """Whether it matters how long a prompt is."""

    def __getitem__(self, name: str) -> Offer:
        """Return the offer of a pool; one that is not known takes everything."""
        return self.by_name.get(name) or Offer(name=name)

    def fallbacks(self, name: str) -> Iterator[Offer]:
        """Return who serves in the stead of a pool, who in that one's stead, and so on."""
        seen = {name}
        while (name := self[name].fallback) and name not in seen:
            seen.add(name)
            yield self[name]


NO_POOLS: Final = Pools()
"""Where nothing is said of any pool."""
