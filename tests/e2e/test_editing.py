"""A filter that edits replies has its way with them, and never with more than it was given.

No filter that is shipped does so: `editing_server` is the real server with one more. Envoy gives
the reply's body away and sends what it gets back (FULL_DUPLEX_STREAMED).
"""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.config import Transport
from ext_proc.session import MOST_REPLY_BYTES
from tests.calls import Caller, Reply, ask_for
from tests.e2e.by_hand import PATIENCE_S, Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.e2e.editing_server import INSTEAD, WORD
from tests.exchanges import answer
from tests.gateway import POOLS, Edit, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
SMALL_BYTES: Final = 65_536  # the kernel would take megabytes for a reader who stands still
FAQ: Final = "faq"  # the profile that edits and does nothing else
SSE: Final = "text/event-stream"
JSON: Final = "application/json"
SERVER: Final = (str(Path(__file__).with_name("editing_server.py")),)
ASKED = ask_for(CHAT, "Why is the basin calm?", stream=True)
END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


def event(text: str) -> bytes:
    """Return an event of a chat completion's stream, ASCII or not."""
    piece = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: %b\n\n" % json.dumps(piece, ensure_ascii=False).encode()


def edited(data: bytes) -> bytes:
    """Return what the filter makes of bytes that it sees in one."""
    return data.replace(WORD, INSTEAD)


def with_editing(transport: Transport) -> Edit:
    """Have profiles edit, and trailers pass, which Envoy drops from HTTP/1 otherwise."""

    def edit(tree: dict[str, Any]) -> None:
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["server"] |= {"transport": str(transport), "drain": "20s"}
        forebay["profiles"] |= {
            "faq": {"edit": {}},
            "chat": {"edit": {"hold": True}},
            "documents": {"edit": {"fails_at": 3}},
            "medical": {"cache": {"any_temperature": True, "admit_after": 1}, "edit": {}},
        }
        trailers = {"enable_trailers": True}
        listeners = tree["static_resources"]["listeners"]
        (ingress,) = (one for one in listeners if one["name"] == "ingress")
        manager = ingress["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = trailers
        for cluster in tree["static_resources"]["clusters"]:
            if cluster["name"] in POOLS:
                (options,) = cluster["typed_extension_protocol_options"].values()
                options["explicit_http_config"] = {"http_protocol_options": trailers}

    return edit


def open_gateway(gateways: Gateways, listening: socket.socket, transport: Transport) -> Any:
    """Return a context in which a gateway edits what the upstream at a socket answers."""
    pools = {name: [listening.getsockname()[1]] for name in POOLS}
    return gateways.open(pools=pools, edit=with_editing(transport), program=SERVER)


@pytest.fixture(scope="module", params=list(Transport), ids=str)
def gateway(
    request: pytest.FixtureRequest, gateways: Gateways, listening: socket.socket
) -> Iterator[Gateway]:
    """Run the server that edits, over each transport; at the end nothing is left."""
    with open_gateway(gateways, listening, request.param) as gateway:
        yield gateway
        gateway.settle()
        bad = ("forebay_stream_failures", "forebay_protocol_errors", "forebay_log_lines_lost")
        counted = gateway.metrics().items()
        assert {} == {name: value for name, value in counted if value and name.startswith(bad)}
        assert 0 == gateway.envoy_counter("cluster.forebay.upstream_rq_active")
        assert [None, None] == gateway.ended()


@pytest.fixture
def call(http: aiohttp.ClientSession, gateway: Gateway) -> Caller:
    return Caller(http, gateway.url)


async def streamed(call: Caller, by_hand: ByHand, profile: str, *pieces: bytes) -> Reply:
    """Ask, have the upstream stream these pieces, and return what the client got."""
    reply = asyncio.create_task(call(ASKED, profile))
    asked = await by_hand.asked()
    await asked.head(SSE)
    for piece in pieces:
        await asked.chunk(piece)
    await asked.end()
    return await reply


class Reading:
    """A client that reads as it likes, with the upstream at the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self.head = b""

    async def begin(self) -> None:
        """Read the reply's head."""
        self.head = await self._until(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """Read what Envoy sent in one piece; empty at the end."""
        size = int(await self._until(b"\r\n"), 16)
        async with asyncio.timeout(PATIENCE_S):
            return (await self._reader.readexactly(size + 2))[:-2] if size else b""

    async def rest(self) -> bytes:
        """Read whatever comes until the connection ends."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read()

    def leave(self) -> None:
        """Go away."""
        self._writer.close()

    async def _until(self, end: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readuntil(end)


@asynccontextmanager
async def exchange(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> AsyncIterator[tuple[Reading, Asked]]:
    """Ask by hand as well; yield both ends."""
    connected = socket.create_connection(("127.0.0.1", gateway.port))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
    reader, writer = await asyncio.open_connection(sock=connected)
    writer.write(
        f"POST /p/{profile}{ASKED.path} HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\n"
        f"content-type: {JSON}\r\ncontent-length: {len(ASKED.body)}\r\n\r\n".encode()
        + ASKED.body
    )
    try:
        yield Reading(reader, writer), await by_hand.asked()
    finally:
        writer.close()


# --- Streams -------------------------------------------------------------------------------------


async def test_each_event_of_a_stream_arrives_edited_before_the_next_is_sent(
    gateway: Gateway, by_hand: ByHand
) -> None:
    """Twenty of them, in order, and then the end; nothing waits for what comes later."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, FAQ) as (client, upstream):
            await upstream.head(SSE)
            for number in range(20):
                piece = event(f"calm {number}")
                await upstream.chunk(piece)
                if not number:
                    await client.begin()
                assert edited(piece) == await client.chunk()
            await upstream.chunk(END)
            assert END == await client.chunk()
            await upstream.end()
            assert b"" == await client.chunk()
    assert b"\r\nx-forebay-profile: faq\r\n" in client.head
    assert ("complete", 22) == (seen.lines[0]["outcome"], seen.notes["edit.events"])


@pytest.mark.parametrize("size", [1, 7, 1_000], ids=["bytes", "sevens", "whole"])
async def test_lines_and_characters_come_through_as_they_were_however_they_are_cut(
    call: Caller, by_hand: ByHand, size: int
) -> None:
    """CRLF stays, and so do characters of which one chunk has one half and one the other."""
    stream = (event("静 calm é") + event("😀") + b": calm\n\n" + END).replace(b"\n", b"\r\n")
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    reply = await streamed(call, by_hand, FAQ, *pieces)
    assert (edited(stream), False) == (reply.body, reply.cut)


async def test_a_filter_may_hold_events_back(gateway: Gateway, by_hand: ByHand) -> None:
    """Each comes with the one behind it, the last ones at once; none is lost and none twice."""
    async with exchange(gateway, by_hand, "chat") as (client, upstream):
        await upstream.head(SSE)
        await upstream.chunk(event("calm 1"))
        await client.begin()
        for number in range(2, 6):
            await upstream.chunk(event(f"calm {number}"))
            assert edited(event(f"calm {number - 1}")) == await client.chunk()
        await upstream.chunk(END)
        await upstream.end()
        rest = b""
        while piece := await client.chunk():
            rest += piece
    assert edited(event("calm 5")) + END == rest


async def test_a_filter_that_fails_amid_a_stream_leaves_the_rest_as_it_came(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """It had replaced the word in the third event too when it failed; that is undone."""
    pieces = [event(f"calm {number}") for number in range(1, 6)]
    with gateway.watch() as seen:
        reply = await streamed(call, by_hand, "documents", *pieces, END)
    expected = [*map(edited, pieces[:2]), *pieces[2:], END]
    assert (b"".join(expected), False) == (reply.body, reply.cut)
    assert ("complete", "RuntimeError") == (seen.lines[0]["outcome"], seen.notes["edit.failed"])


async def test_fifty_streams_at_once_stay_apart(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """Their events come in turns, each reader gets its own."""
    with gateway.watch(exchanges=50) as seen:
        replies = [asyncio.create_task(call(ASKED, "faq")) for _ in range(50)]
        upstreams = [await by_hand.asked() for _ in replies]
        for upstream in upstreams:
            await upstream.head(SSE)
        for turn in range(10):
            for number, upstream in enumerate(upstreams):
                await upstream.chunk(event(f"calm {number}, {turn}"))
        for upstream in upstreams:
            await upstream.chunk(END)
            await upstream.end()
        bodies = {reply.body for reply in await asyncio.gather(*replies)}
    expected = {
        edited(b"".join(event(f"calm {number}, {turn}") for turn in range(10))) + END
        for number in range(50)
    }
    assert expected == bodies
    assert {"complete"} == {line["outcome"] for line in seen.lines}


async def test_what_was_edited_is_what_the_cache_keeps(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """Replies pass the filters from the last to the first: the cache comes behind the edit."""
    mine = call.with_key(f"key-{uuid.uuid4().hex}")
    with gateway.watch() as seen:
        miss = await streamed(mine, by_hand, "medical", event("calm"), END)
    hit = await mine(ASKED, "medical")
    assert "cache.stored" in seen.notes
    assert ["MISS", "HIT"] == [miss.cache, hit.cache]
    assert [True, True] == [INSTEAD in reply.body for reply in (miss, hit)]
    assert WORD not in hit.body


# --- Whole replies -------------------------------------------------------------------------------


def plain(length: int) -> bytes:
    """Return a chat completion that says the word, with `length` bytes more."""
    return answer(CHAT, f"It is calm. {'x' * length}")


@pytest.mark.parametrize("length", [0, 100_000, 1_000_000, 8_000_000])
async def test_a_plain_reply_is_edited_whatever_its_length(
    gateway: Gateway, call: Caller, by_hand: ByHand, length: int
) -> None:
    """The filter sees it in one; the length that the upstream said no longer holds and is gone."""
    body = plain(length)
    with gateway.watch() as seen:
        reply = asyncio.create_task(call(ASKED, FAQ))
        await (await by_hand.asked()).whole(JSON, body)
        got = await reply
    assert (200, False, True) == (got.status, got.cut, edited(body) == got.body)
    assert "content-length" not in got.headers
    assert ("complete", 1) == (seen.lines[0]["outcome"], seen.notes["edit.events"])


async def test_a_plain_reply_that_is_too_long_to_read_passes_in_pieces(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """Whole, without being kept until its end; the filter sees bytes and no text."""
    body = plain(MOST_REPLY_BYTES + 4_000_000)  # Envoy may read a megabyte at once
    with gateway.watch() as seen:
        reply = asyncio.create_task(call(ASKED, FAQ))
        await (await by_hand.asked()).whole(JSON, body)
        got = await reply
    assert (200, False, True) == (got.status, got.cut, edited(body) == got.body)
    assert ("complete", True) == (seen.lines[0]["outcome"], seen.notes["edit.events"] > 1)


@pytest.mark.parametrize("megabytes", [1, 8])
async def test_a_long_stream_is_edited_to_its_end(
    call: Caller, by_hand: ByHand, megabytes: int
) -> None:
    """In events of ten thousand bytes."""
    pieces = [event(f"calm {number:04} {'x' * 10_000}") for number in range(100 * megabytes)]
    reply = await streamed(call, by_hand, FAQ, *pieces, END)
    assert (True, False) == (edited(b"".join(pieces)) + END == reply.body, reply.cut)


async def test_a_reader_who_stands_still_has_the_upstream_wait(
    gateway: Gateway, by_hand: ByHand
) -> None:
    """Envoy stops reading, with Forebay between as well; who reads on gets all that was said."""
    paused = "cluster.full.upstream_flow_control_paused_reading_total"
    before = gateway.envoy_counter(paused)
    enough, said = asyncio.Event(), bytearray()

    async def say(upstream: Asked) -> None:
        while not enough.is_set():
            piece = event(f"calm {len(said):09} {'x' * 50_000}")
            said.extend(piece)
            await upstream.chunk(piece)
        await upstream.chunk(END)
        await upstream.end()

    async with exchange(gateway, by_hand, FAQ) as (client, upstream):
        await upstream.head(SSE)
        saying = asyncio.create_task(say(upstream))
        await client.begin()
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(gateway.envoy_counter, paused) == before:
                pass  # and the upstream goes on
        enough.set()
        got = bytearray()
        while piece := await client.chunk():
            got += piece
        await saying
    assert edited(bytes(said)) + END == got


async def test_a_compressed_reply_passes_untouched(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """Byte for byte, with its length; nobody unpacks it to see whether the word is in it."""
    packed = gzip.compress(plain(100))
    with gateway.watch() as seen:
        reply = asyncio.create_task(call(ASKED, FAQ))
        await (await by_hand.asked()).whole(JSON, packed, "content-encoding: gzip")
        got = await reply
    assert (packed, "gzip") == (got.body, got.headers["content-encoding"])
    assert str(len(packed)) == got.headers["content-length"]
    assert "compressed" == seen.notes["reply.skip"]


@pytest.mark.parametrize("lines", [(), ("content-encoding: gzip",)], ids=["plain", "compressed"])
async def test_a_body_that_comes_with_its_head_is_not_lost(
    gateway: Gateway, call: Caller, by_hand: ByHand, lines: tuple[str, ...]
) -> None:
    """Envoy has both in one read, before it hears from Forebay whether the body is wanted.

    Where the route itself says FULL_DUPLEX_STREAMED, the compressed one would arrive empty:
    `forebay check` refuses that.
    """
    body = gzip.compress(plain(100)) if lines else plain(100)
    reply = asyncio.create_task(call(ASKED, FAQ))
    await (await by_hand.asked()).whole(JSON, body, *lines)
    got = await reply
    assert (200, body if lines else edited(body), False) == (got.status, got.body, got.cut)


@pytest.mark.parametrize("kind", [JSON, SSE])
@pytest.mark.parametrize("framed", ["length", "chunks"])
async def test_an_empty_reply_stays_empty(
    gateway: Gateway, call: Caller, by_hand: ByHand, kind: str, framed: str
) -> None:
    """Whether that is said in its head or only at its end; a stream is no answer, and says so."""
    with gateway.watch() as seen:
        reply = asyncio.create_task(call(ASKED, FAQ))
        asked = await by_hand.asked()
        if framed == "length":
            await asked.whole(kind, b"")
        else:
            await asked.head(kind)
            await asked.end()
        got = await reply
    assert (200, False) == (got.status, got.cut)
    if kind == SSE and framed == "chunks":
        assert ["error"] == list(json.loads(got.body.removeprefix(b"data: ")))
    else:
        assert b"" == got.body
    assert "complete" == seen.lines[0]["outcome"]


@pytest.mark.parametrize("last", [END, event("calm")[:-1], b""], ids=["whole", "cut", "no event"])
async def test_trailers_follow_what_was_edited(
    gateway: Gateway, by_hand: ByHand, last: bytes
) -> None:
    """Also where they end a stream amid an event: what is left of it comes before them."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, FAQ) as (client, upstream):
            await upstream.head(SSE)
            await upstream.chunk(event("calm"))
            if last:
                await upstream.chunk(last)
            await upstream.end("x-checksum: 1")
            await client.begin()
            expected, got = edited(event("calm") + last), b""
            while len(got) < len(expected):
                got += await client.chunk()
            rest = await client.rest()
    assert rest.endswith(b"0\r\nx-checksum: 1\r\n\r\n")
    assert got.startswith(expected)
    error = (got + rest).count(b'{"error":')  # of a stream without an end
    assert (0 if last == END else 1) == error
    assert "complete" == seen.lines[0]["outcome"]


# --- Who leaves, and who dies --------------------------------------------------------------------


async def test_a_client_that_leaves_amid_a_stream_ends_it_everywhere(
    gateway: Gateway, by_hand: ByHand
) -> None:
    """The exchange is gone, no stream to Forebay is left, and the upstream is told."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, FAQ) as (client, upstream):
            await upstream.head(SSE)
            await upstream.chunk(event("calm"))
            await client.begin()
            await client.chunk()
            client.leave()
            await upstream.left()
    assert ("gone", 1) == (seen.lines[0]["outcome"], seen.notes["edit.events"])
    metrics = gateway.metrics()
    assert (0, 0) == (metrics["forebay_in_flight"], metrics.get("forebay_streams", 0))
    assert 0 == gateway.envoy_counter("cluster.forebay.upstream_rq_active")


async def test_an_upstream_that_dies_amid_a_stream_cuts_it_behind_what_was_edited(
    gateway: Gateway, call: Caller, by_hand: ByHand
) -> None:
    """The client has what came and sees that there should be more; the next request is served."""
    with gateway.watch() as seen:
        async with exchange(gateway, by_hand, FAQ) as (client, upstream):
            await upstream.head(SSE)
            await upstream.chunk(event("calm"))
            await client.begin()
            assert edited(event("calm")) == await client.chunk()
            upstream.die()
            assert b"" == await client.rest()  # no last chunk: the reply is not whole
    assert "gone" == seen.lines[0]["outcome"]
    reply = await streamed(call, by_hand, FAQ, event("calm"), END)
    assert edited(event("calm")) + END == reply.body


@pytest.fixture(params=list(Transport), ids=str)
def mortal(
    request: pytest.FixtureRequest, gateways: Gateways, listening: socket.socket
) -> Iterator[Gateway]:
    """Run a gateway whose server may be stopped."""
    with open_gateway(gateways, listening, request.param) as gateway:
        yield gateway


async def test_a_server_that_is_killed_takes_the_streams_it_edits_with_it(
    mortal: Gateway, http: aiohttp.ClientSession, by_hand: ByHand
) -> None:
    """The client has what came before, and the connection ends without the last chunk.

    Envoy cannot go on alone: it has given the bytes away and does not know what was held back.
    `failure_mode_allow` does not change that. Of a plain reply under way the client has the head
    and nothing else. A reply that had not begun comes whole, and as the upstream sent it. Started
    again, the server edits as before.
    """
    call, server = Caller(http, mortal.url), mortal.server
    assert server is not None
    body = plain(0)
    later = asyncio.create_task(call(ASKED, FAQ))
    not_begun = await by_hand.asked()
    async with (
        exchange(mortal, by_hand, FAQ) as (client, upstream),
        exchange(mortal, by_hand, FAQ) as (whole, plain_upstream),
    ):
        await upstream.head(SSE)
        await upstream.chunk(event("calm"))
        await client.begin()
        assert edited(event("calm")) == await client.chunk()
        await plain_upstream.head(JSON, length=len(body))
        await plain_upstream.raw(body[:20])
        await whole.begin()
        server.signal(signal.SIGKILL)
        assert [b"", b""] == [await client.rest(), await whole.rest()]
        await upstream.left()
        await plain_upstream.left()
    await not_begun.head(SSE)
    await not_begun.chunk(event("calm") + END)
    await not_begun.end()
    untouched = await later
    assert (event("calm") + END, False) == (untouched.body, untouched.cut)
    await asyncio.to_thread(server.wait)
    await asyncio.to_thread(mortal.start_server)
    reply = await streamed(call, by_hand, FAQ, event("calm"), END)
    assert edited(event("calm")) + END == reply.body


async def test_a_server_that_is_told_to_stop_edits_to_the_end_of_what_runs(
    mortal: Gateway, by_hand: ByHand
) -> None:
    """Exit 0, and the last event as edited as the first."""
    server = mortal.server
    assert server is not None
    async with exchange(mortal, by_hand, FAQ) as (client, upstream):
        await upstream.head(SSE)
        await upstream.chunk(event("calm"))
        await client.begin()
        assert edited(event("calm")) == await client.chunk()
        server.signal(signal.SIGTERM)
        draining = '"event":"draining"'
        await asyncio.to_thread(mortal.server_log.wait_for, lambda line: draining in line)
        await upstream.chunk(event("calm") + END)
        await upstream.end()
        assert edited(event("calm")) + END == await client.chunk()
        assert b"" == await client.chunk()
    assert 0 == await asyncio.to_thread(server.wait)
