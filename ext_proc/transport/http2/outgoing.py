"""Keep to the peer's windows: what goes at once, what waits, and whose turn it is (5.2, 6.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ext_proc.transport.http2.faults import ConnectionFault, Reason
from ext_proc.transport.http2.frames import DEFAULT_WINDOW, MOST_FRAME_BYTES, MOST_WINDOW, Code
from ext_proc.transport.http2.stream import Stream

S = TypeVar("S", bound=Stream)

TURN_BYTES: Final = 1024 * 1024  # given to the transport at once; more would only wait there


class Outgoing(Generic[S]):
    """The half of a connection that sends."""

    def __init__(self, attend: Callable[[], object]) -> None:
        self._attend: Final = attend
        self.attended = False
        self.streams: Final[dict[int, S]] = {}
        """Those that are not closed; each in the order in which it was opened."""
        self.out: list[bytes | memoryview] = []
        self.queued = 0
        """Bytes of all streams that wait for room."""
        self.room_to_send = DEFAULT_WINDOW
        self.peer_window_bytes = DEFAULT_WINDOW
        self.peer_frame_bytes = MOST_FRAME_BYTES
        self._paused = False
        self._ready: Final[dict[int, S]] = {}
        """Streams with something to send and room for it; the next one first."""
        self._turn_bytes = 0

    def attend(self) -> None:
        """Ask for a turn, for there is output outside of any."""
        self.attended = True
        self._attend()

    @property
    def paused(self) -> bool:
        """Whether the transport takes no more for now; then only what is short goes to it."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self.push()

    def resize(self, window_bytes: int) -> None:
        """Take the size of a window that the peer gives streams, the open ones included (6.9.2)."""
        more = window_bytes - self.peer_window_bytes
        self.peer_window_bytes = window_bytes
        for stream in self.streams.values():
            stream.room_to_send += more
            if stream.room_to_send > MOST_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            if stream.room_to_send <= 0:
                self._ready.pop(stream.id, None)
            elif stream.queued:
                self._ready[stream.id] = stream

    def offer(self, stream: Stream) -> None:
        """Send what waits in a stream as far as there is room."""
        if stream.room_to_send > 0:
            self._ready[stream.id] = self.streams[stream.id]
            self.push()

    def push(self) -> None:
        """Send one frame of each stream in turn while there is room."""
        while (
            self._ready
            and self.room_to_send > 0
            and self._turn_bytes < TURN_BYTES
            and not self._paused
        ):
            number = next(iter(self._ready))
            stream = self._ready.pop(number)
            before = self.room_to_send
            if stream.push(before):
                self._ready[number] = stream
            self._turn_bytes += before - self.room_to_send

    def output(self) -> bytes:
        """Return what is to be sent, and then what there was no room for in the turn, to b""."""
        if self._ready:
            self.push()
        if not self.out:
            return b""
        data = b"".join(self.out)
        self.out.clear()
        self._turn_bytes = 0
        return data
