"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

MOST_WORK_S: Final = 100
"""What a test may take of the processor, ten times what any does on a slow machine.

No test measures its time. One that is to show that a cost grows with the length of a text works on
so long a text that the square of it would take far more than this. The test fails, and the others
go on; one that only waits is ended by `faulthandler_timeout`.
"""

settings.register_profile(
    "forebay",
    # A busy machine is slow, and what an example does is no more wrong for it.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # In CI a change fails for what it changed; chance finds more on the machines of people.
    derandomize=bool(os.environ.get("CI")),
)
# `make fuzz-streams`: by chance in CI as well, so that each run finds what the last one did not.
settings.register_profile(
    "fuzz",
    settings.get_profile("forebay"),
    max_examples=1_700,  # of each of the six kinds of streams: ten thousand in all
    derandomize=False,
    database=None,
)
settings.load_profile("forebay")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """End a test that works without end. The time is the processor's: a busy machine adds none."""

    def end(*_: object) -> None:
        pytest.fail(f"works for {MOST_WORK_S} s: does a cost grow with the square of a length?")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_WORK_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
