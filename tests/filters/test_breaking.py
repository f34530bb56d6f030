"""What the reader of a stream is told that ended before its answer did."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Dialect
from filters.breaking import WHY, Ending, ending, is_clients_fault
from filters.dialects import DIALECTS
from filters.document import Document, parse
from filters.framing import Event, Framer, JsonArrayFramer, SseFramer
from tests.exchanges import answer
from tests.odd_json import ANY_JSON

PATHS: Final = {
    "openai.chat": "/v1/chat/completions",
    "openai.completions": "/v1/completions",
    "openai.responses": "/v1/responses",
    "anthropic.messages": "/v1/messages",
    "gemini.generate": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
ARRAY: Final = "/v1beta/models/m:streamGenerateContent"
STREAMS: Final = [*PATHS.items(), ("gemini.generate", ARRAY)]
FIRST: Final = b'data: {"candidates":[{"content":{"parts":[{"text":"The"}]},"index":0}]}\n\n'
TEXT: Final = "The water has come to rest, and it will not move until the wind is back."


def asked(name: str) -> bytes:
    """Return a request for a stream."""
    if name == "gemini.generate":
        return b'{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}'
    if name == "openai.responses":
        return b'{"model":"m","stream":true,"input":"hi"}'
    if name == "openai.completions":
        return b'{"model":"m","stream":true,"prompt":"hi"}'
    return b'{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'


def stream_of(name: str, path: str) -> tuple[Dialect, Framer, bytes]:
    """Return a dialect, a framer, and the stream that they are for."""
    dialect = DIALECTS[name]
    prompt = dialect.read(Document(asked(name)), path)
    kind, stream = dialect.replay(parse(answer(name, TEXT)), prompt)
    framer = dialect.framer(kind, prompt)
    assert framer is not None
    return dialect, framer, stream


def settled(dialect: Dialect, events: list[Event]) -> bool:
    """Tell whether an answer ended in these events, as a session does."""
    deltas = [dialect.read_event(event) for event in events]
    return any(delta.done or delta.finish is not None or delta.failed for delta in deltas)


def end(stream: tuple[Dialect, Framer, bytes], cut: int, *, sent: bool) -> tuple[bytes, Ending]:
    """Let a stream end at `cut`; return what the client has in the end, and how it was mended."""
    dialect, framer, data = stream
    events = framer.feed(data[:cut])
    told = b"".join(event.raw for event in events)
    if settled(dialect, events):
        return told + b"".join(event.raw for event in framer.close()), Ending(())
    last = next((event for event in reversed(events) if event.data), None)
    made = ending(dialect, framer, last, sent=sent)
    return told + b"".join(e.raw for e in (*made.rest, *filter(None, (made.error,)))), made


def errors_in(name: str, path: str, data: bytes) -> list[Any]:
    """Return what a reader finds that is an error, of events that are all JSON."""
    if path == ARRAY:
        elements = json.loads(data)
    else:
        events = SseFramer().feed(data)
        elements = [
            json.loads(event.data) for event in events if event.data not in (b"", b"[DONE]")
        ]
    found = [one for one in elements if one.get("error") or one.get("type") == "error"]
    assert found in ([], elements[-1:])
    return found


@pytest.mark.parametrize(("name", "path"), STREAMS)
@pytest.mark.slow
def test_a_stream_that_ends_anywhere_ends_in_an_answer_or_in_an_error(name: str, path: str) -> None:
    """Never in half an event, and never in both; every event and the whole can be read."""
    _, _, data = stream_of(name, path)
    ways = set()
    for cut in range(len(data) + 1):
        got, made = end(stream_of(name, path), cut, sent=False)
        if made.broken:
            (error,) = errors_in(name, path, got)
            assert WHY in json.dumps(error)
            assert settled(DIALECTS[name], [made.error] if made.error else [])
        elif path != ARRAY:
            assert [] == errors_in(name, path, got)
        ways.add(made.broken)
    assert {True, False} == ways


@pytest.mark.parametrize(("name", "path"), STREAMS)
@given(data=st.data())
def test_nothing_is_taken_back_of_what_the_client_has(
    name: str, path: str, data: st.DataObject
) -> None:
    """Where bytes pass on as they come, the error stands behind all of them."""
    stream = stream_of(name, path)
    cut = data.draw(st.integers(0, len(stream[2])))
    got, made = end(stream, cut, sent=True)
    error = made.error.raw if made.error else b""
    assert stream[2][:cut] + error == got


OPENAIS: Final = (
    b'data: {"error":{"message":"%b","type":"server_error","param":null,"code":null}}\n\n'
)
ERRORS: Final = {
    "openai.chat": OPENAIS,
    "openai.completions": OPENAIS,
    "openai.responses": (
        b'event: error\ndata: {"type":"error","code":"server_error","message":"%b",'
        b'"param":null,"sequence_number":1}\n\n'
    ),
    "anthropic.messages": (
        b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"%b"}}\n\n'
    ),
    "gemini.generate": b'data: {"error":{"code":502,"message":"%b","status":"UNAVAILABLE"}}\n\n',
}


@pytest.mark.parametrize(("name", "path"), PATHS.items())
def test_the_error_is_the_providers_own(name: str, path: str) -> None:
    """Behind the first event that came whole; nothing of the half of the next remains."""
    dialect, framer, data = stream_of(name, path)
    first = FIRST if name == "gemini.generate" else framer.feed(data)[0].raw
    got, _ = end((dialect, SseFramer(), first + b"data: {"), len(first) + 7, sent=False)
    assert first + ERRORS[name] % WHY.encode() == got


@pytest.mark.parametrize(
    ("came", "got"),
    [
        (b"", b"[%b]"),
        (b"[", b"[%b]"),
        (b'[{"candidates":[', b"[%b]"),
        (b'[{"candidates":[]}', b'[{"candidates":[]},%b]'),
        (b'[{"candidates":[]},\r\n', b'[{"candidates":[]},%b]'),
        (b'[{"candidates":[]},\n{"candid', b'[{"candidates":[]},%b]'),
    ],
)
def test_the_error_is_the_last_element_of_an_array(came: bytes, got: bytes) -> None:
    """Wherever the array ended, what the client has is one."""
    error = b'{"error":{"code":502,"message":"%b","status":"UNAVAILABLE"}}' % WHY.encode()
    stream = (DIALECTS["gemini.generate"], JsonArrayFramer(), came)
    assert got % error == end(stream, len(came), sent=False)[0]


@pytest.mark.parametrize(
    ("came", "added"),
    [
        (b"[", b"%b]"),
        (b'[{"candidates":[]},\r\n', b"%b]"),
        (b'[{"candidates":[]}\r\n', b",%b]"),
        (b'[{"candidates":[]},{"candid', b""),
    ],
)
def test_behind_half_an_element_nothing_can_follow(came: bytes, added: bytes) -> None:
    """Where the client has that half already: what it has is no array, whatever is added."""
    error = b'{"error":{"code":502,"message":"%b","status":"UNAVAILABLE"}}' % WHY.encode()
    stream = (DIALECTS["gemini.generate"], JsonArrayFramer(), came)
    expected = came + (added % error if added else b"")
    assert expected == end(stream, len(came), sent=True)[0]


@pytest.mark.parametrize(("name", "path"), STREAMS)
def test_a_stream_without_any_event_is_an_error(name: str, path: str) -> None:
    """A head and nothing behind it is no answer."""
    got, made = end(stream_of(name, path), 0, sent=False)
    assert made.broken
    assert 1 == len(errors_in(name, path, got))


@pytest.mark.parametrize(("name", "path"), PATHS.items())
@pytest.mark.parametrize("foreign", [b'data: {"tokens":[1]}\n\n', b"data: hello\n\n"])
def test_a_stream_of_another_kind_ends_as_it_does(name: str, path: str, foreign: bytes) -> None:
    """Whether that was its end is not known here; it is counted, and nothing is put behind it."""
    dialect, framer, _ = stream_of(name, path)
    got, made = end((dialect, framer, foreign), len(foreign), sent=False)
    assert (foreign, True) == (got, made.broken)


def test_a_stream_that_was_given_up_is_not_called_broken() -> None:
    """Nobody read it to its end."""
    data = b"data: " + b"x" * 100
    framer = SseFramer(largest=50)
    assert [Event(data)] == framer.feed(data)
    assert Ending([]) == ending(DIALECTS["openai.chat"], framer, None, sent=False)


def test_done_without_its_empty_line_is_the_end() -> None:
    """Also where nothing said before why the model stopped."""
    framer = SseFramer()
    assert [] == framer.feed(b"data: [DONE]")
    made = ending(DIALECTS["openai.chat"], framer, None, sent=False)
    assert ([b"data: [DONE]"], None, False) == (
        [event.raw for event in made.rest],
        made.error,
        made.broken,
    )


def test_an_array_that_was_closed_takes_no_more() -> None:
    """An element behind it would make the whole unreadable: it is counted only."""
    framer = JsonArrayFramer()
    events = framer.feed(b'[{"candidates":[]}]')
    made = ending(DIALECTS["gemini.generate"], framer, events[0], sent=False)
    assert (None, True) == (made.error, made.broken)


def test_a_last_event_that_lacks_only_its_end_is_kept() -> None:
    """Its text is part of the answer; the error follows it as an event of its own."""
    framer = SseFramer()
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}'
    assert [] == framer.feed(chunk)
    made = ending(DIALECTS["openai.chat"], framer, None, sent=False)
    assert made.error is not None
    events = SseFramer().feed(b"".join(e.raw for e in made.rest) + made.error.raw)
    assert [chunk[6:], made.error.data] == [event.data for event in events if event.data]


@pytest.mark.parametrize("number", [b'"sequence_number":41,', b""])
def test_the_error_of_a_response_has_the_next_number(number: bytes) -> None:
    """Where events are numbered; not every server does so."""
    last = Event(b"", "", b'{%b"type":"response.output_text.delta","delta":"a"}' % number)
    told = DIALECTS["openai.responses"].broken(last, WHY)
    assert told is not None
    assert (42 if number else None) == json.loads(told[1]).get("sequence_number")


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("openai.chat", Event(b"", "", b'{"error":{"message":"x"}}')),
        ("openai.chat", Event(b"", "error", b'{"message":"x"}')),
        ("openai.completions", Event(b"", "", b'{"error":{"message":"x"}}')),
        ("openai.responses", Event(b"", "error", b'{"type":"error"}')),
        ("openai.responses", Event(b"", "", b'{"type":"response.failed","response":{}}')),
        ("anthropic.messages", Event(b"", "error", b'{"type":"error","error":{}}')),
        ("gemini.generate", Event(b"", "", b'{"error":{"code":500}}')),
    ],
)
def test_a_providers_own_error_event_is_known(name: str, event: Event) -> None:
    """It ends the answer as failed: no second error is put behind it."""
    delta = DIALECTS[name].read_event(event)
    assert (True, False, None) == (delta.failed, delta.done, delta.finish)


@pytest.mark.parametrize(
    ("clients", "data"),
    [
        (True, b'{"error":{"message":"x","type":"BadRequestError","code":400}}'),
        (True, b'{"error":{"message":"x","code":"429"}}'),
        (True, b'{"error":{"message":"x","type":"invalid_request_error","code":null}}'),
        (True, b'{"error":{"message":"x","code":"context_length_exceeded"}}'),
        (True, b'{"object":"error","message":"x","code":400}'),
        (True, b'{"type":"error","code":"rate_limit_exceeded","message":"x"}'),
        (True, b'{"type":"response.failed","response":{"error":{"code":"invalid_prompt"}}}'),
        (True, b'{"type":"response.failed","response":{"error":{"code":"invalid_image_url"}}}'),
        (True, b'{"type":"error","error":{"type":"invalid_request_error"}}'),
        (True, b'{"type":"error","error":{"type":"rate_limit_error"}}'),
        (True, b'{"error":{"code":400,"status":"INVALID_ARGUMENT"}}'),
        (True, b'{"error":{"status":"RESOURCE_EXHAUSTED"}}'),
        (False, b'{"error":{"code":503,"status":"UNAVAILABLE"}}'),
        (False, b'{"error":{"code":500,"type":"invalid_request_error"}}'),
        (False, b'{"error":{"message":"x","type":"server_error","code":null}}'),
        (False, b'{"error":{"code":true,"type":["rate_limit_error"]}}'),
        (False, b'{"error":{"code":"4000"}}'),
        (False, b'{"error":"overloaded"}'),
        (False, b'{"type":"error","error":{"type":"overloaded_error"}}'),
        (False, b'{"type":"error","error":{"type":"api_error"}}'),
        (False, b'{"type":"response.failed","response":{"error":{"code":"server_error"}}}'),
        (False, b'{"type":"response.failed","response":{"error":null}}'),
        (False, b'{"type":"error"}'),
        (False, b"[400]"),
        (False, b"{"),
        (False, b""),
    ],
)
def test_an_error_below_500_is_the_clients(clients: bool, data: bytes) -> None:
    """What the error names decides; one that names nothing known is the upstream's."""
    assert clients == is_clients_fault(data)


@given(ANY_JSON)
def test_whatever_an_error_is_somebody_is_to_blame(odd: Any) -> None:
    """No shape of it makes the reader stumble."""
    for error in (odd, {"error": odd}, {"error": {"code": odd, "type": odd}}, {"response": odd}):
        assert is_clients_fault(json.dumps(error).encode()) in (True, False)


def test_embeddings_never_stream() -> None:
    """There is no error event for them."""
    assert None is DIALECTS["openai.embeddings"].broken(None, WHY)
