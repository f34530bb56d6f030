"""Real Sentinels say who is master, also after it was another, and know who may ask them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_store import RedisStore
from filters.errors import PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.gateway import dead_port
from tests.redis_server import SERVICE, SentinelRedis, until

pytestmark = pytest.mark.slow
PATIENT_S = 5.0  # where a machine that is busy with other tests must not be the reason
SECRETS = {"password": "right-secret", "sentinel_password": "other-secret"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelRedis]:
    with SentinelRedis(tmp_path_factory.mktemp("sentinel"), **SECRETS) as servers:
        yield servers


@pytest.fixture
def watch() -> FakeStoreWatch:
    return FakeStoreWatch()


def opened(url: str, watch: FakeStoreWatch, **options: Any) -> RedisStore:
    clock = FakeClock()
    return RedisStore(RedisClient(url, clock, watch, timeout_s=PATIENT_S, **options), clock)


@pytest.fixture
async def store(servers: SentinelRedis, watch: FakeStoreWatch) -> AsyncIterator[RedisStore]:
    store = opened(servers.url, watch, **SECRETS)
    yield store
    await store.close()


async def test_one_sentinel_that_is_alive_is_enough(
    servers: SentinelRedis, watch: FakeStoreWatch
) -> None:
    """Those named before it may be gone."""
    with dead_port() as dead:
        gone, alive = dead.getsockname()[1], servers.sentinels[0].port
        url = f"redis+sentinel://127.0.0.1:{gone},127.0.0.1:{alive}/{SERVICE}"
        store = opened(url, watch, **SECRETS)
        await store.put(b"key", b"value", 60)
        await store.close()
    assert 1 == servers.master.ask("EXISTS", "forebay:answer:{key}")
    assert ([], [True]) == (watch.failed, watch.searched)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"password": "wrong-secret"}, "redis get: AuthenticationError"),
        ({"sentinel_password": "wrong-secret"}, "redis is bypassed: it failed moments ago"),
        ({"sentinel_password": ""}, "redis is bypassed: it failed moments ago"),
        ({"sentinel_username": "nobody"}, "redis is bypassed: it failed moments ago"),
    ],
)
async def test_who_may_not_ask_is_a_port_error(
    servers: SentinelRedis, watch: FakeStoreWatch, wrong: dict[str, str], kind: str
) -> None:
    """Servers and Sentinels have passwords of their own; no message repeats one."""
    store = opened(servers.url, watch, **(SECRETS | wrong))
    with pytest.raises(PortError) as caught:
        await store.get(b"key")
    await store.close()
    assert kind == str(caught.value)


async def test_a_master_of_another_name_is_not_found(
    servers: SentinelRedis, watch: FakeStoreWatch
) -> None:
    """Sentinels watch over many."""
    store = opened(servers.url.replace(SERVICE, "other"), watch, **SECRETS)
    with pytest.raises(PortError):
        await store.get(b"key")
    assert (BreakerState.OPEN, [False]) == (store.state, watch.searched)
    await store.close()


async def test_the_replica_answers_if_it_is_asked(
    servers: SentinelRedis, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """What is written goes to the master."""
    await store.put(b"read", b"value", 60)
    until("the replica has it", lambda: servers.replica.ask("EXISTS", "forebay:answer:{read}"))
    servers.master.ask("CONFIG", "RESETSTAT")
    reader = opened(servers.url, watch, reads_replicas=True, **SECRETS)
    assert b"value" == await reader.get(b"read")
    await reader.put(b"read", b"other", 60)
    await reader.close()
    stats = servers.master.ask("INFO", "commandstats")
    assert (False, True) == ("cmdstat_get" in stats, "cmdstat_set" in stats)


async def test_another_master_is_found_when_the_first_one_is_relieved(
    servers: SentinelRedis, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """The first refuses to write from then on, or breaks its connections."""
    await store.put(b"key", b"first", 60)
    servers.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
    until("the first one follows", lambda: "slave" == servers.master.ask("ROLE")[0])
    async with asyncio.timeout(60):
        await _put_at_last(store, b"key", b"second")
    assert b"second" == await store.get(b"key")
    assert "=second" == servers.replica.ask("GET", "forebay:answer:{key}")


async def _put_at_last(store: RedisStore, key: bytes, value: bytes) -> None:
    while True:
        try:
            return await store.put(key, value, 60)
        except PortError:
            await asyncio.sleep(0)
