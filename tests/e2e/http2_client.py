"""An HTTP/2 client that reads each of its streams as far as a test says, on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset

from tests.calls import Ask

PATIENCE_S: Final = 60.0
STREAM_WINDOW_BYTES: Final = 65_535  # HTTP/2's default, and python-hyper's
CONNECTION_WINDOW_BYTES: Final = 15 * 1024 * 1024  # a browser's: never what a stream waits for
READ_BYTES: Final = 65_536


class Read:
    """A reply on its way in."""

    def __init__(self, number: int, *, reads: bool) -> None:
        self.number: Final = number
        self.reads = reads
        """Whether its window is opened again by what was taken from it."""
        self.status = 0
        self.body: Final = bytearray()
        self.ended = False
        self.was_reset = False
        self.owed = 0
        """Bytes that came since its window was opened last."""


class Http2Client:
    """One connection; its own window stays open, a stream's only while that one reads."""

    def __init__(self, port: int) -> None:
        self._port: Final = port
        self._h2: Final = H2Connection(H2Configuration(client_side=True))
        self._reads: Final[dict[int, Read]] = {}
        self._changed: Final = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - STREAM_WINDOW_BYTES)
        await self._flush()
        self._pump = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.transport.abort()
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def ask(self, ask: Ask, profile: str, *, reads: bool) -> Read:
        """Send a request; what comes back is in what is returned."""
        read = Read(self._h2.get_next_available_stream_id(), reads=reads)
        self._reads[read.number] = read
        head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "gateway"),
            (":path", f"/p/{profile}{ask.path}"),
            ("content-type", "application/json"),
            ("content-length", str(len(ask.body))),
        ]
        self._h2.send_headers(read.number, head)
        self._h2.send_data(read.number, ask.body, end_stream=True)
        await self._flush()
        return read

    async def go_on(self, read: Read) -> None:
        """Have a stream read on that did not."""
        read.reads = True
        self._open_window(read)
        await self._flush()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until something that came makes it true."""
        async with self._changed, asyncio.timeout(PATIENCE_S):
            await self._changed.wait_for(lambda: done() or self._pump.done())
        if self._pump.done():
            await self._pump  # says why nothing more comes
        assert done()

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                for event in self._h2.receive_data(data):
                    match event:
                        case DataReceived():
                            self._take(event)
                        case ResponseReceived():
                            head = dict(event.headers)
                            self._reads[event.stream_id].status = int(head[b":status"])
                        case StreamEnded():
                            self._reads[event.stream_id].ended = True
                        case StreamReset():
                            self._reads[event.stream_id].was_reset = True
                for read in self._reads.values():
                    self._open_window(read)
                await self._flush()
                async with self._changed:
                    self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()

    def _take(self, event: DataReceived) -> None:
        read = self._reads[event.stream_id]
        read.body.extend(event.data)
        read.owed += event.flow_controlled_length
        if event.flow_controlled_length:
            self._h2.increment_flow_control_window(event.flow_controlled_length)

    def _open_window(self, read: Read) -> None:
        if read.owed and read.reads and not read.ended:
            self._h2.increment_flow_control_window(read.owed, read.number)
            read.owed = 0

    async def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()
