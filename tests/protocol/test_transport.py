"""What every transport keeps to, on a real connection: order, ends, limits, health, sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ext_proc.transport import Stream
from ext_proc.transport.address import HEALTH_NAMES, close
from tests.protocol.conftest import (
    MEGABYTE,
    MOST_MESSAGE_BYTES,
    PATIENCE_S,
    Call,
    Make,
    Serve,
    client,
    read,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Echo:
    """Sends back what comes, and keeps all it was called with."""

    def __init__(self) -> None:
        self.calls: list[bytes | None] = []

    async def __call__(self, stream: Stream, message: bytes | None) -> None:
        self.calls.append(message)
        if message is None:
            return
        await stream.send(message)
        if message == b"close":
            stream.close()
        elif message == b"fail":
            stream.fail("found a mistake, expected none")


class Stuck:
    """Waits at a message that says so, for ever."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, stream: Stream, message: bytes | None) -> None:
        if message == b"wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        elif message is not None:
            await stream.send(message)


async def exchange(call: Call, message: bytes) -> bytes | None:
    await call.write(message)
    return await read(call)


# --- Messages ------------------------------------------------------------------------------------


async def test_messages_are_handed_over_in_order_and_then_the_end(serve: Serve) -> None:
    """The proxy ends its side: the handler gets None once, and the stream ends well."""
    handler = Echo()
    served = await serve(handler)
    call = served.process()
    messages = [b"%d" % number for number in range(100)]
    for message in messages:
        await call.write(message)
    await call.done_writing()
    assert messages == [await read(call) for _ in messages]
    assert await read(call) is None
    assert grpc.StatusCode.OK is await call.code()
    await served.handler.ended(1)
    assert [*messages, None] == handler.calls


async def test_an_empty_message_is_a_message(serve: Serve) -> None:
    """Nothing in it, but it is not the end."""
    handler = Echo()
    served = await serve(handler)
    call = served.process()
    assert b"" == await exchange(call, b"")
    await call.done_writing()
    await served.handler.ended(1)
    assert [b"", None] == handler.calls


async def test_metadata_is_known_with_the_first_message(serve: Serve) -> None:
    """Where the proxy says which profile a route named."""
    found: dict[str, str] = {}

    async def keep(stream: Stream, message: bytes | None) -> None:
        found.update(stream.metadata)
        stream.close()

    served = await serve(keep)
    call = served.process(x_forebay_profile="faq", traceparent="00-1-2-01")
    await call.write(b"x")
    await served.handler.ended(1)
    assert ("faq", "00-1-2-01") == (found["x-forebay-profile"], found["traceparent"])


async def test_the_state_of_a_stream_is_its_own(serve: Serve) -> None:
    """What the handler keeps in one stream no other sees."""

    async def count(stream: Stream, message: bytes | None) -> None:
        if message is not None:
            stream.state = (stream.state or 0) + 1
            await stream.send(b"%d" % stream.state)

    served = await serve(count)
    one, other = served.process(), served.process()
    assert b"1" == await exchange(one, b"x")
    assert b"2" == await exchange(one, b"x")
    assert b"1" == await exchange(other, b"x")


async def test_our_side_may_end_first(serve: Serve) -> None:
    """What was sent arrives, the stream ends well, and later messages are not handed over."""
    handler = Echo()
    served = await serve(handler)
    call = served.process()
    assert b"close" == await exchange(call, b"close")
    assert await read(call) is None
    assert grpc.StatusCode.OK is await call.code()
    await served.handler.ended(1)
    assert [b"close", None] == handler.calls


async def test_a_failed_stream_says_why(serve: Serve) -> None:
    """The proxy sees an error, and does as its failure mode says."""
    served = await serve(Echo())
    call = served.process()
    assert b"fail" == await exchange(call, b"fail")
    assert await read(call) is None
    assert grpc.StatusCode.INVALID_ARGUMENT is await call.code()
    assert "found a mistake, expected none" == await call.details()
    await served.handler.ended(1)


async def test_a_large_message_passes_both_ways(serve: Serve) -> None:
    """9 MB, where gRPC's own limit is 4."""
    served = await serve(Echo())
    message = bytes(9 * MEGABYTE)
    assert message == await exchange(served.process(), message)


async def test_a_handler_waits_while_the_peer_does_not_read(serve: Serve) -> None:
    """What is sent to nobody has a bound; all of it arrives once somebody reads."""
    sent = 0
    part = bytes(MEGABYTE)

    async def flood(stream: Stream, message: bytes | None) -> None:
        nonlocal sent
        if message == b"flood":
            for _ in range(100):
                await stream.send(part)
                sent += 1
            stream.close()
        elif message is not None:
            await stream.send(message)

    served = await serve(flood)
    call, neighbour = served.process(), served.process()
    await call.write(b"flood")
    # A connection that others use tells when a stalled stream has had its turns.
    for _ in range(50):
        assert b"x" == await exchange(neighbour, b"x")
    assert sent < 50
    assert 100 * MEGABYTE == sum([len(await read(call) or b"") for _ in range(100)])
    assert await read(call) is None
    assert 100 == sent


async def test_a_message_over_the_limit_ends_its_stream_only(serve: Serve) -> None:
    """Memory has a bound; the neighbours do not notice."""
    handler = Echo()
    served = await serve(handler)
    neighbour, call = served.process(), served.process()
    assert b"x" == await exchange(neighbour, b"x")
    assert await exchange(call, bytes(MOST_MESSAGE_BYTES + 2 * MEGABYTE)) is None
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is await call.code()
    await served.handler.ended(1)
    assert b"y" == await exchange(neighbour, b"y")


# --- Ends ----------------------------------------------------------------------------------------


async def test_a_stream_without_a_message_ends_too(serve: Serve) -> None:
    """The handler hears of it once, and of nothing else."""
    handler = Echo()
    served = await serve(handler)
    call = served.process()
    await call.done_writing()
    assert await read(call) is None
    await served.handler.ended(1)
    assert [None] == handler.calls


@pytest.mark.parametrize("sent", [1, 3])
async def test_a_client_that_cancels_ends_the_stream_once(serve: Serve, sent: int) -> None:
    """Between messages, wherever it is."""
    handler = Echo()
    served = await serve(handler)
    call = served.process()
    messages = [b"%d" % number for number in range(sent)]
    for message in messages:
        assert message == await exchange(call, message)
    call.cancel()
    await served.handler.ended(1)
    assert [*messages, None] == handler.calls


async def test_a_client_that_cancels_while_a_handler_waits_cancels_the_wait(serve: Serve) -> None:
    """What it waited for is let go of, and then comes the end, once."""
    handler = Stuck()
    served = await serve(handler)
    call = served.process()
    await call.write(b"wait")
    await handler.waiting.wait()
    call.cancel()
    await served.handler.ended(1)
    assert 1 == handler.cancelled


async def test_a_deadline_ends_the_stream_once(serve: Serve) -> None:
    """The proxy's own bound on an exchange looks to us like a client that left."""
    handler = Stuck()
    served = await serve(handler)
    call = served.process(timeout_s=0.2)
    await call.write(b"wait")
    assert await read(call) is None
    assert grpc.StatusCode.DEADLINE_EXCEEDED is await call.code()
    if handler.waiting.is_set():  # a busy machine may need longer than that to get there
        await served.handler.ended(1)
        assert 1 == handler.cancelled


async def test_a_connection_that_breaks_ends_all_its_streams(serve: Serve) -> None:
    """A proxy that dies says nothing: each of its streams is over all the same, once."""
    handler = Echo()
    served = await serve(handler)
    async with client(served.path) as channel:
        served.channel, kept = channel, served.channel
        calls = [served.process() for _ in range(5)]
        for call in calls:
            assert b"x" == await exchange(call, b"x")
    served.channel = kept
    await served.handler.ended(5)
    assert 5 == handler.calls.count(None)


async def test_a_handler_that_waits_holds_up_no_other_stream(serve: Serve) -> None:
    """One connection, two streams: the second is answered while the first waits."""
    handler = Stuck()
    served = await serve(handler)
    stuck, free = served.process(), served.process()
    await stuck.write(b"wait")
    await handler.waiting.wait()
    assert b"x" == await exchange(free, b"x")
    stuck.cancel()


async def test_two_hundred_streams_at_once_keep_apart(serve: Serve) -> None:
    """All are open before the first is answered, and each gets its own answers in order."""
    everyone = asyncio.Event()

    async def together(stream: Stream, message: bytes | None) -> None:
        if message is None:
            return
        await everyone.wait()
        await stream.send(message)

    served = await serve(together)

    async def one(number: int) -> list[bytes | None]:
        call = served.process()
        for part in (b"a", b"b", b"c"):
            await call.write(b"%d%b" % (number, part))
        await call.done_writing()
        return [await read(call) for _ in range(4)]

    running = [asyncio.create_task(one(number)) for number in range(200)]
    await served.handler.until(lambda: served.handler.begun == 200)
    everyone.set()
    for number, task in enumerate(running):
        assert [b"%d%b" % (number, part) for part in (b"a", b"b", b"c")] + [None] == await task
    await served.handler.ended(200)


async def test_clients_that_leave_at_any_moment_break_nothing(serve: Serve) -> None:
    """Cancelled before, while and after the handler sends: it never raises, and each ends once."""
    raised: list[BaseException] = []

    async def send_on(stream: Stream, message: bytes | None) -> None:
        if message is None:
            return
        try:
            for _ in range(10):
                await stream.send(b"x" * 10_000)
        except Exception as error:
            raised.append(error)
            raise

    served = await serve(send_on)

    async def one(reads: int) -> None:
        call = served.process()
        await call.write(b"go")
        for _ in range(reads):
            await read(call)
        call.cancel()

    await asyncio.gather(*(one(number % 11) for number in range(110)))
    await served.handler.until(lambda: len(served.handler.ends) == served.handler.begun)
    assert [] == raised


# --- Health --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEALTH_NAMES)
async def test_health_answers_for_every_name(serve: Serve, name: str) -> None:
    """Kubernetes, load balancers and the endpoint-picker protocol each ask for their own."""
    served = await serve(Echo())
    health = health_pb2_grpc.HealthStub(served.channel)
    asked = health_pb2.HealthCheckRequest(service=name)
    assert SERVING == (await health.Check(asked, timeout=PATIENCE_S)).status


async def test_the_four_names_are_those_of_the_protocol() -> None:
    """Gateway API Inference Extension, proposal 004; and the empty one, for the whole server."""
    names = {"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"}
    assert names == set(HEALTH_NAMES)


async def test_health_of_another_name_is_not_found(serve: Serve) -> None:
    """An answer for a name that nobody gave would hide a mistake."""
    served = await serve(Echo())
    health = health_pb2_grpc.HealthStub(served.channel)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=PATIENCE_S)
    assert grpc.StatusCode.NOT_FOUND is raised.value.code()


@pytest.mark.parametrize("name", HEALTH_NAMES)
async def test_who_watches_health_learns_of_the_drain(serve: Serve, name: str) -> None:
    """It tells at once, while open streams still finish."""
    served = await serve(Echo())
    open_stream = served.process()
    assert b"x" == await exchange(open_stream, b"x")
    health = health_pb2_grpc.HealthStub(served.channel)
    asked = health_pb2.HealthCheckRequest(service=name)
    watch: Any = health.Watch(asked, timeout=PATIENCE_S)
    assert SERVING == (await watch.read()).status
    draining = asyncio.create_task(served.server.drain(PATIENCE_S))
    assert NOT_SERVING == (await watch.read()).status
    watch.cancel()
    await open_stream.done_writing()
    await draining


# --- Draining ------------------------------------------------------------------------------------


async def test_a_drain_lets_open_streams_finish_and_takes_no_new_ones(serve: Serve) -> None:
    """The open one is answered to its end; a new client finds nobody."""
    served = await serve(Echo())
    call = served.process()
    assert b"1" == await exchange(call, b"1")
    draining = asyncio.create_task(served.server.drain(PATIENCE_S))
    async with client(served.path) as channel:
        method: Any = channel.stream_stream("/x/y")
        late = method(timeout=PATIENCE_S)
        assert await read(late) is None
        assert grpc.StatusCode.UNAVAILABLE is await late.code()
    assert not draining.done()
    assert b"2" == await exchange(call, b"2")
    await call.done_writing()
    assert await read(call) is None
    assert grpc.StatusCode.OK is await call.code()
    await draining
    assert not served.path.exists()


async def test_a_drain_cuts_what_does_not_finish(serve: Serve) -> None:
    """The bound holds; a stream that is cut ends once, like any other."""
    handler = Stuck()
    served = await serve(handler)
    call = served.process()
    await call.write(b"wait")
    await handler.waiting.wait()
    await served.server.drain(0)
    await served.handler.ended(1)
    assert await read(call) is None
    assert grpc.StatusCode.OK is not await call.code()


async def test_a_drain_leaves_the_socket_of_its_successor_alone(serve: Serve) -> None:
    """A new server may have taken the path while the old one finishes its streams."""
    old = await serve(Echo())
    call = old.process()
    assert b"1" == await exchange(call, b"1")
    draining = asyncio.create_task(old.server.drain(PATIENCE_S))
    await asyncio.to_thread(_until_refused, old.path)
    new = await serve(Echo())
    await call.done_writing()
    await draining
    assert new.path.exists()
    assert b"x" == await exchange(new.process(), b"x")


def _until_refused(path: Path) -> None:
    """Connect until nobody listens any more."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                return


# --- Addresses -----------------------------------------------------------------------------------


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


async def test_the_socket_is_for_owner_and_group_only(serve: Serve) -> None:
    """Whoever may connect may read prompts."""
    served = await serve(Echo())
    mode = served.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert 0o660 == stat.S_IMODE(mode)


async def test_a_socket_file_nobody_listens_on_is_replaced(serve: Serve, tmp_path: Path) -> None:
    """A server that was killed leaves one behind."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "ext_proc.sock"))
    served = await serve(Echo())
    assert b"x" == await exchange(served.process(), b"x")


async def test_a_socket_another_server_listens_on_is_refused(serve: Serve, make: Make) -> None:
    """Two servers on one path would leave one of them without a way to it."""
    served = await serve(Echo())
    with pytest.raises(OSError, match=r"another server listens on .*stop it"):
        await make(Echo(), f"unix:{served.path}").start()
    assert b"x" == await exchange(served.process(), b"x")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_a_file_that_is_no_socket_is_left_alone(
    tmp_path: Path, kind: str, make: Make
) -> None:
    """It may be anything, a typo in the settings included."""
    path = tmp_path / "precious"
    match kind:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="precious exists and is not a socket"):
        await make(Echo(), f"unix:{path}").start()
    assert path.is_symlink() or path.exists()


async def test_the_folder_of_the_socket_is_made(tmp_path: Path, make: Make) -> None:
    """A container's /run is empty at first."""
    path = tmp_path / "a" / "b" / "s"
    server = make(Echo(), f"unix:{path}")
    await server.start()
    assert path.is_socket()
    await server.drain(0)


async def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path, make: Make) -> None:
    """One that the caller can report."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        await make(Echo(), f"unix:{tmp_path}/file/s").start()


async def test_an_address_in_use_is_an_error(make: Make) -> None:
    """TCP: no second server shares the port silently."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {listen}"):
            await make(Echo(), listen).start()


async def test_a_path_that_is_too_long_is_an_error(tmp_path: Path, make: Make) -> None:
    """A Unix socket's path has 107 bytes at most (unix(7))."""
    with pytest.raises(OSError, match="cannot listen on unix:"):
        await make(Echo(), f"unix:{tmp_path}/{'x' * 107}").start()


async def test_an_abstract_socket_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make
) -> None:
    """`unix:@name`, as Envoy's pipes write it."""
    monkeypatch.chdir(tmp_path)
    name = tmp_path.name + str(id(tmp_path))
    server = make(Echo(), f"unix:@{name}")
    await server.start()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(f"\0{name}")
    assert [] == names_in(tmp_path)
    await server.drain(0)


async def test_a_tcp_address_serves_too(make: Make) -> None:
    """For a server that does not share a file system with its proxy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    server = make(Echo(), listen)
    await server.start()
    async with grpc.aio.insecure_channel(listen) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert SERVING == answer.status
    await server.drain(0)


# --- A connection that comes as the server goes --------------------------------------------------


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_is_accepted_as_the_server_closes_is_known(turns: int) -> None:
    """Whatever turn of the loop that is in; else nobody would ever end it."""
    known: list[asyncio.Protocol] = []

    class Known(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            known.append(self)
            transport.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Known, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as peer:
        peer.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await close(server)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):  # it was not accepted
                assert b"" == await loop.sock_recv(peer, 1)
                assert 1 == len(known)


async def test_a_server_whose_close_is_cancelled_listens_no_more() -> None:
    """A client would wait for somebody to accept it."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    closing = asyncio.create_task(close(server))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ConnectionRefusedError), socket.create_connection(address):
        pass


@pytest.mark.parametrize("turns", range(6))
async def test_a_drain_ends_a_connection_that_comes_with_it(
    tmp_path: Path, make: Make, turns: int
) -> None:
    """At the latest when its time is over."""
    server = make(Echo(), f"unix:{tmp_path}/s")
    await server.start()
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{tmp_path}/s")
        peer.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.drain(0)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                while await loop.sock_recv(peer, 4096):
                    pass
