"""Messages of a call: cut anywhere, too long, compressed, and the ways a call ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.transport.http2 import End, Reason, Status
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2.frames import Code
from ext_proc.transport.http2.request import REPLY_BLOCK, status_block
from tests.http2_peer import SMALL, Peer, data, headers, ignore, message, say, summary

MOST = SMALL.message_bytes


@given(
    st.lists(st.binary(max_size=300), max_size=6),
    st.lists(st.integers(0, 2_000), max_size=12),
)
def test_messages_may_be_cut_into_frames_anywhere(messages: list[bytes], cuts: list[int]) -> None:
    """In the length, between, several in a frame, empty frames too."""
    raw = b"".join(map(message, messages))
    places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    peer = Peer(react=ignore)
    peer.send(headers(1))
    for start, end in pairwise(places):
        peer.send(data(1, raw[start:end]))
    peer.send(data(1, b"", end=True))
    assert [*((1, content) for content in messages), (1, End.DONE)] == peer.events


FAULTS = {
    "compressed": (
        data(1, message(b"x", compressed=1)),
        Status.UNIMPLEMENTED,
        "a compressed message, and no encoding was agreed on",
        Reason.COMPRESSED,
    ),
    "compressed, of unknown length": (
        data(1, b"\x01\x00\x00\x00\x09"),
        Status.UNIMPLEMENTED,
        "a compressed message, and no encoding was agreed on",
        Reason.COMPRESSED,
    ),
    "too long": (
        data(1, (MOST + 1).to_bytes(5)),
        Status.RESOURCE_EXHAUSTED,
        f"expected a message of at most {MOST} bytes, got one of {MOST + 1}",
        Reason.MESSAGE_SIZE,
    ),
    "too long, after one that is not": (
        data(1, message(b"x") + (2**32 - 1).to_bytes(5)),
        Status.RESOURCE_EXHAUSTED,
        f"expected a message of at most {MOST} bytes, got one of {2**32 - 1}",
        Reason.MESSAGE_SIZE,
    ),
    "ended in a length": (
        data(1, b"\0\0", end=True),
        Status.INTERNAL,
        "the stream ended inside a message",
        Reason.MESSAGE_CUT,
    ),
    "ended in a message": (
        data(1, message(b"abc")[:-1], end=True),
        Status.INTERNAL,
        "the stream ended inside a message",
        Reason.MESSAGE_CUT,
    ),
    "ended in a message by trailers": (
        data(1, message(b"abc")[:-1]) + headers(1, fields=[(b"x", b"y")], end=True),
        Status.INTERNAL,
        "the stream ended inside a message",
        Reason.MESSAGE_CUT,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_message_that_cannot_be_taken_ends_its_call_with_a_status(name: str) -> None:
    """The handler hears that nobody is left; the neighbour goes on."""
    raw, status, text, reason = FAULTS[name]
    peer = Peer(react=ignore)
    sent = peer.send(headers(1), raw)
    assert REPLY_BLOCK + status_block(status, text) == sent[0].payload
    assert [reason] == peer.counted
    assert [(1, End.GONE)] == peer.events
    assert peer.clean
    peer.send(headers(3), say(3, b"on"))
    assert (3, b"on") == peer.events[-1]


def test_a_message_of_the_most_bytes_is_taken() -> None:
    """One byte more is not."""
    peer = Peer(replace(SMALL, message_bytes=10), react=ignore)
    peer.send(headers(1), say(1, bytes(10)))
    assert [(1, bytes(10))] == peer.events


def test_a_call_that_fails_after_an_answer_has_its_status_in_trailers() -> None:
    """The head went with the first message."""
    peer = Peer()
    sent = peer.send(headers(1), say(1, b"x"), data(1, message(b"", compressed=1)))
    assert [("headers", 1), ("data", 1, 6), ("headers", 1), ("reset", 1, Code.NO_ERROR)] == summary(
        sent
    )
    text = "a compressed message, and no encoding was agreed on"
    assert status_block(Status.UNIMPLEMENTED, text) == sent[2].payload


def test_a_failure_drops_what_waits_for_room() -> None:
    """A status that waits for a peer that does not read would never come."""
    peer = Peer(react=ignore)
    peer.send(wire.settings({wire.Setting.INITIAL_WINDOW_SIZE: 3}), headers(1), say(1, b"x"))
    stream = peer.connection.streams[1]
    stream.write(b"0123456789")
    stream.close()
    stream.end(Status.DEADLINE_EXCEEDED, "late")
    sent = peer.turn(())
    assert [("headers", 1), ("data", 1, 3), ("headers", 1), ("reset", 1, Code.NO_ERROR)] == summary(
        sent
    )
    assert status_block(Status.DEADLINE_EXCEEDED, "late") == sent[2].payload
    assert peer.clean


def test_after_its_end_a_call_sends_nothing() -> None:
    """Neither messages nor a second end, however it ended."""
    for end in ("close", "fail", "reset"):
        peer = Peer(react=ignore)
        peer.send(headers(1))
        stream = peer.connection.streams[1]
        if end == "close":
            stream.close()
        elif end == "fail":
            stream.fail("no")
        else:
            peer.send(wire.reset(1, Code.CANCEL))
        peer.turn(())
        assert stream.write(b"x")
        stream.close()
        stream.fail("again")
        assert [] == peer.turn(())


def test_a_sender_has_room_until_a_bound_is_reached() -> None:
    """Of the stream, and of all streams together; a stream that is over never lacks any."""
    peer = Peer(replace(SMALL, stream_queue_bytes=1_000, queue_bytes=3_000), react=ignore)
    peer.send(wire.settings({wire.Setting.INITIAL_WINDOW_SIZE: 0}))
    peer.send(*(headers(number) for number in (1, 3, 5, 7)))
    first, *others, last = peer.connection.streams.values()
    assert first.write(bytes(900))
    assert not first.write(bytes(900))
    assert all(other.write(bytes(900)) for other in others[:1])
    assert not others[1].write(bytes(900))
    assert not last.has_room()
    peer.send(wire.reset(1, Code.CANCEL))
    assert first.has_room()
    assert last.has_room()
