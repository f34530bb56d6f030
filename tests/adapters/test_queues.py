"""Exchanges wait in futures; whatever ends a wait, place and slot come back once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.queues import HeldSlot, PoolQueues, QueueLimits
from filters.api import Clock, SentAway, Slot
from filters.fair_queue import Rules
from filters.live_slots import FIRST
from filters.queue_order import Lane, Priority, Shed, Wish
from filters.replica import Replica, Signals
from tests.fakes import FakeClock

POOL = "full"
A, B = "10.0.0.1:8000", "10.0.0.2:8000"


@dataclass
class Watch:
    """Keeps who was served after which wait, and why others were not."""

    waits: list[float] = field(default_factory=list)
    sheds: Counter[Shed] = field(default_factory=Counter)
    names: list[bool] = field(default_factory=list)

    def served(self, pool: str, wish: Wish, waited_s: float, *, named: bool) -> None:
        self.waits.append(waited_s)
        self.names.append(named)

    def shed(self, pool: str, wish: Wish, why: Shed, *, named: bool) -> None:
        self.sheds[why] += 1


@dataclass
class Door:
    """Queues before one pool."""

    clock: Clock = field(default_factory=FakeClock)
    watch: Watch = field(default_factory=Watch)
    replicas: dict[str, Replica] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queues = PoolQueues(self.clock, self.watch, lambda _: self.replicas, nobody="nobody")

    def follow(self, slots: int | None, **more: int) -> None:
        limits = {} if slots is None else {POOL: QueueLimits(Rules(), slots=slots, **more)}
        self.queues.follow(limits)

    def come(
        self, tenant: str = "a", wait_s: float = 30.0, lane: Lane = Lane.FAST
    ) -> asyncio.Task[Slot | SentAway]:
        wish = Wish(lane, Priority.NORMAL, tenant, wait_s)
        return asyncio.ensure_future(self.queues.enter(POOL, wish))

    async def slot(self) -> HeldSlot:
        held = await self.come()
        assert isinstance(held, HeldSlot)
        return held

    @property
    def counts(self) -> tuple[int, int]:
        """How many slots are held, and how many wait."""
        figures = self.queues.figures()[POOL]
        depth = sum(sum(by_class.values()) for by_class in figures.depth.values())
        return sum(figures.in_use.values()), depth

    @property
    def slots(self) -> int:
        return self.queues.figures()[POOL].slots


async def turn() -> None:
    """Let everybody go on who can."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
def door() -> Door:
    made = Door()
    made.follow(1)
    return made


async def test_who_waits_gets_the_slot_that_is_given_back(door: Door) -> None:
    """And no other; giving it back twice frees nothing more."""
    first = await door.slot()
    second, third = door.come(), door.come()
    await turn()
    assert (1, 2) == door.counts
    first.release()
    first.release()
    await turn()
    assert (True, False, (1, 1)) == (second.done(), third.done(), door.counts)
    held = await second
    assert isinstance(held, HeldSlot)
    assert 0.0 == held.waited_s
    held.release()
    last = await third
    assert isinstance(last, HeldSlot)
    last.release()
    assert (0, 0) == door.counts


async def test_who_leaves_frees_the_place(door: Door) -> None:
    """At once; the slot goes to the next in the queue."""
    first = await door.slot()
    second, third = door.come(), door.come()
    await turn()
    second.cancel()
    await turn()
    assert (1, 1) == door.counts
    first.release()
    assert isinstance(await third, HeldSlot)


async def test_who_waits_without_a_credential_is_counted_by_itself(door: Door) -> None:
    """Among all who wait."""
    first = await door.slot()
    waiting = [door.come("a"), door.come("nobody"), door.come("nobody", lane=Lane.BULK)]
    await turn()
    figures = door.queues.figures()[POOL]
    found = [(figures.depth[lane], figures.anonymous[lane]) for lane in Lane]
    none = dict.fromkeys(Priority, 0)
    one, two = ({**none, Priority.NORMAL: count} for count in (1, 2))
    assert [(two, one), (one, one)] == found
    first.release()
    for each in waiting:
        held = await each
        assert isinstance(held, HeldSlot)
        held.release()
    assert [none, none] == [door.queues.figures()[POOL].anonymous[lane] for lane in Lane]


async def test_who_waits_holds_no_thread_and_no_task(door: Door) -> None:
    """But the future of its own exchange; one timer serves all."""
    first = await door.slot()
    threads = threading.active_count()
    waiting = [door.come(f"tenant {number}") for number in range(150)]
    await turn()
    assert (1, 150) == door.counts
    assert threads == threading.active_count()
    assert {asyncio.current_task(), *waiting} == asyncio.all_tasks()
    first.release()
    for one in waiting:
        held = await one
        assert isinstance(held, HeldSlot)
        held.release()
    assert (0, 0) == door.counts


async def test_who_leaves_in_the_moment_of_being_served_gives_the_slot_on(door: Door) -> None:
    """It was given the slot, and never came to hold it."""
    first = await door.slot()
    second, third = door.come(), door.come()
    await turn()
    first.release()
    second.cancel()
    await turn()
    assert (1, 0) == door.counts
    assert second.cancelled()
    assert isinstance(await third, HeldSlot)


async def test_a_wait_ends_with_word_of_when_to_ask_again() -> None:
    """By one timer for all who wait."""
    door = Door(SystemClock())
    door.follow(1)
    first = await door.slot()
    late = [door.come(wait_s=0.01 * number) for number in range(1, 4)]
    told = await asyncio.gather(*late)
    assert [Shed.LATE] * 3 == [one.why for one in told if isinstance(one, SentAway)]
    assert {Shed.LATE: 3} == door.watch.sheds
    assert (1, 0) == door.counts
    first.release()
    door.queues.close()


async def test_who_comes_without_a_credential_is_counted_apart(door: Door) -> None:
    """All of them are one tenant."""
    door.follow(2)
    await door.come(tenant="nobody")
    await door.come()
    assert [False, True] == door.watch.names


async def test_other_limits_count_at_once(door: Door) -> None:
    """More slots serve who waits; without a queue all who wait pass."""
    await door.slot()
    asking = [door.come() for _ in range(5)]
    await turn()
    door.follow(3)
    await turn()
    assert (3, 3) == door.counts
    door.follow(None)
    held = await asyncio.gather(*asking)
    assert door.queues.bulk_from(POOL) is None
    assert all(isinstance(one, HeldSlot) for one in held)
    for one in held:
        assert isinstance(one, HeldSlot)
        one.release()


async def test_the_next_long_prompt_goes_when_the_answer_to_one_begins(door: Door) -> None:
    """One of two replicas reads it until then, though both have slots."""
    for number, address in enumerate((A, B)):
        door.replicas[address] = Replica(number, address, signals=Signals(0.0))
        door.queues.said(POOL, address)
    first, second = door.come(lane=Lane.BULK), door.come(lane=Lane.BULK)
    await turn()
    assert (True, False) == (first.done(), second.done())
    slot = await first
    assert isinstance(slot, HeldSlot)
    slot.begun()
    slot.begun()
    await turn()
    assert (True, (2, 0)) == (second.done(), door.counts)


async def test_replicas_know_how_many_they_should_have(door: Door) -> None:
    """As long as the pool has a queue."""
    door.replicas[A] = replica = Replica(0, A, signals=Signals(0.0))
    door.queues.said(POOL, A)
    await door.slot()
    assert FIRST == replica.most
    door.follow(None)
    assert replica.most is None


async def test_slots_follow_what_replicas_say(door: Door) -> None:
    """Each by itself; one that takes no connections has none, and a constant serves without any."""
    door.follow(64, replica_slots=100)
    assert 64 == door.slots
    for address, signals in ((A, Signals(0.0, waiting=9, running=5)), (B, Signals(0.0))):
        door.replicas[address] = replica = Replica(len(door.replicas), address)
        replica.signals = signals
        door.queues.said(POOL, address)
    assert 5 + 1 + 16 == door.slots
    del door.replicas[B]
    door.queues.said(POOL, B)
    assert 6 == door.slots
    door.replicas.clear()
    door.queues.said(POOL, A)
    assert 64 == door.slots


async def test_a_replica_that_has_room_again_serves_who_waits(door: Door) -> None:
    """As soon as it says so."""
    door.replicas[A] = replica = Replica(0, A)
    replica.signals = Signals(0.0, waiting=5, running=0)
    door.queues.said(POOL, A)
    first, second = await door.slot(), door.come()
    await turn()
    assert (1, 1) == door.counts
    replica.signals = Signals(1.0, waiting=2, running=2)
    door.queues.said(POOL, A)
    assert isinstance(await second, HeldSlot)
    first.release()


async def test_whatever_happens_all_counts_return_to_nothing() -> None:
    """Two thousand who come, leave, are late, and hold a slot for a while."""
    rng = random.Random(3)
    door = Door(SystemClock())
    door.follow(20)

    async def one(number: int) -> str:
        task = door.come(str(number % 7), rng.choice((0.0, 0.002, 5.0)), rng.choice(list(Lane)))
        await asyncio.sleep(0)
        if rng.random() < 0.3:
            task.cancel()
        try:
            held = await task
        except asyncio.CancelledError:
            return "left"
        if isinstance(held, SentAway):
            return held.why
        await asyncio.sleep(0)
        assert isinstance(held, HeldSlot)
        held.release()
        return "served"

    ended = Counter(await asyncio.gather(*map(one, range(2_000))))
    assert {"left", "served"} < set(ended)
    assert (0, 0) == door.counts
    door.queues.close()


def test_a_pool_without_a_queue_is_not_waited_for() -> None:
    """Nor is one that nobody knows."""
    door = Door()
    assert door.queues.bulk_from(POOL) is None
    door.follow(1, bulk_from=100)
    expected: Mapping[str, int | None] = {POOL: 100, "other": None}
    assert expected == {name: door.queues.bulk_from(name) for name in expected}
