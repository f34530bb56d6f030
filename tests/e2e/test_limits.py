"""A pool takes only so many, over all gateways, and every way out gives its place back.

The lesser pool is an upstream that answers when the test says so; the full one answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, Reply, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import Edit, Gateway, Upstream, dead_port
from tests.held_upstream import HeldUpstream
from tests.redis_server import RedisServer, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
PATIENT: Final = "2s"  # where a machine that is busy with other tests must not be the reason
MOST: Final = 32
IN_USE: Final = 'forebay_limit_in_use{pool="best_effort"}'
REFUSED: Final = 'forebay_limit_refused_total{pool="best_effort",reason="%s"}'
LEASES: Final = "forebay:leases:{best_effort}"
Asking = asyncio.Task[Reply]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def limited(
    limits: Mapping[str, Any] | None = None, redis: str = "", also: Edit | None = None
) -> Edit:
    """Return settings with other limits than the shipped ones."""

    def edit(tree: dict[str, Any]) -> None:
        if also is not None:
            also(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        if limits is not None:
            forebay["pools"]["best_effort"]["limits"] = dict(limits)
        if redis:
            forebay["store"] = {"redis": {"url": redis, "timeout": PATIENT}}

    return edit


def ports(upstream: Upstream, best_effort: int) -> dict[str, list[int]]:
    return {"full": upstream.ports["full"], "best_effort": [best_effort]}


def ask(
    callers: Sequence[Caller], count: int, first: int = 0, stream: bool | None = None
) -> list[Asking]:
    """Ask for low-risk work, at each gateway in turn, every other one a stream."""

    async def one(number: int) -> Reply:
        streams = number % 2 == 1 if stream is None else stream
        asked = ask_for(CHAT, f"List the rivers of Peru, part {number}.", stream=streams)
        return await callers[number // 2 % len(callers)](asked)

    return [asyncio.ensure_future(one(number)) for number in range(first, first + count)]


async def served(asking: Sequence[Asking], count: int) -> list[Reply]:
    """Return the replies as soon as so many came; the others are not answered yet."""
    replies: list[Reply] = []
    waiting = set(asking)
    async with asyncio.timeout(60):
        while len(replies) < count:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            replies += [task.result() for task in done]
    assert count == len(replies)
    return replies


def told(replies: Sequence[Reply]) -> Counter[tuple[int, str | None]]:
    return Counter((reply.status, reply.quality) for reply in replies)


async def until_free(*gateways: Gateway) -> None:
    """Wait until nobody is in the pool any more."""

    def is_free() -> bool:
        return {0.0} == {gateway.metrics()[IN_USE] for gateway in gateways}

    await asyncio.to_thread(until, "an empty pool", is_free)


async def until_held(server: RedisServer, count: int) -> None:
    """Wait until Redis knows of so many places that are taken."""
    await asyncio.to_thread(until, "leases", lambda: count == server.ask("ZCARD", LEASES))


async def test_of_a_hundred_at_once_32_are_in_the_lesser_pool_and_the_full_one_has_the_others(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    http: aiohttp.ClientSession,
    transport: Edit,
) -> None:
    """On the shipped file. No error, none waits for a place, and each says what it got."""
    with gateways.open(
        upstream=upstream, pools=ports(upstream, held.port), edit=transport
    ) as gateway:
        asking = ask([Caller(http, gateway.url)], 100)
        others = await served(asking, 100 - MOST)
        await held.arrived(MOST)
        assert {(200, "FULL"): 100 - MOST} == told(others)
        metrics = gateway.metrics()
        assert (MOST, 100 - MOST) == (metrics[IN_USE], metrics[REFUSED % "concurrent"])
        held.release()
        assert {(200, "BEST_EFFORT"): MOST, (200, "FULL"): 100 - MOST} == told(
            await asyncio.gather(*asking)
        )
        assert MOST == held.requests
        await until_free(gateway)


async def test_two_gateways_let_in_as_many_as_one(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
) -> None:
    """They share a Redis, which in the end knows of nobody."""
    edit = limited({"concurrent": MOST}, redis_server.url)
    pools = ports(upstream, held.port)
    with (
        gateways.open(upstream=upstream, pools=pools, edit=edit) as one,
        gateways.open(upstream=upstream, pools=pools, edit=edit) as two,
    ):
        asking = ask([Caller(http, one.url), Caller(http, two.url)], 100)
        assert {(200, "FULL"): 100 - MOST} == told(await served(asking, 100 - MOST))
        await held.arrived(MOST)
        assert MOST == redis_server.ask("ZCARD", LEASES)
        assert MOST == sum(gateway.metrics()[IN_USE] for gateway in (one, two))
        held.release()
        assert {(200, "BEST_EFFORT"): MOST, (200, "FULL"): 100 - MOST} == told(
            await asyncio.gather(*asking)
        )
        assert MOST == held.requests
        await until_free(one, two)
        await until_held(redis_server, 0)


async def test_a_client_that_leaves_gives_its_place_back(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
    transport: Edit,
) -> None:
    """In the middle of a stream, and before anything came."""
    edit = limited({"concurrent": 4}, redis_server.url, transport)
    pools = ports(upstream, held.port)
    with gateways.open(upstream=upstream, pools=pools, edit=edit) as gateway:
        callers = [Caller(http, gateway.url)]
        asking = ask(callers, 4)
        await held.arrived(4)
        assert {(200, "FULL"): 3} == told(await asyncio.gather(*ask(callers, 3, first=10)))
        for task in asking:
            task.cancel()
        await held.left(2)  # who streams hears of it only when it writes
        await until_free(gateway)
        await until_held(redis_server, 0)
        held.release()
        again = await asyncio.gather(*ask(callers, 4, first=20))
        assert {(200, "BEST_EFFORT"): 4} == told(again)


async def test_an_envoy_that_is_killed_gives_its_places_back(
    gateways: Gateways, upstream: Upstream, held: HeldUpstream, http: aiohttp.ClientSession
) -> None:
    """All streams to Forebay end with it."""
    edit = limited({"concurrent": 4})
    with gateways.open(upstream=upstream, pools=ports(upstream, held.port), edit=edit) as gateway:
        asking = ask([Caller(http, gateway.url)], 4)
        await held.arrived(4)
        assert 4 == gateway.metrics()[IN_USE]
        assert gateway.envoy is not None
        gateway.envoy.kill()
        await until_free(gateway)
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize(
    "commands",
    [
        {"close": "0"},
        {"close": "1 chunk"},
        {"status": "500"},
        {"status": "429"},
        {"sse": "data: broken"},
        {"no_done": "1"},
    ],
    ids=["reset before", "reset in the middle", "error", "refusal", "nonsense", "no end"],
)
async def test_an_upstream_that_fails_gives_the_place_back(
    limited_gateway: Gateway, http: aiohttp.ClientSession, commands: Mapping[str, str]
) -> None:
    """With a pool for one, each of three requests finds it free."""
    call = Caller(http, limited_gateway.url)
    for number in range(3):
        asked = ask_for(CHAT, f"List the rivers of {commands}, part {number}.", stream=True)
        reply = await call(asked, "", None, **commands)
        assert "BEST_EFFORT" == reply.quality
        await until_free(limited_gateway)


@pytest.fixture(scope="module")
def limited_gateway(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    """Run a gateway whose lesser pool takes one at a time."""
    with gateways.open(upstream=upstream, edit=limited({"concurrent": 1})) as gateway:
        yield gateway


async def test_a_pool_that_nobody_listens_at_gives_the_place_back(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession
) -> None:
    """Envoy answers with an error of its own."""
    with dead_port() as dead:
        pools = ports(upstream, dead.getsockname()[1])
        edit = limited({"concurrent": 1})
        with gateways.open(upstream=upstream, pools=pools, edit=edit) as gateway:
            for number in range(3):
                (reply,) = await asyncio.gather(*ask([Caller(http, gateway.url)], 1, number))
                assert (503, "BEST_EFFORT") == (reply.status, reply.quality)
                await until_free(gateway)


async def test_more_than_come_in_a_second_are_served_by_the_full_pool(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession
) -> None:
    """However few are there at once; one token comes in a hundred seconds."""
    edit = limited({"rate": 0.01, "burst": 5})
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        replies = []
        for number in range(12):
            replies += await asyncio.gather(*ask([Caller(http, gateway.url)], 1, number))
        assert {(200, "BEST_EFFORT"): 5, (200, "FULL"): 7} == told(replies)
        assert 7 == gateway.metrics()[REFUSED % "rate"]


async def test_a_gateway_that_is_killed_frees_its_places_in_the_end(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
) -> None:
    """When its leases end; those of the other go on as long as their exchanges do."""
    edit = limited({"concurrent": 6}, redis_server.url)
    pools = ports(upstream, held.port)
    with (
        gateways.open(upstream=upstream, pools=pools, edit=edit) as one,
        gateways.open(upstream=upstream, pools=pools, edit=edit) as two,
    ):
        lost = ask([Caller(http, one.url)], 4)
        kept = ask([Caller(http, two.url)], 2, first=10)
        await held.arrived(6)
        assert {(200, "FULL"): 2} == told(
            await asyncio.gather(*ask([Caller(http, two.url)], 2, first=20))
        )
        assert one.server is not None
        one.server.kill()
        await until_held(redis_server, 2)
        more = ask([Caller(http, two.url)], 4, first=30)
        await held.arrived(10)
        held.release()
        assert {(200, "BEST_EFFORT"): 6} == told(await asyncio.gather(*kept, *more))
        for task in lost:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await until_free(two)
        await until_held(redis_server, 0)


async def test_a_gateway_that_ends_gives_its_places_back(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
) -> None:
    """At once, exchanges that outlive the drain included."""

    def impatient(tree: dict[str, Any]) -> None:
        tree["node"]["metadata"]["forebay"]["server"]["drain"] = "10ms"

    edit = limited({"concurrent": 4}, redis_server.url, impatient)
    with gateways.open(upstream=upstream, pools=ports(upstream, held.port), edit=edit) as gateway:
        asking = ask([Caller(http, gateway.url)], 4)
        await held.arrived(4)
        server = gateway.server
        assert server is not None
        server.process.terminate()
        assert 0 == await asyncio.to_thread(server.wait)
        assert [] == redis_server.ask("KEYS", "forebay:leases:*")
        assert [] == redis_server.ask("KEYS", "forebay:gateways:*")
        held.release()
        await asyncio.gather(*asking)


async def test_without_redis_a_gateway_goes_on_by_itself(
    gateways: Gateways,
    upstream: Upstream,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
) -> None:
    """No error; who was in counts, and Redis hears of all of them when it is back."""
    edit = limited({"concurrent": 8}, redis_server.url)
    with gateways.open(upstream=upstream, pools=ports(upstream, held.port), edit=edit) as gateway:
        callers = [Caller(http, gateway.url)]
        asking = ask(callers, 4)
        await held.arrived(4)
        redis_server.kill()
        asking += ask(callers, 20, first=10)
        assert {(200, "FULL"): 16} == told(await served(asking, 16))
        await held.arrived(8)
        assert 8 == gateway.metrics()[IN_USE]
        redis_server.start()
        await until_held(redis_server, 8)
        held.release()
        assert {(200, "BEST_EFFORT"): 8, (200, "FULL"): 16} == told(await asyncio.gather(*asking))
        await until_free(gateway)
        await until_held(redis_server, 0)
