"""Which transport the settings choose, and what it shows of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ext_proc.app import open_transport
from ext_proc.config import ServerSettings, Transport
from ext_proc.transport import Stream
from ext_proc.transport.grpc_aio import GrpcServer
from ext_proc.transport.http2 import Reason
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.native import NativeServer
from tests.ext_proc.test_telemetry import Books
from tests.http2_peer import GREETING
from tests.protocol.test_native import plain, read_all


async def ignore(stream: Stream, message: bytes | None) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("transport", "kind"), [(Transport.GRPC, GrpcServer), (Transport.NATIVE, NativeServer)]
)
async def test_the_setting_chooses_the_transport(transport: Transport, kind: type) -> None:
    """Both are servers of the same seam."""
    settings = ServerSettings(transport=transport)
    assert kind is type(open_transport(settings, ignore, Books().telemetry))


async def test_the_native_transport_counts_what_it_gives_up(tmp_path: Path) -> None:
    """By reason, each from zero; and how much is open."""
    books = Books()
    settings = ServerSettings(listen=f"unix:{tmp_path}/s", transport=Transport.NATIVE)
    server = open_transport(settings, ignore, books.telemetry)
    for reason in Reason:
        assert 0 == books.value("protocol_errors_total", reason=reason)
    await server.start()
    assert (0, 0) == (books.value("connections"), books.value("streams"))
    with plain(tmp_path / "s") as connected:
        connected.sendall(GREETING + wire.frame(wire.PING, 0, 0, b"short"))
        await asyncio.to_thread(read_all, connected)
    assert 1 == books.value("protocol_errors_total", reason="frame_size")
    await server.drain(0)
