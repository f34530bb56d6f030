"""Turn protocol messages into events, and commands into protocol messages.

The only module that knows the generated classes. Envoy's field docs are the source of every rule.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.conversation import Message
from ext_proc.wire import member, tag, varint, wrap
from filters.errors import ConversationError

# --- Events --------------------------------------------------------------------------------------

# Structs, for every message makes two: 0.1 us each, where a frozen dataclass takes 1 us.


class Sent(enum.IntEnum):
    """How the proxy sends a body by itself, without being asked."""

    NONE = pb.ProcessingMode.NONE
    STREAMED = pb.ProcessingMode.STREAMED
    BUFFERED = pb.ProcessingMode.BUFFERED
    BUFFERED_PARTIAL = pb.ProcessingMode.BUFFERED_PARTIAL
    FULL_DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED


class Route(msgspec.Struct, frozen=True):
    """How the bodies of an exchange come."""

    request: Sent
    reply: Sent
    duplex: bool
    """One of them wants its bytes back in full duplex."""


class Headers(msgspec.Struct, frozen=True):
    """Request or response headers; `last` when no body follows."""

    message: Message
    headers: Mapping[str, str]
    last: bool
    served: str = ""
    """The replica that answers, as "ip:port", where the proxy tells."""
    subset: tuple[str, ...] | None = None
    """The replicas that may be picked, as the proxy wrote them; None: it does not say."""
    route: Route | None = None
    """With request headers, where the proxy tells."""


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
    endpoints: str = ""
    """Whom the proxy is to ask: "ip:port", the next ones behind commas; empty: it chooses."""
    message: Message = Message.REQUEST_BODY
    """What it replies to: the whole body, or the headers alone."""


class Stream(msgspec.Struct, frozen=True):
    """Send bytes of a body in full-duplex mode, as many and when we like."""

    data: bytes
    last: bool
    message: Message = Message.RESPONSE_BODY


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

CHUNK_BYTES: Final = 62_000  # Envoy advises below 64 KiB, what is around them included


def in_chunks(data: bytes, *, last: bool, message: Message) -> Iterator[Stream]:
    """Yield what sends `data`, in as few pieces as the proxy takes; of nothing, one."""
    end = max(len(data), 1)
    for at in range(0, end, CHUNK_BYTES):
        ends = at + CHUNK_BYTES >= end
        yield Stream(data[at : at + CHUNK_BYTES], last and ends, message)


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
        return _headers(request, _HEADERS[kind], getattr(request, kind))
    if kind in _BODIES:
        part = getattr(request, kind)
        return Body(_BODIES[kind], part.body, part.end_of_stream)
    if kind == "request_trailers":
        return Trailers(Message.REQUEST_TRAILERS)
    if kind == "response_trailers":
        return Trailers(Message.RESPONSE_TRAILERS)
    raise ConversationError("a ProcessingRequest that says nothing")


def _headers(request: pb.ProcessingRequest, message: Message, part: pb.HttpHeaders) -> Headers:
    served, subset, route = "", None, None
    if message is Message.RESPONSE_HEADERS:
        if request.HasField("metadata_context"):
            served = _served(request.metadata_context)
    else:
        if request.HasField("metadata_context"):
            subset = _subset(request.metadata_context)
        if request.HasField("protocol_config"):
            config = request.protocol_config
            route = _ROUTES.get((config.request_body_mode, config.response_body_mode))
    return Headers(message, _header_map(part.headers), part.end_of_stream, served, subset, route)


_ROUTES: Final[dict[tuple[int, int], Route]] = {
    (request, reply): Route(request, reply, Sent.FULL_DUPLEX in (request, reply))
    for request in Sent
    for reply in Sent
}


def _subset(metadata: pb.Metadata) -> tuple[str, ...] | None:
    """Return who may be picked: a list of texts, or one text with commas.

    Anything else that stands there names nobody: to pick any replica would be to pick outside.
    """
    known = metadata.filter_metadata
    if SUBSET_NAMESPACE not in known or SUBSET_KEY not in known[SUBSET_NAMESPACE].fields:
        return None
    value = known[SUBSET_NAMESPACE].fields[SUBSET_KEY]
    values = value.list_value.values if value.HasField("list_value") else (value,)
    names = (name.strip() for each in values for name in each.string_value.split(","))
    return tuple(filter(None, names))


def _served(metadata: pb.Metadata) -> str:
    """Return whom the proxy's load balancing chose in the end."""
    known = metadata.filter_metadata
    if LB_NAMESPACE not in known or SERVED_KEY not in known[LB_NAMESPACE].fields:
        return ""
    return known[LB_NAMESPACE].fields[SERVED_KEY].string_value


def _header_map(headers: pb.HeaderMap) -> dict[str, str]:
    """Return names and values; repeated ones joined by a comma, as RFC 9110, 5.2 allows.

    Each byte becomes one character (ISO 8859-1), so that values that differ, such as two
    credentials, still do.
    """
    given = headers.headers
    found = {one.key: one.raw_value.decode("latin-1") or one.value for one in given}
    if len(found) == len(given):
        return found
    joined: dict[str, str] = {}
    for one in given:
        key, value = one.key, one.raw_value.decode("latin-1") or one.value
        joined[key] = f"{joined[key]}, {value}" if key in joined else value
    return joined


# --- Encoding ------------------------------------------------------------------------------------

METADATA_NAMESPACE: Final = "forebay"
LB_NAMESPACE: Final = "envoy.lb"
ENDPOINTS_KEY: Final = "x-gateway-destination-endpoint"
"""As the Gateway API Inference Extension has it."""
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
MOST_KEPT_PIECES: Final = 1_024  # of 100 bytes or so: most replies name the same few headers
_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_TO: Final = {message: tag(pb.ProcessingResponse, message.name.lower()) for message in Message}
_IMMEDIATE: Final = tag(pb.ProcessingResponse, "immediate_response")
_METADATA: Final = tag(pb.ProcessingResponse, "dynamic_metadata")
_COMMON: Final = tag(pb.BodyResponse, "response")
_MUTATION: Final = tag(pb.CommonResponse, "header_mutation")
_BODY_MUTATION: Final = tag(pb.CommonResponse, "body_mutation")
_CLEAR_ROUTE: Final = tag(pb.CommonResponse, "clear_route_cache") + varint(1)
_REPLACED: Final = tag(pb.BodyMutation, "body")
_STREAMED: Final = tag(pb.BodyMutation, "streamed_response")
_CHUNK: Final = tag(pb.StreamedBodyResponse, "body")
_LAST_CHUNK: Final = tag(pb.StreamedBodyResponse, "end_of_stream") + varint(1)
_STATUS: Final = tag(pb.ImmediateResponse, "status")
_CODE: Final = tag(pb.HttpStatus, "code")
_HEADERS_OF_ANSWER: Final = tag(pb.ImmediateResponse, "headers")
_BODY_OF_ANSWER: Final = tag(pb.ImmediateResponse, "body")
_DETAILS: Final = tag(pb.ImmediateResponse, "details")
_FIELDS: Final = tag(Struct, "fields")
_STRUCT: Final = tag(Value, "struct_value")
_TEXT: Final = tag(Value, "string_value")
_KEY, _VALUE = b"\x0a", b"\x12"  # of an entry of any map
_NEVER_TWICE: Final = frozenset(("server-timing",))


def encode(command: Command) -> bytes:
    """Write a command as a `ProcessingResponse`."""
    match command:
        case Pass():  # a pattern of members would cost half of what is done here
            told = _metadata(command.metadata) if command.metadata else b""
            return _PASS[command.message, command.response_body] + told
        case Stream():
            data, last = command.data, command.last
            head = _head_of_stream(command.message, len(data), last=last)
            return b"".join((head, data, _LAST_CHUNK)) if last else head + data
        case Forward():
            return _forward(command)
        case Respond():
            return _respond(command)
        case Extend(seconds):
            response = pb.ProcessingResponse()
            # Envoy takes no less than a millisecond.
            response.override_message_timeout.FromMilliseconds(max(1, round(seconds * 1000)))
            return response.SerializeToString()
        case _:
            assert_never(command)


@lru_cache(MOST_KEPT_PIECES)
def _head_of_stream(message: Message, size: int, *, last: bool) -> bytes:
    """Write what stands before `size` bytes of a body: tags and lengths, the same for as many."""
    head = [_CHUNK, varint(size)]
    behind = size + (len(_LAST_CHUNK) if last else 0)
    for at in (_STREAMED, _BODY_MUTATION, _COMMON, _TO[message]):
        head[:0] = (at, varint(sum(map(len, head)) + behind))
    return b"".join(head)


def _forward(command: Forward) -> bytes:
    set_headers, removed = command.set_headers.items(), command.remove_headers
    mutation = b"".join([_set_header(*header) for header in set_headers])
    if removed:
        mutation += pb.HeaderMutation(remove_headers=removed).SerializeToString()
    pieces: list[bytes] = []
    if command.body is not None:
        pieces += (_REPLACED, varint(len(command.body)), command.body)
        wrap(_BODY_MUTATION, pieces)
    pieces.insert(0, member(_MUTATION, mutation))
    if command.choose_route_again:
        pieces.append(_CLEAR_ROUTE)
    wrap(_COMMON, pieces)
    wrap(_TO[command.message], pieces)
    if command.metadata or command.endpoints:
        others = _lb(command.endpoints) if command.endpoints else b""
        pieces.append(_metadata(command.metadata, others))
    return b"".join(pieces)


def _respond(command: Respond) -> bytes:
    set_headers = command.headers.items()
    pieces = [
        member(_STATUS, _CODE + varint(command.status)),
        member(_HEADERS_OF_ANSWER, b"".join([_set_header(*header) for header in set_headers])),
        *(_BODY_OF_ANSWER, varint(len(command.body)), command.body),
        member(_DETAILS, command.details.encode()),
    ]
    wrap(_IMMEDIATE, pieces)
    if command.metadata:
        pieces.append(_metadata(command.metadata))
    return b"".join(pieces)


@lru_cache(MOST_KEPT_PIECES)
def _set_header(name: str, value: str) -> bytes:
    """Write what a `HeaderMutation` has to say to set one header."""
    mutation = pb.HeaderMutation()
    option = mutation.set_headers.add(append_action=_OVERWRITE)
    option.header.key = name
    option.header.raw_value = value.encode()
    return mutation.SerializeToString()


def _text(name: str, value: str) -> bytes:
    """Write what a `Struct` has to say of one text."""
    entry = member(_KEY, name.encode()) + member(_VALUE, member(_TEXT, value.encode()))
    return member(_FIELDS, entry)


_kept_text: Final = lru_cache(MOST_KEPT_PIECES)(_text)


def _metadata(members: Mapping[str, str] | None, others: bytes = b"") -> bytes:
    """Write members of the `forebay` dynamic metadata, and what other namespaces get."""
    if not members:
        return member(_METADATA, others)
    struct = b"".join(
        [_text(*one) if one[0] in _NEVER_TWICE else _kept_text(*one) for one in members.items()]
    )
    entry = _NAMESPACE + member(_VALUE, member(_STRUCT, struct))
    return member(_METADATA, member(_FIELDS, entry) + others)


def _lb(endpoints: str) -> bytes:
    """Write what the proxy's load balancing reads; pairs of many replicas are too many to keep."""
    text = _ENDPOINTS + member(_VALUE, member(_TEXT, endpoints.encode()))
    return member(_FIELDS, _LB + member(_VALUE, member(_STRUCT, member(_FIELDS, text))))


_NAMESPACE: Final = member(_KEY, METADATA_NAMESPACE.encode())
_LB: Final = member(_KEY, LB_NAMESPACE.encode())
_ENDPOINTS: Final = member(_KEY, ENDPOINTS_KEY.encode())


def _pass(message: Message, mode: Mode | None) -> bytes:
    """Write a reply that changes nothing but how the body of the reply comes."""
    response = pb.ProcessingResponse()
    getattr(response, message.name.lower()).SetInParent()
    if mode is not None:
        # A mode override replaces the whole mode: what it leaves out is reset.
        override = response.mode_override
        override.response_body_mode = mode.value
        if mode is not Mode.NONE:
            # Where trailers follow, no chunk says that it is the last. Duplex does not go without.
            override.response_trailer_mode = pb.ProcessingMode.SEND
        if mode is Mode.FULL_DUPLEX:
            # Envoy 1.40 keeps it, whatever the length of what we stream.
            removed = response.response_headers.response.header_mutation.remove_headers
            removed.append("content-length")
    return response.SerializeToString()


_PASS: Final = {
    (message, mode): _pass(message, mode) for message in Message for mode in (None, *Mode)
}
