"""The rules of HTTP/2 connections: each broken once, and the code and reason that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ext_proc.transport.http2 import End, Reason, Stream
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2.connection import (
    HANDSHAKE_S,
    KEEP_ALIVE_S,
    LATE_STREAMS,
    LINGER_S,
    MOST_BLOCK_FRAMES,
    RESETS_BURST,
    USELESS_BURST,
    USELESS_PER_S,
)
from ext_proc.transport.http2.fields import literals
from ext_proc.transport.http2.frames import MOST_WINDOW, Code, Setting
from ext_proc.transport.http2.request import REPLY_BLOCK, status_block
from tests.http2_peer import (
    ACK,
    GREETING,
    REQUEST,
    SMALL,
    Peer,
    data,
    echo,
    headers,
    ignore,
    message,
    say,
    summary,
)

BLOCK = literals(REQUEST)
PING = wire.ping(b"12345678")
PONG = wire.frame(wire.PING, wire.ACK, 0, b"12345678")
LONG = bytes(wire.MOST_FRAME_BYTES + 1)


def priority(stream: int, depends_on: int) -> bytes:
    return wire.frame(wire.PRIORITY, 0, stream, depends_on.to_bytes(4) + b"\x0f")


def setting(key: int, value: int) -> bytes:
    return wire.frame(wire.SETTINGS, 0, 0, key.to_bytes(2) + value.to_bytes(4))


# --- What ends the connection --------------------------------------------------------------------

FATAL = {
    # 1: preface
    "http/1": (b"GET / HTTP/1.1\r\n", Code.PROTOCOL_ERROR, Reason.PREFACE),
    "one wrong byte": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", Code.PROTOCOL_ERROR, Reason.PREFACE),
    "no settings": (wire.PREFACE + PING, Code.PROTOCOL_ERROR, Reason.PREFACE),
    "ack for settings": (wire.PREFACE + ACK, Code.PROTOCOL_ERROR, Reason.PREFACE),
    # 2: sizes
    "long frame": (data(1, LONG), Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE),
    "long unknown frame": (
        wire.frame(0x42, 0, 0, LONG),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "short ping": (wire.ping(b"1234567"), Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE),
    "long ping": (wire.ping(b"123456789"), Code.FRAME_SIZE_ERROR, Reason.FRAME_SIZE),
    "short reset": (
        headers(1) + wire.frame(wire.RST_STREAM, 0, 1, b"123"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "short window update": (
        wire.frame(wire.WINDOW_UPDATE, 0, 0, b"123"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "short priority": (
        wire.frame(wire.PRIORITY, 0, 1, b"1234"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "headers without their priority": (
        wire.frame(wire.HEADERS, wire.END_HEADERS | wire.PRIORITISED, 1, b"1234"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "settings of five bytes": (
        wire.frame(wire.SETTINGS, 0, 0, b"12345"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "settings ack with a setting": (
        wire.frame(wire.SETTINGS, wire.ACK, 0, bytes(6)),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "short goaway": (
        wire.frame(wire.GOAWAY, 0, 0, b"1234567"),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    "padded data without its length": (
        headers(1) + data(1, b"", flags=wire.PADDED),
        Code.FRAME_SIZE_ERROR,
        Reason.FRAME_SIZE,
    ),
    # 3: header blocks
    "ping inside a block": (
        headers(1, flags=0) + PING,
        Code.PROTOCOL_ERROR,
        Reason.HEADER_BLOCK,
    ),
    "unknown frame inside a block": (
        headers(1, flags=0) + wire.frame(0x42, 0, 0, b""),
        Code.PROTOCOL_ERROR,
        Reason.HEADER_BLOCK,
    ),
    "continuation of another stream": (
        headers(1, flags=0) + wire.frame(wire.CONTINUATION, wire.END_HEADERS, 3, b""),
        Code.PROTOCOL_ERROR,
        Reason.HEADER_BLOCK,
    ),
    "continuation of nothing": (
        wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1, b""),
        Code.PROTOCOL_ERROR,
        Reason.HEADER_BLOCK,
    ),
    "continuation after the block": (
        headers(1) + wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1, b""),
        Code.PROTOCOL_ERROR,
        Reason.HEADER_BLOCK,
    ),
    "block in too many frames": (
        headers(1, flags=0) + wire.frame(wire.CONTINUATION, 0, 1, b"") * MOST_BLOCK_FRAMES,
        Code.ENHANCE_YOUR_CALM,
        Reason.HEADER_BLOCK,
    ),
    "block of too many bytes": (
        headers(1, flags=0) + wire.frame(wire.CONTINUATION, 0, 1, bytes(4_096)),
        Code.ENHANCE_YOUR_CALM,
        Reason.HEADER_BLOCK,
    ),
    "block of too many fields": (
        headers(1, *[(b"x", b"")] * 120),
        Code.ENHANCE_YOUR_CALM,
        Reason.HEADER_BLOCK,
    ),
    # 4: compression
    "block cut short": (
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, BLOCK[:-1]),
        Code.COMPRESSION_ERROR,
        Reason.COMPRESSION,
    ),
    "reference to a table of no size": (
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\xbe" + BLOCK),
        Code.COMPRESSION_ERROR,
        Reason.COMPRESSION,
    ),
    "table given a size": (
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, b"\x21" + BLOCK),
        Code.COMPRESSION_ERROR,
        Reason.COMPRESSION,
    ),
    "trailers cut short": (
        headers(1) + wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1, b"\x00"),
        Code.COMPRESSION_ERROR,
        Reason.COMPRESSION,
    ),
    # 5: stream numbers
    "even stream": (headers(2), Code.PROTOCOL_ERROR, Reason.STREAM_ID),
    "headers on the connection": (headers(0), Code.PROTOCOL_ERROR, Reason.STREAM_ID),
    "data on the connection": (data(0, b"x"), Code.PROTOCOL_ERROR, Reason.STREAM_ID),
    "reset of the connection": (
        wire.reset(0, Code.CANCEL),
        Code.PROTOCOL_ERROR,
        Reason.STREAM_ID,
    ),
    "priority of the connection": (priority(0, 1), Code.PROTOCOL_ERROR, Reason.STREAM_ID),
    "settings on a stream": (
        wire.frame(wire.SETTINGS, 0, 1, b""),
        Code.PROTOCOL_ERROR,
        Reason.STREAM_ID,
    ),
    "ping on a stream": (
        wire.frame(wire.PING, 0, 1, bytes(8)),
        Code.PROTOCOL_ERROR,
        Reason.STREAM_ID,
    ),
    "goaway on a stream": (
        wire.frame(wire.GOAWAY, 0, 1, bytes(8)),
        Code.PROTOCOL_ERROR,
        Reason.STREAM_ID,
    ),
    "stream below one that was opened": (
        headers(5) + headers(3),
        Code.PROTOCOL_ERROR,
        Reason.STREAM_ID,
    ),
    # 6: idle streams
    "data before headers": (data(1, b"x"), Code.PROTOCOL_ERROR, Reason.IDLE_STREAM),
    "data on an even stream": (
        headers(5) + data(2, b"x"),
        Code.PROTOCOL_ERROR,
        Reason.IDLE_STREAM,
    ),
    "reset before headers": (
        wire.reset(1, Code.CANCEL),
        Code.PROTOCOL_ERROR,
        Reason.IDLE_STREAM,
    ),
    "window update before headers": (
        wire.window_update(1, 1),
        Code.PROTOCOL_ERROR,
        Reason.IDLE_STREAM,
    ),
    # 7: closed streams
    "headers after end and answer": (
        headers(1, end=True) + headers(1),
        Code.STREAM_CLOSED,
        Reason.CLOSED_STREAM,
    ),
    "headers after a reset": (
        headers(1) + wire.reset(1, Code.CANCEL) + headers(1),
        Code.STREAM_CLOSED,
        Reason.CLOSED_STREAM,
    ),
    # 9: windows
    "window over the most": (
        wire.window_update(0, MOST_WINDOW),
        Code.FLOW_CONTROL_ERROR,
        Reason.FLOW_CONTROL,
    ),
    "window update of nothing": (
        wire.window_update(0, 0),
        Code.PROTOCOL_ERROR,
        Reason.FLOW_CONTROL,
    ),
    "setting that lifts a window over the most": (
        headers(1)
        + wire.window_update(1, MOST_WINDOW - wire.DEFAULT_WINDOW)
        + setting(Setting.INITIAL_WINDOW_SIZE, wire.DEFAULT_WINDOW + 1),
        Code.FLOW_CONTROL_ERROR,
        Reason.FLOW_CONTROL,
    ),
    # 10: priorities
    "headers that depend on themselves": (
        wire.frame(
            wire.HEADERS, wire.END_HEADERS | wire.PRIORITISED, 1, b"\x00\x00\x00\x01\x0f" + BLOCK
        ),
        Code.PROTOCOL_ERROR,
        Reason.DEPENDENCY,
    ),
    "priority of a stream on itself": (priority(3, 3), Code.PROTOCOL_ERROR, Reason.DEPENDENCY),
    # 12: padding
    "data of nothing but padding": (
        headers(1) + data(1, b"\x05abcd", flags=wire.PADDED),
        Code.PROTOCOL_ERROR,
        Reason.PADDING,
    ),
    "headers of nothing but padding": (
        wire.frame(wire.HEADERS, wire.END_HEADERS | wire.PADDED, 1, b"\x01"),
        Code.PROTOCOL_ERROR,
        Reason.PADDING,
    ),
    # 13: settings
    "push of two": (setting(Setting.ENABLE_PUSH, 2), Code.PROTOCOL_ERROR, Reason.SETTINGS),
    "window setting over the most": (
        setting(Setting.INITIAL_WINDOW_SIZE, MOST_WINDOW + 1),
        Code.FLOW_CONTROL_ERROR,
        Reason.SETTINGS,
    ),
    "frame setting below the least": (
        setting(Setting.MAX_FRAME_SIZE, wire.MOST_FRAME_BYTES - 1),
        Code.PROTOCOL_ERROR,
        Reason.SETTINGS,
    ),
    "frame setting above the most": (
        setting(Setting.MAX_FRAME_SIZE, 1 << 24),
        Code.PROTOCOL_ERROR,
        Reason.SETTINGS,
    ),
    # 14: push
    "push promise": (
        headers(1) + wire.frame(wire.PUSH_PROMISE, wire.END_HEADERS, 1, bytes(4)),
        Code.PROTOCOL_ERROR,
        Reason.PUSH,
    ),
    # 19: floods
    "pings without end": (PING * (USELESS_BURST + 1), Code.ENHANCE_YOUR_CALM, Reason.FLOOD),
    "settings without end": (
        wire.settings({}) * (USELESS_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
        Reason.FLOOD,
    ),
    "empty data without end": (
        headers(1) + data(1, b"") * (USELESS_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
        Reason.FLOOD,
    ),
    "empty padded data without end": (
        headers(1) + data(1, b"\x00", flags=wire.PADDED) * (USELESS_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
        Reason.FLOOD,
    ),
    "priorities without end": (
        priority(3, 1) * (USELESS_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
        Reason.FLOOD,
    ),
    "unknown frames without end": (
        wire.frame(0x42, 0, 0, b"") * (USELESS_BURST + 1),
        Code.ENHANCE_YOUR_CALM,
        Reason.FLOOD,
    ),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_mistake_ends_the_connection_with_its_code_and_reason(name: str) -> None:
    """A GOAWAY, nothing after it, and nothing left."""
    raw, code, reason = FATAL[name]
    begun = reason is Reason.PREFACE
    peer = Peer(greet=not begun)
    sent = peer.send(raw)
    assert wire.GOAWAY == sent[-1].kind
    assert code == int.from_bytes(sent[-1].payload[4:8])
    assert reason.encode() == sent[-1].payload[8:]
    assert reason is peer.counted[-1]
    assert peer.connection.closing
    assert peer.clean
    assert [] == peer.send(PING, headers(9))


def test_a_mistake_tells_every_open_stream_once() -> None:
    """Each handler hears that nobody is left, also of a stream whose peer had ended its side."""
    peer = Peer(react=ignore)
    peer.send(headers(1), headers(3, end=True), wire.ping(b"short"))
    assert [(3, End.DONE), (1, End.GONE), (3, End.GONE)] == peer.events


# --- What ends one stream ------------------------------------------------------------------------

STREAM_ONLY = {
    "data after the end": (
        headers(1, end=True) + data(1, b"x"),
        Code.STREAM_CLOSED,
        Reason.CLOSED_STREAM,
    ),
    "trailers after the end": (
        headers(1, end=True) + headers(1, fields=[(b"x", b"y")], end=True),
        Code.STREAM_CLOSED,
        Reason.CLOSED_STREAM,
    ),
    "data after a reset": (
        headers(1) + wire.reset(1, Code.CANCEL) + data(1, b"x"),
        Code.STREAM_CLOSED,
        Reason.CLOSED_STREAM,
    ),
    "window over the most": (
        headers(1) + wire.window_update(1, MOST_WINDOW),
        Code.FLOW_CONTROL_ERROR,
        Reason.FLOW_CONTROL,
    ),
    "window update of nothing": (
        headers(1) + wire.window_update(1, 0),
        Code.PROTOCOL_ERROR,
        Reason.FLOW_CONTROL,
    ),
    "trailers that do not end": (
        headers(1) + headers(1, fields=[(b"x", b"y")]),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "trailers with a path": (
        headers(1) + headers(1, fields=[(b":path", b"/")], end=True),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "more than the length said": (
        headers(1, (b"content-length", b"3")) + data(1, b"1234"),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "less than the length said": (
        headers(1, (b"content-length", b"5")) + data(1, b"1234", end=True),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "nothing, and a length was said": (
        headers(1, (b"content-length", b"5"), end=True),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "trailers before the length said": (
        headers(1, (b"content-length", b"5")) + headers(1, fields=[(b"x", b"y")], end=True),
        Code.PROTOCOL_ERROR,
        Reason.MALFORMED,
    ),
    "no method": (headers(1, fields=REQUEST[1:]), Code.PROTOCOL_ERROR, Reason.MALFORMED),
}


@pytest.mark.parametrize("name", STREAM_ONLY)
def test_a_mistake_in_a_stream_ends_that_stream_only(name: str) -> None:
    """A RST_STREAM with the code, one count, and the neighbour goes on."""
    raw, code, reason = STREAM_ONLY[name]
    peer = Peer(react=ignore)
    assert ("reset", 1, code) == summary(peer.send(raw))[-1]
    assert [reason] == peer.counted
    assert peer.clean
    peer.events.clear()
    peer.send(headers(3), say(3, b"on"))
    assert [(3, b"on")] == peer.events


def test_a_stream_overrun_is_reset_and_its_neighbour_goes_on() -> None:
    """Its messages wait, so its window does not grow; who sends on breaks the rule."""
    limits = replace(SMALL, stream_window_bytes=20_000)
    peer = Peer(limits, react=ignore)
    peer.send(headers(1), say(1, b"first"))
    peer.connection.streams[1].held = True
    sent = peer.send(data(1, bytes(16_000)), data(1, bytes(4_000)))
    assert [("reset", 1, Code.FLOW_CONTROL_ERROR)] == summary(sent)
    assert [Reason.FLOW_CONTROL] == peer.counted
    assert (1, End.GONE) == peer.events[-1]


def test_a_connection_overrun_ends_it() -> None:
    """A peer that never takes note of its window; frames for closed streams count as well."""
    peer = Peer()
    peer.connection._room_to_receive = 10_000  # a peer keeps to it when this is what it was given
    sent = peer.send(headers(1), data(1, bytes(10_001)))
    assert [("goaway", 1, Code.FLOW_CONTROL_ERROR)] == summary(sent)


def test_what_comes_for_a_stream_that_we_ended_is_dropped() -> None:
    """It was on its way: data, trailers, a reset, a window update, but each only once."""
    for late in (
        data(1, b"late") + data(1, b"later", end=True),
        headers(1, fields=[(b"x", b"y")], end=True),
        wire.window_update(1, 5) + wire.reset(1, Code.CANCEL),
        wire.window_update(1, 0),
    ):
        peer = Peer(react=lambda stream, _: stream.close())
        peer.send(headers(1), say(1, b"x"))
        assert [] == peer.send(late)
        assert [] == peer.counted
        assert [(1, b"x")] == peer.events


def test_what_comes_after_the_peer_ended_a_late_stream_is_a_mistake() -> None:
    """Its END_STREAM was on its way, and nothing may follow that."""
    peer = Peer(react=lambda stream, _: stream.close())
    peer.send(headers(1), say(1, b"x"), data(1, b"", end=True))
    assert [("reset", 1, Code.STREAM_CLOSED)] == summary(peer.send(data(1, b"late")))


def test_streams_remembered_as_late_are_bounded() -> None:
    """The oldest are forgotten: what comes for them then is reset, which ends nothing else."""
    peer = Peer(react=lambda stream, _: stream.close())
    for number in range(1, 2 * LATE_STREAMS + 4, 2):
        peer.send(headers(number), say(number, b"x"))
    assert LATE_STREAMS == len(peer.connection._late)
    assert [("reset", 1, Code.STREAM_CLOSED)] == summary(peer.send(data(1, b"late")))
    assert [] == peer.send(data(2 * LATE_STREAMS + 1, b"late"))


# --- What is lawful ------------------------------------------------------------------------------


def test_we_announce_what_we_can_take() -> None:
    """A table of no size, streams, windows; the rest is as it is by default."""
    settings = {
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.MAX_CONCURRENT_STREAMS: SMALL.streams,
        Setting.INITIAL_WINDOW_SIZE: SMALL.stream_window_bytes,
        Setting.MAX_HEADER_LIST_SIZE: SMALL.header_list_bytes,
    }
    window = wire.window_update(0, SMALL.window_bytes - wire.DEFAULT_WINDOW)
    assert wire.settings(settings) + window == Peer(greet=False).greeting


def test_a_call_is_answered_with_a_head_messages_and_trailers() -> None:
    """The frames byte for byte; the peer ended first, so there is nothing to reset."""
    peer = Peer()
    peer.send(headers(1), say(1, b"ping"), say(1, b"pong", end=True))
    assert (
        wire.frame(wire.HEADERS, wire.END_HEADERS, 1, REPLY_BLOCK)
        + say(1, b"ping")
        + say(1, b"pong")
        + wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1, status_block(0))
    ) == peer.output
    assert peer.clean


def test_an_answer_before_the_end_asks_the_peer_to_stop() -> None:
    """RFC 9113, 8.1: RST_STREAM with NO_ERROR after the trailers."""
    peer = Peer(react=lambda stream, _: stream.close())
    sent = peer.send(headers(1), say(1, b"x"))
    assert [("headers", 1), ("reset", 1, Code.NO_ERROR)] == summary(sent)
    assert REPLY_BLOCK + status_block(0) == sent[0].payload


def test_priorities_and_unknown_kinds_are_ignored() -> None:
    """On streams of any state, and with flags nobody knows."""
    peer = Peer()
    unknown = wire.frame(0x42, 0xFF, 7, b"what?")
    assert [] == peer.send(priority(9, 1), headers(1), priority(1, 3), unknown, priority(2, 1))
    assert [] == peer.counted


def test_padding_and_priority_are_taken_off() -> None:
    """The call reads as without them."""
    block = b"\x03" + b"\x00\x00\x00\x05\x0f" + BLOCK + b"pad"
    flags = wire.END_HEADERS | wire.PADDED | wire.PRIORITISED
    padded = data(1, b"\x04" + message(b"hi") + b"pads", flags=wire.PADDED, end=True)
    peer = Peer()
    peer.send(wire.frame(wire.HEADERS, flags, 1, block), padded)
    assert [(1, b"hi"), (1, End.DONE)] == peer.events


def test_padding_counts_against_the_windows() -> None:
    """Else a peer could send without bound."""
    peer = Peer(react=ignore)
    peer.send(headers(1), data(1, b"\xff" + bytes(255), flags=wire.PADDED))
    assert SMALL.stream_window_bytes - 256 == peer.connection.streams[1].room_to_receive


@pytest.mark.parametrize("at", range(len(BLOCK) + 1))
def test_a_block_may_be_cut_anywhere(at: int) -> None:
    """HEADERS and CONTINUATION, one of them empty perhaps."""
    peer = Peer()
    peer.send(
        wire.frame(wire.HEADERS, wire.END_STREAM, 1, BLOCK[:at]),
        wire.frame(wire.CONTINUATION, wire.END_HEADERS, 1, BLOCK[at:]),
    )
    assert [(1, End.DONE)] == peer.events


def test_trailers_end_a_call() -> None:
    """They are read and dropped: gRPC's clients send none."""
    peer = Peer()
    peer.send(headers(1), say(1, b"x"), headers(1, fields=[(b"x-sum", b"1")], end=True))
    assert [(1, b"x"), (1, End.DONE)] == peer.events
    assert peer.clean


def test_a_ping_is_answered() -> None:
    """With its own bytes; an answer to none of ours is dropped."""
    peer = Peer()
    peer.send(PING, PONG)
    assert PONG == peer.output


def test_settings_are_acknowledged() -> None:
    """Once for each frame; those that we do not know are none of our business."""
    peer = Peer()
    peer.send(wire.settings({Setting.MAX_CONCURRENT_STREAMS: 1}), setting(0x99, 1))
    assert ACK * 2 == peer.output


def test_a_goaway_of_the_peer_lets_its_streams_finish() -> None:
    """It opens no more, and closes when it is done."""
    peer = Peer()
    peer.send(headers(1), wire.goaway(0, Code.NO_ERROR, "bye"), say(1, b"x", end=True))
    assert [(1, b"x"), (1, End.DONE)] == peer.events
    assert not peer.connection.closing


def test_a_table_may_be_used_until_our_settings_are_acknowledged() -> None:
    """A client need not wait for them; from then on the same block is read as if alone."""
    peer = Peer(greet=False)
    indexed = b"\x40\x03key\x05value"  # into the table
    first = wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 1, BLOCK + indexed)
    second = wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 3, BLOCK + b"\xbe")
    peer.send(GREETING, first, second)
    assert [(1, End.DONE), (3, End.DONE)] == peer.events
    third = wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 5, b"\x20" + BLOCK)
    late = wire.frame(wire.HEADERS, wire.END_HEADERS | wire.END_STREAM, 7, BLOCK + b"\xbe")
    peer.send(ACK, third)
    assert (5, End.DONE) == peer.events[-1]
    assert [("goaway", 5, Code.COMPRESSION_ERROR)] == summary(peer.send(late))


# --- Bounds --------------------------------------------------------------------------------------


def test_one_stream_more_than_announced_is_refused() -> None:
    """And may be tried again: nothing was done for it."""
    peer = Peer(react=ignore)
    peer.send(*(headers(number) for number in range(1, 2 * SMALL.streams, 2)))
    more = 2 * SMALL.streams + 1
    assert [("reset", more, Code.REFUSED_STREAM)] == summary(peer.send(headers(more)))
    assert [Reason.REFUSED] == peer.counted
    assert [] == peer.send(say(more, b"on its way"))
    assert [] == peer.events


def test_a_stream_counts_until_its_handler_is_done() -> None:
    """Opening and resetting gains no work beyond twice what may be open (CVE-2023-44487)."""
    peer = Peer(react=ignore, done=False)
    numbers = range(1, 4 * SMALL.streams, 2)
    for number in numbers:
        assert [] == peer.send(headers(number), wire.reset(number, Code.CANCEL))
    more = numbers[-1] + 2
    assert [("reset", more, Code.REFUSED_STREAM)] == summary(peer.send(headers(more)))
    peer.connection.working -= 1  # as whoever runs handlers does
    assert [] == peer.send(headers(more + 2))


def test_resets_before_an_answer_are_bounded() -> None:
    """In a burst, and then by the second; those after an answer are free."""
    peer = Peer(replace(SMALL, streams=RESETS_BURST * 2), react=ignore)
    raw = b"".join(
        headers(number) + wire.reset(number, Code.CANCEL)
        for number in range(1, 2 * RESETS_BURST, 2)
    )
    peer.connection.working = -RESETS_BURST  # their handlers are done at once
    assert [] == peer.send(raw)
    peer.react = echo
    answered = 2 * RESETS_BURST + 1
    peer.send(headers(answered), say(answered, b"x"), wire.reset(answered, Code.CANCEL))
    assert [] == peer.counted
    sent = peer.send(headers(answered + 2), wire.reset(answered + 2, Code.CANCEL))
    assert [("goaway", answered + 2, Code.ENHANCE_YOUR_CALM)] == summary(sent)
    assert [Reason.RESETS] == peer.counted


def test_what_is_useless_is_forgiven_with_time() -> None:
    """Pings at a steady pace are no flood."""
    peer = Peer()
    for second in range(100):
        peer.now_s = float(second)
        peer.send(PING * USELESS_PER_S)
    assert [] == peer.counted


# --- Windows of the peer -------------------------------------------------------------------------


def windows(stream_bytes: int) -> Peer:
    """Return a peer that gives each stream so many bytes, and the connection many."""
    peer = Peer()
    peer.send(setting(Setting.INITIAL_WINDOW_SIZE, stream_bytes), wire.window_update(0, 1 << 20))
    return peer


def test_a_message_goes_as_far_as_the_window_lets_it() -> None:
    """The rest follows when there is room, and the end after it."""
    peer = windows(8)
    sent = peer.send(headers(1), say(1, b"0123456789", end=True))
    assert [("headers", 1), ("data", 1, 8)] == summary(sent)
    assert [("data", 1, 1)] == summary(peer.send(wire.window_update(1, 1)))
    sent = peer.send(wire.window_update(1, 100))
    assert [("data", 1, 6), ("headers", 1)] == summary(sent)
    assert peer.clean


def test_the_end_waits_for_what_was_sent_before() -> None:
    """Trailers need no room, but may not overtake; the handler may end at once."""

    def answer_once(stream: Stream, what: bytes | End) -> None:
        echo(stream, what)
        stream.close()

    peer = windows(5)
    peer.react = answer_once
    sent = peer.send(headers(1), say(1, b"abc"))
    assert [("headers", 1), ("data", 1, 5)] == summary(sent)
    sent = peer.send(wire.window_update(1, 3))
    assert [("data", 1, 3), ("headers", 1), ("reset", 1, Code.NO_ERROR)] == summary(sent)


def test_a_window_may_shrink_below_zero() -> None:
    """RFC 9113, 6.9.2: nothing goes until it is above zero again."""
    peer = windows(10)
    peer.send(headers(1), say(1, b"0123456789"))
    assert [("settings", 0)] == summary(peer.send(setting(Setting.INITIAL_WINDOW_SIZE, 0)))
    assert -10 == peer.connection.streams[1].room_to_send
    assert [] == peer.send(wire.window_update(1, 10))
    assert [("data", 1, 1)] == summary(peer.send(wire.window_update(1, 1)))


def test_a_setting_opens_the_windows_of_open_streams() -> None:
    """What waits goes with the acknowledgement."""
    peer = windows(0)
    peer.send(headers(1), say(1, b"abc"))
    sent = peer.send(setting(Setting.INITIAL_WINDOW_SIZE, 100))
    assert [("settings", 0), ("data", 1, 8)] == summary(sent)


def test_the_window_of_the_connection_bounds_all_streams() -> None:
    """When it opens, those that wait take turns, a frame each."""
    peer = Peer()
    peer.send(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20))
    framed = message(bytes(60_000))
    for stream in (1, 3, 5):
        parts = [framed[at : at + 16_000] for at in range(0, len(framed), 16_000)]
        peer.send(headers(stream), *(data(stream, part) for part in parts))
    assert 0 == peer.connection.room_to_send
    sent = summary(peer.send(wire.window_update(0, 40_000)))
    assert [
        ("data", 3, wire.MOST_FRAME_BYTES),
        ("data", 5, wire.MOST_FRAME_BYTES),
        ("data", 3, 40_000 - 2 * wire.MOST_FRAME_BYTES),
    ] == sent


def test_frames_are_no_longer_than_the_peer_takes() -> None:
    """16,384 bytes by default, more when it says so."""
    peer = Peer(replace(SMALL, message_bytes=1 << 20))
    peer.send(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20), wire.window_update(0, 1 << 20))
    parts = [message(bytes(40_000))[at : at + 16_384] for at in range(0, 40_005, 16_384)]
    sent = peer.send(headers(1), *(data(1, part) for part in parts))
    assert [16_384, 16_384, 7_237] == [frame[2] for frame in summary(sent) if frame[0] == "data"]
    sent = peer.send(setting(Setting.MAX_FRAME_SIZE, 50_000), *(data(1, part) for part in parts))
    assert [40_005] == [frame[2] for frame in summary(sent) if frame[0] == "data"]


def test_nothing_but_what_is_short_goes_to_a_transport_that_is_full() -> None:
    """Messages wait; answers to pings do not, their number is bounded anyway."""
    peer = Peer()
    peer.connection.paused = True
    assert [("headers", 1), ("ping", 0)] == summary(peer.send(headers(1), say(1, b"x"), PING))
    assert not peer.connection.streams[1].has_room()
    peer.connection.paused = False
    assert [("data", 1, 6)] == summary(peer.turn(()))
    assert peer.connection.streams[1].has_room()


# --- Our windows ---------------------------------------------------------------------------------


def test_windows_grow_by_half_when_half_is_used() -> None:
    """A frame for each message would cost more than the message."""
    peer = Peer(react=ignore)
    peer.send(headers(1))
    full = data(1, bytes(16_000))
    first = message(bytes(99_000))[:16_000]
    assert [] == peer.send(data(1, first), full)
    sent = peer.send(full)
    assert [("window", 1, 48_000)] == summary(sent)
    assert SMALL.stream_window_bytes == peer.connection.streams[1].room_to_receive
    sent = peer.send(full, full, full, full)
    assert [("window", 1, 48_000), ("window", 0, 112_000)] == summary(sent)


def test_a_stream_whose_messages_wait_gets_no_more_room() -> None:
    """Until nothing waits; the connection's window grows all the same, for the neighbours."""
    peer = Peer(react=ignore)
    peer.send(headers(1), say(1, bytes(10_000)))
    stream = peer.connection.streams[1]
    stream.held = True
    assert [] == peer.send(say(1, bytes(15_000)), say(1, bytes(15_000)))
    stream.unhold()
    assert [("window", 1, 40_015)] == summary(peer.turn(()))


# --- Draining ------------------------------------------------------------------------------------


def test_a_drain_says_goaway_twice_a_round_trip_apart() -> None:
    """What was on its way is served; after the last stream the peer has a moment to close."""
    peer = Peer()
    peer.send(headers(1))
    sent = peer.turn(peer.connection.drain())
    assert [("goaway", wire.MOST_STREAM, Code.NO_ERROR), ("ping", 0)] == summary(sent)
    peer.send(headers(3), say(3, b"was on its way", end=True))
    assert [(3, b"was on its way"), (3, End.DONE)] == peer.events
    answer = wire.ping(sent[1].payload, ack=True)
    assert [("goaway", 3, Code.NO_ERROR)] == summary(peer.send(answer))
    assert [] == peer.send(headers(5), say(5, b"too late", end=True))
    assert not peer.connection.closing
    peer.send(say(1, b"last", end=True))
    assert [(1, b"last"), (1, End.DONE)] == peer.events[2:]
    assert (False, peer.now_s + LINGER_S) == (peer.connection.closing, peer.connection.wake_at)
    assert [] == peer.wake(peer.connection.wake_at)
    assert peer.connection.closing


def test_a_drain_without_streams_ends_the_connection_after_its_round_trip() -> None:
    """A peer that has not greeted yet loses nothing and is left at once."""
    peer = Peer()
    ping = peer.turn(peer.connection.drain())[1]
    peer.send(wire.ping(ping.payload, ack=True))
    assert not peer.connection.closing
    peer.wake(peer.connection.wake_at)
    assert peer.connection.closing
    stranger = Peer(greet=False)
    assert [] == stranger.turn(stranger.connection.drain())
    assert stranger.connection.closing


def test_a_second_drain_says_nothing() -> None:
    """Once is enough."""
    peer = Peer()
    peer.turn(peer.connection.drain())
    assert [] == peer.turn(peer.connection.drain())


def test_a_cut_ends_every_call_with_a_status() -> None:
    """UNAVAILABLE: the proxy does as its failure mode says."""
    peer = Peer(react=ignore)
    peer.send(headers(1), headers(3), say(3, b"x"))
    sent = peer.turn(peer.connection.cut())
    assert [
        *[("headers", 1), ("reset", 1, Code.NO_ERROR)],
        *[("headers", 3), ("reset", 3, Code.NO_ERROR)],
        ("goaway", 3, Code.NO_ERROR),
    ] == summary(sent)
    assert status_block(14, "the server stops") == sent[0].payload[len(REPLY_BLOCK) :]
    assert [(1, End.GONE), (3, End.GONE)] == peer.events[1:]


# --- Time ----------------------------------------------------------------------------------------


def test_a_deadline_ends_a_call() -> None:
    """When it is due and not before; one that ended in time costs nothing more."""
    peer = Peer(react=ignore)
    peer.send(headers(1, (b"grpc-timeout", b"100m")), headers(3, (b"grpc-timeout", b"5S")))
    assert 0.1 == peer.connection.wake_at
    assert [] == peer.wake(0.09)
    sent = peer.wake(0.1)
    assert [("headers", 1), ("reset", 1, Code.NO_ERROR)] == summary(sent)
    assert status_block(4, "the deadline is over") == sent[0].payload[len(REPLY_BLOCK) :]
    assert [(1, End.GONE)] == peer.events
    peer.send(wire.reset(3, Code.CANCEL))
    assert [] == peer.wake(5.0)
    assert [Reason.DEADLINE] == peer.counted


def test_deadlines_of_calls_that_ended_are_not_kept() -> None:
    """Their number follows that of open streams."""
    peer = Peer()
    for number in range(1, 2_001, 2):
        peer.send(headers(number, (b"grpc-timeout", b"99H"), end=True))
    assert 100 > len(peer.connection._deadlines)


def test_a_silent_peer_is_asked_and_then_left() -> None:
    """One ping, and as long again for an answer."""
    peer = Peer()
    peer.send(headers(1))
    first = peer.connection.wake_at
    assert HANDSHAKE_S == first
    assert [] == peer.wake(first)
    asked = peer.connection.wake_at
    assert first + KEEP_ALIVE_S == asked
    assert [("ping", 0)] == summary(peer.wake(asked))
    assert [("goaway", 1, Code.NO_ERROR)] == summary(peer.wake(asked + KEEP_ALIVE_S))
    assert [Reason.SILENT] == peer.counted
    assert (1, End.GONE) == peer.events[-1]


def test_a_peer_that_answers_is_kept() -> None:
    """For ever, if it does so."""
    peer = Peer()
    peer.wake(peer.connection.wake_at)
    for _ in range(10):
        for ping in peer.wake(peer.connection.wake_at):
            peer.send(wire.ping(ping.payload, ack=True))
    assert not peer.connection.closing


def test_a_peer_that_never_greets_is_left() -> None:
    """It may not hold a connection for nothing."""
    peer = Peer(greet=False)
    peer.send(wire.PREFACE[:10])
    assert [("goaway", 0, Code.SETTINGS_TIMEOUT)] == summary(peer.wake(HANDSHAKE_S))
    assert peer.connection.closing


# --- Ends ----------------------------------------------------------------------------------------


def test_a_lost_connection_tells_every_stream_once() -> None:
    """A second time there is nobody to tell."""
    peer = Peer(react=ignore)
    peer.send(headers(1), headers(3))
    peer.turn(peer.connection.lost())
    assert [(1, End.GONE), (3, End.GONE)] == peer.events
    assert [] == [*peer.connection.lost()]
    assert peer.clean


def test_a_reset_ends_a_stream_and_drops_what_waits() -> None:
    """Bytes that nobody will take are not kept."""
    peer = windows(0)
    peer.send(headers(1), say(1, bytes(1000)))
    assert 1_005 == peer.connection.queued
    peer.send(wire.reset(1, Code.CANCEL))
    assert (1, End.GONE) == peer.events[-1]
    assert peer.clean


def test_output_outside_of_a_turn_asks_for_attention() -> None:
    """Whoever holds the socket is told once for all that is sent until the next turn."""
    peer = Peer(react=ignore)
    peer.send(headers(1), headers(3), headers(5), say(5, b"x"))
    one, other, third = (peer.connection.streams[number] for number in (1, 3, 5))
    one.write(b"x")
    one.write(b"y")
    assert 1 == peer.attended
    assert ["headers", "data", "data"] == [frame[0] for frame in summary(peer.turn(()))]
    one.close()
    assert 2 == peer.attended
    assert ["headers", "reset"] == [frame[0] for frame in summary(peer.turn(()))]
    other.fail("no")
    assert 3 == peer.attended
    peer.turn(())
    third.close()
    assert 4 == peer.attended
