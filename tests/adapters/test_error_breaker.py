"""The breaker of a pool counts errors as a list of all answers would, and closes by probes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.error_breaker import STEPS, ErrorBreaker, Limits, Window

SECOND = 10**9
LIMITS = Limits()
REST = LIMITS.rest_ns


def opened(limits: Limits = LIMITS) -> ErrorBreaker:
    """Return a breaker that opened at 0 and may be probed after a rest."""
    breaker = ErrorBreaker(limits)
    for _ in range(limits.least):
        breaker.ended(0, 0, good=False)
    return breaker


def told(breaker: ErrorBreaker, now_ns: int, *ends: bool | None) -> BreakerState:
    """Let one exchange after the other go there and end so; return the state after that."""
    for good in ends:
        assert breaker.admits(now_ns)
        breaker.ended(now_ns, now_ns, good=good)
    return breaker.state


def test_a_pool_without_a_good_answer_opens_it_at_the_least_number() -> None:
    """Nineteen errors say nothing yet; with the twentieth no more are admitted."""
    breaker = ErrorBreaker(LIMITS)
    assert BreakerState.CLOSED is told(breaker, 0, *[False] * 19)
    assert BreakerState.OPEN is told(breaker, 0, False)
    assert not breaker.admits(REST - 1)


@pytest.mark.parametrize(("errors", "state"), [(5, BreakerState.CLOSED), (6, BreakerState.OPEN)])
def test_only_more_than_the_share_opens_it(errors: int, state: BreakerState) -> None:
    """Five of a hundred are 5 %, and not over it."""
    assert state is told(ErrorBreaker(LIMITS), 0, *[True] * 95, *[False] * errors)


def test_a_good_answer_may_complete_the_number() -> None:
    """One error in ten answers of twenty: the twentieth is good, and opens it."""
    ends = [False, False, *[True] * 17]
    breaker = ErrorBreaker(LIMITS)
    assert BreakerState.CLOSED is told(breaker, 0, *ends)
    assert BreakerState.OPEN is told(breaker, 0, True)


def test_errors_leave_the_window() -> None:
    """Nineteen errors a minute ago and one by now are one."""
    breaker = ErrorBreaker(LIMITS)
    told(breaker, 0, *[False] * 19)
    assert BreakerState.CLOSED is told(breaker, 60 * SECOND, False)
    assert (1, 1) == (breaker.window.total, breaker.window.bad)


def test_an_end_that_says_nothing_is_not_counted() -> None:
    """Clients who left say nothing of the pool."""
    breaker = ErrorBreaker(LIMITS)
    told(breaker, 0, *[None] * 100, *[False] * 19)
    assert BreakerState.CLOSED is breaker.state


def test_what_began_well_and_broke_counts_as_one_bad_answer() -> None:
    """Six of a hundred open it, five do not; a broken stream is one answer, not two."""
    breaker = ErrorBreaker(LIMITS)
    told(breaker, SECOND, *[True] * 100)
    for _ in range(5):
        breaker.broke(SECOND, SECOND, 2 * SECOND)
    assert (100, 5) == (breaker.window.total, breaker.window.bad)
    assert BreakerState.CLOSED is breaker.state
    breaker.broke(SECOND, SECOND, 3 * SECOND)
    assert (BreakerState.OPEN, 1) == (breaker.state, breaker.opened)


def test_a_stream_that_broke_is_counted_when_it_did() -> None:
    """Its good beginning may have left the window by then."""
    breaker = ErrorBreaker(LIMITS)
    told(breaker, 0, True)
    breaker.broke(0, 0, 61 * SECOND)
    assert (1, 1) == (breaker.window.total, breaker.window.bad)


def test_a_probe_that_breaks_later_opens_it_again() -> None:
    """Also behind others that were good; a stream of before it opened says nothing."""
    breaker = opened()
    assert BreakerState.PROBING is told(breaker, REST, True)
    breaker.broke(0, 0, REST)
    breaker.broke(0, REST, REST)  # its head came late
    assert BreakerState.PROBING is breaker.state
    breaker.broke(REST, REST, REST + 1)
    assert (BreakerState.OPEN, 1) == (breaker.state, breaker.opened)


def test_what_ends_while_it_is_open_says_nothing() -> None:
    """It began before; a good end does not close, and a bad one does not prolong."""
    breaker = opened()
    breaker.ended(0, REST - 1, good=True)
    breaker.ended(0, REST - 1, good=False)
    assert [False, True] == [breaker.admits(now) for now in (REST - 1, REST)]


@pytest.mark.parametrize("good", [True, False, None])
def test_what_began_before_it_opened_is_no_probe(good: bool | None) -> None:
    """Late ends neither close nor prolong, nor do they let another probe go before one reports."""
    breaker = opened()
    assert breaker.admits(REST)
    for _ in range(LIMITS.probes):
        breaker.ended(0, REST + 1, good=good)
    assert (BreakerState.PROBING, False) == (breaker.state, breaker.admits(REST + 1))
    breaker.ended(REST, REST + 2, good=True)
    assert BreakerState.CLOSED is told(breaker, REST + 2, True, True)


def test_what_began_before_it_opened_does_not_open_it_again() -> None:
    """Timeouts of a pool that hung come for long after it is well."""
    breaker = opened()
    assert BreakerState.CLOSED is told(breaker, REST, True, True, True)
    for _ in range(LIMITS.least):
        breaker.ended(0, REST + 1, good=False)
    assert (BreakerState.CLOSED, 0) == (breaker.state, breaker.window.total)


def test_after_the_rest_one_probe_goes_there() -> None:
    """No more than that until it reports: each bad one is an error for somebody."""
    breaker = opened()
    assert [True, False, False] == [breaker.admits(REST) for _ in range(3)]
    breaker.ended(REST, REST, good=True)
    assert [True, False] == [breaker.admits(REST) for _ in range(2)]
    assert BreakerState.PROBING is breaker.state


def test_good_probes_close_it_and_nothing_is_counted() -> None:
    """All of them; the errors before are forgotten."""
    breaker = opened()
    assert BreakerState.PROBING is told(breaker, REST, True, True)
    assert BreakerState.CLOSED is told(breaker, REST, True)
    assert (0, 0) == (breaker.window.total, breaker.window.bad)
    assert BreakerState.CLOSED is told(breaker, REST, *[False] * 19)


def test_a_bad_probe_opens_it_for_another_rest() -> None:
    """Good ones before it do not help; that is no other opening."""
    breaker = opened()
    assert BreakerState.OPEN is told(breaker, REST, True, True, False)
    assert not breaker.admits(2 * REST - 1)
    assert BreakerState.CLOSED is told(breaker, 2 * REST, None, True, True, True)
    assert 1 == breaker.opened


def test_a_probe_that_does_not_report_is_followed_by_another() -> None:
    """After another rest."""
    breaker = opened()
    breaker.admits(REST)
    assert [False, True] == [breaker.admits(now) for now in (2 * REST - 1, 2 * REST)]


def test_a_probe_that_says_nothing_is_followed_by_another() -> None:
    """Its client left; it counts neither way."""
    breaker = opened()
    assert BreakerState.PROBING is told(breaker, REST, True, True, None)
    assert BreakerState.CLOSED is told(breaker, REST, True)


@dataclass
class Listed:
    """A window that keeps every answer."""

    window_ns: int
    answers: list[tuple[int, bool]] = field(default_factory=list)

    def counted(self, now_ns: int) -> tuple[int, int]:
        step_ns = max(1, self.window_ns // STEPS)
        last = now_ns // step_ns
        kept = [good for at_ns, good in self.answers if at_ns // step_ns > last - STEPS]
        return len(kept), kept.count(False)


GAPS = st.one_of(st.integers(0, 3), st.integers(0, 2 * STEPS * 7), st.integers(0, 100 * STEPS * 7))


@given(st.integers(1, STEPS * 7), st.lists(st.tuples(GAPS, st.booleans()), max_size=60))
def test_a_window_counts_what_a_list_would(window_ns: int, ends: list[tuple[int, bool]]) -> None:
    """Whatever the gaps between the answers."""
    window, listed, now_ns = Window(window_ns), Listed(window_ns), 0
    for gap_ns, good in ends:
        now_ns += gap_ns
        assert listed.counted(now_ns) == window.counted(now_ns)
        window.move(now_ns)
        assert listed.counted(now_ns) == (window.total, window.bad)
        window.add(now_ns, good=good)
        listed.answers.append((now_ns, good))
        assert listed.counted(now_ns) == (window.total, window.bad) == window.counted(now_ns)


class AnyTraffic(RuleBasedStateMachine):
    """A breaker beside the rules as they are told, over lists of everything."""

    LIMITS = Limits(errors=0.25, window_ns=STEPS, least=4, probes=2, rest_ns=10)

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.breaker = ErrorBreaker(self.LIMITS)
        self.listed = Listed(self.LIMITS.window_ns)
        self.state = BreakerState.CLOSED
        self.until_ns = self.good = 0
        self.begun: list[int] = []
        self.old: list[int] = []

    @rule(gap_ns=st.integers(0, 12))
    def wait(self, gap_ns: int) -> None:
        self.now_ns += gap_ns

    @rule()
    def ask(self) -> None:
        admitted = self.state is BreakerState.CLOSED
        if not admitted and self.now_ns >= self.until_ns:
            self.state, admitted = BreakerState.PROBING, True
            self.until_ns = self.now_ns + self.LIMITS.rest_ns
        assert admitted == self.breaker.admits(self.now_ns)
        if admitted:
            self.begun.append(self.now_ns)

    @precondition(lambda self: self.old)
    @rule(good=st.sampled_from([True, False, None]))
    def end_late(self, good: bool | None) -> None:
        self.breaker.ended(self.old.pop(), self.now_ns, good=good)

    @precondition(lambda self: self.begun)
    @rule(good=st.sampled_from([True, False, False, None]))
    def end(self, good: bool | None) -> None:
        limits, began_ns = self.LIMITS, self.begun.pop(0)
        if self.state is BreakerState.CLOSED and good is not None:
            self.listed.answers.append((self.now_ns, good))
            total, bad = self.listed.counted(self.now_ns)
            if total >= limits.least and bad / total > limits.errors:
                self.open()
        elif self.state is BreakerState.PROBING and good is False:
            self.open()
        elif self.state is BreakerState.PROBING:
            self.until_ns = self.now_ns
            self.good += good is True
            if self.good == limits.probes:
                self.state, self.listed = BreakerState.CLOSED, replace(self.listed, answers=[])
        self.breaker.ended(began_ns, self.now_ns, good=good)

    def open(self) -> None:
        self.state, self.good = BreakerState.OPEN, 0
        self.old, self.begun = self.old + self.begun, []
        self.until_ns = self.now_ns + self.LIMITS.rest_ns

    @invariant()
    def same(self) -> None:
        assert self.state is self.breaker.state


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=60, stateful_step_count=60)
