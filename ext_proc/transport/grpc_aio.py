"""The transport over grpc.aio: complete and proven, at the price of its system calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import grpc
from grpc.aio import EOF, ServicerContext
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from ext_proc.transport import ENVELOPE_BYTES, Handler
from ext_proc.transport.address import (
    EXT_PROC,
    HEALTH_NAMES,
    SOCKET_MODE,
    replace_stale_socket,
    socket_path,
)
from ext_proc.transport.identity import Identity
from filters.lockstep import ALONE


class GrpcStream:
    """A stream over a grpc.aio context."""

    lockstep: Final = ALONE  # grpc.aio has a task for each stream
    __slots__ = (
        "_context", "_posted", "_reader", "_writer", "closed", "failure", "metadata", "state"
    )  # fmt: skip

    def __init__(self, context: ServicerContext[bytes, bytes]) -> None:
        self._context = context
        self.metadata: Mapping[str, str] = {
            key: value
            for key, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        self.state: Any = None
        self.closed = False
        self.failure: str | None = None
        self._reader: asyncio.Task[Any] | None = None
        """The task of the read loop, while it reads."""
        self._writer: asyncio.Task[None] | None = None
        self._posted: deque[bytes] = deque()

    async def read(self) -> Any:
        """Return the next message, or `EOF`."""
        task = self._reader = asyncio.current_task()
        assert task is not None  # of grpc.aio, which calls
        try:
            return await self._context.read()
        except asyncio.CancelledError:
            if self._reader is not None:
                raise
            task.uncancel()
            return EOF  # the stream was closed by us
        finally:
            self._reader = None

    async def send(self, message: bytes) -> None:
        """Write at once: grpc.aio waits when its flow-control window is full."""
        if self._writer is not None:
            await self.written()
        if not self.closed:
            await self._context.write(message)

    def post(self, message: bytes) -> None:
        """Write in a task: grpc.aio takes one message at a time."""
        if self.closed:
            return
        self._posted.append(message)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._posted:
                await self._context.write(self._posted.popleft())
        except Exception:  # noqa: BLE001 - the peer left, which the read loop hears as well
            self._posted.clear()
        finally:
            self._writer = None

    def has_room(self) -> bool:
        """Tell whether all that was posted went."""
        return self._writer is None

    async def written(self) -> None:
        """Wait until all that was posted went."""
        while self._writer is not None:
            await asyncio.wait((self._writer,))

    def close(self) -> None:
        """Leave the read loop after the message at hand, or at once where there is none."""
        self.closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()

    def fail(self, reason: str) -> None:
        """Leave the read loop with a status that is not OK."""
        self.closed = True
        self.failure = reason


class GrpcServer:
    """Listens on a Unix socket (`unix:/path`, `unix:@name`) or a TCP address (`host:port`)."""

    def __init__(
        self,
        handler: Handler,
        listen: str,
        *,
        most_message_bytes: int,
        service: str = EXT_PROC,
        method: str = "Process",
        identity: Identity | None = None,
    ) -> None:
        self._handler: Final = handler
        self._listen: Final = listen
        self._identity: Final = identity
        self._server: Final = grpc.aio.server(
            options=(
                # gRPC's own bound is 4 MiB a message.
                ("grpc.max_receive_message_length", most_message_bytes + ENVELOPE_BYTES),
                ("grpc.max_send_message_length", most_message_bytes + ENVELOPE_BYTES),
                ("grpc.so_reuseport", 0),  # two servers on one port would share it silently
                # Envoy's pings on a quiet connection are no abuse.
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            )
        )
        self._health: Final = HealthServicer()
        process: Any = grpc.stream_stream_rpc_method_handler(self._process)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: process}),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> None:
        """Bind and listen; a stale socket file is replaced, a live one is an `OSError`."""
        path = socket_path(self._listen)
        if path is not None:
            replace_stale_socket(path)
        try:
            # What Envoy's pipes write as `@name` gRPC knows under a scheme of its own.
            address = self._listen.replace("unix:@", "unix-abstract:", 1)
            if self._identity is None:
                port = self._server.add_insecure_port(address)
            else:
                pair = self._identity.key_and_chain()
                credentials = grpc.ssl_server_credentials([pair])
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:  # grpc's word for an address in use
            raise OSError(f"cannot listen on {self._listen}: {error}") from None
        if port == 0:
            raise OSError(f"cannot listen on {self._listen}")
        await self._server.start()
        if path is not None:
            path.chmod(SOCKET_MODE)
        await self._report(serving=True)

    async def drain(self, bound_s: float) -> None:
        """Take no more streams and wait for the open ones.

        gRPC removes the socket file at once, so that a successor may take its place meanwhile.
        """
        await self._report(serving=False)
        await self._server.stop(bound_s)

    async def _report(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in HEALTH_NAMES:
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def _process(self, _: Any, context: ServicerContext[bytes, bytes]) -> None:
        """Hand over the messages of one stream; it is over when the peer says so, or we do."""
        stream = GrpcStream(context)
        try:
            while not stream.closed:
                message = await stream.read()
                if message is EOF:
                    break
                await self._handler(stream, message)
            await stream.written()
        finally:
            # Also when cancelled: a cancellation is delivered once, so this still runs to its end.
            stream.closed = True
            await self._handler(stream, None)
        if stream.failure is not None:
            context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
            context.set_details(stream.failure)
