"""Send what a simulated replica replies, as the request's headers command it."""

from __future__ import annotations

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web

from ext_proc.tools import simulated_apis as apis

APART_S: Final = 0.002  # chunks written in one breath would arrive as one


@dataclass(frozen=True, slots=True)
class Commands:
    """What the request's headers ask of the simulator."""

    status: int = 200
    delay_s: float = 0.0
    chunks: tuple[bytes, ...] | None = None
    close_bytes: int | None = None
    close_chunks: int | None = None
    gzip: bool = False
    echo: bool = False
    no_done: bool = False
    crlf: bool = False
    tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, headers: Mapping[str, str], attempt: int) -> Commands:
        """Read the `x-test-` headers; raise `ValueError` for one that means nothing."""
        statuses = headers.get("x-test-status", "200").split(",")
        close = headers.get("x-test-close", "").split()
        in_chunks = len(close) == 2 and close[1].startswith("chunk")
        tokens = headers.get("x-test-tokens")
        return cls(
            status=int(statuses[min(attempt, len(statuses) - 1)]),
            delay_s=float(headers.get("x-test-delay", 0)),
            chunks=_chunks(headers["x-test-sse"]) if "x-test-sse" in headers else None,
            close_bytes=int(close[0]) if close and not in_chunks else None,
            close_chunks=int(close[0]) if in_chunks else None,
            gzip="x-test-gzip" in headers,
            echo="x-test-echo" in headers,
            no_done="x-test-no-done" in headers,
            crlf="x-test-crlf" in headers,
            tokens=int(tokens) if tokens else None,
            headers=msgspec.json.decode(headers.get("x-test-headers", "{}"), type=dict[str, str]),
        )


def _chunks(value: str) -> tuple[bytes, ...]:
    if value.startswith("["):
        return tuple(chunk.encode() for chunk in msgspec.json.decode(value, type=list[str]))
    return tuple(base64.b64decode(chunk, validate=True) for chunk in value.split(","))


class Refused(Exception):
    """A request gets an error; `status` and `text` go into the provider's shape."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


async def apart(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Give chunks one by one."""
    for index, chunk in enumerate(chunks):
        if index:
            await asyncio.sleep(APART_S)
        yield chunk


class Sender:
    """Writes one reply, compressed or cut off as the commands say."""

    def __init__(
        self, request: web.BaseRequest, headers: dict[str, str], commands: Commands
    ) -> None:
        self.headers: Final = headers
        self.commands: Final = commands
        self._request: Final = request
        self._zip: Final = zlib.compressobj(wbits=31) if commands.gzip else None  # 31: gzip

    async def whole(self, body: bytes, status: int | None = None) -> web.StreamResponse:
        """Send a body of known length."""
        data = self._pack(body) + (self._zip.flush() if self._zip else b"")
        response = self._response(apis.JSON, status)
        response.content_length = len(data)

        async def once() -> AsyncIterator[bytes]:
            yield data

        return await self._write(response, once())

    async def stream(self, kind: str, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        """Send chunks as they come; the head goes out with the first one."""

        async def packed() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                flushed = self._zip.flush(zlib.Z_SYNC_FLUSH) if self._zip else b""
                yield self._pack(chunk) + flushed
            if self._zip:
                yield self._zip.flush()

        return await self._write(self._response(kind, None), packed())

    def _pack(self, data: bytes) -> bytes:
        return self._zip.compress(data) if self._zip else data

    def _response(self, kind: str, status: int | None) -> web.StreamResponse:
        headers = {"content-type": kind, **self.headers}
        if self._zip:
            headers["content-encoding"] = "gzip"
        return web.StreamResponse(status=status or self.commands.status, headers=headers)

    async def _write(
        self, response: web.StreamResponse, chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        left, count = self.commands.close_bytes, 0
        if left == 0:
            self._drop()
            return response
        if self._request.method == "HEAD":
            await response.prepare(self._request)
            return response
        async for chunk in chunks:
            if not response.prepared:
                await response.prepare(self._request)
            if left is not None and len(chunk) >= left:
                await response.write(chunk[:left])
                self._drop()
                break
            await response.write(chunk)
            left = None if left is None else left - len(chunk)
            count += 1
            if count == self.commands.close_chunks:
                self._drop()
                break
        if not response.prepared:
            await response.prepare(self._request)
        return response

    def _drop(self) -> None:
        if self._request.transport is not None:
            self._request.transport.close()
