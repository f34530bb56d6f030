"""Write and read what the cache keeps of an answer."""

from __future__ import annotations

import enum
import zlib
from typing import Annotated, Final, NamedTuple

import msgspec

from filters.api import Stamp

MAGIC: Final = b"fb/"
VERSION: Final = b"2"  # another layout of `Record` is another version; one character
TTL_SPREAD: Final = 0.1  # answers of one moment do not all end in one moment
_HEAD: Final = MAGIC + VERSION
# Unix time up to the year 5138: more is no time, and NaN is no less than it.
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Mark(NamedTuple):
    """Where in a body something stands that no two replies share."""

    start: _Count
    end: _Count
    stamp: Stamp


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A stored answer: the provider's plain JSON reply, and when and how it was given."""

    at: _Time
    """Unix time in seconds at which it was stored."""
    ends: _Time
    """Unix time in seconds from which on it does not serve any more."""
    quality: Annotated[str, msgspec.Meta(pattern=r"^[A-Z_]{0,32}\Z")]
    output_tokens: _Count
    input_tokens: _Count
    body: bytes
    dialect: str = ""
    """In whose words."""
    took_ms: _Count = 0
    """How long the upstream took to say it, in milliseconds."""
    context: bool = False
    """It rests on more than a question: a conversation, a document, what a tool found."""
    marks: tuple[Mark, ...] = ()
    """What is written anew for each client, in the order it stands in the body."""


class Unreadable(enum.StrEnum):
    """Why what a store gave back is no record."""

    FOREIGN = "foreign"
    """Somebody else's bytes."""
    VERSION = "version"
    """Written by a Forebay that has another layout."""
    DAMAGED = "damaged"
    """Cut, or changed since it was written."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Record)


def write_record(record: Record) -> bytes:
    """Return a record as a store keeps it."""
    return _HEAD + _ENCODER.encode(record)


def read_record(stored: bytes) -> Record | Unreadable:
    """Return the record in what a store gave back, or why it is none; never raise."""
    if not stored.startswith(_HEAD):
        return Unreadable.VERSION if stored.startswith(MAGIC) else Unreadable.FOREIGN
    try:
        record = _DECODER.decode(memoryview(stored)[len(_HEAD) :])
    except (
        msgspec.MsgspecError,
        RecursionError,
    ):  # what nobody asked for is skipped level by level
        return Unreadable.DAMAGED
    at = 0
    for start, end, _ in record.marks:
        if not at <= start <= end:  # else a small record would grow without end
            return Unreadable.DAMAGED
        at = end
    return record if at <= len(record.body) else Unreadable.DAMAGED


def spread_ttl(ttl_s: float, key: bytes) -> float:
    """Return for how long to keep the answer under `key`: `ttl_s` seconds or up to a tenth less.

    Always the same for one key, so that replicas agree and tests need no dice.
    """
    return ttl_s * (1 - TTL_SPREAD * zlib.crc32(key) / 2**32)
