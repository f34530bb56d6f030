"""The real server in this process, on a Unix socket, and a real gRPC client that sends bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import grpc
import grpc.aio
import pytest
import uvloop

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.codec import Body, Event, Headers, Trailers
from ext_proc.handler import ExtProc
from ext_proc.transport import Handler, Server, Stream
from ext_proc.transport.address import EXT_PROC
from ext_proc.transport.grpc_aio import GrpcServer
from ext_proc.transport.http2 import Reason
from ext_proc.transport.native import NativeServer

MEGABYTE: Final = 1024 * 1024
MOST_MESSAGE_BYTES: Final = 10 * MEGABYTE
PATIENCE_S: Final = 60.0  # on a machine that is busy; nothing here waits that long

Call: TypeAlias = grpc.aio.StreamStreamCall[bytes, bytes]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on both loops: the one the server ships with, and Python's own."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@dataclass
class Watched:
    """A handler around another one, which tells when streams began and ended."""

    inner: Handler
    begun: int = 0
    ends: list[Stream] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _seen: set[int] = field(default_factory=set)

    async def __call__(self, stream: Stream, message: bytes | None) -> None:
        if id(stream) not in self._seen:
            self._seen.add(id(stream))
            self.begun += 1
            await self._tell()
        await self.inner(stream, message)
        if message is None:
            self.ends.append(stream)
            await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until `true` holds; it is asked whenever a stream began or ended."""
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(true)

    async def ended(self, streams: int) -> None:
        """Wait until that many streams are over, and see that none was told so twice."""
        await self.until(lambda: len(self.ends) >= streams)
        assert streams == len(self.ends) == len({id(stream) for stream in self.ends})


@dataclass
class Served:
    """A server that runs, and a client connected to it."""

    server: Server
    handler: Watched
    path: Path
    channel: grpc.aio.Channel

    def process(self, *, timeout_s: float = PATIENCE_S, **metadata: str) -> Call:
        """Open a stream as the proxy does; underscores in names of metadata become dashes."""
        method: Any = self.channel.stream_stream(f"/{EXT_PROC}/Process")
        pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
        call: Call = method(metadata=pairs, timeout=timeout_s)
        return call


def client(path: Path) -> grpc.aio.Channel:
    """Connect to a Unix socket, with a connection of its own."""
    return grpc.aio.insecure_channel(
        f"unix:{path}",
        options=(
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ),
    )


class Make(Protocol):
    """Makes a server of the filling under test."""

    def __call__(
        self, handler: Handler, listen: str, *, most_message_bytes: int = MOST_MESSAGE_BYTES
    ) -> Server: ...


@dataclass
class Counted:
    """Keeps the reasons for which the native transport gave something up."""

    reasons: list[Reason] = field(default_factory=list)

    def protocol_error(self, reason: Reason) -> None:
        self.reasons.append(reason)


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture(params=["grpc", "native"])
def make(request: pytest.FixtureRequest, counted: Counted) -> Make:
    """Return what makes a server, over each filling of the seam in turn."""

    def make(
        handler: Handler, listen: str, *, most_message_bytes: int = MOST_MESSAGE_BYTES
    ) -> Server:
        if request.param == "grpc":
            return GrpcServer(handler, listen, most_message_bytes=most_message_bytes)
        return NativeServer(handler, listen, most_message_bytes=most_message_bytes, watch=counted)

    return make


@asynccontextmanager
async def serving(path: Path, handler: Handler, make: Make) -> AsyncIterator[Served]:
    """Run a server for the length of a block."""
    watched = Watched(handler)
    server = make(watched, f"unix:{path}")
    await server.start()
    try:
        async with client(path) as channel:
            yield Served(server, watched, path, channel)
    finally:
        await server.drain(0)


Serve: TypeAlias = Callable[[Handler], Awaitable[Served]]


@pytest.fixture
async def serve(tmp_path: Path, make: Make) -> AsyncIterator[Serve]:
    """Return a function that starts a server with a handler; it stops when the test is over."""
    running = []

    async def start(handler: Handler) -> Served:
        context = serving(tmp_path / "ext_proc.sock", handler, make)
        running.append(context)
        return await context.__aenter__()

    yield start
    for context in running:
        await context.__aexit__(None, None, None)


@dataclass
class Watch:
    """Keeps the reasons for which streams were given up."""

    failed: list[tuple[str, str]] = field(default_factory=list)

    def stream_failed(self, reason: str, error: Exception) -> None:
        self.failed.append((reason, type(error).__name__))


def ext_proc(gateway: Any) -> tuple[ExtProc, Watch]:
    """Make the real handler and what watches it."""
    watch = Watch()
    return ExtProc(gateway, watch), watch


def written(event: Event) -> bytes:
    """Write an event as the proxy does."""
    part: Any
    match event:
        case Headers(_, headers, last):
            values = [
                pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()
            ]
            part = pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=last)
        case Body(_, data, last):
            part = pb.HttpBody(body=data, end_of_stream=last)
        case Trailers():
            part = pb.HttpTrailers()
    name: str = event.message.name.lower()
    return pb.ProcessingRequest(**{name: part}).SerializeToString()


async def read(call: Call) -> bytes | None:
    """Read the next message, or None at the end of the stream, however it ended."""
    try:
        message: Any = await call.read()
    except grpc.aio.AioRpcError:
        return None
    return None if message is grpc.aio.EOF else message


async def ask(call: Call, events: Iterable[Event]) -> list[bytes | None]:
    """Send events one by one, and read one answer to each."""
    answers = []
    for event in events:
        await call.write(written(event))
        answers.append(await read(call))
    return answers
