"""Stop asking what keeps failing, and ask again once in a while."""

from __future__ import annotations

import enum
from typing import Final


class BreakerState(enum.IntEnum):
    """Whether to ask; the number is the metric's value."""

    CLOSED = 0
    """Everything is asked."""
    PROBING = 1
    """One is asked; what becomes of it decides."""
    OPEN = 2
    """Nothing is asked."""


class Breaker:
    """Opens after `failures` in a row; after `pause_ns` it lets one probe through at a time.

    A failure counts only when nothing succeeded while it was waited for: under a burst the
    last in a queue run out of their time although the other side is well.
    """

    __slots__ = ("_failed", "_failures", "_pause_ns", "_probe_at_ns", "_succeeded_ns", "state")

    def __init__(self, failures: int, pause_ns: int) -> None:
        self._failures: Final = failures
        self._pause_ns: Final = pause_ns
        self._failed = 0
        self._succeeded_ns = -1
        self._probe_at_ns = 0
        self.state = BreakerState.CLOSED

    def would_allow(self, now_ns: int) -> bool:
        """Return what `allows` would, and let nothing through."""
        return self.state is BreakerState.CLOSED or now_ns >= self._probe_at_ns

    def allows(self, now_ns: int) -> bool:
        """Return whether to ask; a probe that never reports is followed by another in time."""
        if self.state is BreakerState.CLOSED:
            return True
        if now_ns < self._probe_at_ns:
            return False
        self.state = BreakerState.PROBING
        self._probe_at_ns = now_ns + self._pause_ns
        return True

    def succeeded(self, now_ns: int) -> None:
        """Report an answer in time."""
        self._failed = 0
        self._succeeded_ns = now_ns
        self.state = BreakerState.CLOSED

    def failed(self, started_ns: int, now_ns: int) -> None:
        """Report that what was asked at `started_ns` had no answer, or a broken one."""
        if started_ns < self._succeeded_ns:
            return
        self._failed += 1
        if self.state is BreakerState.PROBING or self._failed >= self._failures:
            self.state = BreakerState.OPEN
            self._probe_at_ns = now_ns + self._pause_ns
