"""Cut texts into tokens of four bytes, and name the blocks that they fill.

No model reads them, so any cut will do that is the same for the same beginning: English has about
four characters a token, and a Chinese character is three bytes.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from ext_proc.tools.replica_model import Work
from ext_proc.tools.simulated_model import BYTES_PER_TOKEN

NAME_BYTES: Final = 8  # vLLM tells the names of blocks as 64-bit numbers, unless told otherwise


def chain_of(raw: bytes, block_tokens: int) -> list[int]:
    """Return the names of the whole blocks of a text, each by everything up to its end."""
    size = block_tokens * BYTES_PER_TOKEN
    names: list[bytes] = []
    last = b""
    for end in range(size, len(raw) + 1, size):
        last = hashlib.blake2b(last + raw[end - size : end], digest_size=NAME_BYTES).digest()
        names.append(last)
    return list(struct.unpack(f">{len(names)}Q", b"".join(names)))


class TextWork(Work):
    """A request whose prompt and answer are texts."""

    __slots__ = ("admitted_s", "raw", "reason", "said_tokens")

    def __init__(
        self,
        raw: bytes,
        prompt_tokens: int,
        said_tokens: int,
        *,
        block_tokens: int,
        reason: str,
        most_tokens: int,
    ) -> None:
        """Make one of the bytes of prompt and answer, of `most_tokens` in all at most.

        `reason` is why the answer ends. An answer without a token has one: to end takes a step.
        """
        answer_tokens = min(max(1, said_tokens), most_tokens - 1)
        prompt_tokens = min(max(1, prompt_tokens), most_tokens - answer_tokens)
        whole = (prompt_tokens + answer_tokens) // block_tokens * block_tokens
        self.raw: Final = raw[: whole * BYTES_PER_TOKEN]
        super().__init__(chain_of(self.raw, block_tokens), prompt_tokens, answer_tokens)
        self.said_tokens: Final = said_tokens
        self.reason: Final = reason
        self.admitted_s = 0.0

    def tokens(self, first: int, end: int) -> list[int]:
        """Return the tokens from one to before another, as numbers."""
        raw = self.raw[first * BYTES_PER_TOKEN : end * BYTES_PER_TOKEN]
        return list(struct.unpack(f"<{len(raw) // BYTES_PER_TOKEN}I", raw))
