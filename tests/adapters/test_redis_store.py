"""A Redis that is slow, dead or back again costs a request its budget at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_node import FAILURES
from ext_proc.adapters.redis_store import RedisStore
from filters.errors import ConfigError, PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.redis_server import RedisServer

BUDGET_S = 0.04  # eight times the default: the machine that tests may be busy
LIMIT_S = 0.5  # what a bypass may take there, far below a client's own patience


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watch() -> FakeStoreWatch:
    return FakeStoreWatch()


@pytest.fixture
async def store(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> AsyncIterator[RedisStore]:
    store = opened(server.socket_url, clock, watch)
    yield store
    await store.close()


def opened(
    url: str,
    clock: FakeClock,
    watch: FakeStoreWatch | None = None,
    *,
    timeout_s: float = BUDGET_S,
    password: str = "",
) -> RedisStore:
    watch = watch or FakeStoreWatch()
    return RedisStore(RedisClient(url, clock, watch, timeout_s=timeout_s, password=password), clock)


async def fail_until_open(store: RedisStore) -> None:
    for _ in range(FAILURES):
        with pytest.raises(PortError):
            await store.get(b"key")
    assert store.state is BreakerState.OPEN


async def test_the_keys_in_redis_carry_the_product_name(
    server: RedisServer, store: RedisStore
) -> None:
    """Whoever shares the Redis sees whose keys they are, and each has an end."""
    await store.put(b"key", b"value", 10)
    await store.sighted(b"key", 60, 5)
    async with redis.Redis.from_url(server.url) as client:
        found = sorted([key async for key in client.scan_iter()])
        assert [b"forebay:answer:{key}", b"forebay:seen:{key}"] == found
        assert 9_000 < await client.pttl(found[0]) <= 10_000
        assert 59_000 < await client.pttl(found[1]) <= 60_000


async def test_what_was_put_is_kept_although_the_caller_is_cancelled(store: RedisStore) -> None:
    """The exchange whose answer it is ends at that moment, and its end cancels."""
    task = asyncio.ensure_future(store.put(b"key", b"value", 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b"value" == await store.get(b"key")


async def test_a_killed_redis_is_a_port_error_at_once(
    server: RedisServer, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """A connection that breaks does not wait for the budget."""
    await store.put(b"key", b"value", 10)
    server.kill()
    started = time.monotonic()
    with pytest.raises(PortError):
        await store.get(b"key")
    assert time.monotonic() - started < LIMIT_S
    assert [("redis", "get")] == watch.failed


async def test_a_frozen_redis_is_a_port_error_when_the_budget_is_spent(
    server: RedisServer, store: RedisStore
) -> None:
    """A server that accepts but does not answer is bypassed."""
    await store.put(b"key", b"value", 10)
    server.freeze()
    started = time.monotonic()
    with pytest.raises(PortError, match="redis get: no answer in 40 ms"):
        await store.get(b"key")
    assert BUDGET_S * 0.9 < time.monotonic() - started < LIMIT_S
    server.thaw()


async def test_after_failures_in_a_row_nothing_is_asked(
    server: RedisServer, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """Requests do not pay the budget each; every bypass is counted."""
    server.freeze()
    await fail_until_open(store)
    started = time.monotonic()
    for call in (store.get(b"key"), store.put(b"key", b"v", 1), store.sighted(b"key", 1, 5)):
        with pytest.raises(PortError, match="redis is bypassed: it failed moments ago"):
            await call
    assert time.monotonic() - started < BUDGET_S
    assert [("redis", "get"), ("redis", "put"), ("redis", "sighted")] == watch.bypassed
    server.thaw()


async def test_a_restarted_redis_is_used_again_after_the_pause(
    server: RedisServer, store: RedisStore, clock: FakeClock
) -> None:
    """The first call after the pause finds it well and closes the breaker."""
    await store.put(b"key", b"value", 10)
    server.kill()
    await fail_until_open(store)
    server.start()
    clock.advance(1)
    await store.put(b"key", b"again", 10)
    assert (b"again", BreakerState.CLOSED) == (await store.get(b"key"), store.state)


async def test_a_redis_still_dead_after_the_pause_costs_one_probe(
    server: RedisServer, store: RedisStore, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """Of many requests one probes, the others go on at once."""
    server.kill()
    await fail_until_open(store)
    clock.advance(1)
    watch.failed.clear()
    await asyncio.gather(*(store.get(b"key") for _ in range(20)), return_exceptions=True)
    assert (1, 19) == (len(watch.failed), len(watch.bypassed))


async def test_a_caller_who_leaves_does_not_break_the_connection(store: RedisStore) -> None:
    """The command goes on behind its back, so the next caller gets its own answer."""
    await store.put(b"one", b"1", 10)
    await store.put(b"other", b"2", 10)
    task = asyncio.ensure_future(store.get(b"one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b"2" == await store.get(b"other")


async def test_a_late_answer_reaches_nobody_else(server: RedisServer, store: RedisStore) -> None:
    """What comes after the budget is dropped with its own command."""
    await store.put(b"one", b"1", 10)
    await store.put(b"other", b"2", 10)
    server.freeze()
    with pytest.raises(PortError):
        await store.get(b"one")
    server.thaw()
    assert b"2" == await store.get(b"other")


async def test_more_callers_than_connections_are_all_served(store: RedisStore) -> None:
    """The pool is bounded and the rest wait their turn within the budget."""
    await store.put(b"key", b"value", 10)
    answers = await asyncio.gather(*(store.get(b"key") for _ in range(40)), return_exceptions=True)
    assert [b"value"] * 40 == answers


async def test_a_key_of_another_type_is_a_port_error(
    server: RedisServer, store: RedisStore
) -> None:
    """What Redis refuses is a failure like another, and names its kind only."""
    async with redis.Redis.from_url(server.url) as client:
        await client.lpush("forebay:answer:{key}", "x")
    with pytest.raises(PortError, match=r"^redis get: ResponseError$"):
        await store.get(b"key")


async def test_a_wrong_password_is_a_port_error(server: RedisServer, clock: FakeClock) -> None:
    """The error does not repeat the password."""
    url = f"redis://127.0.0.1:{server.port}/0"
    store = opened(url, clock, timeout_s=5, password="wrong-secret")
    with pytest.raises(PortError) as caught:
        await store.get(b"key")
    await store.close()
    assert "wrong-secret" not in str(caught.value)


async def test_a_password_from_outside_the_url_is_used(tmp_path: Path, clock: FakeClock) -> None:
    """The secret need not stand in the configuration."""
    server = RedisServer(tmp_path)
    server.start("--requirepass", "right-secret")
    store = opened(server.url, clock, timeout_s=5, password="right-secret")
    await store.put(b"key", b"value", 10)
    assert b"value" == await store.get(b"key")
    await store.close()
    server.kill()


def test_a_url_of_something_else_is_a_config_error(clock: FakeClock) -> None:
    """The start stops with the place and what was expected."""
    with pytest.raises(ConfigError, match=r"^forebay\.store\.redis\.url: "):
        opened("http://127.0.0.1:6379", clock)


async def test_closing_ends_what_still_runs(server: RedisServer, clock: FakeClock) -> None:
    """A frozen server does not hold up the end."""
    store = opened(server.socket_url, clock)
    await store.put(b"key", b"value", 10)
    server.freeze()
    with pytest.raises(PortError):
        await store.get(b"key")
    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < LIMIT_S
    server.thaw()


async def test_a_large_answer_lies_compressed(server: RedisServer, store: RedisStore) -> None:
    """It takes less room there, and comes back whole, with what time it has left."""
    value = b"The basin is calm before the turbine. " * 100
    await store.put(b"key", value, 10)
    async with redis.Redis.from_url(server.url) as client:
        written = await client.get("forebay:answer:{key}")
    assert isinstance(written, bytes)
    assert (b"z", True) == (written[:1], len(written) < 200)
    found = await store.find(b"key")
    assert found is not None
    assert (value, value) == (await store.get(b"key"), found[0])


async def test_what_cannot_be_read_is_no_value_and_counted(
    server: RedisServer, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """An earlier or a later Forebay may have written it, or somebody else."""
    async with redis.Redis.from_url(server.url) as client:
        await client.set("forebay:answer:{one}", b"\x01 another format", px=10_000)
        await client.set("forebay:answer:{two}", b"z another format", px=10_000)
    assert [None, None, None] == [
        await store.get(b"one"),
        await store.find(b"one"),
        await store.get(b"two"),
    ]
    assert [("redis", "foreign"), ("redis", "foreign"), ("redis", "damaged")] == watch.unreadable
