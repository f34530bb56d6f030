"""What OpenAI's four endpoints have in common: golden cases, odd shapes, the official client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from filters.api import Delta, Dialect, Reply
from filters.dialects import DIALECTS
from filters.document import Document, encode
from filters.errors import NotJson
from filters.framing import Event, SseFramer
from tests import golden_cases as golden
from tests.odd_json import ANY_JSON, odd_json

PATHS = {
    "openai.chat": "/v1/chat/completions",
    "openai.completions": "/v1/completions",
    "openai.responses": "/v1/responses",
    "openai.embeddings": "/v1/embeddings",
}
STREAMING = ["openai.chat", "openai.completions", "openai.responses"]
TYPES: dict[str, Any] = {
    "openai.chat": ChatCompletion,
    "openai.completions": Completion,
    "openai.responses": Response,
    "openai.embeddings": CreateEmbeddingResponse,
}
LEAST: dict[str, dict[str, Any]] = {
    "openai.chat": {"messages": []},
    "openai.completions": {"prompt": ""},
    "openai.responses": {"input": ""},
    "openai.embeddings": {"input": ""},
}

OPENAI = [DIALECTS[name] for name in PATHS]
EVERY = pytest.mark.parametrize("dialect", OPENAI, ids=list(PATHS))
STREAMED = pytest.mark.parametrize("dialect", [DIALECTS[name] for name in STREAMING], ids=STREAMING)

ODD = odd_json(
    *("messages", "role", "user", "assistant", "content", "type", "text", "refusal", "input"),
    *("tool_calls", "function_call", "function", "custom", "name", "arguments", "index", "id"),
    *("choices", "delta", "message", "logprobs", "finish_reason", "stop", "usage", "annotations"),
    *("prompt_tokens", "prompt_tokens_details", "cached_tokens", "error", "object", "data"),
    *("embedding", "output", "status", "completed", "incomplete", "incomplete_details", "reason"),
    *("response", "response.completed", "response.output_text.delta", "output_text", "input_text"),
    *("function_call_output", "reasoning", "summary", "tools", "instructions", "prompt"),
    *("web_search", "item_reference", "stream_options", "conversation", "model", "logprobs"),
)


def cases(part: str, names: list[str] | None = None) -> pytest.MarkDecorator:
    """Parametrise with the dialect and the folder of every case that has `part`."""
    return pytest.mark.parametrize(
        ("dialect", "folder"),
        [
            pytest.param(DIALECTS[name], *case.values, id=f"{name}-{case.id}")
            for name in names or PATHS
            for case in golden.folders(name, part)
        ],
    )


# --- Golden cases --------------------------------------------------------------------------------


@cases("request.json")
def test_a_request_is_seen_as_the_golden_view_says(dialect: Dialect, folder: Path) -> None:
    """Model, turns with their texts, tools, parameters and state."""
    expected = golden.load(folder / "request.view.json")
    seen = golden.prompt_view(golden.read_request(dialect, folder), expected["path"])
    assert expected == seen


@cases("request.json")
def test_a_request_nobody_edits_goes_out_byte_for_byte(dialect: Dialect, folder: Path) -> None:
    """Reading, with odd formatting, escapes and duplicate keys in it, changes nothing."""
    read = golden.read_request(dialect, folder)
    golden.prompt_view(read, "")
    assert (folder / "request.json").read_bytes() == read.document.render()


@cases("request.json")
def test_an_edited_text_is_the_only_change(dialect: Dialect, folder: Path) -> None:
    """Each text of each case: every other value keeps its place and its number format."""
    for expected, edited in golden.edits(dialect, folder):
        assert expected == edited


@cases("reply.json")
def test_a_reply_is_read_as_the_golden_view_says(dialect: Dialect, folder: Path) -> None:
    """Text, finish, usage, model and tools, of a reply that is one by OpenAI's own types."""
    reply = golden.load(folder / "reply.json")
    TYPES[dialect.name].model_validate(reply)
    assert golden.load(folder / "reply.view.json") == golden.reply_view(dialect.read_reply(reply))


@cases("stream.sse", STREAMING)
def test_a_stream_is_read_as_the_golden_view_says(dialect: Dialect, folder: Path) -> None:
    """One delta per event, comments and unknown events saying nothing, no byte changed."""
    deltas = [dialect.read_event(event) for event in golden.read_stream(folder)]
    assert golden.load(folder / "stream.view.json")["deltas"] == golden.delta_views(deltas)
    assert (folder / "stream.sse").read_bytes() == b"".join(delta.raw for delta in deltas)


@cases("stream.sse", STREAMING)
def test_a_whole_stream_assembles_to_the_plain_reply(dialect: Dialect, folder: Path) -> None:
    """Which OpenAI's own types accept, and which reads as the deltas do."""
    stream = golden.read_stream(folder)
    assembled = json.loads(dialect.assemble(stream) or b"null")
    assert golden.load(folder / "stream.view.json")["assembled"] == assembled
    TYPES[dialect.name].model_validate(assembled)
    reply = dialect.read_reply(assembled)
    deltas = [dialect.read_event(event) for event in stream]
    assert "".join(delta.text for delta in deltas) == reply.text
    assert [delta.finish for delta in deltas if delta.finish] == [reply.finish]
    assert [delta.usage for delta in deltas if delta.usage] == (
        [reply.usage] if reply.usage else []
    )
    assert [False] * (len(deltas) - 1) + [True] == [delta.done for delta in deltas]


@cases("stream.sse", STREAMING)
def test_a_stream_cut_short_assembles_to_nothing(dialect: Dialect, folder: Path) -> None:
    """Only its last event makes a stream complete."""
    stream = golden.read_stream(folder)
    assert {None} == {dialect.assemble(stream[:end]) for end in range(len(stream))}


@cases("stream.sse", STREAMING)
def test_an_assembled_reply_streams_again_to_itself(dialect: Dialect, folder: Path) -> None:
    """Taking apart and putting together lose and add nothing but a usage not asked for."""
    prompt = golden.read_request(dialect, folder)
    assembled = json.loads(dialect.assemble(golden.read_stream(folder)) or b"null")
    content_type, body = dialect.replay(assembled, prompt)
    assert "text/event-stream" == content_type
    again = json.loads(dialect.assemble(golden.frame_sse(body)) or b"null")
    if dialect.name != "openai.responses" and not asks_for_usage(prompt.document.root):
        assembled.pop("usage", None)
    assert assembled == again


def asks_for_usage(request: dict[str, Any]) -> bool:
    return bool(request.get("stream_options", {}).get("include_usage"))


# --- What every endpoint does --------------------------------------------------------------------


@STREAMED
@pytest.mark.parametrize(
    ("content_type", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_only_server_sent_events_are_a_stream(
    dialect: Dialect, content_type: str, streams: bool
) -> None:
    """A JSON reply is whole, also when a stream was asked for."""
    framer = dialect.framer(content_type, ask(dialect, stream=True))
    assert streams == isinstance(framer, SseFramer)


@EVERY
def test_a_plain_request_gets_the_reply_as_it_is(dialect: Dialect) -> None:
    """No stream asked for, none given."""
    content_type, body = dialect.replay({"object": "any"}, ask(dialect))
    assert ("application/json", {"object": "any"}) == (content_type, json.loads(body))


@STREAMED
@pytest.mark.parametrize(("asked", "streams"), [(True, True), (False, False), ("yes", False)])
def test_only_true_asks_for_a_stream(dialect: Dialect, asked: object, streams: bool) -> None:
    """Whatever else stands there is the provider's to refuse."""
    assert streams == ask(dialect, stream=asked).stream


@EVERY
def test_a_model_that_only_the_path_names_is_found(dialect: Dialect) -> None:
    """Azure names it as a deployment; a model in the body comes first."""
    path = "/openai/deployments/my-model/x?api-version=1"
    body = LEAST[dialect.name]
    assert "my-model" == dialect.read(Document(encode(body)), path).model
    named = encode({**body, "model": "m"})
    assert "m" == dialect.read(Document(named), path).model
    assert "" == dialect.read(Document(encode(body)), PATHS[dialect.name]).model


@EVERY
@pytest.mark.parametrize("odd", [None, 1, {}, True])
def test_a_body_without_its_prompt_is_refused(dialect: Dialect, odd: object) -> None:
    """What is neither text nor an array cannot be this endpoint's request."""
    for name in LEAST[dialect.name]:
        with pytest.raises(NotJson, match=f" in {name}$"):
            dialect.read(Document(encode({name: odd})), PATHS[dialect.name])


def ask(dialect: Dialect, **more: Any) -> Any:
    body = encode({**LEAST[dialect.name], **more})
    return dialect.read(Document(body), PATHS[dialect.name])


# --- Odd shapes ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(reply=st.one_of(ANY_JSON, ODD))
def test_no_reply_is_too_odd_to_read(reply: Any) -> None:
    """Replies of any shape read as some reply, and stream as something."""
    for dialect in OPENAI:
        assert isinstance(dialect.read_reply(reply), Reply)
        assert dialect.replay(reply, ask(dialect, stream=True))[1]


@pytest.mark.slow
@given(data=st.one_of(st.binary(max_size=20), st.one_of(ANY_JSON, ODD).map(encode)))
def test_no_event_is_too_odd_to_read(data: bytes) -> None:
    """An event not understood carries its bytes."""
    for dialect in OPENAI:
        delta = dialect.read_event(Event(b"raw", "", data))
        assert isinstance(delta, Delta)
        assert b"raw" == delta.raw


CHOICE = st.fixed_dictionaries(
    {"index": st.just(0)},
    optional={
        "delta": st.fixed_dictionaries(
            {},
            optional={
                "content": ODD,
                "role": ODD,
                "annotations": ODD,
                "function_call": ODD,
                "tool_calls": st.lists(ODD | st.fixed_dictionaries({"index": ODD}), max_size=2),
            },
        ),
        "text": ODD,
        "logprobs": ODD,
        "finish_reason": ODD,
    },
)
CHUNK = ODD | st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)})


@pytest.mark.slow
@given(chunks=st.lists(CHUNK, max_size=3))
def test_no_stream_is_too_odd_to_assemble(chunks: list[Any]) -> None:
    """It assembles to a JSON object or to nothing."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    datas = [*map(encode, [*chunks, last]), b"[DONE]"]
    for dialect in OPENAI:
        assembled = dialect.assemble([Event(data, "", data) for data in datas])
        assert assembled is None or isinstance(json.loads(assembled), dict)


MESSAGE = ODD | st.fixed_dictionaries(
    {}, optional={"role": ODD, "type": ODD, "content": ODD, "output": ODD, "tool_calls": ODD}
)
GIVEN = ODD | st.lists(MESSAGE, max_size=3)


@pytest.mark.slow
@given(
    body=st.fixed_dictionaries(
        {"messages": GIVEN, "input": GIVEN, "prompt": GIVEN},
        optional={"instructions": ODD, "tools": ODD, "model": ODD, "n": ODD},
    )
)
def test_no_request_is_too_odd_to_refuse(body: dict[str, Any]) -> None:
    """`NotJson` or a view; and whatever text is shown can be edited."""
    for dialect in OPENAI:
        try:
            prompt = dialect.read(Document(encode(body)), PATHS[dialect.name])
        except NotJson:
            continue
        golden.prompt_view(prompt, "")
        for turn in prompt.turns():
            for text in turn.texts:
                text.value = edited = f"<{text.value}>"
                rendered = json.loads(prompt.document.render())
                assert edited == golden.value_at(rendered, text.path)


# --- The official client -------------------------------------------------------------------------


@asynccontextmanager
async def client_of(
    status: int, content_type: str, body: bytes
) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield the official client of a server that always gives this answer."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers={"content-type": content_type})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/v1"))
        async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0) as client:
            yield client


@cases("reply.json", ["openai.chat"])
async def test_the_official_client_reads_a_replayed_chat(dialect: Dialect, folder: Path) -> None:
    """Its own accumulation of our deltas gives what the plain reply says, in small pieces."""
    reply = golden.load(folder / "reply.json")
    prompt = ask(dialect, stream=True, stream_options={"include_usage": True})
    async with client_of(200, *dialect.replay(reply, prompt)) as client:
        chunks = await client.chat.completions.create(
            model="m", messages=[], stream=True, stream_options={"include_usage": True}
        )
        texts: dict[int, str] = {}
        arguments = ""
        finishes = {}
        usage = None
        async for chunk in chunks:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                assert len(choice.delta.content or "") <= 40
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                for call in choice.delta.tool_calls or []:
                    arguments += (call.function and call.function.arguments) or ""
                if choice.delta.function_call:
                    arguments += choice.delta.function_call.arguments or ""
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
    whole = ChatCompletion.model_validate(reply)
    assert {choice.index: choice.message.content or "" for choice in whole.choices} == texts
    assert {choice.index: choice.finish_reason for choice in whole.choices} == finishes
    assert whole.usage == usage
    message = reply["choices"][0]["message"]
    called = [call["function"] for call in message.get("tool_calls", [])]
    called += [message["function_call"]] if "function_call" in message else []
    assert "".join(call["arguments"] for call in called) == arguments


@cases("reply.json", ["openai.chat"])
async def test_the_official_clients_accumulated_chat_is_the_reply(
    dialect: Dialect, folder: Path
) -> None:
    """`chat.completions.stream()` ends with the completion itself."""
    reply = golden.load(folder / "reply.json")
    reply["choices"] = [
        choice
        for choice in reply["choices"]
        if choice["finish_reason"] not in ("length", "content_filter")  # the client raises on these
    ]
    prompt = ask(dialect, stream=True, stream_options={"include_usage": True})
    async with (
        client_of(200, *dialect.replay(reply, prompt)) as client,
        client.chat.completions.stream(model="m", messages=[]) as stream,
    ):
        completion = await stream.get_final_completion()
    whole = ChatCompletion.model_validate(reply)
    assert whole.model_dump(exclude_none=True) == ChatCompletion.model_validate(
        completion.model_dump()
    ).model_dump(exclude_none=True, exclude=INDEXED)


INDEXED: Any = {
    "choices": {
        "__all__": {
            "message": {
                "parsed": True,
                "tool_calls": {"__all__": {"index": True, "function": {"parsed_arguments"}}},
            }
        }
    }
}
"""What the client's accumulation adds."""


@cases("reply.json", ["openai.completions"])
async def test_the_official_client_reads_a_replayed_completion(
    dialect: Dialect, folder: Path
) -> None:
    """Texts and finish reasons by choice."""
    reply = golden.load(folder / "reply.json")
    async with client_of(200, *dialect.replay(reply, ask(dialect, stream=True))) as client:
        texts: dict[int, str] = {}
        finishes: dict[int, str] = {}
        async for chunk in await client.completions.create(model="m", prompt="", stream=True):
            assert chunk.usage is None
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
    assert {choice["index"]: choice["text"] for choice in reply["choices"]} == texts
    assert {choice["index"]: choice["finish_reason"] for choice in reply["choices"]} == finishes


@cases("reply.json", ["openai.responses"])
async def test_the_official_client_reads_a_replayed_response(
    dialect: Dialect, folder: Path
) -> None:
    """Its accumulation follows every event, and ends with the response itself."""
    reply = golden.load(folder / "reply.json")
    if reply["status"] == "failed":
        reply["status"] = "completed"  # a failed one is never stored, so never replayed
    async with client_of(200, *dialect.replay(reply, ask(dialect, stream=True))) as client:
        text = ""
        numbers = []
        last: Any = None
        async for event in await client.responses.create(model="m", input="", stream=True):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
                assert len(event.delta) <= 40
            last = event
    assert list(range(len(numbers))) == numbers
    assert Response.model_validate(reply).output_text == text
    assert f"response.{reply['status']}" == last.type
    assert Response.model_validate(reply).output == last.response.output
    async with (
        client_of(200, *dialect.replay(reply, ask(dialect, stream=True))) as client,
        client.responses.stream(model="m", input="") as stream,
    ):
        if reply["status"] == "completed":
            final = await stream.get_final_response()
            assert text == final.output_text


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "invalid_request_error", openai.BadRequestError),
        (401, "authentication_error", openai.AuthenticationError),
        (403, "permission_error", openai.PermissionDeniedError),
        (404, "invalid_request_error", openai.NotFoundError),
        (429, "rate_limit_error", openai.RateLimitError),
        (500, "server_error", openai.InternalServerError),
        (503, "server_error", openai.InternalServerError),
    ],
)
@EVERY
async def test_the_official_client_reads_our_errors(
    dialect: Dialect, status: int, kind: str, error: type[openai.APIStatusError]
) -> None:
    """The status picks the type, and the text reaches the caller."""
    body = dialect.error(status, 'no "pool" is free')
    async with client_of(status, "application/json", body) as client:
        with pytest.raises(error) as raised:
            await client.embeddings.create(model="m", input="")
    expected = {"message": 'no "pool" is free', "type": kind, "param": None, "code": None}
    assert expected == raised.value.body
