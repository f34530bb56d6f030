"""All flights keep the promises of the `Flights` port: of one process, over Redis, and the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.flights import LocalFlights
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_flights import RedisFlights
from filters.api import Boarding, Flights, Seat
from tests.fakes import FakeClock, FakeFlights, FakeFlightWatch, FakeStoreWatch
from tests.redis_server import RedisServer

LONG_S = 60.0
SHORT_S = 0.01
Waiting: TypeAlias = tuple[Seat, asyncio.Task[bytes | None]]
KEY = b"faq:shared:0123"


@dataclass(frozen=True, slots=True)
class Airport:
    """Flights, and how to make their time pass where it does not by itself."""

    flights: Flights
    pass_time: Callable[[float], None]
    close: Callable[[], Awaitable[None]]

    def board(self, key: bytes = KEY, room: int = 100) -> Seat:
        return self.flights.board(key, room=room)

    async def lead(self, key: bytes = KEY) -> Seat:
        """Board as the first."""
        seat = self.board(key)
        assert await seat.answer(LONG_S) is None
        assert Boarding.LEADS is seat.boarding
        return seat

    async def waiting(self, number: int, key: bytes = KEY) -> list[Waiting]:
        """Board so many behind another one."""
        seats = [self.board(key) for _ in range(number)]
        tasks = [asyncio.ensure_future(seat.answer(LONG_S)) for seat in seats]
        await asyncio.sleep(0)
        assert {Boarding.WAITING} == {seat.boarding for seat in seats}
        return list(zip(seats, tasks, strict=True))


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["local", "redis", "fake"])
async def airport(request: pytest.FixtureRequest) -> AsyncIterator[Airport]:
    if request.param == "redis":
        server = request.getfixturevalue("redis_server")
        # A shared machine may pause the test for longer than the 5 ms of production.
        client = RedisClient(server.url, SystemClock(), FakeStoreWatch(), timeout_s=20.0)
        await client.ask("test", KEY, ("FLUSHALL",))
        flights = RedisFlights(client, FakeFlightWatch(), name=b"a")
        yield Airport(flights, lambda _: None, flights.close)
        assert (0, 0, 0) == (len(flights), flights.waiting, flights.held_bytes)
        await flights.close()
        await client.close()
    elif request.param == "fake":
        clock = FakeClock()
        fake = FakeFlights(clock)
        fake.looping = True
        yield Airport(fake, clock.advance, fake.close)
        assert {} == fake.flights
    else:
        local = LocalFlights(FakeFlightWatch())
        yield Airport(local, lambda _: None, local.close)
        assert (0, 0, 0) == (len(local), local.waiting, local.held_bytes)


async def test_the_first_leads(airport: Airport) -> None:
    """It has nothing to wait for."""
    seat = await airport.lead()
    assert (False, False) == (seat.waited, await seat.watched())
    seat.leave()


async def test_what_the_first_was_told_all_get(airport: Airport) -> None:
    """Each of those who wait has the value, byte for byte, and holds nothing any more."""
    first = await airport.lead()
    others = await airport.waiting(5)
    assert await first.watched()
    first.land(b"\x00value")
    assert [b"\x00value"] * 5 == [await task for _, task in others]
    assert [(Boarding.SHARED, True)] * 5 == [(seat.boarding, seat.waited) for seat, _ in others]


async def test_what_lands_before_one_waits_is_there_when_it_does(airport: Airport) -> None:
    """Between taking a place and waiting in it another port may be asked."""
    first = await airport.lead()
    other = airport.board()
    first.land(b"value")
    assert b"value" == await other.answer(LONG_S)


async def test_who_comes_after_the_landing_leads(airport: Airport) -> None:
    """An answer is handed over, not kept."""
    (await airport.lead()).land(b"value")
    (await airport.lead()).leave()


async def test_each_key_has_a_flight_of_its_own(airport: Airport) -> None:
    """Others wait for their own answer."""
    one, other = await airport.lead(b"one"), await airport.lead(b"other")
    ((_, task),) = await airport.waiting(1, b"other")
    one.land(b"1")
    other.land(b"2")
    assert b"2" == await task


async def test_when_the_first_leaves_the_next_leads_in_order_of_arrival(airport: Airport) -> None:
    """The others go on waiting, for it."""
    leader = await airport.lead()
    for seat, task in await airport.waiting(3):
        leader.leave()
        assert await task is None
        assert (Boarding.LEADS, True) == (seat.boarding, seat.waited)
        leader = seat
    leader.leave()


async def test_an_answer_that_cannot_be_shared_sends_all_on_their_way(airport: Airport) -> None:
    """They would wait for the next one in vain."""
    first = await airport.lead()
    others = await airport.waiting(3)
    first.leave(again=False)
    assert [None] * 3 == [await task for _, task in others]
    assert [Boarding.ALONE] * 3 == [seat.boarding for seat, _ in others]


async def test_a_flight_has_only_so_much_room(airport: Airport) -> None:
    """Who finds none goes alone at once, and what it does then changes nothing."""
    first = await airport.lead()
    others = await airport.waiting(2)
    late = airport.board(room=2)
    assert await late.answer(LONG_S) is None
    assert (Boarding.FULL, False) == (late.boarding, await late.watched())
    late.land(b"wrong")
    late.leave(again=False)
    first.land(b"right")
    assert [b"right"] * 2 == [await task for _, task in others]


async def test_nobody_waits_longer_than_it_said(airport: Airport) -> None:
    """It goes alone, and the first does not know."""
    first = await airport.lead()
    other = airport.board()
    task = asyncio.ensure_future(other.answer(SHORT_S))
    await asyncio.sleep(0)
    airport.pass_time(SHORT_S)
    assert await task is None
    assert (Boarding.LATE, False) == (other.boarding, await first.watched())
    first.land(b"value")


async def test_who_is_cancelled_frees_its_place(airport: Airport) -> None:
    """A client that left has nobody waiting for it, and does not lead."""
    first = await airport.lead()
    (_, gone), (next_seat, next_task) = await airport.waiting(2)
    gone.cancel()
    await asyncio.wait((gone,))
    first.leave()
    assert await next_task is None
    assert Boarding.LEADS is next_seat.boarding
    next_seat.leave()


async def test_who_is_cancelled_as_it_is_to_lead_makes_the_next_lead(airport: Airport) -> None:
    """Its wait is over, but it never heard of it."""
    first = await airport.lead()
    (_, gone), (next_seat, next_task) = await airport.waiting(2)
    first.leave()
    gone.cancel()
    assert await next_task is None
    assert Boarding.LEADS is next_seat.boarding
    next_seat.leave()


async def test_who_leaves_without_ever_waiting_frees_its_place(airport: Airport) -> None:
    """Something else may end an exchange first."""
    first = await airport.lead()
    other = airport.board()
    other.leave()
    assert (Boarding.OVER, False) == (other.boarding, await first.watched())
    first.leave()


@pytest.mark.parametrize("again", [True, False])
async def test_leaving_twice_is_leaving_once(airport: Airport, again: bool) -> None:
    """What is told behind the end means nothing."""
    first = await airport.lead()
    first.leave()
    second = await airport.lead()
    first.leave(again=again)
    first.land(b"wrong")
    ((_, task),) = await airport.waiting(1)
    second.land(b"right")
    second.leave(again=again)
    assert b"right" == await task


async def test_one_that_waits_can_tell_nobody_anything(airport: Airport) -> None:
    """Only who leads lands."""
    first = await airport.lead()
    ((waits, mine), (_, task)) = await airport.waiting(2)
    waits.land(b"wrong")
    assert not await waits.watched()
    first.land(b"right")
    assert [b"right", b"right"] == [await mine, await task]


async def test_a_thousand_wait_for_one(airport: Airport) -> None:
    """All of them are served."""
    first = await airport.lead()
    seats = [airport.board(room=1_000) for _ in range(1_000)]
    tasks = [asyncio.ensure_future(seat.answer(LONG_S)) for seat in seats]
    await asyncio.sleep(0)
    first.land(b"value")
    assert {b"value"} == set(await asyncio.gather(*tasks))


async def test_at_the_end_nobody_is_left_waiting(airport: Airport) -> None:
    """A server that ends sends all on their way."""
    first = await airport.lead()
    others = await airport.waiting(3)
    await airport.close()
    assert [None] * 3 == [await task for _, task in others]
    first.land(b"value")
    first.leave()
