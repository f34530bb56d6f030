"""However the network cuts what a peer sends, the same comes of it, byte for byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.http2.fields import literals
from tests.http2_peer import ACK, GREETING, REQUEST, Peer, data, headers, message, say

NUMBERS = st.sampled_from([1, 3, 5, 7])
CONTENT = st.binary(max_size=40)


def split(number: int, at: int) -> bytes:
    """Write a call's head in two frames."""
    block = literals(REQUEST)
    at %= len(block)
    return wire.frame(wire.HEADERS, 0, number, block[:at]) + wire.frame(
        wire.CONTINUATION, wire.END_HEADERS, number, block[at:]
    )


LAWFUL = st.one_of(
    st.builds(headers, NUMBERS),
    st.builds(split, NUMBERS, st.integers(0, 99)),
    st.builds(say, NUMBERS, CONTENT),
    st.builds(lambda number, content: say(number, content, end=True), NUMBERS, CONTENT),
    st.builds(
        lambda number, first, second: data(number, message(first) + message(second)),
        *(NUMBERS, CONTENT, CONTENT),
    ),
    st.builds(
        lambda number, content, at: (
            data(number, message(content)[: at % 6]) + data(number, message(content)[at % 6 :])
        ),
        *(NUMBERS, CONTENT, st.integers(0, 5)),
    ),
    st.builds(
        lambda number, content: data(number, b"\x03" + message(content) + b"pad", flags=8),
        *(NUMBERS, CONTENT),
    ),
    st.builds(lambda number: headers(number, fields=[(b"x", b"y")], end=True), NUMBERS),
    st.builds(lambda number: wire.reset(number, wire.Code.CANCEL), NUMBERS),
    st.builds(wire.window_update, st.sampled_from([0, 1, 3, 5, 7]), st.integers(1, 50)),
    st.builds(
        lambda value: wire.settings({wire.Setting.INITIAL_WINDOW_SIZE: value}), st.integers(0, 60)
    ),
    st.builds(wire.ping, st.binary(min_size=8, max_size=8)),
    st.just(wire.frame(wire.PRIORITY, 0, 9, bytes(4) + b"\x10")),
    st.just(wire.frame(0x42, 7, 1, b"unknown")),
    st.just(wire.goaway(0, wire.Code.NO_ERROR)),
)
ANY = st.one_of(
    LAWFUL,
    st.builds(
        wire.frame,
        *(st.integers(0, 10), st.integers(0, 255), st.integers(0, 8), st.binary(max_size=20)),
    ),
    st.binary(max_size=20),
)


def outcome(raw: bytes, cuts: list[int]) -> Peer:
    """Let a peer that echoes read bytes in pieces."""
    peer = Peer(greet=False)
    for start, end in pairwise([0, *sorted(cuts), len(raw)]):
        peer.send(raw[start:end])
    return peer


def check(parts: list[bytes], cuts: list[int]) -> None:
    raw = GREETING + ACK + b"".join(parts)
    whole = outcome(raw, [])
    for places in ([cut % (len(raw) + 1) for cut in cuts], [*range(len(raw))]):
        pieces = outcome(raw, places)
        assert whole.events == pieces.events
        assert whole.output == pieces.output
        assert whole.counted == pieces.counted
        assert {*whole.connection.streams} == {*pieces.connection.streams}
        assert whole.connection.closing == pieces.connection.closing


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(LAWFUL, max_size=25), st.lists(st.integers(0, 10_000), max_size=8))
def test_lawful_frames_may_be_cut_and_interleaved_anywhere(
    parts: list[bytes], cuts: list[int]
) -> None:
    """Frames of several streams in any order: read whole, in pieces, and byte by byte."""
    check(parts, cuts)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(ANY, max_size=15), st.lists(st.integers(0, 10_000), max_size=8))
def test_anything_at_all_may_be_cut_anywhere(parts: list[bytes], cuts: list[int]) -> None:
    """Garbage between frames too: no exception, and the same end."""
    check(parts, cuts)
