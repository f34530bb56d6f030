"""Commands are written as redis-py would write them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import Connection

from ext_proc.adapters.redis_lane import Command, packed

PARTS = st.binary(max_size=40) | st.text(max_size=10) | st.integers()


@given(st.lists(st.lists(PARTS, min_size=1, max_size=5).map(tuple), max_size=5))
def test_commands_are_packed_as_by_the_library(commands: Sequence[Command]) -> None:
    """Bytes, texts and numbers, whatever is in them; of a name with spaces redis-py makes two."""
    named: list[Command] = [("SET", *parts) for parts in commands]
    assert b"".join(Connection().pack_commands(named)) == packed(named)


def test_a_large_value_is_one_string() -> None:
    """However long."""
    value = b"\r\n" * 100_000
    assert packed([("SET", b"k", value)]).endswith(b"$200000\r\n" + value + b"\r\n")
