"""How HTTP/2 frames look: kinds, flags, codes, and those that a server writes (RFC 9113, 4-7)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER: Final = Struct(">BHBBI")
"""High and low part of the length, kind, flags, stream."""
HEADER_BYTES: Final = 9
MOST_FRAME_BYTES: Final = 16_384  # the least that can be announced: one frame delays others least
MOST_WINDOW: Final = 2**31 - 1
MOST_STREAM: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x01
END_STREAM: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
PRIORITISED: Final = 0x20

_WITH_NUMBER: Final = Struct(">BHBBII")


class Code(IntEnum):
    """Why a stream or a connection ends (7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Setting(IntEnum):
    """What one side may tell the other (6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Write a frame."""
    size = len(payload)
    return HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    """Write a SETTINGS frame."""
    payload = b"".join(
        key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()
    )
    return frame(SETTINGS, 0, 0, payload)


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0, b"")


def reset(stream: int, code: Code) -> bytes:
    """Write a RST_STREAM frame."""
    return _WITH_NUMBER.pack(0, 4, RST_STREAM, 0, stream, code)


def window_update(stream: int, increment: int) -> bytes:
    """Write a WINDOW_UPDATE frame."""
    return _WITH_NUMBER.pack(0, 4, WINDOW_UPDATE, 0, stream, increment)


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    """Write a PING frame of eight bytes."""
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last_stream: int, code: Code, text: str = "") -> bytes:
    """Write a GOAWAY frame."""
    numbers = last_stream.to_bytes(4, "big") + code.to_bytes(4, "big")
    return frame(GOAWAY, 0, 0, numbers + text.encode())
