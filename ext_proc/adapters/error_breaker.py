"""Tell when too many of the last answers were errors, and when that is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ext_proc.adapters.breaker import BreakerState

STEPS: Final = 60
"""A window moves on in so many steps: with a minute, seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a breaker opens, and how it closes."""

    errors: float = 0.05
    """More than this share of the answers in the window opens it."""
    window_ns: int = 60 * 10**9
    least: int = 20
    """Of fewer answers nothing is concluded."""
    probes: int = 3
    """After a rest, so many in a row are to be good to close it; one bad opens it again."""
    rest_ns: int = 10 * 10**9


class Window:
    """How many of the answers of late were bad, in the same memory whatever their number.

    Whole steps leave the window: it is up to a step shorter than it says.
    """

    __slots__ = ("_bad", "_last", "_step_ns", "_total", "bad", "total")

    def __init__(self, window_ns: int) -> None:
        self._step_ns: Final = max(1, window_ns // STEPS)
        self._total: Final = [0] * STEPS
        self._bad: Final = [0] * STEPS
        self._last = 0
        """The step that was counted in last."""
        self.total = 0
        self.bad = 0

    def add(self, now_ns: int, *, good: bool) -> None:
        """Count an answer."""
        self.move(now_ns)
        at = self._last % STEPS
        self._total[at] += 1
        self.total += 1
        if not good:
            self._bad[at] += 1
            self.bad += 1

    def spoil(self, then_ns: int, now_ns: int) -> None:
        """Count an answer as bad by now that was counted as good then."""
        self.move(now_ns)
        step = then_ns // self._step_ns
        at = step % STEPS
        if step > self._last - STEPS and self._total[at] > self._bad[at]:
            self._total[at] -= 1
            self.total -= 1
        self.add(now_ns, good=False)

    def move(self, now_ns: int) -> None:
        """Forget what is too old by now."""
        step = now_ns // self._step_ns
        if step - self._last >= STEPS:
            self.clear()
        else:
            for number in range(self._last + 1, step + 1):
                at = number % STEPS
                self.total -= self._total[at]
                self.bad -= self._bad[at]
                self._total[at] = self._bad[at] = 0
        self._last = max(step, self._last)

    def counted(self, now_ns: int) -> tuple[int, int]:
        """Return how many answers the window has by now, and how many of them were bad.

        Changes nothing, so that any thread may ask; beside one that counts, it may miss an answer.
        """
        last = self._last
        first = max(now_ns // self._step_ns, last) - STEPS + 1
        kept = [number % STEPS for number in range(first, last + 1)]
        bad = sum(self._bad[at] for at in kept)
        return max(bad, sum(self._total[at] for at in kept)), bad

    def clear(self) -> None:
        """Forget everything."""
        self._total[:] = self._bad[:] = [0] * STEPS
        self.total = self.bad = 0


class ErrorBreaker:
    """Opens when the share of bad answers is too high; probes close it.

    1. CLOSED: all are admitted. `least` answers in the window, over `errors` of them bad: OPEN.
    2. OPEN: none is admitted, and what ends says nothing. After `rest`: PROBING.
    3. PROBING: one is admitted at a time, or after another rest should it not report. `probes` good
       ones in a row: CLOSED, and nothing counted. A bad one: OPEN.

    What began well and `broke` is bad in any state. What began before the last opening says nothing
    in any, however it ends: it is no probe, and was judged by others already.
    """

    __slots__ = ("_good", "_opened_ns", "_until_ns", "limits", "opened", "state", "window")

    def __init__(self, limits: Limits) -> None:
        self.limits: Final = limits
        self.window: Final = Window(limits.window_ns)
        self.state = BreakerState.CLOSED
        self.opened = 0
        """How often it opened, not counting from a probe that failed."""
        self._opened_ns = -1
        """When it opened last, of itself or because a probe was bad."""
        self._until_ns = 0
        """When the next one is admitted, should none report before."""
        self._good = 0
        """Probes that were good."""

    def admits(self, now_ns: int) -> bool:
        """Tell whether one more may be sent there; one that would be a probe is then under way."""
        if self.state is BreakerState.CLOSED:
            return True
        if now_ns < self._until_ns:
            return False
        self.state = BreakerState.PROBING
        self._until_ns = now_ns + self.limits.rest_ns
        return True

    def ended(self, began_ns: int, now_ns: int, *, good: bool | None) -> None:
        """Count how one ended that was admitted at `began_ns`.

        None: it says nothing, and another probe may go.
        """
        if began_ns <= self._opened_ns:
            return
        match self.state:
            case BreakerState.PROBING:
                self._probed(now_ns, good=good)
            case BreakerState.CLOSED if good is not None:
                self.window.add(now_ns, good=good)
                self._judge(now_ns)

    def broke(self, began_ns: int, well_ns: int, now_ns: int) -> None:
        """Count that an answer which was good at `well_ns` came to nothing: as one never good."""
        if began_ns <= self._opened_ns:
            return
        match self.state:
            case BreakerState.PROBING:
                self._open(now_ns)
            case BreakerState.CLOSED:
                self.window.spoil(well_ns, now_ns)
                self._judge(now_ns)

    def _judge(self, now_ns: int) -> None:
        window, limits = self.window, self.limits
        if window.total >= limits.least and window.bad > limits.errors * window.total:
            self.opened += 1
            self._open(now_ns)

    def _probed(self, now_ns: int, *, good: bool | None) -> None:
        if good is False:
            self._open(now_ns)
            return
        self._until_ns = now_ns
        if good:
            self._good += 1
        if self._good >= self.limits.probes:
            self.state = BreakerState.CLOSED
            self.window.clear()

    def _open(self, now_ns: int) -> None:
        self.state = BreakerState.OPEN
        self._opened_ns = now_ns
        self._until_ns = now_ns + self.limits.rest_ns
        self._good = 0
