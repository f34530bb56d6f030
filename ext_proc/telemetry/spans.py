"""Send a span for each sampled exchange to an OTLP receiver, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from ext_proc.session import Facts
from ext_proc.telemetry.span_bytes import Envelope, name_of, span_bytes
from ext_proc.telemetry.traceparent import TraceParent

QUEUE_SPANS: Final = 2048  # about 4 MB; the oldest go when the receiver does not keep up
BATCH_SPANS: Final = 256
DELAY_MS: Final = 1000  # a trace can be looked at this long after its request at the latest
EXPORT_LIMIT_S: Final = 5.0  # for a batch, its repetitions included

ExportWatch = Callable[[int, bool], None]
"""Called in the exporter's thread with a number of spans and whether they were delivered."""


class Spans:
    """The tracer. Which exchanges to trace is the proxy's decision, taken from `traceparent`.

    A request without one is a root, sampled by OTEL_TRACES_SAMPLER (always, unless set).
    """

    def __init__(self, endpoint: str, version: str, watch: ExportWatch) -> None:
        # The SDK reports a dead receiver on each attempt; `watch` counts, and hears of it once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        name = os.environ.get("OTEL_SERVICE_NAME") or "forebay"
        resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version})
        envelope = Envelope(resource.attributes, "forebay", version)
        self._exporter: Final = _WatchedExporter(endpoint, envelope, watch)
        self._provider: Final = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._batches: Final = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE_SPANS,
            max_export_batch_size=BATCH_SPANS,
            schedule_delay_millis=DELAY_MS,
        )
        self._provider.add_span_processor(self._batches)
        self._whose: Final = resource

    def write(
        self, facts: Facts, parent: TraceParent | None, started_ns: int, ended_ns: int
    ) -> str:
        """Write the span of an exchange, in Unix time; return its trace id, empty if unsampled."""
        if parent is None:
            trace = self._provider.id_generator.generate_trace_id()
            if not self._is_sampled(trace, facts):
                return ""
            trace_id, above = format(trace, "032x"), b""
        elif not parent.sampled:
            return ""
        else:
            trace_id, above = parent.trace_id, bytes.fromhex(parent.span_id)
        written = span_bytes(facts, bytes.fromhex(trace_id), above, started_ns, ended_ns)
        self._batches.on_end(_Written(written, self._whose))
        return trace_id

    def _is_sampled(self, trace_id: int, facts: Facts) -> bool:
        sampler = self._provider.sampler
        result = sampler.should_sample(None, trace_id, name_of(facts), SpanKind.SERVER)
        return result.decision is Decision.RECORD_AND_SAMPLE

    async def close(self, bound_s: float) -> None:
        """Deliver what is left, within a bound."""
        loop = asyncio.get_running_loop()
        flush = loop.run_in_executor(None, self._provider.shutdown)
        done, _ = await asyncio.wait((flush,), timeout=bound_s)
        if not done:
            self._exporter.shutdown()  # breaks off what runs and what would be tried again
            await flush


class _Written(ReadableSpan):
    """A span as far as the queue looks at it."""

    def __init__(self, written: bytes, resource: Resource) -> None:
        super().__init__("", context=_SAMPLED, resource=resource)
        self.written: Final = written


_SAMPLED: Final = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


class _Exporter(OTLPSpanExporter):
    """Sends spans that were written before."""

    def __init__(self, endpoint: str, envelope: Envelope) -> None:
        super().__init__(endpoint, timeout=EXPORT_LIMIT_S)
        self._envelope: Final = envelope

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        spans = [span.written for span in data if isinstance(span, _Written)]
        return self._envelope.around(spans)


class _WatchedExporter(SpanExporter):
    """Exports, and tells how it went."""

    def __init__(self, endpoint: str, envelope: Envelope, watch: ExportWatch) -> None:
        self._watch: Final = watch
        self._otlp: Final = _Exporter(endpoint, envelope)
        self._open = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; called in a thread of its own."""
        result = SpanExportResult.FAILURE
        try:
            if self._open:
                result = self._otlp.export(spans)
        finally:
            self._watch(len(spans), result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Give up what runs."""
        if self._open:
            self._open = False
            self._otlp.shutdown()
