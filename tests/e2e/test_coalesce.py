"""Identical questions at one time: one call of the model, however many clients and servers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import redis.asyncio as redis

from tests.calls import Ask, Caller, Reply, ask_for, streamed_text, text_of
from tests.e2e.conftest import Gateways
from tests.gateway import Edit, Gateway
from tests.held_upstream import HeldUpstream
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
SERVICE: Final = {"host": "models.example"}  # the name under which clients know all gateways
PATIENT: Final = "2s"  # where a machine that is busy with other tests must not be the reason
LONG: Final = "60s"
PROFILE: Final = "faq"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def settings(wait: str = LONG, redis: str = "", transport: str = "", rare: str = "") -> Edit:
    """Return settings in which the profile `rare` has those wait too whose answers are not kept."""

    def edit(tree: dict[str, Any]) -> None:
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["profiles"][PROFILE]["cache"]["coalesce"] = {"wait": wait}
        if rare:
            forebay["profiles"][rare]["cache"]["coalesce"] = {"wait": wait, "rare": True}
        if redis:
            forebay["store"] = {"redis": {"url": redis, "timeout": PATIENT}}
        if transport:
            forebay["server"]["transport"] = transport

    return edit


class Crowd:
    """Clients that all ask one question, plain and streaming, of one gateway or several."""

    def __init__(self, http: aiohttp.ClientSession, question: str, *gateways: Gateway) -> None:
        self._gateways: Final = gateways
        self._callers: Final = [Caller(http, gateway.url, "a key") for gateway in gateways]
        self.asks: Final = [
            ask_for(CHAT, question, stream=stream, temperature=0) for stream in (False, True)
        ]
        self._came: list[asyncio.Task[tuple[Ask, Reply]]] = []

    def ask(
        self,
        count: int,
        *,
        at: int | None = None,
        stream: bool | None = None,
        profile: str = PROFILE,
        headers: Mapping[str, str] = SERVICE,
    ) -> list[asyncio.Task[tuple[Ask, Reply]]]:
        """Have so many ask, at each gateway in turn or `at` one, every other one a stream."""

        async def one(number: int) -> tuple[Ask, Reply]:
            turn = number // 2 % len(self._callers) if at is None else at
            asked = self.asks[number % 2 if stream is None else stream]
            return asked, await self._callers[turn](asked, profile, headers)

        tasks = [asyncio.ensure_future(one(number)) for number in range(count)]
        self._came += tasks
        return tasks

    async def waiting(self, count: int) -> None:
        """Wait until so many wait for an answer that others went for."""
        async with asyncio.timeout(60):
            while await asyncio.to_thread(self._waiting) != count:
                pass

    def _waiting(self) -> float:
        return sum(gateway.metrics()["forebay_flights_waiting"] for gateway in self._gateways)

    async def served(self, text: str) -> Counter[str | None]:
        """Wait until all have their answers, whole and in their form; count what `X-Cache` said."""
        said: Counter[str | None] = Counter()
        for asked, reply in await asyncio.gather(*self._came):
            assert (200, False) == (reply.status, reply.cut)
            if b'"stream":true' in asked.body:
                assert text == streamed_text(CHAT, asked, reply)
            else:
                assert text == text_of(CHAT, reply.body)
            if reply.cache == "HIT":
                assert "forebay; fwd=miss; collapsed" == reply.headers["cache-status"]
                assert reply.headers["age"].isdigit()
            said[reply.cache] += 1
        return said


async def marked(server: RedisServer) -> None:
    """Wait until one gateway has told the other that it waits for its answer."""
    async with asyncio.timeout(60), redis.Redis.from_url(server.url) as client:
        while not [key async for key in client.scan_iter("forebay:waits:*")]:
            pass


async def empty(*gateways: Gateway) -> None:
    """Wait until nothing is held for anybody any more."""
    names = ("forebay_flights", "forebay_flights_waiting", "forebay_in_flight")
    async with asyncio.timeout(60):
        for gateway in gateways:
            held = 1.0
            while held:
                metrics = await asyncio.to_thread(gateway.metrics)
                held = sum(metrics[name] for name in names)


@pytest.mark.parametrize("first", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("transport", ["grpc", "native"])
async def test_two_hundred_that_ask_the_same_at_one_time_are_one_call_of_the_model(
    gateways: Gateways,
    held: HeldUpstream,
    http: aiohttp.ClientSession,
    question: str,
    transport: str,
    first: bool,
) -> None:
    """Each has the whole answer in its own form, whatever the form of the one that was asked."""
    with gateways.open(pools=held.pools, edit=settings(transport=transport)) as gateway:
        crowd = Crowd(http, question, gateway)
        crowd.ask(1, stream=first)
        await held.arrived(1)
        crowd.ask(199)
        await crowd.waiting(199)
        held.release()
        said = await crowd.served(held.text)
        await empty(gateway)
        metrics = gateway.metrics()
    assert ({"MISS": 1, "HIT": 199}, 1) == (said, held.requests)
    assert 199 == metrics['forebay_coalesced_total{outcome="shared"}']


@pytest.mark.parametrize("transport", ["grpc", "native"])
async def test_they_are_one_call_over_two_servers_as_well(
    gateways: Gateways,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
    transport: str,
) -> None:
    """The servers know of each other by Redis alone."""
    edit = settings(redis=redis_server.url, transport=transport)
    with ExitStack() as stack:
        two = [stack.enter_context(gateways.open(pools=held.pools, edit=edit)) for _ in range(2)]
        crowd = Crowd(http, question, *two)
        crowd.ask(200)
        await held.arrived(1)
        await crowd.waiting(199)
        await marked(redis_server)
        held.release()
        said = await crowd.served(held.text)
        await empty(*two)
    assert ({"MISS": 1, "HIT": 199}, 1) == (said, held.requests)


async def test_an_answer_that_is_not_worth_keeping_is_shared_all_the_same(
    gateways: Gateways,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
) -> None:
    """It is handed over, here and to another server, and the next to ask is the model's again."""
    edit = settings(redis=redis_server.url, rare="default")
    with ExitStack() as stack:
        two = [stack.enter_context(gateways.open(pools=held.pools, edit=edit)) for _ in range(2)]
        crowd = Crowd(http, question, *two)
        crowd.ask(1, at=0, stream=False, profile="")
        await held.arrived(1)
        crowd.ask(3, at=1, profile="")  # with the first, one less than is kept
        await crowd.waiting(3)
        await marked(redis_server)
        held.release()
        said = await crowd.served(held.text)
        await empty(*two)
        again = Crowd(http, question, *two)
        again.ask(1, at=0, profile="")
        assert {"MISS": 1} == await again.served(held.text)
    assert ({"MISS": 1, "HIT": 3}, 2) == (said, held.requests)


async def test_when_the_client_that_was_first_leaves_the_next_one_asks(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """One more call of the model, and all others are served by it."""
    with gateways.open(pools=held.pools, edit=settings()) as gateway:
        crowd = Crowd(http, question, gateway)
        leaver = asyncio.ensure_future(
            Caller(http, gateway.url, "a key")(crowd.asks[0], PROFILE, SERVICE)
        )
        await held.arrived(1)
        crowd.ask(20)
        await crowd.waiting(20)
        leaver.cancel()
        await held.left(1)
        await held.arrived(2)
        held.release()
        said = await crowd.served(held.text)
        await empty(gateway)
    assert ({"MISS": 1, "HIT": 19}, 2) == (said, held.requests)


async def test_clients_that_leave_while_they_wait_free_their_places(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """Nothing is held for them, and the others do not notice."""
    with gateways.open(pools=held.pools, edit=settings()) as gateway:
        crowd = Crowd(http, question, gateway)
        crowd.ask(1)
        await held.arrived(1)
        leaving = Crowd(http, question, gateway).ask(10)
        crowd.ask(10)
        await crowd.waiting(20)
        for one in leaving:
            one.cancel()
        await crowd.waiting(10)
        held.release()
        said = await crowd.served(held.text)
        await empty(gateway)
        metrics = gateway.metrics()
    assert ({"MISS": 1, "HIT": 10}, 1) == (said, held.requests)
    assert 10 == metrics['forebay_coalesced_total{outcome="over"}']


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_when_the_model_refuses_the_first_the_next_one_asks(
    gateways: Gateways,
    held: HeldUpstream,
    http: aiohttp.ClientSession,
    question: str,
    status: int,
) -> None:
    """An error is for the one that got it."""
    with gateways.open(pools=held.pools, edit=settings()) as gateway:
        crowd = Crowd(http, question, gateway)
        (first,) = Crowd(http, question, gateway).ask(
            1, stream=False, headers=SERVICE | {"x-held-status": str(status)}
        )
        await held.arrived(1)
        crowd.ask(20)
        await crowd.waiting(20)
        held.release()
        _, refused = await first
        said = await crowd.served(held.text)
        await empty(gateway)
    assert (status, "MISS") == (refused.status, refused.cache)
    assert ({"MISS": 1, "HIT": 19}, 2) == (said, held.requests)


async def test_nobody_waits_longer_than_the_profile_says(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """Each goes its own way then, while the first still waits for the model."""
    with gateways.open(pools=held.pools, edit=settings(wait="50ms")) as gateway:
        crowd = Crowd(http, question, gateway)
        crowd.ask(1)
        await held.arrived(1)
        crowd.ask(5)
        await held.arrived(6)
        held.release()
        said = await crowd.served(held.text)
        await empty(gateway)
        metrics = gateway.metrics()
    assert {"MISS": 6} == said
    assert 5 == metrics['forebay_coalesced_total{outcome="late"}']


async def test_a_profile_may_have_nobody_wait(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """Then identical questions are as many calls."""
    with gateways.open(pools=held.pools, edit=settings(wait="0s")) as gateway:
        crowd = Crowd(http, question, gateway)
        crowd.ask(5)
        await held.arrived(5)
        held.release()
        assert {"MISS": 5} == await crowd.served(held.text)


async def test_a_server_that_is_killed_holds_up_the_others_for_a_moment_only(
    gateways: Gateways,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
) -> None:
    """Its lock ends by itself, one of another server asks, and the others have that answer."""
    edit = settings(redis=redis_server.url)
    with ExitStack() as stack:
        two = [stack.enter_context(gateways.open(pools=held.pools, edit=edit)) for _ in range(2)]
        first = Crowd(http, question, two[0])
        first.ask(1, stream=False)
        await held.arrived(1)
        crowd = Crowd(http, question, two[1])
        crowd.ask(20)
        await crowd.waiting(20)
        assert two[0].server is not None
        two[0].server.kill()
        await held.arrived(2)
        held.release()
        said = await crowd.served(held.text)
        await first.served(held.text)  # Envoy goes on without its Forebay
        await empty(two[1])
    assert ({"MISS": 1, "HIT": 19}, 2) == (said, held.requests)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_without_redis_each_server_shares_by_itself(
    gateways: Gateways,
    held: HeldUpstream,
    redis_server: RedisServer,
    http: aiohttp.ClientSession,
    question: str,
    when: str,
) -> None:
    """No error, and one call of the model by each."""
    edit = settings(redis=redis_server.url)
    with ExitStack() as stack:
        two = [stack.enter_context(gateways.open(pools=held.pools, edit=edit)) for _ in range(2)]
        if when == "before":
            redis_server.kill()
        crowd = Crowd(http, question, *two)
        crowd.ask(40)
        if when == "meanwhile":
            await crowd.waiting(39)
            redis_server.kill()
        await held.arrived(2)
        await crowd.waiting(38)
        held.release()
        said = await crowd.served(held.text)
        await empty(*two)
    assert (38, 2) == (said["HIT"], held.requests)


async def test_other_questions_and_other_tenants_share_nothing(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """What makes an answer another one's in the cache does so here."""
    with gateways.open(pools=held.pools, edit=settings()) as gateway:
        asked = ask_for(CHAT, question, temperature=0)
        call = Caller(http, gateway.url, "a key")
        others = [
            call(asked, PROFILE),
            call(ask_for(CHAT, f"{question} And why?", temperature=0), PROFILE),
            call.with_key("another key")(asked, PROFILE),
            call(asked, PROFILE, {"cache-control": "no-cache"}),
            call(asked, PROFILE, {"cache-control": "no-store"}),
        ]
        tasks = [asyncio.ensure_future(one) for one in others]
        await held.arrived(5)
        held.release()
        replies = await asyncio.gather(*tasks)
    assert ["MISS"] * 4 + ["BYPASS"] == [reply.cache for reply in replies]


async def test_a_server_that_ends_lets_those_who_wait_have_their_answer(
    gateways: Gateways, held: HeldUpstream, http: aiohttp.ClientSession, question: str
) -> None:
    """It drains: whoever came is served, though its proxy may have to ask without it in the end."""
    with gateways.open(pools=held.pools, edit=settings()) as gateway:
        crowd = Crowd(http, question, gateway)
        crowd.ask(10)
        await held.arrived(1)
        await crowd.waiting(9)
        assert gateway.server is not None
        mark = gateway.server_log.mark()
        gateway.server.process.terminate()
        gateway.server_log.wait_for(lambda line: '"event":"draining"' in line, mark=mark)
        held.release()
        assert 10 == (await crowd.served(held.text)).total()
        assert 0 == gateway.server.wait()
