"""What only the native transport could do wrong, on real connections."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.transport import Stream, native
from ext_proc.transport.address import EXT_PROC
from ext_proc.transport.http2 import Limits, Reason, connection
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2 import stream as core_stream
from ext_proc.transport.link import Link
from ext_proc.transport.native import NativeServer
from ext_proc.transport.turns import Turn
from tests.http2_peer import ACK, GREETING, Frame, headers, read_frames, say
from tests.protocol.conftest import (
    MEGABYTE,
    PATIENCE_S,
    Call,
    Counted,
    Make,
    Serve,
    Served,
    read,
)
from tests.protocol.test_transport import Echo, Stuck, exchange

RESPONSE: Any = health_pb2.HealthCheckResponse


@pytest.fixture
def make(counted: Counted) -> Make:
    """Make servers of this filling only."""

    def make(handler: Any, listen: str, *, most_message_bytes: int = 10 * MEGABYTE) -> NativeServer:
        return NativeServer(handler, listen, most_message_bytes=most_message_bytes, watch=counted)

    return make


def native_of(served: Served) -> NativeServer:
    assert isinstance(served.server, NativeServer)
    return served.server


@contextmanager
def plain(path: Path) -> Iterator[socket.socket]:
    """Connect without a client that knows what is right."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(path))
        connected.settimeout(PATIENCE_S)
        yield connected


def read_all(connected: socket.socket) -> list[Frame]:
    """Read until the server closes, and say nothing."""
    raw = b""
    try:
        while part := connected.recv(65_536):
            raw += part
    except ConnectionResetError:
        pass
    return [*read_frames(raw)]


async def reach(served: Served) -> None:
    """Return when the server read all that was sent before on the same connection."""
    ends, call = len(served.handler.ends), served.process()
    await exchange(call, b"x")
    call.cancel()
    await served.handler.until(lambda: len(served.handler.ends) > ends)


# --- C-core's client -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_nine_megabytes_pass_through_tiny_windows(serve: Serve) -> None:
    """The client gives as little room as it can; the connection stays as it is."""
    served = await serve(Echo())
    options = (
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 0),
        ("grpc.http2.max_frame_size", 16_384),
    )
    message = bytes(9 * MEGABYTE)
    async with grpc.aio.insecure_channel(f"unix:{served.path}", options=options) as channel:
        served.channel, kept = channel, served.channel
        assert message == await exchange(served.process(), message)
    served.channel = kept


@pytest.mark.slow
async def test_ten_thousand_aborted_streams_leave_nothing(serve: Serve, counted: Counted) -> None:
    """While handlers wait, answer, or were never called."""
    handler = Stuck()
    served = await serve(handler)

    async def one(number: int) -> None:
        call = served.process()
        if number % 3:
            await call.write(b"wait" if number % 3 == 1 else b"x")
        if number % 7 == 0:
            await asyncio.sleep(0)
        call.cancel()

    for first in range(0, 10_000, 100):
        await asyncio.gather(*(one(number) for number in range(first, first + 100)))
    await reach(served)
    await served.handler.until(lambda: len(served.handler.ends) == served.handler.begun)
    (link,) = native_of(served).links
    assert {} == link.core.streams
    assert 0 == link.core.working
    assert set() == link._turns._waiting
    assert [] == [task for task in asyncio.all_tasks() if isinstance(task, Turn)]
    assert [] == counted.reasons
    assert b"x" == await exchange(served.process(), b"x")


async def test_a_method_that_nobody_knows_is_unimplemented(serve: Serve) -> None:
    """As of a service that nobody knows, and of the health service's List."""
    served = await serve(Echo())
    for path in (f"/{EXT_PROC}/Other", "/other.Service/Process", "/grpc.health.v1.Health/List"):
        method: Any = served.channel.stream_stream(path)
        call: Call = method(timeout=PATIENCE_S)
        assert await read(call) is None
        assert grpc.StatusCode.UNIMPLEMENTED is await call.code()


async def test_a_compressed_message_is_unimplemented(serve: Serve, counted: Counted) -> None:
    """Envoy compresses none; who does learns why it is not served."""
    served = await serve(Echo())
    method: Any = served.channel.stream_stream(f"/{EXT_PROC}/Process")
    call: Call = method(timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
    assert await exchange(call, bytes(10_000)) is None
    assert grpc.StatusCode.UNIMPLEMENTED is await call.code()
    assert [Reason.COMPRESSED] == counted.reasons


async def test_a_status_message_of_any_text_arrives(serve: Serve) -> None:
    """Percent-encoded on the wire."""

    async def fail(stream: Stream, message: bytes | None) -> None:
        stream.fail("100 % of é and 中\n")

    served = await serve(fail)
    call = served.process()
    assert await exchange(call, b"x") is None
    assert "100 % of é and 中\n" == await call.details()


async def test_health_of_an_unknown_name_is_watched_as_unknown(serve: Serve) -> None:
    """It might become known, says the protocol: the call stays open."""
    served = await serve(Echo())
    health = health_pb2_grpc.HealthStub(served.channel)
    watch: Any = health.Watch(health_pb2.HealthCheckRequest(service="?"), timeout=PATIENCE_S)
    assert RESPONSE.SERVICE_UNKNOWN == (await watch.read()).status
    await reach(served)
    assert 1 == native_of(served).streams
    watch.cancel()
    await reach(served)
    assert 0 == native_of(served).streams


@pytest.mark.parametrize("name", ["Check", "Watch"])
async def test_a_health_request_that_is_none_is_an_invalid_argument(
    serve: Serve, name: str
) -> None:
    """The text says what was expected."""
    served = await serve(Echo())
    method: Any = served.channel.unary_stream(f"/grpc.health.v1.Health/{name}")
    call = method(b"\xff", timeout=PATIENCE_S)
    assert grpc.StatusCode.INVALID_ARGUMENT is await call.code()
    assert "not a HealthCheckRequest" == await call.details()


async def test_open_streams_and_connections_are_counted(serve: Serve) -> None:
    """For the gauges."""
    served = await serve(Echo())
    server = native_of(served)
    assert (0, 0) == (server.connections, server.streams)
    calls = [served.process() for _ in range(3)]
    for call in calls:
        await exchange(call, b"x")
    assert (1, 3) == (server.connections, server.streams)
    for call in calls:
        call.cancel()
    await served.handler.ended(3)
    assert (1, 0) == (server.connections, server.streams)


async def test_an_idle_connection_does_not_hold_up_a_drain(serve: Serve) -> None:
    """One round trip, and it is closed."""
    served = await serve(Echo())
    call = served.process()
    await exchange(call, b"x")
    await call.done_writing()
    await call.code()
    async with asyncio.timeout(PATIENCE_S / 2):
        await served.server.drain(PATIENCE_S)
    assert 0 == native_of(served).connections


async def test_a_drain_leaves_handlers_that_never_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds whatever they do."""
    monkeypatch.setattr(native, "CUT_S", 0.05)
    gate = asyncio.Event()
    waiting = asyncio.Event()

    async def stubborn(stream: Stream, message: bytes | None) -> None:
        if message is None:
            waiting.set()
            await gate.wait()

    served = await serve(stubborn)
    call = served.process()
    await call.write(b"x")
    await call.done_writing()
    await waiting.wait()
    await served.server.drain(0)
    gate.set()
    assert await native_of(served)._ended(PATIENCE_S)


# --- Any client ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", Reason.PREFACE),
        (GREETING + wire.frame(wire.PING, 0, 0, b"short"), Reason.FRAME_SIZE),
        (GREETING + headers(2), Reason.STREAM_ID),
    ],
)
async def test_a_client_that_speaks_wrongly_is_told_and_left(
    serve: Serve, counted: Counted, raw: bytes, reason: Reason
) -> None:
    """A GOAWAY, then the end of its connection; another one goes on."""
    served = await serve(Echo())
    neighbour = served.process()
    assert b"x" == await exchange(neighbour, b"x")
    with plain(served.path) as connected:
        connected.sendall(raw)
        last = (await asyncio.to_thread(read_all, connected))[-1]
    assert (wire.GOAWAY, reason.encode()) == (last.kind, last.payload[8:])
    assert [reason] == counted.reasons
    assert b"y" == await exchange(neighbour, b"y")


async def test_a_client_that_greets_and_falls_silent_is_left(
    serve: Serve, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked first, and one that says nothing at all is not."""
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.02)
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.05)
    served = await serve(Echo())
    with plain(served.path) as connected:
        connected.sendall(GREETING + ACK)
        kinds = [frame.kind for frame in await asyncio.to_thread(read_all, connected)]
    assert [wire.PING, wire.GOAWAY] == kinds[-2:]
    with plain(served.path) as connected:
        kinds = [frame.kind for frame in await asyncio.to_thread(read_all, connected)]
    assert wire.GOAWAY == kinds[-1]
    assert wire.PING not in kinds
    assert [Reason.SILENT, Reason.SILENT] == counted.reasons


async def test_a_client_that_asks_and_never_reads_is_left(serve: Serve, counted: Counted) -> None:
    """Refusals need no room in a window, so the transport's own bound has to hold."""
    served = await serve(Echo())
    native = native_of(served)
    native.limits = replace(native.limits, unread_bytes=100_000)

    def ask(connected: socket.socket) -> None:
        connected.sendall(GREETING + ACK)
        number = 1
        try:
            while True:
                connected.sendall(headers(number))  # of a path that nobody serves
                number += 2
        except (BrokenPipeError, ConnectionResetError):
            pass

    with plain(served.path) as connected:
        await asyncio.to_thread(ask, connected)
    assert Reason.UNREAD is counted.reasons[-1]
    assert b"x" == await exchange(served.process(), b"x")


async def test_a_bug_of_ours_ends_its_connection_only(
    serve: Serve, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted and told by its type and place: its text may quote a prompt."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    served = await serve(Echo())
    neighbour = served.process()
    assert b"x" == await exchange(neighbour, b"x")

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("the prompt said: my password")

    with monkeypatch.context() as patch:
        patch.setattr(core_stream.Stream, "check_end", broken)
        with plain(served.path) as connected:
            path = f"/{EXT_PROC}/Process".encode()
            fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
            kind = (b"content-type", b"application/grpc")
            connected.sendall(GREETING + headers(1, kind, fields=fields) + say(1, b"z", end=True))
            await asyncio.to_thread(read_all, connected)
    assert [Reason.BUG] == counted.reasons
    (context,) = told
    assert {"message"} == set(context)
    assert context["message"].startswith("ZeroDivisionError at ")
    assert "password" not in context["message"]
    assert b"y" == await exchange(neighbour, b"y")
    await served.handler.ended(1)


async def test_a_connection_that_half_closes_ends(serve: Serve) -> None:
    """A proxy that wants nothing more wants no answer either."""
    served = await serve(Echo())
    with plain(served.path) as connected:
        connected.sendall(GREETING)
        connected.shutdown(socket.SHUT_WR)
        assert wire.SETTINGS == (await asyncio.to_thread(read_all, connected))[0].kind
    assert await native_of(served)._ended(PATIENCE_S)


async def test_streams_are_bounded_by_what_was_announced(serve: Serve) -> None:
    """A client that keeps to it waits for a place; nobody fails."""
    handler = Stuck()
    served = await serve(handler)
    native_of(served).limits = Limits(MEGABYTE, streams=2)
    stuck = [served.process() for _ in range(2)]
    for call in stuck:
        await call.write(b"wait")
    await handler.waiting.wait()
    third = served.process()
    waiting = asyncio.create_task(exchange(third, b"x"))
    stuck[0].cancel()
    assert b"x" == await waiting
    stuck[1].cancel()


# --- Turns ---------------------------------------------------------------------------------------


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.closed = True


@contextmanager
def linked(handler: Any) -> Iterator[tuple[Link, Transport]]:
    """Join a connection to a transport that only keeps."""
    server = NativeServer(handler, "", most_message_bytes=MEGABYTE, service="test", method="Call")
    link, transport = Link(server), Transport()
    link.connection_made(transport)  # type: ignore[arg-type] # as far as it is used
    link.data_received(GREETING + ACK)
    transport.written.clear()
    yield link, transport
    link.connection_lost(None)


async def test_the_answers_to_one_read_are_one_write() -> None:
    """Of all its streams; the system call costs more than the message."""
    with linked(Echo()) as (link, transport):
        raw = b"".join(headers(number) + say(number, b"x") * 3 for number in range(1, 21, 2))
        link.data_received(raw)
        (written,) = transport.written
    answers = [frame for frame in read_frames(written) if frame.kind == wire.DATA]
    assert 30 == len(answers)


async def test_what_is_sent_after_a_wait_is_written_at_once() -> None:
    """By the handler, or by a task that it left behind: all that comes of one turn together."""
    gate = asyncio.Event()
    done: list[asyncio.Task[None]] = []

    async def send_twice(stream: Stream) -> None:
        await gate.wait()
        await stream.send(b"a")
        await stream.send(b"b")

    async def handler(stream: Stream, message: bytes | None) -> None:
        if message is not None:
            done.append(asyncio.create_task(send_twice(stream)))
            await done[-1]

    for messages in (1, 5):
        done.clear()
        gate.clear()
        with linked(handler) as (link, transport):
            for number in range(1, 2 * messages, 2):
                link.data_received(headers(number) + say(number, b"x"))
            assert [] == transport.written
            gate.set()
            await asyncio.gather(*done)
            await asyncio.sleep(0)
            frames = [frame for raw in transport.written for frame in read_frames(raw)]
        assert 2 * messages == sum(frame.kind == wire.DATA for frame in frames)
        assert 1 == len(transport.written)


async def test_a_link_that_is_over_is_not_kept() -> None:
    """Neither by a timer nor by its streams."""
    with linked(Echo()) as (link, _):
        link.data_received(headers(1) + say(1, b"x"))
    del link
    gc.collect()
    assert [] == [one for one in gc.get_objects() if type(one) is Link]
