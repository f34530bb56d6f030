"""Flights within one process: bounds, and that nobody is left waiting whatever happens in a row."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ext_proc.adapters.flights import LocalFlights, LocalSeat
from filters.api import Boarding
from tests.fakes import FakeFlightWatch

KEY = b"key"
WAIT_S = 10.0
LET_GO = (Boarding.SHARED, Boarding.LATE, Boarding.FULL, Boarding.ALONE, Boarding.OVER)


async def test_all_flights_together_have_only_so_much_room() -> None:
    """Those who wait elsewhere take room from these."""
    watch = FakeFlightWatch()
    flights = LocalFlights(watch, most_waiting=2)
    seats = [flights.board(key, room=9) for key in (b"1", b"1", b"2", b"2", b"2")]
    expected = ["leads", "waiting", "leads", "waiting", "full"]
    assert expected == [seat.boarding for seat in seats]
    assert [Boarding.FULL] == watch.seen


async def test_what_is_held_meanwhile_is_bounded() -> None:
    """A thousand long prompts would be all memory; who leads holds none for the others."""
    flights = LocalFlights(FakeFlightWatch(), most_bytes=100)
    sizes = (500, 60, 60, 40, 1)
    seats = [flights.board(KEY, room=9, size=size) for size in sizes]
    expected = ["leads", "waiting", "full", "waiting", "full"]
    assert expected == [seat.boarding for seat in seats]
    assert 100 == flights.held_bytes
    seats[1].leave()
    assert (1, 40) == (flights.waiting, flights.held_bytes)


async def test_what_became_of_those_who_waited_is_counted() -> None:
    """Each once: the one that had nobody before it is none of them."""
    watch = FakeFlightWatch()
    flights = LocalFlights(watch)
    first, second, third, gone = (flights.board(KEY, room=3) for _ in range(4))
    flights.board(KEY, room=3)
    gone.leave()
    first.leave()
    second.land(b"value")
    assert b"value" == await third.answer(WAIT_S)
    assert ["full", "over", "leads", "shared"] == watch.seen


async def test_a_crowd_is_woken_a_few_at_a_time() -> None:
    """What else the loop has to do is done between them."""
    flights = LocalFlights(FakeFlightWatch())
    first = flights.board(KEY, room=100)
    woken: list[str] = []

    async def follow() -> None:
        await flights.board(KEY, room=100).answer(WAIT_S)
        woken.append("follower")

    tasks = [asyncio.ensure_future(follow()) for _ in range(100)]
    await asyncio.sleep(0)
    first.land(b"value")
    loop = asyncio.get_running_loop()
    loop.call_soon(woken.append, "another")
    await asyncio.wait(tasks)
    assert woken.index("another") < 50


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until told."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Run what can run."""
        for _ in range(8):
            self.run_until_complete(asyncio.sleep(0))


@dataclass(eq=False, slots=True)
class Passenger:
    """A seat, who waits in it, and what was known when it began to."""

    seat: LocalSeat
    task: asyncio.Task[bytes | None]
    ends: float
    came: int
    order: list[str] = field(default_factory=list)


class Flying(RuleBasedStateMachine):
    """Exchanges board, land, fall, leave and wait too long, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop()
        self.watch = FakeFlightWatch()
        self.flights = LocalFlights(self.watch, most_waiting=6, most_bytes=1_000)
        self.aboard: list[Passenger] = []
        """Those who did not let go, in order of arrival."""
        self.landed = 0
        self.came = 0

    def settle(self) -> None:
        self.loop.settle()
        for one in tuple(self.aboard):
            if one.task.done() and one.seat.boarding in LET_GO:
                self.aboard.remove(one)
                if one.seat.boarding is Boarding.SHARED:
                    assert b"value %d" % self.landed == one.task.result()
                elif not one.task.cancelled():
                    assert one.task.result() is None

    @rule(key=st.sampled_from([b"a", b"b"]), size=st.sampled_from([0, 400]), wait=st.floats(0, 20))
    def board(self, key: bytes, size: int, wait: float) -> None:
        seat = self.flights.board(key, room=4, size=size)
        task = self.loop.create_task(seat.answer(wait))
        self.came += 1
        self.aboard.append(Passenger(seat, task, self.loop.now + wait, self.came))
        self.settle()

    def leaders(self) -> list[Passenger]:
        return [one for one in self.aboard if one.seat.boarding is Boarding.LEADS]

    @precondition(lambda self: self.leaders())
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        leader = data.draw(st.sampled_from(self.leaders()))
        self.landed += 1
        leader.seat.land(b"value %d" % self.landed)
        self.settle()

    @precondition(lambda self: self.aboard)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data: st.DataObject, again: bool) -> None:
        one = data.draw(st.sampled_from(self.aboard))
        key = one.seat.flight.key if one.seat.flight else b""
        led = one.seat.boarding is Boarding.LEADS
        behind = [
            other
            for other in self.aboard
            if other.seat.boarding is Boarding.WAITING and other.seat.flight is one.seat.flight
        ]
        one.seat.leave(again=again)
        if led and again and behind:
            assert Boarding.LEADS is behind[0].seat.boarding, f"the next of {key!r} leads"
        one.task.cancel()
        self.settle()

    @precondition(lambda self: self.aboard)
    @rule(data=st.data(), lands=st.booleans())
    def cancel(self, data: st.DataObject, lands: bool) -> None:
        """Have a client leave, perhaps in the moment in which its wait ends."""
        one = data.draw(st.sampled_from(self.aboard))
        if lands and (leaders := self.leaders()):
            leaders[0].seat.leave()
        one.task.cancel()
        self.loop.settle()
        one.seat.leave()  # as the end of an exchange does
        self.settle()

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()
        for one in self.aboard:
            assert one.seat.boarding is Boarding.LEADS or one.ends > self.loop.now

    @invariant()
    def nobody_waits_without_one_that_leads(self) -> None:
        flying = {one.seat.flight for one in self.aboard if one.seat.flight is not None}
        for flight in flying:
            leading = [
                one
                for one in self.aboard
                if one.seat.flight is flight and one.seat.boarding is Boarding.LEADS
            ]
            assert 1 == len(leading)

    @invariant()
    def counts_are_those_aboard(self) -> None:
        waiting = [one for one in self.aboard if one.seat.boarding is Boarding.WAITING]
        assert len(waiting) == self.flights.waiting
        assert sum(one.seat.size for one in waiting) == self.flights.held_bytes
        assert len(self.leaders()) == len(self.flights)
        assert len({one.seat.flight.key for one in self.leaders() if one.seat.flight}) == len(
            self.flights
        )

    def teardown(self) -> None:
        for one in self.aboard:
            one.seat.leave()
        self.settle()
        assert (0, 0, 0) == (len(self.flights), self.flights.waiting, self.flights.held_bytes)
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()
        gc.collect(0)


Flying.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestFlying = pytest.mark.slow(Flying.TestCase)
