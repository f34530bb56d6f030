"""What a peer may do wrong, and how much of what is lawful but useless it may do."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from ext_proc.transport.http2.frames import Code


class Reason(StrEnum):
    """Why a stream or a connection was given up; a label of the metric."""

    PREFACE = "preface"
    FRAME_SIZE = "frame_size"
    HEADER_BLOCK = "header_block"
    COMPRESSION = "compression"
    STREAM_ID = "stream_id"
    IDLE_STREAM = "idle_stream"
    CLOSED_STREAM = "closed_stream"
    REFUSED = "refused"
    FLOW_CONTROL = "flow_control"
    SETTINGS = "settings"
    PADDING = "padding"
    DEPENDENCY = "dependency"
    PUSH = "push"
    MALFORMED = "malformed"
    FLOOD = "flood"
    RESETS = "resets"
    SILENT = "silent"
    UNREAD = "unread"
    NO_CALL = "no_call"
    COMPRESSED = "compressed"
    MESSAGE_SIZE = "message_size"
    MESSAGE_CUT = "message_cut"
    DEADLINE = "deadline"
    BUG = "bug"


class ConnectionFault(Exception):
    """Ends the connection with a GOAWAY (5.4.1)."""

    def __init__(self, code: Code, reason: Reason) -> None:
        super().__init__(code, reason)
        self.code: Final = code
        self.reason: Final = reason


class StreamFault(Exception):
    """Ends one stream with a RST_STREAM (5.4.2)."""

    def __init__(self, stream: int, code: Code, reason: Reason) -> None:
        super().__init__(stream, code, reason)
        self.stream: Final = stream
        self.code: Final = code
        self.reason: Final = reason


class Allowance:
    """How often something may happen: a burst at once, and so many more each second."""

    __slots__ = ("_burst", "_clock", "_left", "_per_s", "_seen_s")

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float]) -> None:
        self._burst: Final = burst
        self._per_s: Final = per_s
        self._clock: Final = clock
        self._left = burst
        self._seen_s = clock()

    def spend(self) -> bool:
        """Return whether it may happen once more."""
        now_s = self._clock()
        self._left = min(self._burst, self._left + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
