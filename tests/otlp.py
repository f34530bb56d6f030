"""A real OTLP receiver, for tests that look at spans without Jaeger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span


class OtlpReceiver(TraceServiceServicer):
    """Keeps every span it is sent."""

    def __init__(self) -> None:
        self.port = 0
        self.resources: list[ResourceSpans] = []
        self._arrived = threading.Condition()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spans(self) -> list[Span]:
        with self._arrived:
            return [
                span
                for resource in self.resources
                for scope in resource.scope_spans
                for span in scope.spans
            ]

    def wait_for(self, spans: int, timeout_s: float = 60.0) -> list[Span]:
        """Return the spans once there are so many."""
        with self._arrived:
            arrived = self._arrived.wait_for(lambda: len(self.spans) >= spans, timeout_s)
        assert arrived, f"{len(self.spans)} of {spans} spans came in {timeout_s} s"
        return self.spans

    def trace(self, trace_id: str, spans: int, timeout_s: float = 60.0) -> list[Span]:
        """Return the spans of a trace, its id in hex, once there are so many."""
        wanted = bytes.fromhex(trace_id)

        def found() -> list[Span]:
            return [span for span in self.spans if span.trace_id == wanted]

        with self._arrived:
            arrived = self._arrived.wait_for(lambda: len(found()) >= spans, timeout_s)
        assert arrived, f"{len(found())} of {spans} spans came in {timeout_s} s"
        return found()

    def Export(  # noqa: N802 - the name in the protocol
        self, request: service.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> service.ExportTraceServiceResponse:
        with self._arrived:
            self.resources.extend(request.resource_spans)
            self._arrived.notify_all()
        return service.ExportTraceServiceResponse()


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver on a free port."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call] # generated
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def attributes(span: Span) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    return {pair.key: _plain(pair.value) for pair in span.attributes}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
