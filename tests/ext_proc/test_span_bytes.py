"""A span that is written at once says what it would through the SDK's objects."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ext_proc.session import Facts
from ext_proc.telemetry.span_bytes import Envelope, span_bytes
from filters.api import Cut, Outcome
from filters.dialects import dialect_of

TRACE, PARENT = bytes(range(16)), bytes(range(8))
NAMES = st.text("abcdefghijklmnopqrstuvwxyz._", min_size=1, max_size=30).map("note.{}".format)
NOTES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=128),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
)


def value(of: AnyValue) -> Any:
    kind = of.WhichOneof("value")
    assert kind
    if kind == "array_value":
        return tuple(map(value, of.array_value.values))
    return getattr(of, kind)


def read(written: bytes) -> Span:
    (resource,) = Envelope({"service.name": "x"}, "forebay", "1").around([written]).resource_spans
    (scope,) = resource.scope_spans
    (span,) = scope.spans
    return span


@given(st.dictionaries(NAMES, NOTES, max_size=6))
def test_every_note_is_an_attribute_of_its_kind(notes: dict[str, Any]) -> None:
    """Numbers of any sign, truth values and texts of any script come out as they went in."""
    facts = Facts("faq", notes=notes)
    span = read(span_bytes(facts, TRACE, PARENT, 1, 2))
    found = {one.key: value(one.value) for one in span.attributes}
    assert {f"forebay.{key}": note for key, note in notes.items()} == {
        key: found[key] for key in found if key.startswith("forebay.note.")
    }
    assert {type(note) for note in notes.values()} == {
        type(found[f"forebay.{key}"]) for key in notes
    }


def test_a_batch_says_whose_spans_it_has() -> None:
    """Resource and scope stand once above all spans of a batch, in their order."""
    envelope = Envelope({"service.name": "forebay", "process.pid": 7, "args": ("a", "b")}, "f", "1")
    facts = (Facts("faq"), Facts("raw"))
    batch = envelope.around([span_bytes(one, TRACE, b"", 1, 2) for one in facts])
    (resource,) = batch.resource_spans
    (scope,) = resource.scope_spans
    whose = {one.key: value(one.value) for one in resource.resource.attributes}
    assert {"service.name": "forebay", "process.pid": 7, "args": ("a", "b")} == whose
    assert ("f", "1") == (scope.scope.name, scope.scope.version)
    profiles = [
        value(one.value)
        for span in scope.spans
        for one in span.attributes
        if one.key == "forebay.profile"
    ]
    assert ["faq", "raw"] == profiles


def test_no_two_spans_share_an_id() -> None:
    """Nor does a root name a parent; one below the proxy's says that it is another process."""
    facts = Facts("faq")
    root, below = (read(span_bytes(facts, TRACE, parent, 1, 2)) for parent in (b"", PARENT))
    assert 8 == len(root.span_id) == len(below.span_id)
    assert root.span_id != below.span_id
    assert (b"", PARENT) == (root.parent_span_id, below.parent_span_id)
    assert (0x100, 0x300) == (root.flags, below.flags)


def test_what_the_conventions_name_is_written_under_their_names() -> None:
    """The outcome, the cuts before and after, and the reason to stop as a list."""
    facts = Facts(
        "faq",
        dialect_of("POST", "/v1/chat/completions"),
        model="m",
        outcome=Outcome.COMPLETE,
        cuts=[Cut("html", 9, 4), Cut("html", 5, 3)],
        stages=[("clean", 1_500)],
    )
    span = read(span_bytes(facts, TRACE, PARENT, 1_000_000, 2_000_000))
    found = {one.key: value(one.value) for one in span.attributes}
    assert ("complete", (14, 7)) == (found["forebay.outcome"], found["forebay.cut.html"])
    assert ("chat", "m") == (found["gen_ai.operation.name"], found["gen_ai.request.model"])
    (event,) = span.events
    assert ("clean", 1_001_500, 1.5) == (
        event.name,
        event.time_unix_nano,
        value(event.attributes[0].value),
    )
