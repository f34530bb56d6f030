"""The dialect of OpenAI's older text completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.dialects.openai_completions import OPENAI_COMPLETIONS
from filters.document import Document, encode
from filters.framing import Event
from tests import golden_cases as golden

PATH = "/v1/completions"


def prompt(given: Any, **more: Any) -> Any:
    return OPENAI_COMPLETIONS.read(Document(encode({"prompt": given, **more})), PATH)


@pytest.mark.parametrize("given", [[], [1, 2], [[1, 2], [3]], [None]])
def test_prompts_of_token_ids_have_no_texts(given: list[Any]) -> None:
    """Nothing in them can be read without the model's own tokenizer."""
    assert [] == prompt(given).turns()


def test_texts_among_token_ids_keep_their_places() -> None:
    """Each string is a turn of its own."""
    assert [("prompt", 1)] == [turn.path for turn in prompt([[1], "a"]).turns()]


@pytest.mark.parametrize(
    "odd",
    [
        {"error": {"message": "overloaded"}},
        [],
        {"choices": [{"text": "in no choice"}]},
        {"choices": [{"index": 1, "text": "a choice that never ends"}]},
        {"choices": [{"index": 0, "text": "", "logprobs": {"tokens": "no list"}}]},
    ],
)
def test_a_stream_with_a_hole_assembles_to_nothing(odd: Any) -> None:
    """Half an answer must not pass for a whole one, though it ends with `[DONE]`."""
    head = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    tail = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    whole = [Event(b"", "", data) for data in (encode(head), encode(tail), b"[DONE]")]
    assert OPENAI_COMPLETIONS.assemble(whole) is not None
    assert OPENAI_COMPLETIONS.assemble([*whole, Event(b"", "", encode(odd))]) is None
    assert OPENAI_COMPLETIONS.assemble(whole[:-1]) is None


TEXT = st.text(st.characters(codec="utf-8"), max_size=120)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {"text": TEXT, "finish_reason": st.sampled_from(["stop", "length"])},
        optional={"logprobs": st.none() | st.fixed_dictionaries({"tokens": st.lists(TEXT)})},
    ),
    min_size=1,
    max_size=3,
).map(lambda choices: [{"index": index, **choice} for index, choice in enumerate(choices)])


@given(choices=CHOICES, usage=st.none() | st.just({"prompt_tokens": 1}))
def test_a_replayed_completion_assembles_to_itself(
    choices: list[dict[str, Any]], usage: dict[str, int] | None
) -> None:
    """Streaming loses and adds nothing."""
    reply: dict[str, Any] = {"id": "c", "object": "text_completion", "choices": choices}
    reply |= {"usage": usage} if usage else {}
    asked = prompt("", stream=True, stream_options={"include_usage": True})
    content_type, body = OPENAI_COMPLETIONS.replay(reply, asked)
    assert "text/event-stream" == content_type
    stream = golden.frame_sse(body)
    assert reply == json.loads(OPENAI_COMPLETIONS.assemble(stream) or b"null")
    deltas = [OPENAI_COMPLETIONS.read_event(event) for event in stream]
    assert choices[0]["text"] == "".join(delta.text for delta in deltas)
