"""Make large values small before they travel and lie in Redis."""

from __future__ import annotations

import enum
from typing import Final

import zstandard

FROM_BYTES: Final = 1024  # below it a third is gained; what is written and read costs 9 us or more
MOST_BYTES: Final = 32 << 20  # twice the largest answer that is replayed; more is never unpacked
LEVEL: Final = 1  # 3 takes 1.3 times as long for 2 % less

_PLAIN: Final = b"="
_ZSTD: Final = b"z"
_COMPRESSOR: Final = zstandard.ZstdCompressor(level=LEVEL)
_DECOMPRESSOR: Final = zstandard.ZstdDecompressor()


class Unreadable(enum.StrEnum):
    """Why what lies in Redis is no value."""

    FOREIGN = "foreign"
    """Somebody else's bytes, or a later Forebay's."""
    DAMAGED = "damaged"
    """Cut, or changed since it was written."""
    LARGE = "large"
    """It would become more than `MOST_BYTES`."""


def pack(value: bytes) -> bytes:
    """Return what to write for a value: one byte that says how, and the value."""
    if FROM_BYTES <= len(value) <= MOST_BYTES:
        packed = _COMPRESSOR.compress(value)
        if len(packed) < len(value):
            return _ZSTD + packed
    return _PLAIN + value


def unpack(written: bytes) -> bytes | Unreadable:
    """Return the value that `pack` made this of, or why there is none; never raise."""
    if written.startswith(_PLAIN):
        return written[1:]
    if not written.startswith(_ZSTD):
        return Unreadable.FOREIGN
    packed = memoryview(written)[1:]
    try:
        # All of it is reserved before the first byte is read: the frame says how much.
        if not 0 <= zstandard.frame_content_size(packed) <= MOST_BYTES:
            return Unreadable.LARGE
        return _DECOMPRESSOR.decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError:
        return Unreadable.DAMAGED
