"""Choose how fast a streamed answer flows: as its upstream speaks, and as reader and GPU allow."""

from __future__ import annotations

from typing import Final

REMEMBERED_NS: Final = 2_000_000_000.0
"""What came before is forgotten by then, little by little."""
LONGEST_PAUSE_NS: Final = 500_000_000
"""A longer silence, as for a tool or a thought, says nothing of how fast a model speaks."""
ENOUGH_NS: Final = 250_000_000.0
ENOUGH_TOKENS: Final = 8
"""Less says nothing yet."""
AHEAD: Final = 1.1
"""So much faster than the upstream, so that what waits becomes less."""
SMOOTH_NS: Final = 1_000_000_000.0
"""A change of the rate is nearly done by then."""
SLOWEST: Final = 1.0
NEAR_MS: Final = 30.0
ALIKE: Final = 0.01
"""A rate so near to what is wanted is that: then it stays, and nobody computes with it anew."""


def near(told: str) -> bool:
    """Tell whether a client is less than 30 ms away, by what the proxy says in milliseconds."""
    try:
        return 0 <= float(told) < NEAR_MS
    except ValueError:
        return False


class Tempo:
    """The rate of one stream, in tokens a second."""

    __slots__ = ("_changed_ns", "_heard_ns", "_time_ns", "_tokens", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._tokens = 0.0
        self._time_ns = 0.0
        self._heard_ns: int | None = None
        self._changed_ns: int | None = None

    def hear(self, now_ns: int, tokens: int) -> None:
        """Take that the upstream gave tokens.

        A mean of the last seconds, tokens through time, each part weighing less the older it is:
        tokens that come in one lump after a pause count for the pause.
        """
        if self._heard_ns is not None:
            passed_ns = min(now_ns - self._heard_ns, LONGEST_PAUSE_NS)
            kept = 1.0 - passed_ns / REMEMBERED_NS
            self._time_ns = self._time_ns * kept + passed_ns
            self._tokens = self._tokens * kept + tokens
        self._heard_ns = now_ns

    @property
    def upstream(self) -> float | None:
        """How fast the upstream speaks, once that can be told."""
        if self._time_ns < ENOUGH_NS or self._tokens < ENOUGH_TOKENS:
            return None
        return self._tokens * 1e9 / self._time_ns

    def follow(self, now_ns: int, most: float, waiting: int) -> float:
        """Move the rate towards what suits, at most `most`; return it.

        That is the upstream's own and a little more, and enough for what waits to be gone within a
        second.
        """
        wanted = most
        if (upstream := self.upstream) is not None:
            wanted = min(most, max(upstream * AHEAD, float(waiting), SLOWEST))
        if self._changed_ns is not None:
            share = min(1.0, (now_ns - self._changed_ns) / SMOOTH_NS)
            missing = wanted - self.rate
            self.rate = wanted if abs(missing) < ALIKE else self.rate + missing * share
        self._changed_ns = now_ns
        return self.rate
