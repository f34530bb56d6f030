"""Header blocks, against python-hyper's hpack as the judge."""

from __future__ import annotations

from typing import Any

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.transport.http2.faults import ConnectionFault, Reason
from ext_proc.transport.http2.fields import MOST_STRINGS, FieldReader, literals, unpack
from ext_proc.transport.http2.frames import Code

MOST = 4_096
PACKER: Any = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)

names = st.one_of(
    st.sampled_from([name for name, _ in HeaderTable.STATIC_TABLE]),
    st.binary(min_size=1, max_size=20),
    st.binary(min_size=120, max_size=140),
)
values = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=400))
field_lists = st.lists(st.tuples(names, values), max_size=8)


def stateless() -> FieldReader:
    """Return a reader whose peer acknowledged that our table has no size."""
    reader = FieldReader(MOST)
    reader.acknowledged()
    return reader


def judged(block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return what hpack reads with a table of no size, or None if it refuses."""
    decoder: Any = hpack.Decoder(MOST)
    decoder.header_table_size = 0
    decoder.max_allowed_table_size = 0
    try:
        return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
    except (hpack.HPACKError, IndexError):
        return None


def read(block: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return [*stateless().read(block).fields]
    except ConnectionFault:
        return None


def encoded(fields: list[tuple[bytes, bytes]], *, huffman: bool) -> bytes:
    encoder: Any = hpack.Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode(fields, huffman=huffman)
    return block


@given(field_lists, st.booleans())
def test_what_an_encoder_writes_is_read(fields: list[tuple[bytes, bytes]], huffman: bool) -> None:
    """Static names, new ones, long ones, packed or not."""
    assert fields == read(encoded(fields, huffman=huffman))


@given(field_lists)
def test_what_we_write_any_decoder_reads(fields: list[tuple[bytes, bytes]]) -> None:
    """And we do."""
    assert fields == judged(literals(fields)) == read(literals(fields))


def test_what_we_write_leaves_the_readers_table_alone() -> None:
    """So that a block of ours is the same bytes at any time."""
    decoder: Any = hpack.Decoder()
    decoder.decode(literals([(b":status", b"200"), (b"grpc-status", b"0")]))
    assert 0 == len(decoder.header_table.dynamic_entries)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_the_judge_reads_them(block: bytes) -> None:
    """Or refused, as it refuses them; nothing else is ever raised."""
    assert judged(block) == read(block)


@given(field_lists, st.data())
def test_a_block_with_one_byte_changed_is_read_as_the_judge_reads_it(
    fields: list[tuple[bytes, bytes]], draw: st.DataObject
) -> None:
    """Closer to what is lawful than any bytes."""
    block = bytearray(encoded(fields, huffman=True))
    if block:
        at = draw.draw(st.integers(0, len(block) - 1))
        block[at] = draw.draw(st.integers(0, 255))
    assert judged(bytes(block)) == read(bytes(block))


@given(st.binary(max_size=80))
def test_text_is_unpacked_as_it_was_packed(text: bytes) -> None:
    """Every byte has a code."""
    assert text == unpack(PACKER.encode(text))


@given(st.binary(max_size=40))
def test_any_packed_bytes_are_unpacked_as_the_judge_does(packed: bytes) -> None:
    """Padding that is too long or not of ones, and the end of the string in it, are refused."""
    try:
        expected = decode_huffman(packed)
    except hpack.HPACKDecodingError:
        with pytest.raises(ConnectionFault):
            unpack(packed)
    else:
        assert expected == unpack(packed)


@given(field_lists)
def test_a_field_ends_where_the_next_begins(fields: list[tuple[bytes, bytes]]) -> None:
    """Cut there, each piece reads alone."""
    block = encoded(fields, huffman=True)
    ends = stateless().read(block).ends
    starts = [0, *ends[:-1]]
    pieces = [block[start:end] for start, end in zip(starts, ends, strict=False)]
    assert fields == [field for piece in pieces for field in read(piece) or ()]


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\x80", Code.COMPRESSION_ERROR),  # no field has the index 0
        (b"\xbe", Code.COMPRESSION_ERROR),  # the first of a table of no size
        (b"\xff\x80\x80\x80\x80\x80\x00", Code.COMPRESSION_ERROR),  # an index without end
        (b"\x00", Code.COMPRESSION_ERROR),  # no name
        (b"\x00\x01a", Code.COMPRESSION_ERROR),  # no value
        (b"\x00\x01a\x05bc", Code.COMPRESSION_ERROR),  # half a value
        (b"\x3f\x01", Code.COMPRESSION_ERROR),  # a table of 32 bytes
        (b"\x82\x20", Code.COMPRESSION_ERROR),  # resized after a field
        (b"\x00\x01a\x81\x00", Code.COMPRESSION_ERROR),  # not padded with ones
        (b"\x00\x01a\x82\x07\xff", Code.COMPRESSION_ERROR),  # padded with a byte too much
        (b"\x00\x01a\x84\xff\xff\xff\xff", Code.COMPRESSION_ERROR),  # the end inside a string
        (b"\x82" * 200, Code.ENHANCE_YOUR_CALM),  # too many fields
        (b"\x00\x01a\x7f\x81\x1f" + bytes(4096), Code.ENHANCE_YOUR_CALM),  # too long a field
    ],
)
def test_a_block_that_cannot_be_read_has_a_code(block: bytes, code: Code) -> None:
    """For the connection: what else the block said is lost."""
    with pytest.raises(ConnectionFault) as raised:
        stateless().read(block)
    assert code is raised.value.code


def test_a_table_of_no_size_may_be_resized_to_none() -> None:
    """That is how an encoder says that it took our setting."""
    assert [(b":method", b"GET")] == read(b"\x20\x20\x82")


def test_a_table_may_be_used_before_our_settings_are_acknowledged() -> None:
    """Blocks depend on each other then, and cannot be cut."""
    reader = FieldReader(MOST)
    encoder: Any = hpack.Encoder()
    fields = [(b"x-name", b"value")]
    first, second = encoder.encode(fields), encoder.encode(fields)
    assert first != second
    assert fields == [*reader.read(first).fields] == [*reader.read(second).fields]
    assert () == reader.read(second).ends
    with pytest.raises(ConnectionFault) as raised:
        reader.read(b"\x00")
    assert (Code.COMPRESSION_ERROR, Reason.COMPRESSION) == (
        raised.value.code,
        raised.value.reason,
    )


def test_a_list_too_long_is_refused_with_a_table_too() -> None:
    """The bound does not depend on how a block is written."""
    with pytest.raises(ConnectionFault) as raised:
        FieldReader(MOST).read(b"\x82" * 200)
    assert Code.ENHANCE_YOUR_CALM is raised.value.code


def test_strings_remembered_are_bounded() -> None:
    """Values that are never the same, such as trace ids, push out the rest now and then."""
    reader = stateless()
    for number in range(3 * MOST_STRINGS):
        reader.read(encoded([(b"x", b"%d" % (10**20 + number))], huffman=True))
    assert MOST_STRINGS >= len(reader._strings)
