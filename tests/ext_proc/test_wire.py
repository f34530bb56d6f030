"""What is written around ready pieces is what the generated classes write."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.codec import METADATA_NAMESPACE, Forward, Respond, Stream, encode
from ext_proc.conversation import Message
from ext_proc.wire import member, tag, varint, wrap

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
MEMBERS = st.dictionaries(NAMES, TEXTS, max_size=5)
BODIES = st.one_of(
    st.binary(max_size=300), st.sampled_from([b"x" * 16_383, b"x" * 16_384, b"x" * 3_000_000])
)


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_written_as_protobuf_writes_it(number: int) -> None:
    """A duration holds its seconds as a plain number, behind a tag of one byte."""
    response = pb.ProcessingResponse()
    response.override_message_timeout.seconds = number % 315_576_000_000  # as long as one may be
    written = response.override_message_timeout.SerializeToString()
    assert written[1:] == (varint(number % 315_576_000_000) if written else b"")


@pytest.mark.parametrize("field", ["request_headers", "dynamic_metadata", "mode_override"])
def test_a_tag_is_the_one_that_protobuf_writes(field: str) -> None:
    """An empty message behind its tag reads as that field."""
    read = pb.ProcessingResponse.FromString(member(tag(pb.ProcessingResponse, field), b""))
    assert read.HasField(field)


def test_pieces_are_wrapped_without_being_joined() -> None:
    """A large piece stays the object that it was."""
    large = b"x" * 1000
    pieces = [large]
    wrap(b"\x0a", pieces)
    assert [b"\x0a", b"\xe8\x07", large] == pieces
    assert pieces[2] is large


def header_mutation(headers: dict[str, str], removed: tuple[str, ...] = ()) -> pb.HeaderMutation:
    mutation = pb.HeaderMutation(remove_headers=removed)
    for key, value in headers.items():
        option = mutation.set_headers.add(
            append_action=pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        )
        option.header.key, option.header.raw_value = key, value.encode()
    return mutation


def dynamic_metadata(members: dict[str, str]) -> Struct:
    whole = Struct()
    for key, value in members.items():
        whole.fields[METADATA_NAMESPACE].struct_value.fields[key].string_value = value
    return whole


@given(MEMBERS, st.lists(NAMES, max_size=2).map(tuple), st.none() | BODIES, MEMBERS, st.booleans())
def test_a_request_goes_on_as_the_generated_classes_say(
    headers: dict[str, str],
    removed: tuple[str, ...],
    body: bytes | None,
    metadata: dict[str, str],
    again: bool,
) -> None:
    """Headers, body, metadata and the new route are all there, and nothing else."""
    written = encode(Forward(headers, removed, body, metadata, again))
    expected = pb.ProcessingResponse()
    common = expected.request_body.response
    common.header_mutation.CopyFrom(header_mutation(headers, removed))
    if body is not None:
        common.body_mutation.body = body
    common.clear_route_cache = again
    if metadata:
        expected.dynamic_metadata.CopyFrom(dynamic_metadata(metadata))
    assert expected == pb.ProcessingResponse.FromString(written)


@given(st.integers(200, 599), MEMBERS, BODIES, NAMES, MEMBERS)
def test_an_answer_is_as_the_generated_classes_say(
    status: int, headers: dict[str, str], body: bytes, details: str, metadata: dict[str, str]
) -> None:
    """Status, headers, body, details and metadata are all there, and nothing else."""
    written = encode(Respond(status, headers, body, details, metadata))
    expected = pb.ProcessingResponse()
    immediate = expected.immediate_response
    immediate.status.code = status
    immediate.headers.CopyFrom(header_mutation(headers))
    immediate.body, immediate.details = body, details
    if metadata:
        expected.dynamic_metadata.CopyFrom(dynamic_metadata(metadata))
    assert expected == pb.ProcessingResponse.FromString(written)


@given(BODIES, st.booleans())
def test_a_chunk_is_as_the_generated_classes_say(
    data: bytes,
    last: bool,
) -> None:
    """An empty chunk, and one of megabytes, says whether it is the last."""
    read = pb.ProcessingResponse.FromString(encode(Stream(data, last)))
    streamed = read.response_body.response.body_mutation.streamed_response
    assert (data, last) == (streamed.body, streamed.end_of_stream)
    assert Message.RESPONSE_BODY.name.lower() == read.WhichOneof("response")
