"""Prompts that begin alike have the same names for as long as they are alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.prefix_blocks import BLOCK_TOKENS, TOKEN_BYTES, block_ends, block_sizes, names_of

BLOCK = BLOCK_TOKENS * TOKEN_BYTES


def test_a_prompt_shorter_than_a_block_has_no_names() -> None:
    """Only whole blocks are shared."""
    assert [] == names_of(b"a" * (BLOCK - 1), "m")


def test_a_name_stands_for_all_before_it() -> None:
    """The same block behind another beginning is another one."""
    one, other = b"a" * BLOCK + b"c" * BLOCK, b"b" * BLOCK + b"c" * BLOCK
    assert not set(names_of(one, "m")) & set(names_of(other, "m"))


@pytest.mark.parametrize("seed", ["n", "m ", ""])
def test_models_and_tenants_share_no_names(seed: str) -> None:
    """Their caches are others, or must not be told from outside."""
    text = b"a" * 4 * BLOCK
    assert not set(names_of(text, "m")) & set(names_of(text, seed))


@given(st.integers(0, 300_000))
def test_blocks_end_where_the_next_begins(tokens: int) -> None:
    """Ends are the sums of sizes, and less than a block is left over."""
    ends, sizes = block_ends(tokens), block_sizes(tokens)
    assert len(ends) == len(sizes)
    assert sum(sizes) == (ends[-1] if ends else 0)
    assert 0 <= tokens - sum(sizes) < 16 * BLOCK_TOKENS


@given(st.integers(0, 300_000), st.integers(0, 300_000))
def test_a_longer_prompt_begins_with_the_blocks_of_a_shorter_one(one: int, other: int) -> None:
    """Where a block ends depends on what stands before it alone."""
    short, long = sorted((one, other))
    assert block_ends(short) == block_ends(long)[: len(block_ends(short))]


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 40_000))
def test_names_agree_as_far_as_prompts_do(one: bytes, other: bytes, common: int) -> None:
    """And no further."""
    beginning = b"x" * common
    first, second = names_of(beginning + one * 40, "m"), names_of(beginning + other * 40, "m")
    alike = common
    for left, right in zip(one * 40, other * 40, strict=False):
        if left != right:
            break
        alike += 1
    whole = len(block_ends(alike // TOKEN_BYTES))
    shared = [left == right for left, right in zip(first, second, strict=False)]
    assert shared == [at < whole for at in range(len(shared))]


def test_a_prompt_of_100_000_tokens_has_some_200_names() -> None:
    """Blocks grow with the place where they stand."""
    assert 193 == len(names_of(b"a" * 400_000, "m"))
