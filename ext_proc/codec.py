"""Turn protocol messages into events, and commands into protocol messages.

The only module that knows the generated classes. Envoy's field docs are the source of every rule.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, assert_never

import msgspec
from google.protobuf.message import DecodeError

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.conversation import Message
from filters.errors import ConversationError

# --- Events --------------------------------------------------------------------------------------

# Structs, for every message makes two: 0.1 us each, where a frozen dataclass takes 1 us.


class Headers(msgspec.Struct, frozen=True):
    """Request or response headers; `last` when no body follows."""

    message: Message
    headers: Mapping[str, str]
    last: bool


class Body(msgspec.Struct, frozen=True):
    """A whole body (buffered) or one chunk of it; `last` when its direction ends with it."""

    message: Message
    data: bytes
    last: bool


class Trailers(msgspec.Struct, frozen=True):
    """Request or response trailers; always the last of their direction."""

    message: Message
    last: bool = True


Event: TypeAlias = Headers | Body | Trailers

# --- Commands ------------------------------------------------------------------------------------


class Mode(enum.Enum):
    """How the body of a reply is sent to us; asked for in the answer to its headers.

    Never whole: a body over its buffer limit Envoy 1.40 keeps for ever.
    """

    NONE = pb.ProcessingMode.NONE
    STREAMED = pb.ProcessingMode.STREAMED
    FULL_DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED


class Pass(msgspec.Struct, frozen=True):
    """Let a message go on as it is."""

    message: Message
    metadata: Mapping[str, str] | None = None
    """Members of the `forebay` dynamic metadata."""
    response_body: Mode | None = None
    """In a reply to response headers: how the body comes."""


class Forward(msgspec.Struct, frozen=True):
    """Let the whole request go upstream, changed."""

    set_headers: Mapping[str, str]
    remove_headers: Iterable[str] = ()
    body: bytes | None = None
    """None: the body goes on untouched."""
    metadata: Mapping[str, str] | None = None
    choose_route_again: bool = False


class Stream(msgspec.Struct, frozen=True):
    """Send bytes of the reply in full-duplex mode, as many and when we like."""

    data: bytes
    last: bool


class Respond(msgspec.Struct, frozen=True):
    """Answer the client in the upstream's stead."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    details: str
    """What Envoy's access log says of it, one word."""
    metadata: Mapping[str, str] | None = None
    """Members of the `forebay` dynamic metadata: for that log, not for the client."""


class Extend(msgspec.Struct, frozen=True):
    """Ask the proxy for more time before the reply to the current message."""

    seconds: float


Command: TypeAlias = Pass | Forward | Stream | Respond | Extend

# --- Decoding ------------------------------------------------------------------------------------

_HEADERS: Final = {
    "request_headers": Message.REQUEST_HEADERS,
    "response_headers": Message.RESPONSE_HEADERS,
}
_BODIES: Final = {
    "request_body": Message.REQUEST_BODY,
    "response_body": Message.RESPONSE_BODY,
}


def decode(data: bytes) -> Event:
    """Read a `ProcessingRequest`; raise `ConversationError` when it is none we know."""
    try:
        request = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        raise ConversationError("not a ProcessingRequest") from None
    kind = request.WhichOneof("request")
    if kind in _HEADERS:
        part = getattr(request, kind)
        return Headers(_HEADERS[kind], _header_map(part.headers), part.end_of_stream)
    if kind in _BODIES:
        part = getattr(request, kind)
        return Body(_BODIES[kind], part.body, part.end_of_stream)
    if kind == "request_trailers":
        return Trailers(Message.REQUEST_TRAILERS)
    if kind == "response_trailers":
        return Trailers(Message.RESPONSE_TRAILERS)
    raise ConversationError("a ProcessingRequest that says nothing")


def _header_map(headers: pb.HeaderMap) -> dict[str, str]:
    """Return names and values; repeated ones joined by a comma, as RFC 9110, 5.2 allows.

    Each byte becomes one character (ISO 8859-1), so that values that differ, such as two
    credentials, still do.
    """
    found: dict[str, str] = {}
    for header in headers.headers:
        value = header.raw_value.decode("latin-1") or header.value
        key = header.key
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


# --- Encoding ------------------------------------------------------------------------------------

_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
METADATA_NAMESPACE: Final = "forebay"


def encode(command: Command) -> bytes:
    """Write a command as a `ProcessingResponse`."""
    match command:
        case Pass(message, None, None):
            return _PLAIN_PASS[message]
        case Pass():
            response = _pass(command)
        case Forward():
            response = _forward(command)
        case Respond():
            response = _respond(command)
        case Stream(data, last):
            response = pb.ProcessingResponse()
            streamed = response.response_body.response.body_mutation.streamed_response
            streamed.body = data
            streamed.end_of_stream = last
        case Extend(seconds):
            response = pb.ProcessingResponse()
            # Envoy takes no less than a millisecond.
            response.override_message_timeout.FromMilliseconds(max(1, round(seconds * 1000)))
        case _:
            assert_never(command)
    return response.SerializeToString()


def _pass(command: Pass) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    _touch(response, command.message)
    if command.metadata:
        _set_metadata(response, command.metadata)
    if command.response_body is not None:
        # A mode override replaces the whole mode: what it leaves out is reset.
        mode = response.mode_override
        mode.response_body_mode = command.response_body.value
        if command.response_body is not Mode.NONE:
            # Where trailers follow, no chunk says that it is the last. Duplex does not go without.
            mode.response_trailer_mode = pb.ProcessingMode.SEND
        if command.response_body is Mode.FULL_DUPLEX:
            # Envoy 1.40 keeps it, whatever the length of what we stream.
            removed = response.response_headers.response.header_mutation.remove_headers
            removed.append("content-length")
    return response


def _forward(command: Forward) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    common = response.request_body.response
    _set_headers(common.header_mutation, command.set_headers)
    common.header_mutation.remove_headers.extend(command.remove_headers)
    if command.body is not None:
        common.body_mutation.body = command.body
    common.clear_route_cache = command.choose_route_again
    if command.metadata:
        _set_metadata(response, command.metadata)
    return response


def _respond(command: Respond) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = command.status
    _set_headers(immediate.headers, command.headers)
    immediate.body = command.body
    immediate.details = command.details
    if command.metadata:
        _set_metadata(response, command.metadata)
    return response


def _touch(response: pb.ProcessingResponse, message: Message) -> None:
    """Make the response answer `message`, with nothing in it."""
    part = getattr(response, _FIELDS[message])
    part.SetInParent()


def _set_headers(mutation: pb.HeaderMutation, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key = name
        option.header.raw_value = value.encode()


def _set_metadata(response: pb.ProcessingResponse, metadata: Mapping[str, str]) -> None:
    fields = response.dynamic_metadata.fields[METADATA_NAMESPACE].struct_value.fields
    for name, value in metadata.items():
        fields[name].string_value = value


_FIELDS: Final = {message: message.name.lower() for message in Message}


def _plain_pass(message: Message) -> bytes:
    response = pb.ProcessingResponse()
    _touch(response, message)
    return response.SerializeToString()


_PLAIN_PASS: Final = {message: _plain_pass(message) for message in Message}
