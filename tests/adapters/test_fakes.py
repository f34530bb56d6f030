"""Driving a coroutine by hand shows everything that it waits for."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes import FakeClock, FakeStore, PortWait, drive


def test_driving_returns_the_result() -> None:
    """A coroutine that does not wait needs one step."""

    async def answer() -> int:
        return 42

    assert 42 == drive(answer())


def test_driving_fails_on_a_wait_for_no_port() -> None:
    """A sleep is a wait that a unit must not have."""
    with pytest.raises(AssertionError, match="waited for None, which is no port"):
        drive(asyncio.sleep(0))


def test_driving_passes_on_what_is_raised() -> None:
    """An error is the unit's result."""

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        drive(fail())


def test_driving_collects_the_waits() -> None:
    """A store told to wait is seen waiting, once for each call."""
    store = FakeStore(FakeClock())
    store.waiting = True
    waits: list[PortWait] = []
    drive(store.put(b"key", b"value", 10), waits)
    assert b"value" == drive(store.get(b"key"), waits)
    assert [PortWait("store"), PortWait("store")] == waits


def test_a_fake_clock_moves_both_of_its_times() -> None:
    """Wall time and monotonic time advance together."""
    clock = FakeClock(now=100.0)
    clock.advance(1.5)
    assert (101.5, 1_500_000_000) == (clock.now(), clock.monotonic_ns())
