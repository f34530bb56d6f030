"""The dialect of OpenAI's responses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Finish, Parameter, Prompt, Role
from filters.dialects.openai_responses import OPENAI_RESPONSES
from filters.document import Document, encode
from filters.framing import Event
from tests import golden_cases as golden
from tests.odd_json import ANY_JSON

PATH = "/v1/responses"


def prompt(**body: Any) -> Prompt:
    return OPENAI_RESPONSES.read(Document(encode({"input": "", **body})), PATH)


STREAMING = prompt(stream=True)


# --- The request ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stateful", "more"),
    [
        (False, {"store": True}),
        (False, {"previous_response_id": None, "conversation": None, "prompt": None}),
        (True, {"previous_response_id": "resp_1"}),
        (True, {"conversation": "conv_1"}),
        (True, {"conversation": {"id": "conv_1"}}),
        (True, {"prompt": {"id": "pmpt_1"}}),
        (False, {"background": False}),
        (True, {"background": True}),
        (False, {"input": [{"role": "user", "content": "a"}]}),
        (True, {"input": [{"type": "item_reference", "id": "msg_1"}]}),
        (False, {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}),
        (True, {"tools": [{"type": "function", "name": "f"}, {"type": "file_search"}]}),
        (True, {"tools": [{"type": "mcp", "server_label": "s"}]}),
        (True, {"tools": [{"type": "a_tool_of_tomorrow"}]}),
    ],
)
def test_state_at_the_provider_makes_a_request_stateful(
    stateful: bool, more: dict[str, Any]
) -> None:
    """Earlier turns, stored prompts, a reply still to come, or a tool that runs there."""
    assert stateful == prompt(**more).stateful


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_input_may_be_missing_when_it_is_kept_elsewhere(name: str) -> None:
    """A stored prompt, say, can be all there is."""
    assert [] == prompt(**{"input": None, name: "id"}).turns()


def test_parameters_are_set_where_openai_reads_them() -> None:
    """Tokens have a name of their own here."""
    asked = prompt()
    asked.set_parameter(Parameter.TEMPERATURE, 0)
    asked.set_parameter(Parameter.TOP_P, 0.5)
    asked.set_parameter(Parameter.MAX_TOKENS, 128)
    expected = {"input": "", "temperature": 0, "top_p": 0.5, "max_output_tokens": 128}
    assert expected == json.loads(asked.document.render())


@pytest.mark.parametrize("name", [Parameter.SEED, Parameter.CHOICES, Parameter.STOP])
def test_a_parameter_that_responses_lack_cannot_be_set(name: Parameter) -> None:
    """The body stays as it is."""
    asked = prompt()
    assert asked.parameter(name) is None
    with pytest.raises(KeyError):
        asked.set_parameter(name, 1)
    assert not asked.document.changed


@pytest.mark.parametrize(
    ("item", "role", "has_tool"),
    [
        ({"type": "web_search_call"}, Role.ASSISTANT, True),
        ({"type": "mcp_list_tools"}, Role.ASSISTANT, True),
        ({"type": "computer_call_output", "output": {"type": "x"}}, Role.TOOL, True),
        ({"type": "compaction", "encrypted_content": "g"}, Role.ASSISTANT, False),
        ({"type": "item_reference", "id": "i"}, Role.ASSISTANT, False),
        ({"type": "message", "role": "critic"}, Role.USER, False),
    ],
)
def test_an_item_without_text_is_a_turn_all_the_same(
    item: dict[str, Any], role: Role, has_tool: bool
) -> None:
    """So that whoever cuts turns sees that something stands there."""
    turn = prompt(input=[item]).turns()[0]
    assert (role, (), has_tool) == (turn.role, turn.texts, turn.has_tool)


# --- The reply -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "response"),
    [
        (Finish.STOP, {"status": "completed"}),
        (Finish.TOOL, {"status": "completed", "output": [{"type": "function_call"}]}),
        (Finish.TOOL, {"status": "completed", "output": [{"type": "mcp_approval_request"}]}),
        (Finish.STOP, {"status": "completed", "output": [{"type": "web_search_call"}]}),
        (
            Finish.LENGTH,
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        ),
        (
            Finish.FILTERED,
            {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
        ),
        (Finish.OTHER, {"status": "incomplete"}),
        (None, {"status": "failed"}),
        (None, {"status": "cancelled"}),
        (None, {"status": "queued"}),
        (None, {"status": "in_progress"}),
        (None, {"status": ["completed"]}),
        (None, {}),
    ],
)
def test_a_reply_ends_by_its_status(finish: Finish | None, response: dict[str, Any]) -> None:
    """What failed, waits or runs shows no answer to keep."""
    assert finish == OPENAI_RESPONSES.read_reply(response).finish


# --- Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "last",
    [
        {"type": "response.failed", "response": {"status": "failed"}},
        {"type": "error", "message": "overloaded"},
        {"type": "response.completed"},
        {"type": "response.completed", "response": {"status": "in_progress"}},
        {"type": ["response.completed"], "response": {"status": "completed"}},
        "response.completed",
    ],
)
def test_a_stream_that_failed_or_lacks_its_response_is_not_complete(last: Any) -> None:
    """Only an event with an ended response ends it."""
    data = encode(last)
    event = Event(data, "", data)
    assert not OPENAI_RESPONSES.read_event(event).done
    assert OPENAI_RESPONSES.assemble([event]) is None


def test_an_error_behind_a_whole_response_takes_it_back() -> None:
    """What claims success and fails then is no answer to give again."""
    _, body = OPENAI_RESPONSES.replay({"status": "completed", "output": []}, STREAMING)
    whole = golden.frame_sse(body)
    failed = Event(b"", "error", encode({"type": "error", "message": "overloaded"}))
    assert OPENAI_RESPONSES.assemble(whole) is not None
    assert OPENAI_RESPONSES.assemble([*whole, failed]) is None


TEXT = st.text(st.characters(codec="utf-8"), max_size=120)
PART = st.one_of(
    st.builds(
        lambda text, cited: {
            "type": "output_text",
            "text": text,
            "annotations": cited,
            "logprobs": [],
        },
        TEXT,
        st.lists(ANY_JSON, max_size=2),
    ),
    st.builds(lambda text: {"type": "refusal", "refusal": text}, TEXT),
    st.just({"type": "a_part_of_tomorrow"}),
)
ITEM = st.one_of(
    st.builds(
        lambda parts: {"type": "message", "id": "m", "status": "completed", "content": parts},
        st.lists(PART, max_size=3),
    ),
    st.builds(lambda given: {"type": "function_call", "id": "f", "arguments": given}, TEXT),
    st.builds(lambda given: {"type": "custom_tool_call", "id": "c", "input": given}, TEXT),
    st.builds(
        lambda text: {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": text}],
            "content": [{"type": "reasoning_text", "text": text}],
        },
        TEXT,
    ),
    st.just({"type": "web_search_call", "id": "w", "status": "completed"}),
)


@given(output=st.lists(ITEM, max_size=4), status=st.sampled_from(["completed", "incomplete"]))
def test_a_replayed_response_assembles_to_itself(output: list[Any], status: str) -> None:
    """And its deltas, item by item, add up to what each item says."""
    response = {"id": "r", "object": "response", "status": status, "output": output}
    content_type, body = OPENAI_RESPONSES.replay(response, STREAMING)
    assert "text/event-stream" == content_type
    stream = golden.frame_sse(body)
    assert response == json.loads(OPENAI_RESPONSES.assemble(stream) or b"null")
    datas = [json.loads(event.data) for event in stream]
    assert [event.name for event in stream] == [data["type"] for data in datas]
    assert list(range(len(datas))) == [data["sequence_number"] for data in datas]
    told = "".join(data["delta"] for data in datas if data["type"].endswith(".delta"))
    assert "".join(map(said, output)) == told
    deltas = [OPENAI_RESPONSES.read_event(event) for event in stream]
    assert OPENAI_RESPONSES.read_reply(response).text == "".join(delta.text for delta in deltas)
    assert deltas[-1].done


def said(item: dict[str, Any]) -> str:
    grown: str = item.get("arguments", "") + item.get("input", "")
    parts = item.get("summary", []) + item.get("content", [])
    return grown + "".join(part.get("text", "") + part.get("refusal", "") for part in parts)
