"""One exchange: scripts of what the proxy says and what it is told, and what no script can hold."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc import session as session_module
from ext_proc.codec import (
    Body,
    Command,
    Event,
    Extend,
    Forward,
    Headers,
    Mode,
    Pass,
    Respond,
    Route,
    Sent,
    Trailers,
)
from ext_proc.conversation import Message
from ext_proc.session import CROWDED, WholeBody, tenant_of
from filters import cache_record
from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Cut,
    Delta,
    Exchange,
    Filter,
    Need,
    Outcome,
    RequestHead,
    Task,
    Verdict,
)
from filters.bounds import MOST_VALUES
from filters.cache import CacheFilter
from filters.cache_settings import CacheConfig
from filters.clean import CleanConfig, CleanFilter
from filters.dialects import DIALECTS
from filters.dialects.openai_chat import OpenAIChat
from filters.errors import ConversationError, FilterError, PortError
from filters.framing import Event as StreamEvent
from filters.lockstep import ALONE, Lockstep
from filters.pipeline import SPARE_S, AnyFilter
from filters.route import RouteConfig, RouteFilter
from tests.fakes import PortWait, drive
from tests.session_scripts import BEST_EFFORT, Stage, check

SCRIPTS: Final = Path(__file__).parent.parent / "scripts"


class Shout(Filter[Config]):
    """Makes every answer upper case."""

    name: ClassVar[str] = "shout"
    config_type: ClassVar[type[Config]] = Config
    edits_stream: ClassVar[bool] = True

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.need(Need.REPLY)
        return CONTINUE

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        loud = delta.raw.replace(delta.text.encode(), delta.text.upper().encode())
        return (Delta(loud, delta.text.upper(), delta.finish, delta.usage, delta.done),)


class Hold(Filter[Config]):
    """Holds something until the exchange ends."""

    name: ClassVar[str] = "hold"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.need(Need.END)
        return CONTINUE

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        exchange.note("held until", outcome)


class Lose(Filter[Config]):
    """Names a pool that does not exist."""

    name: ClassVar[str] = "lose"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.pool = "no such pool"
        return CONTINUE


class Send(Filter[Config]):
    """Names two replicas, and notes which of them answers."""

    name: ClassVar[str] = "send"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.endpoints = ("10.0.0.1:8000", "10.0.0.2:8000")
        exchange.need(Need.HEAD)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        assert exchange.reply_head is not None
        exchange.note("served", exchange.reply_head.served)


class Wait(Filter[Config]):
    """May wait for two seconds, does so for streams, and says under which trace."""

    name: ClassVar[str] = "wait"
    config_type: ClassVar[type[Config]] = Config

    @classmethod
    def longest_wait_s(cls, config: Config) -> float:
        return 2.0

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.note("trace", exchange.traceparent)
        if exchange.prompt.stream:
            await PortWait("work")
        return CONTINUE


FAQ: Final = (CacheFilter, CacheConfig(any_temperature=True, admit_after=1))
PROFILES: Final[Mapping[str, list[tuple[type[AnyFilter], Any]]]] = {
    # By name: another built-in filter leaves the scripts as they are.
    "default": [
        (CleanFilter, CleanConfig()),
        (CacheFilter, CacheConfig()),
        (RouteFilter, RouteConfig()),
    ],
    "faq": [FAQ],
    "raw": [],
    "cheap": [FAQ],
    "shout": [(Shout, Config())],
    "hold": [(Hold, Config())],
    "lose": [(Lose, Config())],
    "send": [(Send, Config())],
    "wait": [(Wait, Config())],
}


@pytest.fixture(autouse=True)
def _every_answer_lasts_its_whole_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts say seconds to the letter, which would else rest on the key of each request."""
    monkeypatch.setattr(cache_record, "TTL_SPREAD", 0)


def stage() -> Stage:
    return Stage(PROFILES, pools={"cheap": BEST_EFFORT})


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.txt")), ids=lambda file: file.stem)
def test_an_exchange_goes_as_its_script_says(script: Path) -> None:
    """Every script in `tests/scripts` plays as it is written, to the letter."""
    check(stage(), script.read_text())


def test_who_answers_is_told_to_filters() -> None:
    """The proxy says so with the reply's head."""
    at = stage()
    at.open("send")
    path = {":method": "POST", ":path": "/v1/chat/completions"}
    asked = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    at.receive(
        Headers(Message.REQUEST_HEADERS, path, last=False),
        Body(Message.REQUEST_BODY, asked, last=True),
        Headers(Message.RESPONSE_HEADERS, {":status": "200"}, last=True, served="10.0.0.2:8000"),
    )
    (facts,) = at.books.ended
    assert {"served": "10.0.0.2:8000"} == facts.notes


# --- Building blocks -----------------------------------------------------------------------------

PATHS: Final = {
    "openai.chat": "/v1/chat/completions",
    "openai.completions": "/v1/completions",
    "openai.responses": "/v1/responses",
    "openai.embeddings": "/v1/embeddings",
    "gemini.generate": "/v1beta/models/m:generateContent",
    "gemini.embeddings": "/v1beta/models/m:embedContent",
    "anthropic.messages": "/v1/messages",
}
BODIES: Final = {
    "openai.chat": b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
    "openai.completions": b'{"model":"m","prompt":"hi"}',
    "openai.responses": b'{"model":"m","input":"hi"}',
    "openai.embeddings": b'{"model":"m","input":"hi"}',
    "gemini.generate": b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}',
    "gemini.embeddings": b'{"content":{"parts":[{"text":"hi"}]}}',
    "anthropic.messages": b'{"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}',
}
CHAT: Final = BODIES["openai.chat"]
STREAMED_CHAT: Final = CHAT.replace(b"{", b'{"stream":true,', 1)
ANSWER: Final = (
    b'{"id":"1","object":"chat.completion","model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"\xe6\xb0\xb4"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":2,"completion_tokens":1}}'
)
EVENTS: Final = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"wa"}}]}\r\n\r\n'
    b": a comment\n\n"
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"ter"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
SSE: Final = "text/event-stream"
JSON: Final = "application/json"


def request(
    body: bytes = CHAT, dialect: str = "openai.chat", headers: Mapping[str, str] | None = None
) -> list[Event]:
    head = {":method": "POST", ":path": PATHS[dialect], **(headers or {})}
    return [
        Headers(Message.REQUEST_HEADERS, head, last=False),
        Body(Message.REQUEST_BODY, body, last=True),
    ]


def reply(content_type: str, *chunks: bytes, status: str = "200") -> list[Event]:
    head = {":status": status, "content-type": content_type}
    last = len(chunks) - 1
    return [
        Headers(Message.RESPONSE_HEADERS, head, last=not chunks),
        *(Body(Message.RESPONSE_BODY, data, at == last) for at, data in enumerate(chunks)),
    ]


def stored(made: Stage) -> list[bytes]:
    """Return the values in the store."""
    return [value for _, value in made.store.values.values()]


def outcomes(made: Stage) -> list[Outcome]:
    return [facts.outcome for facts in made.books.ended]


# --- How many at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
def test_what_comes_while_too_many_are_open_is_refused_by_its_head(name: str) -> None:
    """Before its body is read, as its provider would; who leaves makes room for the next."""
    made = Stage({"hold": PROFILES["hold"]}, most_exchanges=2)
    first = made.open("hold")
    made.receive(*request(BODIES[name], name))
    made.open("hold")
    made.receive(*request(BODIES[name], name))
    made.open("hold")
    (refused,) = made.receive(*request(BODIES[name], name)[:1])
    assert isinstance(refused, Respond)
    said = (refused.status, refused.headers["retry-after"], refused.headers["content-type"])
    assert (503, "1", JSON) == said
    assert DIALECTS[name].error(503, CROWDED) == refused.body
    assert made.peer.closed
    assert [Outcome.REFUSED] == outcomes(made)
    assert {"refused": "crowded"} == made.books.ended[0].notes
    drive(first.leave())
    made.open("hold")
    assert [Pass, Forward] == [type(command) for command in made.receive(*request())]


def test_heads_without_bodies_take_no_places() -> None:
    """A place is taken with the body; who finds none then is refused as others are by their head.

    Were they to count, clients that send nothing more would keep all others out.
    """
    made = Stage({"hold": PROFILES["hold"]}, most_exchanges=2)
    head, body = request()
    waiting = [made.open("hold") for _ in range(5)]
    for session in waiting:
        drive(session.receive(head))
    assert (5, 5) == (made.books.in_flight, made.books.awaited)
    for session in waiting[:3]:
        drive(session.receive(body))
    assert [Outcome.REFUSED] == outcomes(made)
    assert {"refused": "crowded"} == made.books.ended[0].notes
    assert (4, 2) == (made.books.in_flight, made.books.awaited)
    made.open("hold")
    assert [Respond] == [type(command) for command in made.receive(head)]
    for session in waiting:
        drive(session.leave())
    assert (0, 0) == (made.books.in_flight, made.books.awaited)


def test_trailers_without_a_body_end_what_is_awaited() -> None:
    """There is nothing to read: the exchange is over with them, however long its reply takes."""
    made = stage()
    made.open("faq")
    made.receive(request()[0])
    before = made.books.awaited
    assert [Pass(Message.REQUEST_TRAILERS, {"x-forebay-profile": "faq"})] == made.receive(
        Trailers(Message.REQUEST_TRAILERS)
    )
    assert (1, 0, 0) == (before, made.books.awaited, made.books.in_flight)


def test_trailers_without_a_body_find_no_place_either_where_there_is_none() -> None:
    """They are refused as a body is."""
    made = Stage({"hold": PROFILES["hold"]}, most_exchanges=2)
    head, body = request()
    waiting = [made.open("hold") for _ in range(3)]
    for session in waiting:
        drive(session.receive(head))
    for session in waiting[:2]:
        drive(session.receive(body))
    drive(waiting[2].receive(Trailers(Message.REQUEST_TRAILERS)))
    assert {"refused": "crowded"} == made.books.ended[0].notes
    assert (2, 0) == (made.books.in_flight, made.books.awaited)


def test_heads_without_bodies_are_bounded_as_well() -> None:
    """Four times as many as exchanges may be open; one that leaves makes room."""
    made = Stage({"hold": PROFILES["hold"]}, most_exchanges=2)
    head, body = request()
    waiting = [made.open("hold") for _ in range(8)]
    for session in waiting:
        drive(session.receive(head))
    made.open("hold")
    (refused,) = made.receive(head)
    assert isinstance(refused, Respond)
    assert 503 == refused.status
    drive(waiting[0].leave())
    made.open("hold")
    assert [Pass, Forward] == [type(command) for command in made.receive(head, body)]


def test_a_body_in_full_duplex_takes_a_place_with_its_head() -> None:
    """What came of it is held here."""
    made = Stage({"hold": PROFILES["hold"]}, most_exchanges=1)
    route = Route(Sent.FULL_DUPLEX, Sent.FULL_DUPLEX, duplex=True)
    (head, _) = request()
    assert isinstance(head, Headers)
    head = Headers(head.message, head.headers, last=False, route=route)
    made.open("hold")
    made.receive(head)
    made.open("hold")
    assert [Respond] == [type(command) for command in made.receive(head)]


# --- Bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
def test_an_untouched_body_goes_out_as_it_came(name: str) -> None:
    """No filter edits it, so no bytes are sent back: the proxy keeps the ones it has."""
    made = stage()
    made.open("hold")
    forward = made.receive(*request(BODIES[name], name))[-1]
    assert isinstance(forward, Forward)
    assert forward.body is None
    assert "content-length" not in forward.set_headers


def test_the_length_of_a_rewritten_body_is_in_bytes() -> None:
    """The proxy refuses a body whose length is not what its header says."""
    made = stage()
    made.open("default")
    body = '{"messages":[{"role":"user","content":"水  <b>是</b>  什么"}]}'.encode()
    forward = made.receive(*request(body))[-1]
    assert isinstance(forward, Forward)
    assert '{"messages":[{"role":"user","content":"水 是 什么"}]}'.encode() == forward.body
    assert str(len(forward.body)) == forward.set_headers["content-length"]


def test_a_long_name_of_a_model_is_cut_in_the_metadata() -> None:
    """It is the client's own words, for headers and the access log; on a miss and on a hit."""
    made = stage()
    body = CHAT.replace(b'"m"', b'"%b"' % (b"m" * 129))
    made.open("faq")
    miss = made.receive(*request(body))[-1]
    made.receive(*reply(JSON, ANSWER))
    made.open("faq")
    hit = made.receive(*request(body))[-1]
    assert isinstance(miss, Forward)
    assert isinstance(hit, Respond)
    assert ["m" * 128] * 2 == [(one.metadata or {})["model"] for one in (miss, hit)]


def nested(levels: int) -> bytes:
    """Make a chat whose last member is nested, and which the default profile would edit."""
    deep = b"[" * levels + b"]" * levels
    return b'{"messages":[{"role":"user","content":"a   b"}],"temperature":0,"x":%b}' % deep


def test_a_long_wait_is_told_to_the_proxy_before_it_begins() -> None:
    """Once, in front of the reply to the body; a request that does not wait costs no message."""
    made = stage()
    made.open("wait")
    streamed = made.receive(*request(b'{"model": "m", "stream": true, "messages": []}'))
    assert [Pass, Extend, Forward] == [type(command) for command in streamed]
    assert Extend(2.0 + SPARE_S) == made.peer.commands[1]
    made.open("wait")
    assert [Pass, Forward] == [type(command) for command in made.receive(*request())]


@pytest.mark.parametrize("proxys", ["00-aa-bb-01", None])
def test_a_filter_knows_the_trace_of_its_exchange(proxys: str | None) -> None:
    """The proxy's span; the client's own header where the proxy does not trace."""
    made = stage()
    made.open("wait", traceparent=proxys)
    made.receive(*request(headers={"traceparent": "00-cc-dd-00"}))
    assert (proxys or "00-cc-dd-00") == made.books.ended[0].notes["trace"]


def test_a_body_nested_too_deep_to_read_passes() -> None:
    """5,000 levels are no reason to fail: the request goes on unread."""
    made = stage()
    made.open("default")
    assert made.receive(*request(nested(5000)))[-1] == Pass(
        Message.REQUEST_BODY, {"x-forebay-profile": "default"}
    )
    assert {"pass": "not JSON"} == made.books.ended[0].notes


def test_a_body_nested_as_deep_as_can_be_read_passes_or_is_read() -> None:
    """There is no depth between that breaks what comes after the reading."""
    read = set()
    for levels in range(850, 1001):
        made = stage()
        made.open("default")
        command = made.receive(*request(nested(levels)))[-1]
        read.add(isinstance(command, Forward))
        assert [Outcome.FORWARDED if isinstance(command, Forward) else Outcome.PASSED] == outcomes(
            made
        )
    assert {True, False} == read


def test_a_body_of_very_many_values_passes() -> None:
    """A few MB of brackets would hold up everybody else for seconds and take a GB."""
    made = stage()
    made.open("default")
    body = b'{"messages":[%b{}]}' % (b"{}," * (MOST_VALUES // 2))
    assert made.receive(*request(body))[-1] == Pass(
        Message.REQUEST_BODY, {"x-forebay-profile": "default"}
    )
    assert {"pass": "too many values"} == made.books.ended[0].notes


# --- Replies -------------------------------------------------------------------------------------


def test_a_reply_of_very_many_values_is_not_read() -> None:
    """It reaches the client; what it used is not counted."""
    for size, read in ((MOST_VALUES // 4, True), (MOST_VALUES, False)):
        answer = ANSWER[:-1] + b',"x":[%b{}]}' % (b"{}," * size)
        for content_type, data in ((JSON, answer), (SSE, b"data: %b\n\n" % answer)):
            made = stage()
            made.open("faq")
            made.receive(*request(CHAT))
            assert Pass(Message.RESPONSE_BODY) == made.receive(*reply(content_type, data))[-1]
            assert read is (made.books.ended[0].usage is not None)


def stored_after(body: bytes, content_type: str, *chunks: bytes) -> list[bytes]:
    """Play a miss whose reply comes in `chunks`; check that each passes at once."""
    made = stage()
    made.open("faq")
    made.receive(*request(body))
    head, *bodies = reply(content_type, *chunks)
    expected = [Pass(Message.RESPONSE_HEADERS, response_body=Mode.STREAMED)]
    assert expected == made.receive(head)
    for event in bodies:
        assert [Pass(Message.RESPONSE_BODY)] == made.receive(event)
    assert [Outcome.COMPLETE] == outcomes(made)
    return stored(made)


@pytest.mark.parametrize("cut", range(1, len(EVENTS)))
def test_a_stream_cut_anywhere_is_stored_the_same(cut: int) -> None:
    """The network's cuts are not the events', and nobody waits for them."""
    whole = stored_after(STREAMED_CHAT, SSE, EVENTS)
    assert 1 == len(whole)
    assert b'"content":"water"' in whole[0]
    assert whole == stored_after(STREAMED_CHAT, SSE, EVENTS[:cut], EVENTS[cut:])


@given(st.lists(st.integers(0, len(ANSWER)), max_size=5))
def test_a_plain_reply_cut_anywhere_is_stored_the_same(cuts: list[int]) -> None:
    """The same of one JSON object, in the midst of a character too; empty chunks included."""
    places = [0, *sorted(cuts), len(ANSWER)]
    chunks = [ANSWER[a:b] for a, b in pairwise(places)]
    assert stored_after(CHAT, JSON, ANSWER) == stored_after(CHAT, JSON, *chunks)


def test_a_chunk_passes_on_before_it_is_looked_at() -> None:
    """Storing and reading delay no client: the reply to the last chunk comes before the store."""
    made = stage()
    made.open("faq")
    made.receive(*request(), *reply(JSON, ANSWER))
    lines = made.transcript.lines
    order = ["<< pass response body", "<< close", ".. store put", ".. end complete"]
    assert order == [line for line in lines if line in order]


def test_a_plain_reply_over_the_bound_passes_piece_by_piece() -> None:
    """What is too long to look at is not kept."""
    framer = WholeBody(most_bytes=4)
    assert [] == framer.feed(b"123")
    assert [StreamEvent(b"12345")] == framer.feed(b"45")
    assert [StreamEvent(b"6")] == framer.feed(b"6")
    assert [] == framer.close()


def test_a_plain_reply_within_the_bound_is_one_event() -> None:
    """It comes with the end, and carries all bytes as its data."""
    framer = WholeBody(most_bytes=4)
    assert [] == framer.feed(b"12") + framer.feed(b"34")
    assert [StreamEvent(b"1234", data=b"1234")] == framer.close()


def test_the_gaps_that_are_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without end does not fill the memory."""
    monkeypatch.setattr(session_module, "MOST_TOKEN_GAPS", 3)
    made = stage()
    made.open("faq")
    made.receive(*request(STREAMED_CHAT))
    made.clock.advance(1)
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    made.receive(*reply(SSE, *[event] * 9))
    assert [0, 0, 0] == made.books.ended[0].token_gaps_ns


def test_a_dialect_that_fails_at_an_event_costs_the_client_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug in reading leaves the bytes as they are, and a note."""

    def broken(self: OpenAIChat, event: StreamEvent) -> Delta:
        raise ZeroDivisionError

    monkeypatch.setattr(OpenAIChat, "read_event", broken)
    made = stage()
    made.open("shout")
    made.receive(*request(STREAMED_CHAT))
    _, *sent = made.receive(*reply(SSE, EVENTS[:70], EVENTS[70:]))
    assert EVENTS == b"".join(getattr(command, "data", b"") for command in sent)
    assert "ZeroDivisionError" == made.books.ended[0].notes["openai.chat.failed"]


# --- Ends ----------------------------------------------------------------------------------------

CONVERSATION: Final = [
    *request(STREAMED_CHAT),
    *reply(SSE, EVENTS[:30], EVENTS[30:90], EVENTS[90:]),
]


class Witness(Filter[Config]):
    """Counts its ends."""

    name: ClassVar[str] = "witness"
    config_type: ClassVar[type[Config]] = Config
    ends: ClassVar[list[Outcome]] = []

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        self.ends.append(outcome)


@pytest.fixture
def witnessed() -> Stage:
    """Make a profile `all`: a cache of everything between two filters that count their ends."""
    Witness.ends.clear()
    return Stage({"all": [(Witness, Config()), FAQ, (Witness, Config())]})


@pytest.mark.parametrize("after", range(len(CONVERSATION)))
def test_a_client_that_leaves_ends_the_exchange_once(witnessed: Stage, after: int) -> None:
    """In whatever phase: filters that saw the request finish as gone, and nothing is stored."""
    witnessed.open("all")
    witnessed.receive(*CONVERSATION[:after])
    for _ in range(2):
        witnessed.leave()
    assert ([Outcome.GONE] if after else []) == outcomes(witnessed)
    assert ([Outcome.GONE] * 2 if after > 1 else []) == Witness.ends
    assert [] == stored(witnessed)


def test_a_client_that_leaves_after_the_end_changes_nothing(witnessed: Stage) -> None:
    """The end of the stream follows every exchange; the books are closed by then."""
    witnessed.open("all")
    witnessed.receive(*CONVERSATION)
    witnessed.leave()
    assert [Outcome.COMPLETE] == outcomes(witnessed)
    assert [Outcome.COMPLETE] * 2 == Witness.ends
    assert 1 == len(stored(witnessed))


class Blame(Filter[Config]):
    """Notes whether the upstream is to blame for an answer that is none."""

    name: ClassVar[str] = "blame"
    config_type: ClassVar[type[Config]] = Config

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        exchange.note("blame", str(exchange.broke_off))


@pytest.mark.parametrize(("code", "upstreams"), [(400, False), (429, False), (500, True)])
def test_an_upstream_is_not_to_blame_for_an_error_of_the_clients(
    code: int, upstreams: bool
) -> None:
    """The answer failed either way, and is counted so."""
    made = Stage({"all": [(Blame, Config()), FAQ]})
    made.open("all")
    error = b'data: {"error":{"message":"x","code":%d}}\n\ndata: [DONE]\n\n' % code
    made.receive(*request(STREAMED_CHAT), *reply(SSE, error))
    made.leave()
    (facts,) = made.books.ended
    assert ("failed", str(upstreams)) == (facts.broken, facts.notes["blame"])


class Cancelled(BaseException):
    """Stands for the event loop's own."""


@pytest.mark.parametrize("wait", range(3))
def test_an_exchange_cancelled_while_it_waits_ends_once(witnessed: Stage, wait: int) -> None:
    """Looking up, counting, storing: wherever the cancellation comes, all let go exactly once."""
    witnessed.store.waiting = True
    witnessed.open("all")
    waited = 0

    async def whole() -> None:
        for event in CONVERSATION:
            await witnessed.session.receive(event)

    running = whole()
    while waited <= wait:
        assert PortWait("store") == running.send(None)
        waited += 1
    with pytest.raises(Cancelled):
        running.throw(Cancelled())
    drive(witnessed.session.leave())
    at_the_end = wait == 2
    assert [Outcome.COMPLETE if at_the_end else Outcome.GONE] == outcomes(witnessed)
    assert (2 if at_the_end else 1) == len(Witness.ends)
    assert set(outcomes(witnessed)) == set(Witness.ends)
    assert [] == stored(witnessed)


class Leaving:
    """The proxy's end: the client is gone by the time that a command has reached it."""

    lockstep = ALONE

    def __init__(self, staying: int) -> None:
        self._staying = staying
        self.close = lambda: None

    async def send(self, command: Command) -> None:
        self._staying -= 1
        if self._staying < 0:
            raise Cancelled

    def post(self, command: Command) -> None:
        raise AssertionError("nothing waits")

    def has_room(self) -> bool:
        return True


def test_a_client_that_leaves_with_the_last_byte_had_all_of_it(witnessed: Stage) -> None:
    """The stream may be over before the call that sent the byte returns: the answer is stored."""
    session = witnessed.open("all")
    session._peer = Leaving(staying=len(CONVERSATION) - 1)
    witnessed.receive(*CONVERSATION[:-1])
    with pytest.raises(Cancelled):
        drive(session.receive(CONVERSATION[-1]))
    drive(session.leave())
    assert [Outcome.COMPLETE] == outcomes(witnessed)
    assert [Outcome.COMPLETE] * 2 == Witness.ends
    assert 1 == len(stored(witnessed))


def test_a_client_that_leaves_with_a_filters_answer_was_answered(witnessed: Stage) -> None:
    """A hit is counted as one however soon the connection is closed."""
    witnessed.open("all")
    witnessed.receive(*CONVERSATION)
    session = witnessed.open("all")
    session._peer = Leaving(staying=1)
    witnessed.receive(CONVERSATION[0])
    with pytest.raises(Cancelled):
        drive(session.receive(CONVERSATION[1]))
    drive(session.leave())
    assert [Outcome.COMPLETE, Outcome.ANSWERED] == outcomes(witnessed)


# --- In lockstep ---------------------------------------------------------------------------------


def together(stage: Stage) -> tuple[Lockstep, Coroutine[Any, Any, None]]:
    """Open an exchange that goes in lockstep with others; return what takes its body."""
    session = stage.open("all")
    stage.peer.lockstep = lockstep = Lockstep()
    stage.receive(CONVERSATION[0])
    lockstep.several = True
    return lockstep, session.receive(CONVERSATION[1])


def test_an_exchange_pauses_before_it_is_read_between_stages_and_before_it_goes_on(
    witnessed: Stage,
) -> None:
    """Nothing is said to the proxy until the last pause is over."""
    lockstep, taking = together(witnessed)
    assert lockstep is taking.send(None)
    assert witnessed.session._exchange is None
    for _ in ("witness", "cache", "witness", "upstream"):
        assert lockstep is taking.send(None)
        assert 1 == len(witnessed.peer.commands)
    with pytest.raises(StopIteration):
        taking.send(None)
    assert 2 == len(witnessed.peer.commands)


@pytest.mark.parametrize("pauses", [1, 2, 3])
def test_an_exchange_that_is_cancelled_in_a_pause_gives_everything_back(
    witnessed: Stage, pauses: int
) -> None:
    """Its client left with others in the same read."""
    _, taking = together(witnessed)
    for _ in range(pauses):
        taking.send(None)
    with pytest.raises(Cancelled):
        taking.throw(Cancelled())
    drive(witnessed.session.leave())
    assert [Outcome.GONE] == outcomes(witnessed)
    assert (0, 0) == (witnessed.books.in_flight, witnessed.books.awaited)


@pytest.mark.parametrize(
    ("before", "event"),
    [
        (0, Body(Message.REQUEST_BODY, CHAT, last=True)),
        (1, Trailers(Message.RESPONSE_TRAILERS)),
        (2, Headers(Message.REQUEST_HEADERS, {}, last=True)),
        (3, Headers(Message.RESPONSE_HEADERS, {}, last=True)),
        (4, Trailers(Message.REQUEST_TRAILERS)),
    ],
)
def test_a_message_out_of_place_ends_the_exchange_as_failed(
    witnessed: Stage, before: int, event: Event
) -> None:
    """The proxy broke the protocol: nothing is sent, nothing stored, and all let go."""
    witnessed.open("all")
    witnessed.receive(*CONVERSATION[:before])
    sent = len(witnessed.peer.commands)
    with pytest.raises(ConversationError):
        witnessed.receive(event)
    witnessed.leave()
    assert sent == len(witnessed.peer.commands)
    assert ([Outcome.FAILED] if before else []) == outcomes(witnessed)
    assert ([Outcome.FAILED] * 2 if before > 1 else []) == Witness.ends
    assert [] == stored(witnessed)


def test_a_bug_of_ours_ends_the_exchange_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the session, for the stream to fail open, and the books are closed all the same."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(OpenAIChat, "read", broken)
    made = stage()
    made.open("default")
    with pytest.raises(ZeroDivisionError):
        made.receive(*request())
    made.leave()
    assert [Outcome.FAILED] == outcomes(made)


# --- Filters that fail ---------------------------------------------------------------------------

SECRET: Final = "the prompt said: my password"


class BreakConfig(Config, frozen=True):
    """Where to fail, and with what."""

    hook: str
    error: Any = None


class Break(Filter[BreakConfig]):
    """Edits everything it can, and fails in one hook."""

    name: ClassVar[str] = "break"
    config_type: ClassVar[type[Config]] = BreakConfig
    edits_stream: ClassVar[bool] = True

    def _fail(self, hook: str) -> None:
        if hook == self.config.hook:
            raise self.config.error or RuntimeError(SECRET)

    async def on_request(self, exchange: Exchange) -> Verdict:
        if self.config.hook == "request":
            exchange.prompt.turns()[0].texts[0].value = "edited"
            exchange.upstream_headers["x-edited"] = "yes"
        self._fail("request")
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        self._fail("response")

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        if self.config.hook == "delta":
            delta.raw = b"edited"
        self._fail("delta")
        return (delta,)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        self._fail("finish")


@pytest.mark.parametrize(
    ("body", "answer"), [(CHAT, (JSON, ANSWER)), (STREAMED_CHAT, (SSE, EVENTS))]
)
@pytest.mark.parametrize("hook", ["request", "response", "delta", "finish"])
def test_a_filter_that_fails_harms_nobody(
    hook: str, body: bytes, answer: tuple[str, bytes]
) -> None:
    """Request and reply go on byte for byte, later filters run, and a note says which failed."""
    made = Stage({"all": [(Break, BreakConfig(hook=hook)), FAQ]})
    made.open("all")
    forward = made.receive(*request(body))[-1]
    assert isinstance(forward, Forward)
    assert forward.body is None
    assert {"x-cache": "MISS", "x-model-quality": "FULL"} == forward.set_headers
    content_type, data = answer
    _, *sent = made.receive(*reply(content_type, data[:50], data[50:]))
    if content_type == SSE:
        assert data == b"".join(getattr(command, "data", b"") for command in sent)
    [facts] = made.books.ended
    assert Outcome.COMPLETE is facts.outcome
    assert "RuntimeError" == facts.notes["break.failed"]
    assert "miss" == facts.notes["cache"]
    assert SECRET not in "\n".join(made.transcript.lines)


def test_a_port_that_fails_is_named_in_the_note() -> None:
    """A filter that lets a `PortError` out fails like any other; the note has the port's words."""
    error = PortError("upstream: no answer in 5 ms")
    made = Stage({"all": [(Break, BreakConfig(hook="request", error=error))]})
    made.open("all")
    made.receive(*request())
    assert {"break.failed": "upstream: no answer in 5 ms"} == made.books.ended[0].notes


class Judge(Filter[Config]):
    """Tells the task, and cuts."""

    name: ClassVar[str] = "judge"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.task = Task("translate", "legal", 0.93)
        exchange.cut("judge.all", 7, 3)
        return CONTINUE


def test_the_books_are_told_what_was_asked_for_and_cut() -> None:
    """Log line, metrics and span are made of it."""
    made = Stage({"all": [(Judge, Config())]})
    made.open("all")
    made.receive(*request())
    [facts] = made.books.ended
    assert (Task("translate", "legal", 0.93), [Cut("judge.all", 7, 3)]) == (facts.task, facts.cuts)


class Relay(Filter[Config]):
    """Answers with what the upstream said by another way."""

    name: ClassVar[str] = "relay"
    config_type: ClassVar[type[Config]] = Config

    async def on_request(self, exchange: Exchange) -> Verdict:
        exchange.pool = "best_effort"
        return Answer(200, {"content-type": JSON, "x-request-id": "r"}, VECTOR, relayed=True)


EMBED: Final = b'{"model":"m","input":"calm"}'
VECTOR: Final = (
    b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}],'
    b'"model":"m","usage":{"prompt_tokens":3,"total_tokens":3}}'
)


def test_what_is_relayed_passes_the_filters_before_as_a_reply() -> None:
    """It is stored, and counted as what the pool said; the client gets its headers."""
    made = Stage({"all": [FAQ, (Relay, Config())]})
    made.open("all")
    (_, respond) = made.receive(*request(EMBED, "openai.embeddings"))
    assert isinstance(respond, Respond)
    assert (200, VECTOR, "r") == (respond.status, respond.body, respond.headers["x-request-id"])
    told = {name: respond.headers[name] for name in ("x-model-quality", "x-forebay-pool")}
    assert {"x-model-quality": "BEST_EFFORT", "x-forebay-pool": "best_effort"} == told
    [facts] = made.books.ended
    assert (Outcome.COMPLETE, "best_effort") == (facts.outcome, facts.pool)
    assert facts.usage is not None
    assert 3 == facts.usage.input
    made.open("all")
    (_, hit) = made.receive(*request(EMBED, "openai.embeddings"))
    assert isinstance(hit, Respond)
    assert ("HIT", VECTOR) == (hit.headers["x-cache"], hit.body)


def test_what_is_relayed_costs_nothing_where_nobody_looks() -> None:
    """No filter asked for the reply: it is not read."""
    made = Stage({"all": [(Relay, Config())]})
    made.open("all")
    (_, respond) = made.receive(*request(EMBED, "openai.embeddings"))
    assert isinstance(respond, Respond)
    assert VECTOR == respond.body
    [facts] = made.books.ended
    assert (Outcome.COMPLETE, None) == (facts.outcome, facts.usage)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_refusal_reaches_the_client_in_its_providers_shape(name: str) -> None:
    """Status and text of a `FilterError`, in the JSON that the client's library reads."""
    error = FilterError(429, "too many requests in 15 s")
    made = Stage({"all": [(Break, BreakConfig(hook="request", error=error))]})
    made.open("all")
    respond = made.receive(*request(BODIES[name], name))[-1]
    assert isinstance(respond, Respond)
    assert 429 == respond.status
    assert DIALECTS[name].error(429, "too many requests in 15 s") == respond.body
    assert "application/json" == respond.headers["content-type"]
    assert "all" == respond.headers["x-forebay-profile"]
    [facts] = made.books.ended
    assert (Outcome.ANSWERED, 429) == (facts.outcome, facts.status)


# --- Traces and tenants --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "header", "expected"),
    [("a", "b", "a"), (None, "b", "b"), (None, None, None)],
)
def test_the_trace_goes_on_from_the_proxys_span(
    metadata: str | None, header: str | None, expected: str | None
) -> None:
    """The proxy's own span is the parent; without one it is the client's."""
    made = stage()
    made.open("default", metadata)
    made.receive(*request(headers={"traceparent": header} if header else None))
    assert [("default", expected)] == made.books.begun


def tenant(path: str = "/", mesh: str = "", **headers: str) -> str:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return tenant_of(RequestHead("POST", path, named), mesh)


def test_the_same_credential_is_the_same_tenant() -> None:
    """Whatever else differs."""
    assert tenant("/a", authorization="Bearer k") == tenant(
        "/b?x=1", authorization="Bearer k", user_agent="curl"
    )


DIFFERENT: Final[Sequence[tuple[str, dict[str, str]]]] = [
    ("/", {}),
    ("/", {"authorization": "k"}),
    ("/", {"authorization": "K"}),
    ("/", {"x_api_key": "k"}),
    ("/", {"x_goog_api_key": "k"}),
    ("/", {"api_key": "k"}),
    ("/?key=k", {}),
    ("/?alt=sse&key=l", {}),
    ("/?key=k", {"authorization": "k"}),
    ("/", {"authorization": "k", "x_api_key": "k"}),
    ("/", {"authorization": "k", "x_api_key": "l"}),
    ("/", {"authorization": "k, x-api-key:k"}),
    ("/?k%65y=k", {}),
    ("/?k%65y=l", {}),
    ("/", {"cookie": "session=k"}),
    ("/", {"proxy_authorization": "k"}),
    ("/", {"ocp_apim_subscription_key": "k"}),
    ("/", {"x_auth_token": "k"}),
    ("/", {"mesh": "x_team", "x_team": "k"}),
    ("/", {"mesh": "x_team", "x_team": "l"}),
    ("/", {"mesh": "x_team", "authorization": "a", "x_team": ""}),
    ("/", {"mesh": "x_team", "authorization": "b"}),
]


def test_tenants_that_differ_in_any_credential_differ() -> None:
    """A shared gateway token beside keys of their own, one key in another header: all differ."""
    tenants = [
        tenant(path, **{**headers, "mesh": headers.get("mesh", "").replace("_", "-")})
        for path, headers in DIFFERENT
    ]
    assert len(DIFFERENT) == len(set(tenants))


def test_a_mesh_that_names_the_tenant_has_the_last_word() -> None:
    """Credentials do not matter then."""
    assert tenant(mesh="x-team", x_team="a", authorization="k") == tenant(
        "/?key=l", mesh="x-team", x_team="a", x_api_key="m"
    )


def test_where_the_mesh_names_no_tenant_credentials_do() -> None:
    """A request that came past the mesh finds nothing of others'."""
    assert tenant(mesh="x-team", authorization="k") == tenant(authorization="k")
    assert tenant(mesh="x-team") == tenant()


def test_no_word_of_a_credential_is_in_the_tenant() -> None:
    """It is part of keys that leave the process: a hash of 16 bytes."""
    found = tenant(authorization="Bearer abcdef")
    assert 32 == len(found)
    assert set(found) <= set("0123456789abcdef")


def test_a_question_mark_less_key_names_nobody() -> None:
    """Only the query counts, and only a member of that name."""
    assert tenant("/") == tenant("/key=k") == tenant("/?monkey=k") == tenant("/?x=key=k")
