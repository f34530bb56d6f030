"""Questions to a model by way of a socket: what is sent, what counts as an answer, the bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from ext_proc.adapters.upstream import MOST_ANSWER_BYTES, EgressUpstream
from filters.document import encode
from filters.errors import PortError
from tests.exchanges import answer
from tests.fakes import FakeClock
from tests.web_server import end

TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATIENCE_S: Final = 60.0
LONG_S: Final = 60.0  # a deadline that no test reaches
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Watch:
    """Keeps how every call went."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def upstream_asked(self, cluster: str, outcome: str, seconds: float) -> None:
        self.told.append((cluster, outcome))


class Egress:
    """A server on a socket in the listener's stead, and a port that asks there."""

    def __init__(self, path: str | tuple[str, int]) -> None:
        self.path = path
        self.watch = Watch()
        self.received: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.reply: Handle = says()
        self.connections: set[Any] = set()
        self.upstream = EgressUpstream(path, FakeClock(), self.watch, most_calls=2)

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        self.received.append(request)
        self.connections.add(request.transport)
        self.bodies.append(await request.read())
        return await self.reply(request)

    async def ask(self, deadline_s: float = LONG_S, **more: Any) -> str:
        return await self.upstream.ask(
            "light", "small", "Why?", max_tokens=200, deadline_s=deadline_s, **more
        )


def says(body: bytes = answer("openai.chat", "1. Because."), status: int = 200) -> Handle:
    async def reply(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type="application/json")

    return reply


def completion(text: str | None, finish: str | None = "stop") -> bytes:
    message = {"role": "assistant", "content": text}
    return encode({"choices": [{"index": 0, "message": message, "finish_reason": finish}]})


class Hold:
    """Answers when told to, and knows who came and who left."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.here = asyncio.Event()
        self.left = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, _: web.BaseRequest) -> web.StreamResponse:
        self._expected -= 1
        if self._expected == 0:
            self.here.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return web.Response(body=completion("1. Because."), content_type="application/json")


@pytest.fixture(params=["path", "abstract", "tcp"])
async def egress(request: pytest.FixtureRequest) -> AsyncIterator[Egress]:
    """Run the server at each kind of address that the settings allow."""
    async with _serving(request.param) as egress:
        yield egress


@pytest.fixture
async def socket() -> AsyncIterator[Egress]:
    """Run the server at a path."""
    async with _serving("path") as egress:
        yield egress


@contextlib.asynccontextmanager
async def _serving(kind: str) -> AsyncIterator[Egress]:
    with tempfile.TemporaryDirectory(prefix="forebay-test-") as folder:
        path = f"{folder}/e"
        egress = Egress(f"@{path}" if kind == "abstract" else path)
        server = web.Server(egress.take, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        if kind == "tcp":
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0]
            egress.upstream = EgressUpstream((host, port), FakeClock(), egress.watch)
        else:
            await web.UnixSite(runner, f"\0{path}" if kind == "abstract" else path).start()
        try:
            yield egress
        finally:
            await egress.upstream.close()
            await end(runner)


# --- What is sent --------------------------------------------------------------------------------


async def test_a_question_goes_to_a_cluster_as_a_chat_completion(egress: Egress) -> None:
    """At temperature 0, within the tokens, under the trace, and with nothing of the client's."""
    assert "1. Because." == await egress.ask(traceparent=TRACE)
    (request,) = egress.received
    assert ("POST", "/v1/chat/completions") == (request.method, request.path)
    assert {
        "model": "small",
        "messages": [{"role": "user", "content": "Why?"}],
        "temperature": 0,
        "max_tokens": 200,
        "stream": False,
    } == json.loads(egress.bodies[0])
    expected = {"host", "content-type", "content-length", "x-forebay-cluster", "traceparent"}
    assert expected == {name.lower() for name in request.headers}
    assert "light" == request.headers["x-forebay-cluster"]
    assert TRACE == request.headers["traceparent"]
    assert [("light", "answered")] == egress.watch.told


async def test_what_is_no_trace_is_not_sent(socket: Egress) -> None:
    """The exchange's header may be the client's own words."""
    await socket.ask(traceparent="00-x")
    assert "traceparent" not in socket.received[0].headers


async def test_calls_share_a_connection(socket: Egress) -> None:
    """One after the other: no handshake each."""
    for _ in range(3):
        await socket.ask()
    assert 1 == len(socket.connections)


# --- What counts as an answer --------------------------------------------------------------------


async def test_an_answer_that_the_limit_cut_counts_where_a_part_will_do(socket: Egress) -> None:
    """The first steps of a draft are a draft; half a summary is none."""
    socket.reply = says(completion("1. Because", "length"))
    assert "1. Because" == await socket.ask(whole=False)
    with pytest.raises(PortError, match=r"^light: it ended with length$"):
        await socket.ask()


BAD: Final = {
    "refused": ("light: status 503", says(b"{}", 503)),
    "sent elsewhere": ("light: status 307", says(b"{}", 307)),
    "no JSON": ("light: no chat completion", says(b"<html>")),
    "another shape": ("light: no chat completion", says(b'{"choices":[{"text":"x"}]}')),
    "no choice": ("light: it ended with another reason", says(b'{"choices":[]}')),
    "empty": ("light: an empty answer", says(completion(" \n"))),
    "null": ("light: an empty answer", says(completion(None))),
    "unfinished": ("light: it ended with another reason", says(completion("1.", None))),
    "filtered": ("light: it ended with content_filter", says(completion("1.", "content_filter"))),
    "odd": ("light: it ended with another reason", says(completion("1.", "Why?"))),
    "too long": (
        f"light: an answer of more than {MOST_ANSWER_BYTES} bytes",
        says(completion("x" * MOST_ANSWER_BYTES)),
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_anything_else_is_an_error_that_quotes_nobody(socket: Egress, case: str) -> None:
    """The words are ours: they stand in the log."""
    words, socket.reply = BAD[case]
    with pytest.raises(PortError) as error:
        await socket.ask(whole=False)
    assert words == str(error.value)
    ((cluster, outcome),) = socket.watch.told
    assert "light" == cluster
    assert outcome in ("refused", "broken", "unfinished")


async def test_a_connection_that_breaks_is_an_error(socket: Egress) -> None:
    """Half an answer is none."""

    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b'{"choices"')
        assert request.transport is not None
        request.transport.abort()
        return response

    socket.reply = reply
    with pytest.raises(PortError, match=r"^light: ClientPayloadError$"):
        await socket.ask()
    assert [("light", "broken")] == socket.watch.told


async def test_without_a_listener_the_error_comes_at_once(tmp_path: Path) -> None:
    """Envoy is not there, or has no egress."""
    watch = Watch()
    upstream = EgressUpstream(str(tmp_path / "e"), FakeClock(), watch)
    with pytest.raises(PortError, match=r"^light: UnixClientConnectorError$"):
        await upstream.ask("light", "small", "Why?", max_tokens=9, deadline_s=LONG_S)
    await upstream.close()
    assert [("light", "broken")] == watch.told


# --- Bounds --------------------------------------------------------------------------------------


async def test_a_late_answer_is_an_error_and_its_call_is_broken_off(socket: Egress) -> None:
    """The server learns that nobody waits any more."""
    socket.reply = hold = Hold(1)
    with pytest.raises(PortError, match=r"^light: no answer in 0\.2 s$"):
        await socket.ask(0.2)
    async with asyncio.timeout(PATIENCE_S):
        await hold.left.wait()
    assert ([("light", "late")], 0) == (socket.watch.told, socket.upstream.calls)


async def test_a_late_rest_of_an_answer_is_late_as_well(socket: Egress) -> None:
    """The deadline bounds the whole call, not the wait for its first byte."""

    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"choices"')
        await asyncio.Event().wait()
        return response

    socket.reply = reply
    with pytest.raises(PortError, match=r"^light: no answer in 0\.1 s$"):
        await socket.ask(0.1)


async def test_a_cancelled_call_is_broken_off_and_frees_its_place(socket: Egress) -> None:
    """The client left: its draft is nobody's any more."""
    socket.reply = hold = Hold(1)
    task = asyncio.create_task(socket.ask())
    async with asyncio.timeout(PATIENCE_S):
        await hold.here.wait()
        assert 1 == socket.upstream.calls
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await hold.left.wait()
    assert ([("light", "left")], 0) == (socket.watch.told, socket.upstream.calls)


async def test_a_call_too_many_is_refused_at_once(socket: Egress) -> None:
    """Two may be open here; the third does not wait, and has its place when one is over."""
    socket.reply = hold = Hold(2)
    tasks = [asyncio.create_task(socket.ask()) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        await hold.here.wait()
        with pytest.raises(PortError, match=r"^light: 2 calls are open$"):
            await socket.ask()
        hold.open.set()
        assert ["1. Because."] * 2 == await asyncio.gather(*tasks)
        assert "1. Because." == await socket.ask()
    outcomes = [outcome for _, outcome in socket.watch.told]
    assert ["full", "answered", "answered", "answered"] == outcomes
