"""Send a span for each sampled exchange to an OTLP receiver, off the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from ext_proc.session import Facts
from ext_proc.telemetry.cuts import by_rule
from ext_proc.telemetry.traceparent import TraceParent
from filters.api import Outcome

QUEUE_SPANS: Final = 2048  # about 10 MB; the oldest go when the receiver does not keep up
BATCH_SPANS: Final = 256  # encoding one takes the interpreter 15 ms, in slices of 5
DELAY_MS: Final = 1000  # a trace can be looked at this long after its request at the latest
EXPORT_LIMIT_S: Final = 5.0  # for a batch, its repetitions included
MOST_TEXT: Final = 128  # characters; the name of a model is the client's own text

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
        self._exporter: Final = _WatchedExporter(endpoint, watch)
        self._provider: Final = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=QUEUE_SPANS,
                max_export_batch_size=BATCH_SPANS,
                schedule_delay_millis=DELAY_MS,
            )
        )
        self._tracer: Final = self._provider.get_tracer("forebay", version)

    def write(
        self, facts: Facts, parent: TraceParent | None, started_ns: int, ended_ns: int
    ) -> str:
        """Write the span of an exchange, in Unix time; return its trace id, empty if unsampled."""
        span = self._tracer.start_span(
            _name(facts),
            context=_context(parent),
            # The proxy called us, and its own client span is the parent.
            kind=SpanKind.SERVER,
            attributes=_attributes(facts),
            start_time=started_ns,
        )
        if not span.is_recording():
            return ""
        at_ns = started_ns
        for stage, elapsed_ns in facts.stages:  # they run one after the other from the start on
            at_ns += elapsed_ns
            span.add_event(stage, {"forebay.us": elapsed_ns / 1000}, timestamp=at_ns)
        if error := _error(facts):
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)
        return format(span.get_span_context().trace_id, "032x")

    async def close(self, bound_s: float) -> None:
        """Deliver what is left, within a bound."""
        loop = asyncio.get_running_loop()
        flush = loop.run_in_executor(None, self._provider.shutdown)
        done, _ = await asyncio.wait((flush,), timeout=bound_s)
        if not done:
            self._exporter.shutdown()  # breaks off what runs and what would be tried again
            await flush


class _WatchedExporter(SpanExporter):
    """Exports, and tells how it went."""

    def __init__(self, endpoint: str, watch: ExportWatch) -> None:
        self._watch: Final = watch
        self._otlp: Final = OTLPSpanExporter(endpoint, timeout=EXPORT_LIMIT_S)
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


def _context(parent: TraceParent | None) -> Context:
    if parent is None:
        return Context()
    return set_span_in_context(
        NonRecordingSpan(
            SpanContext(
                trace_id=int(parent.trace_id, 16),
                span_id=int(parent.span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(TraceFlags.SAMPLED if parent.sampled else 0),
            )
        ),
        Context(),
    )


def _name(facts: Facts) -> str:
    if facts.dialect is None:
        return str(facts.outcome)
    return f"{facts.dialect.operation} {_text(facts.model)}".rstrip()


def _attributes(facts: Facts) -> dict[str, AttributeValue]:
    """Name the facts after the OpenTelemetry GenAI conventions where these have a name."""
    attributes: dict[str, AttributeValue] = {
        "forebay.profile": facts.profile,
        "forebay.outcome": str(facts.outcome),
    }
    if facts.dialect is not None:
        attributes["gen_ai.operation.name"] = facts.dialect.operation
        attributes["gen_ai.provider.name"] = facts.dialect.provider
        attributes["forebay.dialect"] = facts.dialect.name
        attributes["forebay.stream"] = facts.stream
    if facts.model:
        attributes["gen_ai.request.model"] = _text(facts.model)
    if facts.pool:
        attributes["forebay.pool"] = facts.pool
    if facts.quality:
        attributes["forebay.quality"] = facts.quality
    if facts.status:
        attributes["http.response.status_code"] = facts.status
    if facts.usage is not None:
        attributes["gen_ai.usage.input_tokens"] = facts.usage.input
        attributes["gen_ai.usage.output_tokens"] = facts.usage.output
    if facts.finish is not None:
        attributes["gen_ai.response.finish_reasons"] = (str(facts.finish),)
    if facts.first_token_ns:
        attributes["forebay.ttft_us"] = facts.first_token_ns / 1000
    if facts.task is not None:
        attributes["forebay.intent"] = facts.task.intent
        attributes["forebay.intent_score"] = facts.task.score
        attributes["forebay.domain"] = facts.task.domain
    for rule, before_and_after in by_rule(facts.cuts).items():
        attributes[f"forebay.cut.{rule}"] = before_and_after
    for key, value in facts.notes.items():
        attributes[f"forebay.{key}"] = _text(value) if isinstance(value, str) else value
    return attributes


def _text(text: str) -> str:
    """Return a client's text so that it can be sent: half a surrogate pair would lose a batch."""
    text = text[:MOST_TEXT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _error(facts: Facts) -> str:
    """Return what went wrong with an exchange, empty when nothing did."""
    if facts.outcome in (Outcome.FAILED, Outcome.REFUSED):
        return str(facts.outcome)
    return str(facts.status) if facts.status >= 500 else ""
