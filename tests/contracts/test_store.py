"""Every store keeps the promises of the `Store` port: in memory, in Redis, both, and the fake."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import redis.asyncio as redis

from ext_proc.adapters.layered_store import LayeredStore, SharedStore
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_store import RedisStore
from filters.api import Store
from tests.fakes import FakeClock, FakeStore, FakeStoreWatch
from tests.redis_server import RedisCluster, RedisServer, SentinelRedis


@dataclass(frozen=True, slots=True)
class Kept:
    """A store, and how to make its time pass."""

    store: Store
    age: Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Servers:
    """Redis: how it is reached, and its masters."""

    url: str
    masters: Sequence[RedisServer]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder)
    server.start()
    yield Servers(server.url, [server])
    server.kill()


@pytest.fixture(scope="module")
def sentinel_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with SentinelRedis(tmp_path_factory.mktemp("sentinel")) as servers:
        yield Servers(servers.url, [servers.master])


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield Servers(cluster.url, cluster.nodes[:3])


@pytest.fixture(
    params=[
        "memory",
        "fake",
        "redis_server",
        "memory before redis_server",
        pytest.param("sentinel_redis", marks=pytest.mark.slow),
        pytest.param("redis_cluster", marks=pytest.mark.slow),
    ]
)
async def kept(request: pytest.FixtureRequest) -> AsyncIterator[Kept]:
    if "redis" in request.param:
        *layers, where = request.param.split(" before ")
        async for one in _kept_in_redis(request.getfixturevalue(where), layered=bool(layers)):
            yield one
        return
    clock = FakeClock()
    store = MemoryStore(clock, 16 * 1024**2) if request.param == "memory" else FakeStore(clock)

    async def age(seconds: float) -> None:
        clock.advance(seconds)

    yield Kept(store, age)
    await store.close()


async def _kept_in_redis(servers: Servers, *, layered: bool) -> AsyncIterator[Kept]:
    """Age every key by its time to live: a server's clock cannot be moved."""
    clients = [redis.Redis.from_url(master.url) for master in servers.masters]
    for client in clients:
        await client.flushall()
    # A shared machine may pause the test for longer than the 5 ms of production.
    clock = FakeClock()
    far = RedisStore(RedisClient(servers.url, clock, FakeStoreWatch(), timeout_s=20.0), clock)
    near = MemoryStore(clock, 16 * 1024**2)
    store = LayeredStore(near, far, longest_s=5) if layered else far

    async def age(seconds: float) -> None:
        clock.advance(seconds)
        for client in clients:
            async for key in client.scan_iter():
                remaining_ms = await client.pttl(key)
                assert remaining_ms > 0, f"{key!r} would stay for ever"
                await client.pexpire(key, remaining_ms - int(seconds * 1000))

    yield Kept(store, age)
    await store.close()
    for client in clients:
        await client.aclose()


async def test_a_value_is_returned_as_it_was_put(kept: Kept) -> None:
    """A store gives back what it was given."""
    await kept.store.put(b"key", b"value", 10)
    assert b"value" == await kept.store.get(b"key")


async def test_an_unknown_key_has_no_value(kept: Kept) -> None:
    """Nothing is not an error."""
    assert await kept.store.get(b"unknown") is None


async def test_the_last_value_put_is_the_one_kept(kept: Kept) -> None:
    """A second put replaces the first."""
    await kept.store.put(b"key", b"first", 10)
    await kept.store.put(b"key", b"second", 10)
    assert b"second" == await kept.store.get(b"key")


async def test_a_value_is_gone_when_its_time_is_over(kept: Kept) -> None:
    """The time to live ends a value, and not before."""
    await kept.store.put(b"key", b"value", 10)
    await kept.age(9)
    assert b"value" == await kept.store.get(b"key")
    await kept.age(1.5)
    assert await kept.store.get(b"key") is None


async def test_a_second_put_starts_the_time_anew(kept: Kept) -> None:
    """The time to live is that of the last put."""
    await kept.store.put(b"key", b"value", 10)
    await kept.age(9)
    await kept.store.put(b"key", b"value", 10)
    await kept.age(9)
    assert b"value" == await kept.store.get(b"key")


async def test_a_put_without_time_keeps_nothing(kept: Kept) -> None:
    """A time to live of zero also ends what was there."""
    await kept.store.put(b"key", b"value", 10)
    await kept.store.put(b"key", b"value", 0)
    assert await kept.store.get(b"key") is None


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00", bytes(range(256)), b"\r\n$5\r\nhello\r\n", os.urandom(1024**2)],
    ids=["empty", "nul", "all bytes", "protocol in it", "1 MiB"],
)
async def test_any_bytes_survive(kept: Kept, value: bytes) -> None:
    """Keys and values are bytes, whatever is in them."""
    await kept.store.put(b"key\x00\r\n " + value[:256], value, 10)
    assert value == await kept.store.get(b"key\x00\r\n " + value[:256])


async def test_sightings_are_counted_one_by_one(kept: Kept) -> None:
    """The first sighting counts as one."""
    assert [1, 2, 3] == [await kept.store.sighted(b"key", 60, 100) for _ in range(3)]


async def test_a_sighting_counts_for_the_length_of_the_window(kept: Kept) -> None:
    """It counts just before its end, and not after it."""
    await kept.store.sighted(b"key", 60, 100)
    await kept.age(50)
    assert 2 == await kept.store.sighted(b"key", 60, 100)
    await kept.age(61)
    assert 1 == await kept.store.sighted(b"key", 60, 100)


async def test_no_more_sightings_are_looked_for_than_asked(kept: Kept) -> None:
    """Who wants to know of three need not count to five."""
    assert [1, 2, 3, 3, 3] == [await kept.store.sighted(b"key", 60, 3) for _ in range(5)]


async def test_each_key_is_counted_apart(kept: Kept) -> None:
    """One key's sightings say nothing of another's."""
    await kept.store.sighted(b"one", 60, 100)
    assert 1 == await kept.store.sighted(b"other", 60, 100)


async def test_a_key_may_have_both_value_and_sightings(kept: Kept) -> None:
    """Values and counters do not share names."""
    await kept.store.put(b"key", b"value", 10)
    assert 1 == await kept.store.sighted(b"key", 60, 100)
    assert b"value" == await kept.store.get(b"key")


async def test_sightings_at_once_are_all_counted(kept: Kept) -> None:
    """Fifty at the same time count fifty, each its own number."""
    counts = await asyncio.gather(*(kept.store.sighted(b"key", 60, 100) for _ in range(50)))
    assert list(range(1, 51)) == sorted(counts)


async def test_a_hundred_callers_get_each_their_own_value(kept: Kept) -> None:
    """Answers do not cross between callers."""
    await asyncio.gather(*(kept.store.put(b"%d" % n, b"v%d" % n, 10) for n in range(100)))
    values = await asyncio.gather(*(kept.store.get(b"%d" % n) for n in range(100)))
    assert [b"v%d" % n for n in range(100)] == values


@pytest.mark.parametrize("kept", ["fake", "redis_server"], indirect=True)
async def test_a_shared_store_says_how_long_a_value_has_left(kept: Kept) -> None:
    """A copy of it need not outlive it."""
    store = cast("SharedStore", kept.store)
    await store.put(b"key", b"value", 60)
    await kept.age(20)
    found = await store.find(b"key")
    assert found is not None
    assert b"value" == found[0]
    assert 30 < found[1] <= 40
    await kept.age(41)
    assert await store.find(b"key") is None
