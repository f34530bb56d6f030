"""An upstream that says what a test has it say, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from ext_proc.transport.address import close

PATIENCE_S: Final = 60.0


class Asked:
    """A request that came whole, to be answered by hand: a head, chunks of a body, its end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = b""
    ) -> None:
        self.request: Final = request
        """Its head."""
        self._reader: Final = reader
        self._writer: Final = writer
        self._over: Final = asyncio.Event()

    async def head(self, kind: str, *lines: str, length: int | None = None) -> None:
        """Begin a reply; without a `length` its body is chunked."""
        await self.raw(_head(kind, lines, length))

    async def chunk(self, data: bytes) -> None:
        """Send a chunk of the body."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()

    async def end(self, *trailers: str) -> None:
        """End a chunked reply."""
        await self.raw("\r\n".join(("0", *trailers, "", "")).encode())
        self.over()

    async def whole(self, kind: str, body: bytes, *lines: str) -> None:
        """Send a reply that says its length, in one write."""
        await self.raw(_head(kind, lines, len(body)) + body)
        self.over()

    def over(self) -> None:
        """Let the connection take the next request."""
        self._over.set()

    def die(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()
        self.over()

    def hang_up(self) -> None:
        """Close the connection when all that was sent has gone out."""
        self._writer.close()
        self.over()

    async def left(self) -> None:
        """Wait until whoever asked has closed the connection."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                assert b"" == await self._reader.read()
        self.over()

    async def until_over(self) -> None:
        """Wait for the end of the reply."""
        await self._over.wait()


def _head(kind: str, lines: Sequence[str], length: int | None) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    head = ("HTTP/1.1 200 OK", f"content-type: {kind}", framing, *lines, "", "")
    return "\r\n".join(head).encode()


class ByHand:
    """Takes connections from a socket that listens, and gives requests to who waits for them."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening: Final = listening.dup()  # closed with the server, the original is not
        self._asked: Final[asyncio.Queue[Asked]] = asyncio.Queue()
        self._open: Final[dict[asyncio.Task[Any], tuple[asyncio.StreamWriter, list[Asked]]]] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._listening)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        await close(self._server)
        tasks = [*self._open]
        for writer, asked in self._open.values():
            writer.transport.abort()
            for one in asked:
                one.over()
        await asyncio.gather(*tasks)
        await self._server.wait_closed()

    async def asked(self) -> Asked:
        """Wait for the next request."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._asked.get()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        _, taken = self._open[task] = (writer, [])
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                asked = Asked(reader, writer, head)
                taken.append(asked)
                self._asked.put_nowait(asked)
                await asked.until_over()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            del self._open[task]
            writer.close()
