"""The breaker opens on failures in a row, probes, and closes on the first success."""

from __future__ import annotations

from ext_proc.adapters.breaker import Breaker, BreakerState


def opened() -> Breaker:
    """Return a breaker that opened at 30 and may probe from 130 on."""
    breaker = Breaker(failures=3, pause_ns=100)
    for now in (10, 20, 30):
        breaker.failed(now, now)
    return breaker


def test_fewer_failures_than_the_limit_leave_it_closed() -> None:
    """Two of three are not enough."""
    breaker = Breaker(failures=3, pause_ns=100)
    breaker.failed(10, 11)
    breaker.failed(20, 21)
    assert (BreakerState.CLOSED, True) == (breaker.state, breaker.allows(22))


def test_failures_in_a_row_open_it() -> None:
    """Open, it lets nothing through."""
    breaker = opened()
    assert (BreakerState.OPEN, False) == (breaker.state, breaker.allows(31))


def test_a_success_between_failures_starts_the_count_anew() -> None:
    """Only failures in a row count."""
    breaker = Breaker(failures=3, pause_ns=100)
    breaker.failed(10, 11)
    breaker.failed(12, 13)
    breaker.succeeded(14)
    breaker.failed(15, 16)
    breaker.failed(17, 18)
    assert breaker.state is BreakerState.CLOSED


def test_a_failure_during_which_another_succeeded_does_not_count() -> None:
    """Being last in a burst is no sign of a dead store."""
    breaker = Breaker(failures=1, pause_ns=100)
    breaker.succeeded(15)
    breaker.failed(10, 20)
    assert breaker.state is BreakerState.CLOSED


def test_after_the_pause_one_probe_goes_through() -> None:
    """The rest wait for what becomes of it."""
    breaker = opened()
    assert [False, True, False] == [breaker.allows(now) for now in (129, 130, 131)]
    assert breaker.state is BreakerState.PROBING


def test_a_probe_that_succeeds_closes_it() -> None:
    """One answer in time is enough."""
    breaker = opened()
    breaker.allows(130)
    breaker.succeeded(135)
    assert (BreakerState.CLOSED, True) == (breaker.state, breaker.allows(136))


def test_a_probe_that_fails_opens_it_for_another_pause() -> None:
    """One failure is enough while probing."""
    breaker = opened()
    breaker.allows(130)
    breaker.failed(130, 140)
    assert breaker.state is BreakerState.OPEN
    assert [False, True] == [breaker.allows(now) for now in (239, 240)]


def test_a_probe_that_never_reports_is_followed_by_another() -> None:
    """A client that left with the probe does not keep the breaker from closing."""
    breaker = opened()
    breaker.allows(130)
    assert [False, True] == [breaker.allows(now) for now in (229, 230)]


def test_whether_it_would_allow_is_told_without_letting_anything_through() -> None:
    """Who has a choice looks first; the probe is still to come."""
    breaker = Breaker(1, 10)
    assert breaker.would_allow(0)
    breaker.failed(0, 5)
    assert [False, True, True] == [breaker.would_allow(now) for now in (14, 15, 15)]
    assert (BreakerState.OPEN, True) == (breaker.state, breaker.allows(15))
    assert not breaker.would_allow(15)
