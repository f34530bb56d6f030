"""The native server as h2spec needs it: any request is a call, answered when it ends.

h2spec speaks no gRPC, and would see of most streams only how they are refused. So here every path
is served, any bytes are a message, and blocks may use a table, of the default size: h2spec uses
one even when it was told that there is none. Everything else is the server as it runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from ext_proc.transport import Stream
from ext_proc.transport.http2 import Limits, fields, frames, request, stream
from ext_proc.transport.native import NativeServer

STREAMS = 100  # few enough for h2spec to open one more
TABLE_BYTES = 4_096
WRITE_SETTINGS = frames.settings


async def answer(stream: Stream, message: bytes | None) -> None:
    """Reply when the request is whole."""
    if message is None:
        await stream.send(b"pong")


def take(_: stream.Stream, data: bytes, start: int, end: int) -> Sequence[bytes]:
    """Take any bytes as a message."""
    return (data[start:end],)


def any_request(pseudo: Any, values: Any, routes: Any) -> request.Request:
    """Take any request for a call."""
    length = request._length(values)
    return request.Request(answer, None, length)


def settings(values: dict[frames.Setting, int]) -> bytes:
    """Announce a table."""
    return WRITE_SETTINGS({**values, frames.Setting.HEADER_TABLE_SIZE: TABLE_BYTES})


async def serve(port: int) -> None:
    """Serve until killed."""
    server = NativeServer(answer, f"127.0.0.1:{port}", most_message_bytes=1024 * 1024)
    server.limits = Limits(1024 * 1024, streams=STREAMS)
    await server.start()
    print("serving", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "_request", any_request)
        patch.setattr(stream.Stream, "take", take)
        patch.setattr(frames, "settings", settings)
        patch.setattr(fields.FieldReader, "acknowledged", lambda _: None)
        asyncio.run(serve(int(sys.argv[1])))
