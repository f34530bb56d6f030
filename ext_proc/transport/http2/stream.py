"""One call: messages cut out of the peer's bytes, ours put into its windows, and how it ends.

gRPC's rules (grpc.io, "gRPC over HTTP2"), each with the status that a call ends with:
 1. A message is a byte, its length in four, and so many bytes, cut into frames anywhere.
 2. The byte is 0. A message that is compressed could not be read: UNIMPLEMENTED.
 3. A message longer than the limit is not waited for: RESOURCE_EXHAUSTED.
 4. The peer's side ends between messages, or else: INTERNAL.
 5. Our side is a head, messages, and trailers with the status; a call that ends before its first
    message has both in one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from ext_proc.transport.http2.faults import Reason
from ext_proc.transport.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADERS,
    frame,
    reset,
)
from ext_proc.transport.http2.frames import Code as ErrorCode
from ext_proc.transport.http2.request import REPLY_BLOCK, Call, Status, status_block

if TYPE_CHECKING:
    from ext_proc.transport.http2.connection import Connection

PREFIX: Final = Struct(">BI")
PREFIX_BYTES: Final = 5

_HEAD: Final = frame(HEADERS, END_HEADERS, 0, REPLY_BLOCK)[:5]
_OK_BLOCK: Final = status_block(Status.OK)
_OK: Final = frame(HEADERS, END_HEADERS | END_STREAM, 0, _OK_BLOCK)[:5]
_RESET: Final = reset(0, ErrorCode.NO_ERROR)[:5]
# Four frames that nearly every call has, each written at once.
_FIRST_MESSAGE: Final = Struct(f">5sI{len(REPLY_BLOCK)}sBHBBIBI")
_MESSAGE: Final = Struct(">BHBBIBI")
_OK_AND_RESET: Final = Struct(f">5sI{len(_OK_BLOCK)}s5sII")


class CallFault(Exception):
    """Ends one call with a status."""

    def __init__(self, status: Status, text: str, reason: Reason) -> None:
        super().__init__(status, text, reason)
        self.status: Final = status
        self.text: Final = text
        self.reason: Final = reason


class Stream:
    """A call as both sides see it."""

    __slots__ = (
        "_buffer",
        "_final",
        "_needed",
        "_queue",
        "begun",
        "body_left",
        "connection",
        "ended",
        "held",
        "id",
        "metadata",
        "open",
        "queued",
        "request",
        "room_to_receive",
        "room_to_send",
        "state",
    )

    def __init__(self, connection: Connection[Any], number: int, call: Call) -> None:
        self.connection: Final = connection
        self.id: Final = number
        self.request: Final = call[0]
        self.metadata: Mapping[str, str] = call[1]
        self.state: Any = None
        self.open = True
        """The peer may still send."""
        self.ended = False
        """What we send is decided to its end; nothing is added any more."""
        self.begun = False
        """Our head is sent."""
        self.held = False
        """Messages wait to be taken: the peer gets no more room for now."""
        self.room_to_receive = connection.stream_window_bytes
        self.room_to_send = connection.peer_window_bytes
        self.body_left = self.request.length
        """What the peer said it would send, less what it sent; None if it said nothing."""
        self.queued = 0
        """Bytes that wait for room."""
        self._queue: deque[memoryview] | None = None
        self._final = b""
        self._buffer: bytearray | None = None
        self._needed = PREFIX_BYTES

    # --- What comes ------------------------------------------------------------------------------

    def take(self, data: bytes, start: int, end: int) -> Sequence[bytes]:
        """Take bytes and return the messages that are whole with them; raise `CallFault`."""
        if not self._buffer and end - start >= PREFIX_BYTES:
            compressed, size = PREFIX.unpack_from(data, start)
            start += PREFIX_BYTES
            if size == end - start and not compressed and size <= self.connection.message_bytes:
                return (data[start:end],)
            start -= PREFIX_BYTES
        if self._buffer is None:
            self._buffer = bytearray()
        buffer = self._buffer
        buffer += memoryview(data)[start:end]
        messages: list[bytes] = []
        place = 0
        while len(buffer) - place >= self._needed:
            self._check_prefix(buffer, place)
            after = place + self._needed
            if len(buffer) >= after:
                with memoryview(buffer) as view:
                    messages.append(bytes(view[place + PREFIX_BYTES : after]))
                place = after
                self._needed = PREFIX_BYTES
        del buffer[:place]
        return messages

    def _check_prefix(self, buffer: bytearray, place: int) -> None:
        """Read how long the message is that begins at `place`."""
        compressed, size = PREFIX.unpack_from(buffer, place)
        if compressed:
            text = "a compressed message, and no encoding was agreed on"
            raise CallFault(Status.UNIMPLEMENTED, text, Reason.COMPRESSED)
        most = self.connection.message_bytes
        if size > most:
            text = f"expected a message of at most {most} bytes, got one of {size}"
            raise CallFault(Status.RESOURCE_EXHAUSTED, text, Reason.MESSAGE_SIZE)
        self._needed = PREFIX_BYTES + size

    def check_end(self) -> None:
        """Raise `CallFault` when the peer's side ends inside a message."""
        if self._buffer:
            text = "the stream ended inside a message"
            raise CallFault(Status.INTERNAL, text, Reason.MESSAGE_CUT)

    def unhold(self) -> None:
        """Let the peer send again: nothing waits to be taken any more."""
        self.held = False
        self.connection.give_room(self)

    # --- What goes -------------------------------------------------------------------------------

    def write(self, message: bytes) -> bool:
        """Send a message; return whether there is room for more. Nothing goes once it ended."""
        if self.ended:
            return True
        connection = self.connection
        size = len(message)
        framed = size + PREFIX_BYTES
        if (
            self._queue is None
            and framed <= self.room_to_send
            and framed <= connection.room_to_send
            and framed <= connection.peer_frame_bytes
            and not connection.paused
        ):
            self.room_to_send -= framed
            connection.room_to_send -= framed
            high, low = framed >> 16, framed & 0xFFFF
            if self.begun:
                head = _MESSAGE.pack(high, low, DATA, 0, self.id, 0, size)
            else:
                self.begun = True
                head = _FIRST_MESSAGE.pack(
                    _HEAD, self.id, REPLY_BLOCK, high, low, DATA, 0, self.id, 0, size
                )
            connection.out += (head, message)
            if not connection.attended:
                connection.attend()
            return True
        if self._queue is None:
            self._queue = deque()
        if not self.begun:
            self.begun = True
            connection.out.append(_HEAD + self.id.to_bytes(4) + REPLY_BLOCK)
        self._queue.append(memoryview(PREFIX.pack(0, size) + message))
        self.queued += framed
        connection.queued += framed
        connection.offer(self)
        if not connection.attended:
            connection.attend()
        return self.has_room()

    def has_room(self) -> bool:
        """Return whether a sender need not wait."""
        connection, limits = self.connection, self.connection.limits
        return self.ended or not (
            connection.paused
            or self.queued > limits.stream_queue_bytes
            or connection.queued > limits.queue_bytes
        )

    def push(self, most: int) -> bool:
        """Write one frame of what waits, of `most` bytes; return whether more of it could go."""
        assert self._queue is not None  # else it would not have been asked
        connection = self.connection
        head = self._queue[0]
        size = min(len(head), most, self.room_to_send, connection.peer_frame_bytes)
        connection.out += (
            HEADER.pack(size >> 16, size & 0xFFFF, DATA, 0, self.id),
            head[:size],
        )
        self.room_to_send -= size
        connection.room_to_send -= size
        self.queued -= size
        connection.queued -= size
        if size < len(head):
            self._queue[0] = head[size:]
        else:
            self._queue.popleft()
        if not self._queue:
            self._queue = None
            if self._final:
                self._end(self._final)
            return False
        return self.room_to_send > 0

    def close(self) -> None:
        """End the call with success after what was sent."""
        if self.ended:
            return
        self.ended = True
        if self._queue is not None:
            self._final = _OK_BLOCK
            return
        if self.begun and self.open:
            connection = self.connection
            connection.out.append(
                _OK_AND_RESET.pack(_OK, self.id, _OK_BLOCK, _RESET, self.id, ErrorCode.NO_ERROR)
            )
            connection.forget(self, late=True)
            if not connection.attended:
                connection.attend()
        else:
            self._end(_OK_BLOCK)

    def fail(self, reason: str) -> None:
        """End the call with an error: the proxy does as its `failure_mode_allow` says."""
        self.end(Status.INVALID_ARGUMENT, reason)

    def end(self, status: Status, text: str) -> None:
        """End the call with a status that is not OK; what still waits for room is not sent."""
        if self.ended and not self._final:
            return
        self.ended = True
        self._end(status_block(status, text))

    def _end(self, block: bytes) -> None:
        if not self.begun:
            block = REPLY_BLOCK + block
        connection = self.connection
        connection.out.append(frame(HEADERS, END_HEADERS | END_STREAM, self.id, block))
        if self.open:
            # RFC 9113, 8.1: the peer may stop sending what nobody reads any more.
            connection.out.append(reset(self.id, ErrorCode.NO_ERROR))
        connection.forget(self, late=self.open)
        if not connection.attended:
            connection.attend()

    def leave(self) -> None:
        """Note that nothing comes or goes any more; called by the connection."""
        self.open = False
        self.ended = True
        self.connection.queued -= self.queued
        self.queued = 0
        self._queue = None
        self._final = b""
        self._buffer = None
