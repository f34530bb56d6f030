"""A gateway on another machine may speak TLS, to a server whose certificate vouches for itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ext_proc.transport import Handler, Server
from ext_proc.transport.address import EXT_PROC
from ext_proc.transport.grpc_aio import GrpcServer
from ext_proc.transport.identity import Identity
from ext_proc.transport.native import NativeServer
from tests.ext_proc.test_session import request, stage
from tests.proof import write_proof
from tests.protocol.conftest import ask, ext_proc

MOST_BYTES = 10 * 1024 * 1024


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    path = tmp_path / "proof.pem"
    write_proof(path)
    return path


@pytest.fixture(params=["grpc", "native"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make(kind: str, handler: Handler, listen: str, identity: Identity) -> Server:
    if kind == "grpc":
        return GrpcServer(handler, listen, most_message_bytes=MOST_BYTES, identity=identity)
    return NativeServer(handler, listen, most_message_bytes=MOST_BYTES, identity=identity)


@pytest.fixture
async def socket(tmp_path: Path, proof: Path, kind: str) -> AsyncIterator[Path]:
    """Run a server that speaks TLS; return its socket."""
    path = tmp_path / "s"
    handler, watch = ext_proc(stage().gateway)
    server = make(kind, handler, f"unix:{path}", Identity(proof, proof))
    await server.start()
    yield path
    await server.drain(0)
    assert [] == watch.failed


async def test_an_exchange_goes_over_tls(socket: Path, proof: Path) -> None:
    """With bodies larger than what TLS puts into a record."""
    credentials = grpc.ssl_channel_credentials(await asyncio.to_thread(proof.read_bytes))
    options = (("grpc.ssl_target_name_override", "127.0.0.1"),)
    async with grpc.aio.secure_channel(f"unix:{socket}", credentials, options) as channel:
        method: Any = channel.stream_stream(f"/{EXT_PROC}/Process")
        call = method(metadata=(("x-forebay-profile", "default"),), timeout=60)
        answers = await ask(call, request())
        assert None not in answers
        text = b"x" * 1_000_000
        body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text
        call = method(metadata=(("x-forebay-profile", "default"),), timeout=60)
        assert None not in await ask(call, request(body))


async def test_http_2_is_what_is_agreed_on(socket: Path) -> None:
    """By ALPN, without which gRPC clients do not go on."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_unix_connection(str(socket), ssl=context, server_hostname="x")
    assert "h2" == writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()


async def test_who_speaks_no_tls_is_not_served(socket: Path) -> None:
    """The connection ends."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    async with asyncio.timeout(60):
        answer = await reader.read(9)
    assert not answer.endswith(b"\x04\x00\x00\x00\x00\x00")  # no SETTINGS
    writer.close()


@pytest.mark.parametrize("there", [False, True], ids=["missing", "no PEM"])
async def test_a_certificate_that_will_not_do_stops_the_start(
    tmp_path: Path, kind: str, *, there: bool
) -> None:
    """The error names the files."""
    path = tmp_path / "bad.pem"
    if there:
        path.write_text("no certificate")
    handler, _ = ext_proc(stage().gateway)
    server = make(kind, handler, f"unix:{tmp_path / 's'}", Identity(path, path))
    with pytest.raises(OSError, match=str(path)):
        await server.start()
