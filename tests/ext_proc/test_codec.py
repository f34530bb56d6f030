"""Messages in and out, held against Envoy's full API: what is read there and what is written."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final

import pytest
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderMap,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.config.core.v3 import Metadata as EnvoyMetadata
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.service.ext_proc import v3 as api
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.codec import (
    SERVED_KEY,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
    Body,
    Command,
    Event,
    Extend,
    Forward,
    Headers,
    Mode,
    Pass,
    Respond,
    Route,
    Sent,
    Stream,
    Trailers,
    decode,
    encode,
)
from ext_proc.conversation import Message
from filters.errors import ConversationError


def header_map(*pairs: tuple[str, bytes]) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=key, raw_value=value) for key, value in pairs])


def read_headers(*pairs: tuple[str, bytes]) -> dict[str, str]:
    """Send request headers and return how they are read."""
    request = api.ProcessingRequest(request_headers=api.HttpHeaders(headers=header_map(*pairs)))
    event = decode(bytes(request))
    assert isinstance(event, Headers)
    return dict(event.headers)


def lb_metadata(**values: Value) -> EnvoyMetadata:
    """Return what the proxy tells of its load balancing."""
    return EnvoyMetadata(filter_metadata={"envoy.lb": Struct(fields=values)})


# --- Events --------------------------------------------------------------------------------------

POST: Final = ((":method", b"POST"), (":path", b"/v1/chat/completions"))
POST_READ: Final = {":method": "POST", ":path": "/v1/chat/completions"}


def hint(value: Value) -> EnvoyMetadata:
    """Return what the proxy tells of whom it leaves to be picked."""
    return EnvoyMetadata(filter_metadata={SUBSET_NAMESPACE: Struct(fields={SUBSET_KEY: value})})


def modes(
    request: ProcessingModeBodySendMode, reply: ProcessingModeBodySendMode
) -> api.ProtocolConfiguration:
    return api.ProtocolConfiguration(request_body_mode=request, response_body_mode=reply)


def texts(*values: str) -> Value:
    return Value(list_value=ListValue(values=[Value(string_value=value) for value in values]))


BODY: Final = ProcessingModeBodySendMode
EVENTS: Final[Sequence[tuple[api.ProcessingRequest, Event]]] = [
    *(
        (
            api.ProcessingRequest(
                request_headers=api.HttpHeaders(headers=header_map(*POST)),
                metadata_context=hint(value),
            ),
            Headers(Message.REQUEST_HEADERS, POST_READ, last=False, subset=subset),
        )
        for value, subset in (
            (texts("10.0.0.1:80", "[::1]:80"), ("10.0.0.1:80", "[::1]:80")),
            (texts("10.0.0.1:80, 10.0.0.2:80", ""), ("10.0.0.1:80", "10.0.0.2:80")),
            (Value(string_value="10.0.0.1:80,10.0.0.2:80"), ("10.0.0.1:80", "10.0.0.2:80")),
            (texts(), ()),
            (Value(string_value=""), ()),
            (Value(number_value=1.0), ()),
        )
    ),
    *(
        (
            api.ProcessingRequest(
                request_headers=api.HttpHeaders(), protocol_config=modes(request, reply)
            ),
            Headers(
                Message.REQUEST_HEADERS, {}, last=False, route=Route(asked, answered, duplex=duplex)
            ),
        )
        for request, reply, asked, answered, duplex in (
            (BODY.BUFFERED, BODY.NONE, Sent.BUFFERED, Sent.NONE, False),
            (BODY.NONE, BODY.STREAMED, Sent.NONE, Sent.STREAMED, False),
            (BODY.BUFFERED, BODY.FULL_DUPLEX_STREAMED, Sent.BUFFERED, Sent.FULL_DUPLEX, True),
            (BODY.FULL_DUPLEX_STREAMED, BODY.NONE, Sent.FULL_DUPLEX, Sent.NONE, True),
        )
    ),
    (
        api.ProcessingRequest(request_headers=api.HttpHeaders(headers=header_map(*POST))),
        Headers(Message.REQUEST_HEADERS, POST_READ, last=False),
    ),
    (
        api.ProcessingRequest(request_headers=api.HttpHeaders(end_of_stream=True)),
        Headers(Message.REQUEST_HEADERS, {}, last=True),
    ),
    (
        api.ProcessingRequest(
            response_headers=api.HttpHeaders(headers=header_map((":status", b"200")))
        ),
        Headers(Message.RESPONSE_HEADERS, {":status": "200"}, last=False),
    ),
    (
        api.ProcessingRequest(
            response_headers=api.HttpHeaders(headers=header_map((":status", b"200"))),
            metadata_context=lb_metadata(**{SERVED_KEY: Value(string_value="10.0.0.1:80")}),
        ),
        Headers(Message.RESPONSE_HEADERS, {":status": "200"}, last=False, served="10.0.0.1:80"),
    ),
    (
        api.ProcessingRequest(
            response_headers=api.HttpHeaders(),
            metadata_context=lb_metadata(**{SERVED_KEY: Value(number_value=80.0)}),
        ),
        Headers(Message.RESPONSE_HEADERS, {}, last=False),
    ),
    (
        api.ProcessingRequest(
            response_headers=api.HttpHeaders(),
            metadata_context=lb_metadata(canary=Value(bool_value=True)),
        ),
        Headers(Message.RESPONSE_HEADERS, {}, last=False),
    ),
    (
        api.ProcessingRequest(response_headers=api.HttpHeaders(), metadata_context=EnvoyMetadata()),
        Headers(Message.RESPONSE_HEADERS, {}, last=False),
    ),
    (
        api.ProcessingRequest(request_body=api.HttpBody(body=b"\x00\xff", end_of_stream=True)),
        Body(Message.REQUEST_BODY, b"\x00\xff", last=True),
    ),
    (
        api.ProcessingRequest(request_body=api.HttpBody()),
        Body(Message.REQUEST_BODY, b"", last=False),
    ),
    (
        api.ProcessingRequest(response_body=api.HttpBody(body=b"data: 1\n\n")),
        Body(Message.RESPONSE_BODY, b"data: 1\n\n", last=False),
    ),
    (
        api.ProcessingRequest(request_trailers=api.HttpTrailers()),
        Trailers(Message.REQUEST_TRAILERS),
    ),
    (
        api.ProcessingRequest(
            response_trailers=api.HttpTrailers(trailers=header_map(("grpc-status", b"0")))
        ),
        Trailers(Message.RESPONSE_TRAILERS),
    ),
]


@pytest.mark.parametrize(("request_", "event"), EVENTS, ids=lambda part: type(part).__name__)
def test_each_kind_of_message_is_one_event(request_: api.ProcessingRequest, event: Event) -> None:
    """What Envoy's own classes write is read as the event it is."""
    assert event == decode(bytes(request_))


def test_every_message_of_the_conversation_can_be_read() -> None:
    """No message of the table is missing above."""
    assert set(Message) == {event.message for _, event in EVENTS}


def test_trailers_are_always_the_last_of_their_direction() -> None:
    """Trailers carry no end_of_stream: they are one."""
    event = decode(bytes(api.ProcessingRequest(request_trailers=api.HttpTrailers())))
    assert event.last is True


def test_repeated_headers_are_joined_in_their_order() -> None:
    """RFC 9110, 5.2: field lines of one name combine with a comma, in order."""
    found = read_headers(("accept", b"a"), ("x", b"1"), ("accept", b"b, c"), ("accept", b""))
    assert {"accept": "a, b, c, ", "x": "1"} == found


def test_a_value_that_came_as_text_is_read() -> None:
    """An Envoy that does not send raw values fills `value`."""
    headers = HeaderMap(headers=[HeaderValue(key="x", value="text")])
    request = api.ProcessingRequest(request_headers=api.HttpHeaders(headers=headers))
    assert Headers(Message.REQUEST_HEADERS, {"x": "text"}, last=False) == decode(bytes(request))


def test_an_empty_value_is_an_empty_text() -> None:
    """A header without a value is there all the same."""
    assert {"x": ""} == read_headers(("x", b""))


def test_values_that_differ_in_bytes_that_are_no_text_still_differ() -> None:
    """Two credentials never become one, whatever bytes a client puts there."""
    assert read_headers(("x-api-key", b"\xff")) != read_headers(("x-api-key", b"\xfe"))


@given(st.binary(), st.binary())
def test_no_two_header_values_read_alike(one: bytes, other: bytes) -> None:
    """Reading loses nothing: every byte is one character."""
    first, second = read_headers(("x", one)), read_headers(("x", other))
    assert (one == other) == (first == second)
    assert len(one) == len(first["x"])


@pytest.mark.parametrize("garbage", [b"\xff", b"\x12", b"\x0a\xff\xff", b"<html>", b"\x80" * 20])
def test_bytes_that_are_no_message_are_refused(garbage: bytes) -> None:
    """Garbage is the peer's mistake, not a crash of ours."""
    with pytest.raises(ConversationError) as raised:
        decode(garbage)
    assert "not a ProcessingRequest" == str(raised.value)


@pytest.mark.parametrize(
    "silent",
    [b"", bytes(api.ProcessingRequest(observability_mode=True)), b"\xfa\x01\x00"],
    ids=["empty", "no part", "unknown field"],
)
def test_a_message_that_says_nothing_is_refused(silent: bytes) -> None:
    """A request without any of the six parts, unknown ones included, cannot be answered."""
    with pytest.raises(ConversationError) as raised:
        decode(silent)
    assert "a ProcessingRequest that says nothing" == str(raised.value)


@given(st.binary(max_size=200))
def test_whatever_comes_is_an_event_or_refused(data: bytes) -> None:
    """No bytes raise anything but a `ConversationError`."""
    try:
        event = decode(data)
    except ConversationError:
        return
    assert isinstance(event, Headers | Body | Trailers)


# --- Commands ------------------------------------------------------------------------------------


def mutation(
    headers: Sequence[tuple[str, bytes]], removed: Sequence[str] = ()
) -> api.HeaderMutation:
    overwrite = HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return api.HeaderMutation(
        set_headers=[
            HeaderValueOption(header=HeaderValue(key=key, raw_value=value), append_action=overwrite)
            for key, value in headers
        ],
        remove_headers=list(removed),
    )


def metadata(**values: str) -> Struct:
    texts = {key: Value(string_value=value) for key, value in values.items()}
    return Struct(fields={"forebay": Value(struct_value=Struct(fields=texts))})


def endpoints(value: str) -> dict[str, Value]:
    texts = {"x-gateway-destination-endpoint": Value(string_value=value)}
    return {"envoy.lb": Value(struct_value=Struct(fields=texts))}


def reply_mode(
    body: ProcessingModeBodySendMode, *, trailers: bool = False, removed: Sequence[str] = ()
) -> api.ProcessingResponse:
    send = ProcessingModeHeaderSendMode.SEND if trailers else ProcessingModeHeaderSendMode.DEFAULT
    common = api.CommonResponse(header_mutation=mutation([], removed)) if removed else None
    return api.ProcessingResponse(
        response_headers=api.HeadersResponse(response=common),
        mode_override=ProcessingMode(response_body_mode=body, response_trailer_mode=send),
    )


COMMANDS: Final[dict[str, tuple[Command, api.ProcessingResponse]]] = {
    "pass request headers": (
        Pass(Message.REQUEST_HEADERS),
        api.ProcessingResponse(request_headers=api.HeadersResponse()),
    ),
    "pass request body": (
        Pass(Message.REQUEST_BODY),
        api.ProcessingResponse(request_body=api.BodyResponse()),
    ),
    "pass request trailers": (
        Pass(Message.REQUEST_TRAILERS),
        api.ProcessingResponse(request_trailers=api.TrailersResponse()),
    ),
    "pass response headers": (
        Pass(Message.RESPONSE_HEADERS),
        api.ProcessingResponse(response_headers=api.HeadersResponse()),
    ),
    "pass response body": (
        Pass(Message.RESPONSE_BODY),
        api.ProcessingResponse(response_body=api.BodyResponse()),
    ),
    "pass response trailers": (
        Pass(Message.RESPONSE_TRAILERS),
        api.ProcessingResponse(response_trailers=api.TrailersResponse()),
    ),
    "pass with metadata": (
        Pass(Message.REQUEST_HEADERS, {"x-forebay-profile": "faq", "model": "é\x00"}),
        api.ProcessingResponse(
            request_headers=api.HeadersResponse(),
            dynamic_metadata=metadata(**{"x-forebay-profile": "faq", "model": "é\x00"}),
        ),
    ),
    "pass with no metadata in it": (
        Pass(Message.REQUEST_HEADERS, {}),
        api.ProcessingResponse(request_headers=api.HeadersResponse()),
    ),
    "no body": (
        Pass(Message.RESPONSE_HEADERS, response_body=Mode.NONE),
        reply_mode(BODY.NONE),
    ),
    "chunks": (
        Pass(Message.RESPONSE_HEADERS, response_body=Mode.STREAMED),
        reply_mode(BODY.STREAMED, trailers=True),
    ),
    "full duplex": (
        Pass(Message.RESPONSE_HEADERS, response_body=Mode.FULL_DUPLEX),
        reply_mode(BODY.FULL_DUPLEX_STREAMED, trailers=True, removed=("content-length",)),
    ),
    "forward untouched": (
        Forward({}),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(header_mutation=api.HeaderMutation())
            )
        ),
    ),
    "forward changed": (
        Forward(
            {"x-cache": "MISS", "content-length": "2"},
            remove_headers=("accept-encoding",),
            body=b"{}",
            metadata={"pool": "full"},
            choose_route_again=True,
        ),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(
                    header_mutation=mutation(
                        [("x-cache", b"MISS"), ("content-length", b"2")], ["accept-encoding"]
                    ),
                    body_mutation=api.BodyMutation(body=b"{}"),
                    clear_route_cache=True,
                )
            ),
            dynamic_metadata=metadata(pool="full"),
        ),
    ),
    "forward at the headers": (
        Forward({"a": "b"}, endpoints="10.0.0.1:80", message=Message.REQUEST_HEADERS),
        api.ProcessingResponse(
            request_headers=api.HeadersResponse(
                response=api.CommonResponse(header_mutation=mutation([("a", b"b")]))
            ),
            dynamic_metadata=Struct(fields=endpoints("10.0.0.1:80")),
        ),
    ),
    "stream of a request": (
        Stream(b"ab", last=True, message=Message.REQUEST_BODY),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(
                    body_mutation=api.BodyMutation(
                        streamed_response=api.StreamedBodyResponse(body=b"ab", end_of_stream=True)
                    )
                )
            )
        ),
    ),
    "forward to replicas": (
        Forward({}, metadata={"pool": "full"}, endpoints="10.0.0.1:80,[::1]:8000"),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(header_mutation=api.HeaderMutation())
            ),
            dynamic_metadata=Struct(
                fields={**metadata(pool="full").fields, **endpoints("10.0.0.1:80,[::1]:8000")}
            ),
        ),
    ),
    "forward to a replica and say no more": (
        Forward({}, endpoints="10.0.0.1:80"),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(header_mutation=api.HeaderMutation())
            ),
            dynamic_metadata=Struct(fields=endpoints("10.0.0.1:80")),
        ),
    ),
    "forward an empty body": (
        Forward({}, body=b""),
        api.ProcessingResponse(
            request_body=api.BodyResponse(
                response=api.CommonResponse(
                    header_mutation=api.HeaderMutation(), body_mutation=api.BodyMutation(body=b"")
                )
            )
        ),
    ),
    "stream": (
        Stream(b"data: 1\n\n", last=False),
        api.ProcessingResponse(
            response_body=api.BodyResponse(
                response=api.CommonResponse(
                    body_mutation=api.BodyMutation(
                        streamed_response=api.StreamedBodyResponse(body=b"data: 1\n\n")
                    )
                )
            )
        ),
    ),
    "stream the end": (
        Stream(b"", last=True),
        api.ProcessingResponse(
            response_body=api.BodyResponse(
                response=api.CommonResponse(
                    body_mutation=api.BodyMutation(
                        streamed_response=api.StreamedBodyResponse(end_of_stream=True)
                    )
                )
            )
        ),
    ),
    "respond": (
        Respond(
            429,
            {"content-type": "application/json", "x": "é"},
            b"{}",
            "forebay_429",
            {"model": "m"},
        ),
        api.ProcessingResponse(
            immediate_response=api.ImmediateResponse(
                status=HttpStatus(code=StatusCode(429)),
                headers=mutation([("content-type", b"application/json"), ("x", b"\xc3\xa9")]),
                body=b"{}",
                details="forebay_429",
            ),
            dynamic_metadata=metadata(model="m"),
        ),
    ),
    "extend": (
        Extend(1.5),
        api.ProcessingResponse(override_message_timeout=datetime.timedelta(seconds=1.5)),
    ),
    "extend by less than a second": (
        Extend(0.0005),
        api.ProcessingResponse(override_message_timeout=datetime.timedelta(milliseconds=1)),
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_envoy_reads_a_command_as_it_is_meant(name: str) -> None:
    """Envoy's own classes find in it exactly what was said, and nothing else."""
    command, response = COMMANDS[name]
    assert response == api.ProcessingResponse.parse(encode(command))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("message", [Message.REQUEST_BODY, Message.RESPONSE_BODY])
@pytest.mark.parametrize(
    "size", [0, 1, 115, 116, 117, 120, 127, 128, 16_375, 16_383, 16_384, 62_000]
)
def test_a_piece_of_any_size_is_written(size: int, message: Message, last: bool) -> None:
    """As many bytes as its lengths say, on either side of a longer length."""
    written = api.ProcessingResponse.FromString(encode(Stream(b"x" * size, last, message)))
    part = getattr(written, message.name.lower()).response.body_mutation.streamed_response
    assert (b"x" * size, last) == (part.body, part.end_of_stream)


def test_every_command_is_written() -> None:
    """No command is missing above."""
    commands = {Pass, Forward, Stream, Respond, Extend}
    assert commands == {type(command) for command, _ in COMMANDS.values()}


def test_a_reply_to_a_message_answers_that_message() -> None:
    """Envoy ends a stream that answers a message it did not send."""
    for message in Message:
        response = api.ProcessingResponse.parse(encode(Pass(message, {"a": "b"})))
        assert getattr(response, message.name.lower()) is not None


def test_no_body_is_asked_for_by_an_override_that_is_there() -> None:
    """An override whose every member is the default still travels: it resets the route's mode."""
    wire = encode(Pass(Message.RESPONSE_HEADERS, response_body=Mode.NONE))
    assert api.ProcessingResponse.parse(wire).mode_override is not None
    assert wire != encode(Pass(Message.RESPONSE_HEADERS))
