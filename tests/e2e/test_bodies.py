"""Bodies of every kind reach the upstream: byte for byte, or cleaned and with the right length."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import h2.config
import h2.connection
import h2.events
import httpx
import pytest

from tests.calls import Ask, Caller, Reply, ask_for
from tests.e2e.conftest import Gateways
from tests.exchanges import CHATS, WORDS
from tests.gateway import Gateway, Upstream, ext_proc_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "/v1/chat/completions"
JSON: Final = {"content-type": "application/json"}
KIB: Final = 1 << 10
MIB: Final = 1 << 20

ASKED: Final = b'"messages":[{"role":"user","content":"Why?"}]'

ODD: Final[dict[str, bytes]] = {
    "formatting": b'\t{ "model" :"m",\r\n"messages": [ {"content":"Why?" , "role":"user"} ] }\n\n',
    "duplicate keys": b'{"model":"x","model":"m",%b,"n":1,"n":1}' % ASKED,
    "escapes": rb'{"model":"","messages":[{"role":"user","content":"\u0057\/\ud83d\ude00\u0000"}]}',
    "half a surrogate": rb'{"model":"m","messages":[{"role":"user","content":"\ud83d?"}]}',
    "unknown fields": b'{"x":{"y":[1,{"z":null}]},"model":"m",%b,"w":[]}' % ASKED,
    "big integers": b'{"model":"m","seed":123456789012345678901234567890,%b}' % ASKED,
    "numbers": b'{"model":"m","a":1.0,"b":1e2,"c":-0,"d":1E400,"e":0.10,%b}' % ASKED,
    "raw UTF-8": '{"model":"m","messages":[{"role":"user","content":"为什么 😀 é"}]}'.encode(),
    "no messages": b'{"model":"m"}',
    "messages of another shape": b'{"model":"m","messages":{"role":"user"}}',
    "null content": b'{"model":"m","messages":[{"role":"user","content":null},{}, 1, null, "x"]}',
    "an array": b"[1, 2]",
    "a number": b"7",
    "a string": b'"x"',
}
BROKEN: Final[dict[str, bytes]] = {
    "nothing": b"",
    "one byte": b"{",
    "a letter": b"x",
    "cut": b'{"model":"m","messages":[',
    "two values": b'{"model":"m"}{"model":"m"}',
    "a form": b"model=m&messages=x",
    "NUL bytes": b"\0" * 1000,
    "NUL bytes inside": b'{"model":"m","messages":[{"role":"user","content":"a\0b"}]}',
    "no UTF-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "a byte order mark": b'\xef\xbb\xbf{"model":"m","messages":[]}',
    "UTF-16": '{"model":"m","messages":[]}'.encode("utf-16"),
    "5,000 levels of arrays": b"[" * 5_000 + b"]" * 5_000,
    "5,000 levels of objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "5,000 levels in a message": b'{"model":"m","messages":[{"role":"user","content":%b1%b}]}'
    % (b"[" * 5_000, b"]" * 5_000),
    "a million brackets": b"[" * MIB,
    "gzip without saying so": gzip.compress(b'{"model":"m"}'),
}


async def upstream_saw(
    gateway: Gateway, call: Caller, ask: Ask, **options: Any
) -> tuple[Reply, Any]:
    """Send a body and return the reply, and the request as the upstream had it."""
    mark = gateway.upstream.mark()
    reply = await call(ask, **options)
    (received,) = gateway.upstream.wait_for(1, mark=mark)
    assert str(len(received.body)) == received.headers.get("content-length")
    return reply, received


def of_length(length: int, filler: str = "x") -> bytes:
    """Return a chat body of exactly so many bytes."""
    empty = json.dumps({"model": "m", "messages": [{"role": "user", "content": ""}]})
    room = length - len(empty)
    # Words, not one: cleaning and hashing should have something to look at.
    text = ((filler * 7 + " ") * (room // 8 + 1))[:room].rstrip().ljust(room, "y")
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    assert length == len(body)
    return body


# --- Untouched -----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["", "faq"], ids=["default", "faq"])
@pytest.mark.parametrize("name", [*ODD, *BROKEN])
async def test_a_body_that_nobody_changed_goes_out_byte_for_byte(
    gateway: Gateway, call: Caller, name: str, profile: str
) -> None:
    """However it is written, and whether or not it can be read; the upstream judges it."""
    body = (ODD | BROKEN)[name]
    headers = {"cache-control": "no-cache"}
    reply, received = await upstream_saw(
        gateway, call, Ask(CHAT, body), profile=profile, headers=headers
    )
    assert body == received.body
    assert reply.status in (200, 400)
    assert profile or "default" == reply.headers["x-forebay-profile"]


@pytest.mark.parametrize("path", [WORDS[name].path for name in CHATS] + ["/v1/embeddings"])
@pytest.mark.parametrize("name", ["duplicate keys", "an array", "NUL bytes", "one byte"])
async def test_every_endpoint_takes_every_body(
    gateway: Gateway, call: Caller, path: str, name: str
) -> None:
    """One that is written for another endpoint passes as well."""
    body = (ODD | BROKEN)[name]
    reply, received = await upstream_saw(gateway, call, Ask(path, body))
    assert body == received.body
    assert reply.status in (200, 400)


@pytest.mark.parametrize("dialect", CHATS)
async def test_unknown_fields_survive_in_every_dialect(
    gateway: Gateway, call: Caller, dialect: str
) -> None:
    """Also beside a text that is cleaned, with their numbers as they were written."""
    plain = ask_for(dialect, "Why  is\u200b it <b>so</b>?")
    odd = b'{"x_new":{"big":123456789012345678901234567890,"e":1.50e+3,"s":"\\u00e9\\/"},'
    reply, received = await upstream_saw(gateway, call, Ask(plain.path, odd + plain.body[1:]))
    assert 200 == reply.status
    assert received.body.startswith(odd[:-1])
    assert b"Why is it so?" in received.body


async def test_a_cleaned_body_has_its_new_length(gateway: Gateway, call: Caller) -> None:
    """Markup and runaway white space are gone, code is as it was, and the rest keeps its bytes."""
    text = "Why   is <i>it</i>\n\n\n\n\nso?\n```\n<b>  kept  </b>\n```"
    with gateway.watch() as seen:
        asked = ask_for("openai.chat", text, temperature=0)
        _, received = await upstream_saw(gateway, call, asked)
    sent = json.loads(received.body)["messages"][0]["content"]
    assert "Why is it\n\nso?\n```\n<b>  kept  </b>\n```" == sent
    assert len(text) - len(sent) == seen.notes["clean.chars"]
    assert asked.body.replace(json.dumps(text).encode(), json.dumps(sent).encode()) == received.body


# --- Compressed ----------------------------------------------------------------------------------


async def test_a_compressed_body_passes_as_it_is(gateway: Gateway, call: Caller) -> None:
    """The upstream unpacks it; Forebay says that it did not look."""
    body = gzip.compress(ask_for("openai.chat", "<b>Why</b>?", temperature=0).body)
    with gateway.watch() as seen:
        reply, received = await upstream_saw(
            gateway, call, Ask(CHAT, body), headers={"content-encoding": "gzip"}
        )
    assert (200, body, "gzip") == (
        reply.status,
        received.body,
        received.headers["content-encoding"],
    )
    assert {"pass": "compressed body"} == seen.notes
    assert reply.cache is None


# --- Sizes ---------------------------------------------------------------------------------------


def _chunks(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


async def _pieces(body: bytes, size: int = 60_000) -> AsyncIterator[bytes]:
    for chunk in _chunks(body, size):
        yield chunk


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    "length", [64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 8 * MIB]
)
async def test_a_large_body_reaches_the_upstream_whole(
    gateway: Gateway, call: Caller, length: int, chunked: bool
) -> None:
    """With its length said at the start or only at the end, at every bound that buffers have."""
    body = of_length(length)
    mark = gateway.upstream.mark()
    with gateway.watch() as seen:
        data = _pieces(body) if chunked else body
        reply = await call.send("POST", CHAT, data, JSON)
    (received,) = gateway.upstream.since(mark)
    assert 200 == reply.status
    assert (length, True) == (len(received.body), body == received.body)
    assert ("forwarded", "openai.chat") == (seen.lines[0]["outcome"], seen.lines[0]["dialect"])


async def test_a_large_body_is_cleaned(gateway: Gateway, call: Caller) -> None:
    """Two texts of five thousand untidy paragraphs shrink, and the body says its new length."""
    untidy = "Why  is it  so?\n\n\n\n" * 5_000
    more = {"messages": [{"role": "user", "content": untidy}] * 2}
    asked = ask_for("openai.chat", "", temperature=0, more=more)
    reply, received = await upstream_saw(gateway, call, asked)
    tidy = "Why is it so?\n\n" * 5_000
    assert 200 == reply.status
    assert [tidy] * 2 == [each["content"] for each in json.loads(received.body)["messages"]]


@pytest.mark.parametrize("body", [b"", b"{", b'{"model":"m","messages":[]}'], ids=str)
async def test_a_small_body_in_chunks_arrives(gateway: Gateway, call: Caller, body: bytes) -> None:
    """Byte by byte, without a content-length."""
    mark = gateway.upstream.mark()
    reply = await call.send("POST", CHAT, _pieces(body, 1), JSON)
    (received,) = gateway.upstream.wait_for(1, mark=mark)
    assert body == received.body
    assert reply.status in (200, 400)


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """`Expect: 100-continue`, as curl says with a body of over a megabyte."""
    asked = ask_for("openai.chat", question)
    async with call.http.post(
        gateway.url + CHAT, data=asked.body, headers=JSON, expect100=True
    ) as reply:
        assert (200, "BYPASS") == (reply.status, reply.headers["x-cache"])


# --- No calls to a model -------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/p/faq/v1/models/m", "/v1beta/models", "/x"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PATCH", "PUT"])
async def test_what_is_no_call_to_a_model_passes_untouched(
    gateway: Gateway, call: Caller, method: str, path: str
) -> None:
    """Status and body are the upstream's."""
    body = b'{"a":  1}' if method in ("PATCH", "PUT") else None
    mark = gateway.upstream.mark()
    reply = await call.send(method, path, body)
    (received,) = gateway.upstream.wait_for(1, mark=mark)
    expected = await Caller(call.http, gateway.upstream.url).send(
        method, path.removeprefix("/p/faq"), body
    )
    assert (method, path.removeprefix("/p/faq"), body or b"") == (
        received.method,
        received.path,
        received.body,
    )
    assert (expected.status, expected.body) == (reply.status, reply.body)
    assert reply.cache is None


# --- HTTP/2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [200, 64 * KIB + 1, MIB + 1])
async def test_an_http2_client_is_served(gateway: Gateway, question: str, length: int) -> None:
    """Over cleartext with prior knowledge, many requests on one connection."""
    body = of_length(length, question[-8])
    async with httpx.AsyncClient(http1=False, http2=True, base_url=gateway.url) as client:
        with gateway.watch(exchanges=5) as seen:
            replies = await asyncio.gather(
                *(client.post(CHAT, content=body, headers=JSON) for _ in range(5))
            )
    assert {("HTTP/2", 200)} == {(each.http_version, each.status_code) for each in replies}
    assert [True] * 5 == [body == received.body for received in seen.received]


async def test_an_http2_client_gets_hits_and_streams(gateway: Gateway, question: str) -> None:
    """The same headers and events as over HTTP/1.1."""
    asked = ask_for("openai.chat", question, stream=True)
    async with httpx.AsyncClient(http1=False, http2=True, base_url=gateway.url) as client:
        with gateway.watch():
            miss = await client.post(f"/p/faq{asked.path}", content=asked.body)
        hit = await client.post(f"/p/faq{asked.path}", content=asked.body)
    assert ["MISS", "HIT"] == [each.headers["x-cache"] for each in (miss, hit)]
    assert miss.text.endswith("data: [DONE]\n\n")
    assert hit.text.endswith("data: [DONE]\n\n")


async def test_a_body_with_trailers_behind_it_arrives(gateway: Gateway, question: str) -> None:
    """Some HTTP/2 clients end so: the body's last byte does not say that it is the last."""
    body = ask_for("openai.chat", f"{question} <b>so</b>", temperature=0).body
    mark = gateway.upstream.mark()
    status = await _post_with_trailers(gateway, CHAT, body)
    (received,) = gateway.upstream.wait_for(1, mark=mark)
    assert 200 == status
    assert body.replace(b"<b>so</b>", b"so") == received.body


@pytest.mark.parametrize("sent", [False, True], ids=["as shipped", "trailers sent"])
async def test_trailers_without_a_body_arrive_and_nothing_waits_for_one(
    gateways: Gateways, upstream: Upstream, sent: bool
) -> None:
    """Envoy shows the head, no empty body, and the trailers only where it is told to."""

    def edit(tree: dict[str, Any]) -> None:
        mode = ext_proc_of(tree)["processing_mode"]
        assert "BUFFERED" == mode["request_body_mode"]
        if sent:
            mode["request_trailer_mode"] = "SEND"

    with gateways.open(upstream=upstream, edit=edit) as gateway:
        with gateway.watch() as seen:
            status = await _post_with_trailers(gateway, CHAT, b"")
        metrics = gateway.metrics()
    why = "no body" if sent else "answered by the proxy"
    assert (400, [b""], {"pass": why}) == (
        status,
        [received.body for received in seen.received],
        seen.notes,
    )
    assert (0, 0) == (metrics["forebay_in_flight"], metrics["forebay_awaited"])


async def _post_with_trailers(gateway: Gateway, path: str, body: bytes) -> int:
    """Send a request whose body, if any, is followed by trailers; return the reply's status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    connection = h2.connection.H2Connection(h2.config.H2Configuration())
    connection.initiate_connection()
    head = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "gateway"}
    connection.send_headers(1, [*(head | JSON).items()])
    if body:
        connection.send_data(1, body)
    connection.send_headers(1, [("x-checksum", "1")], end_stream=True)
    status = 0
    try:
        while True:
            writer.write(connection.data_to_send())
            await writer.drain()
            for event in connection.receive_data(await reader.read(65_536)):
                if isinstance(event, h2.events.ResponseReceived):
                    status = int(dict(event.headers)[b":status"])
                elif isinstance(event, h2.events.StreamEnded):
                    return status
    finally:
        writer.close()
        await writer.wait_closed()


async def test_what_envoy_refuses_for_its_form_is_no_failure(gateway: Gateway) -> None:
    """Envoy asks about its own refusal, though it never showed the request."""
    failures = 'forebay_stream_failures_total{reason="conversation"}'
    before = gateway.metrics()[failures]
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n")  # without a host
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()
    assert before == gateway.metrics()[failures]
