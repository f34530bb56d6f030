"""Stand in for what a measured gateway talks to: as little work as each can do.

`noop` is an ext_proc server that lets every request pass without reading it: what a server costs at
least over that transport. `spans` takes OTLP spans and forgets them. `stream` answers any request
with an event stream, piece by piece: a short one at once, and under `LONG` and `HELD` others.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Final, cast

import msgspec

from ext_proc.codec import Pass, encode
from ext_proc.conversation import Message
from ext_proc.transport import Server, Stream
from ext_proc.transport.grpc_aio import GrpcServer
from ext_proc.transport.native import NativeServer

MOST_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # as the shipped configuration allows Forebay
SPANS_SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
PIECES: Final = 20
LONG_PIECES: Final = 120
LONG: Final = "/long/"  # the path of the long stream
HELD: Final = "/held/"  # the path of one that begins late
HELD_S: Final = 0.25
PIECE_PAUSE_S: Final = 0.001  # so that the pieces arrive as pieces
PIECE_TEXT: Final = " water must be calm"
_HEADERS_PASS: Final = encode(Pass(Message.REQUEST_HEADERS))
_BODY_PASS: Final = encode(Pass(Message.REQUEST_BODY))
_EXPORTED: Final = b""  # an ExportTraceServiceResponse that says nothing


async def let_pass(stream: Stream, message: bytes | None) -> None:
    """Answer headers, then the body, with bytes made before, and let the proxy go on alone."""
    if message is None:
        return
    if stream.state is None:
        stream.state = True
        await stream.send(_HEADERS_PASS)
    else:
        await stream.send(_BODY_PASS)
        stream.close()


async def take_spans(stream: Stream, message: bytes | None) -> None:
    """Answer a call with success."""
    if message is not None:
        await stream.send(_EXPORTED)
        stream.close()


class Streamer(asyncio.Protocol):
    """Answers each request with the same pieces of an event stream."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._kept = b""
        self._pieces: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        data = self._kept = self._kept + data
        head, end, body = data.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._kept = body[length:]
            self._pieces = _LONG if head.startswith(b"POST " + LONG.encode()) else _SHORT
            if head.startswith(b"POST " + HELD.encode()):
                asyncio.get_running_loop().call_later(HELD_S, self._send, 0)
            else:
                self._send(0)

    def _send(self, piece: int) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(self._pieces[piece])
        if piece + 1 < len(self._pieces):
            asyncio.get_running_loop().call_later(PIECE_PAUSE_S, self._send, piece + 1)


def _stream(length: int) -> list[bytes]:
    """Return a streamed chat completion: a head with the first piece, then one chunk a piece."""
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    pieces: list[bytes] = []
    for number in range(length):
        delta = {"content": PIECE_TEXT} if number else {"role": "assistant", "content": ""}
        last = number == length - 1
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if last else None}
        usage = {"prompt_tokens": 300, "completion_tokens": 80, "total_tokens": 380}
        event = {**envelope, "choices": [choice], **({"usage": usage} if last else {})}
        data = b"data: " + msgspec.json.encode(event) + b"\n\n"
        if last:
            data += b"data: [DONE]\n\n"
        pieces.append(b"%x\r\n%b\r\n" % (len(data), data))
    pieces[0] = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        + pieces[0]
    )
    pieces[-1] += b"0\r\n\r\n"
    return pieces


_SHORT: Final = _stream(PIECES)
_LONG: Final = _stream(LONG_PIECES)


async def stand_in(name: str, listen: str) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if name == "stream":
        host, _, port = listen.rpartition(":")
        async with await loop.create_server(Streamer, host, int(port)):
            await stop.wait()
        return
    server: Server
    if name == "noop-grpc":
        server = GrpcServer(let_pass, listen, most_message_bytes=MOST_MESSAGE_BYTES)
    elif name == "noop-native":
        server = NativeServer(let_pass, listen, most_message_bytes=MOST_MESSAGE_BYTES)
    else:
        server = GrpcServer(
            take_spans,
            listen,
            most_message_bytes=MOST_MESSAGE_BYTES,
            service=SPANS_SERVICE,
            method="Export",  # on the wire a call of one message is a stream of one
        )
    await server.start()
    await stop.wait()
    await server.drain(0)


if __name__ == "__main__":
    import uvloop

    uvloop.run(stand_in(*sys.argv[1:]))
