"""Exchanges in full duplex without a wire: what `tests/protocol` cannot bring about for sure."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import pytest

from ext_proc.codec import (
    Body,
    Command,
    Event,
    Forward,
    Headers,
    Pass,
    Route,
    Sent,
    Stream,
    Trailers,
    in_chunks,
)
from ext_proc.conversation import Message
from ext_proc.duplex import DuplexSession
from filters.api import CONTINUE, Config, Exchange, Filter, Need, Outcome, Verdict
from filters.errors import ConversationError
from filters.pipeline import AnyFilter
from tests.fakes import PortWait, drive
from tests.session_scripts import ScriptedPeer, Stage

BOTH: Final = Route(Sent.FULL_DUPLEX, Sent.FULL_DUPLEX, duplex=True)
REPLY: Final = Route(Sent.BUFFERED, Sent.FULL_DUPLEX, duplex=True)
REQUEST: Final = Route(Sent.FULL_DUPLEX, Sent.NONE, duplex=True)
CHAT: Final = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
HEAD: Final = Headers(
    Message.REQUEST_HEADERS, {":method": "POST", ":path": "/v1/chat/completions"}, last=False
)
OTHER: Final = Headers(
    Message.REQUEST_HEADERS, {":method": "POST", ":path": "/v1/files"}, last=False
)
STATUS: Final = Headers(
    Message.RESPONSE_HEADERS, {":status": "200", "content-type": "application/json"}, last=False
)


class Wait(Filter[Config]):
    """May wait for two seconds, and needs what its class says."""

    name: ClassVar[str] = "wait"
    config_type: ClassVar[type[Config]] = Config
    needs: ClassVar[Need] = Need.END

    @classmethod
    def longest_wait_s(cls, config: Config) -> float:
        return 2.0

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.need(self.needs)
        return CONTINUE


class Work(Wait):
    """Does wait."""

    async def on_request(self, exchange: Exchange) -> Verdict:
        await PortWait("work")
        return CONTINUE


class Look(Wait):
    """Reads the reply."""

    needs: ClassVar[Need] = Need.REPLY


class Rest(Wait):
    """Needs nothing more."""

    needs: ClassVar[Need] = Need.NOTHING


class Talk:
    """An exchange and what was said to it."""

    def __init__(self, route: Route, kind: type[AnyFilter] = Wait) -> None:
        self.stage = Stage({"default": [(kind, Config())]})
        self.peer = ScriptedPeer(self.stage.transcript)
        self.session = DuplexSession(self.stage.gateway, self.peer, route, "default", None)

    def say(self, *events: Event) -> list[Command]:
        """Return what answers the events."""
        before = len(self.peer.commands)
        for event in events:
            drive(self.session.receive(event))
        return self.peer.commands[before:]

    @property
    def outcomes(self) -> list[Outcome]:
        return [facts.outcome for facts in self.stage.books.ended]


def request(data: bytes, *, last: bool = True) -> Body:
    return Body(Message.REQUEST_BODY, data, last)


def reply(data: bytes, *, last: bool = True) -> Body:
    return Body(Message.RESPONSE_BODY, data, last)


def names(commands: Sequence[Command]) -> list[str]:
    """Return what each command answers, and how."""
    said: list[str] = []
    for command in commands:
        message: Any = getattr(command, "message", "")
        said.append(f"{type(command).__name__.lower()} {message}".strip())
    return said


FORWARDED: Final = ["forward request headers", "stream request body"]


def test_a_client_that_leaves_in_its_body_ends_the_exchange() -> None:
    """Nothing was said yet."""
    talk = Talk(BOTH)
    assert [] == talk.say(HEAD, request(CHAT[:9], last=False))
    drive(talk.session.leave())
    assert [Outcome.GONE] == talk.outcomes


def test_a_body_that_comes_byte_by_byte_takes_no_more_than_its_length() -> None:
    """Pieces of nothing take none at all: how many come is the client's choice."""
    talk = Talk(BOTH)
    talk.say(HEAD)
    tracemalloc.start()
    try:
        for _ in range(20_000):
            talk.say(request(b" ", last=False), request(b"", last=False))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000
    assert FORWARDED == names(talk.say(request(CHAT)))
    stream = talk.peer.commands[-1]
    assert isinstance(stream, Stream)
    assert b" " * 20_000 + CHAT == stream.data


def test_nobody_asks_for_time_where_the_proxy_waits_without_end() -> None:
    """Envoy has no timeout for messages in full duplex."""
    assert FORWARDED == names(Talk(BOTH, Work).say(HEAD, request(CHAT)))
    whole = Talk(REPLY, Work).say(HEAD, request(CHAT))
    assert ["pass request headers", "extend", "forward request body"] == names(whole)


def test_an_exchange_that_is_watched_for_its_end_gets_every_byte_back() -> None:
    """No filter looks at them, and it counts as complete."""
    talk = Talk(BOTH)
    talk.say(HEAD, request(CHAT))
    assert ["pass response headers"] == names(talk.say(STATUS))
    assert [Stream(b"{", last=False)] == talk.say(reply(b"{", last=False))
    assert [] == talk.outcomes
    assert [Stream(b"}", last=True)] == talk.say(reply(b"}"))
    assert ([Outcome.COMPLETE], True) == (talk.outcomes, talk.peer.closed)


def test_one_that_ends_with_trailers_does_too() -> None:
    talk = Talk(BOTH)
    talk.say(HEAD, request(CHAT), STATUS, reply(b"{}", last=False))
    assert ["pass response trailers"] == names(talk.say(Trailers(Message.RESPONSE_TRAILERS)))
    assert ([Outcome.COMPLETE], True) == (talk.outcomes, talk.peer.closed)


def test_the_proxy_goes_on_alone_where_nobody_needs_the_reply() -> None:
    """As soon as it has the request back, where it does not send replies in full duplex."""
    talk = Talk(REQUEST, Rest)
    assert FORWARDED == names(talk.say(HEAD, request(CHAT)))
    assert ([Outcome.FORWARDED], True) == (talk.outcomes, talk.peer.closed)


def test_a_reply_that_nobody_needs_is_given_back_to_its_end() -> None:
    """The books are closed by then; the stream is not, or Envoy could lose what it sends."""
    talk = Talk(BOTH, Rest)
    assert FORWARDED == names(talk.say(HEAD, request(CHAT)))
    assert ([Outcome.FORWARDED], False) == (talk.outcomes, talk.peer.closed)
    assert ["pass response headers"] == names(talk.say(STATUS))
    assert [Stream(b"{", last=False)] == talk.say(reply(b"{", last=False))
    assert not talk.peer.closed
    assert [Stream(b"}", last=True)] == talk.say(reply(b"}"))
    assert talk.peer.closed


def test_what_is_no_llm_call_passes_piece_by_piece() -> None:
    """It is not held."""
    talk = Talk(BOTH)
    assert ["pass request headers"] == names(talk.say(OTHER))
    piece = Stream(b"ab", last=False, message=Message.REQUEST_BODY)
    assert [piece] == talk.say(request(b"ab", last=False))
    assert not talk.peer.closed
    last = Stream(b"c", last=True, message=Message.REQUEST_BODY)
    assert [last] == talk.say(request(b"c"))
    assert ([Outcome.PASSED], False) == (talk.outcomes, talk.peer.closed)


def test_a_reply_may_begin_while_its_request_still_passes() -> None:
    """Each direction goes on by itself."""
    talk = Talk(BOTH)
    talk.say(OTHER, request(b"a", last=False))
    assert ["pass response headers"] == names(talk.say(STATUS))
    assert ["stream request body"] == names(talk.say(request(b"b", last=False)))
    assert [Stream(b"x", last=True)] == talk.say(reply(b"x"))
    assert not talk.peer.closed
    assert ["pass request trailers"] == names(talk.say(Trailers(Message.REQUEST_TRAILERS)))
    assert talk.peer.closed


@pytest.mark.parametrize("kind", [Wait, Look])
def test_a_request_that_comes_whole_may_have_its_reply_in_full_duplex(
    kind: type[AnyFilter],
) -> None:
    """The request is answered as elsewhere, word for more time included."""
    talk = Talk(REPLY, kind)
    assert ["pass request headers"] == names(talk.say(HEAD))
    (forward,) = talk.say(request(CHAT))
    assert isinstance(forward, Forward)
    assert Message.REQUEST_BODY is forward.message
    assert [Pass(Message.RESPONSE_HEADERS)] == talk.say(STATUS)
    assert [Stream(b"{}", last=True)] == talk.say(reply(b"{}"))
    assert [Outcome.COMPLETE] == talk.outcomes


def test_a_reply_that_is_not_sent_may_be_asked_for() -> None:
    """Where only requests come in full duplex."""
    talk = Talk(REQUEST, Look)
    assert FORWARDED == names(talk.say(HEAD, request(CHAT)))
    (head,) = talk.say(STATUS)
    assert isinstance(head, Pass)
    assert head.response_body is not None
    assert ["pass response body"] == names(talk.say(reply(b"{}")))
    assert ([Outcome.COMPLETE], True) == (talk.outcomes, talk.peer.closed)


def test_without_filters_the_proxy_is_given_back_what_it_sent() -> None:
    talk = Talk(BOTH)
    talk.stage = Stage({"default": []})
    talk.session = DuplexSession(talk.stage.gateway, talk.peer, BOTH, "default", None)
    commands = talk.say(HEAD, request(CHAT))
    assert ["pass request headers", "stream request body"] == names(commands)
    assert [Outcome.PASSED] == talk.outcomes


@pytest.mark.parametrize(
    "events",
    [
        (request(CHAT),),
        (HEAD, HEAD),
        (HEAD, reply(b"")),
        (HEAD, request(CHAT), Trailers(Message.REQUEST_TRAILERS)),
        (STATUS, STATUS),
    ],
)
def test_messages_out_of_order_are_refused(events: Sequence[Event]) -> None:
    """The exchange counts as failed, if there is one."""
    talk = Talk(BOTH)
    talk.say(*events[:-1])
    with pytest.raises(ConversationError):
        talk.say(events[-1])
    assert talk.outcomes in ([], [Outcome.FAILED], [Outcome.PASSED])


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(0, [0]), (1, [1]), (62_000, [62_000]), (62_001, [62_000, 1]), (124_000, [62_000] * 2)],
)
def test_a_body_is_cut_into_as_few_chunks_as_may_be(size: int, sizes: list[int]) -> None:
    """Of nothing there is one: it may have to say that it is the last."""
    chunks = list(in_chunks(bytes(size), last=True, message=Message.RESPONSE_BODY))
    assert sizes == [len(chunk.data) for chunk in chunks]
    assert [False] * (len(sizes) - 1) + [True] == [chunk.last for chunk in chunks]
    assert not any(
        chunk.last for chunk in in_chunks(bytes(size), last=False, message=Message.RESPONSE_BODY)
    )
