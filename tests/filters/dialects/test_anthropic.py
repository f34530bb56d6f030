"""The dialect of Anthropic's messages endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Delta, Parameter, Prompt, Reply, Role, Usage
from filters.dialects.anthropic import ANTHROPIC_MESSAGES
from filters.document import Document, encode
from filters.errors import NotJson
from filters.framing import Event, SseFramer
from tests import golden_cases as golden
from tests.odd_json import ANY_JSON, odd_json

NAME = ANTHROPIC_MESSAGES.name
PATH = "/v1/messages"

ODD = odd_json(
    *("messages", "role", "user", "content", "type", "text", "tool_result", "tool_use", "document"),
    *("source", "data", "system", "tools", "container", "citations", "enabled", "usage", "delta"),
    *("message", "index", "content_block", "content_block_start", "content_block_delta", "input"),
    *("message_start", "message_delta", "message_stop", "text_delta", "input_json_delta"),
    *("partial_json", "stop_reason", "end_turn", "input_tokens", "output_tokens", "signature"),
    *("citations_delta", "citation", "signature_delta", "thinking", "diagnostics"),
)


def prompt(body: dict[str, Any]) -> Prompt:
    return ANTHROPIC_MESSAGES.read(Document(encode(body)), PATH)


STREAMING = prompt({"model": "m", "messages": [], "stream": True})
PLAIN = prompt({"model": "m", "messages": []})


def events(*datas: dict[str, Any]) -> list[Event]:
    return golden.frame_sse(b"".join(b"data: %b\n\n" % encode(data) for data in datas))


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def change(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


MESSAGE_START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
MESSAGE_DELTA: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 3},
}
MESSAGE_STOP: dict[str, Any] = {"type": "message_stop"}


# --- Golden cases --------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_a_request_is_seen_as_the_golden_view_says(folder: Path) -> None:
    """Model, turns with their texts, tools, parameters and state."""
    seen = golden.prompt_view(golden.read_request(ANTHROPIC_MESSAGES, folder), PATH)
    assert golden.load(folder / "request.view.json") == seen


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_a_request_nobody_edits_goes_out_byte_for_byte(folder: Path) -> None:
    """Reading, with odd formatting, escapes and unknown fields in it, changes nothing."""
    read = golden.read_request(ANTHROPIC_MESSAGES, folder)
    golden.prompt_view(read, PATH)
    assert (folder / "request.json").read_bytes() == read.document.render()


@pytest.mark.parametrize("folder", golden.folders(NAME, "request.json"))
def test_an_edited_text_is_the_only_change(folder: Path) -> None:
    """Each text of each case: every other value keeps its place and its number format."""
    for expected, edited in golden.edits(ANTHROPIC_MESSAGES, folder):
        assert expected == edited


@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
def test_a_reply_is_read_as_the_golden_view_says(folder: Path) -> None:
    """Text, finish, usage, model and tools."""
    reply = ANTHROPIC_MESSAGES.read_reply(golden.load(folder / "reply.json"))
    assert golden.load(folder / "reply.view.json") == golden.reply_view(reply)


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_stream_is_read_as_the_golden_view_says(folder: Path) -> None:
    """One delta per event, pings, comments and unknown events saying nothing."""
    deltas = [ANTHROPIC_MESSAGES.read_event(event) for event in golden.read_stream(folder)]
    assert golden.load(folder / "stream.view.json")["deltas"] == golden.delta_views(deltas)
    assert (folder / "stream.sse").read_bytes() == b"".join(delta.raw for delta in deltas)


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_whole_stream_assembles_to_the_plain_message(folder: Path) -> None:
    """Which Anthropic's own types accept, and which reads as the deltas do."""
    stream = golden.read_stream(folder)
    assembled = ANTHROPIC_MESSAGES.assemble(stream)
    assert assembled is not None
    assert golden.load(folder / "stream.view.json")["assembled"] == json.loads(assembled)
    Message.model_validate(json.loads(assembled), strict=True)
    reply = ANTHROPIC_MESSAGES.read_reply(json.loads(assembled))
    deltas = [ANTHROPIC_MESSAGES.read_event(event) for event in stream]
    assert "".join(delta.text for delta in deltas) == reply.text
    assert [delta.finish for delta in deltas if delta.finish] == [reply.finish]


@pytest.mark.parametrize("folder", golden.folders(NAME, "stream.view.json"))
def test_a_stream_cut_short_assembles_to_nothing(folder: Path) -> None:
    """Only `message_stop` makes a stream complete."""
    stream = golden.read_stream(folder)
    assert {None} == {ANTHROPIC_MESSAGES.assemble(stream[:end]) for end in range(len(stream))}


# --- The request ---------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"messages": "Hi"}, {"messages": {}}, {"messages": None}])
def test_a_body_without_an_array_of_messages_is_refused(body: dict[str, Any]) -> None:
    """No such body can be a messages request."""
    with pytest.raises(NotJson, match="expected an array in messages"):
        prompt(body)


@pytest.mark.parametrize(
    ("stateful", "more"),
    [
        (False, {}),
        (False, {"container": None}),
        (True, {"container": "container_01"}),
        (True, {"container": {"skills": []}}),
        (True, {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "a"}]}),
        (False, {"diagnostics": {"previous_message_id": None}}),
        (True, {"diagnostics": {"previous_message_id": "msg_0"}}),
        (False, {"tools": [{"name": "a", "input_schema": {}}, {"type": "custom", "name": "b"}]}),
        (False, {"tools": [{"type": "bash_20250124"}, {"type": "text_editor_20250728"}]}),
        (False, {"tools": [{"type": "memory_20250818"}, {"type": "computer_toolset_20260801"}]}),
        (False, {"tools": [{"type": "tool_search_tool_bm25_20251119"}]}),
        (True, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        (True, {"tools": [{"name": "a"}, {"type": "code_execution_20250825"}]}),
        (True, {"tools": [{"type": "a_tool_of_tomorrow"}]}),
    ],
)
def test_state_at_the_provider_makes_a_request_stateful(
    stateful: bool, more: dict[str, Any]
) -> None:
    """A container, another message, or a tool that runs there; a type not known counts as one."""
    assert stateful == prompt({"messages": [], **more}).stateful


def test_parameters_are_set_where_anthropic_reads_them() -> None:
    """Each under its own name at the top of the body."""
    edited = prompt({"messages": [], "temperature": 1})
    edited.set_parameter(Parameter.TEMPERATURE, 0)
    edited.set_parameter(Parameter.TOP_P, 0.5)
    edited.set_parameter(Parameter.MAX_TOKENS, 128)
    edited.set_parameter(Parameter.STOP, ["END"])
    expected = {"temperature": 0, "top_p": 0.5, "max_tokens": 128, "stop_sequences": ["END"]}
    assert {"messages": [], **expected} == json.loads(edited.document.render())


@pytest.mark.parametrize("name", [Parameter.SEED, Parameter.CHOICES])
def test_a_parameter_that_anthropic_lacks_cannot_be_set(name: Parameter) -> None:
    """There is neither a seed nor a number of choices; the body stays as it is."""
    asked = prompt({"messages": []})
    assert asked.parameter(name) is None
    with pytest.raises(KeyError):
        asked.set_parameter(name, 1)
    assert not asked.document.changed


def test_turns_are_read_again_when_an_edit_moved_them() -> None:
    """A message taken out is gone from the turns."""
    asked = prompt(
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}
    )
    assert ["a", "b"] == [text.value for turn in asked.turns() for text in turn.texts]
    asked.document.remove(("messages", 0))
    assert ["b"] == [text.value for turn in asked.turns() for text in turn.texts]


def test_an_unknown_block_counts_as_media() -> None:
    """What is not known to be text must not be taken for nothing."""
    turn = prompt({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]}).turns()[0]
    assert (Role.USER, (), True) == (turn.role, turn.texts, turn.has_media)


# --- Streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        change(0, type="text_delta", text=5),
        change(0, type="a_delta_of_tomorrow", text="more"),
        change(7, type="text_delta", text="in no block"),
        change(1, type="input_json_delta", partial_json='{"cut'),
        change(1, type="input_json_delta", partial_json="[]"),
        {"no": "type"},
    ],
)
def test_a_stream_with_a_hole_assembles_to_nothing(odd: dict[str, Any]) -> None:
    """Half a message must not pass for a whole one, though it ends with `message_stop`."""
    head = [MESSAGE_START, start(0, type="text", text=""), start(1, type="tool_use", input={})]
    tail = [MESSAGE_DELTA, MESSAGE_STOP]
    assert ANTHROPIC_MESSAGES.assemble(events(*head, *tail)) is not None
    assert ANTHROPIC_MESSAGES.assemble(events(*head, odd, *tail)) is None


def test_tool_input_keeps_every_digit() -> None:
    """Numbers that no float holds come out as the model wrote them."""
    written = '{"n": 123456789012345678901234567890, "x": 1.50}'
    stream = events(
        MESSAGE_START,
        start(0, type="tool_use", id="t", name="f", input={}),
        change(0, type="input_json_delta", partial_json=written[:20]),
        change(0, type="input_json_delta", partial_json=written[20:]),
        MESSAGE_DELTA,
        MESSAGE_STOP,
    )
    assembled = ANTHROPIC_MESSAGES.assemble(stream)
    assert assembled is not None
    assert written.encode() in assembled


def test_blocks_that_interleave_stay_apart() -> None:
    """The index says where a delta belongs, not the order of events."""
    stream = events(
        MESSAGE_START,
        start(1, type="text", text=""),
        start(0, type="text", text=""),
        change(1, type="text_delta", text="b"),
        change(0, type="text_delta", text="a"),
        change(1, type="text_delta", text="d"),
        change(0, type="text_delta", text="c"),
        MESSAGE_DELTA,
        MESSAGE_STOP,
    )
    assembled = json.loads(ANTHROPIC_MESSAGES.assemble(stream) or b"null")
    assert ["ac", "bd"] == [block["text"] for block in assembled["content"]]


def test_message_delta_may_bring_more_than_a_stop_reason() -> None:
    """Its container and members beside the delta end up in the message."""
    late = {
        **MESSAGE_DELTA,
        "delta": {"stop_reason": "end_turn", "container": {"id": "c", "expires_at": "2026-01-01"}},
        "context_management": {"applied_edits": []},
    }
    assembled = json.loads(
        ANTHROPIC_MESSAGES.assemble(events(MESSAGE_START, late, MESSAGE_STOP)) or b""
    )
    assert "c" == assembled["container"]["id"]
    assert {"applied_edits": []} == assembled["context_management"]
    assert {"input_tokens": 1, "output_tokens": 3} == assembled["usage"]


def test_counts_left_out_of_an_event_read_as_zero() -> None:
    """The greatest of each running total is the answer's."""
    deltas = [
        ANTHROPIC_MESSAGES.read_event(event) for event in events(MESSAGE_START, MESSAGE_DELTA)
    ]
    assert [Usage(input=1, output=1), Usage(output=3)] == [delta.usage for delta in deltas]


@pytest.mark.parametrize(
    ("content_type", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_only_server_sent_events_are_a_stream(content_type: str, streams: bool) -> None:
    """A JSON reply is whole, also when a stream was asked for."""
    assert streams == isinstance(ANTHROPIC_MESSAGES.framer(content_type, STREAMING), SseFramer)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
BLOCK = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.builds(
        lambda text, citation: {"type": "text", "text": text, "citations": [citation] * 2},
        TEXT,
        st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    st.builds(
        lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature},
        TEXT,
        TEXT,
    ),
    st.builds(
        lambda given: {"type": "tool_use", "id": "t", "name": "f", "input": given},
        st.dictionaries(TEXT, ANY_JSON, max_size=3),
    ),
    st.just({"type": "redacted_thinking", "data": "ZW5j"}),
    st.just({"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"a": 1}]}),
)


@pytest.mark.slow
@given(blocks=st.lists(BLOCK, max_size=5), reason=st.sampled_from(["end_turn", "tool_use"]))
def test_a_replayed_message_assembles_to_itself(blocks: list[dict[str, Any]], reason: str) -> None:
    """Whatever its blocks: streaming it loses and adds nothing."""
    message = {**MESSAGE_START["message"], "content": blocks, "stop_reason": reason}
    content_type, body = ANTHROPIC_MESSAGES.replay(message, STREAMING)
    assert "text/event-stream" == content_type
    assembled = ANTHROPIC_MESSAGES.assemble(golden.frame_sse(body))
    assert message == json.loads(assembled or b"null")


def test_a_plain_request_gets_the_message_as_it_is() -> None:
    """No stream asked for, none given."""
    message = {"type": "message", "content": [{"type": "text", "text": "Hi"}]}
    content_type, body = ANTHROPIC_MESSAGES.replay(message, PLAIN)
    assert ("application/json", message) == (content_type, json.loads(body))


# --- Odd shapes ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.one_of(ANY_JSON, ODD))
def test_no_reply_is_too_odd_to_read(reply: Any) -> None:
    """Replies of any shape read as some reply."""
    assert isinstance(ANTHROPIC_MESSAGES.read_reply(reply), Reply)
    _, body = ANTHROPIC_MESSAGES.replay(reply, STREAMING)
    assert golden.frame_sse(body)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=20), st.one_of(ANY_JSON, ODD).map(encode)))
def test_no_event_is_too_odd_to_read(data: bytes) -> None:
    """An event not understood carries its bytes."""
    delta = ANTHROPIC_MESSAGES.read_event(Event(b"raw", "", data))
    assert isinstance(delta, Delta)
    assert b"raw" == delta.raw


@pytest.mark.slow
@given(st.lists(ODD.map(encode), max_size=4))
def test_no_stream_is_too_odd_to_assemble(datas: list[bytes]) -> None:
    """It assembles to a JSON object or to nothing."""
    framed = [Event(data, "", data) for data in (encode(MESSAGE_START), *datas)]
    assembled = ANTHROPIC_MESSAGES.assemble([*framed, Event(b"", "", encode(MESSAGE_STOP))])
    assert assembled is None or isinstance(json.loads(assembled), dict)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["messages", "system", "tools", "model", "stream"]), ODD))
def test_no_request_is_too_odd_to_refuse(body: dict[str, Any]) -> None:
    """`NotJson` or a view; and whatever text is shown can be edited."""
    try:
        asked = prompt(body)
    except NotJson:
        return
    golden.prompt_view(asked, PATH)
    for turn in asked.turns():
        for text in turn.texts:
            text.value = f"<{text.value}>"
            assert text.value == golden.value_at(json.loads(asked.document.render()), text.path)


# --- The official client -------------------------------------------------------------------------


@asynccontextmanager
async def client_of(
    status: int, content_type: str, body: bytes, seen: list[tuple[str, bytes]] | None = None
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Yield the official client of a server that always gives this answer.

    `seen` receives path and body of each request.
    """

    async def answer(request: web.Request) -> web.Response:
        if seen is not None:
            seen.append((request.raw_path, await request.read()))
        return web.Response(status=status, body=body, headers={"content-type": content_type})

    app = web.Application()
    app.router.add_post(PATH, answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        async with anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client:
            yield client


async def test_what_the_official_client_sends_is_read() -> None:
    """System prompt, image, tool, parameters and stream, as the client writes them."""
    seen: list[tuple[str, bytes]] = []
    answer = ANTHROPIC_MESSAGES.replay(MESSAGE_START["message"], STREAMING)
    image = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    content: Any = [{"type": "image", "source": image}, {"type": "text", "text": "What is this?"}]
    async with (
        client_of(200, *answer, seen) as client,
        client.messages.stream(
            model="claude-haiku-4-5",
            max_tokens=5,
            extra_body={"temperature": 0},  # anthropic 2 has no argument for it
            system="You are terse.",
            messages=[{"role": "user", "content": content}],
            tools=[{"name": "look", "input_schema": {"type": "object"}}],
        ) as stream,
    ):
        await stream.until_done()
    ((path, body),) = seen
    asked = ANTHROPIC_MESSAGES.read(Document(body), path)
    assert ("claude-haiku-4-5", True, False) == (asked.model, asked.stream, asked.stateful)
    assert (5, 0) == (
        asked.parameter(Parameter.MAX_TOKENS),
        asked.parameter(Parameter.TEMPERATURE),
    )
    assert [(Role.SYSTEM, "You are terse."), (Role.USER, "What is this?")] == [
        (text.role, text.value) for turn in asked.turns() for text in turn.texts
    ]
    assert [False, True] == [turn.has_media for turn in asked.turns()]
    assert ["look"] == [tool["name"] for tool in asked.tools()]


@pytest.mark.parametrize("folder", golden.folders(NAME, "reply.json"))
async def test_the_official_client_reads_a_replayed_stream(folder: Path) -> None:
    """Text, tool calls, thinking, stop reason and usage: what the plain reply says."""
    reply = golden.load(folder / "reply.json")
    async with (
        client_of(200, *ANTHROPIC_MESSAGES.replay(reply, STREAMING)) as client,
        client.messages.stream(model="m", max_tokens=1, messages=[]) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    whole = Message.model_validate(reply)
    assert whole.model_dump(exclude_none=True) == message.model_dump(
        exclude_none=True, exclude={"content": {"__all__": {"parsed_output"}}}
    )
    assert ANTHROPIC_MESSAGES.read_reply(reply).text == text


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (402, "billing_error", anthropic.APIStatusError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (409, "conflict_error", anthropic.ConflictError),
        (413, "request_too_large", anthropic.APIStatusError),
        (418, "invalid_request_error", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
        (504, "timeout_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
async def test_the_official_client_reads_our_errors(
    status: int, kind: str, error: type[anthropic.APIStatusError]
) -> None:
    """The status picks the type, and the text reaches the caller."""
    body = ANTHROPIC_MESSAGES.error(status, 'no "pool" is free')
    async with client_of(status, "application/json", body) as client:
        with pytest.raises(error) as raised:
            await client.messages.create(model="m", max_tokens=1, messages=[])
    expected = {"type": "error", "error": {"type": kind, "message": 'no "pool" is free'}}
    assert expected == raised.value.body
