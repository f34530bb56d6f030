"""One event becomes several that the provider's own client reads as the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawContentBlockDeltaEvent
from google.genai.types import GenerateContentResponse
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseTextDeltaEvent

from filters.dialects import DIALECTS
from filters.framing import JsonArrayFramer, SseFramer
from filters.pacing import cut


def chat(text: str) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1e3,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": text},
                "logprobs": {"content": []},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
        "extra": 12345678901234567890,
    }


def completions(text: str) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    return {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }


def responses(text: str) -> dict[str, Any]:
    return {
        "type": "response.output_text.delta",
        "item_id": "i",
        "output_index": 0,
        "content_index": 0,
        "sequence_number": 7,
        "delta": text,
        "logprobs": [],
    }


def anthropic(text: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def gemini(text: str) -> dict[str, Any]:
    part = {"text": text, "thoughtSignature": "c2ln"}
    return {
        "candidates": [
            {"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "totalTokenCount": 3},
        "modelVersion": "m",
        "responseId": "r",
    }


SAID: dict[str, Any] = {
    "openai.chat": (chat, ChatCompletionChunk.model_validate),
    # As the client itself does: a chunk's `finish_reason` may be null, whatever the model says.
    "openai.completions": (completions, lambda data: Completion.construct(**data)),
    "openai.responses": (responses, ResponseTextDeltaEvent.model_validate),
    "anthropic.messages": (anthropic, RawContentBlockDeltaEvent.model_validate),
    "gemini.generate": (gemini, GenerateContentResponse.model_validate),
}


def sse(data: Any, *, head: bytes = b"", end: bytes = b"\n\n") -> bytes:
    return b"%bdata: %b%b" % (head, json.dumps(data, ensure_ascii=False).encode(), end)


def read(dialect: str, stream: bytes, *, array: bool = False) -> list[Any]:
    framer = JsonArrayFramer() if array else SseFramer()
    return [*framer.feed(stream), *framer.close()]


@pytest.mark.parametrize("dialect", SAID)
@pytest.mark.parametrize("array", [False, True])
def test_the_official_client_reads_every_piece(dialect: str, array: bool) -> None:
    """Their texts join to the text; the last alone says that it ended and what it cost."""
    says, client_reads = SAID[dialect]
    view = DIALECTS[dialect]
    parts = ["one ", "two 水", " three"]
    text = "".join(parts)
    raw = b",\r\n" + json.dumps(says(text)).encode() if array else sse(says(text))
    pieces = view.split(raw, parts)
    assert pieces is not None
    stream = b"[{}" + b"".join(pieces) + b"]" if array else b"".join(pieces)
    events = read(dialect, stream, array=array)[1:-1] if array else read(dialect, stream)
    for event in events:
        client_reads(json.loads(event.data))
    deltas = [view.read_event(event) for event in events]
    assert parts == [delta.text for delta in deltas]
    whole = view.read_event(read(dialect, sse(says(text)))[0])
    assert (whole.finish, whole.usage) == (deltas[-1].finish, deltas[-1].usage)
    assert [(None, None)] * 2 == [(delta.finish, delta.usage) for delta in deltas[:-1]]


def test_what_must_not_be_said_twice_is_said_once() -> None:
    """The role first, what else stands there last, numbers with all their digits."""
    pieces = DIALECTS["openai.chat"].split(sse(chat("ab")), ["a", "b"])
    assert pieces is not None
    first, last = (json.loads(piece[6:]) for piece in pieces)
    assert {"role": "assistant", "content": "a"} == first["choices"][0]["delta"]
    assert {"content": "b"} == last["choices"][0]["delta"]
    assert (False, 12345678901234567890) == ("extra" in first, last["extra"])
    assert first["id"] == last["id"]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_each_piece_is_framed_as_the_event_was(end: bytes) -> None:
    """With its name, id and line ends; a byte order mark comes once."""
    head = b"\xef\xbb\xbfevent: content_block_delta\nid: 7\n".replace(b"\n", end[: len(end) // 2])
    pieces = DIALECTS["anthropic.messages"].split(sse(anthropic("ab"), head=head, end=end), "ab")
    assert pieces is not None
    assert b"\xef\xbb\xbf" == pieces[0][:3]
    events = read("anthropic.messages", b"".join(pieces))
    assert ["content_block_delta"] * 2 == [event.name for event in events]


@pytest.mark.parametrize(
    "raw",
    [
        b": comment\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices": []}\n\n',
        b"data: {broken}\n\n",
        b'data: {"choices":\ndata: [{"delta": {"content": "ab"}}]}\n\n',
        sse({"choices": [{"delta": {"content": "ab"}}, {"delta": {"content": "c"}}]}),
        sse({"choices": [{"delta": {"content": "other"}}]}),
        sse({"choices": {"0": {"delta": {"content": "ab"}}}}),
        sse({"choices": [{"delta": {"content": ["ab"]}}]}),
        b'data: {"choices": [{"delta": {"content": "a\\ud800b"}}]}\n\n',
    ],
)
def test_what_cannot_be_split_is_not(raw: bytes) -> None:
    """It goes whole."""
    assert None is DIALECTS["openai.chat"].split(raw, ["a", "b"])


@pytest.mark.parametrize(
    "event",
    [
        {"id": "c", "choices": [{"delta": {"content": "ab"}}]},
        {"id": "ab", "choices": [{"delta": {"content": "ab"}}]},
        {"ab": 1, "id": "c", "choices": [{"delta": {"content": "ab"}}]},
        {"id": '"ab"', "choices": [{"delta": {"content": "ab"}}]},
        {"choices": [{"delta": {"content": "ab", "role": "ab"}}], "id": "\0the text"},
        {"id": "i" * 4_096, "choices": [{"delta": {"content": "ab"}}]},
    ],
)
def test_events_alike_but_for_their_text_are_split_alike(event: dict[str, Any]) -> None:
    """Whatever else in them reads like the text; written plainly or in escapes."""
    split = DIALECTS["openai.chat"].split
    delta = event["choices"][0]["delta"]
    for said in (["a", "b"], ["c", "水", "d"], ["a", "b"]):
        delta["content"] = "".join(said)
        for plain in (False, True):
            raw = b"data: %b\n\n" % json.dumps(event, ensure_ascii=not plain).encode()
            pieces = [json.loads(piece[6:]) for piece in split(raw, said) or ()]
            texts = [one["choices"][0]["delta"].pop("content") for one in pieces]
            assert said == texts
            assert [event.get("id")] * len(said) == [one.get("id") for one in pieces]
            assert delta.get("role") == pieces[0]["choices"][0]["delta"].get("role")


def test_of_two_texts_of_one_name_the_last_is_split() -> None:
    """As whoever reads the event has it."""
    raw = b'data: {"choices": [{"delta": {"content": "ab", "content": "cd"}}]}\n\n'
    split = DIALECTS["openai.chat"].split
    assert (None, None) == (split(raw, ["a", "b"]), split(raw, ["a", "b"]))
    assert 2 == len(split(raw, ["c", "d"]) or ())


def test_what_would_grow_beyond_all_bounds_is_not_split() -> None:
    """A long id stands in each piece: eighty kilobytes would become eighty megabytes."""
    text = "word " * 4_000
    raw = sse(chat(text) | {"id": "c" * 60_000})
    assert None is DIALECTS["openai.chat"].split(raw, cut(text, 4_000, 3))
    fits = DIALECTS["openai.chat"].split(sse(chat(text)), cut(text, 4_000, 3))
    assert fits is not None


def test_embeddings_are_no_text() -> None:
    """Nothing of them is split."""
    assert None is DIALECTS["openai.embeddings"].split(sse(chat("ab")), ["a", "b"])


@pytest.mark.slow
@pytest.mark.parametrize("dialect", SAID)
@given(text=st.text(min_size=2, max_size=80), tokens=st.integers(2, 40))
def test_any_text_is_joined_again(dialect: str, text: str, tokens: int) -> None:
    """Escapes, controls, what is above the first plane: byte for byte."""
    says, client_reads = SAID[dialect]
    parts = cut(text, tokens, 2)
    pieces = DIALECTS[dialect].split(sse(says(text)), parts)
    if len(parts) < 2:
        assert None is pieces
        return
    assert pieces is not None
    events = read(dialect, b"".join(pieces))
    for event in events:
        client_reads(json.loads(event.data))
    said = "".join(DIALECTS[dialect].read_event(event).text for event in events)
    assert text.encode() == said.encode()
