"""A request through real Envoy is one trace in real Jaeger: Envoy's spans and Forebay's."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.session import Facts
from ext_proc.telemetry import Telemetry
from filters.api import Finish, Outcome, Usage
from filters.dialects import dialect_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("jaeger")]

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / ".ci" / "jaeger"
BINARY: Final = ROOT / ".tools" / "jaeger"
START_S: Final = 60.0
ARRIVE_S: Final = 60.0  # ours go out once a second
BODY: Final = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is a forebay?"}],
    "temperature": 0,
}


class Jaeger:
    """A running Jaeger: where to send spans, and what it knows of a trace."""

    def __init__(self) -> None:
        self.ui, self.otlp_grpc, self.otlp_http = free_ports(3)

    @property
    def otlp(self) -> str:
        return f"http://127.0.0.1:{self.otlp_grpc}"

    def trace(self, trace_id: str, spans: int) -> list[dict[str, Any]]:
        """Return the spans of a trace once there are so many, each with its service's name."""
        found: list[dict[str, Any]] = []
        for _ in until(ARRIVE_S):
            with contextlib.suppress(OSError):  # 404 while nothing of the trace arrived
                found = self._spans(trace_id)
            if len(found) >= spans:
                return found
        names = [(span["service"], span["operationName"]) for span in found]
        raise AssertionError(f"{len(found)} of {spans} spans in {ARRIVE_S} s: {names}")

    def _spans(self, trace_id: str) -> list[dict[str, Any]]:
        (trace,) = get_json(f"http://127.0.0.1:{self.ui}/api/traces/{trace_id}")["data"]
        names = {key: one["serviceName"] for key, one in trace["processes"].items()}
        return [{**span, "service": names[span["processID"]]} for span in trace["spans"]]


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    if not BINARY.exists() and shutil.which("go") is None:
        missing = f"{BINARY} is not there, and neither is Go to build it"
        if os.environ.get("CI"):  # there, a test that does not run would look like one that passed
            pytest.fail(missing)
        pytest.skip(missing)
    subprocess.run([SCRIPT, "build"], check=True)
    jaeger = Jaeger()
    ports = {
        "JAEGER_UI_PORT": str(jaeger.ui),
        "JAEGER_OTLP_GRPC_PORT": str(jaeger.otlp_grpc),
        "JAEGER_OTLP_HTTP_PORT": str(jaeger.otlp_http),
    }
    output = tmp_path_factory.mktemp("jaeger") / "output"
    # Asked politely, Jaeger waits for whoever is connected; it has nothing to lose.
    with started([str(SCRIPT), "run"], output, signal.SIGKILL, ports) as process:
        for _ in until(START_S):
            assert process.poll() is None, output.read_text()
            if listening(jaeger.ui) and listening(jaeger.otlp_grpc):
                break
        else:
            raise AssertionError(output.read_text())
        yield jaeger


@pytest.fixture(scope="module")
def gateway(jaeger: Jaeger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the whole gateway with traces to Jaeger; the value is its URL."""
    output = tmp_path_factory.mktemp("gateway") / "output"
    command = [sys.executable, "-m", "ext_proc", "up", "--otlp", jaeger.otlp]
    for option in ("--port", "--admin-port", "--metrics-port"):
        command += [option, "0"]
    with started(command, output) as process:
        for _ in until(START_S):
            said = output.read_text()
            assert process.poll() is None, said
            if "\n# " in said:  # what to try comes last
                break
        else:
            raise AssertionError(output.read_text())
        where = {
            name: rest for name, _, rest in (line.partition(" ") for line in said.splitlines())
        }
        # Envoy keeps spans for 5 s, or until it has 5.
        setting = "tracing.opentelemetry.min_flush_spans=1"
        ask(f"{where['Envoy'].strip()}/runtime_modify?{setting}", b"", {})
        yield where["gateway"].strip()


async def test_a_span_of_ours_is_found_in_jaeger(jaeger: Jaeger) -> None:
    """Jaeger shows name, service, attributes and stages as they were written."""
    trace_id, parent_id = secrets.token_hex(16), secrets.token_hex(8)
    telemetry = Telemetry.open(
        SystemClock(), io.BytesIO(), version="1.2.3", level=40, otlp_endpoint=jaeger.otlp
    )
    facts = Facts(
        profile="default",
        dialect=dialect_of("POST", "/v1/chat/completions"),
        model="gpt-4o",
        pool="full",
        quality="FULL",
        status=200,
        outcome=Outcome.COMPLETE,
        stages=[("clean", 12_000), ("cache", 30_000)],
        notes={"cache": "miss"},
        usage=Usage(12, 34),
        finish=Finish.STOP,
    )
    telemetry.begin("default", f"00-{trace_id}-{parent_id}-01").end(facts)
    await telemetry.close()
    (span,) = jaeger.trace(trace_id, spans=1)
    assert ("forebay", "chat gpt-4o") == (span["service"], span["operationName"])
    assert parent_id == span["references"][0]["spanID"]
    tags = tags_of(span)
    assert (12, 34) == (tags["gen_ai.usage.input_tokens"], tags["gen_ai.usage.output_tokens"])
    assert ("openai", "miss") == (tags["gen_ai.provider.name"], tags["forebay.cache"])
    assert ["clean", "cache"] == [
        field["value"] for log in span["logs"] for field in log["fields"] if field["key"] == "event"
    ]


def test_a_request_is_one_trace_with_the_spans_of_envoy_and_forebay(
    jaeger: Jaeger, gateway: str
) -> None:
    """The trace a client began goes through Envoy, its call to Forebay, and its call upstream."""
    trace_id, client_id = secrets.token_hex(16), secrets.token_hex(8)
    post(f"{gateway}/v1/chat/completions", f"00-{trace_id}-{client_id}-01")
    spans = jaeger.trace(trace_id, spans=4)
    by_service: dict[str, list[dict[str, Any]]] = {}
    for span in spans:
        by_service.setdefault(span["service"], []).append(span)
    (ours,) = by_service["forebay"]
    envoys = {span["spanID"]: span for span in by_service["forebay-envoy"]}
    assert "chat demo" == ours["operationName"]
    assert {"default", "full", "miss"} == {
        tags_of(ours)[f"forebay.{key}"] for key in ("profile", "pool", "cache")
    }
    call = envoys[ours["references"][0]["spanID"]]
    assert "client" == tags_of(call)["span.kind"]
    ingress = envoys[call["references"][0]["spanID"]]
    assert "server" == tags_of(ingress)["span.kind"]
    assert client_id == ingress["references"][0]["spanID"]


def test_no_span_holds_what_was_asked_or_answered(jaeger: Jaeger, gateway: str) -> None:
    """Neither prompt nor answer nor key is in a trace."""
    trace_id = secrets.token_hex(16)
    reply = post(f"{gateway}/v1/chat/completions", f"00-{trace_id}-{secrets.token_hex(8)}-01")
    answer = json.loads(reply)["choices"][0]["message"]["content"]
    trace = json.dumps(jaeger.trace(trace_id, spans=4))
    assert [] == [text for text in ("What is a forebay?", answer, "sk-secret") if text in trace]


def test_a_trace_that_the_client_does_not_sample_is_not_there(jaeger: Jaeger, gateway: str) -> None:
    """The flag in the client's traceparent decides, for Envoy and Forebay alike."""
    unsampled, sampled = secrets.token_hex(16), secrets.token_hex(16)
    post(f"{gateway}/v1/chat/completions", f"00-{unsampled}-{secrets.token_hex(8)}-00")
    post(f"{gateway}/v1/chat/completions", f"00-{sampled}-{secrets.token_hex(8)}-01")
    jaeger.trace(sampled, spans=4)  # what came after has arrived
    with pytest.raises(OSError, match="404"):
        get_json(f"http://127.0.0.1:{jaeger.ui}/api/traces/{unsampled}")


# --- What the tests stand on ----------------------------------------------------------------------


@contextlib.contextmanager
def started(
    command: list[str],
    output: Path,
    stop: signal.Signals = signal.SIGTERM,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that is sent `stop` at the end of the block."""
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **environ}
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(limit_s: float) -> Iterator[None]:
    """Yield again and again for `limit_s` seconds."""
    ends = time.monotonic() + limit_s
    never = threading.Event()
    while time.monotonic() < ends:
        yield
        never.wait(0.05)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def post(url: str, traceparent: str) -> bytes:
    headers = {
        "content-type": "application/json",
        "authorization": "Bearer sk-secret",
        "traceparent": traceparent,
    }
    return ask(url, json.dumps(BODY).encode(), headers)


def ask(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    request = urllib.request.Request(url, body, dict(headers))
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: bytes = response.read()
        return answer


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def tags_of(span: Mapping[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}
