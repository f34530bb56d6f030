"""Slots are shared by weight, class, tenant and deadline, as a naive model of the rules says."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.fair_queue import LOOK_S, MOST_RETRY_S, RETRY_S, FairQueue, Rules
from filters.need import Need
from filters.queue_order import AGE_S, AGED_EVERY, AGED_S, Lane, Priority, Shed, State, Ticket, Wish

T = TypeVar("T")
WAIT_S = 30.0
MINUTES_S = 600.0


def wish(
    lane: Lane = Lane.FAST,
    priority: Priority = Priority.NORMAL,
    tenant: str = "a",
    *,
    wait_s: float = WAIT_S,
    deadline_s: float = 0.0,
) -> Wish:
    return Wish(lane, priority, tenant, wait_s, deadline_s)


def busy(slots: int = 1, rules: Rules | None = None) -> tuple[FairQueue, list[Ticket]]:
    """Return a queue all of whose slots are held, and who holds them."""
    queue = FairQueue(rules or Rules(), slots)
    return queue, [queue.enter(wish(tenant="first"), 0.0)[0] for _ in range(slots)]


def served(queue: FairQueue, held: Sequence[Ticket], now_s: float) -> list[Ticket]:
    """Give slots back one by one, and return who gets them, each giving it back in turn."""
    order: list[Ticket] = []
    for ticket in held:
        queue.leave(ticket, now_s)
    while (ticket_or_none := queue.next(now_s)) is not None:
        order.append(ticket_or_none)
        queue.leave(ticket_or_none, now_s)
    return order


# --- A naive model -------------------------------------------------------------------------------


@dataclass
class Naive:
    """The rules, looked up in lists of everything at each step."""

    rules: Rules
    capacity: int
    waiting: list[Ticket] = field(default_factory=list)
    holding: list[Ticket] = field(default_factory=list)
    rounds: dict[tuple[Lane, Priority], dict[str, int]] = field(default_factory=dict)
    unaged: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, AGED_EVERY))
    aged_s: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, -math.inf))
    used: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, 0.0))
    seen: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, -math.inf))
    served: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, -math.inf))
    turns: dict[tuple[Lane, Priority], int] = field(default_factory=dict)
    need: Need = field(default_factory=Need)
    at_s: float = 0.0
    number: int = 0

    def of(self, lane: Lane, priority: Priority | None = None) -> list[Ticket]:
        return [
            one
            for one in self.waiting
            if one.wish.lane is lane and priority in (None, one.wish.priority)
        ]

    def held(self, lane: Lane) -> int:
        return sum(one.wish.lane is lane for one in self.holding)

    def passes(self, now_s: float) -> None:
        self.need.passed(self.held(Lane.FAST), self.held(Lane.FAST), now_s - self.at_s)
        if self.of(Lane.FAST):
            for lane in Lane:
                self.used[lane] += self.held(lane) * (now_s - self.at_s)
        self.at_s = now_s

    def bulk_may(self, now_s: float) -> bool:
        held = self.held(Lane.BULK)
        if held < max(1, math.ceil(self.capacity * self.rules.bulk_part)):
            return True
        quiet_s = self.seen[Lane.FAST] + self.rules.slice_s / self.rules.bulk_part
        if not self.held(Lane.FAST) and now_s >= quiet_s:
            return held < self.capacity - 1
        spaced = now_s - self.served[Lane.BULK] >= self.rules.slice_s
        return spaced and held < self.capacity - self.need.slots(self.held(Lane.FAST))

    def lane(self, now_s: float) -> Lane | None:
        if len(self.holding) >= self.capacity:
            return None
        fast, bulk = self.of(Lane.FAST), self.of(Lane.BULK)
        if not fast and not bulk:
            return None
        if not bulk:
            return Lane.FAST
        if not fast:
            return Lane.BULK if self.bulk_may(now_s) else None
        part = max(1, math.ceil(self.capacity * self.rules.bulk_part))
        if self.held(Lane.BULK) >= part or now_s - self.served[Lane.BULK] < self.rules.slice_s:
            return Lane.FAST
        owed = self.used[Lane.BULK] * self.rules.fast < self.used[Lane.FAST] * self.rules.bulk
        return Lane.BULK if owed else Lane.FAST

    def whose(self, lane: Lane, now_s: float) -> tuple[Ticket, bool]:
        first, *others = (priority for priority in Priority if self.of(lane, priority))
        aged = [
            (self.turns.get((lane, priority), 0), priority)
            for priority in others
            if now_s - self.of(lane, priority)[0].came_s >= AGE_S * (priority - first)
        ]
        slow = self.unaged[lane] > 1 and now_s - self.aged_s[lane] >= AGED_S
        if aged and (slow or self.unaged[lane] >= AGED_EVERY):
            return self.of(lane, min(aged)[1])[0], True
        rounds = self.rounds.setdefault((lane, first), {})
        now = rounds.get("", 0)
        mine = self.of(lane, first)
        return min(mine, key=lambda one: (rounds.get(one.wish.tenant, now), one.due)), False

    def serve(self, ticket: Ticket, now_s: float) -> None:
        self.holding.append(ticket)
        self.served[ticket.wish.lane] = now_s

    def take(self, ticket: Ticket, now_s: float, *, aged: bool) -> None:
        lane, priority, tenant = ticket.wish.lane, ticket.wish.priority, ticket.wish.tenant
        self.unaged[lane] = 1 if aged else self.unaged[lane] + 1
        self.aged_s[lane] = now_s if aged else self.aged_s[lane]
        self.turns[lane, priority] = self.number = self.number + 1
        rounds = self.rounds.setdefault((lane, priority), {})
        was = rounds.get("", 0)
        mine = rounds.get(tenant, was)
        if mine > was:  # those who had no turn in it may have one in this round
            rounds[""] = mine
            for name in [name for name, at in rounds.items() if name and at <= mine]:
                if not any(one.wish.tenant == name for one in self.of(lane, priority)):
                    del rounds[name]
        rounds[tenant] = rounds.get("", 0) + 1
        self.drop(ticket)
        self.serve(ticket, now_s)

    def drop(self, ticket: Ticket) -> None:
        self.waiting.remove(ticket)
        lane, priority = ticket.wish.lane, ticket.wish.priority
        if not self.of(lane, priority):
            self.rounds.pop((lane, priority), None)

    def add(self, ticket: Ticket) -> None:
        lane, priority, tenant = ticket.wish.lane, ticket.wish.priority, ticket.wish.tenant
        rounds = self.rounds.setdefault((lane, priority), {})
        if all(one.wish.tenant != tenant for one in self.of(lane, priority)):
            rounds[tenant] = max(
                rounds.get("", 0), min(rounds.get(tenant, 0), rounds.get("", 0) + 1)
            )
        if lane is Lane.FAST and not self.of(lane):
            self.used = dict.fromkeys(Lane, 0.0)
        elif not self.of(lane) and not self.held(lane):
            even_s = self.used[Lane.FAST] * self.rules.bulk / self.rules.fast
            self.used[lane] = max(self.used[lane], even_s)
        self.waiting.append(ticket)


@st.composite
def _wishes(draw: st.DrawFn) -> Wish:
    return wish(
        draw(st.sampled_from(Lane)),
        draw(st.sampled_from(Priority)),
        draw(st.sampled_from("abc")),
        wait_s=draw(st.sampled_from((8.0, 30.0))),
        deadline_s=draw(st.sampled_from((0.0, 2.0, 5.0))),
    )


_STEPS = st.lists(
    st.one_of(
        _wishes(),
        st.tuples(st.just("leaves"), st.integers(0, 50)),
        st.tuples(st.just("ends"), st.integers(0, 50)),
        st.tuples(st.just("slots"), st.integers(1, 12)),
        st.tuples(st.just("passes"), st.sampled_from((0.125, 0.5, 1.0, 4.0, 20.0))),
    ),
    max_size=120,
)


@given(_STEPS, st.integers(1, 12))
def test_everybody_is_served_in_the_order_that_a_naive_model_says(
    steps: Sequence[Wish | tuple[str, float]], slots: int
) -> None:
    """Whatever comes, leaves, ends or takes its time; and no count is off at any time."""
    rules = Rules(length=1_000, share=1.0)
    queue, model = FairQueue(rules, slots), Naive(rules, slots)
    now_s = 0.0
    for step in steps:
        model.passes(now_s)
        if isinstance(step, Wish):
            _comes(step, queue, model, now_s)
        else:
            now_s += step[1] if step[0] == "passes" else 0.0
            _happens(step, queue, model, now_s)
        while (lane := model.lane(now_s)) is not None:
            expected, aged = model.whose(lane, now_s)
            assert expected is queue.next(now_s)
            model.take(expected, now_s, aged=aged)
        assert queue.next(now_s) is None
        assert (len(model.holding), len(model.waiting)) == (queue.in_use, queue.waiting)
        for lane in Lane:
            depth = {priority: len(model.of(lane, priority)) for priority in Priority}
            assert (model.held(lane), depth) == (queue.slots_of(lane), queue.depth(lane))
            its = Counter(
                one.wish.priority
                for one in model.waiting
                if ("a", lane) == (one.wish.tenant, one.wish.lane)
            )
            assert {priority: its[priority] for priority in Priority} == queue.depth_of("a", lane)


def _comes(step: Wish, queue: FairQueue, model: Naive, now_s: float) -> None:
    model.seen[step.lane] = now_s
    free = len(model.holding) < model.capacity and not model.of(step.lane)
    if step.lane is Lane.BULK:
        free = free and not model.of(Lane.FAST) and model.bulk_may(now_s)
    ticket, displaced = queue.enter(step, now_s)
    assert displaced is None
    assert (State.SERVED if free else State.WAITING) is ticket.state
    if free:
        model.serve(ticket, now_s)
    else:
        model.add(ticket)


def _happens(step: tuple[str, float], queue: FairQueue, model: Naive, now_s: float) -> None:
    what, number = step[0], int(step[1])
    if what == "leaves" and model.waiting:
        ticket = model.waiting[number % len(model.waiting)]
        model.drop(ticket)
        queue.leave(ticket, now_s)
    elif what == "ends" and model.holding:
        ticket = model.holding.pop(number % len(model.holding))
        lane = ticket.wish.lane
        model.seen[lane] = now_s
        if lane is Lane.BULK:
            model.used[lane] += max(0.0, model.rules.slice_s - (now_s - ticket.served_s))
        queue.leave(ticket, now_s)
        queue.leave(ticket, now_s)
    elif what == "slots":
        queue.capacity = model.capacity = number
    elif what == "passes":
        model.passes(now_s)
        late = sorted((one for one in model.waiting if one.ends[0] <= now_s), key=by_end)
        assert late == queue.late(now_s)
        for ticket in late:
            assert Shed.LATE is ticket.why
            model.drop(ticket)


def by_end(ticket: Ticket) -> tuple[float, int]:
    return ticket.ends


# --- Who comes next ------------------------------------------------------------------------------


def test_the_more_urgent_class_comes_first() -> None:
    """Whoever came before it."""
    queue, held = busy()
    for priority in reversed(Priority):
        queue.enter(wish(priority=priority), 0.0)
    order = [one.wish.priority for one in served(queue, held, 1.0)]
    assert list(Priority) == order


def test_a_class_that_waited_long_has_every_tenth_turn() -> None:
    """So that urgent work cannot starve it, and it cannot hold urgent work up."""
    queue, held = busy()
    for number in range(3):
        queue.enter(wish(priority=Priority.LOW, tenant=f"low{number}"), 0.0)
    for number in range(30):
        queue.enter(wish(priority=Priority.URGENT, tenant=f"urgent{number}"), 3 * AGE_S + 1)
    order = [one.wish.priority for one in served(queue, held, 3 * AGE_S + 2)]
    lows = [at for at, priority in enumerate(order) if priority is Priority.LOW]
    assert [0, AGED_EVERY, 2 * AGED_EVERY] == lows


def test_where_turns_are_slow_lesser_classes_have_one_after_a_time() -> None:
    """Of long prompts ten may take five minutes; two turns in a row are never a lesser class's."""
    queue, (held,) = busy()
    for number in range(6):
        queue.enter(wish(priority=Priority.LOW, tenant=f"low{number}", wait_s=MINUTES_S), 0.0)
        queue.enter(wish(priority=Priority.HIGH, tenant=f"high{number}", wait_s=MINUTES_S), 0.0)
    order = ""
    for step in range(1, 9):
        queue.leave(held, 20.0 * step)
        (held,) = filter(None, [queue.next(20.0 * step)])
        order += held.wish.priority.word[0]
    assert "lhhlhhlh" == order


def test_tenants_take_turns() -> None:
    """One with ten requests has to let others pass, who came later with one."""
    queue, held = busy()
    for tenant in "aaaaabbc":
        queue.enter(wish(tenant=tenant), 0.0)
    order = "".join(one.wish.tenant for one in served(queue, held, 1.0))
    assert "abcabaaa" == order


def test_of_a_class_the_earliest_deadline_comes_first() -> None:
    """Of one tenant and, in a round, of all; none at all is the end of the wait."""
    queue, held = busy()
    for tenant, deadline_s in (("a", 0.0), ("a", 9.0), ("b", 5.0), ("c", 3.0), ("a", 1.0)):
        queue.enter(wish(tenant=tenant, deadline_s=deadline_s), 0.0)
    order = [(one.wish.tenant, one.wish.deadline_s) for one in served(queue, held, 1.0)]
    assert [("a", 1.0), ("c", 3.0), ("b", 5.0), ("a", 9.0), ("a", 0.0)] == order


# --- Fast and bulk -------------------------------------------------------------------------------


def test_bulk_work_has_its_part_of_the_slots_at_once() -> None:
    """Also at a moment when nobody waits in the fast queue: the next one comes soon."""
    queue = FairQueue(Rules(), 20)
    queue.enter(wish(), 0.0)
    bulk = [queue.enter(wish(Lane.BULK), 0.0)[0] for _ in range(5)]
    states = [one.state for one in bulk]
    assert [State.SERVED] * 2 + [State.WAITING] * 3 == states


def lent(queue: FairQueue, from_s: float, to_s: float) -> int:
    """Look each half of a second; return how many slots bulk work has in the end."""
    for half in range(int(2 * from_s), int(2 * to_s) + 1):
        while queue.next(half / 2) is not None:
            pass
    return queue.slots_of(Lane.BULK)


def test_bulk_work_is_lent_what_fast_work_does_not_need() -> None:
    """The mean of what that held, and its root, stay: 4 of 20 leave 14, one each slice."""
    queue = FairQueue(Rules(), 20)
    fast = [queue.enter(wish(), 0.0)[0] for _ in range(4)]
    lent(queue, 0.0, 300.0)
    for _ in range(20):
        queue.enter(wish(Lane.BULK, wait_s=900.0), 300.0)
    assert [2, 3, 4, 12, 14] == [lent(queue, to_s, to_s) for to_s in (300.0, 300.5, 301.0)] + [
        lent(queue, 301.5, to_s) for to_s in (305.0, 330.0)
    ]
    for one in fast:
        queue.leave(one, 331.0)
    assert State.SERVED is queue.enter(wish(), 331.0)[0].state


def test_what_fast_work_needs_rises_at_once_and_fades() -> None:
    """What it holds at this moment is never lent, and for some time not what it held before."""
    queue = FairQueue(Rules(), 20)
    fast = [queue.enter(wish(), 0.0)[0] for _ in range(14)]
    queue.enter(wish(), 300.0)
    for _ in range(20):
        queue.enter(wish(Lane.BULK, wait_s=900.0), 300.0)
    assert 2 == lent(queue, 300.0, 302.0)
    for one in fast:
        queue.leave(one, 302.0)
    assert 2 == lent(queue, 302.0, 302.5)
    assert 2 < lent(queue, 303.0, 330.0) < lent(queue, 330.0, 900.0) == 17


def test_nothing_is_lent_while_fast_work_waits() -> None:
    """Bulk work has its part, and what comes free goes to whoever is fast."""
    queue = FairQueue(Rules(), 20)
    for _ in range(5):
        queue.enter(wish(Lane.BULK), 0.0)
    fast = [queue.enter(wish(), 0.0)[0] for _ in range(24)]
    for one in fast[:5]:
        queue.leave(one, 9.0)
    assert [Lane.FAST] * 5 == [one.wish.lane for one in iter(lambda: queue.next(9.0), None)]


def test_it_is_looked_again_whether_there_is_something_to_lend() -> None:
    """Nothing else may happen meanwhile. Where bulk work has all that it may, there is no need."""
    queue = FairQueue(Rules(), 20)
    queue.enter(wish(), 0.0)
    queue.enter(wish(Lane.BULK), 0.0)
    queue.enter(wish(Lane.BULK), 0.0)
    assert math.inf == queue.due_s(0.0)
    queue.enter(wish(Lane.BULK), 0.0)
    assert (0.5, 3.0 + LOOK_S) == (queue.due_s(0.0), queue.due_s(3.0))
    queue.capacity = 3
    assert WAIT_S == queue.due_s(3.0)


def test_bulk_work_has_all_slots_but_one_when_no_fast_work_came_for_long() -> None:
    """Five seconds: the time in which it has a slice by its weight."""
    queue = FairQueue(Rules(), 20)
    short, _ = queue.enter(wish(), 0.0)
    queue.begun(short, 1.0)
    queue.leave(short, 1.0)
    for _ in range(25):
        queue.enter(wish(Lane.BULK), 2.0)
    assert 2 == queue.slots_of(Lane.BULK)
    assert 6.0 == queue.due_s(5.75)
    assert 17 == sum(1 for _ in iter(lambda: queue.next(6.0), None))
    assert math.isclose(32.0, queue.due_s(6.0))
    assert State.SERVED is queue.enter(wish(), 6.0)[0].state


@pytest.mark.parametrize(("fast", "bulk", "turns"), [(1, 100, [4, 8]), (50, 50, [6])])
def test_bulk_work_begins_no_sooner_than_a_slice_after_other_bulk_work(
    fast: int, bulk: int, turns: list[int]
) -> None:
    """While fast work waits; what ends sooner has used its whole slice all the same."""
    queue = FairQueue(Rules(fast=fast, bulk=bulk), 1)
    held, _ = queue.enter(wish(Lane.BULK), 0.0)
    for _ in range(9):
        queue.enter(wish(), 0.0)
        queue.enter(wish(Lane.BULK), 0.0)
    order = []
    for step in range(1, 9):
        queue.leave(held, step / 8)
        (held,) = filter(None, [queue.next(step / 8)])
        order.append(held.wish.lane)
    assert turns == [at + 1 for at, lane in enumerate(order) if lane is Lane.BULK]


def test_long_prompts_are_read_at_their_part_of_the_replicas() -> None:
    """A slot more is of no use where each replica reads one already; the next begins behind it."""
    queue = FairQueue(Rules(), 200)
    queue.replicas = 20
    for _ in range(18):
        queue.enter(wish(), 0.0)
    first, *others = (queue.enter(wish(Lane.BULK), 0.0)[0] for _ in range(5))
    assert 2 == queue.slots_of(Lane.BULK)
    assert queue.next(1.0) is None
    queue.begun(first, 1.0)
    queue.begun(first, 1.0)
    assert others[1] is queue.next(1.0)
    assert queue.next(1.0) is None
    queue.leave(first, 2.0)
    assert queue.next(2.0) is None
    queue.leave(others[0], 3.0)
    assert others[2] is queue.next(3.0)


def test_long_prompts_are_read_at_replicas_that_fast_work_does_not_need() -> None:
    """What of it waits for no answer any more holds slots, but no replica up."""
    queue = FairQueue(Rules(), 200)
    queue.replicas = 20
    fast = [queue.enter(wish(), 0.0)[0] for _ in range(20)]
    for one in fast[4:]:
        queue.begun(one, 0.0)
    lent(queue, 0.0, 300.0)
    for _ in range(20):
        queue.enter(wish(Lane.BULK, wait_s=900.0), 300.0)
    assert 14 == lent(queue, 300.0, 330.0)
    for one in fast[:4]:
        queue.begun(one, 330.0)
    assert 19 == lent(queue, 330.0, 700.0)


def test_one_replica_reads_no_long_prompt_when_all_others_do() -> None:
    """Also where no fast work came for long: the next one comes at any time."""
    queue = FairQueue(Rules(), 200)
    queue.replicas = 4
    for _ in range(5):
        queue.enter(wish(Lane.BULK), 0.0)
    assert 3 == queue.slots_of(Lane.BULK)
    assert State.SERVED is queue.enter(wish(), 0.0)[0].state


# --- Room ----------------------------------------------------------------------------------------


def test_one_tenant_cannot_fill_a_queue() -> None:
    """Half of the places are the most that it gets, and the others are there for others."""
    queue, _ = busy(rules=Rules(length=10))
    came = [queue.enter(wish(), 1.0)[0].why for _ in range(7)]
    assert [None] * 5 + [Shed.SHARE] * 2 == came
    assert State.WAITING is queue.enter(wish(tenant="b"), 1.0)[0].state


def test_a_full_queue_takes_a_place_from_the_tenant_with_the_most() -> None:
    """Its last one leaves, for one whose tenant has fewer; who has as many is sent away."""
    queue, _ = busy(rules=Rules(length=4))
    mine = [queue.enter(wish(), float(at))[0] for at in range(1, 3)]
    others = [queue.enter(wish(tenant="b"), float(at))[0] for at in range(3, 5)]
    third, displaced = queue.enter(wish(tenant="c"), 5.0)
    assert State.WAITING is third.state
    assert mine[1] is displaced
    assert Shed.DISPLACED is displaced.why
    again, nobody = queue.enter(wish(tenant="c"), 6.0)
    assert (Shed.FULL, None) == (again.why, nobody)
    assert [State.WAITING] * 2 == [one.state for one in others]
    assert 4 == queue.waiting


def test_a_full_queue_takes_a_place_from_the_least_urgent() -> None:
    """No lesser class keeps a more urgent one out; never the other way round."""
    queue, _ = busy(rules=Rules(length=3, share=1.0))
    low = [queue.enter(wish(priority=Priority.LOW, tenant=name), 1.0)[0] for name in "abc"]
    assert Shed.FULL is queue.enter(wish(priority=Priority.LOW, tenant="d"), 2.0)[0].why
    for number in range(3):
        urgent, gone = queue.enter(wish(priority=Priority.HIGH, tenant="d"), 2.0)
        assert State.WAITING is urgent.state
        assert gone in low
        assert number + 1 == sum(one.state is State.OVER for one in low)
    assert Shed.FULL is queue.enter(wish(priority=Priority.LOW, tenant="a"), 3.0)[0].why


def test_who_waited_as_long_as_it_may_is_sent_away() -> None:
    """At the very moment, and nobody else."""
    queue, _ = busy()
    first, _ = queue.enter(wish(wait_s=5.0), 1.0)
    queue.enter(wish(wait_s=9.0), 1.0)
    assert 6.0 == queue.due_s(1.0)
    assert [] == queue.late(5.9)
    assert [first] == queue.late(6.0)
    assert (Shed.LATE, 1) == (first.why, queue.waiting)


def test_who_may_not_wait_at_all_is_served_at_once_or_sent_away() -> None:
    """A wait of nothing takes no place."""
    queue = FairQueue(Rules(), 1)
    assert State.SERVED is queue.enter(wish(wait_s=0.0), 0.0)[0].state
    assert Shed.LATE is queue.enter(wish(wait_s=0.0), 0.0)[0].why
    assert 0 == queue.waiting


def test_when_to_ask_again_follows_from_how_fast_the_queue_drains() -> None:
    """Two a second are let out and nine wait: one more has its place in five seconds."""
    queue, (held,) = busy()
    for number in range(29):
        queue.enter(wish(tenant=str(number)), 0.0)
    assert RETRY_S == queue.retry_s(wish(), Shed.FULL, 0.0)
    for step in range(20):
        queue.leave(held, (step + 1) / 2)
        (held,) = filter(None, [queue.next((step + 1) / 2)])
    assert 9 == queue.waiting
    assert 5.0 == pytest.approx(queue.retry_s(wish(), Shed.FULL, 10.0))
    queue.late(29.0)
    assert 5.0 < queue.retry_s(wish(), Shed.FULL, 29.0) < MOST_RETRY_S


def test_a_greedy_tenant_has_to_wait_for_the_turns_of_others() -> None:
    """It is told so: its own requests are served one in each round."""
    queue, (held,) = busy(rules=Rules(length=20, share=0.2))
    for tenant in ("a", "a", "a", "a", "b", "c"):
        queue.enter(wish(tenant=tenant), 0.0)
    queue.leave(held, 1.0)
    queue.next(1.0)
    assert 10.0 == queue.retry_s(wish(), Shed.SHARE, 1.0)
    assert 6.0 == queue.retry_s(wish(), Shed.FULL, 1.0)


# --- Ten minutes ---------------------------------------------------------------------------------


@dataclass
class Day:
    """A pool under load in virtual time."""

    queue: FairQueue
    rng: random.Random
    now_s: float = 0.0
    held: list[tuple[float, int, Ticket]] = field(default_factory=list)
    slot_s: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(Lane, 0.0))
    served: list[Ticket] = field(default_factory=list)
    shed: Counter[tuple[Lane, Shed | None]] = field(default_factory=Counter)

    def comes(self, one: Wish) -> None:
        ticket, displaced = self.queue.enter(one, self.now_s)
        if displaced is not None:
            self.shed[one.lane, displaced.why] += 1
        if ticket.state is State.SERVED:
            self._hold(ticket)
        elif ticket.state is State.OVER:
            self.shed[one.lane, ticket.why] += 1

    def until(self, to_s: float) -> None:
        """Let time pass, with everything that ends meanwhile."""
        while self.held and self.held[0][0] <= to_s:
            self.now_s, _, ticket = self.held.pop(0)
            self.queue.leave(ticket, self.now_s)
            self._look()
        self.now_s = to_s
        self._look()

    def _look(self) -> None:
        for late in self.queue.late(self.now_s):
            self.shed[late.wish.lane, late.why] += 1
        while (ticket := self.queue.next(self.now_s)) is not None:
            self._hold(ticket)

    def _hold(self, ticket: Ticket) -> None:
        mean_s = 1.0 if ticket.wish.lane is Lane.FAST else 6.0
        lasts_s = min(60.0, self.rng.expovariate(1 / mean_s))
        self.slot_s[ticket.wish.lane] += lasts_s
        self.served.append(ticket)
        self.held.append((self.now_s + lasts_s, ticket.number, ticket))
        self.held.sort(key=lambda one: one[:2])


def _arrivals(rng: random.Random, rate: float) -> Iterator[float]:
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(rate)) < MINUTES_S:
        yield at_s


def _run(slots: int, rate: float, bulk: float, seed: int = 1) -> Day:
    """Have `rate` requests a second come for ten minutes, a part of them bulk work."""
    rng = random.Random(seed)
    day = Day(FairQueue(Rules(), slots), rng)
    for at_s in _arrivals(rng, rate):
        day.until(at_s)
        lane = Lane.BULK if rng.random() < bulk else Lane.FAST
        priority = rng.choice(list(Priority))
        day.comes(wish(lane, priority, rng.choice("aaaaaabcdef")))
    return day


@pytest.mark.slow
@pytest.mark.parametrize("slots", [10, 32])
def test_where_both_queues_are_never_empty_each_has_its_weight_of_the_slots(slots: int) -> None:
    """Ten minutes, three times the load that the pool can take: 90 to 10, within a fifth of it."""
    day = _run(slots, rate=3.0 * slots, bulk=0.3)
    part = day.slot_s[Lane.BULK] / sum(day.slot_s.values())
    assert 0.08 < part < 0.12
    assert 0.95 * slots * MINUTES_S < sum(day.slot_s.values())


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 10, 32])
def test_nobody_starves_in_ten_minutes_of_overload(slots: int) -> None:
    """Twice what the pool can take. Both queues, each class and each tenant go on being served."""
    day = _run(slots, rate=2.0 * slots + 1, bulk=0.1)
    part = day.slot_s[Lane.BULK] / sum(day.slot_s.values())
    assert 0.08 < part < 0.12
    crowded = [one.wish for one in day.served if one.served_s > 60.0]
    for lane in Lane:
        # Three lesser classes share each tenth turn, which passes while nobody waited long enough.
        classes = [one.priority for one in crowded if one.lane is lane]
        assert all(set(Priority) == set(some) for some in _windows(classes, 6 * AGED_EVERY))
    tenants = [one.tenant for one in crowded]
    assert all(set("abcdef") == set(some) for some in _windows(tenants, 200))


def _windows(order: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (order[at : at + size] for at in range(len(order) - size))


@pytest.mark.slow
def test_short_requests_do_not_wait_for_long_ones() -> None:
    """A load that the pool can take: with long ones it makes short ones wait hardly longer."""
    alone = _run(32, rate=20.0, bulk=0.0)
    mixed = _run(32, rate=20.0, bulk=0.02)

    def late(day: Day) -> float:
        waits = [one.served_s - one.came_s for one in day.served if one.wish.lane is Lane.FAST]
        return sorted(waits)[len(waits) * 95 // 100]

    assert (0.0, 0.0) == (late(alone), late(mixed))
    assert not mixed.shed
