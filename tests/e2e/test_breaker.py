"""A pool that fails is left alone, another one serves, and probes find out when it is well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, TypeAlias

import aiohttp
import pytest

from tests.calls import Caller, Reply, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.test_timeouts import impatient
from tests.failing_upstream import FailingUpstream, Failure, Fate, ports_of
from tests.gateway import Edit, Gateway, dead_port
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT: Final = "openai.chat"
LOW_RISK: Final = "List the parts of a boat."
STATE: Final = 'forebay_breaker_state{pool="best_effort"}'
OPENED: Final = 'forebay_breaker_opened_total{pool="best_effort"}'
CLOSED, OPEN = 0, 2


def edit(rest: str) -> Edit:
    """Give the lesser pool a breaker that rests so long."""

    def edited(tree: dict[str, Any]) -> None:
        block = tree["node"]["metadata"]["forebay"]
        block["pools"]["best_effort"] = {
            "cluster": "best_effort",
            "quality": "BEST_EFFORT",
            "fallback": "full",
            "breaker": {"rest": rest},
        }
        block["profiles"]["chat"] = {"route": {}}
        block["profiles"]["documents"] = {"pace": {}, "route": {}}

    return edited


@pytest.fixture
async def lesser() -> AsyncIterator[FailingUpstream]:
    async with FailingUpstream() as lesser:
        yield lesser


@pytest.fixture
async def full() -> AsyncIterator[FailingUpstream]:
    async with FailingUpstream() as full:
        yield full


Opened: TypeAlias = Callable[[str], Gateway]


@pytest.fixture
def opened(gateways: Gateways, lesser: FailingUpstream, full: FailingUpstream) -> Iterator[Opened]:
    """Run a gateway before the two whose breaker rests as long as is said."""
    with ExitStack() as stack:
        yield lambda rest: stack.enter_context(
            gateways.open(pools=ports_of(full=full, best_effort=lesser), edit=edit(rest))
        )


async def ask(gateway: Gateway, http: aiohttp.ClientSession, times: int = 1) -> list[Reply]:
    """Ask one after the other what the lesser pool may answer; return once Forebay knows."""
    call = Caller(http, gateway.url)
    replies = [await call(ask_for(CHAT, LOW_RISK), "chat") for _ in range(times)]
    gateway.settle()
    return replies


def said(gateway: Gateway, event: str) -> list[dict[str, Any]]:
    """Return the log's lines of an event; libraries may write others."""
    named = f'"event":"{event}"'
    return [json.loads(line) for line in gateway.server_log.since() if named in line]


async def test_a_pool_that_fails_opens_it_and_no_client_notices_any_more(
    opened: Opened,
    lesser: FailingUpstream,
    full: FailingUpstream,
    http: aiohttp.ClientSession,
) -> None:
    """Twenty errors; what comes then is the fallback's, and the client is told so."""
    gateway = opened("1h")
    lesser.always = 500
    assert [500] * 20 == [reply.status for reply in await ask(gateway, http, 20)]
    with gateway.watch(30) as seen:
        after = await ask(gateway, http, 30)
    assert [(200, "FULL")] * 30 == [(reply.status, reply.quality) for reply in after]
    assert (20, 30) == (lesser.requests, full.requests)
    assert {"best_effort is broken"} == {line["notes"]["route.why"] for line in seen.lines}
    metrics = gateway.metrics()
    assert (OPEN, 1) == (metrics[STATE], metrics[OPENED])
    (line,) = said(gateway, "breaker opened")
    assert ("best_effort", 20, 20) == (line["pool"], line["answers"], line["errors"])


@pytest.mark.parametrize("fate", [503, Failure.RESET])
async def test_connections_that_break_count(
    opened: Opened, lesser: FailingUpstream, http: aiohttp.ClientSession, fate: Fate
) -> None:
    """They are a 503 of Envoy's, as a server may say it."""
    gateway = opened("1h")
    lesser.always = fate
    assert [503] * 20 == [reply.status for reply in await ask(gateway, http, 20)]
    assert OPEN == gateway.metrics()[STATE]
    assert [200] == [reply.status for reply in await ask(gateway, http)]


async def test_answers_that_do_not_come_in_time_count(
    gateways: Gateways,
    lesser: FailingUpstream,
    full: FailingUpstream,
    http: aiohttp.ClientSession,
) -> None:
    """They are a 504 of Envoy's."""

    def edited(tree: dict[str, Any]) -> None:
        edit("1h")(tree)
        impatient(tree)

    lesser.always = Failure.SILENT
    with gateways.open(pools=ports_of(full=full, best_effort=lesser), edit=edited) as gateway:
        call, asked = Caller(http, gateway.url), ask_for(CHAT, LOW_RISK)
        replies = await asyncio.gather(*(call(asked, "chat") for _ in range(20)))
        assert {504} == {reply.status for reply in replies}
        gateway.settle()
        assert OPEN == gateway.metrics()[STATE]


async def test_a_pool_that_takes_no_connection_opens_it(
    gateways: Gateways, full: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """Envoy's 503 is seen, though no upstream said it."""
    with dead_port() as dead:
        pools = {"best_effort": [dead.getsockname()[1]], **ports_of(full=full)}
        with gateways.open(pools=pools, edit=edit("1h")) as gateway:
            assert [503] * 20 == [reply.status for reply in await ask(gateway, http, 20)]
            assert [200] * 5 == [reply.status for reply in await ask(gateway, http, 5)]


async def test_streams_that_come_to_nothing_count(
    opened: Opened, lesser: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """Though they began with a 200, where a filter reads them; none that its client left does."""
    gateway = opened("1h")
    call, asked = Caller(http, gateway.url), ask_for(CHAT, LOW_RISK, stream=True)
    lesser.always = Failure.SILENT_STREAM
    with gateway.watch(30) as seen:
        for number in range(30):
            asking = asyncio.create_task(call(asked, "documents"))
            await asyncio.to_thread(until, "a stream", lambda: lesser.requests > number)  # noqa: B023 - awaited here
            asking.cancel()
            await asyncio.wait([asking])
    assert {"gone"} == {line["outcome"] for line in seen.lines}
    lesser.always = Failure.UNFINISHED
    before = lesser.requests
    while gateway.metrics()[STATE] != OPEN:
        assert 200 == (await call(asked, "documents")).status
        gateway.settle()
        assert lesser.requests - before <= 20
    assert 1 < lesser.requests - before
    assert [(200, "FULL")] == [(one.status, one.quality) for one in await ask(gateway, http)]


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_errors_that_speak_of_the_client_do_not_count(
    opened: Opened, lesser: FailingUpstream, http: aiohttp.ClientSession, status: int
) -> None:
    """Nor does one who asks too much say that the pool is ill."""
    gateway = opened("1h")
    lesser.always = status
    assert {status} == {reply.status for reply in await ask(gateway, http, 30)}
    assert (CLOSED, 0) == (gateway.metrics()[STATE], gateway.metrics()[OPENED])


async def test_it_closes_once_the_pool_is_well(
    opened: Opened, lesser: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """No client sees an error meanwhile, and the lesser pool serves again."""
    gateway = opened("50ms")
    lesser.next(*[500] * 20)
    await ask(gateway, http, 20)
    replies: list[Reply] = []
    while gateway.metrics()[STATE] != CLOSED:
        replies += await ask(gateway, http)
    assert {200} == {reply.status for reply in replies}
    assert 1 == len(said(gateway, "breaker closed"))
    assert ["BEST_EFFORT"] == [reply.quality for reply in await ask(gateway, http)]


async def test_a_pool_that_stays_ill_costs_one_error_in_each_rest(
    opened: Opened, lesser: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """That of the probe; it does not count as another opening."""
    gateway = opened("50ms")
    lesser.always = 500
    await ask(gateway, http, 20)
    replies: list[Reply] = []
    while lesser.requests < 23:
        replies += await ask(gateway, http)
    assert 3 == [reply.status for reply in replies].count(500)
    assert [1, 0] == [len(said(gateway, f"breaker {what}")) for what in ("opened", "closed")]


async def test_a_pool_without_a_fallback_is_not_watched(
    gateways: Gateways, lesser: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """It has no breaker, and its replies pass unseen."""

    def alone(tree: dict[str, Any]) -> None:
        edit("1h")(tree)
        pool = tree["node"]["metadata"]["forebay"]["pools"]["best_effort"]
        del pool["fallback"], pool["breaker"]

    lesser.always = 500
    pools = ports_of(full=lesser, best_effort=lesser)
    with gateways.open(pools=pools, edit=alone) as gateway:
        with gateway.watch(30) as seen:
            await ask(gateway, http, 30)
        assert {None} == {line.get("status") for line in seen.lines}
        assert STATE not in gateway.metrics()
