"""Cut a byte stream into events, wherever the network cut it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol

LARGEST_EVENT_BYTES: Final = 8 * 1024 * 1024  # far above any model's event; bounds what is kept
# A model's event has 50 bytes at least. A stream of shorter ones than these, beyond the first, is
# none of a model's: a megabyte of empty lines would be looked at for ten seconds.
SMALLEST_EVENT_BYTES: Final = 32
MOST_SMALL_EVENTS: Final = 1_000
_CREDIT_BYTES: Final = MOST_SMALL_EVENTS * SMALLEST_EVENT_BYTES
_SLICE_BYTES: Final = 4_096  # cut between two looks at that


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream: its bytes as they came, and what they carry."""

    raw: bytes
    """Terminator included; the `raw` of all events, joined, is the stream."""
    name: str = ""
    """The SSE `event` field; empty when there is none."""
    data: bytes = b""
    """The SSE `data` field, its lines joined by a line feed; empty for comments."""


class Framer(Protocol):
    """Bytes in, events out; keeps what is not yet a whole event."""

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the events they complete."""

    def close(self) -> list[Event]:
        """Return what is left at the end of the stream as a last event, if anything."""

    @property
    def transparent(self) -> bool:
        """Tell whether it gave up, and passes the stream on unread."""

    def append(self, data: bytes, name: str = "", *, behind: bytes = b"") -> bytes:
        """Return what puts one more event behind a stream that is over, and ends it.

        Its reader has the `raw` of all events that `feed` gave, and `behind`, which is what `close`
        gave or nothing. Empty where no event can follow.
        """


class _Cutter(ABC):
    """What the framers share: the bytes of an unfinished event, and the bound on them.

    Every byte is scanned once, however small the chunks: `_at` is where scanning goes on.
    """

    __slots__ = ("_at", "_credit", "_largest", "_rest", "_transparent")

    def __init__(self, largest: int = LARGEST_EVENT_BYTES) -> None:
        """Keep at most `largest` bytes; an event above that makes the framer transparent.

        So do a great many small ones. A transparent framer passes the rest of the stream on as it
        comes, as events without data.
        """
        self._largest: Final = largest
        self._rest = bytearray()
        self._at = 0
        self._transparent = False
        self._credit = _CREDIT_BYTES
        """How many bytes may still be missing from events that are too small."""

    @property
    def transparent(self) -> bool:
        """Tell whether it gave up, and passes the stream on unread."""
        return self._transparent

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the events they complete."""
        if self._transparent:
            return [Event(data)] if data else []
        if len(data) > _SLICE_BYTES:
            slices = range(0, len(data), _SLICE_BYTES)
            return [event for at in slices for event in self.feed(data[at : at + _SLICE_BYTES])]
        rest = self._rest
        buffer: bytes | bytearray = data
        if rest:
            rest += data
            buffer = rest
        events: list[Event] = []
        start, readable = self._cut(buffer, events)
        credit = self._credit + len(data) - len(events) * SMALLEST_EVENT_BYTES
        self._credit = min(credit, _CREDIT_BYTES)
        if not readable or credit < 0 or len(buffer) - start > self._largest:
            self._transparent = True
            if start < len(buffer):
                events.append(Event(bytes(buffer[start:])))
            self._rest = bytearray()
        elif rest:
            del rest[:start]
        elif start < len(data):
            self._rest = bytearray(memoryview(data)[start:])
        self._at -= start
        return events

    def close(self) -> list[Event]:
        """Return what is left at the end of the stream as a last event, if anything."""
        raw = bytes(self._rest)
        self._rest = bytearray()
        self._at = 0
        return [self._last(raw)] if raw else []

    @abstractmethod
    def _cut(self, buffer: bytes | bytearray, events: list[Event]) -> tuple[int, bool]:
        """Append the whole events in `buffer`.

        Return where the first unfinished one starts, and whether the stream can be read on.
        """

    @abstractmethod
    def _last(self, raw: bytes) -> Event:
        """Read what the stream ended in."""


# --- Server-sent events --------------------------------------------------------------------------
# WHATWG HTML, "9.2.5 Parsing an event stream": lines end in LF, CR or CRLF, in any mixture; an
# empty line ends an event; one byte order mark may lead the stream.

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n)(?:\r\n|\r|\n)")


class SseFramer(_Cutter):
    """Cuts `text/event-stream`. An empty line that ends nothing is an event without data.

    An event that ends in a bare CR is held until the next byte shows that it is not half a CRLF.
    """

    __slots__ = ("_first",)

    def __init__(self, largest: int = LARGEST_EVENT_BYTES) -> None:
        """Keep at most `largest` bytes of an event."""
        super().__init__(largest)
        self._first = True

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the events they complete."""
        # Nearly every chunk is one event of one line, whole. Finding that out takes a tenth of the
        # time of cutting it.
        if (
            data.startswith(b"data: ")
            and data.endswith(b"\n\n")
            and not (self._rest or self._transparent or b"\r" in data)
            and SMALLEST_EVENT_BYTES <= len(data) <= min(_SLICE_BYTES, self._largest)
            and data.find(b"\n") == len(data) - 2
        ):
            self._first = False
            return [Event(data, "", data[6:-2])]
        return super().feed(data)

    def _cut(self, buffer: bytes | bytearray, events: list[Event]) -> tuple[int, bool]:
        start = 0
        at = self._at
        size = len(buffer)
        while True:
            begin = start
            if self._first and buffer.startswith(_BOM):
                begin += len(_BOM)
            found = _LINE_END.match(buffer, begin) or _EVENT_END.search(buffer, max(at, begin))
            if found is None:
                # A line end whose second half or successor is still to come starts at most two
                # bytes before the end.
                self._at = max(start, size - 2)
                return start, True
            end = found.end()
            if end == size and buffer[end - 1] == 0x0D:
                self._at = found.start()
                return start, True
            if end - start > self._largest:
                return start, False
            events.append(_sse_event(bytes(buffer[start:end]), begin - start))
            self._first = False
            start = at = end

    def _last(self, raw: bytes) -> Event:
        return _sse_event(raw, len(_BOM) if self._first and raw.startswith(_BOM) else 0)

    def append(self, data: bytes, name: str = "", *, behind: bytes = b"") -> bytes:
        """Return the event, behind an empty line where one is under way."""
        if self._transparent:
            return b""
        # The first of the two ends a line or, behind a CR, is the second half of its end.
        begin = b"\n\n" if behind else b""
        named = b"event: %b\n" % name.encode() if name else b""
        return b"%b%bdata: %b\n\n" % (begin, named, data)


def _sse_event(raw: bytes, skip: int) -> Event:
    name = ""
    data: list[bytes] = []
    for line in (raw[skip:] if skip else raw).splitlines():
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode(errors="replace")
    return Event(raw, name, data[0] if len(data) == 1 else b"\n".join(data))


# --- A streamed JSON array -----------------------------------------------------------------------

_QUOTE, _COMMA, _ARRAY, _OBJECT = b'",[{'
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
# What may be skipped: anything but structure, whole strings included. A string that is not yet
# whole stops the match at its quote; `_STRING` then goes on from where the string was left.
_BETWEEN_ITEMS: Final = re.compile(rb'(?>[^"\[\]{},]+|"(?>[^"\\]+|\\.)*+")*+', re.DOTALL)
_IN_ITEM: Final = re.compile(rb'(?>[^"\[\]{}]+|"(?>[^"\\]+|\\.)*+")*+', re.DOTALL)
_STRING: Final = re.compile(rb'(?>[^"\\]+|\\.)*+', re.DOTALL)
_SPACE: Final = b" \t\r\n"


class JsonArrayFramer(_Cutter):
    """Cuts a top-level JSON array as it streams; `data` is one element.

    Brackets, commas and white space between elements belong to the `raw` of the element that
    follows; the closing bracket is an event without data. Anything but an array makes the framer
    transparent.
    """

    __slots__ = ("_depth", "_in_string", "_item", "_items", "_start")

    def __init__(self, largest: int = LARGEST_EVENT_BYTES) -> None:
        """Keep at most `largest` bytes of an element."""
        super().__init__(largest)
        self._start = 0
        """Where the event under way starts; like `_at` and `_item` an index into the buffer."""
        self._item = 0
        """Where the element under way starts."""
        self._depth = 0
        """Brackets open at `_at`; -1 behind the array."""
        self._in_string = False
        self._items = False
        """Some element came whole."""

    def append(self, data: bytes, name: str = "", *, behind: bytes = b"") -> bytes:
        """Return an element and the closing bracket; nothing behind half an element."""
        last = behind.strip(_SPACE)
        if self._transparent or self._depth < 0 or last not in (b"", b",", b"["):
            return b""
        begin = b"" if last else b"," if self._items else b"["
        return b"%b%b]" % (begin, data)

    def _cut(self, buffer: bytes | bytearray, events: list[Event]) -> tuple[int, bool]:
        readable = True
        size = len(buffer)
        while readable and self._at < size:
            if self._in_string:
                at = self._skip(_STRING, buffer)
                if at == size or buffer[at] != _QUOTE:  # a lone backslash awaits its successor
                    break
                self._in_string = False
                self._at = at + 1
            elif self._depth > 1:
                readable = self._inside(buffer, events)
            elif self._depth == 1:
                readable = self._between(buffer, events)
            elif self._depth == 0:
                readable = self._before(buffer)
            else:
                self._at = size
        start = self._start
        self._start = 0
        self._item -= start
        return start, readable

    def _before(self, buffer: bytes | bytearray) -> bool:
        at = self._skip(_BLANK, buffer)
        if at == len(buffer):
            return True
        self._depth = 1
        self._at = self._item = at + 1
        return buffer[at] == _ARRAY

    def _between(self, buffer: bytes | bytearray, events: list[Event]) -> bool:
        at = self._skip(_BETWEEN_ITEMS, buffer)
        if at == len(buffer):
            return True
        byte = buffer[at]
        self._at = at + 1
        if byte == _QUOTE:
            self._in_string = True
        elif byte in (_ARRAY, _OBJECT):
            self._depth = 2
            self._item = at
        else:
            if bytes(buffer[self._item : at]).strip() and not self._emit(buffer, events, at):
                return False  # a number, string or literal, and it is too large
            self._item = at + 1
            if byte != _COMMA:
                self._depth = -1
                self._item = at
                events.append(Event(bytes(buffer[self._start : at + 1])))
                self._start = at + 1
        return True

    def _inside(self, buffer: bytes | bytearray, events: list[Event]) -> bool:
        at = self._skip(_IN_ITEM, buffer)
        if at == len(buffer):
            return True
        byte = buffer[at]
        self._at = at + 1
        if byte == _QUOTE:
            self._in_string = True
        elif byte in (_ARRAY, _OBJECT):
            self._depth += 1
        else:
            self._depth -= 1
            if self._depth == 1:
                return self._emit(buffer, events, at + 1)
        return True

    def _emit(self, buffer: bytes | bytearray, events: list[Event], end: int) -> bool:
        start = self._start
        if end - start > self._largest:
            return False
        data = bytes(buffer[self._item : end]).strip()
        events.append(Event(bytes(buffer[start:end]), "", data))
        self._start = self._item = end
        self._items = True
        return True

    def _skip(self, pattern: re.Pattern[bytes], buffer: bytes | bytearray) -> int:
        found = pattern.match(buffer, self._at)
        if found:
            self._at = found.end()
        return self._at

    def _last(self, raw: bytes) -> Event:
        return Event(raw)
