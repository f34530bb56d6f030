"""The other side of the native transport's HTTP/2, without sockets: frames in, frames out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ext_proc.transport.http2 import Connection, End, Event, Limits, Reason, Stream
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2.fields import Field, literals
from ext_proc.transport.http2.stream import PREFIX

PATH: Final = "/test/Call"
ROUTES: Final = {PATH: "call"}
REQUEST: Final[tuple[Field, ...]] = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH.encode()),
    (b":authority", b"test"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
SMALL: Final = Limits(
    message_bytes=100_000,
    streams=8,
    header_list_bytes=4_096,
    stream_window_bytes=70_000,
    window_bytes=200_000,
    stream_queue_bytes=10_000,
    queue_bytes=40_000,
)
ACK: Final = wire.SETTINGS_ACK
GREETING: Final = wire.PREFACE + wire.settings({})
Reaction: TypeAlias = Callable[[Stream, bytes | End], None]


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it was read."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def number(self) -> int:
        """The number that RST_STREAM and WINDOW_UPDATE carry."""
        return int.from_bytes(self.payload)


def read_frames(data: bytes) -> Iterator[Frame]:
    """Cut bytes into frames; nothing may be left over."""
    place = 0
    while place < len(data):
        high, low, kind, flags, stream = wire.HEADER.unpack_from(data, place)
        place += wire.HEADER_BYTES
        end = place + (high << 16 | low)
        assert end <= len(data)
        yield Frame(kind, flags, stream, data[place:end])
        place = end


def headers(
    stream: int,
    *more: Field,
    fields: Iterable[Field] = REQUEST,
    end: bool = False,
    flags: int = wire.END_HEADERS,
) -> bytes:
    """Write a call's head."""
    block = literals([*fields, *more])
    return wire.frame(wire.HEADERS, flags | (wire.END_STREAM if end else 0), stream, block)


def message(content: bytes, *, compressed: int = 0) -> bytes:
    """Write a message as gRPC does."""
    return PREFIX.pack(compressed, len(content)) + content


def data(stream: int, payload: bytes, *, end: bool = False, flags: int = 0) -> bytes:
    """Write a DATA frame."""
    return wire.frame(wire.DATA, flags | (wire.END_STREAM if end else 0), stream, payload)


def say(stream: int, content: bytes, *, end: bool = False) -> bytes:
    """Write a message in one DATA frame."""
    return data(stream, message(content), end=end)


def echo(stream: Stream, what: bytes | End) -> None:
    """Send back what comes, and end when the peer does."""
    if isinstance(what, bytes):
        stream.write(what)
    elif what is End.DONE:
        stream.close()


def ignore(stream: Stream, what: bytes | End) -> None:
    """Do nothing."""


@dataclass
class Peer:
    """A connection under test, whoever serves it, and what came out of both."""

    limits: Limits = SMALL
    react: Reaction = echo
    routes: Mapping[str, Any] = field(default_factory=lambda: ROUTES)
    greet: bool = True
    done: bool = True
    """Handlers are done as soon as their streams are."""
    make: Callable[..., Any] = Stream
    now_s: float = 0.0
    events: list[tuple[int, bytes | End]] = field(default_factory=list)
    counted: list[Reason] = field(default_factory=list)
    attended: int = 0
    """How often output came outside of a turn."""
    output: bytes = b""
    """All that was sent so far, our greeting apart."""

    def __post_init__(self) -> None:
        self.connection: Connection[Stream] = Connection(
            self.routes,
            self.limits,
            make=self.make,
            clock=lambda: self.now_s,
            count=self.counted.append,
            attend=self._attend,
        )
        self.greeting = self._sent()
        self.output = b""
        if self.greet:
            assert [wire.SETTINGS] == [frame.kind for frame in self.send(GREETING, ACK)]
            self.output = b""

    def _attend(self) -> None:
        self.attended += 1

    def send(self, *parts: bytes) -> list[Frame]:
        """Let the connection read bytes; return the frames that it writes."""
        return self.turn(self.connection.receive(b"".join(parts)))

    def turn(self, events: Iterable[Event[Stream]]) -> list[Frame]:
        """React to events; return the frames that the connection writes."""
        self.connection.attended = True
        for stream, what in events:
            self.events.append((stream.id, what))
            self.react(stream, what)
        if self.done:
            self.connection.working -= len(self.connection.left)
        self.connection.left.clear()
        sent = self._sent()
        self.connection.attended = False
        return [*read_frames(sent)]

    def wake(self, now_s: float) -> list[Frame]:
        """Let time pass; return the frames that the connection writes."""
        self.now_s = now_s
        return self.turn(self.connection.wake())

    def _sent(self) -> bytes:
        sent = b""
        while part := self.connection.output():
            sent += part
        self.output += sent
        return sent

    @property
    def clean(self) -> bool:
        """Whether nothing is left of any stream."""
        connection = self.connection
        return not connection.streams and not connection.queued and not connection._ready


def summary(frames: Iterable[Frame]) -> list[tuple[Any, ...]]:
    """Return frames in short: kind and stream, and the number or code that matters."""
    names = {
        wire.DATA: "data",
        wire.HEADERS: "headers",
        wire.RST_STREAM: "reset",
        wire.SETTINGS: "settings",
        wire.PING: "ping",
        wire.GOAWAY: "goaway",
        wire.WINDOW_UPDATE: "window",
    }
    short: list[tuple[Any, ...]] = []
    for frame in frames:
        name = names[frame.kind]
        match frame.kind:
            case wire.RST_STREAM:
                short.append((name, frame.stream, wire.Code(frame.number)))
            case wire.WINDOW_UPDATE:
                short.append((name, frame.stream, frame.number))
            case wire.GOAWAY:
                last, code = (int.from_bytes(frame.payload[at : at + 4]) for at in (0, 4))
                short.append((name, last, wire.Code(code)))
            case wire.DATA:
                short.append((name, frame.stream, len(frame.payload)))
            case _:
                short.append((name, frame.stream))
    return short
