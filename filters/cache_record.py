"""Write and read what the cache keeps of an answer."""

from __future__ import annotations

from typing import Final

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A stored answer: the provider's plain JSON reply, and when and how it was given."""

    at: float
    """Unix time in seconds."""
    quality: str
    output_tokens: int
    input_tokens: int
    body: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Record)


def write_record(record: Record) -> bytes:
    """Return a record as a store keeps it."""
    return _ENCODER.encode(record)


def read_record(stored: bytes) -> Record | None:
    """Return the record in what a store gave back, or None when it is none."""
    try:
        return _DECODER.decode(stored)
    except msgspec.MsgspecError:
        return None
