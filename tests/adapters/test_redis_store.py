"""A Redis that is slow, dead or back again costs a request its budget at most."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_lane import Call, Replies, settle
from ext_proc.adapters.redis_node import FAILURES, LANES, MOST_WAITING, MOST_WAITING_BYTES
from ext_proc.adapters.redis_store import RedisStore
from filters.errors import ConfigError, PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.redis_server import RedisServer

BUDGET_S = 10.0  # where an answer is expected: the machine that tests may be busy
HASTY_S = 0.04  # where none comes
PATIENCE_S = 60.0  # for what does not hang


@pytest.fixture(autouse=True)
def hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give no batch up: what is to end by itself must not end for that, nor a slow one fail."""
    monkeypatch.setattr("ext_proc.adapters.redis_lane.HARD_LIMIT_S", 3_600)


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


@pytest.fixture
async def hasty(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> AsyncIterator[RedisStore]:
    """Open a store that has a connection, and little time."""
    store = opened(server.socket_url, clock, watch, timeout_s=HASTY_S)
    await answer(store, clock, b"nothing")
    watch.failed.clear()
    watch.bypassed.clear()
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


async def answer(store: RedisStore, clock: FakeClock, key: bytes) -> bytes | None:
    """Return what a store says; ask again when it is late, as on a busy machine."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await store.get(key)
            except PortError:
                clock.advance(1)  # the breaker lets a probe through


def connections(server: RedisServer) -> int:
    """Return how many are open, but for the one by which that is asked."""
    return int(server.ask("INFO", "clients")["connected_clients"]) - 1


async def cancelled_put(store: RedisStore) -> None:
    """Put what nobody waits for once it is asked."""
    task = asyncio.ensure_future(store.put(b"key", b"value", 3_600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(good: Callable[[], bool]) -> None:
    """Wait for what nobody is told of."""
    async with asyncio.timeout(PATIENCE_S):
        while not good():  # noqa: ASYNC110 - what is counted tells nobody
            await asyncio.sleep(0)


async def fail_until_open(store: RedisStore) -> None:
    for _ in range(FAILURES):
        with pytest.raises(PortError):
            await store.get(b"key")
    assert store.state is BreakerState.OPEN


async def test_the_keys_in_redis_carry_the_product_name(
    server: RedisServer, store: RedisStore
) -> None:
    """Whoever shares the Redis sees whose keys they are, and each has an end."""
    await store.put(b"key", b"value", 3_600)
    await store.sighted(b"key", 7_200, 5)
    async with redis.Redis.from_url(server.url) as client:
        found = sorted([key async for key in client.scan_iter()])
        assert [b"forebay:answer:{key}", b"forebay:seen:{key}"] == found
        assert 3_500_000 < await client.pttl(found[0]) <= 3_600_000
        assert 7_100_000 < await client.pttl(found[1]) <= 7_200_000


async def test_connections_are_there_before_anybody_asks(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """And again after the server closed them: no request has to wait for one."""
    client = RedisClient(server.url, clock, watch, timeout_s=BUDGET_S)
    assert await client.open(PATIENCE_S)
    assert LANES == connections(server)
    server.ask("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")
    assert 0 == connections(server)
    client._places.connect()  # as it does once in a while
    assert await client.open(PATIENCE_S)
    assert LANES == connections(server)
    assert [b"PONG"] == await client.ask("get", b"key", ("PING",))
    assert LANES == connections(server)
    await client.close()
    assert ([], []) == (watch.failed, watch.bypassed)


async def test_a_dead_server_is_no_hindrance_to_a_start(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """It is said, and nobody was asked in vain: the breaker stays closed."""
    server.kill()
    client = RedisClient(server.url, clock, watch, timeout_s=HASTY_S)
    assert not await client.open(PATIENCE_S)
    assert client.state is BreakerState.CLOSED
    await client.close()


async def test_a_frozen_server_holds_a_start_up_for_so_long_and_no_longer(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """It accepts connections, but says nothing."""
    server.freeze()
    client = RedisClient(server.url, clock, watch, timeout_s=HASTY_S)
    assert not await client.open(HASTY_S)
    await client.close()
    server.thaw()


async def test_what_was_put_is_kept_although_the_caller_is_cancelled(
    store: RedisStore, watch: FakeStoreWatch
) -> None:
    """The exchange whose answer it is ends at that moment, and its end cancels."""
    await cancelled_put(store)
    await until(lambda: bool(watch.took))
    assert b"value" == await store.get(b"key")
    assert ([("redis", "put"), ("redis", "get")], []) == (watch.took, watch.failed)


async def test_a_put_that_is_cancelled_before_redis_is_connected_to_is_kept(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """Its connection is opened for it, and somebody else's waits for that."""
    client = RedisClient(server.url, clock, watch, timeout_s=BUDGET_S, lanes=1)
    store = RedisStore(client, clock)
    await cancelled_put(store)
    assert b"value" == await store.get(b"key")
    await store.close()
    assert ([("redis", "put"), ("redis", "get")], []) == (watch.took, watch.failed)


async def test_a_cancelled_put_that_is_late_is_counted_once(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its time is over, as another's; not again when its answer comes after all."""
    client = RedisClient(server.url, clock, watch, timeout_s=HASTY_S, lanes=1)
    store = RedisStore(client, clock)
    await answer(store, clock, b"nothing")
    watch.failed.clear()
    watch.took.clear()
    doubts: list[None] = []
    monkeypatch.setattr(client._places, "doubt", lambda: doubts.append(None))
    server.freeze()
    await cancelled_put(store)
    await until(lambda: bool(watch.failed))
    lost = [("redis", "put")]
    assert (lost, lost, [None]) == (watch.failed, watch.took, doubts)
    server.thaw()
    assert b"value" == await answer(store, clock, b"key")
    await store.close()
    assert 1 == watch.took.count(("redis", "put"))
    assert lost == [one for one in watch.failed if one == ("redis", "put")]


async def test_cancelled_puts_that_fail_are_counted_and_open_the_breaker(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """A Redis may be lost while nobody waits for it: who comes next need not find that out."""
    client = RedisClient(server.url, clock, watch, timeout_s=BUDGET_S)
    assert await client.open(PATIENCE_S)
    store = RedisStore(client, clock)
    server.freeze()
    for _ in range(FAILURES):
        await cancelled_put(store)
    assert (BreakerState.CLOSED, []) == (store.state, watch.failed)
    server.kill()
    await until(lambda: store.state is BreakerState.OPEN)
    with pytest.raises(PortError, match="redis is bypassed: it failed moments ago"):
        await store.put(b"key", b"value", 3_600)
    await store.close()
    lost = [("redis", "put")] * FAILURES
    assert (lost, lost, lost[:1]) == (watch.failed, watch.took, watch.bypassed)


async def test_a_put_that_is_cancelled_when_its_answer_is_there_is_counted_once(
    store: RedisStore, watch: FakeStoreWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken, but its caller had no turn yet in which to hear of it."""
    putting = asyncio.ensure_future(store.put(b"key", b"value", 3_600))

    def settle_and_cancel(call: Call, outcome: Replies) -> None:
        settle(call, outcome)
        putting.cancel()

    monkeypatch.setattr("ext_proc.adapters.redis_lane.settle", settle_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        await putting
    await until(lambda: bool(watch.took))
    assert b"value" == await store.get(b"key")
    assert ([("redis", "put"), ("redis", "get")], []) == (watch.took, watch.failed)


async def test_a_get_that_is_cancelled_is_nobodys(
    server: RedisServer, hasty: RedisStore, watch: FakeStoreWatch
) -> None:
    """Nothing is lost by it, and its time ended with its caller's."""
    watch.took.clear()
    server.freeze()
    task = asyncio.ensure_future(hasty.get(b"key"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(PortError):
        await hasty.put(b"key", b"value", 3_600)
    server.thaw()
    assert ([("redis", "put")], [("redis", "put")]) == (watch.took, watch.failed)


async def test_a_put_that_is_cancelled_before_its_server_is_known_is_counted(
    server: RedisServer, clock: FakeClock, watch: FakeStoreWatch
) -> None:
    """There was nobody yet to send it to."""
    server.freeze()
    url = f"redis+cluster://127.0.0.1:{server.port}"
    store = opened(url, clock, watch)
    await cancelled_put(store)
    await store.close()
    server.thaw()
    assert ([("redis", "put")], [], []) == (watch.bypassed, watch.failed, watch.took)


async def test_a_killed_redis_is_a_port_error_at_once(
    server: RedisServer, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """A connection that breaks is what failed, not the time that was waited for it."""
    await store.put(b"key", b"value", 3_600)
    server.kill()
    with pytest.raises(PortError, match=r"^redis get: ConnectionError$"):
        await store.get(b"key")
    assert [("redis", "get")] == watch.failed


async def test_a_frozen_redis_is_a_port_error_when_the_budget_is_spent(
    server: RedisServer, hasty: RedisStore
) -> None:
    """A server that accepts but does not answer is bypassed."""
    server.freeze()
    with pytest.raises(PortError, match=r"^redis get: no answer in 40 ms$"):
        await hasty.get(b"key")
    server.thaw()


async def test_after_failures_in_a_row_nothing_is_asked(
    server: RedisServer, hasty: RedisStore, watch: FakeStoreWatch
) -> None:
    """Requests do not pay the budget each; every bypass is counted."""
    server.freeze()
    await fail_until_open(hasty)
    for call in (hasty.get(b"key"), hasty.put(b"key", b"v", 1), hasty.sighted(b"key", 1, 5)):
        with pytest.raises(PortError, match="redis is bypassed: it failed moments ago"):
            await call
    assert FAILURES == len(watch.failed)
    assert [("redis", "get"), ("redis", "put"), ("redis", "sighted")] == watch.bypassed
    server.thaw()


async def test_every_call_that_was_made_is_timed(
    server: RedisServer, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """Answered or failed; one that was bypassed took no time."""
    await store.put(b"key", b"value", 3_600)
    await store.get(b"key")
    server.kill()
    await fail_until_open(store)
    with pytest.raises(PortError):
        await store.get(b"key")
    assert [("redis", "put"), *[("redis", "get")] * (1 + FAILURES)] == watch.took


async def test_a_restarted_redis_is_used_again_after_the_pause(
    server: RedisServer, store: RedisStore, clock: FakeClock
) -> None:
    """The first call after the pause finds it well and closes the breaker."""
    await store.put(b"key", b"value", 3_600)
    server.kill()
    await fail_until_open(store)
    server.start()
    clock.advance(1)
    await store.put(b"key", b"again", 3_600)
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
    await store.put(b"one", b"1", 3_600)
    await store.put(b"other", b"2", 3_600)
    task = asyncio.ensure_future(store.get(b"one"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert b"2" == await store.get(b"other")


async def test_a_late_answer_reaches_nobody_else(
    server: RedisServer, store: RedisStore, hasty: RedisStore, clock: FakeClock
) -> None:
    """What comes after the budget is dropped with its own command."""
    await store.put(b"one", b"1", 3_600)
    await store.put(b"other", b"2", 3_600)
    server.freeze()
    with pytest.raises(PortError):
        await hasty.get(b"one")
    server.thaw()
    assert b"2" == await answer(hasty, clock, b"other")


async def test_more_callers_than_connections_are_all_served(store: RedisStore) -> None:
    """The pool is bounded and the rest wait their turn within the budget."""
    await store.put(b"key", b"value", 3_600)
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


async def test_sightings_that_are_no_times_are_a_port_error(
    server: RedisServer, store: RedisStore
) -> None:
    """Somebody else uses the name: memory counts instead, where there is one."""
    server.ask("RPUSH", "forebay:seen:{key}", "yesterday", "9" * 5_000)
    with pytest.raises(PortError, match="redis sighted: no times"):
        await store.sighted(b"key", 1, 5)


async def test_a_wrong_password_is_a_port_error(server: RedisServer, clock: FakeClock) -> None:
    """The error does not repeat the password."""
    url = f"redis://127.0.0.1:{server.port}/0"
    store = opened(url, clock, password="wrong-secret")
    with pytest.raises(PortError) as caught:
        await store.get(b"key")
    await store.close()
    assert "wrong-secret" not in str(caught.value)


async def test_a_password_from_outside_the_url_is_used(tmp_path: Path, clock: FakeClock) -> None:
    """The secret need not stand in the configuration."""
    server = RedisServer(tmp_path)
    server.start("--requirepass", "right-secret")
    store = opened(server.url, clock, password="right-secret")
    await store.put(b"key", b"value", 3_600)
    assert b"value" == await store.get(b"key")
    await store.close()
    server.kill()


def test_a_url_of_something_else_is_a_config_error(clock: FakeClock) -> None:
    """The start stops with the place and what was expected."""
    with pytest.raises(ConfigError, match=r"^forebay\.store\.redis\.url: "):
        opened("http://127.0.0.1:6379", clock)


async def test_closing_ends_what_still_runs(server: RedisServer, hasty: RedisStore) -> None:
    """A frozen server does not hold up the end, however long it would be waited for."""
    server.freeze()
    with pytest.raises(PortError):
        await hasty.get(b"key")
    async with asyncio.timeout(PATIENCE_S):
        await hasty.close()
    server.thaw()


async def test_a_large_answer_lies_compressed(server: RedisServer, store: RedisStore) -> None:
    """It takes less room there, and comes back whole, with what time it has left."""
    value = b"The basin is calm before the turbine. " * 100
    await store.put(b"key", value, 3_600)
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
        await client.set("forebay:answer:{one}", b"\x01 another format", px=3_600_000)
        await client.set("forebay:answer:{two}", b"z another format", px=3_600_000)
    assert [None, None, None] == [
        await store.get(b"one"),
        await store.find(b"one"),
        await store.get(b"two"),
    ]
    assert [("redis", "foreign"), ("redis", "foreign"), ("redis", "damaged")] == watch.unreadable


async def test_more_than_a_bounded_number_do_not_wait(
    server: RedisServer, hasty: RedisStore, watch: FakeStoreWatch
) -> None:
    """A server that hangs holds so many; the others go on at once, and are counted."""
    server.freeze()
    calls = (hasty.get(b"key") for _ in range(MOST_WAITING + 500))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    server.thaw()
    full = [one for one in outcomes if str(one) == "redis is bypassed: too many wait for it"]
    assert (500, [("redis", "get")] * 500) == (len(full), watch.bypassed)


async def test_more_than_a_bounded_number_of_bytes_is_not_written(
    server: RedisServer, hasty: RedisStore, watch: FakeStoreWatch
) -> None:
    """What has no room is dropped, and counted; one that is larger than all room is not."""
    value = os.urandom(MOST_WAITING_BYTES // 4)
    server.freeze()
    calls = (hasty.put(b"%d" % n, value, 60) for n in range(8))
    await asyncio.gather(*calls, return_exceptions=True)
    server.thaw()
    assert [("redis", "put")] * 5 == watch.bypassed
    await asyncio.gather(hasty.put(b"large", value * 5, 60), return_exceptions=True)
    assert 5 == len(watch.bypassed)


async def test_a_user_of_ones_own_is_named_in_the_url(tmp_path: Path, clock: FakeClock) -> None:
    """The password stands elsewhere."""
    server = RedisServer(tmp_path)
    server.start()
    server.ask("ACL", "SETUSER", "me@home", "on", ">right-secret", "~*", "+@all")
    server.ask("ACL", "SETUSER", "default", "off")
    url = server.url.replace("redis://", "redis://me%40home@")
    store = opened(url, clock, timeout_s=5, password="right-secret")
    await store.put(b"key", b"value", 10)
    assert b"value" == await store.get(b"key")
    await store.close()
    server.kill()
