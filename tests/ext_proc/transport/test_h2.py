"""python-hyper's h2 as an independent peer: a client that checks all that we send."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from ext_proc.transport.http2 import End
from tests.http2_peer import REQUEST, SMALL, Peer, message

WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
FRAME = h2.settings.SettingCodes.MAX_FRAME_SIZE
LIMITS = replace(SMALL, message_bytes=300_000, stream_queue_bytes=1 << 20, queue_bytes=1 << 22)
TEXT = [(name.decode(), value.decode()) for name, value in REQUEST]


def text(fields: Any) -> dict[str, str]:
    """Return fields as a mapping; h2 was told to decode them."""
    return dict(fields)


class Client:
    """A client over h2, joined to a connection of ours; whatever is sent arrives at once."""

    def __init__(self, peer: Peer | None = None) -> None:
        self.peer = peer or Peer(LIMITS, greet=False)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.h2: Any = h2.connection.H2Connection(config)
        self.received: defaultdict[int, bytes] = defaultdict(bytes)
        self.heads: dict[int, dict[str, str]] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.resets: dict[int, int] = {}
        self.unread: defaultdict[int, int] = defaultdict(int)
        """Bytes for which no room was given back."""
        self.gone: int | None = None
        self.settled = 0
        self.pongs = 0
        self.h2.initiate_connection()
        self.take(self.peer.greeting)
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes both ways until nobody has more to say."""
        while raw := self.h2.data_to_send():
            self.peer.output = b""
            self.peer.send(raw)
            self.take(self.peer.output)

    def take(self, raw: bytes) -> None:
        events: Any = self.h2.receive_data(raw)
        for event in events:
            match event:
                case h2.events.ResponseReceived():
                    self.heads[event.stream_id] = text(event.headers)
                case h2.events.TrailersReceived():
                    self.trailers[event.stream_id] = text(event.headers)
                case h2.events.DataReceived():
                    self.received[event.stream_id] += event.data
                    self.unread[event.stream_id] += event.flow_controlled_length
                case h2.events.StreamReset():
                    self.resets[event.stream_id] = event.error_code
                case h2.events.ConnectionTerminated():
                    self.gone = event.error_code
                case h2.events.SettingsAcknowledged():
                    self.settled += 1
                case h2.events.PingAckReceived():
                    self.pongs += 1
                case _:
                    pass

    def call(self) -> int:
        number: int = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, TEXT)
        self.exchange()
        return number

    def give(self, number: int) -> None:
        """Give back the room that was used, to a stream and to the connection."""
        used = self.unread.pop(number, 0)
        if used:
            self.h2.increment_flow_control_window(used)
            if number not in self.trailers:
                self.h2.increment_flow_control_window(used, number)
        self.exchange()

    def send(self, number: int, raw: bytes, *, end: bool = False, padding: int = 0) -> None:
        """Send bytes in frames as our windows let them."""
        while raw or end:
            most = min(self.h2.max_outbound_frame_size, self.h2.local_flow_control_window(number))
            part = raw[: max(0, most - padding - 1)]
            assert part or not raw, "we gave no room"
            raw = raw[len(part) :]
            last = end and not raw
            pad = padding if padding else None
            self.h2.send_data(number, part, end_stream=last, pad_length=pad)
            self.exchange()
            if last:
                return


def test_h2_finds_our_settings_and_we_its() -> None:
    """Both sides acknowledge, and a ping comes back."""
    client = Client()
    client.h2.ping(b"12345678")
    client.exchange()
    assert (1, 1) == (client.settled, client.pongs)
    assert 0 == client.h2.remote_settings.header_table_size
    assert SMALL.streams == client.h2.remote_settings.max_concurrent_streams


def test_h2_reads_our_answer_as_grpc() -> None:
    """A head, the message, trailers with a status."""
    client = Client()
    number = client.call()
    client.send(number, message(b"ping"), end=True)
    assert {":status": "200", "content-type": "application/grpc"} == client.heads[number]
    assert message(b"ping") == client.received[number]
    assert {"grpc-status": "0"} == client.trailers[number]


def test_padded_frames_of_h2_are_read() -> None:
    """Every length of padding."""
    client = Client()
    number = client.call()
    raw = message(bytes(range(256)))
    for padding in range(256):
        client.send(number, raw[padding : padding + 1], padding=padding)
    client.send(number, raw[256:], end=True)
    assert raw == client.received[number]


def test_long_headers_of_h2_come_in_continuations() -> None:
    """More than a frame of them; ours stay in one."""
    peer = Peer(replace(LIMITS, header_list_bytes=64 * 1024), greet=False)
    client = Client(peer)
    number = client.h2.get_next_available_stream_id()
    more = [(f"x-{part}", "v" * 5_000) for part in range(8)]
    client.h2.send_headers(number, [*TEXT, *more], end_stream=True)
    client.exchange()
    assert [(number, End.DONE)] == peer.events
    assert {"grpc-status": "0"}.items() <= client.heads[number].items()


def test_h2_takes_a_large_answer_through_a_window_of_one_byte() -> None:
    """It raises when we send more than it gave."""
    client = Client()
    client.h2.update_settings({WINDOW: 1})
    client.exchange()
    number = client.call()
    raw = message(bytes(1_000))
    client.send(number, raw, end=True)
    while number not in client.trailers:
        client.give(number)
    assert raw == client.received[number]


def test_h2_sees_an_early_end_as_no_error() -> None:
    """Trailers, and then it may stop sending."""
    peer = Peer(LIMITS, greet=False, react=lambda stream, _: stream.close())
    client = Client(peer)
    number = client.call()
    client.send(number, message(b"x"))
    assert "0" == client.heads[number]["grpc-status"]
    assert {number: h2.errors.ErrorCodes.NO_ERROR} == client.resets


class Exchanges(RuleBasedStateMachine):
    """Many calls at once, each step at random; h2 raises at whatever we may not send."""

    calls: Bundle[int] = Bundle("calls")

    @initialize()
    def connect(self) -> None:
        self.client = Client()
        self.sent: defaultdict[int, bytes] = defaultdict(bytes)
        self.partial: dict[int, bytes] = {}
        self.left: set[int] = set()
        self.ended: set[int] = set()

    def usable(self, number: int) -> bool:
        return number not in self.left and number not in self.ended

    @rule(target=calls)
    def call(self) -> int:
        if self.client.h2.open_outbound_streams >= SMALL.streams:
            return -1
        return self.client.call()

    @rule(
        number=calls,
        content=st.binary(max_size=300) | st.integers(0, 200_000).map(bytes),
        cut=st.integers(0, 400),
        padding=st.sampled_from([0, 0, 1, 255]),
    )
    def speak(self, number: int, content: bytes, cut: int, padding: int) -> None:
        """Send one message, or the first part of it; its rest goes before the next."""
        if number < 0 or not self.usable(number):
            return
        raw = self.partial.pop(number, b"") + message(content)
        self.sent[number] += message(content)
        if cut < len(raw) and cut % 3 == 0:
            self.partial[number] = raw[cut:]
            raw = raw[:cut]
        self.client.send(number, raw, padding=padding)

    @rule(number=calls)
    def end(self, number: int) -> None:
        if number < 0 or not self.usable(number):
            return
        self.client.send(number, self.partial.pop(number, b""), end=True)
        self.ended.add(number)

    @rule(number=consumes(calls))
    def leave(self, number: int) -> None:
        if number < 0 or not self.usable(number):
            return
        self.client.h2.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
        self.left.add(number)
        self.client.exchange()

    @rule(number=calls)
    def read(self, number: int) -> None:
        if number >= 0 and number not in self.left:
            self.client.give(number)

    @rule(size=st.sampled_from([0, 1, 100, 65_535, 1_000_000]))
    def resize(self, size: int) -> None:
        self.client.h2.update_settings({WINDOW: size})
        self.client.exchange()

    @rule(size=st.sampled_from([16_384, 20_000, 1_000_000]))
    def reframe(self, size: int) -> None:
        self.client.h2.update_settings({FRAME: size})
        self.client.exchange()

    @rule()
    def ping(self) -> None:
        before = self.client.pongs
        self.client.h2.ping(b"12345678")
        self.client.exchange()
        assert before + 1 == self.client.pongs

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "client"):
            assert [] == self.client.peer.counted
            assert self.client.gone is None
            for number, raw in self.client.received.items():
                assert self.sent[number].startswith(raw)

    def teardown(self) -> None:
        """Give all the room there is: everything that was sent must have come back."""
        if not hasattr(self, "client"):
            return
        client = self.client
        client.h2.update_settings({WINDOW: 1_000_000})
        client.exchange()
        while any(client.unread.values()):
            for number in [*client.unread]:
                if number in self.left:
                    client.h2.increment_flow_control_window(client.unread.pop(number))
                    client.exchange()
                else:
                    client.give(number)
        for number in self.ended:
            assert self.sent[number] == client.received[number]
            assert "0" == {**client.heads[number], **client.trailers.get(number, {})}["grpc-status"]
        open_ones = {number for number in self.sent if self.usable(number)}
        assert open_ones <= {*client.peer.connection.streams}
        assert not client.peer.connection.queued


Exchanges.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestExchanges = pytest.mark.slow(Exchanges.TestCase)
