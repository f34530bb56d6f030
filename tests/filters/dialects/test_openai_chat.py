"""The dialect of OpenAI's chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Finish, Parameter, Prompt, Role
from filters.dialects.openai_chat import OPENAI_CHAT
from filters.document import Document, encode
from filters.framing import Event
from tests import golden_cases as golden
from tests.odd_json import ANY_JSON

PATH = "/v1/chat/completions"


def prompt(**body: Any) -> Prompt:
    return OPENAI_CHAT.read(Document(encode({"messages": [], **body})), PATH)


STREAMING = prompt(stream=True, stream_options={"include_usage": True})


def assemble(*chunks: Any, done: bool = True) -> Any:
    datas = [encode(chunk) for chunk in chunks] + ([b"[DONE]"] if done else [])
    assembled = OPENAI_CHAT.assemble([Event(data, "", data) for data in datas])
    return None if assembled is None else json.loads(assembled)


def chunk(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def call(**members: Any) -> dict[str, Any]:
    return chunk(tool_calls=[members])


# --- The request ---------------------------------------------------------------------------------


def test_parameters_are_set_where_openai_reads_them() -> None:
    """Each under its own name at the top of the body; the newer of two names for tokens."""
    asked = prompt(temperature=1)
    for name, value in (
        (Parameter.TEMPERATURE, 0),
        (Parameter.TOP_P, 0.5),
        (Parameter.MAX_TOKENS, 128),
        (Parameter.SEED, 7),
        (Parameter.CHOICES, 1),
        (Parameter.STOP, ["END"]),
    ):
        asked.set_parameter(name, value)
        assert value == asked.parameter(name)
    expected = {"temperature": 0, "top_p": 0.5, "max_completion_tokens": 128, "seed": 7, "n": 1}
    assert {"messages": [], **expected, "stop": ["END"]} == json.loads(asked.document.render())


def test_a_client_that_names_max_tokens_the_old_way_keeps_its_name() -> None:
    """Older servers know no other."""
    asked = prompt(max_tokens=500)
    asked.set_parameter(Parameter.MAX_TOKENS, 16)
    assert {"messages": [], "max_tokens": 16} == json.loads(asked.document.render())


def test_an_answer_from_a_search_is_stateful() -> None:
    """What the web says today is not in the request."""
    assert prompt(web_search_options={}).stateful
    assert not prompt(web_search_options=None).stateful


def test_a_role_that_is_not_known_speaks_as_the_user() -> None:
    """Its text is seen, and no rule for system prompts or tools holds for it."""
    turn = prompt(messages=[{"role": "critic", "content": "Hm."}]).turns()[0]
    assert (Role.USER, "Hm.") == (turn.role, turn.texts[0].value)


def test_an_unknown_part_counts_as_media_and_a_bare_string_as_text() -> None:
    """What is not known to be text must not be taken for nothing."""
    turn = prompt(messages=[{"role": "user", "content": ["a", {"type": "hologram"}, 1]}]).turns()[0]
    assert (["a"], True) == ([text.value for text in turn.texts], turn.has_media)


def test_what_is_no_message_is_no_turn() -> None:
    """The others keep their places."""
    turns = prompt(messages=[None, "x", {"role": "user", "content": "a"}]).turns()
    assert [("messages", 2)] == [turn.path for turn in turns]


# --- The reply -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.LENGTH),
        ("tool_calls", Finish.TOOL),
        ("function_call", Finish.TOOL),
        ("content_filter", Finish.FILTERED),
        ("abort", Finish.OTHER),
        (None, None),
        (7, None),
    ],
)
def test_a_finish_reason_is_read_by_its_word(reason: object, finish: Finish | None) -> None:
    """A word not known says that it ended, and nothing more."""
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": reason}]}
    assert finish == OPENAI_CHAT.read_reply(reply).finish


def test_a_reply_is_unfinished_while_any_choice_is() -> None:
    """One of two answers that ended does not make two."""
    ended = {"message": {"content": "a"}, "finish_reason": "stop"}
    assert OPENAI_CHAT.read_reply({"choices": [ended, {"message": {}}]}).finish is None
    assert OPENAI_CHAT.read_reply({"choices": []}).finish is None
    assert Finish.STOP is OPENAI_CHAT.read_reply({"choices": [ended, ended]}).finish


def test_the_parts_of_a_content_array_are_one_text() -> None:
    """Some servers answer in parts."""
    parts = [{"type": "text", "text": "a"}, {"type": "thinking"}, {"type": "text", "text": "b"}]
    assert "ab" == OPENAI_CHAT.read_reply({"choices": [{"message": {"content": parts}}]}).text


# --- Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"error": {"message": "overloaded", "type": "server_error"}},
        "no object",
        {"choices": [{"delta": {"content": "in no choice"}}]},
        chunk(audio={"data": "UklGRg=="}),
        chunk(member_of_tomorrow=["more"]),
        chunk(tool_calls=["no call"]),
        call(function={"arguments": "of no call"}),
        call(index=0, function={"arguments": ["no string"]}),
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": "no list"}}]},
        chunk(index=1, content="a choice that never ends"),
        chunk("stop", index=2, content="a choice without the one before"),
    ],
)
def test_a_stream_with_a_hole_assembles_to_nothing(odd: Any) -> None:
    """Half an answer must not pass for a whole one, though it ends with `[DONE]`."""
    head, tail = chunk(role="assistant", content="a"), chunk("stop")
    assert assemble(head, tail) is not None
    assert assemble(head, odd, tail) is None
    assert assemble(head, tail, odd) is None


def test_an_error_event_and_what_follows_the_end_assemble_to_nothing() -> None:
    """Whatever the data says; a comment behind the end says nothing."""
    data = encode(chunk("stop", content="a"))
    whole = [Event(b"", "", data), Event(b"", "", b"[DONE]")]
    assert OPENAI_CHAT.assemble([*whole, Event(b": bye")]) is not None
    assert OPENAI_CHAT.assemble([Event(b"", "error", b'{"message":"x"}'), *whole]) is None
    assert OPENAI_CHAT.assemble([*whole, Event(b"", "", data)]) is None


def test_a_stream_without_its_last_word_assembles_to_nothing() -> None:
    """Neither a finish reason without `[DONE]` nor the reverse will do."""
    assert assemble(chunk(content="a"), chunk("stop"), done=False) is None
    assert assemble(chunk(content="a")) is None
    assert assemble() is None


def test_tool_calls_that_interleave_stay_apart() -> None:
    """The index says where a part belongs, not the order of chunks."""
    whole = assemble(
        call(index=1, id="b", type="function", function={"name": "g", "arguments": ""}),
        call(index=0, id="a", type="function", function={"name": "f", "arguments": "{"}),
        call(index=1, function={"arguments": "[]"}),
        call(index=0, function={"arguments": "}"}),
        chunk("tool_calls"),
    )
    expected = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[]"}},
    ]
    assert expected == whole["choices"][0]["message"]["tool_calls"]


def test_whole_tool_calls_without_an_index_keep_their_order() -> None:
    """Some servers send each call in one chunk and leave its index out."""
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    whole = assemble(call(**calls[0]), call(**calls[1]), chunk("tool_calls"))
    assert calls == whole["choices"][0]["message"]["tool_calls"]


def test_an_older_function_call_is_put_together() -> None:
    """Its arguments grow like a tool's."""
    whole = assemble(
        chunk(function_call={"name": "f", "arguments": ""}),
        chunk(function_call={"arguments": "{}"}),
        chunk("function_call"),
    )
    assert {"name": "f", "arguments": "{}"} == whole["choices"][0]["message"]["function_call"]


def test_log_probabilities_are_joined_token_by_token() -> None:
    """Every chunk brings those of its own tokens."""

    def told(*tokens: str) -> dict[str, Any]:
        logprobs = {"content": [{"token": token} for token in tokens], "refusal": None}
        return {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": logprobs}]}

    whole = assemble(told("a", "b"), chunk(content=""), told("c"), chunk("stop"))
    expected = {"content": [{"token": "a"}, {"token": "b"}, {"token": "c"}], "refusal": None}
    assert expected == whole["choices"][0]["logprobs"]


def test_of_running_usages_the_last_counts() -> None:
    """A server may send the counts so far with every chunk, as vLLM can."""
    running = [{**chunk(content="a"), "usage": {"completion_tokens": n}} for n in (1, 2)]
    whole = assemble(*running, {**chunk("stop"), "usage": None})
    assert {"completion_tokens": 2} == whole["usage"]


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
def test_usage_is_streamed_only_when_asked_for(options: dict[str, Any]) -> None:
    """Clients that did not ask may not expect a chunk without choices."""
    reply = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": {}}
    _, plain = OPENAI_CHAT.replay(reply, prompt(stream=True, **options))
    assert b"usage" not in plain
    assert b'"choices":[]' not in plain
    _, asked = OPENAI_CHAT.replay(reply, STREAMING)
    datas = [json.loads(event.data) for event in golden.frame_sse(asked)[:-1]]
    assert [{}] == [data["usage"] for data in datas if not data["choices"]]
    assert {None} == {data["usage"] for data in datas if data["choices"]}


TEXT = st.text(st.characters(codec="utf-8"), max_size=120)
CALL = st.builds(
    lambda name, given: {
        "id": "call",
        "type": "function",
        "function": {"name": name, "arguments": given},
    },
    TEXT,
    TEXT,
) | st.builds(
    lambda given: {"id": "call", "type": "custom", "custom": {"name": "f", "input": given}}, TEXT
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXT},
    optional={
        "refusal": st.none() | TEXT.filter(bool),
        "reasoning_content": TEXT.filter(bool),
        "tool_calls": st.lists(CALL, min_size=1, max_size=3),
        "function_call": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
        "annotations": st.lists(ANY_JSON, max_size=2),
    },
)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {"message": MESSAGE, "finish_reason": st.sampled_from(["stop", "tool_calls"])},
        optional={
            "logprobs": st.none() | st.fixed_dictionaries({"content": st.lists(ANY_JSON)}),
            "stop_reason": st.none() | st.integers(),
        },
    ),
    min_size=1,
    max_size=3,
).map(lambda choices: [{"index": index, **choice} for index, choice in enumerate(choices)])
REPLY = st.fixed_dictionaries(
    {"id": TEXT, "object": st.just("chat.completion"), "choices": CHOICES},
    optional={
        "usage": st.fixed_dictionaries({"prompt_tokens": st.integers(0, 9)}),
        "system_fingerprint": st.none() | TEXT,
    },
)


@pytest.mark.slow
@given(reply=REPLY)
def test_a_replayed_completion_assembles_to_itself(reply: dict[str, Any]) -> None:
    """Whatever its choices say or call: streaming it loses and adds nothing."""
    content_type, body = OPENAI_CHAT.replay(reply, STREAMING)
    assert "text/event-stream" == content_type
    stream = golden.frame_sse(body)
    assert reply == json.loads(OPENAI_CHAT.assemble(stream) or b"null")
    deltas = [OPENAI_CHAT.read_event(event) for event in stream]
    assert (reply["choices"][0]["message"]["content"] or "") == "".join(d.text for d in deltas)
    assert deltas[-1].done
