"""Any provider's stream, cut at any byte and paced in any way, says to its client what it said.

`make fuzz-streams` has ten thousand of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.codec import Body, Command, Forward, Headers, Pass, Stream
from ext_proc.conversation import Message
from filters.api import Delta, Outcome
from filters.dialects import DIALECTS
from filters.document import Document, encode, parse
from filters.pace import PaceConfig, PaceFilter
from tests.exchanges import CHATS, WORDS, answer
from tests.session_scripts import Stage

ARRAY: Final = "gemini.generate, array"
KINDS: Final = (*CHATS, ARRAY)
ANSWERED: Final = Message.RESPONSE_BODY
SHORT_BYTES: Final = 1_500  # a stream that may come byte by byte
# What joins with what stands beside it, what JSON escapes, and what has two to four bytes.
JOINING: Final = 'ab, \r\n"\\你水👩\u200d👧\u0301각🇩🇪िक\ufe0f\u0000\u2028é'
END_S: Final = 2.0  # any tail is shorter


@dataclass(frozen=True, slots=True)
class Said:
    """One event: its bytes, and the text in it."""

    raw: bytes
    text: str = ""


@dataclass(frozen=True, slots=True)
class Speech:
    """A stream, as a provider said it and as it came."""

    said: Sequence[Said]
    chunks: Sequence[tuple[bytes, int]]
    """With the milliseconds that pass behind each."""
    ends: bool
    """The answer in it does."""
    apart: bool
    """The end of the stream comes by itself."""
    rate: float


# --- What providers say --------------------------------------------------------------------------


def _of_choice(choice: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, **choice}], **more}


def _of_candidate(part: Any, **more: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": [part] if part else []}
    return {"candidates": [{"content": content, "index": 0, **more}], "responseId": "r"}


def _text(dialect: str, text: str) -> tuple[str, Any]:
    """Return the event's name and data in which a provider says some text."""
    match dialect:
        case "openai.chat":
            return "", _of_choice({"delta": {"content": text}, "finish_reason": None})
        case "openai.completions":
            return "", _of_choice({"text": text, "finish_reason": None})
        case "openai.responses":
            name = "response.output_text.delta"
            return name, {"type": name, "sequence_number": 7, "item_id": "i", "delta": text}
        case "anthropic.messages":
            name = "content_block_delta"
            return name, {"type": name, "index": 0, "delta": {"type": "text_delta", "text": text}}
    return "", _of_candidate({"text": text})


def _other(dialect: str, text: str) -> tuple[str, Any]:
    """Return a piece of a tool call, or whatever else is no text of the answer."""
    match dialect:
        case "openai.chat":
            call = {"index": 0, "function": {"arguments": text}}
            return "", _of_choice({"delta": {"tool_calls": [call]}})
        case "openai.completions":
            return "", {"id": "c", "choices": [], "usage": None, "note": text}
        case "openai.responses":
            name = "response.function_call_arguments.delta"
            return name, {"type": name, "sequence_number": 8, "item_id": "t", "delta": text}
        case "anthropic.messages":
            name = "content_block_delta"
            delta = {"type": "input_json_delta", "partial_json": text}
            return name, {"type": name, "index": 1, "delta": delta}
    return "", _of_candidate({"functionCall": {"name": "f", "args": {"a": text}}})


def _ends(dialect: str) -> Iterator[tuple[str, Any]]:
    """Return what stands at the end: why the model stopped, and what it cost."""
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    match dialect:
        case "openai.chat":
            yield "", _of_choice({"delta": {}, "finish_reason": "stop"})
            yield "", {"id": "c", "choices": [], "usage": usage}
            yield "", "[DONE]"
        case "openai.completions":
            yield "", _of_choice({"text": "", "finish_reason": "stop"}, usage=usage)
            yield "", "[DONE]"
        case "openai.responses":
            name = "response.completed"
            yield name, {"type": name, "sequence_number": 9, "response": parse(answer(dialect))}
        case "anthropic.messages":
            delta = {"stop_reason": "end_turn", "stop_sequence": None}
            name = "message_delta"
            yield name, {"type": name, "delta": delta, "usage": {"output_tokens": 3}}
            yield "message_stop", {"type": "message_stop"}
        case _:
            yield "", _of_candidate(None, finishReason="STOP")


def _sse(name: str, data: Any, end: bytes, *, escaped: bool, lines: bool) -> bytes:
    """Write an event with such line ends, its data in one line or in two."""
    written = data if isinstance(data, str) else json.dumps(data, ensure_ascii=escaped)
    raw = written.encode()
    if lines and raw[:1] == b"{":
        raw = raw[:1] + end + b"data: " + raw[1:]
    named = b"event: %b%b" % (name.encode(), end) if name else b""
    return b"%bdata: %b%b%b" % (named, raw, end, end)


TEXTS: Final = st.one_of(
    st.text(JOINING, min_size=1, max_size=40),
    st.text(min_size=1, max_size=20),
    st.integers(1, 60).map(lambda count: " word" * count),
)
KIND_OF_EVENT: Final = st.sampled_from(("text", "text", "text", "other", "comment"))


@st.composite
def speeches(draw: Callable[[Any], Any], kind: str) -> Speech:
    """Return a stream of such a provider."""
    dialect = kind.partition(",")[0]
    events = draw(st.lists(st.tuples(KIND_OF_EVENT, TEXTS, st.integers(0, 7)), max_size=10))
    ends = kind == ARRAY or draw(st.booleans()) or draw(st.booleans())
    if kind == ARRAY:
        said = [*_array(dialect, events, draw(st.sampled_from((b",", b",\r\n", b" ,\n"))))]
    else:
        end = draw(st.sampled_from((b"\n", b"\r\n", b"\r")))
        said = [*_events(dialect, events, end)]
        if ends:
            written = [_sse(*one, end, escaped=False, lines=False) for one in _ends(dialect)]
            said += map(Said, written)
        while not ends and said and said[-1].raw[:1] == b":":
            said.pop()  # at the end of a stream that broke off a comment is nothing
        if said and draw(st.booleans()):  # a byte order mark may lead, once
            said[0] = Said(b"\xef\xbb\xbf" + said[0].raw, said[0].text)
    stream = b"".join(one.raw for one in said)
    size = draw(st.sampled_from((0, 0, 1, 2, 7))) if len(stream) <= SHORT_BYTES else 0
    if size:
        cuts = [*range(0, len(stream), size), len(stream)]
        pauses = [draw(st.integers(0, 50))]
    else:
        places = draw(st.lists(st.integers(0, 1 << 20), max_size=12))
        cuts = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
        pauses = draw(st.lists(st.integers(0, 600), min_size=1, max_size=6))
    chunks = [
        (stream[start:stop], pauses[number % len(pauses)])
        for number, (start, stop) in enumerate(itertools.pairwise(cuts))
    ]
    rate = draw(st.sampled_from((5.0, 80.0, 120.0)))
    return Speech(said, chunks, ends, draw(st.booleans()) or not chunks, rate)


Drawn = Sequence[tuple[str, str, int]]


def _events(dialect: str, events: Drawn, end: bytes) -> Iterator[Said]:
    for what, text, how in events:
        if what == "comment":
            yield Said(b": %b%b%b" % (b"waiting" * how, end, end))
            continue
        name, data = _text(dialect, text) if what == "text" else _other(dialect, text)
        raw = _sse(name, data, end, escaped=bool(how & 1), lines=how == 6)
        yield Said(raw, text if what == "text" else "")


def _array(dialect: str, events: Drawn, comma: bytes) -> Iterator[Said]:
    before = b"["
    for what, text, how in events:
        if what != "comment":
            _, data = _text(dialect, text) if what == "text" else _other(dialect, text)
            raw = json.dumps(data, ensure_ascii=bool(how & 1)).encode()
            yield Said(before + raw, text if what == "text" else "")
            before = comma
    for _, data in _ends(dialect):
        yield Said(before + json.dumps(data).encode())
    yield Said(b"\n]")


# --- What comes of it ----------------------------------------------------------------------------


class Paced(Stage):
    """One exchange that paces, up to the head of its reply."""

    def __init__(self, kind: str, config: PaceConfig) -> None:
        super().__init__({"chat": [(PaceFilter, config)]})
        dialect = kind.partition(",")[0]
        words, body = WORDS[dialect], {}
        path = words.stream_path
        body = words.ask("why?")
        if dialect != "gemini.generate":
            body["stream"] = True
        elif kind == ARRAY:
            path = path.partition("?")[0]
        self.view = DIALECTS[dialect]
        asked = encode(body)
        self.prompt = self.view.read(Document(asked), path)
        self.kind = "application/json" if kind == ARRAY else "text/event-stream"
        self.open("chat")
        self.receive(Headers(Message.REQUEST_HEADERS, {":method": "POST", ":path": path}, False))
        self.receive(Body(Message.REQUEST_BODY, asked, last=True))
        head = {":status": "200", "content-type": self.kind}
        self.receive(Headers(Message.RESPONSE_HEADERS, head, last=False))
        self.peer.commands.clear()

    def hear(self, speech: Speech) -> list[Command]:
        """Let a stream come, and time pass; return all that was sent, once it is over."""
        last = len(speech.chunks) - 1
        for number, (data, pause_ms) in enumerate(speech.chunks):
            ends = number == last and not speech.apart
            self.receive(Body(ANSWERED, data, ends))
            self.wheel.turn(pause_ms / 1_000)
        if speech.apart:
            self.receive(Body(ANSWERED, b"", last=True))
        self.wheel.turn(END_S)
        assert (True, []) == (self.peer.closed, self.wheel.alarms)
        self.leave()
        assert [Outcome.COMPLETE] == [facts.outcome for facts in self.books.ended]
        assert not [name for name in self.books.ended[0].notes if name.endswith(".failed")]
        return self.peer.commands

    def read(self, stream: bytes) -> list[Delta]:
        """Read a stream as its client does."""
        framer = self.view.framer(self.kind, self.prompt)
        assert framer is not None
        events = [*framer.feed(stream), *framer.close()]
        return [self.view.read_event(event) for event in events]


def runs(events: Sequence[tuple[bytes, str]]) -> list[bytes | str]:
    """Join texts that follow each other, and what follows each other that is none."""
    joined: list[bytes | str] = []
    for raw, text in events:
        one: bytes | str = text or raw
        if joined and type(joined[-1]) is type(one):
            joined[-1] += one  # type: ignore[operator]  # they are of one type
        else:
            joined.append(one)
    return joined


def unended(joined: list[bytes | str]) -> Iterator[bytes | str]:
    """Leave out the line ends at the end: there may be one more in front of an error."""
    yield from joined[:-1]
    for one in joined[-1:]:
        if not isinstance(one, bytes):
            yield one
        elif cut := one.rstrip(b"\r\n"):
            yield cut


def graphemes(said: Sequence[Said]) -> set[int]:
    """Return where in the text an event may end."""
    ends, at = {0}, 0
    for one in said:
        ends |= {at + found.end() for found in regex.finditer(r"\X", one.text)}
        at += len(one.text)
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_stream_says_the_same_at_any_pace(kind: str, data: st.DataObject) -> None:
    """Whether its events may be cut or chunks stay whole."""
    speech = data.draw(speeches(kind))
    cut_it_says_the_same(kind, speech)
    whole_it_keeps_its_bytes(kind, speech)


def cut_it_says_the_same(kind: str, speech: Speech) -> None:
    """All texts, byte for byte; what is no text whole, in its place; no grapheme in two events."""
    paced = Paced(kind, PaceConfig(chunks="cut", rate=speech.rate))
    commands = paced.hear(speech)
    pieces = [command for command in commands if isinstance(command, Stream)]
    assert len(commands) == len(pieces)
    assert [True] == [piece.last for piece in pieces if piece.last]
    assert pieces[-1].last
    read = paced.read(b"".join(piece.data for piece in pieces))
    expected = runs([(one.raw, one.text) for one in speech.said])
    if not speech.ends:  # the provider's own error stands at the end
        assert read.pop().failed
        expected = [*unended(expected)]
    found = runs([(delta.raw, delta.text) for delta in read])
    assert expected == ([*unended(found)] if not speech.ends else found)
    ends, at = graphemes(speech.said), 0
    for delta in read:
        at += len(delta.text)
        assert at in ends


def whole_it_keeps_its_bytes(kind: str, speech: Speech) -> None:
    """Each chunk is let go once, and nothing is put in its place; but the error at the end is."""
    paced = Paced(kind, PaceConfig(rate=speech.rate))
    commands = paced.hear(speech)
    *chunks, last = commands
    count = len(speech.chunks) + speech.apart
    assert [Pass(ANSWERED)] * (count - 1) == chunks
    if speech.ends:
        assert Pass(ANSWERED) == last
        return
    assert isinstance(last, Forward)
    assert last.body is not None
    tail = b"" if speech.apart else speech.chunks[-1][0]
    assert tail == last.body[: len(tail)]
    stream = b"".join(one.raw for one in speech.said)
    *_, error = paced.read(stream + last.body[len(tail) :])
    assert error.failed
