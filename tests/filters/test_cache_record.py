"""A record is read back as it was written, and what is none says why."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.cache_record import (
    MAGIC,
    VERSION,
    Record,
    Unreadable,
    read_record,
    spread_ttl,
    write_record,
)

HEAD = MAGIC + VERSION
TIMES = st.floats(min_value=0, max_value=1e11)
COUNTS = st.integers(min_value=0, max_value=2**63 - 1)
RECORDS = st.builds(
    Record,
    at=TIMES,
    ends=TIMES,
    quality=st.sampled_from(["", "FULL", "BEST_EFFORT"]),
    output_tokens=COUNTS,
    input_tokens=COUNTS,
    body=st.binary(max_size=200),
)
STORED = write_record(Record(1.0, 301.0, "FULL", 3, 2, b'{"a":1}'))


@given(RECORDS)
def test_a_record_is_read_back_as_it_was_written(record: Record) -> None:
    """Writing loses nothing."""
    assert record == read_record(write_record(record))


@given(RECORDS, st.data())
def test_a_record_cut_anywhere_is_none(record: Record, data: st.DataObject) -> None:
    """Half an answer is never served."""
    stored = write_record(record)
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    expected = Unreadable.DAMAGED if len(cut) >= len(HEAD) else None
    actual = read_record(cut)
    assert isinstance(actual, Unreadable)
    assert expected in (None, actual)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(stored: bytes) -> None:
    """A store may give back anything."""
    assert isinstance(read_record(stored), Record | Unreadable)


@given(st.binary(max_size=300))
def test_any_bytes_behind_a_good_beginning_are_read_without_an_error(stored: bytes) -> None:
    """The beginning proves nothing of the rest."""
    assert isinstance(read_record(HEAD + stored), Record | Unreadable)


@given(st.integers(0, len(STORED) - 1), st.integers(0, 255))
def test_any_byte_may_be_another(place: int, byte: int) -> None:
    """A record that was changed is read as one or not at all."""
    changed = bytearray(STORED)
    changed[place] = byte
    assert isinstance(read_record(bytes(changed)), Record | Unreadable)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", Unreadable.FOREIGN),
        (b"hello", Unreadable.FOREIGN),
        (msgspec.msgpack.encode([1.0, "FULL", 3, 2, b"{}"]), Unreadable.FOREIGN),
        (MAGIC + b"1" + STORED[len(HEAD) :], Unreadable.VERSION),
        (MAGIC, Unreadable.VERSION),
        (HEAD, Unreadable.DAMAGED),
        (STORED[:-1], Unreadable.DAMAGED),
        (STORED + b"x", Unreadable.DAMAGED),
    ],
    ids=[
        "empty",
        "words",
        "no version",
        "another version",
        "no version behind the magic",
        "head only",
        "cut",
        "more behind it",
    ],
)
def test_what_is_no_record_says_why(stored: bytes, why: Unreadable) -> None:
    """An operator sees who wrote what cannot be read."""
    assert why is read_record(stored)


@pytest.mark.parametrize(
    "fields",
    [
        [math.nan, 2.0, "FULL", 3, 2, b"{}"],
        [1.0, math.inf, "FULL", 3, 2, b"{}"],
        [-1.0, 2.0, "FULL", 3, 2, b"{}"],
        [1.0, 2.0, "FULL\r\nx-admin: 1", 3, 2, b"{}"],
        [1.0, 2.0, "FULL\n", 3, 2, b"{}"],
        [1.0, 2.0, "FULL", -3, 2, b"{}"],
        [1.0, 2.0, "FULL", 3, 2, "{}"],
        [1.0, 2.0, "FULL", 3, 2],
        {"at": 1.0},
        7,
        [1.0, 2.0, "FULL", 3, 2, b"{}", "", 0, False, [(1, 2, "id"), (0, 1, "id")]],
        [1.0, 2.0, "FULL", 3, 2, b"{}", "", 0, False, [(2, 1, "id")]],
        [1.0, 2.0, "FULL", 3, 2, b"{}", "", 0, False, [(1, 3, "id")]],
    ],
    ids=[
        "no time",
        "no end",
        "before time",
        "a header in it",
        "a line end",
        "a negative count",
        "a text for bytes",
        "a field missing",
        "a mapping",
        "a number",
        "marks that go back",
        "a mark that goes back",
        "a mark beyond the body",
    ],
)
def test_a_record_with_impossible_fields_is_damaged(fields: Any) -> None:
    """What goes into headers and sums is checked where it comes in."""
    assert Unreadable.DAMAGED is read_record(HEAD + msgspec.msgpack.encode(fields))


def test_a_record_nested_without_end_is_damaged() -> None:
    """What follows the fields that are known is skipped, level by level."""
    fields = msgspec.msgpack.encode([1.0, 2.0, "FULL", 3, 2, b"{}", "", 0, False, []])
    nested = b"\x9b" + fields[1:] + b"\x91" * 100_000 + b"\x90"
    assert Unreadable.DAMAGED is read_record(HEAD + nested)


@given(st.floats(min_value=0.001, max_value=1e9), st.binary(max_size=80))
def test_an_answer_is_kept_for_its_time_or_up_to_a_tenth_less(ttl_s: float, key: bytes) -> None:
    """A profile's `ttl` is what its clients can rely on."""
    assert 0.9 * ttl_s <= spread_ttl(ttl_s, key) <= ttl_s


def test_the_ends_of_answers_are_spread_evenly() -> None:
    """Of a thousand answers stored at once about a tenth ends in each tenth of the spread."""
    shares = [0] * 10
    for number in range(1000):
        shares[int((300 - spread_ttl(300.0, b"key %d" % number)) / 3)] += 1
    assert [] == [share for share in shares if not 60 < share < 150]
