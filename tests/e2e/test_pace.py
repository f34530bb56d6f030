"""A paced stream reaches its client whole, piece by piece, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.config import Transport
from filters.dialects import DIALECTS
from filters.framing import SseFramer
from tests.calls import Caller
from tests.e2e.by_hand import PATIENCE_S, Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.e2e.test_editing import END, SSE, event, exchange, streamed
from tests.gateway import POOLS, Edit, Gateway
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CUT: Final = "faq"
WHOLE: Final = "chat"
SLOW: Final = "documents"  # so slow that what waits is there until the end
SLOW_WHOLE: Final = "medical"
HANDED_OVER: Final = "http.ingress.ext_proc.stream_msgs_sent"
WORDS: Final = [event(f" word{number}") for number in range(150)]


def with_pace(transport: Transport) -> Edit:
    """Have profiles pace and do nothing else."""

    def edit(tree: dict[str, Any]) -> None:
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["server"] |= {"transport": str(transport), "drain": "20s"}
        slow = {"rate": 0.5, "adapt": False, "every": "200ms", "tail": "60s", "chunks": "cut"}
        forebay["profiles"] |= {
            CUT: {"pace": {"chunks": "cut"}},
            WHOLE: {"pace": {}},
            SLOW: {"pace": slow},
            SLOW_WHOLE: {"pace": {**slow, "chunks": "whole"}},
        }

    return edit


def open_gateway(gateways: Gateways, listening: socket.socket, transport: Transport) -> Any:
    """Return a context in which a gateway paces what the upstream at a socket answers."""
    pools = {name: [listening.getsockname()[1]] for name in POOLS}
    return gateways.open(pools=pools, edit=with_pace(transport))


@pytest.fixture(scope="module", params=list(Transport), ids=str)
def gateway(
    request: pytest.FixtureRequest, gateways: Gateways, listening: socket.socket
) -> Iterator[Gateway]:
    """Run a gateway over each transport; at the end nothing is left, and nothing went wrong."""
    with open_gateway(gateways, listening, request.param) as gateway:
        yield gateway
        gateway.settle()
        metrics = gateway.metrics()
        bad = ("forebay_stream_failures", "forebay_protocol_errors", "forebay_log_lines_lost")
        counted = metrics.items()
        assert {} == {name: value for name, value in counted if value and name.startswith(bad)}
        assert 0 == metrics["forebay_pace_streams"]
        assert 0 == gateway.envoy_counter("cluster.forebay.upstream_rq_active")
        assert [None, None] == gateway.ended()


@pytest.fixture
def call(http: aiohttp.ClientSession, gateway: Gateway) -> Caller:
    return Caller(http, gateway.url)


async def speak(gateway: Gateway, upstream: Asked, pieces: Iterable[bytes]) -> None:
    """Send pieces so that Envoy hands over each by itself."""
    for piece in pieces:
        before = gateway.envoy_counter(HANDED_OVER)
        await upstream.chunk(piece)
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(gateway.envoy_counter, HANDED_OVER) == before:
                pass  # and Envoy goes on


async def one_waits(gateway: Gateway) -> None:
    """Wait until something of a stream waits."""

    def there() -> bool:
        return 1 == gateway.metrics()["forebay_pace_streams"]

    await asyncio.to_thread(until, "a stream of which something waits", there)


@pytest.mark.parametrize("profile", [CUT, WHOLE, SLOW_WHOLE])
async def test_what_had_to_wait_arrives_byte_for_byte(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> None:
    """Whichever way Envoy has it wait."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, profile) as (client, upstream):
            await upstream.head(SSE)
            await speak(gateway, upstream, WORDS[:20])
            await upstream.chunk(END)
            await upstream.end()
            await client.begin()
            got = b""
            while piece := await client.chunk():
                got += piece
    assert b"".join(WORDS[:20]) + END == got
    assert "complete" == seen.lines[0]["outcome"]
    assert "pace.rate" in seen.notes
    if profile == SLOW_WHOLE:  # the others may have been spoken to no faster than they go
        assert seen.notes["pace.held_ms"] > 0


async def test_a_burst_in_many_chunks_waits(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """And arrives byte for byte."""
    with gateway.watch() as seen:
        reply = await streamed(call, by_hand, CUT, *WORDS, END)
    assert seen.notes["pace.held_ms"] > 0
    assert (200, False) == (reply.status, reply.cut)
    assert b"".join(WORDS) + END == reply.body


async def test_an_event_of_many_tokens_becomes_several(call: Caller, by_hand: ByHand) -> None:
    """Whose texts join to its own, with the same id; what else it says stands where it stood."""
    text = "".join(f" Das ist 水 und 👩‍👩‍👧 {number}." for number in range(60))
    reply = await streamed(call, by_hand, CUT, event(text), END)
    framer = SseFramer()
    events = [*framer.feed(reply.body), *framer.close()]
    deltas = [DIALECTS["openai.chat"].read_event(one) for one in events]
    assert text == "".join(delta.text for delta in deltas)
    assert len(deltas) > 20
    assert reply.body.endswith(END)


@pytest.mark.parametrize("profile", [CUT, WHOLE])
async def test_the_first_event_does_not_wait_for_the_second(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> None:
    """Nor does one that comes when nothing waits."""
    async with exchange(gateway, by_hand, profile) as (client, upstream):
        await upstream.head(SSE)
        await upstream.chunk(event("first"))
        await client.begin()
        assert event("first") == await client.chunk()
        await upstream.chunk(event("second"))
        assert event("second") == await client.chunk()
        await upstream.chunk(END)
        assert END == await client.chunk()
        await upstream.end()
        assert b"" == await client.chunk()


@pytest.mark.parametrize("profile", [SLOW, SLOW_WHOLE])
async def test_a_client_that_leaves_frees_what_waits_for_it(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> None:
    """At once: the slow rate would have it wait for minutes."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, profile) as (client, upstream):
            await upstream.head(SSE)
            for word in WORDS:
                await upstream.chunk(word)
            await client.begin()
            await client.chunk()
            await one_waits(gateway)
            client.leave()
            await upstream.left()
    assert "gone" == seen.lines[0]["outcome"]
    metrics = gateway.metrics()
    assert (0, 0) == (metrics["forebay_pace_streams"], metrics["forebay_in_flight"])


@pytest.mark.parametrize("profile", [SLOW, SLOW_WHOLE])
async def test_an_upstream_that_dies_ends_the_stream_and_frees_what_waits(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> None:
    """The client sees that it is not whole."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, profile) as (client, upstream):
            await upstream.head(SSE)
            for word in WORDS:
                await upstream.chunk(word)
            await client.begin()
            await client.chunk()
            await one_waits(gateway)
            upstream.die()
            assert not (await client.rest()).endswith(b"0\r\n\r\n")
    assert "gone" == seen.lines[0]["outcome"]
    assert 0 == gateway.metrics()["forebay_pace_streams"]


@pytest.fixture(params=list(Transport), ids=str)
def mortal(
    request: pytest.FixtureRequest, gateways: Gateways, listening: socket.socket
) -> Iterator[Gateway]:
    """Run a gateway whose server may be stopped."""
    with open_gateway(gateways, listening, request.param) as gateway:
        yield gateway


@pytest.mark.parametrize("profile", [SLOW, SLOW_WHOLE])
async def test_what_waits_survives_the_end_of_forebay_where_chunks_stay_whole(
    mortal: Gateway, by_hand: ByHand, profile: str
) -> None:
    """Envoy has it, and lets it go as it came; what is cut it has given away, and cuts the reply.

    Nothing is lost there, and nothing said twice.
    """
    server = mortal.server
    assert server is not None
    async with exchange(mortal, by_hand, profile) as (client, upstream):
        await upstream.head(SSE)
        await speak(mortal, upstream, WORDS[:10])
        await client.begin()
        got = await client.chunk()
        await one_waits(mortal)
        server.signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
        if profile == SLOW:
            rest = await client.rest()
            assert b"".join(WORDS[:10]).startswith(got)
            assert not rest.endswith(b"0\r\n\r\n")
            return
        await upstream.chunk(END)
        await upstream.end()
        while piece := await client.chunk():
            got += piece
    assert b"".join(WORDS[:10]) + END == got
