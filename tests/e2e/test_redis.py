"""Answers in a real Redis: shared by all servers, missed when it is gone, and never an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
import redis

from ext_proc.adapters.redis_node import LANES
from ext_proc.adapters.redis_values import pack, unpack
from filters.cache_record import Record, read_record, write_record
from tests.calls import Ask, Caller, Reply, ask_for, streamed_text, text_of
from tests.e2e.conftest import Gateways
from tests.gateway import Gateway, Upstream
from tests.redis_server import RedisServer, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
PATIENT: Final = "2s"  # where a machine that is busy with other tests must not be the reason
HASTY: Final = "5ms"
SERVICE: Final = {"host": "models.example"}  # the name under which clients know both gateways


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def connections(server: RedisServer) -> int:
    """Return how many are open, but for the one by which that is asked."""
    return int(server.ask("INFO", "clients")["connected_clients"]) - 1


def _keep_in(url: str, timeout: str) -> Callable[[dict[str, Any]], None]:
    def edit(tree: dict[str, Any]) -> None:
        redis_settings = {"url": url, "timeout": timeout}
        tree["node"]["metadata"]["forebay"]["store"] = {"redis": redis_settings}

    return edit


@pytest.fixture
def two(
    gateways: Gateways, upstream: Upstream, server: RedisServer
) -> Iterator[tuple[Gateway, Gateway]]:
    """Run two gateways on one Redis; the second is told of it by the environment."""
    with ExitStack() as stack:
        first = gateways.open(upstream=upstream, edit=_keep_in(server.url, PATIENT))
        url = "redis://127.0.0.1:1/0"  # not this one
        second = gateways.open(
            upstream=upstream,
            edit=_keep_in(url, PATIENT),
            environ={"FOREBAY_REDIS_URL": server.url},
        )
        yield stack.enter_context(first), stack.enter_context(second)


async def test_redis_is_connected_to_before_the_first_request(
    gateways: Gateways, server: RedisServer
) -> None:
    """5 ms may not be enough to connect on a busy machine."""
    with gateways.open(edit=_keep_in(server.url, PATIENT), envoy=False):
        until("connections", lambda: connections(server) == LANES)


async def test_what_one_server_was_told_all_of_them_know(
    two: tuple[Gateway, Gateway], http: aiohttp.ClientSession, question: str
) -> None:
    """A hit at another server, also as a stream; sightings are counted together."""
    first, second = (Caller(http, gateway.url, "a key") for gateway in two)
    asked = ask_for(CHAT, question)
    stored = await _until_hit(first, asked, SERVICE)
    with two[1].watch() as seen:
        hit = await second(asked, "faq", SERVICE)
    stream = ask_for(CHAT, question, stream=True)
    streamed = await second(stream, "faq", SERVICE)
    assert ("HIT", []) == (hit.cache, seen.received)
    assert text_of(CHAT, stored.body) == text_of(CHAT, hit.body)
    assert text_of(CHAT, hit.body) == streamed_text(CHAT, stream, streamed)
    assert "MISS" == (await second.with_key("another key")(asked, "faq", SERVICE)).cache
    rare = ask_for(CHAT, question, temperature=0)
    for call in (first, second, first, second, first):
        assert "MISS" == (await call(rare, "", SERVICE)).cache
    await _until_hit(second, rare, SERVICE, profile="")
    assert "HIT" == (await first(rare, "", SERVICE)).cache


async def test_an_answer_has_an_age_and_a_client_may_find_it_too_old(
    gateways: Gateways,
    upstream: Upstream,
    server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
) -> None:
    """A record from 100 s ago says so; `max-age` below that goes to the model, and renews it."""
    asked = ask_for(CHAT, question)
    with (
        gateways.open(upstream=upstream, edit=_keep_in(server.url, PATIENT)) as gateway,
        redis.Redis.from_url(server.url) as client,
    ):
        call = Caller(http, gateway.url)
        await _until_hit(call, asked)
        (key,) = client.keys("forebay:answer:*")
        stored: Any = client.get(key)
        written = unpack(stored)
        assert isinstance(written, bytes)
        record = read_record(written)
        assert isinstance(record, Record)
        older = msgspec.structs.replace(record, at=record.at - 100)
        client.set(key, pack(write_record(older)), keepttl=True)
        assert 200_000 < int(client.pttl(key)) <= 300_000
        old = await call(asked, "faq", {"cache-control": "max-age=1000"})
        with gateway.watch() as seen:
            fresh = await call(asked, "faq", {"cache-control": "max-age=99"})
        again = await _until_hit(call, asked, {"cache-control": "max-age=99"})
    assert "HIT" == old.cache
    assert 100 <= int(old.headers["age"]) < 200
    ttl = int(old.headers["cache-status"].removeprefix("forebay; hit; ttl="))
    assert 100 < ttl <= 200
    assert ("MISS", 1) == (fresh.cache, len(seen.received))
    assert int(again.headers["age"]) < 99


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_redis_that_is_gone_is_bypassed_and_taken_up_again(
    gateways: Gateways,
    upstream: Upstream,
    server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
    how: str,
) -> None:
    """No error, no wait but for a few, a reason in the reply, metrics; then hits as before."""
    asked = ask_for(CHAT, question)
    edit = _keep_in(server.url, HASTY if how == "frozen" else PATIENT)
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        await _until_hit(call, asked)
        if how == "killed":
            server.kill()
        else:
            server.freeze()
        replies = [await call(asked, "faq") for _ in range(50)]
        metrics = gateway.metrics()
        if how == "killed":
            server.start()
        else:
            server.thaw()
        back = await _until_hit(call, asked)
    assert {(200, "BYPASS", "forebay; fwd=bypass; detail=store")} == {
        (reply.status, reply.cache, reply.headers["cache-status"]) for reply in replies
    }
    assert 0 < metrics['forebay_store_errors_total{op="get",store="redis"}']
    assert 0 < metrics['forebay_store_bypassed_total{op="get",store="redis"}']
    assert 0 < metrics["forebay_store_breaker"]
    assert text_of(CHAT, replies[0].body) == text_of(CHAT, back.body)


async def test_memory_before_redis_serves_while_that_is_gone(
    gateways: Gateways,
    upstream: Upstream,
    server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
) -> None:
    """An answer that another gateway stored is found here, and once copied without Redis."""
    asked = ask_for(CHAT, question)

    def both(tree: dict[str, Any]) -> None:
        _keep_in(server.url, PATIENT)(tree)
        tree["node"]["metadata"]["forebay"]["store"]["memory"] = {"longest": "5m"}

    with (
        gateways.open(upstream=upstream, edit=_keep_in(server.url, PATIENT)) as other,
        gateways.open(upstream=upstream, edit=both) as gateway,
    ):
        stored = await _until_hit(Caller(http, other.url), asked, SERVICE)
        call = Caller(http, gateway.url)
        copied = await call(asked, "faq", SERVICE)
        server.kill()
        hits = [await call(asked, "faq", SERVICE) for _ in range(20)]
        unknown = ask_for(CHAT, question + " And why?")
        miss = await call(unknown, "faq", SERVICE)
        learnt = await _until_hit(call, unknown, SERVICE)
        lost = 'forebay_store_dropped_writes_total{store="redis"}'
        # The answer is in memory, and a hit, before Redis is given up.
        await asyncio.to_thread(until, "a write lost", lambda: 0 < gateway.metrics()[lost])
        metrics = gateway.metrics()
    assert {text_of(CHAT, stored.body)} == {text_of(CHAT, hit.body) for hit in (copied, *hits)}
    assert {"HIT"} == {hit.cache for hit in (copied, *hits)}
    assert (200, "MISS") == (miss.status, miss.cache)
    assert text_of(CHAT, miss.body) == text_of(CHAT, learnt.body)
    assert 2 == metrics["forebay_store_entries"]
    assert 0 < metrics['forebay_store_seconds_count{op="get",store="redis"}']


async def _until_hit(
    call: Caller, asked: Ask, headers: dict[str, str] | None = None, profile: str = "faq"
) -> Reply:
    """Ask until it is a hit; there must be no error on the way.

    An answer may be in Redis a moment later than its exchange is in the log.
    """
    async with asyncio.timeout(60):
        while True:
            reply = await call(asked, profile, headers)
            assert 200 == reply.status
            if reply.cache == "HIT":
                return reply
