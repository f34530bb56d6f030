"""What is possible for a load is reckoned from the load alone."""

from __future__ import annotations

import pytest

from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_possible import Done, evenly, foreseen, possible


def done(session: int, work_s: float, at_s: float = 0.0) -> Done:
    """Return a request of a session."""
    return Done(at_s, session, 100, 50, work_s)


def test_sessions_stay_together_even_when_all_is_foreseen() -> None:
    """One that takes as much as three others leaves a replica no room for more."""
    sessions = [done(1, 2.0), done(1, 1.0), done(2, 1.0), done(3, 1.0), done(4, 1.0)]
    assert 1.0 == foreseen(sessions, 2)
    assert 1.5 == foreseen(sessions[:3], 2)


def test_who_sees_no_future_puts_a_session_where_least_was_done() -> None:
    """The third joins the smaller of two, and grows there."""
    every = [done(1, 2.0), done(2, 1.0), done(3, 1.0), done(3, 4.0)]
    assert 6.0 / 4.0 == evenly(every, 0, 2)


def test_what_was_done_while_caches_filled_decides_and_does_not_count() -> None:
    """The spread is that of the measured part."""
    every = [done(1, 2.0), done(2, 1.0), done(3, 1.0), done(4, 1.5)]
    assert 1.5 / 1.25 == evenly(every, 2, 2)


def test_work_fades() -> None:
    """What was done long ago makes nobody busy."""
    late_s = 10_000.0
    every = [done(1, 2.0), done(2, 1.0, late_s), done(3, 1.0, late_s)]
    assert 3.0 / 2.0 == evenly(every, 0, 2)


def test_nothing_is_spread_evenly() -> None:
    """No division by zero seconds."""
    assert 1.0 == foreseen([done(1, 0.0)], 2)


@pytest.mark.parametrize("load", LOADS)
def test_every_load_can_be_spread(load: str) -> None:
    """Whoever foresees all does so better; where nothing is shared there are no hits."""
    most = possible(LOADS[load], 3, 40)
    assert 1.0 <= most.foreseen <= most.even
    assert (load == "unshared") == (most.hit_rate == 0.0)
