"""Write the span of an exchange as OTLP has it, once and for all.

The SDK makes objects of a span and its exporter makes messages of these: together 150 us of a
traced exchange. Written at once it is a tenth of that, and what waits for its batch is one text
of bytes. Field numbers come from the messages of the package `opentelemetry-proto`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import (
    ResourceSpans,
    ScopeSpans,
    Span,
    SpanFlags,
    Status,
)

from ext_proc.session import Facts
from ext_proc.telemetry.cuts import by_rule
from ext_proc.wire import member, tag, varint
from filters.api import Outcome

Attribute: TypeAlias = str | bool | int | float | tuple[str, ...] | tuple[int, ...]

MOST_TEXT: Final = 128  # characters; the name of a model is the client's own text
_KEPT: Final = 1024  # pieces of 50 bytes or so: most spans say the same of themselves
_KEPT_TEXT: Final = 40  # characters; longer texts seldom come twice

_TRACE: Final = tag(Span, "trace_id") + varint(16)
_SPAN: Final = tag(Span, "span_id") + varint(8)
_PARENT: Final = tag(Span, "parent_span_id") + varint(8)
_NAME: Final = tag(Span, "name")
_START: Final = tag(Span, "start_time_unix_nano")
_END: Final = tag(Span, "end_time_unix_nano")
_ATTRIBUTES: Final = tag(Span, "attributes")
_EVENTS: Final = tag(Span, "events")
# The proxy called us, and its own client span is the parent.
_SERVER: Final = Span(kind=Span.SPAN_KIND_SERVER).SerializeToString()
_FAILED: Final = Span(status=Status(code=Status.STATUS_CODE_ERROR)).SerializeToString()
_IS_KNOWN: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_ROOT: Final = Span(flags=_IS_KNOWN).SerializeToString()
_BELOW_REMOTE: Final = Span(
    flags=_IS_KNOWN | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
).SerializeToString()
_AT: Final = tag(Span.Event, "time_unix_nano")
_EVENT_NAME: Final = tag(Span.Event, "name")
_EVENT_ATTRIBUTES: Final = tag(Span.Event, "attributes")
_KEY: Final = tag(KeyValue, "key")
_VALUE: Final = tag(KeyValue, "value")
_STRING: Final = tag(AnyValue, "string_value")
_BOOL: Final = tag(AnyValue, "bool_value")
_INT: Final = tag(AnyValue, "int_value")
_DOUBLE: Final = tag(AnyValue, "double_value")
_ARRAY: Final = tag(AnyValue, "array_value")
_ITEM: Final = tag(ArrayValue, "values")
_SPANS: Final = tag(ScopeSpans, "spans")
_SCOPES: Final = tag(ResourceSpans, "scope_spans")
_RESOURCES: Final = tag(ExportTraceServiceRequest, "resource_spans")
_EIGHT_BYTES: Final = struct.Struct("<Q").pack
_FLOAT: Final = struct.Struct("<d").pack
_SIGN: Final = (1 << 64) - 1  # protobuf writes a negative number as its two's complement


def span_bytes(
    facts: Facts, trace_id: bytes, parent: bytes, started_ns: int, ended_ns: int
) -> bytes:
    """Write a `Span` below `parent` (eight bytes, or none for a root); times are Unix times."""
    pieces = [
        *(_TRACE, trace_id, _SPAN, os.urandom(8)),
        *((_PARENT, parent, _BELOW_REMOTE) if parent else (_ROOT,)),
        *(member(_NAME, name_of(facts).encode()), _SERVER),
        *(_START, _EIGHT_BYTES(started_ns), _END, _EIGHT_BYTES(ended_ns)),
    ]
    attributes = _attributes(facts)
    if error := _error(facts):
        attributes["error.type"] = error
        pieces.append(_FAILED)
    pieces += [member(_ATTRIBUTES, _attribute(*one)) for one in attributes.items()]
    at_ns = started_ns
    for stage, elapsed_ns in facts.stages:  # they run one after the other from the start on
        at_ns += elapsed_ns
        took = member(_EVENT_ATTRIBUTES, _attribute("forebay.us", elapsed_ns / 1000))
        named = member(_EVENT_NAME, stage.encode())
        pieces.append(member(_EVENTS, _AT + _EIGHT_BYTES(at_ns) + named + took))
    return b"".join(pieces)


def name_of(facts: Facts) -> str:
    """Name a span as the OpenTelemetry GenAI conventions have it."""
    if facts.dialect is None:
        return str(facts.outcome)
    return f"{facts.dialect.operation} {_text(facts.model)}".rstrip()


def _attributes(facts: Facts) -> dict[str, Attribute]:
    """Name the facts after the OpenTelemetry GenAI conventions where these have a name."""
    attributes: dict[str, Attribute] = {
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


class Envelope:
    """What stands round the spans of a batch: whose they are."""

    def __init__(self, resource: Mapping[str, Any], scope: str, version: str) -> None:
        attributes = _written(resource, tag(Resource, "attributes"))
        self._resource: Final = member(tag(ResourceSpans, "resource"), attributes)
        named = InstrumentationScope(name=scope, version=version).SerializeToString()
        self._scope: Final = member(tag(ScopeSpans, "scope"), named)

    def around(self, spans: Iterable[bytes]) -> ExportTraceServiceRequest:
        """Put spans that were written into the message that is sent."""
        scope = self._scope + b"".join([member(_SPANS, span) for span in spans])
        resource = self._resource + member(_SCOPES, scope)
        return ExportTraceServiceRequest.FromString(member(_RESOURCES, resource))


def _written(attributes: Mapping[str, Any], at: bytes) -> bytes:
    return b"".join([member(at, _attribute(*one)) for one in attributes.items()])


def _attribute(key: str, value: Attribute) -> bytes:
    """Write a `KeyValue`."""
    if isinstance(value, str) and len(value) <= _KEPT_TEXT:
        return _text_attribute(key, value)
    return _key(key) + member(_VALUE, _any(value))


@lru_cache(_KEPT)
def _text_attribute(key: str, value: str) -> bytes:
    return _key(key) + member(_VALUE, _any(value))


@lru_cache(_KEPT)
def _key(key: str) -> bytes:
    return member(_KEY, key.encode())


def _any(value: Attribute) -> bytes:
    """Write an `AnyValue`."""
    if isinstance(value, str):
        return member(_STRING, value.encode())
    if isinstance(value, bool):  # before the numbers, of which it is one
        return _BOOL + varint(value)
    if isinstance(value, int):
        return _INT + varint(value & _SIGN)
    if isinstance(value, float):
        return _DOUBLE + _FLOAT(value)
    return member(_ARRAY, b"".join([member(_ITEM, _any(item)) for item in value]))
