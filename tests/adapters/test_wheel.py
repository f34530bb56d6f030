"""Calls come when they are due, in their order, by one timer of the loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.wheel import TICK_NS, TimerWheel

CLOCK = SystemClock()


async def rung(wheel: TimerWheel, *afters_ns: int) -> list[int]:
    """Set an alarm for each of these times; return them as they came."""
    done, came = asyncio.Event(), []
    now_ns = CLOCK.monotonic_ns()

    def call(after_ns: int) -> None:
        assert CLOCK.monotonic_ns() >= now_ns + after_ns
        came.append(after_ns)
        if len(came) == len(afters_ns):
            done.set()

    for after_ns in afters_ns:
        wheel.at(now_ns + after_ns, partial(call, after_ns))
    assert len(afters_ns) == wheel.pending
    async with asyncio.timeout(60):
        await done.wait()
    return came


async def test_what_is_due_sooner_is_called_sooner() -> None:
    """Whatever was asked first; never before its time."""
    wheel = TimerWheel(CLOCK)
    ticks = [tick * TICK_NS * 2 for tick in (7, 1, 9, 3, 1)]
    assert sorted(ticks) == await rung(wheel, *ticks)
    assert 0 == wheel.pending


async def test_what_lies_behind_is_called_soon() -> None:
    """Not within the call that asks for it."""
    assert [-5 * TICK_NS] == await rung(TimerWheel(CLOCK), -5 * TICK_NS)


async def test_a_thousand_wait_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set anew only for one that comes before all others."""
    sets: list[TimerWheel] = []
    real = TimerWheel._set

    def count(wheel: TimerWheel) -> None:
        sets.append(wheel)
        real(wheel)

    monkeypatch.setattr(TimerWheel, "_set", count)
    wheel = TimerWheel(CLOCK)
    for number in range(1_000):
        wheel.at(CLOCK.monotonic_ns() + 10**12 + number * TICK_NS, lambda: None)
    assert (1, 1_000) == (len(sets), wheel.pending)


async def test_what_was_cancelled_is_forgotten_at_once() -> None:
    """With all that it would have reached."""

    class Stream:
        def ring(self) -> None:
            raise AssertionError("cancelled")

    wheel, stream = TimerWheel(CLOCK), Stream()
    seen = weakref.ref(stream)
    alarm = wheel.at(CLOCK.monotonic_ns() + 10**12, stream.ring)
    del stream
    alarm.cancel()
    alarm.cancel()
    gc.collect()
    assert (None, 0) == (seen(), wheel.pending)


async def test_a_call_that_raises_stops_no_other() -> None:
    """The loop is told what kind of error it was, and nothing that it says."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    wheel = TimerWheel(CLOCK)

    def fail() -> None:
        raise RuntimeError("a prompt")

    wheel.at(CLOCK.monotonic_ns(), fail)
    await rung_beside(wheel)
    assert [{"message": "a call of the wheel raised RuntimeError"}] == told


async def rung_beside(wheel: TimerWheel) -> None:
    done = asyncio.Event()
    wheel.at(CLOCK.monotonic_ns(), done.set)
    async with asyncio.timeout(60):
        await done.wait()
