"""Cut a prompt into blocks, each named by all of the prompt up to its end."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

TOKEN_BYTES: Final = 4
"""Bytes of a token, about: counting would cost more than an error of a block does."""
BLOCK_TOKENS: Final = 64
MOST_NAMED_BYTES: Final = 1 << 19
"""What stands behind that in a prompt, 131,072 tokens, is not told apart: naming so much takes
0.2 ms, and putting it together 0.3 ms."""
# So many blocks of so many times 64 tokens, 2^20 tokens in all. What a block too long costs is the
# same part of the prompt, while one of 100,000 tokens has 200 blocks instead of 1,600.
KINDS: Final = ((64, 1), (48, 4), (1_008, 16))
_SIZES: Final = tuple(times * BLOCK_TOKENS for count, times in KINDS for _ in range(count))
_ENDS: Final = tuple(accumulate(_SIZES))
_PARTS: Final = tuple(
    slice((end - size) * TOKEN_BYTES, end * TOKEN_BYTES)
    for end, size in zip(_ENDS, _SIZES, strict=True)
)
_SALT: Final = secrets.randbits(62)  # nobody outside can choose prompts whose names agree


class Blocks(NamedTuple):
    """Where blocks end, and how many tokens each has."""

    ends: tuple[int, ...]
    sizes: tuple[int, ...]


def names_of(text: bytes, seed: str) -> list[int]:
    """Return the names of the whole blocks of a prompt; `seed` tells models and tenants apart.

    The names are good in this process only: Python's own hash, SipHash over each block with a key
    that changes at every start, takes a tenth of the time of BLAKE3 on blocks this short.
    """
    name = hash((_SALT, seed))
    parts = _PARTS[: _whole_blocks(len(text) // TOKEN_BYTES)]
    return [name := hash((name, text[part])) for part in parts]


def block_ends(tokens: int) -> tuple[int, ...]:
    """Return the positions at which the whole blocks of a prompt of so many tokens end."""
    return first_blocks(_whole_blocks(tokens)).ends


def block_sizes(tokens: int) -> tuple[int, ...]:
    """Return the tokens of each whole block of a prompt of so many tokens."""
    return first_blocks(_whole_blocks(tokens)).sizes


@lru_cache(256)
def first_blocks(count: int) -> Blocks:
    """Return the first blocks of any prompt: all requests under way share them."""
    return Blocks(_ENDS[:count], _SIZES[:count])


def _whole_blocks(tokens: int) -> int:
    return bisect_right(_ENDS, tokens)
