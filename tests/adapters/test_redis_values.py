"""What lies in Redis is small, and whatever lies there instead of it harms nobody."""

from __future__ import annotations

import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from ext_proc.adapters.redis_values import FROM_BYTES, MOST_BYTES, Unreadable, pack, unpack


@given(st.binary(max_size=4_000))
@example(b"")
@example(b"a" * FROM_BYTES)
@example(b"a" * (FROM_BYTES - 1))
def test_a_value_comes_back_as_it_was(value: bytes) -> None:
    """Whether it was compressed or not."""
    assert value == unpack(pack(value))


def test_a_large_value_is_compressed_and_a_small_one_is_not() -> None:
    """A byte in front says which."""
    large, small = b"a" * FROM_BYTES, b"a" * (FROM_BYTES - 1)
    assert (b"z", True) == (pack(large)[:1], len(pack(large)) < 100)
    assert b"=" + small == pack(small)


def test_what_does_not_become_smaller_stays_as_it_is() -> None:
    """Numbers without a pattern take as much room compressed, and time."""
    value = b"".join(((7 * n * n + 3) * 2654435761 % 2**32).to_bytes(4, "big") for n in range(999))
    assert b"=" + value == pack(value)


@given(st.binary())
@example(b"")
@example(b"z")
@example(b"z(\xb5/\xfd")
def test_nothing_that_lies_there_raises(written: bytes) -> None:
    """It is a value or a reason."""
    assert isinstance(unpack(written), bytes | Unreadable)


def test_what_is_cut_or_changed_is_damaged() -> None:
    """So is one with something behind it."""
    written = pack(b"forebay " * 1_000)
    assert [Unreadable.DAMAGED] * 3 == [
        unpack(written[:-1]),
        unpack(written[:9] + b"\xff" * 9 + written[18:]),
        unpack(written + b"x"),
    ]


def test_what_another_program_wrote_is_foreign() -> None:
    """No byte of this format stands in front."""
    assert (Unreadable.FOREIGN, Unreadable.FOREIGN) == (unpack(b""), unpack(b'{"a": 1}'))


def test_a_bomb_is_not_unpacked() -> None:
    """A few bytes may stand for gigabytes, or not say for how many."""
    bomb = zstandard.ZstdCompressor().compress(bytes(MOST_BYTES + 1))
    unsaid = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5_000))
    assert [Unreadable.LARGE] * 2 == [unpack(b"z" + bomb), unpack(b"z" + unsaid)]
