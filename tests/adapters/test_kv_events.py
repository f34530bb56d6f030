"""What replicas say of their caches is heard in order, whatever is lost or broken on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest

from ext_proc.adapters.kv_events import BUDGET_S, TICK_S, KvEvents, rest_after
from ext_proc.adapters.kv_settings import EventSettings, Place
from ext_proc.adapters.kv_wire import Batch, Stored
from tests.kv_publisher import PATIENCE_S, AllBlocksCleared, KvPublisher, payload, stored

ONE, OTHER = "10.0.0.1:8000", "10.0.0.2:8000"


class Ear:
    """Takes what is said."""

    def __init__(self) -> None:
        self.heard_of: list[tuple[str, int]] = []
        """Who, and the first token of the first block, which numbers batches here."""
        self.begun: list[str] = []
        self._told = asyncio.Event()

    def heard(self, address: str, batch: Batch) -> None:
        (event,) = batch.events
        self.heard_of.append((address, first_token(event)))
        self._told.set()

    def began(self, address: str) -> None:
        self.begun.append(address)
        self._told.set()

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                self._told.clear()
                await self._told.wait()

    async def numbers(self, many: int, address: str = ONE) -> list[int]:
        """Wait for so many of a replica; return their numbers."""
        await self.until(lambda: len(self.of(address)) >= many)
        return self.of(address)

    def of(self, address: str) -> list[int]:
        return [number for one, number in self.heard_of if one == address]


def first_token(event: object) -> int:
    return int.from_bytes(event.ids[:4], "little") if isinstance(event, Stored) else -1


def batch(number: int) -> bytes:
    return payload(stored([number] * 16))


def place(publisher: KvPublisher, *, replay: bool = True, topic: str = "") -> Place:
    asked = f"tcp://127.0.0.1:{publisher.replay_port}" if replay else ""
    return Place(f"tcp://127.0.0.1:{publisher.port}", asked, topic)


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
async def events(ear: Ear) -> AsyncIterator[KvEvents]:
    made = KvEvents(ear, tick_s=0.001)
    yield made
    made.close()


@pytest.fixture
async def publisher() -> AsyncIterator[KvPublisher]:
    async with KvPublisher() as made:
        yield made


async def test_batches_are_heard_in_order(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """Nothing is asked for again."""
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    for number in range(5):
        publisher.send(batch(number))
    assert [0, 1, 2, 3, 4] == await ear.numbers(5)
    assert (5, 0, 0) == (events.heard.batches, events.heard.lost, publisher.replays)


async def test_replicas_are_told_apart(events: KvEvents, ear: Ear, publisher: KvPublisher) -> None:
    """Each numbers its own."""
    async with KvPublisher() as second:
        events.follow({ONE: place(publisher), OTHER: place(second)})
        await publisher.subscribed()
        await second.subscribed()
        publisher.send(batch(1))
        second.send(batch(2))
        assert ([1], [2]) == (await ear.numbers(1), await ear.numbers(1, OTHER))


async def test_other_topics_are_not_heard(events: KvEvents, ear: Ear) -> None:
    """A setting says which one is."""
    async with KvPublisher(topic="kv@a") as right, KvPublisher(topic="other") as wrong:
        events.follow({ONE: place(right, topic="kv@"), OTHER: place(wrong, topic="kv@")})
        await right.subscribed()
        await wrong.subscribed()
        wrong.send(batch(1))
        right.send(batch(2))
        assert [2] == await ear.numbers(1)
        assert [] == ear.of(OTHER)


async def test_what_was_missed_is_had_again(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """And comes in its place."""
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    for number in range(6):
        publisher.send(batch(number), lost=number in (2, 3))
    assert [0, 1, 2, 3, 4, 5] == await ear.numbers(6)
    assert (1, 0) == (publisher.replays, events.heard.lost)


async def test_what_was_said_before_is_asked_for(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """The replica ran before Forebay did."""
    for number in range(3):
        publisher.send(batch(number))
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    publisher.send(batch(3))
    assert [0, 1, 2, 3] == await ear.numbers(4)
    assert (1, 0) == (publisher.replays, events.heard.lost)


async def test_what_cannot_be_had_again_is_counted(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """The replica has nowhere to ask."""
    events.follow({ONE: place(publisher, replay=False)})
    await publisher.subscribed()
    for number in range(6):
        publisher.send(batch(number), lost=number in (2, 3))
    assert [0, 1, 4, 5] == await ear.numbers(4)
    assert 2 == events.heard.lost


async def test_what_is_not_kept_is_counted(events: KvEvents, ear: Ear) -> None:
    """The replica keeps two batches, and three were missed."""
    async with KvPublisher(keeps=2) as publisher:
        events.follow({ONE: place(publisher)})
        await publisher.subscribed()
        publisher.send(batch(0))
        assert [0] == await ear.numbers(1)
        for number in range(1, 5):
            publisher.send(batch(number), lost=number < 4)
        assert [0, 3, 4] == await ear.numbers(3)
        assert 2 == events.heard.lost


async def test_who_does_not_answer_is_not_waited_for_long(ear: Ear) -> None:
    """The deadline passes, and what came goes on."""
    ticks = count()
    events = KvEvents(ear, tick_s=0.001, clock=lambda: next(ticks) * 0.1)
    async with KvPublisher(keeps=None) as publisher:
        events.follow({ONE: place(publisher)})
        await publisher.subscribed()
        for number in range(4):
            publisher.send(batch(number), lost=number == 1)
        assert [0, 2, 3] == await ear.numbers(3)
        assert 1 == events.heard.lost
    events.close()


async def test_a_replica_that_began_anew_is_noticed(events: KvEvents, ear: Ear) -> None:
    """Its numbers begin at 0 again, and so does what it says."""
    async with KvPublisher() as first:
        events.follow({ONE: place(first, replay=False)})
        await first.subscribed()
        for number in range(3):
            first.send(batch(number))
        await ear.numbers(3)
    async with KvPublisher(first.port) as second:
        await second.subscribed()
        second.send(batch(7))
        assert [0, 1, 2, 7] == await ear.numbers(4)
    assert ([ONE], 1) == (ear.begun, events.heard.restarts)


@pytest.mark.parametrize(
    "frames",
    [
        (b"", b"\0" * 8),
        (b"", b"\0" * 7, b"x"),
        (b"", b"\0" * 8, b"x", b"y"),
    ],
)
async def test_what_is_no_batch_is_counted(
    events: KvEvents, ear: Ear, publisher: KvPublisher, frames: tuple[bytes, ...]
) -> None:
    """And what follows is heard."""
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    publisher.send_raw(*frames)
    publisher.send(batch(0))
    assert [0] == await ear.numbers(1)
    assert 1 == events.heard.malformed


async def test_a_batch_of_nonsense_is_counted(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """Its number counts, and what follows is heard."""
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    publisher.send(b"\xc1")
    publisher.send(batch(1))
    assert [1] == await ear.numbers(1)
    assert (1, 0, 0) == (events.heard.malformed, events.heard.lost, publisher.replays)


async def test_a_batch_that_the_listener_refuses_is_counted(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """It is a batch, but makes no sense."""
    events.follow({ONE: place(publisher)})
    await publisher.subscribed()
    publisher.publish(AllBlocksCleared(), AllBlocksCleared())  # the ear takes one event
    publisher.send(batch(1))
    assert [1] == await ear.numbers(1)
    assert 1 == events.heard.malformed


@pytest.mark.slow
async def test_a_flood_is_read_in_small_parts(ear: Ear, publisher: KvPublisher) -> None:
    """A look ends when its time is up; nobody is drowned out, and all is read in the end."""
    events = KvEvents(ear, tick_s=0.001, budget_s=0.0)
    async with KvPublisher() as quiet:
        events.follow({ONE: place(publisher), OTHER: place(quiet)})
        await publisher.subscribed()
        await quiet.subscribed()
        for number in range(300):
            publisher.send(batch(number))
        quiet.send(batch(1))
        await ear.numbers(1, OTHER)
        assert list(range(300)) == await ear.numbers(300)
        assert 0 < events.heard.behind
    events.close()


def test_batches_that_take_long_come_seldom() -> None:
    """They get no more of everybody's time than others do."""
    assert TICK_S == rest_after(BUDGET_S, TICK_S)
    assert 1.5 == rest_after(0.15, TICK_S)


async def test_who_is_followed_no_more_is_not_heard(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """Another one still is."""
    async with KvPublisher() as second:
        events.follow({ONE: place(publisher), OTHER: place(second)})
        await publisher.subscribed()
        await second.subscribed()
        events.follow({OTHER: place(second)})
        publisher.send(batch(1))
        second.send(batch(2))
        await ear.numbers(1, OTHER)
        assert [] == ear.of(ONE)


async def test_an_address_that_nobody_can_use_is_left_alone(
    events: KvEvents, ear: Ear, publisher: KvPublisher
) -> None:
    """The others are heard."""
    events.follow({OTHER: Place("tcp://no such host:1"), ONE: place(publisher)})
    await publisher.subscribed()
    publisher.send(batch(1))
    assert [1] == await ear.numbers(1)


@pytest.mark.parametrize(
    ("settings", "address", "expected"),
    [
        (EventSettings(), "10.0.0.1:8000", Place("tcp://10.0.0.1:5557")),
        (
            EventSettings(5_557, 5_558, "kv"),
            "[::1]:8000",
            Place("tcp://[::1]:5557", "tcp://[::1]:5558", "kv"),
        ),
        (
            EventSettings(100, 200, relative=True),
            "127.0.0.1:8000",
            Place("tcp://127.0.0.1:8100", "tcp://127.0.0.1:8200"),
        ),
    ],
)
def test_places_follow_from_addresses(
    settings: EventSettings, address: str, expected: Place
) -> None:
    """A port at each replica's own address, or one that is counted from its own port."""
    assert expected == settings.place(address)
