"""Who has a key is looked up off everybody's way, once at a time, and believed within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import AskError, MovedError

from ext_proc.adapters import redis_places
from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_node import FAILURES, RedisNode
from ext_proc.adapters.redis_places import MOST_ASKED, MOST_SERVERS, RedisPlaces
from ext_proc.adapters.redis_search import SLOTS, Span
from ext_proc.redis_url import Address
from tests.fakes import FakeClock

ONE, TWO, THREE = ("one", 1), ("two", 2), ("three", 3)
WHOLE = Span(0, SLOTS - 1, ONE, (TWO, THREE))
HALVES = (Span(0, SLOTS // 2 - 1, ONE), Span(SLOTS // 2, SLOTS - 1, TWO))
LOW, HIGH = b"b", b"a"  # in slots 3300 and 15495
LOW_SLOT = 3300


class Found:
    """Places whose search finds what it is told, and what was asked and said of it."""

    def __init__(self, servers: Sequence[Address], *spans: Span, **options: Any) -> None:
        self.spans: Sequence[Span] = spans
        self.asked: list[Address] = []
        self.searched: list[bool] = []
        self.asking = asyncio.Event()
        self.going = asyncio.Event()
        self.going.set()
        self.clock = FakeClock()
        self.places = RedisPlaces(
            servers,
            lambda at: RedisNode(at, _no_connection, self.clock, budget_s=1),
            search=self._search,
            searched=self.searched.append,
            **options,
        )

    async def search(self) -> None:
        """Doubt what is known, and wait for what is found."""
        self.places.doubt()
        searching = self.places._searching
        assert searching is not None
        await searching

    def node(self, key: bytes, **options: bool) -> RedisNode:
        node = self.places.serving(key, self.clock.monotonic_ns(), **options)
        assert node is not None
        return node

    async def _search(self, address: Address) -> Sequence[Span]:
        self.asked.append(address)
        self.asking.set()
        await self.going.wait()
        return self.spans


def _no_connection(address: Address) -> Any:
    raise ConnectionRefusedError(address)


def _fail(node: RedisNode) -> None:
    for _ in range(FAILURES):
        node._breaker.failed(0, 0)


@pytest.fixture(autouse=True)
def _searches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_places, "GAP_S", 0.0)


async def test_one_server_has_every_key_and_nobody_is_asked() -> None:
    """There is nothing to find out, whatever goes wrong."""
    searched: list[bool] = []
    places = RedisPlaces(
        ["/run/redis.sock"],
        lambda at: RedisNode(at, _no_connection, FakeClock(), budget_s=1),
        searched=searched.append,
    )
    places.doubt()
    nodes = [places.serving(key, 0) for key in (LOW, HIGH)]
    assert ["/run/redis.sock"] * 2 == [node.address for node in nodes if node]
    assert (BreakerState.CLOSED, []) == (places.state, searched)


async def test_each_key_is_asked_of_the_master_of_its_slot() -> None:
    """A name's slot is that of what stands in braces, up to the first that closes."""
    found = Found([THREE], *HALVES)
    await found.search()
    assert (ONE, TWO) == (found.node(LOW).address, found.node(HIGH).address)
    assert TWO == found.node(HIGH + b"}" + LOW).address
    assert [ONE, TWO] == [node.address for node in found.places.masters]


async def test_however_many_doubt_one_search_is_under_way() -> None:
    """A failing server fails for all who ask it."""
    found = Found([THREE], *HALVES)
    for _ in range(100):
        found.places.doubt()
    await found.search()
    assert ([THREE], [True]) == (found.asked, found.searched)


async def test_the_first_who_ask_wait_for_the_search_and_later_ones_do_not() -> None:
    """Nothing is known before it; after it, what is known is good until it proves wrong."""
    found = Found([THREE], *HALVES)
    found.going.clear()
    waiting = asyncio.ensure_future(found.places.known(60))
    await found.asking.wait()
    assert not waiting.done()
    found.going.set()
    await waiting
    found.going.clear()
    await found.places.known(60)
    assert ONE == found.node(LOW).address
    await found.places.close()


async def test_who_cannot_be_found_is_not_waited_for_twice() -> None:
    """The next ones are bypassed at once, and the state says so."""
    found = Found([THREE])
    await found.search()
    found.going.clear()
    await found.places.known(60)
    assert found.places.serving(LOW, 0) is None
    assert (BreakerState.OPEN, [False]) == (found.places.state, found.searched)
    await found.places.close()


async def test_a_slot_without_a_server_is_nobodys() -> None:
    """The others are served all the same."""
    found = Found([THREE], HALVES[0])
    await found.search()
    assert ONE == found.node(LOW).address
    assert found.places.serving(HIGH, 0) is None


async def test_what_was_found_is_looked_up_again_after_a_minute() -> None:
    """Replicas come and go without anything that would fail."""
    found = Found([THREE], WHOLE)
    await found.search()
    for seconds, asked in ((0, 2), (59, 2), (2, 3), (1, 3)):  # the first time nothing was known
        found.clock.advance(seconds)
        found.node(LOW)
        if found.places._searching is not None:
            await found.places._searching
        assert asked == len(found.asked)


async def test_servers_that_fail_are_asked_last() -> None:
    """Those that were found know more than those that were named, and a dead one knows nothing."""
    found = Found([ONE], *HALVES, asks_found=True)
    await found.search()
    _fail(found.node(LOW))
    found.asked.clear()
    await found.search()
    assert [TWO] == found.asked
    found.spans = ()
    found.asked.clear()
    await found.search()
    assert [TWO, ONE] == found.asked


async def test_a_sentinel_that_knew_is_asked_first_the_next_time() -> None:
    """One that does not answer costs its time once."""
    found = Found([ONE, TWO])
    await found.search()
    assert [ONE, TWO] == found.asked
    found.places._servers.reverse()
    found.spans = [WHOLE]
    await found.search()
    await found.search()
    assert [TWO, TWO] == found.asked[2:]


async def test_one_search_asks_few() -> None:
    """The next one asks others."""
    found = Found([(f"host-{n}", 1) for n in range(20)])
    await found.search()
    assert MOST_ASKED == len(found.asked)


async def test_more_servers_than_a_cluster_has_are_not_believed() -> None:
    """Each would have connections of its own."""
    found = Found([THREE], *(Span(n, n, ("host", n + 1)) for n in range(MOST_SERVERS + 1)))
    await found.search()
    assert [False] == found.searched
    assert found.places.serving(LOW, 0) is None


async def test_replicas_answer_in_turn_and_one_that_fails_is_left_out() -> None:
    """Only for reading, and only where that is asked for."""
    found = Found([ONE], WHOLE, reads_replicas=True)
    await found.search()
    assert {TWO, THREE} == {found.node(LOW, reads=True).address for _ in range(2)}
    assert ONE == found.node(LOW).address
    _fail(found.node(LOW, reads=True))
    assert 1 == len({found.node(LOW, reads=True).address for _ in range(4)})
    _fail(found.node(LOW, reads=True))
    assert ONE == found.node(LOW, reads=True).address
    found.clock.advance(1)
    assert {TWO, THREE} == {found.node(LOW, reads=True).address for _ in range(2)}


async def test_a_key_that_moved_is_asked_elsewhere_from_then_on() -> None:
    """And all else is looked up again."""
    found = Found([THREE], *HALVES)
    await found.search()
    by = found.node(LOW)
    node = found.places.redirected(MovedError(f"{LOW_SLOT} two:2"), by)
    assert (TWO, TWO) == (node and node.address, found.node(LOW).address)
    assert found.places._searching is not None
    await found.places.close()


async def test_a_key_on_its_way_is_asked_elsewhere_once() -> None:
    """It is not there for good yet; a server that has no name is the one that was asked."""
    found = Found([THREE], *HALVES)
    await found.search()
    node = found.places.redirected(AskError(f"{LOW_SLOT} :7"), found.node(LOW))
    assert (("one", 7), ONE) == (node and node.address, found.node(LOW).address)


async def test_a_server_that_is_found_no_more_is_asked_no_more() -> None:
    """Its connections are closed when what runs has ended."""
    found = Found([THREE], *HALVES)
    await found.search()
    gone = found.node(HIGH)
    found.spans = [WHOLE]
    await found.search()
    await asyncio.gather(*found.places._retiring)
    assert ONE == found.node(HIGH).address
    assert isinstance(await gone.ask([("GET", "x")], 1), RuntimeError)


async def test_what_is_wrong_after_the_end_is_not_looked_up() -> None:
    """A write that nobody waited for may fail with its connection, when all are closed."""
    found = Found([THREE], *HALVES)
    await found.search()
    await found.places.close()
    found.places.doubt()
    assert found.places._searching is None
