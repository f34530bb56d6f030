"""All limits keep the promises of the `Limits` port: of one process, over Redis, and the fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
import redis.asyncio as redis

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.limits import LocalLimits, PoolLimits, Refusal
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_limits import RedisLimits
from filters.api import UNLIMITED, Lease, Limits
from tests.fakes import FakeClock, FakeLimits, FakeStoreWatch
from tests.redis_server import RedisCluster, RedisServer, SentinelRedis

PATIENT_S = 20.0  # a shared machine may pause the test for longer than the 5 ms of production
POOL = "best_effort"
SLOW = 0.01  # a second: no token comes back while a test runs
SETTINGS = {
    POOL: PoolLimits(concurrent=3),
    "other": PoolLimits(concurrent=1),
    "crowd": PoolLimits(concurrent=32),
    "slow": PoolLimits(concurrent=100, rate=SLOW, burst=4),
    "both": PoolLimits(concurrent=1, rate=SLOW, burst=2),
}


@dataclass(frozen=True, slots=True)
class Doors:
    """Limits, and how to make their time pass."""

    limits: Limits
    age: Callable[[float], Awaitable[None]]
    follow: Callable[[Mapping[str, PoolLimits]], None]
    refused: Callable[[str], Mapping[str, int]]

    async def enter(self, number: int, pool: str = POOL) -> list[Lease]:
        """Take so many places that are there."""
        taken = [await self.limits.take(pool) for _ in range(number)]
        leases = [lease for lease in taken if lease is not None]
        assert number == len(leases)
        return leases

    async def is_full(self, pool: str = POOL) -> bool:
        return await self.limits.take(pool) is None


@dataclass(frozen=True, slots=True)
class Servers:
    """Redis: how it is reached, and its masters."""

    url: str
    masters: Sequence[RedisServer]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
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


SHARED = [
    "redis_server",
    pytest.param("sentinel_redis", marks=pytest.mark.slow),
    pytest.param("redis_cluster", marks=pytest.mark.slow),
]


@pytest.fixture(params=["local", *SHARED])
async def doors(request: pytest.FixtureRequest) -> AsyncIterator[Doors]:
    async for one in _doors(request):
        yield one


@pytest.fixture(params=["local", *SHARED, "fake"])
async def counting(request: pytest.FixtureRequest) -> AsyncIterator[Doors]:
    """Doors that count places; how many come in a second the fake does not know."""
    async for one in _doors(request):
        yield one


async def _doors(request: pytest.FixtureRequest) -> AsyncIterator[Doors]:
    clock = FakeClock()

    async def age(seconds: float) -> None:
        clock.advance(seconds)

    match request.param:
        case "local":
            local = LocalLimits(clock)
            local.follow(SETTINGS)
            yield Doors(local, age, local.follow, lambda pool: local.figures()[pool].refused)
            await local.close()
        case "fake":
            places = {name: one.concurrent for name, one in SETTINGS.items()}
            yield Doors(FakeLimits(places, looping=True), age, lambda _: None, lambda _: {})
        case where:
            async for one in _doors_in_redis(request.getfixturevalue(where)):
                yield one


async def _doors_in_redis(servers: Servers) -> AsyncIterator[Doors]:
    """Age what is kept: a server's clock cannot be moved."""
    clients = [redis.Redis.from_url(master.url) for master in servers.masters]
    for client in clients:
        await client.flushall()
    clock = SystemClock()
    client_of_all = RedisClient(servers.url, clock, FakeStoreWatch(), timeout_s=PATIENT_S)
    limits = RedisLimits(client_of_all, clock, name=b"one", beat_s=600.0)
    limits.follow(SETTINGS)

    async def age(seconds: float) -> None:
        for client in clients:
            async for key in client.scan_iter("forebay:bucket:*"):
                full_at_us = await client.get(key)
                if full_at_us is not None:  # else it is full by now: it ended, and so it may here
                    sooner = int(full_at_us) - int(seconds * 1e6)
                    await client.set(key, sooner, keepttl=True, xx=True)

    yield Doors(limits, age, limits.follow, lambda pool: limits.figures()[pool].refused)
    await limits.close()
    left = []
    for client in clients:
        left += [key async for key in client.scan_iter("forebay:leases:*")]
        async for key in client.scan_iter("forebay:*"):
            assert -1 != await client.pttl(key), f"{key!r} would stay for ever"  # -2: it is gone
        await client.aclose()
    await client_of_all.close()
    assert [] == left


async def test_a_pool_without_limits_takes_everybody(counting: Doors) -> None:
    """Its lease is the one that needs no end."""
    lease = await counting.limits.take("full")
    assert lease is UNLIMITED
    lease.release()


async def test_a_pool_takes_so_many_at_once(counting: Doors) -> None:
    """And nobody more, as often as one asks."""
    leases = await counting.enter(3)
    assert [True, True] == [await counting.is_full(), await counting.is_full()]
    for lease in leases:
        lease.release()


async def test_a_place_that_is_given_back_is_free_at_once(counting: Doors) -> None:
    """Whoever asks next has it."""
    first, *others = await counting.enter(3)
    first.release()
    (again,) = await counting.enter(1)
    assert await counting.is_full()
    for lease in (again, *others):
        lease.release()
    for lease in await counting.enter(3):
        lease.release()


async def test_giving_back_twice_frees_one_place(counting: Doors) -> None:
    """Several ways out of an exchange may lead past it."""
    first, *others = await counting.enter(3)
    first.release()
    first.release()
    (again,) = await counting.enter(1)
    first.release()
    assert await counting.is_full()
    for lease in (again, *others):
        lease.release()


async def test_each_pool_has_its_own_places(counting: Doors) -> None:
    """A full one leaves the others alone."""
    (lease,) = await counting.enter(1, "other")
    assert await counting.is_full("other")
    leases = await counting.enter(3)
    for one in (lease, *leases):
        one.release()


async def test_of_many_at_once_as_many_as_may_come_in(counting: Doors) -> None:
    """Not one more."""
    taken = await asyncio.gather(*(counting.limits.take("crowd") for _ in range(100)))
    leases = [lease for lease in taken if lease is not None]
    assert 32 == len(leases)
    for lease in leases:
        lease.release()
    again = await counting.enter(32, "crowd")
    for lease in again:
        lease.release()


async def test_a_burst_comes_in_and_then_one_for_each_gap(doors: Doors) -> None:
    """However soon they leave."""
    for lease in await doors.enter(4, "slow"):
        lease.release()
    assert await doors.is_full("slow")
    await doors.age(1 / SLOW)
    for lease in await doors.enter(1, "slow"):
        lease.release()
    assert await doors.is_full("slow")
    assert {Refusal.RATE: 2, Refusal.CONCURRENT: 0} == doors.refused("slow")


async def test_a_long_pause_saves_up_no_more_than_a_burst(doors: Doors) -> None:
    """The bucket is only so large."""
    await doors.enter(1, "slow")
    await doors.age(100 / SLOW)
    await doors.enter(4, "slow")
    assert await doors.is_full("slow")


async def test_another_rate_counts_at_once(doors: Doors) -> None:
    """Nobody waits for a token that would have come long after."""
    await doors.enter(4, "slow")
    assert await doors.is_full("slow")
    doors.follow({"slow": PoolLimits(concurrent=100, rate=100_000.0, burst=1)})
    async with asyncio.timeout(PATIENT_S):
        while await doors.is_full("slow"):
            await doors.age(1e-5)


async def test_who_finds_no_place_takes_no_token(doors: Doors) -> None:
    """It went elsewhere."""
    (first,) = await doors.enter(1, "both")
    assert [True] * 5 == [await doors.is_full("both") for _ in range(5)]
    first.release()
    (second,) = await doors.enter(1, "both")
    second.release()
    assert await doors.is_full("both")
    assert {Refusal.CONCURRENT: 5, Refusal.RATE: 1} == doors.refused("both")


async def test_who_is_in_counts_under_other_limits(doors: Doors) -> None:
    """A changed setting sends nobody away, but lets nobody in until there is room."""
    first, *others = await doors.enter(3)
    doors.follow({POOL: PoolLimits(concurrent=2)})
    first.release()
    assert await doors.is_full()
    others[0].release()
    (second,) = await doors.enter(1)
    assert await doors.is_full()
    for lease in (second, *others):
        lease.release()


async def test_limits_that_are_gone_let_everybody_in(doors: Doors) -> None:
    """Who was in before still gives its place back, and counts if they return meanwhile."""
    leases = await doors.enter(3)
    doors.follow({})
    assert await doors.limits.take(POOL) is UNLIMITED
    doors.follow(SETTINGS)
    assert await doors.is_full()
    for lease in leases:
        lease.release()
    for lease in await doors.enter(3):
        lease.release()


async def test_who_is_cancelled_while_it_asks_holds_nothing(doors: Doors) -> None:
    """A client may leave at any moment."""
    for _ in range(10):
        task = asyncio.ensure_future(doors.limits.take("other"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            lease = task.result()
            assert lease is not None
            lease.release()
    async with asyncio.timeout(PATIENT_S):
        while (lease := await doors.limits.take("other")) is None:
            pass
    lease.release()
