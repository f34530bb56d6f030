"""A real Redis Cluster: keys move, masters die, replicas answer, and nobody waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_node import LANES
from ext_proc.adapters.redis_store import RedisStore
from filters.errors import PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.gateway import dead_port
from tests.redis_server import RedisCluster, RedisServer, until

pytestmark = pytest.mark.slow
PATIENT_S = 5.0  # where a machine that is busy with other tests must not be the reason
KEYS = [b"faq:shared:%048d" % n for n in range(60)]  # some in each third of the slots


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def watch() -> FakeStoreWatch:
    return FakeStoreWatch()


def opened(url: str, watch: FakeStoreWatch, **options: Any) -> RedisStore:
    clock = FakeClock()
    return RedisStore(RedisClient(url, clock, watch, timeout_s=PATIENT_S, **options), clock)


@pytest.fixture
async def store(cluster: RedisCluster, watch: FakeStoreWatch) -> AsyncIterator[RedisStore]:
    store = opened(cluster.url, watch)
    yield store
    await store.close()


def answers_at(server: RedisServer) -> set[bytes]:
    """Return the keys of what a server keeps."""
    names = server.ask("KEYS", "forebay:answer:*")
    return {name.partition("{")[2].rstrip("}").encode() for name in names}


def moved(server: RedisServer) -> bool:
    """Tell whether a server had to send anybody elsewhere."""
    return "errorstat_MOVED" in server.ask("INFO", "errorstats")


async def put_all(store: RedisStore) -> None:
    await asyncio.gather(*(store.put(key, b"of " + key, 600) for key in KEYS))


async def test_every_master_is_connected_to_before_anybody_asks(
    cluster: RedisCluster, watch: FakeStoreWatch
) -> None:
    """As soon as they are found."""
    client = RedisClient(cluster.url, FakeClock(), watch, timeout_s=PATIENT_S)
    assert await client.open(10 * PATIENT_S)
    clients = [node.ask("INFO", "clients")["connected_clients"] for node in cluster.nodes[:3]]
    await client.close()
    assert [True] == watch.searched
    assert all(number > LANES for number in clients)  # these, and the one that asks


async def test_every_master_has_its_share(cluster: RedisCluster, store: RedisStore) -> None:
    """Nothing was sent to the wrong one first."""
    await put_all(store)
    shares = [answers_at(master) for master in cluster.nodes[:3]]
    assert set(KEYS) == set().union(*shares)
    assert all(shares)
    assert [b"of " + key for key in KEYS] == [await store.get(key) for key in KEYS]
    assert not any(moved(master) for master in cluster.nodes[:3])


async def test_all_that_is_kept_of_an_answer_lies_in_one_slot(
    cluster: RedisCluster, store: RedisStore
) -> None:
    """So it travels together."""
    await store.put(b"one", b"value", 60)
    await store.sighted(b"one", 60, 5)
    master = cluster.master_of("forebay:answer:{one}")
    assert 2 == master.ask("EXISTS", "forebay:answer:{one}", "forebay:seen:{one}")


async def test_one_server_that_is_alive_is_enough_to_find_all(
    cluster: RedisCluster, watch: FakeStoreWatch
) -> None:
    """Those named before it may be gone."""
    with dead_port() as dead:
        gone = f"127.0.0.1:{dead.getsockname()[1]}"
        store = opened(f"redis+cluster://{gone},127.0.0.1:{cluster.nodes[4].port}", watch)
        await put_all(store)
        await store.close()
    assert ([], True) == (watch.failed, watch.searched[0])


async def test_no_server_alive_is_a_port_error_and_none_is_waited_for_again(
    watch: FakeStoreWatch,
) -> None:
    """The state of the breaker says that nothing is asked."""
    with dead_port() as dead:
        store = opened(f"redis+cluster://127.0.0.1:{dead.getsockname()[1]}", watch)
        for _ in range(2):
            with pytest.raises(PortError, match=r"^redis is bypassed: it failed moments ago$"):
                await store.get(b"key")
        await store.close()
    assert (BreakerState.OPEN, [("redis", "get")] * 2) == (store.state, watch.bypassed)


async def test_a_server_that_is_in_no_cluster_is_a_port_error(
    tmp_path_factory: pytest.TempPathFactory, watch: FakeStoreWatch
) -> None:
    """The URL is wrong, or the server's settings are."""
    server = RedisServer(tmp_path_factory.mktemp("alone"))
    server.start()
    store = opened(f"redis+cluster://127.0.0.1:{server.port}", watch)
    with pytest.raises(PortError):
        await store.get(b"key")
    await store.close()
    server.kill()
    assert [False] == watch.searched


async def test_hundreds_at_once_go_by_few_connections(
    cluster: RedisCluster, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """To each server as many as are set; the others wait their turn."""
    await put_all(store)
    before = [int(node.ask("INFO", "clients")["connected_clients"]) for node in cluster.nodes[:3]]
    found = await asyncio.gather(*(store.get(key) for key in KEYS * 10))
    after = [int(node.ask("INFO", "clients")["connected_clients"]) for node in cluster.nodes[:3]]
    assert [b"of " + key for key in KEYS * 10] == found
    assert [] == watch.failed
    assert all(now - then < LANES for now, then in zip(after, before, strict=True))


async def test_replicas_answer_if_they_are_asked(
    cluster: RedisCluster, watch: FakeStoreWatch
) -> None:
    """Whatever is written goes to masters, what is read to those that follow them."""
    store = opened(cluster.url, watch, reads_replicas=True)
    await put_all(store)
    until(
        "replicas that have what was put",
        lambda: set(KEYS) <= set().union(*(answers_at(node) for node in cluster.nodes[3:])),
    )
    for node in cluster.nodes:
        node.ask("CONFIG", "RESETSTAT")
    assert [b"of " + key for key in KEYS] == [await store.get(key) for key in KEYS]
    await store.close()
    gets = [_calls_of(node, "get") for node in cluster.nodes]
    assert (0, len(KEYS)) == (sum(gets[:3]), sum(gets[3:]))
    assert not any(moved(node) for node in cluster.nodes)


def _calls_of(node: RedisServer, command: str) -> int:
    stats = node.ask("INFO", "commandstats")
    return int(stats[f"cmdstat_{command}"]["calls"]) if f"cmdstat_{command}" in stats else 0


async def test_a_slot_that_moves_is_followed(
    cluster: RedisCluster, store: RedisStore, watch: FakeStoreWatch
) -> None:
    """While it is on its way and afterwards; no caller hears of it."""
    await put_all(store)
    name = "forebay:answer:{on its way}"
    slot = cluster.nodes[0].ask("CLUSTER", "KEYSLOT", name)
    source = cluster.master_of(name)
    target = next(node for node in cluster.nodes[:3] if node is not source)
    target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.ask("CLUSTER", "MYID"))
    await store.put(b"on its way", b"value", 60)  # ASK: it is not there, so it begins there
    assert [b"value", 1] == [
        await store.get(b"on its way"),
        await store.sighted(b"on its way", 9, 5),
    ]
    for node in (target, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.ask("CLUSTER", "MYID"))
    assert b"value" == await store.get(b"on its way")  # MOVED
    assert b"on its way" in answers_at(target)
    assert ([], []) == (watch.failed, watch.bypassed)


async def test_a_dead_master_holds_up_its_own_keys_alone_and_its_replica_takes_its_place(
    tmp_path_factory: pytest.TempPathFactory, watch: FakeStoreWatch
) -> None:
    """Others are answered meanwhile; then its own are, as they were put before."""
    with RedisCluster(tmp_path_factory.mktemp("dying"), password="right-secret") as cluster:
        store = opened(cluster.url, watch, password="right-secret")
        await put_all(store)
        victim = cluster.nodes[0]
        its_own = answers_at(victim)
        until("its replica has all it had", lambda: its_own <= answers_at(cluster.nodes[3]))
        victim.kill()
        for key in KEYS:
            if key in its_own:
                with pytest.raises(PortError):
                    await store.get(key)
            else:
                assert b"of " + key == await store.get(key)
        assert store.state is BreakerState.OPEN
        async with asyncio.timeout(60):
            for key in its_own:
                assert b"of " + key == await _once_back(store, key)
        await put_all(store)
        assert its_own <= answers_at(cluster.nodes[3])
        await store.close()


async def _once_back(store: RedisStore, key: bytes) -> bytes | None:
    while True:
        try:
            return await store.get(key)
        except PortError:
            await asyncio.sleep(0)
