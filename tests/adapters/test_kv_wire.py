"""What vLLM writes of its cache is read, whatever version wrote it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ext_proc.adapters.kv_wire import (
    MOST_BLOCKS,
    MOST_EVENTS,
    MOST_HASH_BYTES,
    MOST_NAME_CHARS,
    MOST_TOKENS,
    Batch,
    BatchReader,
    Cleared,
    Removed,
    Stored,
)
from filters.block_book import ids_of
from tests.kv_publisher import AllBlocksCleared, BlockRemoved, BlockStored, payload

FORMS = pytest.mark.parametrize("maps", [False, True])
TOKENS = list(range(32))


def read(body: bytes) -> Batch:
    return BatchReader().read(body)


def packed(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


@FORMS
@pytest.mark.parametrize("parent", [None, 7, b"\x01" * 32])
@pytest.mark.parametrize("hashes", [[1 << 63, 2], [b"a" * 32, b"b" * 32]])
def test_blocks_are_read(maps: bool, parent: int | bytes | None, hashes: list[int | bytes]) -> None:
    """Hashes are numbers or bytes, as vLLM was told to write them."""
    body = payload(BlockStored(hashes, parent, TOKENS, 16), BlockRemoved(hashes), maps=maps)
    expected = [Stored(hashes, parent, ids_of(TOKENS), 16), Removed(hashes)]
    assert expected == read(body).events


@FORMS
def test_a_clearing_is_read(maps: bool) -> None:
    """With the time when it was said."""
    assert Batch(2.5, [Cleared()]) == read(payload(AllBlocksCleared(), ts=2.5, maps=maps))


def test_the_first_version_is_read() -> None:
    """It had neither medium nor adapter's name."""
    body = msgspec.msgpack.encode(
        [1.5, [["BlockStored", [1], None, TOKENS[:16], 16, None], ["BlockRemoved", [1]]]]
    )
    expected = [Stored([1], None, ids_of(TOKENS[:16]), 16), Removed([1])]
    assert expected == read(body).events


def test_fields_of_later_versions_are_passed_over() -> None:
    """In both forms."""
    array = ["BlockRemoved", [1], "GPU", None, "more"]
    mapped = {"type": "BlockRemoved", "block_hashes": [2], "more": 1}
    assert [Removed([1]), Removed([2])] == read(packed(array, mapped)).events


def test_events_of_later_versions_are_passed_over() -> None:
    """And counted."""
    body = packed(["BlockMoved", 1], {"type": "BlockMoved"}, ["AllBlocksCleared"])
    assert Batch(1.5, [Cleared()], ignored=2) == read(body)


@FORMS
def test_blocks_elsewhere_than_on_the_gpu_do_not_count(maps: bool) -> None:
    """They must be loaded first."""
    body = payload(
        BlockStored([1], None, TOKENS[:16], 16, medium="CPU"),
        BlockRemoved([1], medium="CPU"),
        maps=maps,
    )
    assert Batch(1_700_000_000.0, [], ignored=2) == read(body)


@pytest.mark.parametrize("kind", ["sliding_window", "mamba", None])
def test_layers_that_look_back_only_so_far_do_not_count(kind: str | None) -> None:
    """Nor does what is removed from their groups."""
    reader = BatchReader()
    window = BlockStored(
        [1],
        None,
        TOKENS[:16],
        16,
        group_idx=1,
        kv_cache_spec_kind=kind,
        kv_cache_spec_sliding_window=None if kind == "mamba" else 128,
    )
    whole = BlockStored([1], None, TOKENS[:16], 16, group_idx=0)
    body = payload(window, whole, BlockRemoved([1], group_idx=1), BlockRemoved([1], group_idx=0))
    assert [Stored([1], None, ids_of(TOKENS[:16]), 16), Removed([1])] == reader.read(body).events


def test_layers_that_look_at_all_count_whatever_window_is_noted() -> None:
    """One is noted by vLLM where layers of both kinds share a group."""
    event = BlockStored(
        [1],
        None,
        TOKENS[:16],
        16,
        group_idx=0,
        kv_cache_spec_kind="full_attention",
        kv_cache_spec_sliding_window=128,
    )
    assert 1 == len(read(payload(event)).events)


@pytest.mark.parametrize(
    ("lora_id", "lora_name", "expected"),
    [(None, None, ""), (3, None, "#3"), (3, "sql", "sql")],
)
def test_adapters_are_told_apart(lora_id: int | None, lora_name: str | None, expected: str) -> None:
    """By their names where there are some."""
    event = BlockStored([1], None, TOKENS[:16], 16, lora_id=lora_id, lora_name=lora_name)
    (read_one,) = read(payload(event)).events
    assert isinstance(read_one, Stored)
    assert expected == read_one.adapter


def test_what_else_made_a_hash_is_kept() -> None:
    """An image, or a tenant's salt; the adapter's own name is none of it."""
    event = BlockStored(
        [1, 2, 3], None, list(range(48)), 16, lora_name="sql", extra_keys=[["sql"], ["salt"], None]
    )
    (read_one,) = read(payload(event)).events
    assert isinstance(read_one, Stored)
    assert [None, ["salt"], None] == read_one.salts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode({"ts": 1.5}),
        msgspec.msgpack.encode(["now", []]),
        packed(1),
        packed([]),
        packed({}),
        packed(["BlockStored", [1]]),
        packed(["BlockStored", [1.5], None, TOKENS[:16], 16]),
        packed(["BlockStored", [1], None, [-1] * 16, 16]),
        packed(["BlockStored", [1], None, [1 << 32] * 16, 16]),
        packed(["BlockStored", [1], None, "x", 16]),
        packed({"type": "BlockStored", "block_hashes": [1]}),
        packed(*[["AllBlocksCleared"]] * (MOST_EVENTS + 1)),
        packed(["BlockStored", [b"x" * (MOST_HASH_BYTES + 1)], None, TOKENS[:16], 16]),
        packed(["BlockStored", [1], b"x" * (MOST_HASH_BYTES + 1), TOKENS[:16], 16]),
        packed(["BlockStored", [1], None, [1] * (MOST_TOKENS + 1), 16]),
        packed(["BlockStored", [1], None, [1], 1, None, "GPU", "x" * (MOST_NAME_CHARS + 1)]),
        packed(["BlockRemoved", [1] * (MOST_BLOCKS + 1)]),
        packed(*[["BlockRemoved", [1] * 100]] * (MOST_BLOCKS // 100 + 1)),
    ],
)
def test_what_is_no_batch_is_said(body: bytes) -> None:
    """Whatever it is."""
    with pytest.raises(ValueError, match=r"[a-z]"):
        read(body)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=4)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "GPU", "type"]),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(
            st.sampled_from(["type", "ts", "events", "block_hashes", "token_ids"]), inner
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(ANY.map(lambda one: msgspec.msgpack.encode([1.5, [one]])) | st.binary(max_size=60))
@example(b"\x92\xcb")
def test_anything_is_read_or_refused(body: bytes) -> None:
    """And raises nothing else."""
    with suppress(ValueError):
        assert isinstance(read(body), Batch)
