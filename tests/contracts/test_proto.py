"""The protocol subset of `proto/` against Envoy's full API: every field, and messages both ways."""

import dataclasses
import datetime
import enum
import functools
import typing
from collections.abc import Mapping
from typing import Any, Final

import betterproto2
import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as settings
from envoy_data_plane.envoy.service.ext_proc import v3 as service
from envoy_data_plane.envoy.type import v3 as types
from envoy_data_plane.google import protobuf as well_known
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from ext_proc._pb import ext_proc_pb2 as pb

THEIRS: Final[Mapping[str, type[betterproto2.Message]]] = {
    "BodyMutation": service.BodyMutation,
    "BodyResponse": service.BodyResponse,
    "CommonResponse": service.CommonResponse,
    "GrpcStatus": service.GrpcStatus,
    "HeaderMap": core.HeaderMap,
    "HeaderMutation": service.HeaderMutation,
    "HeaderValue": core.HeaderValue,
    "HeaderValueOption": core.HeaderValueOption,
    "HeadersResponse": service.HeadersResponse,
    "HttpBody": service.HttpBody,
    "HttpHeaders": service.HttpHeaders,
    "HttpStatus": types.HttpStatus,
    "HttpTrailers": service.HttpTrailers,
    "ImmediateResponse": service.ImmediateResponse,
    "Metadata": core.Metadata,
    "ProcessingMode": settings.ProcessingMode,
    "ProcessingRequest": service.ProcessingRequest,
    "ProcessingResponse": service.ProcessingResponse,
    "ProtocolConfiguration": service.ProtocolConfiguration,
    "StreamedBodyResponse": service.StreamedBodyResponse,
    "StreamedImmediateResponse": service.StreamedImmediateResponse,
    "TrailersResponse": service.TrailersResponse,
}
STANDARD: Final[Mapping[str, type]] = {"Struct": well_known.Struct, "Duration": datetime.timedelta}
ENUMS: Final[Mapping[str, type[betterproto2.Enum]]] = {
    "BodySendMode": settings.ProcessingModeBodySendMode,
    "HeaderAppendAction": core.HeaderValueOptionHeaderAppendAction,
    "HeaderSendMode": settings.ProcessingModeHeaderSendMode,
    "ResponseStatus": service.CommonResponseResponseStatus,
}
# An enum there and an int32 here: one varint on the wire, for every value that is not negative.
LOOSENED: Final = {"forebay.extproc.v3.HttpStatus.code": types.StatusCode}

MESSAGES: Final[Mapping[str, Descriptor]] = pb.DESCRIPTOR.message_types_by_name
FIELDS: Final = [field for message in MESSAGES.values() for field in message.fields]
SCALARS: Final = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
}

# --- Field by field -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What decides how a field travels, and which fields exclude each other."""

    number: int
    kind: str
    repeated: bool
    oneof: str | None
    key: str | None = None


def our_shape(field: FieldDescriptor) -> Shape:
    """Read the shape of a field of ours from its descriptor."""
    oneof = field.containing_oneof.name if field.containing_oneof else None
    if entry := map_entry(field):
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return Shape(field.number, SCALARS[value.type], False, oneof, SCALARS[key.type])
    kind = "enum" if field.full_name in LOOSENED else SCALARS[field.type]
    return Shape(field.number, kind, field.is_repeated, oneof)


def counterpart(field: FieldDescriptor) -> Any:
    """Return the full API's class of the message that a field is in."""
    assert field.containing_type is not None
    return THEIRS[field.containing_type.name]


def their_shape(field: FieldDescriptor) -> Shape:
    """Read the shape of the same field in the full API from its dataclass."""
    [theirs] = [
        theirs for theirs in dataclasses.fields(counterpart(field)) if theirs.name == field.name
    ]
    wire = theirs.metadata["betterproto"]
    if wire.map_meta:
        key, value = wire.map_meta
        return Shape(wire.number, value.proto_type, False, wire.group, key.proto_type)
    return Shape(wire.number, wire.proto_type, wire.repeated, wire.group)


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the entry type of a map field, None for any other field."""
    message = field.message_type
    return message if message and message.GetOptions().map_entry else None


def their_type(field: FieldDescriptor) -> object:
    """Return the class that the full API puts in a field, apart from None, list and dict."""
    hint = typing.get_type_hints(counterpart(field))[field.name]
    return [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)][-1]


def test_every_message_has_a_counterpart() -> None:
    """No message of the subset goes without being compared."""
    assert set(THEIRS) == set(MESSAGES)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.full_name.split(".", 3)[-1])
def test_a_field_has_the_number_type_and_label_of_the_full_api(field: FieldDescriptor) -> None:
    """A field travels under the same number, in the same form, in the same oneof."""
    assert their_shape(field) == our_shape(field)


@pytest.mark.parametrize(
    "field",
    [field for field in FIELDS if field.message_type],
    ids=lambda field: field.full_name.split(".", 3)[-1],
)
def test_a_message_field_holds_the_counterpart_of_our_message(field: FieldDescriptor) -> None:
    """Where a message holds another, both sides mean the same one."""
    entry = map_entry(field)
    held = entry.fields_by_name["value"].message_type if entry else field.message_type
    assert held is not None
    assert their_type(field) is {**THEIRS, **STANDARD}[held.name]


@pytest.mark.parametrize(
    "ours",
    [kind for message in MESSAGES.values() for kind in message.enum_types],
    ids=lambda ours: ours.name,
)
def test_an_enum_has_the_values_of_the_full_api(ours: EnumDescriptor) -> None:
    """Names and numbers of every enum are complete and the same."""
    theirs = {value.name: value.value for value in ENUMS[ours.name]}
    assert theirs == {value.name: value.number for value in ours.values}


def test_a_streamed_immediate_response_is_field_eleven() -> None:
    """The answer in pieces, absent from older copies of the API, has its number on the wire."""
    answer = pb.ProcessingResponse(streamed_immediate_response=pb.StreamedImmediateResponse())
    assert bytes([11 << 3 | 2, 0]) == answer.SerializeToString()


# --- Message by message ---------------------------------------------------------------------------
# A tree is a message without a library: field names to scalars, lists, dicts and trees.

Tree = dict[str, Any]

TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
VALUES: Final[Mapping[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
}
STANDARD_VALUES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "Struct": st.dictionaries(TEXT, JSON, max_size=3),
    "Duration": st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=30)),
}


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Generate what a field may hold."""
    value: st.SearchStrategy[Any]
    if field.full_name in LOOSENED:
        value = st.sampled_from([int(code) for code in LOOSENED[field.full_name]])
    elif entry := map_entry(field):
        return st.dictionaries(TEXT, values(entry.fields_by_name["value"]), max_size=3)
    elif field.message_type:
        name = field.message_type.name
        value = STANDARD_VALUES[name] if name in STANDARD_VALUES else trees(field.message_type)
    elif field.enum_type:
        value = st.sampled_from([each.number for each in field.enum_type.values])
    else:
        value = VALUES[field.type]
    return st.lists(value, max_size=3) if field.is_repeated else value


@functools.cache
def trees(message: Descriptor) -> st.SearchStrategy[Tree]:
    """Generate a message with any of its fields, and at most one of each oneof."""
    free = {field.name: values(field) for field in message.fields if not field.containing_oneof}
    tree = st.fixed_dictionaries({}, optional=free)
    for oneof in message.oneofs:
        chosen = st.one_of(
            st.just({}),
            *(st.fixed_dictionaries({field.name: values(field)}) for field in oneof.fields),
        )
        tree = st.builds(lambda left, right: {**left, **right}, tree, chosen)
    return tree


def ours(message: Descriptor, tree: Tree) -> Message:
    """Build the generated class's message that a tree describes."""
    kind: type[Message] = getattr(pb, message.name)
    return kind(**{name: our_value(message.fields_by_name[name], tree[name]) for name in tree})


def our_value(field: FieldDescriptor, value: Any) -> Any:
    """Turn a value of a tree into what the generated classes take."""
    if entry := map_entry(field):
        inner = entry.fields_by_name["value"]
        return {key: our_value(inner, each) for key, each in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [our_value(field, each) for each in value]
    if field.message_type is None:
        return value
    match field.message_type.name:
        case "Struct":
            struct = Struct()
            struct.update(value)
            return struct
        case "Duration":
            duration = Duration()
            duration.FromTimedelta(value)
            return duration
        case _:
            return ours(field.message_type, value)


def theirs(message: Descriptor, tree: Tree) -> betterproto2.Message:
    """Build the full API's message that a tree describes."""
    fields = {name: their_value(message.fields_by_name[name], tree[name]) for name in tree}
    return THEIRS[message.name](**fields)


def their_value(field: FieldDescriptor, value: Any) -> Any:
    """Turn a value of a tree into what the full API's classes take."""
    if field.full_name in LOOSENED:
        return LOOSENED[field.full_name](value)
    if entry := map_entry(field):
        inner = entry.fields_by_name["value"]
        return {key: their_value(inner, each) for key, each in value.items()}
    if field.is_repeated and isinstance(value, list):
        return [their_value(field, each) for each in value]
    if field.enum_type:
        return ENUMS[field.enum_type.name](value)
    if field.message_type is None or field.message_type.name == "Duration":
        return value
    if field.message_type.name == "Struct":
        return their_struct(value)
    return theirs(field.message_type, value)


def their_struct(value: Mapping[str, Any]) -> well_known.Struct:
    """Turn a JSON object into the full API's struct."""
    return well_known.Struct(fields={key: their_json(each) for key, each in value.items()})


def their_json(value: Any) -> well_known.Value:
    """Turn a JSON value into the full API's one."""
    match value:
        case None:
            return well_known.Value(null_value=well_known.NullValue.NULL_VALUE)
        case bool():
            return well_known.Value(bool_value=value)
        case float():
            return well_known.Value(number_value=value)
        case str():
            return well_known.Value(string_value=value)
        case list():
            items = [their_json(each) for each in value]
            return well_known.Value(list_value=well_known.ListValue(values=items))
        case _:
            return well_known.Value(struct_value=their_struct(value))


class Way(enum.StrEnum):
    """The two messages that travel."""

    IN = "ProcessingRequest"
    OUT = "ProcessingResponse"


@pytest.mark.slow
@pytest.mark.parametrize("way", Way)
@given(data=st.data())
def test_what_we_encode_the_full_api_decodes_to_equal_values(way: Way, data: st.DataObject) -> None:
    """Every message that our classes write reads the same in Envoy's."""
    tree = data.draw(trees(MESSAGES[way]))
    wire = ours(MESSAGES[way], tree).SerializeToString()
    assert theirs(MESSAGES[way], tree) == THEIRS[way].parse(wire)


@pytest.mark.slow
@pytest.mark.parametrize("way", Way)
@given(data=st.data())
def test_what_the_full_api_encodes_we_decode_to_equal_values(way: Way, data: st.DataObject) -> None:
    """Every message within the subset that Envoy's classes write reads the same in ours."""
    tree = data.draw(trees(MESSAGES[way]))
    kind: type[Message] = getattr(pb, way)
    assert ours(MESSAGES[way], tree) == kind.FromString(bytes(theirs(MESSAGES[way], tree)))


def test_a_field_outside_the_subset_survives_and_disturbs_nothing() -> None:
    """Envoy may send more than the subset knows; what it knows still reads right."""
    sent = bytes(
        service.ProcessingRequest(
            request_body=service.HttpBody(
                body=b"x", end_of_stream=True, grpc_message_compressed=True
            )
        )
    )
    read = pb.ProcessingRequest.FromString(sent)
    assert (b"x", True) == (read.request_body.body, read.request_body.end_of_stream)
    assert service.ProcessingRequest.parse(sent) == service.ProcessingRequest.parse(
        read.SerializeToString()
    )


@pytest.mark.parametrize("code", [code for code in types.StatusCode if code])
def test_every_http_status_travels_as_a_plain_number(code: types.StatusCode) -> None:
    """The status that is an enum in the full API is the same varint here."""
    wire = pb.HttpStatus(code=code).SerializeToString()
    assert types.HttpStatus(code=code) == types.HttpStatus.parse(wire)
