"""What the end-to-end tests share: a running gateway, a way to start others, an HTTP client."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller
from tests.e2e.by_hand import ByHand
from tests.gateway import FOREBAY, SHIPPED, Edit, Gateway, Log, Upstream
from tests.held_upstream import HeldUpstream
from tests.otlp import OtlpReceiver, otlp_receiver

MOST_LINES: Final = 200  # of each log, under a test that failed
# A browser is 300 MB: `make test-browser` brings one, and says where it is.
collect_ignore: Final = [] if "FOREBAY_TEST_CHROMIUM" in os.environ else ["test_browser.py"]
_GATEWAYS: Final = pytest.StashKey[list[Gateway]]()
_MARKS: Final = pytest.StashKey[dict[Log, int]]()


class Gateways:
    """Starts gateways; what they wrote is shown under a test that fails."""

    def __init__(self, opened: list[Gateway]) -> None:
        self._opened: Final = opened

    @contextlib.contextmanager
    def open(
        self,
        *,
        upstream: Upstream | None = None,
        pools: dict[str, list[int]] | None = None,
        otlp: str = "",
        environ: dict[str, str] | None = None,
        edit: Edit | None = None,
        program: Sequence[str] = FOREBAY,
        server: bool = True,
        envoy: bool = True,
        file: Path = SHIPPED,
    ) -> Iterator[Gateway]:
        """Run a gateway; without `server` or `envoy` the test starts these itself."""
        # Not pytest's own folder: its path may be longer than a socket's may be.
        with tempfile.TemporaryDirectory(prefix="forebay-test-") as folder:
            gateway = Gateway(
                Path(folder),
                upstream=upstream,
                pools=pools,
                otlp=otlp,
                environ=environ,
                edit=edit,
                program=program,
                file=file,
            )
            self._opened.append(gateway)
            try:
                if server:
                    gateway.start_server()
                if envoy:
                    gateway.start_envoy()
                yield gateway
            finally:
                gateway.stop()


@pytest.fixture(scope="session")
def gateways(pytestconfig: pytest.Config) -> Gateways:
    return Gateways(pytestconfig.stash.setdefault(_GATEWAYS, []))


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    """Run simulated replicas, one for each pool."""
    upstream = Upstream()
    upstream.start()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="session")
def receiver() -> Iterator[OtlpReceiver]:
    """Run an OTLP receiver."""
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def gateway(gateways: Gateways, upstream: Upstream, receiver: OtlpReceiver) -> Iterator[Gateway]:
    """Run the gateway on which every test works that breaks nothing; at the end nothing has.

    No program crashed, no stream was given up, no filter failed, no line was lost.
    """
    with gateways.open(upstream=upstream, otlp=receiver.endpoint) as gateway:
        yield gateway
        gateway.settle()
        bad = ("forebay_stream_failures", "forebay_filter_errors", "forebay_log_lines_lost")
        counted = gateway.metrics().items()
        assert {} == {name: value for name, value in counted if value and name.startswith(bad)}
        assert [] == [line for line in gateway.server_log.since() if '"level":"error"' in line]
        assert [None, None] == gateway.ended()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client that shows bodies as they come and waits for no free connection."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        yield session


@pytest.fixture
def call(http: aiohttp.ClientSession, gateway: Gateway) -> Caller:
    """Call the shared gateway, as a tenant of this test's own."""
    return Caller(http, gateway.url, key=f"key-{uuid.uuid4().hex}")


@pytest.fixture
def question() -> str:
    """Return a question that nobody asked before, and that no word makes a low-risk task."""
    return f"Why is basin {uuid.uuid4().hex} calm?"


@pytest.fixture(params=["grpc", "native"])
def transport(request: pytest.FixtureRequest) -> Edit:
    """Have the server speak through each of its transports in turn."""

    def edit(tree: dict[str, Any]) -> None:
        tree["node"]["metadata"]["forebay"]["server"]["transport"] = request.param

    return edit


@pytest.fixture
async def held() -> AsyncIterator[HeldUpstream]:
    """Run an upstream that answers when the test says so."""
    async with HeldUpstream() as held:
        yield held


# --- Logs under failures -------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember where each log stands when a test begins."""
    gateways = item.config.stash.get(_GATEWAYS, [])
    item.stash[_MARKS] = {log: log.mark() for gateway in gateways for log in gateway.logs}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Show what every gateway wrote during a test that failed."""
    report = yield
    if report.failed:
        marks = item.stash.get(_MARKS, {})
        for gateway in item.config.stash.get(_GATEWAYS, []):
            for log in gateway.logs:
                if lines := log.since(marks.get(log, 0)):
                    text = "\n".join(lines[-MOST_LINES:])
                    report.sections.append((f"{log.name} at {gateway.url}", text))
    return report


@pytest.fixture(scope="module")
def listening() -> Iterator[socket.socket]:
    """Listen for as long as there are gateways, so that nobody else takes the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
async def by_hand(listening: socket.socket) -> AsyncIterator[ByHand]:
    """Answer as the test says."""
    async with ByHand(listening) as by_hand:
        yield by_hand
