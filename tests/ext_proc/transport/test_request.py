"""What makes a call, what is refused and how, and what is remembered of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.transport.http2 import Status
from ext_proc.transport.http2.faults import ConnectionFault
from ext_proc.transport.http2.fields import Field, FieldReader, literals
from ext_proc.transport.http2.request import (
    MOST_REMEMBERED,
    REPLY_BLOCK,
    Call,
    Malformed,
    RequestReader,
    percent_encoded,
    status_block,
)
from tests.ext_proc.transport.test_fields import PACKER
from tests.http2_peer import PATH, REQUEST, ROUTES

MOST = 4_096
NO_POST: list[Field] = [(b":status", b"405"), (b"allow", b"POST")]
NO_GRPC: list[Field] = [(b":status", b"415")]
TRACE = b"00-87f4437e8cd6654c9485aa5b98face77-f4610f2b8a8dde9c-01"


def reader() -> RequestReader:
    reader = RequestReader(ROUTES, MOST)
    reader.fields.acknowledged()
    return reader


def replaced(name: bytes, *values: bytes) -> list[Field]:
    """Return a call's fields with other values for a name, or none."""
    place = [key for key, _ in REQUEST].index(name) if name in dict(REQUEST) else len(REQUEST)
    fields = [field for field in REQUEST if field[0] != name]
    return [*fields[:place], *((name, value) for value in values), *fields[place:]]


def packed(fields: list[Field]) -> bytes:
    """Write fields as Envoy does: each name of its own and each value packed."""
    block = b""
    for name, value in fields:
        key, text = PACKER.encode(name), PACKER.encode(value)
        assert len(key) < 127
        assert len(text) < 127
        block += b"\x00" + bytes((0x80 | len(key),)) + key + bytes((0x80 | len(text),)) + text
    return block


# --- What makes a call ---------------------------------------------------------------------------


def test_a_call_has_a_route_and_metadata() -> None:
    """Names and values as text, without what belongs to the protocol."""
    fields = [*REQUEST, (b"x-forebay-profile", b"faq"), (b"grpc-timeout", b"1S")]
    request, metadata = reader().call(literals(fields))
    assert ("call", 1.0, None, b"") == request
    assert {"x-forebay-profile": "faq"} == metadata


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"4S", 4.0),
        (b"500m", 0.5),
        (b"250u", 0.000_25),
        (b"99999999n", 0.099_999_999),
        (b"0S", 0.0),
    ],
)
def test_timeouts_have_six_units(timeout: bytes, seconds: float) -> None:
    """From hours to nanoseconds."""
    call = reader().call(literals([*REQUEST, (b"grpc-timeout", timeout)]))
    assert seconds == pytest.approx(call[0].timeout_s)


def test_binary_metadata_is_left_out_and_text_may_be_of_any_bytes() -> None:
    """Nothing here reads base64; HTTP lets a value be more than ASCII."""
    _, metadata = reader().call(literals([*REQUEST, (b"a-bin", b"AAAA"), (b"b", b"\xff")]))
    assert {"b": "\xff"} == metadata


def test_of_metadata_that_comes_twice_the_last_counts() -> None:
    """As in grpc.aio's filling of the seam."""
    _, metadata = reader().call(literals([*REQUEST, (b"x", b"1"), (b"x", b"2")]))
    assert {"x": "2"} == metadata


MALFORMED = {
    "no method": replaced(b":method"),
    "no scheme": replaced(b":scheme"),
    "no path": replaced(b":path"),
    "an empty path": replaced(b":path", b""),
    "two methods": replaced(b":method", b"POST", b"POST"),
    "two paths": replaced(b":path", b"/", b"/"),
    "a pseudo-header of replies": [*REQUEST[:4], (b":status", b"200"), *REQUEST[4:]],
    "an unknown pseudo-header": [*REQUEST[:4], (b":what", b"x"), *REQUEST[4:]],
    "a pseudo-header after others": [*REQUEST[1:], REQUEST[0]],
    "a capital in a name": [*REQUEST, (b"X-name", b"v")],
    "a space in a name": [*REQUEST, (b"x name", b"v")],
    "no name": [*REQUEST, (b"", b"v")],
    "a colon in a name": [*REQUEST, (b"x:name", b"v")],
    "a byte over ASCII in a name": [*REQUEST, (b"x\xe9", b"v")],
    "a line end in a value": [*REQUEST, (b"x", b"a\r\nb: c")],
    "a NUL in a value": [*REQUEST, (b"x", b"a\0b")],
    "a space before a value": [*REQUEST, (b"x", b" a")],
    "a tab after a value": [*REQUEST, (b"x", b"a\t")],
    "a line end in a path": replaced(b":path", b"/\n"),
    "connection": [*REQUEST, (b"connection", b"close")],
    "keep-alive": [*REQUEST, (b"keep-alive", b"5")],
    "proxy-connection": [*REQUEST, (b"proxy-connection", b"close")],
    "transfer-encoding": [*REQUEST, (b"transfer-encoding", b"chunked")],
    "upgrade": [*REQUEST, (b"upgrade", b"h2c")],
    "te of gzip": replaced(b"te", b"gzip"),
    "a length that is no number": [*REQUEST, (b"content-length", b"-1")],
    "two lengths": [*REQUEST, (b"content-length", b"1"), (b"content-length", b"2")],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_no_call(name: str) -> None:
    """RFC 9113, 8.1.1, 8.2 and 8.3; nothing of it is remembered."""
    request = reader()
    for _ in range(2):
        with pytest.raises(Malformed):
            request.call(literals(MALFORMED[name]))


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        (replaced(b":method", b"GET"), NO_POST),
        ([(b":method", b"CONNECT"), (b":authority", b"x:1")], NO_POST),
        (replaced(b"content-type"), NO_GRPC),
        (replaced(b"content-type", b"application/json"), NO_GRPC),
        (replaced(b"content-type", b"application/grpc-web"), NO_GRPC),
    ],
)
def test_what_is_no_grpc_is_refused_in_the_words_of_http(
    fields: list[Field], refusal: list[Field]
) -> None:
    """Who asks so reads no gRPC status."""
    assert literals(refusal) == reader().call(literals(fields))[0].refusal


@pytest.mark.parametrize(
    "kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y"]
)
def test_grpc_has_several_names(kind: bytes) -> None:
    """A suffix names the encoding, and there may be parameters (gRPC over HTTP/2)."""
    assert "call" == reader().call(literals(replaced(b"content-type", kind)))[0].route


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        (replaced(b":path", b"/test/Other"), Status.UNIMPLEMENTED, "no such method"),
        (replaced(b":path", b"*"), Status.UNIMPLEMENTED, "no such method"),
        ([*REQUEST, (b"grpc-timeout", b"1")], Status.INTERNAL, "a malformed grpc-timeout"),
        ([*REQUEST, (b"grpc-timeout", b"-1S")], Status.INTERNAL, "a malformed grpc-timeout"),
        ([*REQUEST, (b"grpc-timeout", b"123456789S")], Status.INTERNAL, "a malformed grpc-timeout"),
    ],
)
def test_a_call_that_cannot_be_served_is_refused_with_a_status(
    fields: list[Field], status: Status, text: str
) -> None:
    """Head and trailers in one block."""
    assert REPLY_BLOCK + status_block(status, text) == reader().call(literals(fields))[0].refusal


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain text: ~", b"plain text: ~"),
        ("100 %", b"100 %25"),
        ("a\nb\0", b"a%0Ab%00"),
        ("é, 中", b"%C3%A9, %E4%B8%AD"),
        ("\ud800", b"?"),
    ],
)
def test_a_status_message_is_percent_encoded(text: str, written: bytes) -> None:
    """UTF-8, and only what may stand in a header (gRPC over HTTP/2)."""
    assert written == percent_encoded(text)


# --- What is remembered --------------------------------------------------------------------------


def traced(trace: bytes, *, at: int = len(REQUEST), more: list[Field] | None = None) -> bytes:
    fields = [*REQUEST, (b"x-a", b"1"), *(more or ())]
    return packed([*fields[:at], (b"traceparent", trace), *fields[at:]])


def outcome(request: RequestReader, block: bytes) -> Call | type[Exception]:
    """Return what a reader says of a block: a call, or the error it raised."""
    try:
        return request.call(block)
    except (Malformed, ConnectionFault) as error:
        return type(error)


def test_a_block_seen_before_is_not_read_again() -> None:
    """The same call, the object even."""
    request = reader()
    assert request.call(literals(REQUEST)) is request.call(literals(REQUEST))


def test_before_the_acknowledgement_no_block_is_remembered() -> None:
    """The same bytes may mean another thing then."""
    request = RequestReader(ROUTES, MOST)
    request.call(literals(REQUEST))
    request.call(traced(TRACE))
    assert {} == request._known
    assert {} == request._untraced


def test_blocks_remembered_are_bounded() -> None:
    """A peer that never says the same twice gains nothing."""
    request = reader()
    for number in range(3 * MOST_REMEMBERED):
        request.call(literals([*REQUEST, (b"x", b"%d" % number)]))
        request.call(traced(TRACE, more=[(b"x", b"%d" % number)]))
    assert MOST_REMEMBERED >= len(request._known)
    assert MOST_REMEMBERED >= len(request._untraced)


def test_a_block_that_differs_in_its_trace_is_read_by_that_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its other fields are those of the block seen before."""
    request = reader()
    assert {"x-a": "1", "traceparent": TRACE.decode()} == request.call(traced(TRACE))[1]
    other = b"00-00000000000000000000000000000001-0000000000000002-00"
    monkeypatch.setattr(FieldReader, "read", None)
    call, metadata = request.call(traced(other))
    assert "call" == call.route
    assert {"x-a": "1", "traceparent": other.decode()} == metadata


traces = st.one_of(
    st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True),
    st.binary(max_size=60),
)


@given(st.lists(st.tuples(traces, st.integers(4, len(REQUEST) + 1), st.booleans()), max_size=6))
def test_what_was_read_before_changes_no_reading(seen: list[tuple[bytes, int, bool]]) -> None:
    """Whatever the trace, wherever it stands, once or twice: the same as without memory."""
    request = reader()
    for trace, at, twice in seen:
        block = traced(trace, at=at, more=[(b"traceparent", b"x")] if twice else None)
        assert outcome(reader(), block) == outcome(request, block)


@given(st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), max_size=4), st.integers(0, 9))
def test_a_block_near_one_that_was_read_is_read_as_if_alone(
    edits: list[tuple[int, int]], cut: int
) -> None:
    """Bytes changed or missing anywhere, in lengths and names above all."""
    request = reader()
    request.call(traced(TRACE))
    block = bytearray(traced(TRACE))
    for at, byte in edits:
        block[at % len(block)] = byte
    raw = bytes(block[: len(block) - cut])
    assert outcome(reader(), raw) == outcome(request, raw)


def test_a_path_is_what_the_route_is_named_by() -> None:
    """Case counts, and so does a query."""
    for path in (PATH.lower(), PATH + "?x=y", PATH + "/"):
        assert reader().call(literals(replaced(b":path", path.encode())))[0].route is None
