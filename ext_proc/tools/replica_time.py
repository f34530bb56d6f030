"""Let the model of a replica run in real time: tokens are there when the model says they would be.

Steps begin when the one before them was to end, however late the timer came: a busy machine makes
single tokens late, but never the replica slow.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from ext_proc.tools.replica_model import Engine, Work

TIMER_S: Final = 0.001  # what uvloop rounds a wait to
_JUST: Final = 1e-6
"""Of a step: so much of it may be missing when the timer comes exactly at its end."""


class Timer(Protocol):
    """What is to be called at a time."""

    def cancel(self) -> None:
        """Do not call."""


class Timers(Protocol):
    """A clock, and calls at its times."""

    def time(self) -> float:
        """Return the seconds since any moment."""

    def call_at(self, when_s: float, call: Callable[[], object]) -> Timer:
        """Have something called at a time or little later."""


class LoopTimers:
    """The running event loop's timers, by a clock finer than uvloop's own."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()

    def time(self) -> float:
        """See `Timers`."""
        return time.monotonic()

    def call_at(self, when_s: float, call: Callable[[], object]) -> Timer:
        """See `Timers`."""
        # Rounded up: a timer that comes early has nothing to do but set itself again.
        wait = max(0.0, when_s - time.monotonic())
        return self._loop.call_later(math.ceil(wait / TIMER_S) * TIMER_S, call)


class Listener(Protocol):
    """Who is told what becomes of requests, at the time when it happens by the model."""

    def admitted(self, work: Work, now_s: float) -> None:
        """Know that a request no longer waits."""

    def started(self, work: Work, now_s: float) -> None:
        """Know that its first token is there."""

    def ended(self, work: Work, now_s: float) -> None:
        """Know that its last one is."""

    def planned(self) -> None:
        """Know that a step begins, and that blocks may have come and gone."""


class TimedEngine:
    """An engine whose plans begin and end by a clock."""

    def __init__(
        self, engine: Engine, timers: Timers, listener: Listener, *, speed: float = 1.0
    ) -> None:
        """Make one that goes `speed` times as fast as its hardware says."""
        self.engine: Final = engine
        self._timers: Final = timers
        self._listener: Final = listener
        self._speed = speed
        self._start_s = 0.0
        self._end_s: float | None = None
        """When the plan is done; None when there is none."""
        self._waiters: Final[dict[Work, tuple[int, Callable[[], object]]]] = {}
        self._timer: Timer | None = None
        self._timer_s = math.inf
        self._stopped = False

    @property
    def speed(self) -> float:
        """How many times as fast as its hardware says."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        now_s = self.catch_up()
        if self._end_s is not None:
            done, whole = now_s - self._start_s, self._end_s - self._start_s
            self._start_s = now_s - done * self._speed / speed
            self._end_s = self._start_s + whole * self._speed / speed
        self._speed = speed
        self._arm()

    def arrive(self, work: Work) -> None:
        """Take a request."""
        now_s = self.catch_up()
        self.engine.arrive(work, now_s)
        if self._stopped:
            return
        if self._end_s is None:
            self._begin(now_s)
            self._play(now_s)
        else:
            self._cut(now_s)
        self._arm()

    def drop(self, work: Work) -> None:
        """Forget a request, whatever became of it."""
        now_s = self.catch_up()
        self._waiters.pop(work, None)
        self.engine.drop(work)
        if self._end_s is not None and not self._stopped:
            self._cut(now_s)
            self._arm()

    def written(self, work: Work) -> int:
        """Return how many tokens of a request's answer are there."""
        return self._written(work, self.catch_up())

    def call_when(self, work: Work, tokens: int, wake: Callable[[], object]) -> None:
        """Have something called once so many tokens of a request's answer are there."""
        self._waiters[work] = (tokens, wake)
        if (due_s := self._due(work, tokens)) < self._timer_s:
            self._arm(due_s)

    def stop(self) -> None:
        """Leave everything as it is for ever."""
        self.catch_up()
        self._stopped = True
        self._waiters.clear()
        if self._timer is not None:
            self._timer.cancel()

    def catch_up(self) -> float:
        """Make done what is to be by now; return the time."""
        now_s = self._timers.time()
        self._play(now_s)
        return now_s

    def _play(self, now_s: float) -> None:
        while self._end_s is not None and self._end_s <= now_s and not self._stopped:
            end_s = self._end_s
            firsts, finished = self.engine.end(end_s)
            for work in firsts:
                self._listener.started(work, end_s)
            for work in finished:
                self._listener.ended(work, end_s)
            self._begin(end_s)

    def _begin(self, now_s: float) -> None:
        running = self.engine.running
        before = len(running)
        seconds = self.engine.begin()
        for work in running[before:]:
            self._listener.admitted(work, now_s)
        self._start_s = now_s
        self._end_s = now_s + seconds / self._speed if running else None
        self._listener.planned()

    def _cut(self, now_s: float) -> None:
        if not self.engine.prefilling:
            seconds = self.engine.cut((now_s - self._start_s) * self._speed)
            self._end_s = self._start_s + seconds / self._speed

    def _written(self, work: Work, now_s: float) -> int:
        done = work.answer_tokens - work.left
        if done and work.left > 0 and self._end_s is not None and self.engine.step_s:
            passed_s = (min(now_s, self._end_s) - self._start_s) * self._speed
            done += int(passed_s / self.engine.step_s + _JUST)
        return min(done, work.answer_tokens)

    def _due(self, work: Work, tokens: int) -> float:
        """Return when so many tokens are there, or the plan ends that they are not part of."""
        if self._end_s is None:
            return self._timers.time()
        done = work.answer_tokens - work.left
        if not done:
            return self._end_s
        due_s = self._start_s + (tokens - done) * self.engine.step_s / self._speed
        return min(due_s, self._end_s)

    def _arm(self, due_s: float | None = None) -> None:
        if self._stopped:
            return
        if due_s is None:
            due_s = math.inf if self._end_s is None else self._end_s
            for work, (tokens, _) in self._waiters.items():
                due_s = min(due_s, self._due(work, tokens))
        if due_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = due_s
        self._timer = None if due_s == math.inf else self._timers.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_s = None, math.inf
        now_s = self.catch_up()
        due = [
            (work, wake)
            for work, (tokens, wake) in self._waiters.items()
            if self._written(work, now_s) >= tokens
        ]
        for work, wake in due:
            del self._waiters[work]
            wake()
        self._arm()
