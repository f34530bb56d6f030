"""Texts that come one by one, embedded together: official clients, the real Envoy, one server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final
from uuid import uuid4

import openai
import pytest
from aiohttp import web
from google import genai
from google.genai import types

from ext_proc.tools import simulated_apis as apis
from tests.e2e.conftest import Gateways
from tests.gateway import Edit, Gateway, Upstream
from tests.web_server import end

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # google-genai subclasses aiohttp's session when aiohttp is there.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
MODEL: Final = "demo"
BAD: Final = "a text that no model takes"
LONG: Final = "60s"
PATIENCE_S: Final = 60.0
MOST: Final = 16
CLIENTS: Final = 200


class Embedder:
    """A model server that embeds when the test lets it; `BAD` makes it refuse a whole call."""

    def __init__(self) -> None:
        self.port = 0
        self.calls: Final[list[list[str]]] = []
        """The texts of every call."""
        self.headers: Final[list[dict[str, str]]] = []
        self.fails_with: Callable[[Sequence[str]], int] = lambda texts: 400 if BAD in texts else 0
        self._open: Final = asyncio.Event()
        self._changed: Final = asyncio.Condition()
        server = web.Server(self._answer, handler_cancellation=True, access_log=None)
        self._runner: Final = web.ServerRunner(server, shutdown_timeout=0.1)

    @property
    def pools(self) -> dict[str, list[int]]:
        return {"full": [self.port], "best_effort": [self.port]}

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", backlog=4096, port=0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await end(self._runner)

    def release(self) -> None:
        self._open.set()

    async def came(self, calls: int) -> None:
        """Wait until so many calls came."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.calls) >= calls)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        texts = texts_in(body)
        async with self._changed:
            self.calls.append(texts)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self._changed.notify_all()
        await self._open.wait()
        headers = {"x-request-id": f"call-{len(texts)}"}
        if status := self.fails_with(texts):
            error = apis.error(request.path, {}, status, "It cannot be.")
            return web.json_response(error, status=status, headers=headers)
        if "requests" in body:
            return web.json_response(apis.gemini_embed(body, batch=True)[1], headers=headers)
        return web.json_response(apis.openai_embeddings(body)[1], headers=headers)


def texts_in(body: Any) -> list[str]:
    """Return the texts that a call has embedded."""
    if "requests" in body:
        return [one["content"]["parts"][0]["text"] for one in body["requests"]]
    given = body["input"]
    return [given] if isinstance(given, str) else given


@pytest.fixture
async def embedder() -> AsyncIterator[Embedder]:
    embedder = Embedder()
    await embedder.start()
    yield embedder
    await embedder.stop()


def settings(transport: str = "", wait: str = LONG) -> Edit:
    """Return settings in which time decides nothing: the machine may be busy."""

    def edit(tree: dict[str, Any]) -> None:
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["profiles"]["embeddings"]["gather"] = {"wait": wait, "deadline": LONG}
        if transport:
            forebay["server"]["transport"] = transport

    return edit


def client_of(gateway: Gateway, key: str = "") -> openai.AsyncOpenAI:
    url = f"{gateway.url}/p/embeddings/v1"
    return openai.AsyncOpenAI(base_url=url, api_key=key or uuid4().hex, max_retries=0)


async def embed(client: openai.AsyncOpenAI, text: str) -> openai.types.CreateEmbeddingResponse:
    return await client.embeddings.create(model=MODEL, input=text)


def alone(text: str) -> Any:
    """Return what the server says of a text that is asked for alone."""
    return apis.openai_embeddings({"model": MODEL, "input": text})[1]


def check(text: str, reply: openai.types.CreateEmbeddingResponse) -> None:
    """Check that a reply is about this text and no other."""
    (one,) = reply.data
    assert 0 == one.index
    expected = alone(text)["data"][0]["embedding"]
    assert pytest.approx(expected, abs=1e-6) == one.embedding  # it came as 32-bit numbers
    assert reply.usage.prompt_tokens == reply.usage.total_tokens
    assert reply.usage.prompt_tokens > 0


async def waiting(gateway: Gateway, count: int) -> None:
    """Wait until so many wait, for others or for an answer."""
    await shows(gateway, "forebay_batches_waiting", count)


async def shows(gateway: Gateway, name: str, value: float) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(gateway.metrics))[name] != value:
            pass


async def empty(gateway: Gateway) -> None:
    """Wait until nothing is held for anybody."""
    for name in ("batches_open", "batches_waiting", "batches_held_bytes", "in_flight"):
        await shows(gateway, f"forebay_{name}", 0)


async def gathered(
    embedder: Embedder, gateway: Gateway, client: openai.AsyncOpenAI, texts: Sequence[str]
) -> list[asyncio.Task[openai.types.CreateEmbeddingResponse]]:
    """Have texts wait behind one that is being embedded; the first task is that one's."""
    tasks = [asyncio.create_task(embed(client, f"first {uuid4().hex}"))]
    await embedder.came(1)
    tasks += [asyncio.create_task(embed(client, text)) for text in texts]
    await waiting(gateway, len(texts))
    return tasks


@pytest.mark.parametrize("transport", ["grpc", "native"])
async def test_two_hundred_texts_are_fourteen_calls(
    gateways: Gateways, embedder: Embedder, transport: str
) -> None:
    """The first alone, twelve full batches, the rest; each client has its own text's vector."""
    with gateways.open(pools=embedder.pools, edit=settings(transport)) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(CLIENTS - 1)]
        async with client_of(gateway) as client:
            first, *others = await gathered(embedder, gateway, client, texts)
            await embedder.came(1 + len(texts) // MOST)
            embedder.release()
            await first
            for text, reply in zip(texts, await asyncio.gather(*others), strict=True):
                check(text, reply)
        await empty(gateway)
        assert [1, 7, *[16] * 12] == sorted(map(len, embedder.calls))
        metrics = await asyncio.to_thread(gateway.metrics)
        assert 13 == metrics['forebay_batches_total{outcome="answered"}']
        assert 199 - 13 == metrics["forebay_batch_saved_calls_total"]
        assert 12 + 1 == metrics["forebay_batch_size_count"]


async def test_what_a_batch_brought_is_kept(gateways: Gateways, embedder: Embedder) -> None:
    """The same texts again are answered from the store, and no server is asked."""
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(3)]
        async with client_of(gateway) as client:
            tasks = await gathered(embedder, gateway, client, texts)
            embedder.release()
            await asyncio.gather(*tasks)
            await empty(gateway)
            for text in texts:
                raw = await client.embeddings.with_raw_response.create(model=MODEL, input=text)
                assert "HIT" == raw.headers["x-cache"]
                check(text, raw.parse())
        assert [1, 3] == list(map(len, embedder.calls))


async def test_one_bad_text_fails_nobody_else(gateways: Gateways, embedder: Embedder) -> None:
    """Its client reads the server's own words; the other fifteen have their vectors."""
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(MOST - 1)]
        async with client_of(gateway) as client:
            first, *others = await gathered(embedder, gateway, client, texts)
            bad = asyncio.create_task(embed(client, BAD))
            await embedder.came(2)
            embedder.release()
            await first
            with pytest.raises(openai.BadRequestError, match="It cannot be"):
                await bad
            for text, reply in zip(texts, await asyncio.gather(*others), strict=True):
                check(text, reply)
        await empty(gateway)
        assert [*[1] * 17, 16] == sorted(map(len, embedder.calls))
        metrics = await asyncio.to_thread(gateway.metrics)
        assert 16 == metrics['forebay_batch_requests_total{outcome="refused"}']


async def test_a_server_that_fails_at_batches_serves_one_by_one(
    gateways: Gateways, embedder: Embedder
) -> None:
    """Nobody sees the error, and for a while nothing is gathered."""
    embedder.fails_with = lambda texts: 500 if len(texts) > 1 else 0
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(5)]
        async with client_of(gateway) as client:
            first, *others = await gathered(embedder, gateway, client, texts)
            embedder.release()
            await first
            for text, reply in zip(texts, await asyncio.gather(*others), strict=True):
                check(text, reply)
        await empty(gateway)
        assert [1, 1, 1, 1, 1, 1, 5] == sorted(map(len, embedder.calls))
        metrics = await asyncio.to_thread(gateway.metrics)
        assert 5 == metrics['forebay_batch_requests_total{outcome="failed"}']


async def test_a_client_that_leaves_leaves_its_place(
    gateways: Gateways, embedder: Embedder
) -> None:
    """Its text is not asked for, and the others' are."""
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(3)]
        async with client_of(gateway) as client, client_of(gateway, client.api_key) as leaver:
            first, *others = await gathered(embedder, gateway, client, texts)
            gone = asyncio.create_task(embed(leaver, "mine"))
            await waiting(gateway, 4)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await waiting(gateway, 3)
            embedder.release()
            await first
            for text, reply in zip(texts, await asyncio.gather(*others), strict=True):
                check(text, reply)
        await empty(gateway)
        assert sorted(texts) == sorted(embedder.calls[1])


async def test_nobodys_text_goes_under_anothers_credential(
    gateways: Gateways, embedder: Embedder
) -> None:
    """Two tenants at one time are two batches, each with its own key."""
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        async with client_of(gateway, "key-a") as one, client_of(gateway, "key-b") as two:
            ours = await gathered(embedder, gateway, one, ["a 1", "a 2"])
            theirs = [asyncio.create_task(embed(two, "b 0"))]
            await embedder.came(2)
            theirs += [asyncio.create_task(embed(two, text)) for text in ("b 1", "b 2")]
            await waiting(gateway, 4)
            embedder.release()
            await asyncio.gather(*ours, *theirs)
        await empty(gateway)
        keys = {
            text: headers["authorization"]
            for texts, headers in zip(embedder.calls, embedder.headers, strict=True)
            for text in texts
            if len(texts) > 1
        }
        a, b = "Bearer key-a", "Bearer key-b"
        assert {"a 1": a, "a 2": a, "b 1": b, "b 2": b} == keys


async def test_googles_client_has_texts_embedded_together(
    gateways: Gateways, embedder: Embedder
) -> None:
    """It asks for a single text as a list of one."""
    with gateways.open(pools=embedder.pools, edit=settings()) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(5)]
        options = types.HttpOptions(base_url=f"{gateway.url}/p/embeddings")
        client = genai.Client(api_key=uuid4().hex, http_options=options)

        async def ask(text: str) -> list[float] | None:
            reply = await client.aio.models.embed_content(model=MODEL, contents=text)
            (one,) = reply.embeddings or []
            return one.values

        first = asyncio.create_task(ask("first"))
        await embedder.came(1)
        others = [asyncio.create_task(ask(text)) for text in texts]
        await waiting(gateway, len(texts))
        embedder.release()
        await first
        expected = [alone(text)["data"][0]["embedding"] for text in texts]
        assert expected == await asyncio.gather(*others)
        await client.aio.aclose()
        assert sorted(texts) == sorted(embedder.calls[1])


async def test_without_a_way_for_batches_texts_go_one_by_one(
    gateways: Gateways, embedder: Embedder
) -> None:
    """An Envoy without the egress listener serves as before."""

    def edit(tree: dict[str, Any]) -> None:
        settings()(tree)
        listeners = tree["static_resources"]["listeners"]
        listeners[:] = [one for one in listeners if one["name"] != "egress"]

    with gateways.open(pools=embedder.pools, edit=edit) as gateway:
        texts = [f"text {number} of {uuid4().hex}" for number in range(3)]
        async with client_of(gateway) as client:
            first, *others = await gathered(embedder, gateway, client, texts)
            embedder.release()
            await first
            for text, reply in zip(texts, await asyncio.gather(*others), strict=True):
                check(text, reply)
        assert [1, 1, 1, 1] == list(map(len, embedder.calls))


async def test_clients_that_come_as_they_like_get_their_own(
    gateways: Gateways, upstream: Upstream
) -> None:
    """With the settings as they are shipped, and the server that `forebay simulate` runs."""
    with gateways.open(upstream=upstream) as gateway:
        mark = upstream.mark()
        texts = [f"text {number} of {uuid4().hex}" for number in range(CLIENTS)]
        async with client_of(gateway) as client:
            replies = await asyncio.gather(*(embed(client, text) for text in texts))
        for text, reply in zip(texts, replies, strict=True):
            check(text, reply)
        await empty(gateway)
        metrics = await asyncio.to_thread(gateway.metrics)
        saved = metrics["forebay_batch_saved_calls_total"]
        assert CLIENTS - saved == len(upstream.since(mark))
