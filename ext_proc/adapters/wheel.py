"""Call back later, for thousands of streams by one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from filters.api import Clock

TICK_NS: Final = 10_000_000
"""A reader sees no difference, and who is due within one goes in one turn: the first of a turn
costs four times what another does, for the processor did something else meanwhile."""


class TickAlarm:
    """A call to come, or one that came or was cancelled."""

    __slots__ = ("_wheel", "call")

    def __init__(self, wheel: TimerWheel, call: Callable[[], None]) -> None:
        self._wheel = wheel
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget what was to be called."""
        if self.call is not None:
            self.call = None
            self._wheel.pending -= 1


class TimerWheel:
    """A `Wheel` whose ticks are slots of `TICK_NS`; the loop's timer is set for the next one."""

    def __init__(self, clock: Clock) -> None:
        self.pending = 0
        """How many calls are to come."""
        self._clock: Final = clock
        self._slots: Final[dict[int, list[TickAlarm]]] = {}
        self._ticks: Final[list[int]] = []  # a heap of the keys of `_slots`
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0

    def at(self, when_ns: int, call: Callable[[], None]) -> TickAlarm:
        """Call in the first tick that ends no earlier than `when_ns`."""
        tick = -(-when_ns // TICK_NS)
        alarm = TickAlarm(self, call)
        self.pending += 1
        slot = self._slots.get(tick)
        if slot is None:
            self._slots[tick] = [alarm]
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._timer_tick:
                self._set()
        else:
            slot.append(alarm)
        return alarm

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ticks:
            self._timer_tick = self._ticks[0]
            wait_ns = self._timer_tick * TICK_NS - self._clock.monotonic_ns()
            # uvloop rounds to a millisecond: before the tick it would turn again and again.
            wait_ms = max(0, -(-wait_ns // 1_000_000))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1e3, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now_tick = self._clock.monotonic_ns() // TICK_NS
        try:
            while self._ticks and self._ticks[0] <= now_tick:
                for alarm in self._slots.pop(heapq.heappop(self._ticks)):
                    if (call := alarm.call) is not None:
                        alarm.call = None
                        self.pending -= 1
                        self._ring(call)
        finally:
            if self._timer is None:
                self._set()

    def _ring(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a bug of one stream's must not stop the others
            loop = asyncio.get_running_loop()
            told = {"message": f"a call of the wheel raised {type(error).__name__}"}
            loop.call_exception_handler(told)
