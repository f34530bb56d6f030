"""The server's side of an HTTP/2 connection: bytes in, events and bytes out, nothing waits here.

The rules, with their sections of RFC 9113, what a peer that breaks one is told, and the reason that
is counted. Where nothing else stands, the connection ends.
 1. (3.4) It begins with the preface and a SETTINGS frame: PROTOCOL_ERROR, `preface`.
 2. (4.2) No frame is longer than 16,384 bytes, and each has the length of its kind:
    FRAME_SIZE_ERROR, `frame_size`.
 3. (4.3, 6.10) A header block is one HEADERS and its CONTINUATION frames with nothing between:
    PROTOCOL_ERROR, `header_block`. It has a most in bytes, in frames and in fields:
    ENHANCE_YOUR_CALM, `header_block`.
 4. (4.3, RFC 7541) A block can be read: COMPRESSION_ERROR, `compression`. Our table has no room, so
    that after our SETTINGS are acknowledged a block depends on nothing before it.
 5. (5.1.1) Streams are odd and each is higher than all before; what belongs to a stream names one,
    what belongs to the connection none: PROTOCOL_ERROR, `stream_id`.
 6. (5.1) A stream that was not opened gets HEADERS or PRIORITY: PROTOCOL_ERROR, `idle_stream`.
 7. (5.1) After its END_STREAM or RST_STREAM the peer sends no HEADERS, for which the connection
    ends, and no DATA, for which the stream does: STREAM_CLOSED, `closed_stream`. What comes for a
    stream that we ended first is dropped: it was on its way.
 8. (5.1.2) There are no more streams than we announced. One more: REFUSED_STREAM, `refused`. A
    stream counts until its handler is done, so that opening and resetting gains no work
    (CVE-2023-44487).
 9. (5.2, 6.9) Nobody sends more than the other's windows. Ours grow by half when half is used; a
    stream's does not while its messages wait to be taken. A window overrun or over 2^31-1:
    FLOW_CONTROL_ERROR, `flow_control`, of the stream or the connection, whose window it is; an
    increment of 0 likewise PROTOCOL_ERROR. Theirs may shrink below zero (6.9.2).
10. (5.3) Priorities are ignored. A stream that depends on itself: PROTOCOL_ERROR of the stream,
    `dependency`.
11. (5.5) Frames of unknown kinds are dropped.
12. (6.1, 6.2) Padding is shorter than its frame: PROTOCOL_ERROR, `padding`.
13. (6.5) SETTINGS hold and are acknowledged at once; values out of range: the code of 6.5.2,
    `settings`.
14. (6.6, 8.4) A client pushes nothing: PROTOCOL_ERROR, `push`.
15. (6.7) A PING is answered. We send some when the peer is silent; one that stays silent is left:
    `silent`.
16. (6.8) A drain says GOAWAY twice, a round trip apart, so that no request that was on its way is
    lost. Streams up to the one in the second go on. The peer is to close when it has read the last
    of them, for what it sends to a closed socket may cost it what it did not read: we wait a bit.
17. (8.1-8.3) A request is well-formed, its trailers are its end, and its body has the length that
    it said: PROTOCOL_ERROR of the stream, `malformed`.
18. (8.1) Our answer may be whole before the request is: RST_STREAM with NO_ERROR follows it.
19. (10.5) What is lawful but useless is bounded in number: frames that change nothing and mistakes
    that end one stream (`flood`), streams reset before their answer (`resets`). More of it:
    ENHANCE_YOUR_CALM.
A call's own rules are in `stream`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NoReturn, TypeAlias

from ext_proc.transport.http2 import frames
from ext_proc.transport.http2.faults import Allowance, ConnectionFault, Reason, StreamFault
from ext_proc.transport.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    MOST_FRAME_BYTES,
    MOST_WINDOW,
    PADDED,
    PREFACE,
    PRIORITISED,
    Code,
    Setting,
)
from ext_proc.transport.http2.outgoing import Outgoing, S
from ext_proc.transport.http2.request import Malformed, RequestReader, Status
from ext_proc.transport.http2.stream import CallFault, Stream

MIB: Final = 1024 * 1024
USELESS_BURST, USELESS_PER_S = (
    2_000,
    200,
)  # frames; a peer that probes a busy line sends ten a second
RESETS_BURST, RESETS_PER_S = 20_000, 1_000  # of unanswered calls: 2 % of a core at the worst
MOST_BLOCK_FRAMES: Final = 32  # the longest block lawful fills five
LATE_STREAMS: Final = (
    8_192  # remembered for what is on its way; a proxy's own end follows in a turn
)
MOST_GAPS: Final = 64  # ranges of streams never opened; no client that we know skips any
HANDSHAKE_S: Final = 10.0  # on this machine it takes a millisecond
LINGER_S: Final = 1.0  # from the last stream of a drain on, for the peer to close
KEEP_ALIVE_S: Final = 60.0  # a silent peer gets a PING, and so long again to answer
_DRAIN_PING: Final = b"forebay!"
_ALIVE_PING: Final = b"alive?\0\0"


class End(Enum):
    """What a stream's messages end with."""

    DONE = "done"
    """The peer said that it has no more."""
    GONE = "gone"
    """Nobody is left to answer: what is done for the stream may be given up."""


Event: TypeAlias = tuple[S, bytes | End]
Events: TypeAlias = Sequence[tuple[S, bytes | End]]
_Take: TypeAlias = Callable[[int, int, bytes, int, int], Events[S]]
"""Takes flags, stream, and the bytes from one place to another."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may use."""

    message_bytes: int
    streams: int = 4_096  # Envoy opens another connection when one is full
    header_list_bytes: int = 64 * 1024
    stream_window_bytes: int = MIB  # what may wait for a stream's handler
    window_bytes: int = 16 * MIB  # never waited for: it is given back as bytes come
    stream_queue_bytes: int = MIB // 4  # then who sends waits
    queue_bytes: int = 8 * MIB
    unread_bytes: int = 64 * MIB  # in the transport; then a peer that asks and never reads is left


class Connection(Outgoing[S]):
    """One connection, as soon as it is made.

    Iterate `receive` to its end, deal with each event at once, then send `output`.
    """

    def __init__(
        self,
        routes: Mapping[str, Any],
        limits: Limits,
        *,
        make: Callable[[Connection[S], int, Any], S],
        clock: Callable[[], float],
        count: Callable[[Reason], None],
        attend: Callable[[], object],
    ) -> None:
        """Serve the paths in `routes`; `attend` is called for output outside of a turn, once.

        A turn is the time between setting `attended` and sending `output`.
        """
        super().__init__(attend)
        self.limits: Final = limits
        self.message_bytes: Final = limits.message_bytes
        self.stream_window_bytes: Final = limits.stream_window_bytes
        self._low_stream_window: Final = limits.stream_window_bytes >> 1
        self._low_window: Final = limits.window_bytes >> 1
        self.left: Final[list[S]] = []
        """Streams that closed since somebody last cleared this, however they did."""
        self.working = 0
        """Streams whose handlers are not done."""
        self.closing = False
        """Nothing more is read; the transport is closed after the output."""
        self._make: Final = make
        self._clock: Final = clock
        self._count: Final = count
        self._requests: Final = RequestReader(routes, limits.header_list_bytes)
        self._useless: Final = Allowance(USELESS_BURST, USELESS_PER_S, clock)
        self._resets: Final = Allowance(RESETS_BURST, RESETS_PER_S, clock)
        self._rest = b""
        self._room_to_receive = limits.window_bytes
        self._last_stream = 0
        self._gaps: Final[list[range]] = []
        self._late: Final[dict[int, None]] = {}
        """Streams that we ended and the peer has not, oldest first."""
        self._greeted = False
        self._block: tuple[int, int, bytearray, int] | None = None
        """Stream, flags, bytes and number of frames of a header block that is not whole."""
        self._draining = False
        self._last_served: int | None = None
        self._deadlines: Final[list[tuple[float, int]]] = []
        self._heard = False
        self._asked = False
        self._check_at = clock() + HANDSHAKE_S
        self._close_at = math.inf
        self._in_use: Final[Mapping[int, _Take[S]]] = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_stray,
        }
        # What may come depends on what came, and so does the table of what takes it.
        self._takes: Mapping[int, _Take[S]] = {frames.SETTINGS: self._on_first_settings}
        self._otherwise: _Take[S] = self._on_no_settings
        self._in_preface = True
        self.out += (
            frames.settings(
                {
                    Setting.HEADER_TABLE_SIZE: 0,
                    Setting.MAX_CONCURRENT_STREAMS: limits.streams,
                    Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
                }
            ),
            frames.window_update(0, limits.window_bytes - frames.DEFAULT_WINDOW),
        )

    # --- Bytes in --------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Iterator[Event[S]]:
        """Take bytes; yield each event before what follows it is read."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        self._heard = True
        place = 0
        if self._in_preface and not self.closing:
            if not data.startswith(PREFACE[: len(data)]):
                yield from self._give_up(ConnectionFault(Code.PROTOCOL_ERROR, Reason.PREFACE))
            elif len(data) < len(PREFACE):
                self._rest = data
                return
            else:
                self._in_preface = False
                place = len(PREFACE)
        unpack = frames.HEADER.unpack_from
        while len(data) - place >= HEADER_BYTES and not self.closing:
            high, low, kind, flags, stream = unpack(data, place)
            start = place + HEADER_BYTES
            place = start + (high << 16 | low)
            try:
                if place - start > MOST_FRAME_BYTES:
                    raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
                if place > len(data):
                    place = start - HEADER_BYTES
                    break
                events = self._takes.get(kind, self._otherwise)(
                    flags, stream & frames.MOST_STREAM, data, start, place
                )
            except ConnectionFault as fault:
                events = self._give_up(fault)
            except StreamFault as fault:
                events = self._give_up_stream(fault)
            if events:
                yield from events
        if not self.closing:
            self._rest = data[place:]

    def lost(self) -> Events[S]:
        """Note that the transport is gone."""
        self.closing = True
        return self._leave_all()

    # --- Frames ----------------------------------------------------------------------------------

    def _on_data(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        size = end - start
        stream = self.streams.get(number)
        self._room_to_receive -= size
        if self._room_to_receive < self._low_window:
            self._give_window()
        if flags & PADDED:
            start, end = self._unpadded(data, start, end)
        if start == end and not flags & END_STREAM:
            self._spend(self._useless, Reason.FLOOD)
        if stream is None or not stream.open:
            return self._on_late_data(flags, number)
        room = stream.room_to_receive = stream.room_to_receive - size
        if room < self._low_stream_window:
            if room < 0:
                raise StreamFault(number, Code.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            self.give_room(stream)
        if stream.body_left is not None:
            self._measure(stream, end - start, last=bool(flags & END_STREAM))
        try:
            messages = stream.take(data, start, end)
            if not flags & END_STREAM:
                return [(stream, message) for message in messages]
            stream.open = False
            stream.check_end()
        except CallFault as fault:
            return self._end_call(stream, fault)
        return [*((stream, message) for message in messages), (stream, End.DONE)]

    def _give_window(self) -> None:
        """Let the peer send to the connection again, unless it sent more than it might."""
        if self._room_to_receive < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        self.out.append(frames.window_update(0, self.limits.window_bytes - self._room_to_receive))
        self._room_to_receive = self.limits.window_bytes

    def give_room(self, stream: Stream) -> None:
        """Let the peer send to a stream again, if that is worth a frame."""
        most = self.stream_window_bytes
        if stream.open and not stream.held and stream.room_to_receive < self._low_stream_window:
            self.out.append(frames.window_update(stream.id, most - stream.room_to_receive))
            stream.room_to_receive = most

    def _unpadded(self, data: bytes, start: int, end: int) -> tuple[int, int]:
        """Return where a padded frame's own bytes begin and end."""
        if start == end:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        padding = data[start]
        if padding > end - start - 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.PADDING)
        return start + 1, end - padding

    def _on_late_data(self, flags: int, number: int) -> Events[S]:
        """Take what belongs to a stream that nothing more should come for."""
        if number == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        self._check_not_idle(number)
        if number not in self._late:
            raise StreamFault(number, Code.STREAM_CLOSED, Reason.CLOSED_STREAM)
        if flags & END_STREAM:
            del self._late[number]
        return ()

    def _measure(self, stream: Stream, size: int, *, last: bool) -> None:
        """Hold a body to the length that its head said."""
        assert stream.body_left is not None  # asked by the caller
        stream.body_left -= size
        if stream.body_left < 0 or (last and stream.body_left):
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, Reason.MALFORMED)

    def _on_headers(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if flags & PADDED:
            start, end = self._unpadded(data, start, end)
        if flags & PRIORITISED:
            if end - start < 5:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
            self._check_dependency(number, data, start)
            start += 5
        if number & 1 == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if flags & END_HEADERS:
            return self._on_block(flags, number, data[start:end])
        self._block = number, flags, bytearray(data[start:end]), 1
        self._takes = {frames.CONTINUATION: self._on_continuation}
        self._otherwise = self._on_stray
        return ()

    def _on_continuation(
        self, flags: int, number: int, data: bytes, start: int, end: int
    ) -> Events[S]:
        assert self._block is not None  # else the table would not lead here
        opened, opened_flags, block, parts = self._block
        if number != opened:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.HEADER_BLOCK)
        block += memoryview(data)[start:end]
        if len(block) > self.limits.header_list_bytes or parts == MOST_BLOCK_FRAMES:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, Reason.HEADER_BLOCK)
        if not flags & END_HEADERS:
            self._block = opened, opened_flags, block, parts + 1
            return ()
        self._block = None
        self._takes, self._otherwise = self._in_use, self._on_unknown
        return self._on_block(opened_flags, number, bytes(block))

    def _on_stray(self, flags: int, number: int, data: bytes, start: int, end: int) -> NoReturn:
        raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.HEADER_BLOCK)

    def _on_block(self, flags: int, number: int, block: bytes) -> Events[S]:
        """Take a header block that is whole; each is read, for others may depend on it."""
        stream = self.streams.get(number)
        if stream is not None:
            return self._on_trailers(flags, stream, block)
        try:
            call = self._requests.call(block)
        except Malformed:
            call = None
        if number <= self._last_stream:
            return self._on_late_headers(flags, number)
        if number > self._last_stream + 2 and len(self._gaps) < MOST_GAPS:
            self._gaps.append(range(self._last_stream + 1 | 1, number, 2))
        self._last_stream = number
        if self._last_served is not None:
            self._remember_late(number)
            return ()
        last = bool(flags & END_STREAM)
        if call is None or (last and call[0].length):
            raise StreamFault(number, Code.PROTOCOL_ERROR, Reason.MALFORMED)
        most = self.limits.streams
        if len(self.streams) >= most or self.working >= 2 * most:
            raise StreamFault(number, Code.REFUSED_STREAM, Reason.REFUSED)
        request = call[0]
        if request.refusal:
            self._count(Reason.NO_CALL)
            self._refuse(number, request.refusal, last=last)
            return ()
        stream = self.streams[number] = self._make(self, number, call)
        stream.open = not last
        self.working += 1
        if request.timeout_s is not None:
            self._bound(number, request.timeout_s)
        return ((stream, End.DONE),) if last else ()

    def _refuse(self, number: int, block: bytes, *, last: bool) -> None:
        """Answer a call that is none of ours, without opening a stream."""
        self.out.append(frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, number, block))
        if not last:
            self.out.append(frames.reset(number, Code.NO_ERROR))
            self._remember_late(number)

    def _on_trailers(self, flags: int, stream: S, block: bytes) -> Events[S]:
        try:
            self._requests.trailers(block)
        except Malformed:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, Reason.MALFORMED) from None
        if not stream.open:
            raise StreamFault(stream.id, Code.STREAM_CLOSED, Reason.CLOSED_STREAM)
        if not flags & END_STREAM or stream.body_left:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, Reason.MALFORMED)
        stream.open = False
        try:
            stream.check_end()
        except CallFault as fault:
            return self._end_call(stream, fault)
        return ((stream, End.DONE),)

    def _on_late_headers(self, flags: int, number: int) -> Events[S]:
        if number in self._late:
            if flags & END_STREAM:
                del self._late[number]
            return ()
        if any(number in gap for gap in self._gaps):
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        raise ConnectionFault(Code.STREAM_CLOSED, Reason.CLOSED_STREAM)

    def _on_priority(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if number == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if end - start != 5:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        self._check_dependency(number, data, start)
        self._spend(self._useless, Reason.FLOOD)
        return ()

    def _check_dependency(self, number: int, data: bytes, start: int) -> None:
        if _number(data, start) & frames.MOST_STREAM == number:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.DEPENDENCY)

    def _on_reset(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if number == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if end - start != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        stream = self.streams.get(number)
        if stream is None:
            self._check_not_idle(number)
            self._late.pop(number, None)
            return ()
        if not stream.begun:
            self._spend(self._resets, Reason.RESETS)
        self.forget(stream, late=False)
        return ((stream, End.GONE),)

    def _on_no_settings(
        self, flags: int, number: int, data: bytes, start: int, end: int
    ) -> NoReturn:
        raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.PREFACE)

    def _on_first_settings(
        self, flags: int, number: int, data: bytes, start: int, end: int
    ) -> Events[S]:
        if flags & ACK:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.PREFACE)
        self._greeted = True
        self._takes, self._otherwise = self._in_use, self._on_unknown
        return self._on_settings(flags, number, data, start, end)

    def _on_settings(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if number != 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if (end - start) % 6 or (flags & ACK and end > start):
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        self._spend(self._useless, Reason.FLOOD)
        if flags & ACK:
            self._requests.fields.acknowledged()
            return ()
        for place in range(start, end, 6):
            self._set(int.from_bytes(data[place : place + 2]), _number(data, place + 2))
        self.out.append(frames.SETTINGS_ACK)
        self.push()
        return ()

    def _set(self, setting: int, value: int) -> None:
        match setting:
            case Setting.ENABLE_PUSH if value > 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.SETTINGS)
            case Setting.INITIAL_WINDOW_SIZE:
                if value > MOST_WINDOW:
                    raise ConnectionFault(Code.FLOW_CONTROL_ERROR, Reason.SETTINGS)
                self.resize(value)
            case Setting.MAX_FRAME_SIZE:
                if not MOST_FRAME_BYTES <= value < 1 << 24:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.SETTINGS)
                self.peer_frame_bytes = value
            case _:
                pass  # our blocks need no table, and we open no streams

    def _on_push(self, flags: int, number: int, data: bytes, start: int, end: int) -> NoReturn:
        raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.PUSH)

    def _on_ping(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if number != 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if end - start != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        self._spend(self._useless, Reason.FLOOD)
        payload = data[start:end]
        if not flags & ACK:
            self.out.append(frames.ping(payload, ack=True))
        elif payload == _DRAIN_PING and self._draining and self._last_served is None:
            self._last_served = self._last_stream
            self.out.append(frames.goaway(self._last_stream, Code.NO_ERROR))
            self._linger()
        return ()

    def _on_goaway(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        if number != 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.STREAM_ID)
        if end - start < 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        self._spend(self._useless, Reason.FLOOD)
        return ()  # it opens no more streams, and closes when it is done

    def _on_window_update(
        self, flags: int, number: int, data: bytes, start: int, end: int
    ) -> Events[S]:
        if end - start != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE)
        more = _number(data, start) & MOST_WINDOW
        if number == 0:
            self.room_to_send += more
            if more == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.FLOW_CONTROL)
            if self.room_to_send > MOST_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            self.push()
            return ()
        stream = self.streams.get(number)
        if stream is None:
            self._check_not_idle(number)
            return ()
        stream.room_to_send += more
        if more == 0:
            raise StreamFault(number, Code.PROTOCOL_ERROR, Reason.FLOW_CONTROL)
        if stream.room_to_send > MOST_WINDOW:
            raise StreamFault(number, Code.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        if stream.queued:
            self.offer(stream)
        return ()

    def _on_unknown(self, flags: int, number: int, data: bytes, start: int, end: int) -> Events[S]:
        self._spend(self._useless, Reason.FLOOD)
        return ()

    def _check_not_idle(self, number: int) -> None:
        if number > self._last_stream or number & 1 == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, Reason.IDLE_STREAM)

    def _spend(self, allowance: Allowance, reason: Reason) -> None:
        if not allowance.spend():
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, reason)

    # --- Ends ------------------------------------------------------------------------------------

    def forget(self, stream: Stream, *, late: bool) -> None:
        """Close a stream; `late` if the peer may have more on its way."""
        self.left.append(self.streams.pop(stream.id))
        self._ready.pop(stream.id, None)
        stream.leave()
        if late:
            self._remember_late(stream.id)
        self._linger()

    def _linger(self) -> None:
        """Give the peer time to close once a drain has come to its end."""
        if self._last_served is not None and not self.streams:
            self._close_at = min(self._close_at, self._clock() + LINGER_S)

    def _remember_late(self, number: int) -> None:
        self._late[number] = None
        if len(self._late) > LATE_STREAMS:
            del self._late[next(iter(self._late))]

    def _end_call(self, stream: S, fault: CallFault) -> Events[S]:
        self._count(fault.reason)
        stream.end(fault.status, fault.text)
        return ((stream, End.GONE),)

    def _give_up_stream(self, fault: StreamFault) -> Events[S]:
        refused = fault.reason is Reason.REFUSED
        if not (self._resets if refused else self._useless).spend():
            return self._give_up(ConnectionFault(Code.ENHANCE_YOUR_CALM, Reason.FLOOD))
        self._count(fault.reason)
        self.out.append(frames.reset(fault.stream, fault.code))
        stream = self.streams.get(fault.stream)
        if stream is None:
            self._remember_late(fault.stream)
            return ()
        self.forget(stream, late=stream.open)
        return ((stream, End.GONE),)

    def _give_up(self, fault: ConnectionFault) -> Events[S]:
        self._count(fault.reason)
        self.out.append(frames.goaway(self._last_stream, fault.code, fault.reason))
        self.closing = True
        return self._leave_all()

    def _leave_all(self) -> Events[S]:
        left = [*self.streams.values()]
        self.left.extend(left)
        self.streams.clear()
        self._ready.clear()
        for stream in left:
            stream.leave()
        return [(stream, End.GONE) for stream in left]

    def drain(self) -> Events[S]:
        """Let what is open finish, take no more, and close then."""
        if not self._draining and not self.closing:
            self._draining = True
            if self._greeted:
                self.out += (
                    frames.goaway(frames.MOST_STREAM, Code.NO_ERROR),
                    frames.ping(_DRAIN_PING),
                )
            else:
                self.closing = True
        return ()

    def cut(self) -> Events[S]:
        """End every call and the connection."""
        left = [*self.streams.values()]
        for stream in left:
            stream.end(Status.UNAVAILABLE, "the server stops")
        if not self.closing:
            self.out.append(frames.goaway(self._last_stream, Code.NO_ERROR))
        self.closing = True
        return [(stream, End.GONE) for stream in left]

    # --- Time ------------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float:
        """When `wake` is to be called, by the clock."""
        soonest = min(self._check_at, self._close_at)
        return min(soonest, self._deadlines[0][0]) if self._deadlines else soonest

    def wake(self) -> Events[S]:
        """Do what time asks for."""
        now_s = self._clock()
        events: list[tuple[S, bytes | End]] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            stream = self.streams.get(heapq.heappop(self._deadlines)[1])
            if stream is not None:
                self._count(Reason.DEADLINE)
                stream.end(Status.DEADLINE_EXCEEDED, "the deadline is over")
                events.append((stream, End.GONE))
        if now_s >= self._close_at:
            self._close_at = math.inf
            self.closing = True
        elif now_s >= self._check_at:
            self._check_at = now_s + KEEP_ALIVE_S
            if self._heard and self._greeted:
                self._heard = self._asked = False
            elif self._greeted and not self._asked:
                self._asked = True
                self.out.append(frames.ping(_ALIVE_PING))
            else:
                code = Code.NO_ERROR if self._greeted else Code.SETTINGS_TIMEOUT
                events += self._give_up(ConnectionFault(code, Reason.SILENT))
        return events

    def _bound(self, number: int, timeout_s: float) -> None:
        if len(self._deadlines) > 2 * len(self.streams) + 64:
            self._deadlines[:] = [entry for entry in self._deadlines if entry[1] in self.streams]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (self._clock() + timeout_s, number))


def _number(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 4])
