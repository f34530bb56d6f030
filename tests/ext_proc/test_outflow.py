"""What waits goes out in order, and the reply ends when nothing waits any more."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest

from ext_proc.codec import Body, Command, Headers, Pass, Stream, Trailers
from ext_proc.conversation import Message
from filters.api import Outcome
from filters.pace import PaceConfig, PaceFilter
from tests.exchanges import WORDS
from tests.session_scripts import Stage

REQUEST, REPLY = Message.REQUEST_HEADERS, Message.RESPONSE_HEADERS
ASKED = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"why?"}]}'
EVENTS = [b'data: {"choices":[{"index":0,"delta":{"content":" %d"}}]}\n\n' % at for at in range(90)]
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Paced(Stage):
    """An exchange whose profile paces, played by hand up to the head of its reply."""

    def __init__(self, chunks: str, kind: str = "text/event-stream") -> None:
        config = PaceConfig(chunks=chunks, adapt=False)  # type: ignore[arg-type]  # of a parameter
        super().__init__({"chat": [(PaceFilter, config)]})
        self.open("chat")
        head = {":method": "POST", ":path": WORDS["openai.chat"].path}
        self.receive(Headers(Message.REQUEST_HEADERS, head, last=False))
        self.receive(Body(Message.REQUEST_BODY, ASKED, last=True))
        reply = {":status": "200", "content-type": kind}
        self.mode = self.receive(Headers(Message.RESPONSE_HEADERS, reply, last=False))
        self.peer.commands.clear()

    def say(self, *chunks: bytes, last: bool = False) -> list[Command]:
        """Have the upstream say chunks, and return what went at once."""
        said = []
        for number, chunk in enumerate(chunks):
            ends = last and number == len(chunks) - 1
            said += self.receive(Body(Message.RESPONSE_BODY, chunk, ends))
        return said

    def later(self, seconds: float) -> list[Command]:
        before = len(self.peer.commands)
        self.wheel.turn(seconds)
        return self.peer.commands[before:]

    def ended(self) -> list[Outcome]:
        """Return how the exchange ended, once the stream is over."""
        self.leave()
        return [facts.outcome for facts in self.books.ended]


def streamed(commands: Sequence[Command]) -> bytes:
    assert all(isinstance(command, Stream) for command in commands)
    return b"".join(command.data for command in commands if isinstance(command, Stream))


def test_in_full_duplex_pieces_go_when_they_are_due() -> None:
    """The end is told with the last of them, and not when the upstream has ended."""
    paced = Paced("cut")
    at_once = paced.say(*EVENTS)
    assert b"".join(EVENTS).startswith(streamed(at_once))
    assert 8 == len(at_once)
    second = paced.later(0.1)
    assert 1 == len(second)
    assert 8 == streamed(second).count(b"data:")
    paced.say(END, last=True)
    assert not paced.peer.closed
    paced.later(0.3)
    assert b"".join(EVENTS) + END == streamed(paced.peer.commands)
    ends = [command.last for command in paced.peer.commands if isinstance(command, Stream)]
    assert [False] * (len(ends) - 1) + [True] == ends
    assert (True, []) == (paced.peer.closed, paced.wheel.alarms)
    assert [Outcome.COMPLETE] == paced.ended()


def test_whole_chunks_are_answered_one_by_one_when_they_are_due() -> None:
    """Each once, in any time; nothing is put in their place."""
    paced = Paced("whole")
    at_once = paced.say(*EVENTS)
    assert [Pass(Message.RESPONSE_BODY)] * 8 == at_once
    assert [Pass(Message.RESPONSE_BODY)] * 8 == paced.later(0.1)
    paced.say(END, last=True)
    paced.later(0.3)
    assert [Pass(Message.RESPONSE_BODY)] * 91 == paced.peer.commands
    assert (True, []) == (paced.peer.closed, paced.wheel.alarms)
    assert [Outcome.COMPLETE] == paced.ended()


def test_a_whole_chunk_of_many_tokens_goes_with_its_first() -> None:
    """The next waits until they would all have gone: ninety at eight for each 100 ms."""
    paced = Paced("whole")
    assert [Pass(Message.RESPONSE_BODY)] == paced.say(b"".join(EVENTS))
    assert [] == paced.say(EVENTS[0])
    assert [] == paced.later(0.4)
    assert [Pass(Message.RESPONSE_BODY)] == paced.later(0.2)


def test_no_chunk_waits_longer_than_the_proxy_does() -> None:
    """It would go on without us: of three chunks of a second each one goes every half a second."""
    paced = Paced("whole")
    lump = b"".join(EVENTS)
    assert [Pass(Message.RESPONSE_BODY)] == paced.say(lump, lump, lump)
    for _ in range(2):
        assert [] == paced.later(0.49)
        assert [Pass(Message.RESPONSE_BODY)] == paced.later(0.01)
    paced.say(END, last=True)
    paced.later(0.5)
    assert [Pass(Message.RESPONSE_BODY)] * 4 == paced.peer.commands
    assert (True, []) == (paced.peer.closed, paced.wheel.alarms)
    assert [Outcome.COMPLETE] == paced.ended()


def test_half_an_event_at_the_end_of_a_chunk_does_not_keep_it() -> None:
    """Envoy would take the time that the other half takes for ours."""
    paced = Paced("whole")
    event = EVENTS[0]
    assert [Pass(Message.RESPONSE_BODY)] == paced.say(event[:9])
    assert [Pass(Message.RESPONSE_BODY)] == paced.say(event[9:])


@pytest.mark.parametrize("chunks", ["cut", "whole"])
def test_a_stream_that_does_not_wait_ends_at_once(chunks: str) -> None:
    """In the same call as its last chunk."""
    paced = Paced(chunks)
    paced.say(EVENTS[0], END, last=True)
    assert (True, []) == (paced.peer.closed, paced.wheel.alarms)
    assert [Outcome.COMPLETE] == [facts.outcome for facts in paced.books.ended]


@pytest.mark.parametrize("chunks", ["cut", "whole"])
def test_trailers_wait_for_what_comes_before_them(chunks: str) -> None:
    """They end the reply, for the client as well."""
    paced = Paced(chunks)
    paced.say(*EVENTS, END)
    assert [] == paced.receive(Trailers(Message.RESPONSE_TRAILERS))
    paced.later(0.3)
    assert Pass(Message.RESPONSE_TRAILERS) == paced.peer.commands[-1]
    assert paced.peer.closed
    assert [Outcome.COMPLETE] == paced.ended()


@pytest.mark.parametrize("chunks", ["cut", "whole"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_client_that_leaves_frees_all(chunks: str, whole: bool) -> None:
    """Also when its upstream has said all: the client has not heard it."""
    paced = Paced(chunks)
    paced.say(*EVENTS)
    if whole:
        paced.say(END, last=True)
    assert 1 == len(paced.wheel.alarms)
    assert [Outcome.GONE] == paced.ended()
    assert [] == paced.wheel.alarms


def test_nothing_is_posted_to_a_proxy_that_does_not_read() -> None:
    """It waits on; what is too much to keep is sent by whoever receives, and waits there."""
    paced = Paced("cut")
    paced.say(*EVENTS)
    paced.peer.reads = False
    assert [] == paced.later(1)
    paced.peer.reads = True
    assert b"".join(EVENTS)[len(streamed(paced.peer.commands)) :].startswith(
        streamed(paced.later(0.5))
    )


def test_a_proxy_that_does_not_read_is_looked_at_ever_more_seldom() -> None:
    """Up to thrice a second, and as often as at first once it has read."""
    paced = Paced("cut")
    paced.say(*EVENTS)
    looks: list[int] = []

    def has_room() -> bool:
        looks.append(paced.clock.monotonic_ns())
        return paced.peer.reads

    paced.session._outflow._peer.has_room = has_room  # type: ignore[method-assign, union-attr]  # to be counted
    pauses_ms = [20, 40, 80, 160, 320, 320]
    for _ in range(2):
        paced.peer.reads = False
        looks.clear()
        paced.later(0.1 + sum(pauses_ms) / 1000)
        apart_ms = [(later - at) // 1_000_000 for at, later in pairwise(looks)]
        assert pauses_ms == apart_ms
        paced.peer.reads = True
        paced.later(0.32)


def test_what_waits_behind_others_asks_for_nothing() -> None:
    """Only who is first in a queue needs the clock."""
    paced = Paced("cut")
    paced.say(*EVENTS[:40])
    (alarm,) = paced.wheel.alarms
    assert [] == paced.say(*EVENTS[40:])
    assert [alarm] == paced.wheel.alarms


def test_a_plain_reply_is_not_paced() -> None:
    """It is watched as any other."""
    paced = Paced("cut", "application/json")
    assert [Pass(Message.RESPONSE_BODY)] == paced.say(b"{}", last=True)
    assert [] == paced.wheel.alarms


@pytest.mark.parametrize("chunks", ["cut", "whole"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_exchange_that_is_over_is_freed_at_once(chunks: str, ends: bool) -> None:
    """Its request may be large, and the garbage collector comes late for what lived long."""
    paced = Paced(chunks)
    paced.say(*EVENTS)
    if ends:
        paced.say(END, last=True)
        paced.later(0.3)
    paced.leave()
    peer = weakref.ref(paced.peer)
    gc.disable()
    try:
        paced.open("-")
        assert None is peer()
    finally:
        gc.enable()
