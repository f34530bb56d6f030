"""A replica's model in real time does what it does in virtual time, however late timers come."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.tools.replica_model import BLOCK_TOKENS, Engine, Hardware, Work
from ext_proc.tools.replica_time import TimedEngine

HARDWARE = Hardware(cache_tokens=64 * BLOCK_TOKENS, slots=4, step_tokens=256)
EACH_STEP = replace(HARDWARE, step_s=1.0, prefill_s=0.0, decode_s=0.0, context_s=0.0)
"""A step is a second, whatever is in it."""


@dataclass(slots=True)
class FakeTimer:
    call: Callable[[], object] | None

    def cancel(self) -> None:
        self.call = None


class FakeTimers:
    """Time passes when it is told to; timers come `late_s` after their time."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 0.0
        self._late_s = late_s
        self._numbers = count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when_s: float, call: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(call)
        at_s = max(when_s, self.now_s) + self._late_s
        heapq.heappush(self._timers, (at_s, next(self._numbers), timer))
        return timer

    def advance(self, to_s: float) -> None:
        while self._timers and self._timers[0][0] <= to_s:
            self.now_s, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()
        self.now_s = to_s


class Told:
    """What the engine told, with its times."""

    def __init__(self) -> None:
        self.admitted_s: dict[Work, float] = {}
        self.started_s: dict[Work, float] = {}
        self.ended_s: dict[Work, float] = {}
        self.plans = 0

    def admitted(self, work: Work, now_s: float) -> None:
        self.admitted_s[work] = now_s

    def started(self, work: Work, now_s: float) -> None:
        self.started_s[work] = now_s

    def ended(self, work: Work, now_s: float) -> None:
        self.ended_s[work] = now_s

    def planned(self) -> None:
        self.plans += 1


class Bench:
    """A timed engine with what it needs."""

    def __init__(
        self, hardware: Hardware = EACH_STEP, *, late_s: float = 0.0, speed: float = 1.0
    ) -> None:
        self.timers = FakeTimers(late_s)
        self.told = Told()
        self.timed = TimedEngine(Engine(hardware), self.timers, self.told, speed=speed)

    def arrive(self, prompt_tokens: int = 10, answer_tokens: int = 5) -> Work:
        work = Work((), prompt_tokens, answer_tokens)
        self.timed.arrive(work)
        return work

    def tokens_come(self, work: Work) -> list[float]:
        """Return a list that the time of each token is added to, as a stream would see them."""
        seen: list[float] = []

        def see() -> None:
            while len(seen) < min(self.timed.written(work), work.answer_tokens):
                seen.append(self.timers.now_s)
            if len(seen) < work.answer_tokens:
                self.timed.call_when(work, len(seen) + 1, see)

        see()
        return seen


def test_each_token_is_told_when_its_step_ends() -> None:
    """The first after the prefill, then one a step, though one plan spans all of them."""
    bench = Bench()
    seen = bench.tokens_come(bench.arrive())
    bench.timers.advance(10)
    assert [1.0, 2.0, 3.0, 4.0, 5.0] == seen


def test_a_late_timer_makes_no_token_later_than_itself() -> None:
    """Steps begin when the one before was to end: being late does not add up."""
    bench = Bench(late_s=0.25)
    work = bench.arrive()
    seen = bench.tokens_come(work)
    bench.timers.advance(10)
    assert [1.25, 2.25, 3.25, 4.25, 5.25] == seen
    assert (1.0, 5.0) == (bench.told.started_s[work], bench.told.ended_s[work])


def test_one_that_slept_finds_everything_done() -> None:
    """A process that was stopped for a while has caught up when it is asked."""
    bench = Bench()
    work = bench.arrive()
    bench.timers.now_s = 100.0  # no timer came
    assert 5 == bench.timed.written(work)
    assert 5.0 == bench.told.ended_s[work]


def test_who_arrives_is_taken_in_with_the_next_step() -> None:
    """The plan under way is cut there, not played to its end."""
    bench = Bench()
    bench.arrive(answer_tokens=100)
    bench.timers.advance(10.5)
    other = bench.arrive(answer_tokens=1)
    bench.timers.advance(20)
    assert (11.0, 12.0) == (bench.told.admitted_s[other], bench.told.started_s[other])


def test_who_leaves_makes_room_with_the_next_step() -> None:
    """As soon as the engine looks again."""
    bench = Bench(replace(EACH_STEP, slots=1))
    gone = bench.arrive(answer_tokens=100)
    waits = bench.arrive()
    bench.timers.advance(10.5)
    bench.timed.drop(gone)
    bench.timers.advance(20)
    assert (11.0, 16.0) == (bench.told.admitted_s[waits], bench.told.ended_s[waits])


def test_ten_times_the_speed_is_a_tenth_of_the_time() -> None:
    """For all that the model does."""
    bench = Bench(speed=10.0)
    work = bench.arrive()
    bench.timers.advance(10)
    times = [bench.told.started_s[work], bench.told.ended_s[work]]
    assert [0.1, 0.5] == pytest.approx(times)


def test_a_speed_changes_in_the_middle_of_a_step() -> None:
    """What is left of the step takes longer; what is done stays done."""
    bench = Bench()
    work = bench.arrive()
    seen = bench.tokens_come(work)
    bench.timers.advance(2.5)
    bench.timed.speed = 0.25
    bench.timers.advance(100)
    assert [1.0, 2.0, 4.5, 8.5, 12.5] == seen


def test_a_stopped_one_tells_nothing_any_more() -> None:
    """Whoever waits waits; whoever arrives too."""
    bench = Bench()
    seen = bench.tokens_come(bench.arrive())
    bench.timers.advance(2.5)
    bench.timed.stop()
    late = bench.arrive()
    bench.timers.advance(100)
    bench.timed.drop(late)
    assert ([1.0, 2.0], 0) == (seen, len(bench.timed.engine.waiting))


def test_hardware_that_takes_no_time_is_done_at_once() -> None:
    """No timer is needed: an upstream that only answers costs no waiting."""
    bench = Bench(replace(EACH_STEP, step_s=0.0))
    works = [bench.arrive(prompt_tokens=1_000, answer_tokens=3) for _ in range(10)]
    assert [3] * 10 == [bench.timed.written(work) for work in works]
    assert {0.0} == set(bench.told.ended_s.values())


def test_a_wait_ends_for_a_client_that_is_gone_without_a_call() -> None:
    """What was dropped is not told of."""
    bench = Bench()
    work, stays = bench.arrive(), bench.arrive()
    seen, others = bench.tokens_come(work), bench.tokens_come(stays)
    bench.timers.advance(1.5)
    bench.timed.drop(work)
    bench.timers.advance(100)
    assert (1, 5) == (len(seen), len(others))


Arrivals = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.text("ab", min_size=1, max_size=12),
        st.integers(1, 200),
    ),
    min_size=1,
    max_size=12,
)


@given(Arrivals, st.sampled_from([0.0, 0.000_1, 0.03]))
def test_real_and_virtual_time_are_two_forms_of_one_model(
    arrivals: list[tuple[float, str, int]], late_s: float
) -> None:
    """Whatever arrives: the same first tokens and the same ends, to the float."""
    arrivals.sort()
    bench = Bench(HARDWARE, late_s=late_s)
    works = []
    for at_s, prompt, answer_tokens in arrivals:
        bench.timers.advance(at_s)
        works.append(work_of(prompt, answer_tokens))
        bench.timed.arrive(works[-1])
    bench.timers.advance(1_000)
    expected = played(arrivals)
    assert expected == [(bench.told.started_s[w], bench.told.ended_s[w]) for w in works]


def work_of(prompt: str, answer_tokens: int) -> Work:
    chain = [hash(prompt[: end + 1]) for end in range(len(prompt))]
    return Work(chain, len(prompt) * BLOCK_TOKENS, answer_tokens)


def played(arrivals: list[tuple[float, str, int]]) -> list[tuple[float, float]]:
    """Step an engine by hand, as the routing bench does."""
    engine = Engine(HARDWARE)
    works = [work_of(prompt, answer_tokens) for _, prompt, answer_tokens in arrivals]
    left = [(at_s, work) for (at_s, _, _), work in zip(arrivals, works, strict=True)]
    start_s = end_s = 0.0
    busy = False
    while left or busy:
        if left and (not busy or left[0][0] < end_s):
            now_s, work = left.pop(0)
            engine.arrive(work, now_s)
            if busy and not engine.prefilling:
                end_s = start_s + engine.cut(now_s - start_s)
                continue
            if busy:
                continue
        else:
            now_s = end_s
            engine.end(now_s)
        seconds = engine.begin()
        start_s, end_s, busy = now_s, now_s + seconds, bool(engine.running)
    return [(work.first_s, work.finished_s) for work in works]
