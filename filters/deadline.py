"""Bound how long one filter may work on one exchange, all its waits together."""

from __future__ import annotations

from typing import Final

from filters.api import Clock
from filters.errors import PortError


class Deadline:
    """A time by which work is done or given up."""

    __slots__ = ("_clock", "_ends_ns")

    def __init__(self, clock: Clock, seconds: float) -> None:
        """Begin: `seconds` are left."""
        self._clock: Final = clock
        self._ends_ns: Final = clock.monotonic_ns() + round(seconds * 1e9)

    def left_s(self) -> float:
        """Return how many seconds are left; raise `PortError` when there are none."""
        left_s = (self._ends_ns - self._clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise PortError("no time left")
        return left_s
