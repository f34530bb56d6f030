"""Feed the native transport's protocol anything: no exception, no bound broken, nothing left over.

`make fuzz` runs this under atheris, which keeps what reaches code that nothing reached before.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Final

from ext_proc.transport.http2 import End, Stream
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2.fields import literals
from tests.http2_peer import (
    ACK,
    GREETING,
    REQUEST,
    SMALL,
    Peer,
    data,
    echo,
    headers,
    message,
    read_frames,
    say,
)

MOST_INPUT_BYTES: Final = 4_096


def react(stream: Stream, what: bytes | End) -> None:
    """Do as the message's first byte says."""
    if isinstance(what, bytes) and what[:1] == b"c":
        stream.close()
    elif isinstance(what, bytes) and what[:1] == b"f":
        stream.fail("asked for")
    elif isinstance(what, bytes) and what[:1] == b"h":
        stream.held = not stream.held
    else:
        echo(stream, what)


def check(raw: bytes) -> None:
    """Let a connection read bytes; the first says where they begin and how they are cut."""
    how, raw = raw[:1] or b"\0", raw[1:]
    greeted, size = how[0] & 1, how[0] >> 1 or MOST_INPUT_BYTES
    peer = Peer(react=react, greet=False)
    if greeted:
        peer.send(GREETING, ACK)
    for start in range(0, len(raw), size):
        peer.send(raw[start : start + size])
    connection = peer.connection
    assert len(connection.streams) <= SMALL.streams
    assert connection.working == len(connection.streams)
    assert connection.queued == sum(stream.queued for stream in connection.streams.values())
    assert len(connection._rest) < wire.MOST_FRAME_BYTES + wire.HEADER_BYTES
    assert connection._room_to_receive >= 0 or connection.closing
    ends = [number for number, what in peer.events if what is End.GONE]
    assert len(ends) == len(set(ends)), "told twice that nobody is left"
    kinds = [frame.kind for frame in read_frames(peer.output)]
    assert wire.PUSH_PROMISE not in kinds
    if connection.closing:
        assert peer.clean
        assert [wire.GOAWAY] == [kind for kind in kinds if kind == wire.GOAWAY]
    peer.turn(connection.wake())
    peer.turn(connection.cut())
    peer.turn(connection.lost())
    assert peer.clean
    assert connection.working == 0


def seeds() -> Iterator[bytes]:
    """Write some conversations to begin with."""
    block = literals(REQUEST)
    split = wire.frame(wire.HEADERS, 0, 1, block[:9]) + wire.frame(
        wire.CONTINUATION, wire.END_HEADERS, 1, block[9:]
    )
    window = wire.settings({wire.Setting.INITIAL_WINDOW_SIZE: 3})
    conversations = (
        headers(1) + say(1, b"hello", end=True),
        headers(1) + say(1, b"close") + say(1, b"late") + wire.reset(1, wire.Code.CANCEL),
        headers(1) + say(1, b"fail") + headers(1, fields=[(b"x", b"y")], end=True),
        headers(1) + say(1, b"hold") + say(1, bytes(900)) + headers(3, end=True),
        split + data(1, b"\x02" + message(b"padded") + b"xx", flags=wire.PADDED),
        window + headers(1) + say(1, b"slow") + wire.window_update(1, 2) + wire.window_update(0, 9),
        headers(1, (b"grpc-timeout", b"1S"), (b"content-length", b"8")) + say(1, b"abc", end=True),
        wire.ping(b"12345678") + wire.goaway(0, wire.Code.NO_ERROR) + wire.frame(0x42, 0, 0, b"?"),
        wire.frame(wire.PRIORITY, 0, 5, b"\0\0\0\1\x10"),
    )
    for conversation in conversations:
        yield b"\x01" + conversation
        yield b"\x0f" + conversation
        yield b"\x00" + GREETING + conversation


def functions() -> Iterator[FunctionType]:
    """Return every function of the protocol."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("ext_proc.transport.http2"):
            found = [*vars(module).values()]
            kinds = [one for one in found if isinstance(one, type) and one.__module__ == name]
            found += [member for kind in kinds for member in vars(kind).values()]
            found += [one.fget for one in found if isinstance(one, property)]
            yield from (one for one in found if isinstance(one, FunctionType))


def main() -> None:
    """Run under atheris; options are libFuzzer's."""
    import atheris

    for function in {*functions()}:
        atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds()):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        atheris.Setup([*sys.argv, f"-max_len={MOST_INPUT_BYTES}", corpus], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
