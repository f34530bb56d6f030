"""Let a streamed answer flow steadily, however unevenly its model speaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from filters.api import (
    CONTINUE,
    Config,
    Delta,
    Dialect,
    Exchange,
    Filter,
    Holding,
    Need,
    Outcome,
    Ports,
    Verdict,
)
from filters.pacing import Pace, Pacer, cut
from filters.tempo import Tempo, near
from filters.units import Duration, Size, SomeSize, SomeTime

TokensPerSecond: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=10_000)]
LONGEST_GAP: Final = Duration("200ms")
MOST_CUT_CHARS: Final = 65_536
"""Of an event's text; to cut more takes too long while nobody else is served. It goes whole."""
WORD_CHARS: Final = 8  # what is no longer is a token, or nearly so
PLAIN_CHARS: Final = 1_024
"""A piece of ASCII of that length needs no better estimate than its length."""
TOKEN_CHARS: Final = 5  # of English
IDLE_GPU: Final = 0.5
LOOKS_NS: Final = 1_000_000_000
"""Between two looks at the GPU: replicas are asked about as often, and the rate takes as long."""
TUNE_NS: Final = 200_000_000
"""Between two changes of the rate, each of which is the less the sooner it comes."""
NEVER_NS: Final = 1 << 63
HELD_MS: Final = "pace.held_ms"
LATE_MS: Final = "pace.late_ms"
RTT_HEADER: Final = "x-forebay-rtt"
"""The proxy sets it, in milliseconds, on what it hands over; a client's own it replaces."""


class PaceConfig(Config, frozen=True):
    """How an answer flows."""

    rate: TokensPerSecond = 80.0
    """Tokens a second; the first goes at once."""
    fast: TokensPerSecond = 120.0
    """The same where the GPU is less than half busy and the client less than 30 ms away."""
    adapt: bool = True
    """Go no faster than the model speaks, and use `fast`; without, it is always `rate`."""
    most: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    """Tokens in a frame, which is what goes together."""
    every: SomeTime = Duration("100ms")
    """While tokens wait, a frame comes at least this often; at most 200ms."""
    tail: SomeTime = Duration("300ms")
    """No later than this after the model has ended does the answer."""
    hold: SomeSize = Size("256KiB")
    """What may wait of an answer; beyond that the oldest goes on."""
    chunks: Literal["whole", "cut"] = "whole"
    """Whether what comes in one may go in several; then no stream survives the end of Forebay."""

    def __post_init__(self) -> None:
        if self.every > LONGEST_GAP:
            raise ValueError(f'expected every to be at most "{LONGEST_GAP}", got "{self.every}"')
        if self.adapt and self.fast < self.rate:
            raise ValueError(
                f"expected fast to be at least rate, got {self.fast:g} and {self.rate:g}"
            )


class PaceFilter(Filter[PaceConfig]):
    """Stands first in its profile, so that replies pass it last: what others see is not late."""

    name: ClassVar[str] = "pace"
    config_type: ClassVar[type[Config]] = PaceConfig

    def __init__(self, config: PaceConfig, prepared: Pace, ports: Ports) -> None:
        super().__init__(config, prepared, ports)
        self._pacer: Pacer | None = None
        """None where nothing is paced."""
        self._tempo: Tempo | None = None
        self._most: float = config.rate
        self._tune_ns = NEVER_NS
        """When to change the rate."""
        self._look_ns = NEVER_NS
        """When to look at the GPU; never where the client is far, which is told but once."""

    @classmethod
    def prepare(cls, config: PaceConfig) -> Pace:
        """Put the bounds into the units of the clock."""
        every_ns, tail_ns = round(config.every * 1e9), round(config.tail * 1e9)
        return Pace(config.most, every_ns, tail_ns, config.hold)

    @classmethod
    def shaping(cls, config: PaceConfig) -> Any:
        """Return nothing: whatever its pace, the answer is the same."""
        return None

    @classmethod
    def holding(cls, config: PaceConfig) -> Holding:
        """Have streams wait."""
        return Holding.CUT if config.chunks == "cut" else Holding.WHOLE

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Ask for an answer that will come as a stream."""
        if exchange.prompt.stream:
            exchange.need(Need.REPLY)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Begin, if it does come as one; an error does not."""
        head = exchange.reply_head
        if not exchange.prompt.stream or head is None:
            return
        kind = head.headers.get("content-type", "")
        if exchange.dialect.framer(kind, exchange.prompt) is None:
            return
        self._pacer = Pacer(self.prepared, self.config.rate, partial(_cut, exchange.dialect))
        if self.config.adapt:
            self._tempo = Tempo(self.config.rate)
            self._tune_ns = 0
            if near(exchange.head.headers.get(RTT_HEADER, "")):
                self._look(exchange, self.ports.clock.monotonic_ns())

    def _tune(self, exchange: Exchange, tempo: Tempo, pacer: Pacer, now_ns: int) -> None:
        """Move the rate on towards what suits."""
        self._tune_ns = now_ns + TUNE_NS
        if now_ns >= self._look_ns:
            self._look(exchange, now_ns)
        pacer.set_rate(tempo.follow(now_ns, self._most, pacer.held_tokens))

    def _look(self, exchange: Exchange, now_ns: int) -> None:
        """Choose the most tokens a second that the replica is good for, until the next look."""
        self._look_ns = now_ns + LOOKS_NS
        served = exchange.reply_head.served if exchange.reply_head else ""
        address = served or next(iter(exchange.endpoints), "")
        busy = self.ports.replicas.gpu_usage(exchange.pool, address)
        idle = busy is not None and busy < IDLE_GPU
        self._most = self.config.fast if idle else self.config.rate

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """Keep what is early; make an event of many tokens several."""
        pacer = self._pacer
        if pacer is None:
            return (delta,)
        now_ns = self.ports.clock.monotonic_ns()
        tokens = self._tokens(delta.text)
        if tokens and (tempo := self._tempo) is not None:
            tempo.hear(now_ns, tokens)
            if now_ns >= self._tune_ns and not pacer.held_tokens:  # else the next frame does it
                self._tune(exchange, tempo, pacer, now_ns)
        if (
            tokens > pacer.frame_tokens
            and self.config.chunks == "cut"
            and len(delta.text) <= MOST_CUT_CHARS
        ):
            return pacer.take_lump(now_ns, delta, tokens)
        return pacer.feed(now_ns, ((delta, tokens),))

    def _tokens(self, text: str) -> int:
        if len(text) <= WORD_CHARS:
            return 1 if text else 0
        if len(text) <= PLAIN_CHARS and text.isascii():
            return len(text) // TOKEN_CHARS
        return max(1, self.ports.tokens.estimate(text))

    def on_end(self, exchange: Exchange) -> Iterable[Delta]:
        """Hurry: what waits has `tail` to go."""
        pacer = self._pacer
        return () if pacer is None else pacer.end(self.ports.clock.monotonic_ns())

    def wake_ns(self) -> int | None:
        """Return when the next frame is due."""
        return None if self._pacer is None else self._pacer.wake_ns()

    def on_time(self, exchange: Exchange) -> Iterable[Delta]:
        """Return a frame."""
        pacer = self._pacer
        if pacer is None:
            return ()
        now_ns = self.ports.clock.monotonic_ns()
        if now_ns >= self._tune_ns and (tempo := self._tempo) is not None and not pacer.ending:
            self._tune(exchange, tempo, pacer, now_ns)
        return pacer.due(now_ns)

    def let_go(self) -> Iterable[Delta]:
        """Return what waits."""
        return () if self._pacer is None else self._pacer.let_go()

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Forget what waits: nobody is there to read it. Say how fast it was in the end."""
        pacer = self._pacer
        if pacer is None:
            return
        pacer.let_go()
        exchange.note("pace.rate", round(self._tempo.rate if self._tempo else self._most, 1))
        exchange.note(HELD_MS, round(pacer.held_ns / 1e6))
        exchange.note(LATE_MS, round(pacer.late_ns / 1e6, 1))


def _cut(dialect: Dialect, delta: Delta, tokens: int, size: int) -> Sequence[tuple[Delta, int]]:
    """Make an event several of about `size` tokens, if it can be."""
    parts = cut(delta.text, tokens, size)
    raws = dialect.split(delta.raw, parts) if len(parts) > 1 else None
    if raws is None:
        return ((delta, tokens),)
    each = tokens / len(delta.text)
    pieces = [
        (Delta(raw, part), int(each * len(part) + 0.5) or 1)
        for raw, part in zip(raws, parts, strict=True)
    ]
    last = pieces[-1][0]
    last.finish, last.usage, last.done = delta.finish, delta.usage, delta.done
    return pieces
