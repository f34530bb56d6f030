"""What envoy/forebay.yaml promises without Forebay: routes, trust, error shapes, log and traces.

Envoy is real and runs the shipped file; only addresses are changed. Where the file's side of the
conversation with Forebay matters, a stub answers that does nothing but what a test's header says.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import grpc
import httpx
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc import aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp

from ext_proc._pb import ext_proc_pb2 as pb
from tests.web_server import end

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

FOLDER: Final = Path(__file__).parents[2] / "envoy"
SHIPPED: Final = FOLDER / "forebay.yaml"
OPENAI_EXAMPLE: Final = FOLDER / "examples" / "upstream-openai.yaml"
PROFILES: Final = sorted(
    yaml.safe_load(SHIPPED.read_text())["node"]["metadata"]["forebay"]["profiles"]
)

OPENAI: Final = "/v1/chat/completions"
ANTHROPIC: Final = "/v1/messages"
GEMINI: Final = "/v1beta/models/some-model:streamGenerateContent?alt=sse"
FORGED: Final = {
    "x-forebay-cluster": "best_effort",
    "x-forebay-anything": "forged",
    "x-model-quality": "forged",
    "x-cache": "forged",
    "x-gateway-destination-endpoint": "192.0.2.1:80",
    "x-gateway-destination-endpoint-subset": "192.0.2.1:80",
    "x-envoy-upstream-rq-timeout-ms": "1",
    "x-envoy-retry-on": "5xx",
}
SAMPLED: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED: Final = "00-1bf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
MIB: Final = 1 << 20

# --- What runs around Envoy ----------------------------------------------------------------------


def _bound() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


@dataclass(slots=True)
class Upstream:
    """A model server that says what it got; `port` stays its own while it is down."""

    name: str
    socket: socket.socket = field(default_factory=_bound)
    runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        port: int = self.socket.getsockname()[1]
        return port

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application(client_max_size=128 * MIB)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, handler_cancellation=True)  # Envoy gave up
        await self.runner.setup()
        await web.SockSite(self.runner, self.socket, ssl_context=tls).start()

    async def stop(self) -> None:
        if self.runner is not None:
            await end(self.runner)
        self.socket.close()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if "x-test-silent" in request.headers:
            await asyncio.Event().wait()
        seen = {
            "upstream": self.name,
            "method": request.method,
            "path": request.raw_path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "bytes": len(body),
        }
        return web.json_response(
            seen, headers={"server": "model-server", "x-forebay-profile": "forged"}
        )


@dataclass(slots=True)
class Stub:
    """In Forebay's place; it does what the request's `x-test-forebay` header says, as JSON."""

    path: Path
    initial_metadata: list[dict[str, str]] = field(default_factory=list)
    server: aio.Server | None = None

    async def start(self) -> None:
        self.server = aio.server(options=[("grpc.max_receive_message_length", 128 * MIB)])
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        service = "envoy.service.ext_proc.v3.ExternalProcessor"
        handlers = grpc.method_handlers_generic_handler(service, {"Process": handler})
        self.server.add_generic_rpc_handlers((handlers,))
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)

    async def _process(
        self, messages: AsyncIterator[pb.ProcessingRequest], context: Any
    ) -> AsyncIterator[pb.ProcessingResponse]:
        pairs = {key: str(value) for key, value in context.invocation_metadata()}
        self.initial_metadata.append(pairs)
        wanted: dict[str, Any] = {}
        async for message in messages:
            response = pb.ProcessingResponse()
            if message.HasField("request_headers"):
                for header in message.request_headers.headers.headers:
                    if header.key == "x-test-forebay":
                        wanted = json.loads(header.raw_value)
                if wanted.get("stuck"):
                    await asyncio.Event().wait()
                response.request_headers.SetInParent()
                yield response
                continue
            metadata = response.dynamic_metadata.fields["forebay"].struct_value.fields
            for name, value in wanted.get("metadata", {}).items():
                metadata[name].string_value = value
            if status := wanted.get("reply"):
                response.immediate_response.status.code = status
                response.immediate_response.body = b"Forebay's own words"
                response.immediate_response.details = wanted.get("details", "")
            else:
                common = response.request_body.response
                for name, value in wanted.get("headers", {}).items():
                    option = common.header_mutation.set_headers.add()
                    option.header.key, option.header.raw_value = name, value.encode()
                common.clear_route_cache = True
            yield response
            return  # the early close after the body's reply


@dataclass(slots=True)
class Receiver:
    """An OTLP receiver that hands out the spans of a trace as they come."""

    port: int = 0
    spans: dict[str, list[Any]] = field(default_factory=dict)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)
    server: aio.Server | None = None

    async def start(self) -> None:
        self.server = aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=otlp.ExportTraceServiceRequest.FromString,
            response_serializer=otlp.ExportTraceServiceResponse.SerializeToString,
        )
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        handlers = grpc.method_handlers_generic_handler(service, {"Export": handler})
        self.server.add_generic_rpc_handlers((handlers,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)

    async def trace(self, traceparent: str, count: int) -> list[Any]:
        """Wait for `count` spans of the trace that `traceparent` names."""
        trace_id = traceparent.split("-")[1]
        async with asyncio.timeout(60), self.came:
            await self.came.wait_for(lambda: len(self.spans.get(trace_id, ())) >= count)
        return self.spans[trace_id]

    async def _export(
        self, request: otlp.ExportTraceServiceRequest, _: Any
    ) -> otlp.ExportTraceServiceResponse:
        async with self.came:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans.setdefault(span.trace_id.hex(), []).append(span)
            self.came.notify_all()
        return otlp.ExportTraceServiceResponse()


class Envoy:
    """Real Envoy on a configuration, on ports of its own choosing."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        file = folder / "envoy.json"
        file.write_text(json.dumps(config))
        self._admin = folder / "admin"
        command = [
            _binary(),
            *("-c", str(file), "--admin-address-path", str(self._admin)),
            *("--concurrency", "1", "--disable-hot-restart", "--file-flush-interval-msec", "10"),
            *("--log-level", "warning", "--component-log-level", "config:info"),
        ]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._said = threading.Condition()
        self._lines: list[str] = []
        self._shown = 0
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(each,)) for each in streams]
        for reader in self._readers:
            reader.start()

    async def ready(self) -> str:
        """Wait until it listens and return its URL."""
        await self.line("starting workers")
        async with httpx.AsyncClient() as client:
            listed = await client.get(f"http://{self._admin.read_text()}/listeners?format=json")
        listeners = listed.json()["listener_statuses"]
        (ingress,) = (one for one in listeners if one["name"] == "ingress")
        address = ingress["local_address"]["socket_address"]
        return f"http://127.0.0.1:{address['port_value']}"

    async def counter(self, name: str) -> int:
        """Return what Envoy counted; it must know the name."""
        async with httpx.AsyncClient() as client:
            url = f"http://{self._admin.read_text()}/stats?filter=^{re.escape(name)}$"
            return int((await client.get(url)).text.rpartition(": ")[2])

    async def line(self, part: str) -> str:
        """Wait for a line with `part` in it, of its log or its access log, and return it."""
        return await asyncio.to_thread(self._wait_for, part)

    def show(self) -> None:
        """Print what it said since the last time; pytest passes it on when a test failed."""
        lines, self._shown = self._lines[self._shown :], len(self._lines)
        sys.stderr.write("".join(lines))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        self.show()

    def _wait_for(self, part: str) -> str:
        def found() -> str | None:
            return next((line for line in self._lines if part in line), None)

        with self._said:
            line = self._said.wait_for(found, timeout=60)
        assert line is not None, f"Envoy did not say {part!r}"
        return line

    def _read(self, stream: IO[str]) -> None:
        # All of it and at once: Envoy stands still when nobody reads what it writes.
        with stream:
            for line in stream:
                with self._said:
                    self._lines.append(line)
                    self._said.notify_all()


@dataclass(frozen=True, slots=True)
class World:
    """Envoy and what stands around it."""

    envoy: Envoy
    url: str
    full: Upstream
    best_effort: Upstream
    stub: Stub
    receiver: Receiver

    def client(self, *, http2: bool = False) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, http1=not http2, http2=http2, timeout=60)


def _binary() -> str:
    found = shutil.which("envoy")
    assert found is not None, "no envoy on the PATH"
    return found


def _config(file: Path, ports: dict[str, int], pipe: Path) -> dict[str, Any]:
    """Return a shipped configuration with other addresses."""
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    for listener in config["static_resources"]["listeners"]:
        listener["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": 0}}
    for cluster in config["static_resources"]["clusters"]:
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"][
            "address"
        ]
        if cluster["name"] == "forebay":
            address["pipe"]["path"] = str(pipe)
        else:
            address["socket_address"] |= {
                "address": "127.0.0.1",
                "port_value": ports.get(cluster["name"], 1),
            }
    return config


def _manager(config: dict[str, Any]) -> dict[str, Any]:
    listener = config["static_resources"]["listeners"][0]
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


@contextlib.asynccontextmanager
async def _world(folder: Path, *, route_timeout: str = "") -> AsyncIterator[World]:
    full, best_effort = Upstream("full"), Upstream("best_effort")
    stub, receiver = Stub(folder / "forebay.sock"), Receiver()
    await receiver.start()
    ports = {"full": full.port, "best_effort": best_effort.port, "otel": receiver.port}
    config = _config(SHIPPED, ports, stub.path)
    # Spans leave within 20 ms rather than 5 s.
    layer = {"tracing.opentelemetry.flush_interval_ms": 20}
    config["layered_runtime"]["layers"].append({"name": "test", "static_layer": layer})
    if route_timeout:
        for route in _manager(config)["route_config"]["virtual_hosts"][0]["routes"]:
            route.get("route", {})["timeout"] = route_timeout
    envoy = Envoy(config, folder)
    try:
        yield World(envoy, await envoy.ready(), full, best_effort, stub, receiver)
    finally:
        envoy.stop()
        await asyncio.gather(full.stop(), best_effort.stop(), stub.stop(), receiver.stop())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def _alone(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run the gateway with both pools up and no Forebay."""
    async with _world(tmp_path_factory.mktemp("alone")) as world:
        await world.full.start()
        await world.best_effort.start()
        yield world


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def _stubbed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run the gateway with both pools up and a stub in Forebay's place."""
    async with _world(tmp_path_factory.mktemp("stubbed")) as world:
        await world.full.start()
        await world.best_effort.start()
        await world.stub.start()
        yield world


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def _down(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run the gateway with neither pool up, and no Forebay."""
    async with _world(tmp_path_factory.mktemp("down")) as world:
        yield world


@pytest.fixture
def alone(_alone: World) -> Iterator[World]:
    """Hand out the gateway without Forebay, and show its log."""
    yield _alone
    _alone.envoy.show()


@pytest.fixture
def stubbed(_stubbed: World) -> Iterator[World]:
    """Hand out the gateway with a stub, and show its log."""
    yield _stubbed
    _stubbed.envoy.show()


@pytest.fixture
def down(_down: World) -> Iterator[World]:
    """Hand out the gateway with nothing behind it, and show its log."""
    yield _down
    _down.envoy.show()


async def _raw(url: str, path: str) -> dict[str, Any]:
    """Send a path as it stands, which client libraries would tidy up first."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 200"), head
    seen: dict[str, Any] = json.loads(body)
    return seen


def _says(**wanted: Any) -> dict[str, str]:
    return {"x-test-forebay": json.dumps(wanted)}


# --- The files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [SHIPPED, *sorted((FOLDER / "examples").glob("*.yaml"))])
async def test_envoy_accepts_the_file(file: Path) -> None:
    """`envoy --mode validate` reads every field of it."""
    options = ("--mode", "validate", "--log-level", "error", "-c", str(file))
    process = await asyncio.create_subprocess_exec(
        _binary(), *options, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert (0, b"") == (process.returncode, errors)


# --- Routes --------------------------------------------------------------------------------------


async def test_healthz_answers_without_anything_behind_envoy(down: World) -> None:
    """It says that Envoy serves, and nothing else."""
    async with down.client() as client:
        reply = await client.get("/healthz")
    assert (200, "ok\n") == (reply.status_code, reply.text)


async def test_readyz_fails_without_forebay(alone: World) -> None:
    """It is Forebay's word, so that nobody answers 503."""
    async with alone.client() as client:
        assert 503 == (await client.get("/readyz")).status_code


@pytest.mark.parametrize(
    "path", ["/v1/x", "/v1beta/x", *(f"/p/{name}/v1/x" for name in PROFILES if name != "default")]
)
async def test_a_profile_serves_its_path_without_the_prefix(alone: World, path: str) -> None:
    """The upstream sees the path that a client of the provider would send, query included."""
    async with alone.client() as client:
        seen = (await client.post(f"{path}?a=b//c", content=b"{}")).json()
    expected = path if path.startswith("/v1") else "/v1/x"
    assert ("full", f"{expected}?a=b//c") == (seen["upstream"], seen["path"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/p/faq/v1//chat/completions", "/v1/chat/completions"),
        ("//p/faq//v1/chat/completions", "/v1/chat/completions"),
        ("/p/faq/../raw/v1/x", "/v1/x"),
        ("/p/faq/%2e%2e/raw/v1/x", "/v1/x"),
        ("/v1beta/models/a%2Fb:generateContent", "/v1beta/models/a%2Fb:generateContent"),
        ("/other/a%20b;c?d=%2F..//", "/other/a%20b;c?d=%2F..//"),
    ],
)
async def test_a_path_has_one_meaning(alone: World, path: str, expected: str) -> None:
    """Dots and double slashes are resolved before routing; an escaped slash is part of a name."""
    assert expected == (await _raw(alone.url, path))["path"]


async def test_other_paths_pass_without_forebay(stubbed: World) -> None:
    """What is no call to a model opens no stream to Forebay."""
    before = len(stubbed.stub.initial_metadata)
    async with stubbed.client() as client:
        seen = (await client.put("/files/1", content=b"abc")).json()
    assert ("PUT", "/files/1", 3) == (seen["method"], seen["path"], seen["bytes"])
    assert before == len(stubbed.stub.initial_metadata)


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_route_names_its_profile_to_forebay(stubbed: World, profile: str) -> None:
    """As gRPC metadata, which no client can write."""
    path = "/v1/x" if profile == "default" else f"/p/{profile}/v1/x"
    async with stubbed.client() as client:
        await client.post(path, content=b"{}", headers={"x-forebay-profile": "forged"})
    assert profile == stubbed.stub.initial_metadata[-1]["x-forebay-profile"]


# --- Bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
@pytest.mark.parametrize("size", [1, 8 * MIB])
async def test_a_body_passes_whole(stubbed: World, size: int, http2: bool) -> None:
    """Through Forebay's buffer, in both versions of HTTP."""
    async with stubbed.client(http2=http2) as client:
        reply = await client.post("/v1/x", content=b"x" * size)
    assert (200, size) == (reply.status_code, reply.json()["bytes"])
    assert ("HTTP/2" if http2 else "HTTP/1.1") == reply.http_version


async def test_a_body_over_the_limit_is_refused_in_the_clients_shape(stubbed: World) -> None:
    """64 MiB is the limit for a body that Forebay has to see."""
    async with stubbed.client() as client:
        reply = await client.post(ANTHROPIC, content=b"x" * (64 * MIB + 1))
    error = {"type": "request_too_large", "message": "the request body is too large"}
    assert (413, {"type": "error", "error": error}) == (reply.status_code, reply.json())


# --- Trust ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/x", "/p/faq/v1/x", "/other"])
@pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])
async def test_a_forged_header_picks_no_route_and_goes_no_further(
    alone: World, path: str, http2: bool
) -> None:
    """Internal headers are Forebay's and Envoy's to set."""
    async with alone.client(http2=http2) as client:
        seen = (await client.post(path, content=b"{}", headers=FORGED)).json()
    assert "full" == seen["upstream"]
    assert set() == set(FORGED) & set(seen["headers"])


async def test_the_upstream_learns_nothing_of_the_way_there(alone: World) -> None:
    """Neither addresses of pods nor Envoy's own headers reach a provider."""
    async with alone.client() as client:
        seen = (await client.post("/p/faq/v1/x", content=b"{}")).json()
    leaks = {name for name in seen["headers"] if name.startswith(("x-envoy-", "x-forwarded-for"))}
    assert set() == leaks


async def test_the_client_hears_forebays_headers_from_forebay_only(alone: World) -> None:
    """An upstream's X-Forebay-Profile is taken off; its Server header stays."""
    async with alone.client() as client:
        reply = await client.post("/v1/x", content=b"{}")
    assert "model-server" == reply.headers["server"]
    ours = {name for name in reply.headers if name.startswith(("x-forebay", "x-model", "x-cache"))}
    assert set() == ours | {name for name in reply.headers if name.startswith("x-envoy")}


# --- With Forebay --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/x", "/v1beta/x", "/p/faq/v1/x"])
async def test_forebay_picks_the_pool_with_its_reply_to_the_body(stubbed: World, path: str) -> None:
    """The header that it sets for that stays inside Envoy."""
    wanted = _says(headers={"x-forebay-cluster": "best_effort", "x-model-quality": "BEST_EFFORT"})
    async with stubbed.client() as client:
        seen = (await client.post(path, content=b"{}", headers=wanted)).json()
    assert ("best_effort", path.removeprefix("/p/faq")) == (seen["upstream"], seen["path"])
    assert "BEST_EFFORT" == seen["headers"]["x-model-quality"]
    assert "x-forebay-cluster" not in seen["headers"]


async def test_a_pool_that_is_not_in_the_file_gives_503(stubbed: World) -> None:
    """In the provider's shape, like every error of Envoy's."""
    wanted = _says(headers={"x-forebay-cluster": "nowhere"})
    async with stubbed.client() as client:
        reply = await client.post(OPENAI, content=b"{}", headers=wanted)
    assert (503, "server_error") == (reply.status_code, reply.json()["error"]["type"])


async def test_metadata_becomes_headers_of_the_reply(stubbed: World) -> None:
    """Although the stream to Forebay is closed before the reply begins."""
    told = {
        "x-cache": "MISS",
        "cache-status": "forebay; fwd=miss",
        "age": "7",
        "x-model-quality": "FULL",
        "x-forebay-profile": "faq",
        "x-forebay-intent": "list",
        "x-forebay-shards": "4; skipped=1",
        "x-forebay-review": "required",
        "server-timing": "clean;dur=0.1",
    }
    async with stubbed.client() as client:
        reply = await client.post("/p/faq/v1/x", content=b"{}", headers=_says(metadata=told))
    assert told == {name: reply.headers[name] for name in told}


@pytest.mark.parametrize("status", [200, 404, 413, 429, 500, 503, 504])
@pytest.mark.parametrize("details", ["", "forebay_answer"])
async def test_a_reply_of_forebays_keeps_its_body(
    stubbed: World, status: int, details: str
) -> None:
    """Whatever its status: only Envoy's own errors are put in another shape."""
    wanted = _says(reply=status, details=details)
    async with stubbed.client() as client:
        reply = await client.post(ANTHROPIC, content=b"{}", headers=wanted)
    assert (status, "Forebay's own words") == (reply.status_code, reply.text)


async def test_a_stuck_forebay_costs_a_request_one_timeout(stubbed: World) -> None:
    """It is waited for once, not once per message, and the request goes on."""
    before = await stubbed.envoy.counter("http.ingress.ext_proc.message_timeouts")
    async with stubbed.client() as client:
        reply = await client.post("/v1/x", content=b"{}", headers=_says(stuck=True))
    assert (200, 2) == (reply.status_code, reply.json()["bytes"])
    assert before + 1 == await stubbed.envoy.counter("http.ingress.ext_proc.message_timeouts")


# --- Envoy's own errors --------------------------------------------------------------------------

SHAPES: Final = [
    (OPENAI, {"message": "{}", "type": "server_error", "param": None, "code": None}),
    ("/v1/embeddings", {"message": "{}", "type": "server_error", "param": None, "code": None}),
    (
        "/v1beta/openai/chat/completions",
        {"message": "{}", "type": "server_error", "param": None, "code": None},
    ),
    (ANTHROPIC, {"type": "overloaded_error", "message": "{}"}),
    ("/v1/messages/count_tokens", {"type": "overloaded_error", "message": "{}"}),
    (GEMINI, {"code": 503, "message": "{}", "status": "UNAVAILABLE"}),
    ("/v1/models/m:generateContent", {"code": 503, "message": "{}", "status": "UNAVAILABLE"}),
]


@pytest.mark.parametrize("prefix", ["", "/p/faq"])
@pytest.mark.parametrize(("path", "error"), SHAPES, ids=[path for path, _ in SHAPES])
async def test_a_pool_that_is_down_gives_503_in_the_providers_shape(
    down: World, prefix: str, path: str, error: dict[str, Any]
) -> None:
    """At once, so that the official clients raise their own error for it."""
    async with down.client() as client:
        reply = await client.post(prefix + path, content=b"{}")
    assert 503 == reply.status_code
    assert "application/json" == reply.headers["content-type"]
    assert error | {"message": "no model server can take the request"} == reply.json()["error"]
    assert ("error" if "messages" in path else None) == reply.json().get("type")
    assert 0 == await down.envoy.counter("cluster.full.upstream_cx_connect_timeout")
    assert 0 < await down.envoy.counter("cluster.full.upstream_cx_connect_fail")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            OPENAI,
            {
                "message": "no such profile",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            },
        ),
        (ANTHROPIC, {"message": "no such profile", "type": "not_found_error"}),
        (GEMINI, {"message": "no such profile", "code": 404, "status": "NOT_FOUND"}),
    ],
)
async def test_an_unknown_profile_is_a_404_in_the_providers_shape(
    alone: World, path: str, expected: dict[str, Any]
) -> None:
    """It is never served as another profile."""
    async with alone.client() as client:
        reply = await client.post(f"/p/nonesuch{path}", content=b"{}")
    assert (404, expected) == (reply.status_code, reply.json()["error"])


async def test_a_pool_that_comes_back_serves_the_next_request(tmp_path: Path) -> None:
    """Its failures before are held against it by nobody."""
    async with _world(tmp_path) as world, world.client() as client:
        before = {(await client.post("/v1/x", content=b"{}")).status_code for _ in range(20)}
        await world.full.start()
        assert ({503}, 200) == (before, (await client.post("/v1/x", content=b"{}")).status_code)


async def test_a_silent_upstream_is_a_504_in_the_providers_shape(tmp_path: Path) -> None:
    """Where a route has a time limit; the shipped ones have none, for streams may last."""
    async with _world(tmp_path, route_timeout="0.1s") as world, world.client() as client:
        await world.full.start()
        reply = await client.post(GEMINI, content=b"{}", headers={"x-test-silent": "1"})
    expected = {"code": 504, "message": "no answer came in time", "status": "DEADLINE_EXCEEDED"}
    assert (504, expected) == (reply.status_code, reply.json()["error"])


# --- What is seen of it --------------------------------------------------------------------------


async def test_the_log_has_one_line_with_no_secret_in_it(stubbed: World) -> None:
    """What was decided and how long it took, but neither query, key nor body."""
    told = {"x-forebay-profile": "faq", "pool": "full", "dialect": "gemini", "model": "m"}
    secrets = {"authorization": "Bearer SECRET", "x-api-key": "SECRET", "cookie": "SECRET"}
    async with stubbed.client() as client:
        reply = await client.post(
            "/p/faq/v1beta/models/m:generateContent?key=SECRET",
            content=b"SECRET",
            headers=secrets | _says(metadata=told | {"x-cache": "MISS"}),
        )
    line = await stubbed.envoy.line(reply.json()["headers"]["x-request-id"])
    logged = json.loads(line)
    expected = {
        "method": "POST",
        "path": "/v1beta/models/m:generateContent",
        "route": "faq",
        "status": 200,
        "flags": "-",
        "bytes_in": 6,
        "upstream_cluster": "full",
        "upstream_host": f"127.0.0.1:{stubbed.full.port}",
        "profile": "faq",
        "pool": "full",
        "dialect": "gemini",
        "model": "m",
        "x_cache": "MISS",
        "failed_open": "0",
    }
    assert expected == {name: logged[name] for name in expected}
    times = {name for name in logged if name.endswith(("_us", "_ms"))}
    # The stub closed its stream, but a quick reply may overtake that, and is then measured too.
    assert {
        "duration_ms",
        "request_us",
        "first_byte_us",
        "reply_us",
        "forebay_request_headers_us",
        "forebay_request_body_us",
    } == times - {"forebay_reply_headers_us"}
    assert "SECRET" not in line


async def test_the_log_shows_that_a_request_went_on_without_forebay(alone: World) -> None:
    """The route still tells the profile."""
    async with alone.client() as client:
        seen = (await client.post("/p/chat/v1/x", content=b"{}")).json()
    logged = json.loads(await alone.envoy.line(seen["headers"]["x-request-id"]))
    assert ("chat", "1") == (logged["route"], logged["failed_open"])
    assert "profile" not in logged


async def test_one_trace_holds_envoys_spans_and_forebays_parent(stubbed: World) -> None:
    """The gateway's span is the caller's child; the calls to Forebay and upstream are its own.

    What Forebay gets as gRPC metadata is the context of the call to it, the upstream's is the
    context of the call upstream; the request's own headers still carry the caller's.
    """
    stubbed.stub.initial_metadata.clear()
    async with stubbed.client() as client:
        headers = {"traceparent": SAMPLED}
        reply = await client.post("/p/faq/v1/x?key=SECRET", content=b"{}", headers=headers)
    spans = await stubbed.receiver.trace(SAMPLED, 3)
    gateway = next(span for span in spans if span.name == "POST faq")
    calls = [span for span in spans if span is not gateway]
    _, trace_id, caller, _ = SAMPLED.split("-")
    assert caller == gateway.parent_span_id.hex()
    assert {gateway.span_id} == {span.parent_span_id for span in calls}
    assert {f"00-{trace_id}-{span.span_id.hex()}-01" for span in calls} == {
        stubbed.stub.initial_metadata[0]["traceparent"],
        reply.json()["headers"]["traceparent"],
    }


async def test_no_span_holds_the_query(stubbed: World) -> None:
    """Gemini's clients may send their key in it."""
    traceparent = SAMPLED.replace("0af7", "2af7")
    async with stubbed.client() as client:
        headers = {"traceparent": traceparent}
        await client.post(
            "/v1beta/models/m:embedContent?key=SECRET", content=b"{}", headers=headers
        )
    spans = await stubbed.receiver.trace(traceparent, 3)
    urls = {
        attribute.value.string_value
        for span in spans
        for attribute in span.attributes
        if attribute.key == "http.url"
    }
    assert {f"{stubbed.url}/v1beta/models/m:embedContent"} == urls
    assert "SECRET" not in str(spans)


async def test_the_callers_traceparent_decides_whether_a_request_is_traced(alone: World) -> None:
    """Twenty out of twenty each way, where Envoy's own rate is one in ten."""
    flags: dict[str, set[str]] = {SAMPLED: set(), NOT_SAMPLED: set()}
    async with alone.client() as client:
        for traceparent in [SAMPLED, NOT_SAMPLED] * 20:
            headers = {"traceparent": traceparent}
            seen = (await client.post("/v1/x", content=b"{}", headers=headers)).json()
            flags[traceparent].add(seen["headers"]["traceparent"][-2:])
    assert {SAMPLED: {"01"}, NOT_SAMPLED: {"00"}} == flags


async def test_most_requests_without_a_traceparent_are_not_traced(alone: World) -> None:
    """One in ten is; that half of sixty are has a chance of one in 10^15."""
    traced = 0
    async with alone.client() as client:
        for _ in range(60):
            seen = (await client.post("/v1/x", content=b"{}")).json()
            traced += seen["headers"]["traceparent"].endswith("01")
    assert 30 > traced


async def test_a_callers_request_id_does_not_keep_it_from_being_traced(alone: World) -> None:
    """Envoy samples by an id of its own; it would never trace one that is not a UUID."""
    headers = {"traceparent": SAMPLED, "x-request-id": "not-a-uuid"}
    async with alone.client() as client:
        seen = (await client.post("/v1/x", content=b"{}", headers=headers)).json()["headers"]
    assert "01" == seen["traceparent"][-2:]
    assert "not-a-uuid" != seen["x-request-id"]


# --- The example for a provider's API ------------------------------------------------------------


def _certificate(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """Make a certificate for `name`; return its file, to be trusted, and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "certificate.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return public, context


@pytest.mark.parametrize(
    ("certified", "status"), [("api.openai.com", 200), ("api.example.com", 503)]
)
async def test_the_example_calls_a_provider_that_proves_its_name(
    tmp_path: Path, certified: str, status: int
) -> None:
    """SNI, Host and the certificate's name are the provider's; another certificate is refused."""
    provider = Upstream("provider")
    trusted, context = _certificate(tmp_path, certified)
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    await provider.start(context)
    config = _config(OPENAI_EXAMPLE, {"full": provider.port}, tmp_path / "forebay.sock")
    tls = config["static_resources"]["clusters"][0]["transport_socket"]["typed_config"]
    tls["common_tls_context"]["validation_context"]["trusted_ca"]["filename"] = str(trusted)
    envoy = Envoy(config, tmp_path)
    try:
        async with httpx.AsyncClient(base_url=await envoy.ready()) as client:
            reply = await client.post("/v1/chat/completions", content=b"{}")
    finally:
        envoy.stop()
        await provider.stop()
    assert status == reply.status_code
    assert {"api.openai.com"} == set(asked)
    if status == 200:
        assert "api.openai.com" == reply.json()["headers"]["host"]


# --- The smaller files ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["replicas", "stages", "upstream-openai"])
async def test_an_example_gives_its_own_errors_the_clients_shape(tmp_path: Path, name: str) -> None:
    """No server is there, or the path leads nowhere; a line is logged of each."""
    config = _config(FOLDER / "examples" / f"{name}.yaml", {}, tmp_path / "forebay.sock")
    lines = tmp_path / "lines"
    log = _manager(config)["access_log"][0]["typed_config"]
    log["@type"] = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
    log["path"] = str(lines)
    envoy = Envoy(config, tmp_path)
    asked = ["/v1/chat/completions?key=secret", "/nowhere"]
    types = ["server_error", "invalid_request_error"]
    if name != "upstream-openai":
        asked, types = ["/v1/messages", *asked], ["overloaded_error", *types]
    try:
        async with httpx.AsyncClient(base_url=await envoy.ready()) as client:
            replies = [await client.post(path, content=b"{}") for path in asked]
    finally:
        envoy.stop()
    assert [503] * (len(asked) - 1) + [404] == [reply.status_code for reply in replies]
    errors = [reply.json()["error"] for reply in replies]
    assert types == [error["type"] for error in errors]
    assert "no model server can take the request" == errors[0]["message"]
    logged = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [path.partition("?")[0] for path in asked] == [line["path"] for line in logged]


@pytest.mark.parametrize("name", ["replicas", "stages", "upstream-openai"])
async def test_an_example_logs_what_forebay_did_as_the_shipped_file_does(name: str) -> None:
    """Its lines have fewer members; those they have are called the same and say the same."""
    shipped, logged = (
        _manager(yaml.safe_load(file.read_text()))["access_log"][0]["typed_config"]["log_format"]
        for file in (SHIPPED, FOLDER / "examples" / f"{name}.yaml")
    )
    told = logged["json_format"]
    assert told == {key: shipped["json_format"].get(key) for key in told}
    assert {"profile", "pool", "x_cache", "x_model_quality"} <= set(told)
