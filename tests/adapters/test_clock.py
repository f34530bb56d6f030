"""Both clocks tell time as the `Clock` port promises."""

from __future__ import annotations

import time

import pytest

from ext_proc.adapters.clock import SystemClock
from filters.api import Clock
from tests.fakes import FakeClock

CLOCKS = pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])


@CLOCKS
def test_monotonic_time_never_goes_back(clock: Clock) -> None:
    """Later readings are no smaller."""
    readings = [clock.monotonic_ns() for _ in range(1000)]
    assert sorted(readings) == readings


@CLOCKS
def test_wall_time_is_in_seconds_since_1970(clock: Clock) -> None:
    """Neither milliseconds nor a time of the process's own."""
    assert 1_600_000_000 < clock.now() < 10_000_000_000


def test_the_system_clock_is_the_machines() -> None:
    """Both of its times lie between two readings of the machine's."""
    clock = SystemClock()
    before = (time.time(), time.monotonic_ns())
    now, monotonic_ns = clock.now(), clock.monotonic_ns()
    after = (time.time(), time.monotonic_ns())
    assert before[0] <= now <= after[0]
    assert before[1] <= monotonic_ns <= after[1]
