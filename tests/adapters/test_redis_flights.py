"""Flights over a lock in a real Redis: one call of the model for all processes that share it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_flights import AT_ONCE, LEASE_MS, RedisFlights
from ext_proc.adapters.redis_lane import Command
from filters.api import Boarding
from filters.errors import PortError
from tests.fakes import FakeFlightWatch, FakeStoreWatch
from tests.redis_server import RedisServer

KEY = b"faq:shared:0123"
LEAD = b"forebay:lead:{%b}" % KEY
LANDED = b"forebay:landed:{%b}" % KEY
LONG_S = 60.0
ROOM = 1_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


class Asking:
    """A Redis that counts what it is asked for, and is gone when told to be, or `failing` times."""

    def __init__(self, url: str) -> None:
        # A shared machine may pause the test for longer than the 5 ms of production.
        self.client = RedisClient(url, SystemClock(), FakeStoreWatch(), timeout_s=20.0)
        self.asked: Counter[str] = Counter()
        self.gone = False
        self.failing = 0

    async def ask(self, operation: str, key: bytes, *commands: Command) -> list[Any]:
        self.asked[operation] += 1
        if self.gone or self.failing:
            self.failing -= 1
            raise PortError("told to be gone")
        return await self.client.ask(operation, key, *commands)

    async def __call__(self, *command: bytes | str | int) -> Any:
        """Ask for something that is not counted."""
        (reply,) = await self.client.ask("test", KEY, command)
        return reply

    async def until(self, wanted: Any, *command: bytes | str | int) -> None:
        """Ask until this is the reply."""
        async with asyncio.timeout(60):
            while await self(*command) != wanted:
                pass

    async def until_asked(self, operation: str, times: int = 1) -> None:
        """Wait until this was asked so many times."""
        async with asyncio.timeout(60):
            while self.asked[operation] < times:
                await self("PING")


class Counting:
    """A Redis that gives every lock and counts how many it is to extend at one time."""

    def __init__(self) -> None:
        self.most = 0
        self.extended = asyncio.Event()
        self._asking = 0
        self._extended: set[bytes] = set()

    async def ask(self, operation: str, key: bytes, *commands: Command) -> list[Any]:
        if len(commands) == 1:  # to take the lock, or to give it up
            return [True]
        self._asking += 1
        self.most = max(self.most, self._asking)
        await asyncio.sleep(0)
        self._asking -= 1
        self._extended.add(key)
        if len(self._extended) == 2_000:
            self.extended.set()
        return [b"one-%b" % key, 1]


class Process:
    """The flights of one process."""

    def __init__(self, url: str, name: bytes) -> None:
        self.redis = Asking(url)
        self.watch = FakeFlightWatch()
        self.flights = RedisFlights(self.redis, self.watch, name=name)

    async def lead(self) -> Any:
        seat = self.flights.board(KEY, room=ROOM)
        assert await seat.answer(LONG_S) is None
        assert Boarding.LEADS is seat.boarding
        return seat

    def follow(self, number: int = 1) -> list[asyncio.Task[tuple[Boarding, bytes | None]]]:
        async def one() -> tuple[Boarding, bytes | None]:
            seat = self.flights.board(KEY, room=ROOM)
            value = await seat.answer(LONG_S)
            boarding = seat.boarding
            seat.leave()
            return boarding, value

        return [asyncio.ensure_future(one()) for _ in range(number)]


@pytest.fixture
async def two(server: RedisServer) -> AsyncIterator[tuple[Process, Process]]:
    """Run two processes on one Redis; at the end they hold nothing, there or in themselves."""
    one, other = Process(server.url, b"one"), Process(server.url, b"other")
    await one.redis("FLUSHALL")
    yield one, other
    for process in (one, other):
        await process.flights.close()
        assert (0, 0) == (len(process.flights), process.flights.waiting)
    assert await other.redis("GET", LEAD) is None
    for process in (one, other):
        await process.redis.client.close()


async def test_a_miss_that_nobody_shares_asks_once_and_gives_up_its_lock(
    two: tuple[Process, Process],
) -> None:
    """One round trip to begin, one to give up, none of them awaited by the reply."""
    one, _ = two
    seat = await one.lead()
    assert not seat.waited
    assert b"one-0" == await one.redis("GET", LEAD)
    assert 0 < await one.redis("PTTL", LEAD) <= LEASE_MS
    seat.leave()
    await one.redis.until(None, "GET", LEAD)
    assert {"lead": 1, "land": 1} == one.redis.asked
    assert await one.redis("KEYS", "*") == []


async def test_an_answer_lands_in_every_process(two: tuple[Process, Process]) -> None:
    """All who wait there have it; whoever waits asks once for all of its process."""
    one, other = two
    seat = await one.lead()
    tasks = other.follow(100)
    await other.redis.until_asked("follow", 3)
    assert await seat.watched()
    seat.land(b"value")
    assert {(Boarding.SHARED, b"value")} == set(await asyncio.gather(*tasks))
    assert 1 == other.redis.asked["lead"]
    assert [Boarding.SHARED] * 100 == other.watch.seen
    assert 0 < await one.redis("PTTL", LANDED) <= 5_000


async def test_an_answer_that_nobody_waits_for_is_not_put_anywhere(
    two: tuple[Process, Process],
) -> None:
    """It is handed over, not kept."""
    one, other = two
    seat = await one.lead()
    assert not await seat.watched()
    seat.land(b"value")
    await one.redis.until(None, "GET", LEAD)
    assert await one.redis("GET", LANDED) is None
    (await other.lead()).leave()


async def test_what_cannot_be_shared_sends_those_of_all_processes_on_their_way(
    two: tuple[Process, Process],
) -> None:
    """They go alone at once, not one after the other."""
    one, other = two
    seat = await one.lead()
    tasks = other.follow(3)
    await other.redis.until_asked("follow")
    seat.leave(again=False)
    assert {(Boarding.ALONE, None)} == set(await asyncio.gather(*tasks))


async def test_where_the_first_leaves_one_of_another_process_leads(
    two: tuple[Process, Process],
) -> None:
    """The others of that process go on waiting for it."""
    one, other = two
    seat = await one.lead()
    first, *others = [other.flights.board(KEY, room=ROOM) for _ in range(3)]
    await other.redis.until_asked("follow")
    seat.leave()
    assert await first.answer(LONG_S) is None
    assert (Boarding.LEADS, True) == (first.boarding, first.waited)
    first.land(b"value")
    assert [b"value"] * 2 == [await seat.answer(LONG_S) for seat in others]


async def test_the_next_of_the_same_process_leads_under_the_same_lock(
    two: tuple[Process, Process],
) -> None:
    """Another process has no chance in between."""
    one, other = two
    seat = await one.lead()
    behind = one.flights.board(KEY, room=ROOM)
    (task,) = other.follow()
    await other.redis.until_asked("follow")
    seat.leave()
    assert b"one-0" == await one.redis("GET", LEAD)
    assert Boarding.LEADS is behind.boarding
    behind.land(b"value")
    assert (Boarding.SHARED, b"value") == await task


async def test_who_gave_up_waiting_leaves_no_lock(two: tuple[Process, Process]) -> None:
    """A client that leaves while Redis is asked takes nothing with it."""
    one, _ = two
    (task,) = one.follow()
    await asyncio.sleep(0)
    task.cancel()
    await one.redis.until_asked("land")
    await one.redis.until(None, "GET", LEAD)
    assert (0, 0) == (len(one.flights), one.flights.waiting)


async def test_a_process_that_ends_while_it_asks_leaves_no_lock(
    two: tuple[Process, Process],
) -> None:
    """What was asked is answered first."""
    one, other = two
    seat = one.flights.board(KEY, room=ROOM)
    for _ in range(2):  # until it asks, and until that is sent
        await asyncio.sleep(0)
    assert 1 == one.redis.asked["lead"]
    await one.flights.close()
    await one.redis.client.close()
    assert (None, Boarding.ALONE) == (await seat.answer(LONG_S), seat.boarding)
    assert await other.redis("GET", LEAD) is None


async def test_a_process_that_nobody_waits_in_stops_looking(two: tuple[Process, Process]) -> None:
    """Its clients left."""
    one, other = two
    seat = await one.lead()
    (task,) = other.follow()
    await other.redis.until_asked("follow")
    task.cancel()
    async with asyncio.timeout(60):
        while len(other.flights):
            await other.redis("PING")
    assert b"one-0" == await one.redis("GET", LEAD)
    seat.leave()


async def test_a_lock_that_another_one_has_by_now_is_left_alone(
    two: tuple[Process, Process],
) -> None:
    """It is given up by its token, after a pause that outlasted its time as well."""
    one, _ = two
    seat = await one.lead()
    await one.redis("SET", LEAD, b"another")
    seat.leave()
    await one.redis.until_asked("land")
    await one.flights.close()
    assert b"another" == await one.redis("GET", LEAD)
    await one.redis("DEL", LEAD)


@pytest.mark.slow
async def test_a_lock_is_extended_as_long_as_its_process_lives(
    two: tuple[Process, Process],
) -> None:
    """Its time is set anew every now and then; one that was lost is not taken back."""
    one, _ = two
    seat = await one.lead()
    await one.redis("PEXPIRE", LEAD, 3_600_000)
    await one.redis.until_asked("lead", 2)
    async with asyncio.timeout(60):
        while await one.redis("PTTL", LEAD) > LEASE_MS:
            pass
    await one.redis("SET", LEAD, b"another")
    await one.redis.until_asked("lead", 3)
    seat.leave()
    assert b"another" == await one.redis("GET", LEAD)
    await one.redis("DEL", LEAD)


@pytest.mark.slow
async def test_a_process_that_was_killed_holds_up_the_others_for_a_moment_only(
    two: tuple[Process, Process],
) -> None:
    """Nobody extends its lock."""
    one, other = two
    await one.redis("SET", LEAD, b"killed-0", "PX", LEASE_MS)
    (await other.lead()).leave()


@pytest.mark.parametrize("end", [(), ("PX", 60_000)], ids=["never", "late"])
async def test_a_lock_that_ends_later_than_any_other_is_none(
    two: tuple[Process, Process], end: tuple[str | int, ...]
) -> None:
    """Others wrote it, or the clock of Redis was set back; who comes does not wait for it."""
    one, _ = two
    await one.redis("SET", LEAD, b"foreign", *end)
    seat = await one.lead()
    assert 1 == one.redis.asked["follow"]
    seat.land(b"an answer")
    await one.redis("DEL", LEAD)


async def test_without_redis_each_process_is_by_itself(two: tuple[Process, Process]) -> None:
    """One of each asks the model, at once, and shares what it was told."""
    one, other = two
    one.redis.gone = other.redis.gone = True
    for process in two:
        seat = await process.lead()
        tasks = process.follow(3)
        await asyncio.sleep(0)
        assert await seat.watched()
        seat.land(b"value")
        assert {(Boarding.SHARED, b"value")} == set(await asyncio.gather(*tasks))


async def test_a_redis_that_goes_while_one_waits_is_not_waited_for(
    two: tuple[Process, Process],
) -> None:
    """One of those who wait asks the model itself."""
    one, other = two
    seat = await one.lead()
    waits = other.flights.board(KEY, room=ROOM)
    await other.redis.until_asked("follow")
    other.redis.gone = True
    assert await waits.answer(LONG_S) is None
    assert Boarding.LEADS is waits.boarding
    assert not await waits.watched()
    waits.leave()
    other.redis.gone = False
    seat.leave()


async def test_a_moment_without_redis_ends_no_wait(two: tuple[Process, Process]) -> None:
    """Two late replies of a busy server are no reason to ask the model twice."""
    one, other = two
    seat = await one.lead()
    (task,) = other.follow()
    await other.redis.until_asked("follow")
    other.redis.failing = 2
    await other.redis.until_asked("follow", other.redis.asked["follow"] + 3)
    seat.land(b"value")
    assert (Boarding.SHARED, b"value") == await task


@pytest.mark.slow
async def test_thousands_of_locks_are_extended_some_at_a_time() -> None:
    """Else what requests ask of Redis finds no room among it."""
    redis = Counting()
    flights = RedisFlights(redis, FakeFlightWatch(), name=b"one")
    seats = [flights.board(b"%d" % number, room=ROOM) for number in range(2_000)]
    for seat in seats:
        assert await seat.answer(LONG_S) is None
    async with asyncio.timeout(60):
        await redis.extended.wait()
    assert AT_ONCE == redis.most
    for seat in seats:
        seat.leave()
    await flights.close()
