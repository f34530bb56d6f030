"""Whatever becomes of Forebay or of the upstream, a client's request is not lost for it."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import aiohttp
import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from ext_proc.tools.simulator import Simulator
from tests.calls import Caller, ask_for, streamed_text, text_of
from tests.e2e.conftest import Gateways
from tests.exchanges import CHATS
from tests.gateway import POOLS, Edit, Gateway, Upstream, dead_port, free_port, waiting
from tests.held_upstream import HeldUpstream

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # google-genai subclasses aiohttp's session when aiohttp is there.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
CHAT: Final = "openai.chat"
QUESTION: Final = "Why is the basin calm?"
TIMEOUTS: Final = "http.ingress.ext_proc.message_timeouts"


# --- Forebay was never there ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    """Run Envoy without Forebay."""
    with gateways.open(upstream=upstream, server=False) as gateway:
        yield gateway


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_without_forebay_every_request_passes(
    alone: Gateway, http: aiohttp.ClientSession, dialect: str, stream: bool
) -> None:
    """As it came, to the full pool; nothing on the reply says that Forebay saw it."""
    asked = ask_for(dialect, "List  the <b>rivers</b>.", stream=stream)
    mark = alone.upstream.mark()
    reply = await Caller(http, alone.url)(asked, "faq")
    (received,) = alone.upstream.since(mark)
    text = streamed_text(dialect, asked, reply) if stream else text_of(dialect, reply.body)
    assert text.startswith("This is a simulated answer")
    assert ("full", asked.body) == (received.replica, received.body)
    told = {"x-cache", "x-model-quality", "x-forebay-profile", "cache-status", "server-timing"}
    assert set() == told & {name.lower() for name in reply.headers}


async def test_without_forebay_a_crowd_passes(alone: Gateway, http: aiohttp.ClientSession) -> None:
    """Two hundred at once, and the access log says how each went."""
    call, mark = Caller(http, alone.url), alone.access_log.mark()
    asked = ask_for(CHAT, QUESTION)
    replies = await asyncio.gather(*(call(asked) for _ in range(200)))
    assert {200} == {reply.status for reply in replies}
    lines = alone.access_log.wait_for(lambda line: "POST" in line, mark=mark, count=200)
    assert {"1"} == {json.loads(line)["failed_open"] for line in lines}


# --- Forebay is killed ---------------------------------------------------------------------------

STREAM_EVENTS: Final = 120


def _stream_of(number: int) -> tuple[bytes, str]:
    """Return a stream that nobody else gets, and the command that has the simulator send it."""
    events = [
        b'data: {"choices":[{"index":0,"delta":{"content":"%d/%d "}}]}\n\n' % (number, at)
        for at in range(STREAM_EVENTS)
    ]
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    events.append(end)
    return b"".join(events), ",".join(base64.b64encode(event).decode() for event in events)


async def test_no_request_is_lost_when_forebay_is_killed(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession, transport: Edit
) -> None:
    """SIGKILL amid three hundred, half of them streaming, and a hundred more while it is away.

    Streams that Forebay reads, streams it has let go, requests it holds, requests to come: each
    gets its whole reply. Started again it works as before.
    """
    with gateways.open(upstream=upstream, edit=transport) as gateway:
        call = Caller(http, gateway.url)
        server = gateway.server
        assert server is not None

        async def plain(number: int, profile: str) -> bool:
            asked = ask_for(CHAT, f"Why is basin {number} calm?")
            reply = await call(asked, profile, None, delay=f"{number % 10 / 20}")
            return reply.status == 200 and f"basin {number} calm" in text_of(CHAT, reply.body)

        async def stream(number: int, profile: str) -> bool:
            whole, sse = _stream_of(number)
            asked = ask_for(CHAT, f"Why is river {number} calm?", stream=True)
            reply = await call(asked, profile, None, sse=sse)
            return (reply.status, reply.cut, reply.body) == (200, False, whole)

        mark = upstream.mark()
        tasks = [
            asyncio.create_task(ask(number, ("", "faq")[number % 2]))
            for number in range(150)
            for ask in (plain, stream)
        ]
        await asyncio.to_thread(upstream.wait_for, 150, mark=mark)
        server.signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
        tasks += [
            asyncio.create_task(ask(number, ("", "faq")[number % 2]))
            for number in range(150, 200)
            for ask in (plain, stream)
        ]
        await asyncio.to_thread(gateway.start_server)
        results = await asyncio.gather(*tasks)
        assert [] == [number for number, whole in enumerate(results) if not whole]
        lines = gateway.access_log.wait_for(lambda line: "POST" in line, count=len(results))
        failed = [entry for line in lines if (entry := json.loads(line))["failed_open"] == "1"]
        # It was killed while it read replies, and while requests waited for it.
        assert {True, False} == {"x_cache" in entry for entry in failed}
        after = await call(ask_for(CHAT, QUESTION), "faq")
        assert (200, "MISS", "faq") == (
            after.status,
            after.cache,
            after.headers["x-forebay-profile"],
        )


# --- Forebay stops, or stands still --------------------------------------------------------------


async def test_a_server_that_is_told_to_stop_finishes_what_runs(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """Not ready at once; a stream and a plain reply under way end whole and are stored; exit 0.

    What comes meanwhile passes without it.
    """

    def patiently(tree: dict[str, Any]) -> None:
        transport(tree)
        tree["node"]["metadata"]["forebay"]["server"]["drain"] = "20s"

    with gateways.open(pools=held.pools, edit=patiently) as gateway:
        call, server = Caller(http, gateway.url), gateway.server
        assert server is not None
        streaming, plain = (ask_for(CHAT, QUESTION, stream=value, seed=value) for value in (1, 0))
        assert 200 == await _status(http, gateway, "/readyz")
        with gateway.watch(exchanges=2) as seen:
            tasks = [asyncio.create_task(call(asked, "faq")) for asked in (streaming, plain)]
            await held.arrived(2)
            server.signal(signal.SIGTERM)
            draining = '"event":"draining"'
            await asyncio.to_thread(gateway.server_log.wait_for, lambda line: draining in line)
            assert 503 == await _status(http, gateway, "/readyz")
            assert 200 == await _status(http, gateway, "/healthz")
            third = asyncio.create_task(call(ask_for(CHAT, QUESTION), "faq"))
            await held.arrived(3)
            held.release()
            streamed, whole, passed = await asyncio.gather(*tasks, third)
        assert 0 == await asyncio.to_thread(server.wait)
    assert held.text == streamed_text(CHAT, streaming, streamed) == text_of(CHAT, whole.body)
    assert {"complete"} == {line["outcome"] for line in seen.lines}
    assert all("cache.stored" in line["notes"] for line in seen.lines)
    assert (200, None) == (passed.status, passed.cache)


async def _status(http: aiohttp.ClientSession, gateway: Gateway, path: str) -> int:
    async with http.get(f"http://127.0.0.1:{gateway.admin_port}{path}") as reply:
        return reply.status


async def test_a_server_that_stands_still_costs_one_timeout(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream
) -> None:
    """After message_timeout requests pass, each after one; so does the rest of a stream it read.

    When it moves again it works as before, with nothing left in flight.
    """
    edit = partial(waiting, timeout="1s")
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call, server = Caller(http, gateway.url), gateway.server
        assert server is not None
        streaming = ask_for(CHAT, QUESTION, stream=True)
        with gateway.watch() as seen:
            stream = asyncio.create_task(call(streaming, "faq"))
            await held.arrived(1)
            server.signal(signal.SIGSTOP)
            try:
                held.release()
                streamed = await stream
                before = gateway.envoy_counter(TIMEOUTS)
                asked = ask_for(CHAT, QUESTION, seed=1)
                replies = await asyncio.gather(*(call(asked, "faq") for _ in range(20)))
                waits = gateway.envoy_counter(TIMEOUTS) - before
            finally:
                server.signal(signal.SIGCONT)
        assert {(200, held.text)} == {(r.status, text_of(CHAT, r.body)) for r in replies}
        assert 20 == waits
        assert held.text == streamed_text(CHAT, streaming, streamed)
        with gateway.watch():
            assert "MISS" == (await call(ask_for(CHAT, QUESTION, seed=2), "faq")).cache
        gateway.server_log.wait_for(lambda line: '"event":"exchange"' in line, count=2)
        assert 0 == gateway.metrics()["forebay_in_flight"]
    assert seen.lines


# --- The upstream is down ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dry(gateways: Gateways) -> Iterator[Gateway]:
    """Run a gateway whose pools refuse connections."""
    with dead_port() as nobody:
        port = nobody.getsockname()[1]
        with gateways.open(pools={name: [port] for name in POOLS}) as gateway:
            yield gateway


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("question", [QUESTION, "List the rivers."], ids=["full", "best-effort"])
@pytest.mark.parametrize("profile", ["", "faq", "raw"], ids=["default", "faq", "raw"])
async def test_an_upstream_that_is_down_is_a_503_at_once(
    dry: Gateway, http: aiohttp.ClientSession, profile: str, question: str, stream: bool
) -> None:
    """In each provider's shape, through whichever profile; nobody waits for a connection."""
    call = Caller(http, dry.url)
    for dialect in CHATS:
        reply = await call(ask_for(dialect, question, temperature=0, stream=stream), profile)
        assert 503 == reply.status
        assert "application/json" == reply.headers["content-type"]
        assert SHAPES[dialect] == reply.json
    counters = ("upstream_cx_connect_fail", "upstream_cx_connect_timeout")
    refused, late = (
        sum(dry.envoy_counter(f"cluster.{pool}.{name}") for pool in POOLS) for name in counters
    )
    assert refused >= len(CHATS)
    assert 0 == late


MESSAGE: Final = "no model server can take the request"
OPENAI_SHAPE: Final = {
    "error": {"message": MESSAGE, "type": "server_error", "param": None, "code": None}
}
SHAPES: Final[dict[str, Any]] = dict.fromkeys(CHATS, OPENAI_SHAPE) | {
    "gemini.generate": {"error": {"code": 503, "message": MESSAGE, "status": "UNAVAILABLE"}},
    "anthropic.messages": {
        "type": "error",
        "error": {"type": "overloaded_error", "message": MESSAGE},
    },
}


def test_the_official_clients_know_what_happened(dry: Gateway) -> None:
    """Each raises its own error for a server that is not available, with Envoy's words."""
    messages: Any = [{"role": "user", "content": QUESTION}]
    with (
        openai.OpenAI(base_url=f"{dry.url}/v1", api_key="k", max_retries=0) as gpt,
        pytest.raises(openai.InternalServerError, match=MESSAGE) as gpts,
    ):
        gpt.chat.completions.create(model="m", messages=messages)
    with (
        anthropic.Anthropic(base_url=dry.url, api_key="k", max_retries=0) as claude,
        pytest.raises(anthropic.InternalServerError, match=MESSAGE) as claudes,
    ):
        claude.messages.create(model="m", max_tokens=9, messages=messages)
    options = types.HttpOptions(base_url=dry.url)
    with (
        genai.Client(api_key="k", http_options=options) as gemini,
        pytest.raises(errors.ServerError, match=MESSAGE) as geminis,
    ):
        gemini.models.generate_content(model="m", contents=QUESTION)
    assert [503, 503] == [gpts.value.status_code, claudes.value.status_code]
    assert (503, "UNAVAILABLE") == (geminis.value.code, geminis.value.status)


async def test_envoys_own_error_is_not_kept(
    gateways: Gateways, http: aiohttp.ClientSession
) -> None:
    """When the upstream is back, the same question gets its answer from it."""
    asked = ask_for(CHAT, QUESTION)
    port = free_port()
    with gateways.open(pools={name: [port] for name in POOLS}) as gateway:
        call = Caller(http, gateway.url)
        with gateway.watch() as seen:
            down = await call(asked, "faq")
        async with Simulator(port=port):
            back = await call(asked, "faq")
    assert (503, 503) == (down.status, seen.lines[0]["status"])
    assert "cache.stored" not in seen.notes
    assert (200, "MISS") == (back.status, back.cache)
