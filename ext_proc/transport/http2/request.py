"""What a call asks for: a header block as HTTP and gRPC want it, and what a refusal looks like.

Calls of one proxy differ in next to nothing. Blocks seen before are not read again, and a block
that is one of those but for the `traceparent` in it costs no more than that one value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from ext_proc.transport.http2.fields import FieldReader, Fields, literals, unpack

MOST_REMEMBERED: Final = 256  # blocks; each profile of each listener says its own
GRPC: Final = b"application/grpc"
TIMEOUT_UNITS_S: Final = {
    "H": 3600.0,
    "M": 60.0,
    "S": 1.0,
    "m": 1e-3,
    "u": 1e-6,
    "n": 1e-9,
}

_NAME: Final = re.compile(rb"[a-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2, in lower case
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")  # RFC 9113, 8.2.1
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_OF_REQUEST: Final = (b":method", b":scheme", b":path", b":authority")
_OF_PROTOCOL: Final = frozenset({b"te", b"content-type", b"content-length", b"grpc-timeout"})
# A literal that is not indexed, with a name of its own, Huffman-coded: as Envoy writes it.
_TRACE_NAME: Final = b"\x00\x88" + bytes.fromhex("4d83216b1d85a93f")
_TRACE_KEY: Final = "traceparent"
_TRACE_BYTES: Final = b"-0123456789abcdef"


class Status(IntEnum):
    """How a call ended, in gRPC's words; those that are used."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Malformed(Exception):
    """A block that is no HTTP request, or no trailers (RFC 9113, 8.1.1)."""


class Request(NamedTuple):
    """What many calls may have in common."""

    route: Any
    """What is registered for its path; None when the call is refused."""
    timeout_s: float | None = None
    length: int | None = None
    """Of its body, if it was said."""
    refusal: bytes = b""
    """The block that answers a call that is refused."""


Call: TypeAlias = tuple[Request, Mapping[str, str]]
"""A request and its metadata."""


def status_block(status: int, text: str = "") -> bytes:
    """Write the fields that end a call (gRPC over HTTP/2, Responses)."""
    fields = [(b"grpc-status", b"%d" % status)]
    if text:
        fields.append((b"grpc-message", percent_encoded(text)))
    return literals(fields)


def percent_encoded(text: str) -> bytes:
    """Write a status message: printable ASCII stays, `%` apart."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text.encode(errors="replace")
    )


REPLY_BLOCK: Final = literals([(b":status", b"200"), (b"content-type", GRPC)])
_NO_POST: Final = literals([(b":status", b"405"), (b"allow", b"POST")])
_NO_GRPC: Final = literals([(b":status", b"415")])
_NO_METHOD: Final = REPLY_BLOCK + status_block(Status.UNIMPLEMENTED, "no such method")
_NO_TIMEOUT: Final = REPLY_BLOCK + status_block(Status.INTERNAL, "a malformed grpc-timeout")


class RequestReader:
    """Reads the header blocks of one connection."""

    def __init__(self, routes: Mapping[str, Any], most_list_bytes: int) -> None:
        self.fields: Final = FieldReader(most_list_bytes)
        self._routes: Final = routes
        self._known: Final[dict[bytes, Call]] = {}
        self._untraced: Final[dict[bytes, tuple[int, Request, dict[str, str]]]] = {}
        """Blocks without their `traceparent`, the place where it stood, and what else they say."""

    def call(self, block: bytes) -> Call:
        """Return what a block asks for; raise `Malformed`, or `ConnectionFault`."""
        call = self._known.get(block)
        if call is not None:
            return call
        stateless = self.fields.stateless
        if stateless and (at := block.find(_TRACE_NAME)) > 0:
            call = self._traced(block, at)
            if call is not None:
                return call
        fields = self.fields.read(block)
        call = read_call(fields, self._routes)
        if stateless:
            self._remember(block, fields, call)
        return call

    def trailers(self, block: bytes) -> None:
        """See that a block may end a call; raise `Malformed`, or `ConnectionFault`."""
        for name, value in self.fields.read(block).fields:
            _check_field(name, value)

    def _traced(self, block: bytes, at: int) -> Call | None:
        """Return what a block asks for that is known but for its `traceparent`, if it is.

        No block has a state, so what comes before and after a field says the same whatever is in
        it. That a field begins at this place is known of the block that was read whole.
        """
        value_at = at + len(_TRACE_NAME) + 1
        length = block[value_at - 1] if value_at <= len(block) else 0
        if not 0x80 < length < 0xFF:  # Huffman-coded, with a length of one byte
            return None
        end = value_at + (length & 0x7F)
        known = self._untraced.get(block[:at] + block[end:])
        if known is None or known[0] != at or end > len(block):
            return None
        value = unpack(block[value_at:end])
        if value.translate(None, _TRACE_BYTES):
            return None  # none that W3C knows: it is read with care
        metadata = known[2].copy()
        metadata[_TRACE_KEY] = value.decode()
        return known[1], metadata

    def _remember(self, block: bytes, fields: Fields, call: Call) -> None:
        traces = [place for place, (name, _) in enumerate(fields.fields) if name == b"traceparent"]
        if not traces:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[block] = call
            return
        (place, *more) = traces
        at, end = fields.ends[place - 1], fields.ends[place]
        if more or not block.startswith(_TRACE_NAME, at):
            return
        if len(self._untraced) >= MOST_REMEMBERED:
            self._untraced.clear()
        request, metadata = call
        untraced = {key: text for key, text in metadata.items() if key != _TRACE_KEY}
        self._untraced[block[:at] + block[end:]] = at, request, untraced


def read_call(fields: Fields, routes: Mapping[str, Any]) -> Call:
    """Return what fields ask for; raise `Malformed` where RFC 9113, 8.2 and 8.3, forbids them."""
    pseudo: dict[bytes, bytes] = {}
    values: dict[bytes, bytes] = {}
    for name, value in fields.fields:
        if name[:1] == b":":
            if values or name in pseudo or name not in _OF_REQUEST or _BAD_VALUE.search(value):
                raise Malformed
            pseudo[name] = value
        else:
            _check_field(name, value)
            if name == b"content-length" and values.get(name, value) != value:
                raise Malformed
            values[name] = value
    if pseudo.get(b":method") != b"CONNECT" and not (
        pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")
    ):
        raise Malformed
    metadata = MappingProxyType(
        {
            name.decode(): value.decode("latin-1")
            for name, value in values.items()
            # Binary values come in base64, and nothing here reads any.
            if name not in _OF_PROTOCOL and not name.endswith(b"-bin")
        }
    )
    return _request(pseudo, values, routes), metadata


def _request(
    pseudo: Mapping[bytes, bytes], values: Mapping[bytes, bytes], routes: Mapping[str, Any]
) -> Request:
    length = _length(values)
    if pseudo[b":method"] != b"POST":
        return Request(None, None, length, _NO_POST)
    kind = values.get(b"content-type", b"")
    if not kind.startswith(GRPC) or kind[len(GRPC) :][:1] not in (b"", b"+", b";"):
        return Request(None, None, length, _NO_GRPC)
    timeout_s = None
    if timeout := values.get(b"grpc-timeout"):
        match = _TIMEOUT.fullmatch(timeout)
        if match is None:
            return Request(None, None, length, _NO_TIMEOUT)
        timeout_s = int(match[1]) * TIMEOUT_UNITS_S[match[2].decode()]
    route = routes.get(pseudo[b":path"].decode("latin-1"))
    return Request(route, timeout_s, length, b"" if route is not None else _NO_METHOD)


def _check_field(name: bytes, value: bytes) -> None:
    if (
        not _NAME.fullmatch(name)
        or _BAD_VALUE.search(value)
        or name in _OF_CONNECTION
        or (name == b"te" and value != b"trailers")
    ):
        raise Malformed


def _length(values: Mapping[bytes, bytes]) -> int | None:
    length = values.get(b"content-length")
    if length is None:
        return None
    if not _LENGTH.fullmatch(length):
        raise Malformed
    return int(length)
