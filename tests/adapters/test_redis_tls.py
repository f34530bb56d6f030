"""Redis behind TLS is spoken to only where it proves who it is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_store import RedisStore
from filters.errors import ConfigError, PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.proof import write_proof
from tests.redis_server import RedisServer

PATIENT_S = 5.0


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a key and a certificate that vouches for itself, of the address 127.0.0.1."""
    path = tmp_path_factory.mktemp("proof") / "redis.pem"
    write_proof(path)
    return path


@pytest.fixture
async def port(tmp_path: Path, proof: Path) -> AsyncIterator[int]:
    """Run a server behind TLS, which not every build of it has; return the port."""
    server = RedisServer(tmp_path)
    server.start()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(proof)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_pass_on(reader, to_writer), _pass_on(to_reader, writer))

    async with await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context) as front:
        yield front.sockets[0].getsockname()[1]
    server.kill()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def opened(url: str, ca_file: str) -> AsyncIterator[RedisStore]:
    clock = FakeClock()
    client = RedisClient(url, clock, FakeStoreWatch(), timeout_s=PATIENT_S, ca_file=ca_file)
    store = RedisStore(client, clock)
    yield store
    await store.close()


async def test_a_server_that_proves_who_it_is_is_spoken_to(port: int, proof: Path) -> None:
    """The file says whose word counts."""
    async with opened(f"rediss://127.0.0.1:{port}", str(proof)) as store:
        await store.put(b"key", b"value", 10)
        assert b"value" == await store.get(b"key")


@pytest.mark.parametrize(
    ("host", "trusted"), [("127.0.0.1", False), ("localhost", True)], ids=["stranger", "misnamed"]
)
async def test_a_server_that_does_not_is_a_port_error(
    port: int, proof: Path, host: str, trusted: bool
) -> None:
    """Nobody trusted vouches for it, or for another name."""
    async with opened(f"rediss://{host}:{port}", str(proof) if trusted else "") as store:
        with pytest.raises(PortError, match=r"^redis get: ConnectionError$"):
            await store.get(b"key")


@pytest.mark.slow
async def test_a_server_without_tls_is_a_port_error(tmp_path: Path, proof: Path) -> None:
    """No word goes out in the clear."""
    server = RedisServer(tmp_path)
    server.start()
    async with opened(f"rediss://127.0.0.1:{server.port}", str(proof)) as store:
        with pytest.raises(PortError):
            await store.get(b"key")
    server.kill()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none.pem", "cannot read {}: No such file or directory"),
        ("empty.pem", "cannot read {}: no certificates in it"),
    ],
)
def test_a_file_without_certificates_stops_the_start(tmp_path: Path, name: str, why: str) -> None:
    """The message says where it was looked for."""
    (tmp_path / "empty.pem").write_text("")
    path = str(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        RedisClient("rediss://one", FakeClock(), FakeStoreWatch(), ca_file=path)
    assert f"forebay.store.redis.ca_file: {why.format(path)}" == str(caught.value)
