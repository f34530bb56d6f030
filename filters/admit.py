"""Have requests wait for their pool in fair queues, short prompts past long ones."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from filters.api import (
    CONTINUE,
    UNLIMITED,
    Answer,
    Config,
    Exchange,
    Filter,
    Lease,
    Need,
    Outcome,
    SentAway,
    Verdict,
)
from filters.errors import ConfigError
from filters.queue_order import Lane, Priority, Shed, Wish
from filters.routing import counted_texts
from filters.token_samples import about_tokens
from filters.units import Duration, SomeTime

WORDS: Final[Mapping[str, Priority]] = {priority.word: priority for priority in Priority}
NAMES: Final[Mapping[Priority, str]] = {priority: word for word, priority in WORDS.items()}
SAID: Final[Mapping[Shed, str]] = {
    Shed.FULL: "too many requests wait for a model server",
    Shed.SHARE: "too many of your requests wait for a model server",
    Shed.DISPLACED: "more urgent requests took the place of this one",
    Shed.LATE: "no model server was free in time",
}
"""What a client reads who is sent away."""
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]*")  # RFC 9110, 5.1, as HTTP/2 writes it
STRIPPED: Final = "x-forebay-"  # the listener takes those off every request


def _check_header(text: str) -> None:
    if not _HEADER.fullmatch(text):
        raise ValueError(f'expected a header\'s name in lower case, got "{text}"')
    if text.startswith(STRIPPED):
        raise ValueError(f'expected a name that does not begin with "{STRIPPED}", got "{text}"')


PriorityWord: TypeAlias = Literal["urgent", "high", "normal", "low"]


class AdmitConfig(Config, frozen=True):
    """Who waits where, and for how long. How much a pool takes is a setting of it."""

    queue: Literal["auto", "fast", "bulk"] = "auto"
    """`auto`: by the length of the prompt."""
    priority: PriorityWord = "normal"
    """The class in that queue."""
    header: Annotated[str, msgspec.Meta(extra={"check": _check_header})] = ""
    """A header only the mesh can set, which names another class; empty: none does."""
    deadline: SomeTime | None = None
    """Of a class, who should be served earliest comes first; None: at the end of the wait."""
    wait: Duration = Duration("30s")
    """Who was not served after so long is told to ask again; 0s: nobody waits."""

    def __post_init__(self) -> None:
        if self.deadline is not None and self.deadline > self.wait:
            message = f"expected no more than `wait`, {self.wait}, got {self.deadline}"
            raise ConfigError("deadline", message)


class AdmitFilter(Filter[AdmitConfig]):
    """Where a pool has no queue nobody waits, and nothing is done here."""

    name: ClassVar[str] = "admit"
    config_type: ClassVar[type[Config]] = AdmitConfig

    _slot: Lease = UNLIMITED

    @classmethod
    def shaping(cls, config: AdmitConfig) -> Any:
        """Say nothing: an answer is the same whenever it is given."""
        return None

    @classmethod
    def longest_wait_s(cls, config: AdmitConfig) -> float:
        """Return how long it may wait."""
        return config.wait

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Wait for a slot; answer 429 where there is none in time."""
        bulk_from = self.ports.queues.bulk_from(exchange.pool)
        if bulk_from is None:
            return CONTINUE
        config = self.config
        wish = Wish(
            self._lane(exchange, bulk_from),
            self._priority(exchange),
            exchange.tenant,
            config.wait,
            config.deadline or 0.0,
        )
        exchange.note("admit.queue", wish.lane)
        exchange.note("admit.class", NAMES[wish.priority])
        slot = await self.ports.queues.enter(exchange.pool, wish)
        if isinstance(slot, SentAway):
            exchange.note("admit.shed", slot.why)
            return _ask_again(exchange, slot)
        self._slot = exchange.slot = slot
        exchange.need(Need.END)
        if slot.waited_s:
            exchange.note("admit.waited_ms", round(slot.waited_s * 1e3))
        return CONTINUE

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Give the slot back."""
        self._slot.release()

    def _lane(self, exchange: Exchange, bulk_from: int) -> Lane:
        if self.config.queue != "auto":
            return Lane(self.config.queue)
        prompt = exchange.prompt
        if len(prompt.document.raw) < bulk_from:  # no token is less than a byte
            return Lane.FAST
        tokens = exchange.notes.get("route.tokens")
        if not isinstance(tokens, int):
            texts = counted_texts(prompt, apart=False)
            tokens = about_tokens(texts, self.ports.tokens.estimate)
        return Lane.BULK if tokens >= bulk_from else Lane.FAST

    def _priority(self, exchange: Exchange) -> Priority:
        header = self.config.header
        said = exchange.head.headers.get(header, "") if header else ""
        return WORDS.get(said, WORDS[self.config.priority])


def _ask_again(exchange: Exchange, away: SentAway) -> Answer:
    seconds = max(1, math.ceil(away.retry_s))  # RFC 9110, 10.2.3: whole ones
    body = exchange.dialect.error(429, f"{SAID[away.why]}: ask again in {seconds} s")
    headers = {"content-type": "application/json", "retry-after": str(seconds)}
    return Answer(429, headers, body)
