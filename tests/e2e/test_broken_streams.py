"""What becomes of streams whose upstream dies, in every way that it can: told, counted, not kept.

What Envoy resets nobody can add to, in any mode. What ends like any other stream gets the
provider's own error event, and its official client raises it.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from filters.breaking import WHY
from filters.dialects import DIALECTS
from filters.document import Document, parse
from filters.framing import SseFramer
from tests.calls import Ask, Caller, ask_for
from tests.e2e.by_hand import Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.exchanges import answer
from tests.gateway import POOLS, Gateway

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # google-genai subclasses aiohttp's session when aiohttp is there.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
SSE: Final = "text/event-stream"
SERVER: Final = (str(Path(__file__).with_name("editing_server.py")),)
WATCHES, EDITS = "faq", "chat"
CHAT: Final = "openai.chat"
TEXT: Final = "The water has come to rest, and it will not move until the wind is back."
PATHS: Final = {
    "openai.chat": "/v1/chat/completions",
    "openai.completions": "/v1/completions",
    "openai.responses": "/v1/responses",
    "anthropic.messages": "/v1/messages",
    "gemini.generate": "/v1beta/models/m:streamGenerateContent?alt=sse",
}


@pytest.fixture(scope="module")
def gateway(gateways: Gateways, listening: socket.socket) -> Iterator[Gateway]:
    """Run a gateway with a profile that watches streams, and one that edits them."""

    def edit(tree: dict[str, Any]) -> None:
        profiles = tree["node"]["metadata"]["forebay"]["profiles"]
        cache = {"any_temperature": True, "admit_after": 1}
        profiles |= {WATCHES: {"cache": cache}, EDITS: {"cache": cache, "edit": {}}}

    pools = {name: [listening.getsockname()[1]] for name in POOLS}
    with gateways.open(pools=pools, edit=edit, program=SERVER) as gateway:
        yield gateway
        gateway.settle()
        bad = ("forebay_stream_failures", "forebay_protocol_errors", "forebay_filter_errors")
        counted = gateway.metrics().items()
        assert {} == {name: value for name, value in counted if value and name.startswith(bad)}
        assert [None, None] == gateway.ended()


@pytest.fixture
def call(http: aiohttp.ClientSession, gateway: Gateway) -> Caller:
    return Caller(http, gateway.url)


def stream_of(dialect: str) -> bytes:
    """Return a whole answer as a stream."""
    view = DIALECTS[dialect]
    ask = ask_for(dialect, "Why?", stream=True)
    return view.replay(parse(answer(dialect, TEXT)), view.read(Document(ask.body), ask.path))[1]


def first_events(dialect: str) -> bytes:
    """Return the beginning of an answer, up to the first event with a text in it."""
    if dialect == "gemini.generate":
        return b'data: {"candidates":[{"content":{"parts":[{"text":"The"}]},"index":0}]}\n\n'
    told = b""
    for event in SseFramer().feed(stream_of(dialect)):
        told += event.raw
        if DIALECTS[dialect].read_event(event).text:
            return told
    raise AssertionError("no text")


# --- Ways to die ---------------------------------------------------------------------------------

SOME: Final = first_events(CHAT)
HALF: Final = b'data: {"choices":[{"index":0,"del'
FAILED: Final = b'data: {"error":{"message":"out of memory","code":500}}\n\ndata: [DONE]\n\n'


async def reset(asked: Asked) -> None:
    """Reset the connection."""
    await asked.head(SSE)
    await asked.chunk(SOME)


async def short(asked: Asked) -> None:
    """Say a length, and end the connection before it."""
    await asked.head(SSE, length=len(SOME) + 100)
    await asked.raw(SOME)


async def unlimited(asked: Asked) -> None:
    """Say no length: the end of the connection is the end of the reply."""
    await asked.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + SOME)


async def measured(asked: Asked) -> None:
    """Say a length, and no more: Envoy would make an error of what is put behind it."""
    await asked.whole(SSE, SOME)


async def ended(asked: Asked) -> None:
    """End the reply as if that were all."""
    await asked.head(SSE)
    await asked.chunk(SOME)
    await asked.end()


async def ended_in_half(asked: Asked) -> None:
    """End it in the midst of an event."""
    await asked.head(SSE)
    await asked.chunk(SOME + HALF)
    await asked.end()


async def failed(asked: Asked) -> None:
    """Say that it failed, as vLLM does."""
    await asked.head(SSE)
    await asked.chunk(SOME + FAILED)
    await asked.end()


async def read(call: Caller, question: Ask, profile: str, reading: asyncio.Event) -> bytes | None:
    """Read a reply, and say when something of it came; None where it is cut."""
    got = b""
    path = f"{call.url}/p/{profile}{question.path}"
    headers = {"content-type": "application/json"}
    async with call.http.post(path, data=question.body, headers=headers) as reply:
        assert 200 == reply.status
        try:
            async for piece in reply.content.iter_any():
                got += piece
                reading.set()
        except aiohttp.ClientPayloadError:
            return None
    return got


Way = Callable[[Asked], Awaitable[None]]
ERROR: Final = b"data: " + DIALECTS[CHAT].error(502, WHY) + b"\n\n"


@pytest.mark.parametrize("profile", [WATCHES, EDITS])
@pytest.mark.parametrize(
    ("way", "how", "told", "told_if_edited"),
    [
        (reset, "cut", None, None),
        (short, "cut", None, None),
        (unlimited, "unfinished", SOME + ERROR, SOME + ERROR),
        (measured, "unfinished", SOME, SOME + ERROR),
        (ended, "unfinished", SOME + ERROR, SOME + ERROR),
        (ended_in_half, "unfinished", SOME + HALF + b"\n\n" + ERROR, SOME + ERROR),
        (failed, "failed", SOME + FAILED, SOME + FAILED),
    ],
)
async def test_a_stream_that_breaks_off_is_told_counted_and_not_kept(
    gateway: Gateway,
    call: Caller,
    by_hand: ByHand,
    profile: str,
    way: Way,
    how: str,
    told: bytes | None,
    told_if_edited: bytes | None,
) -> None:
    """Where Envoy resets the client (None), that says it; elsewhere an error event does.

    The same question asked again is a miss, and its whole answer the first that is kept.
    """
    name = f'forebay_streams_broken_total{{dialect="{CHAT}",how="{how}"}}'
    question = ask_for(CHAT, f"Why {uuid.uuid4().hex}?", stream=True)
    before = gateway.metrics().get(name, 0)
    with gateway.watch() as seen:
        reading = asyncio.Event()
        reply = asyncio.create_task(read(call, question, profile, reading))
        asked = await by_hand.asked()
        await way(asked)
        await reading.wait()  # until then Envoy would answer in the upstream's stead
        if way is reset:
            asked.die()
        elif way in (short, unlimited):
            asked.hang_up()
        body = await reply
    assert (told if profile == WATCHES else told_if_edited) == body
    assert [how] == [line["broken"] for line in seen.lines]
    assert before + 1 == gateway.metrics()[name]
    for cache in ("MISS", "HIT"):
        again = asyncio.create_task(call(question, profile))
        if cache == "MISS":
            asked = await by_hand.asked()
            await asked.head(SSE)
            await asked.chunk(stream_of(CHAT))
            await asked.end()
        got = await again
        assert (cache, False) == (got.cache, got.cut)
        gateway.settle()


GEMINI: Final = "gemini.generate"
ELEMENT: Final = b'{"candidates":[{"content":{"parts":[{"text":"The"}]},"index":0}]}'
HALF_ELEMENT: Final = b',\r\n{"candidates":[{"cont'
ARRAY_ERROR: Final = b",%b]" % DIALECTS[GEMINI].error(502, WHY)


@pytest.mark.parametrize(
    ("profile", "left", "told"),
    [
        (WATCHES, b"", ARRAY_ERROR),
        (EDITS, b"", ARRAY_ERROR),
        (WATCHES, HALF_ELEMENT, HALF_ELEMENT),
        (EDITS, HALF_ELEMENT, ARRAY_ERROR),
    ],
)
async def test_an_array_that_breaks_off_is_closed_by_its_error_counted_and_not_kept(
    gateway: Gateway, call: Caller, by_hand: ByHand, profile: str, left: bytes, told: bytes
) -> None:
    """Gemini's stream without `alt=sse`. Behind half an element that is out nothing can follow."""
    name = f'forebay_streams_broken_total{{dialect="{GEMINI}",how="unfinished"}}'
    question = ask_for(GEMINI, f"Why {uuid.uuid4().hex}?", stream=True, array=True)
    before = gateway.metrics().get(name, 0)
    with gateway.watch() as seen:
        reading = asyncio.Event()
        reply = asyncio.create_task(read(call, question, profile, reading))
        asked = await by_hand.asked()
        await asked.head("application/json")
        await asked.chunk(b"[" + ELEMENT)
        await reading.wait()
        if left:
            await asked.chunk(left)
        await asked.end()
        body = await reply
    assert b"[" + ELEMENT + told == body
    assert ["unfinished"] == [line["broken"] for line in seen.lines]
    assert before + 1 == gateway.metrics()[name]
    view = DIALECTS[GEMINI]
    prompt = view.read(Document(question.body), question.path)
    kind, whole = view.replay(parse(answer(GEMINI, TEXT)), prompt)
    for cache in ("MISS", "HIT"):
        again = asyncio.create_task(call(question, profile))
        if cache == "MISS":
            asked = await by_hand.asked()
            await asked.head(kind)
            await asked.chunk(whole)
            await asked.end()
        got = await again
        assert (cache, False) == (got.cache, got.cut)
        gateway.settle()


@pytest.mark.parametrize("profile", [WATCHES, EDITS])
async def test_a_compressed_reply_passes_untouched_and_is_counted(
    gateway: Gateway, call: Caller, by_hand: ByHand, profile: str
) -> None:
    """Of a request whose reply is to be read no accept-encoding is left; this upstream insists."""
    question = ask_for(CHAT, f"Why {uuid.uuid4().hex}?", stream=True)
    name = 'forebay_replies_unread_total{why="compressed"}'
    before = gateway.metrics().get(name, 0)
    zipped = gzip.compress(stream_of(CHAT))
    with gateway.watch():
        reply = asyncio.create_task(call(question, profile, {"accept-encoding": "gzip"}))
        asked = await by_hand.asked()
        assert b"accept-encoding" not in asked.request.lower()
        await asked.head(SSE, "content-encoding: gzip")
        await asked.chunk(zipped[:20])
        await asked.chunk(zipped[20:])
        await asked.end()
        got = await reply
    assert (zipped, "gzip") == (got.body, got.headers["content-encoding"])
    assert before + 1 == gateway.metrics()[name]


# --- What the official clients make of it --------------------------------------------------------


def _chat(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    for _ in client.chat.completions.create(
        model="m", stream=True, messages=[{"role": "user", "content": "Why?"}]
    ):
        pass
    return "whole"


def _completions(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    for _ in client.completions.create(model="m", stream=True, prompt="Why?"):
        pass
    return "whole"


def _responses(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    for event in client.responses.create(model="m", stream=True, input="Why?"):
        if event.type == "error":
            return event.message
    return "whole"


def _messages(url: str) -> str:
    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    for _ in client.messages.create(
        model="m", max_tokens=9, stream=True, messages=[{"role": "user", "content": "Why?"}]
    ):
        pass
    return "whole"


def _gemini(url: str) -> str:
    options = types.HttpOptions(base_url=url, api_version="v1beta")
    with genai.Client(api_key="k", vertexai=False, http_options=options) as client:
        for _ in client.models.generate_content_stream(model="m", contents="Why?"):
            pass
    return "whole"


@pytest.mark.parametrize("profile", [WATCHES, EDITS])
@pytest.mark.parametrize(
    ("dialect", "ask"),
    [
        ("openai.chat", _chat),
        ("openai.completions", _completions),
        ("openai.responses", _responses),
        ("anthropic.messages", _messages),
        ("gemini.generate", _gemini),
    ],
)
async def test_an_official_client_hears_that_its_stream_broke_off(
    gateway: Gateway, by_hand: ByHand, profile: str, dialect: str, ask: Callable[[str], str]
) -> None:
    """As the exception it has for an error in a stream, or as the event that it shows."""
    raised = (openai.APIError, anthropic.APIError, errors.APIError)

    def told() -> str:
        try:
            return ask(f"{gateway.url}/p/{profile}")
        except raised as error:
            return str(error)

    telling = asyncio.create_task(asyncio.to_thread(told))
    asked = await by_hand.asked()
    await asked.head(SSE)
    await asked.chunk(first_events(dialect))
    await asked.end()
    assert WHY in await telling
