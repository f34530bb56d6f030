"""The dialect of Gemini's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from filters.api import Delta, Finish, Parameter
from filters.dialects.gemini_embeddings import GEMINI_EMBEDDINGS
from filters.document import Document, encode
from filters.errors import NotJson
from filters.framing import Event
from tests import golden_cases as golden
from tests.odd_json import odd_json

NAME = GEMINI_EMBEDDINGS.name
PATH = "/v1beta/models/gemini-embedding-001:embedContent"
ODD = odd_json(
    *("content", "requests", "parts", "text", "inlineData", "role", "model", "embedding"),
    *("embeddings", "values", "usageMetadata", "promptTokenCount"),
)


def prompt(body: Any) -> Any:
    return GEMINI_EMBEDDINGS.read(Document(encode(body)), PATH)


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_golden_requests(folder: Path) -> None:
    """Texts, models and media stand where the case says."""
    view = golden.load(folder / "request.view.json")
    asked = golden.read_request(GEMINI_EMBEDDINGS, folder)
    assert view == golden.prompt_view(asked, view["path"])


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_edits_change_their_text_alone(folder: Path) -> None:
    """Everything else keeps its bytes."""
    for expected, actual in golden.edits(GEMINI_EMBEDDINGS, folder):
        assert expected == actual


@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
def test_golden_replies(folder: Path) -> None:
    """Complete where each has values."""
    reply = GEMINI_EMBEDDINGS.read_reply(golden.load(folder / "reply.json"))
    assert golden.load(folder / "reply.view.json") == golden.reply_view(reply)


@pytest.mark.parametrize(
    ("finish", "reply"),
    [
        (Finish.STOP, {"embedding": {"values": [0.5]}}),
        (Finish.STOP, {"embeddings": [{"values": [0.5]}, {"values": [0.25]}]}),
        (None, {"embeddings": [{"values": [0.5]}, {"values": []}]}),
        (None, {"embeddings": []}),
        (None, {"embedding": None}),
        (None, {"error": {"code": 400}}),
        (None, None),
    ],
)
def test_a_reply_is_complete_when_every_embedding_is(finish: Finish | None, reply: Any) -> None:
    """One for each content."""
    assert finish == GEMINI_EMBEDDINGS.read_reply(reply).finish


@pytest.mark.parametrize(
    "body", [{}, {"content": "calm"}, {"requests": {}}, {"content": {}, "requests": []}]
)
def test_a_body_without_content_is_none(body: Any) -> None:
    """Nor is one in which the method alone would tell what is asked."""
    with pytest.raises(NotJson):
        prompt(body)


@given(ODD)
def test_any_json_is_read_or_refused(value: Any) -> None:
    """Whatever stands where a content or an embedding is meant."""
    GEMINI_EMBEDDINGS.read_reply(value)
    for body in ({"content": {"parts": value}}, {"requests": [value]}):
        assert all(text.value for turn in prompt(body).turns() for text in turn.texts) in (0, 1)


def test_embeddings_never_stream() -> None:
    """No content type makes one; what comes all the same passes."""
    asked = prompt({"content": {"parts": [{"text": "a"}]}})
    event = Event(b"data: {}\n\n", "", b"{}")
    assert not asked.stream
    assert GEMINI_EMBEDDINGS.framer("text/event-stream", asked) is None
    assert Delta(event.raw) == GEMINI_EMBEDDINGS.read_event(event)
    assert GEMINI_EMBEDDINGS.assemble([event]) is None
    assert GEMINI_EMBEDDINGS.split(b"{}", ["a"]) is None
    assert GEMINI_EMBEDDINGS.broken(event, "why") is None


def test_there_is_nothing_to_sample_and_nothing_to_say() -> None:
    """No parameter can be set, and no text is an embedding."""
    asked = prompt({"content": {"parts": [{"text": "a"}]}})
    with pytest.raises(KeyError):
        asked.set_parameter(Parameter.TEMPERATURE, 1)
    assert {} == GEMINI_EMBEDDINGS.stamps({}, asked)
    assert GEMINI_EMBEDDINGS.write(GEMINI_EMBEDDINGS.read_reply({}), "n", 1) is None
    assert ("application/json", b'{"embedding":{}}') == GEMINI_EMBEDDINGS.replay(
        {"embedding": {}}, asked
    )
