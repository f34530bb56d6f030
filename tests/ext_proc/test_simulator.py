"""The simulated upstream is what the official clients and vLLM's own scrapers take for real."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from google import genai
from google.genai import types
from openai.types.chat import ChatCompletionToolParam

from ext_proc.tools.replica_life import INSTANT, Model
from ext_proc.tools.simulated_model import Ask, say, value_for
from ext_proc.tools.simulator import Simulator
from filters.api import Finish

# google-genai subclasses aiohttp's session when aiohttp is there.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Inheritance class AiohttpClientSession:DeprecationWarning"
)
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
}
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": SCHEMA},
}
QUESTION = "How is the weather in Lima?"
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Say hello"}]}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator(replicas=2, models=("m", "other")) as simulator:
        yield simulator


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


@pytest.fixture
async def gpt(simulator: Simulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{simulator.url}/v1", api_key="k", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def claude(simulator: Simulator) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=simulator.url, api_key="k", max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def gemini(simulator: Simulator) -> AsyncIterator[genai.Client]:
    options = types.HttpOptions(base_url=simulator.url)
    with genai.Client(api_key="k", http_options=options) as client:
        yield client
        await client.aio.aclose()


async def post(
    http: aiohttp.ClientSession,
    simulator: Simulator,
    body: Any = HELLO,
    path: str = "/v1/chat/completions",
    **commands: str,
) -> tuple[aiohttp.ClientResponse, bytes]:
    headers = {f"x-test-{name.replace('_', '-')}": value for name, value in commands.items()}
    async with http.post(simulator.url + path, json=body, headers=headers) as response:
        return response, await response.read()


# --- OpenAI --------------------------------------------------------------------------------------


async def test_the_openai_client_reads_an_answer(gpt: openai.AsyncOpenAI) -> None:
    """A chat completion names the model, says that it is simulated and counts its tokens."""
    reply = await gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "What is a forebay?"}]
    )
    text = reply.choices[0].message.content or ""
    assert text.startswith("This is a simulated answer from m to “What is a forebay?”.")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_the_same_openai_stream_says_the_same_text(gpt: openai.AsyncOpenAI) -> None:
    """The streamed pieces, joined, are the plain answer; usage comes last when asked for."""
    messages: Any = [{"role": "user", "content": "What is a forebay?"}]
    plain = await gpt.chat.completions.create(model="m", messages=messages)
    stream = await gpt.chat.completions.create(
        model="m", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert plain.choices[0].message.content == text
    assert plain.usage == chunks[-1].usage


async def test_the_sync_openai_client_streams_too(simulator: Simulator) -> None:
    """The blocking client reads a stream to its end."""

    def read() -> str:
        with (
            openai.OpenAI(base_url=f"{simulator.url}/v1", api_key="k") as client,
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
            ) as stream,
        ):
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert "simulated answer" in await asyncio.to_thread(read)


async def test_a_chinese_prompt_gets_a_chinese_answer(gpt: openai.AsyncOpenAI) -> None:
    """The answer is in the prompt's language."""
    reply = await gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "前池是什么？"}]
    )
    assert (reply.choices[0].message.content or "").startswith(
        "这是 m 对“前池是什么？”的模拟回答。"
    )


async def test_each_of_n_choices_says_something_else(gpt: openai.AsyncOpenAI) -> None:
    """`n` answers come back, plain or streamed, and differ."""
    messages: Any = [{"role": "user", "content": "Choose"}]
    plain = await gpt.chat.completions.create(model="m", messages=messages, n=3)
    texts = [choice.message.content for choice in plain.choices]
    streamed = ["", "", ""]
    async for chunk in await gpt.chat.completions.create(
        model="m", messages=messages, n=3, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert len(set(texts)) == 3
    assert texts == streamed


async def test_max_tokens_cuts_the_answer(gpt: openai.AsyncOpenAI) -> None:
    """A limit is kept to the token and named as the reason."""
    reply = await gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
    )
    assert reply.choices[0].message.content == "This is a"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 3


async def test_a_stop_sequence_ends_the_answer_before_it(gpt: openai.AsyncOpenAI) -> None:
    """What stops the answer is not part of it."""
    reply = await gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hi"}], stop=[" answer"]
    )
    assert reply.choices[0].message.content == "This is a simulated"


async def test_an_openai_tool_is_called_and_its_result_quoted(gpt: openai.AsyncOpenAI) -> None:
    """A question about the weather calls the tool; the tool's result ends up in the answer."""
    messages: Any = [{"role": "user", "content": QUESTION}]
    plain = await gpt.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    async with gpt.chat.completions.stream(model="m", messages=messages, tools=[TOOL]) as stream:
        streamed = await stream.get_final_completion()
    message = plain.choices[0].message
    assert message.tool_calls is not None
    assert streamed.choices[0].message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Lima", "days": 2}
    assert streamed.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    assert streamed.choices[0].finish_reason == "tool_calls"
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    messages += [message.model_dump(exclude_none=True), result]
    answer = await gpt.chat.completions.create(model="m", messages=messages, tools=[TOOL])
    assert (answer.choices[0].message.content or "").startswith("The tool returned: 18 degrees.")


async def test_a_tool_nobody_asked_for_is_not_called(gpt: openai.AsyncOpenAI) -> None:
    """Declared tools do not keep an ordinary question from an ordinary answer."""
    reply = await gpt.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Say hello"}], tools=[TOOL]
    )
    assert reply.choices[0].finish_reason == "stop"


async def test_a_forced_tool_is_called_whatever_the_question(gpt: openai.AsyncOpenAI) -> None:
    """`tool_choice` of a named function overrides the words."""
    reply = await gpt.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Say hello"}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    )
    assert reply.choices[0].finish_reason == "tool_calls"


async def test_a_json_schema_is_followed(gpt: openai.AsyncOpenAI) -> None:
    """Structured output is JSON of the asked shape."""
    reply = await gpt.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Tell me about Lima"}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": SCHEMA},
        },
    )
    assert json.loads(reply.choices[0].message.content or "") == {"city": "Lima", "days": 2}


async def test_the_older_completions_answer(gpt: openai.AsyncOpenAI) -> None:
    """`/v1/completions` answers each prompt, by default with 16 tokens."""
    plain = await gpt.completions.create(model="m", prompt=["one", "two"])
    assert [choice.index for choice in plain.choices] == [0, 1]
    assert plain.choices[0].finish_reason == "length"
    stream = await gpt.completions.create(model="m", prompt="one", stream=True)
    assert "".join([c.choices[0].text async for c in stream]).startswith("This is a simulated")


async def test_the_responses_api_answers_and_streams(gpt: openai.AsyncOpenAI) -> None:
    """A response's stream ends with the same text as the plain one."""
    plain = await gpt.responses.create(model="m", input="What is a forebay?")
    async with gpt.responses.stream(model="m", input="What is a forebay?") as stream:
        numbers = [event.sequence_number async for event in stream]
        streamed = await stream.get_final_response()
    assert plain.status == "completed"
    assert plain.output_text == streamed.output_text
    assert numbers == sorted(set(numbers))


async def test_the_responses_api_calls_a_tool(gpt: openai.AsyncOpenAI) -> None:
    """A function call is an output item, and its output item is quoted in the next answer."""
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    async with gpt.responses.stream(model="m", input=QUESTION, tools=[tool]) as stream:
        call = (await stream.get_final_response()).output[0]
    assert call.type == "function_call"
    items: Any = [
        {"role": "user", "content": QUESTION},
        call.model_dump(include={"type", "call_id", "name", "arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "fog"},
    ]
    answer = await gpt.responses.create(model="m", input=items, tools=[tool])
    assert answer.output_text.startswith("The tool returned: fog.")


async def test_an_incomplete_response_says_so(gpt: openai.AsyncOpenAI) -> None:
    """A response cut by its limit has the status and the reason of one."""
    reply = await gpt.responses.create(model="m", input="Hi", max_output_tokens=16)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"


async def test_embeddings_depend_on_the_text_alone(gpt: openai.AsyncOpenAI) -> None:
    """Equal texts have equal vectors of length one, in floats as in Base64."""
    packed = await gpt.embeddings.create(model="e", input=["a", "b", "a"], dimensions=8)
    plain = await gpt.embeddings.create(model="e", input="a", dimensions=8, encoding_format="float")
    vectors = [data.embedding for data in packed.data]
    assert vectors[0] == vectors[2] != vectors[1]
    assert plain.data[0].embedding == pytest.approx(vectors[0])
    assert sum(x * x for x in vectors[0]) == pytest.approx(1.0)


async def test_the_models_are_listed(
    gpt: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic, gemini: genai.Client
) -> None:
    """Each client finds the models under its own provider's shape."""
    assert [model.id async for model in gpt.models.list()] == ["m", "other"]
    assert [model.id async for model in claude.models.list()] == ["m", "other"]
    pager = await gemini.aio.models.list()
    assert [model.name async for model in pager] == ["models/m", "models/other"]
    assert (await gpt.models.retrieve("m")).id == "m"


# --- Gemini --------------------------------------------------------------------------------------


async def test_the_gemini_client_reads_an_answer_and_its_stream(gemini: genai.Client) -> None:
    """Plain and streamed, async and sync, the text is the same."""
    plain = await gemini.aio.models.generate_content(model="g", contents="Hello")
    stream = await gemini.aio.models.generate_content_stream(model="g", contents="Hello")
    streamed = "".join([chunk.text or "" async for chunk in stream])

    def read() -> str:
        return "".join(
            chunk.text or ""
            for chunk in gemini.models.generate_content_stream(model="g", contents="Hello")
        )

    assert plain.text is not None
    assert plain.text.startswith("This is a simulated answer from g to “Hello”.")
    assert plain.text == streamed == await asyncio.to_thread(read)
    assert plain.usage_metadata is not None
    assert plain.usage_metadata.prompt_token_count


async def test_gemini_calls_a_function_and_quotes_its_result(gemini: genai.Client) -> None:
    """The client's automatic calling runs the function and ends with a text about its result."""

    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    chat = gemini.chats.create(model="g", config=types.GenerateContentConfig(tools=[get_weather]))
    reply = await asyncio.to_thread(chat.send_message, QUESTION)
    assert (reply.text or "").startswith("The tool returned: sunny in Lima.")


@pytest.mark.parametrize("version", ["v1", "v1beta"])
async def test_gemini_streams_a_json_array_without_alt_sse(
    simulator: Simulator, http: aiohttp.ClientSession, version: str
) -> None:
    """Without `alt=sse` the stream is one JSON array, whose last candidate has a finish reason."""
    response, raw = await post(
        http,
        simulator,
        {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]},
        f"/{version}/models/g:streamGenerateContent",
    )
    chunks = json.loads(raw)
    text = "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks)
    assert response.content_type == "application/json"
    assert text.startswith("This is a simulated answer from g")
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_gemini_counts_and_embeds(gemini: genai.Client) -> None:
    """Tokens are counted and texts embedded without generating."""
    count = await gemini.aio.models.count_tokens(model="g", contents="hello world")
    embedded = await gemini.aio.models.embed_content(model="g", contents=["x", "y"])
    assert count.total_tokens
    assert embedded.embeddings is not None
    assert len(embedded.embeddings) == 2


# --- Anthropic -----------------------------------------------------------------------------------


async def test_the_anthropic_client_reads_an_answer_and_its_stream(
    claude: anthropic.AsyncAnthropic,
) -> None:
    """Plain and streamed the text, the stop reason and the usage are the same."""
    asked: Any = {
        "model": "c",
        "max_tokens": 40,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hello"}],
    }
    plain = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert plain.content[0].type == streamed.content[0].type == "text"
    assert plain.content[0].text == streamed.content[0].text
    assert plain.stop_reason == streamed.stop_reason == "max_tokens"
    assert plain.usage.output_tokens == streamed.usage.output_tokens == 40


async def test_the_sync_anthropic_client_streams_too(simulator: Simulator) -> None:
    """The blocking client reads a stream to its end."""

    def read() -> str:
        with (
            anthropic.Anthropic(base_url=simulator.url, api_key="k") as client,
            client.messages.stream(
                model="c", max_tokens=500, messages=[{"role": "user", "content": "Hi"}]
            ) as stream,
        ):
            return stream.get_final_text()

    assert "simulated answer from c" in await asyncio.to_thread(read)


async def test_an_anthropic_tool_is_used_and_its_result_quoted(
    claude: anthropic.AsyncAnthropic,
) -> None:
    """A tool-use block comes first, then a text about the tool's result."""
    asked: Any = {
        "model": "c",
        "max_tokens": 500,
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
    }
    messages: Any = [{"role": "user", "content": QUESTION}]
    async with claude.messages.stream(**asked, messages=messages) as stream:
        use = (await stream.get_final_message()).content[0]
    assert use.type == "tool_use"
    assert use.input == {"city": "Lima", "days": 2}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    block = {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
    messages += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    answer = await claude.messages.create(**asked, messages=messages)
    assert answer.content[0].type == "text"
    assert answer.content[0].text.startswith("The tool returned: rain.")


async def test_anthropic_tokens_are_counted(claude: anthropic.AsyncAnthropic) -> None:
    """The count is the one that an answer reports as its input."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    count = await claude.messages.count_tokens(model="c", messages=messages)
    answer = await claude.messages.create(model="c", max_tokens=5, messages=messages)
    assert count.input_tokens == answer.usage.input_tokens


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "/v1/chat/completions",
            {
                "error": {
                    "message": "Simulated error 503.",
                    "type": "server_error",
                    "param": None,
                    "code": None,
                }
            },
        ),
        (
            "/v1beta/models/g:generateContent",
            {"error": {"code": 503, "message": "Simulated error 503.", "status": "UNAVAILABLE"}},
        ),
        (
            "/v1/messages",
            {
                "type": "error",
                "error": {"type": "api_error", "message": "Simulated error 503."},
                "request_id": "req_",
            },
        ),
    ],
)
async def test_a_commanded_status_has_the_providers_error_shape(
    simulator: Simulator, http: aiohttp.ClientSession, path: str, expected: Any
) -> None:
    """`x-test-status` answers as the provider of that path would."""
    response, raw = await post(http, simulator, {}, path, status="503")
    body = json.loads(raw)
    if "request_id" in body:
        body["request_id"] = body["request_id"][:4]
    assert response.status == 503
    assert body == expected


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'{"messages": 5}', b'{"messages": []}', b"[" * 5_000]
)
async def test_a_body_that_is_no_request_gets_400(
    simulator: Simulator, http: aiohttp.ClientSession, raw: bytes
) -> None:
    """Whatever is sent, the client is told, and the simulator lives on."""
    async with http.post(f"{simulator.url}/v1/chat/completions", data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_an_unknown_path_gets_404(simulator: Simulator, http: aiohttp.ClientSession) -> None:
    """A path of no provider is not found."""
    async with http.get(f"{simulator.url}/favicon.ico") as response:
        assert response.status == 404


# --- Commands ------------------------------------------------------------------------------------


async def test_statuses_in_a_row_go_by_attempt(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """The attempts of one request id get one status each; the last one stays."""
    headers = {"x-test-status": "503,429,200", "x-request-id": "a"}
    statuses = []
    for port in [simulator.ports[0], simulator.ports[1], *simulator.ports]:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with http.post(url, json=HELLO, headers=headers) as response:
            statuses.append(response.status)
    assert statuses == [503, 429, 200, 200]


async def test_commanded_chunks_arrive_as_they_were_cut(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """Each chunk is written apart, be it cut inside an event, a line end or a character."""
    chunks = [b"data: a", b"\r", b"\n\r\ndata: \xe5\x89", b"\x8d\n\n"]
    command = ",".join(base64.b64encode(chunk).decode() for chunk in chunks)
    async with http.post(
        f"{simulator.url}/v1/chat/completions", json=HELLO, headers={"x-test-sse": command}
    ) as response:
        arrived = [data async for data, end in response.content.iter_chunks() if data]
    assert response.content_type == "text/event-stream"
    assert arrived == chunks


async def test_chunks_may_be_written_as_json(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """A JSON list of texts does as well as Base64."""
    _, raw = await post(http, simulator, sse='["data: 1\\n\\n", "data: [DONE]\\n\\n"]')
    assert raw == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_connection_drops_after_so_many_bytes(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """The head promises the whole body, of which only the first bytes come."""
    async with http.post(
        f"{simulator.url}/v1/chat/completions", json=HELLO, headers={"x-test-close": "10"}
    ) as response:
        assert response.status == 200
        assert await response.content.readexactly(10) == b'{"id":"cha'
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()


async def test_a_connection_drops_after_so_many_chunks(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """A stream that breaks off never ends its chunked coding."""
    async with http.post(
        f"{simulator.url}/v1/chat/completions",
        json=HELLO | {"stream": True},
        headers={"x-test-close": "2 chunks"},
    ) as response:
        arrived = b""
        with pytest.raises(aiohttp.ClientPayloadError):  # noqa: PT012  # it breaks in between
            async for data in response.content.iter_any():
                arrived += data
    assert arrived.count(b"\n\n") == 2


async def test_a_connection_drops_before_the_head(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """Zero bytes means that not even a status line comes."""
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(http, simulator, close="0")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_can_be_compressed(
    simulator: Simulator, http: aiohttp.ClientSession, stream: bool
) -> None:
    """The unpacked bytes are those of the plain reply, streamed or not."""
    body = HELLO | {"stream": stream}
    _, plain = await post(http, simulator, body)
    response, packed = await post(http, simulator, body, gzip="1")
    assert response.headers["content-encoding"] == "gzip"
    assert plain == zlib.decompress(packed, wbits=31)


async def test_an_echo_shows_what_arrived(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """Method, path with query, headers and the exact bytes come back, on any path."""
    raw = b'{"a":  1, "a": 2}\x00\xff'
    async with http.put(
        f"{simulator.url}/any%20path?x=1", data=raw, headers={"x-test-echo": "1", "X-Mixed": "Ab"}
    ) as response:
        body = await response.json()
    assert body["method"] == "PUT"
    assert body["path"] == "/any%20path?x=1"
    assert body["headers"]["x-mixed"] == "Ab"
    assert base64.b64decode(body["body_base64"]) == raw


async def test_a_stream_may_lack_its_end(simulator: Simulator, http: aiohttp.ClientSession) -> None:
    """Without its last event the stream is the same otherwise."""
    body = HELLO | {"stream": True}
    _, whole = await post(http, simulator, body)
    _, cut = await post(http, simulator, body, no_done="1")
    assert whole == cut + b"data: [DONE]\n\n"


async def test_a_stream_may_end_its_lines_with_crlf(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """Only the line ends differ."""
    body = HELLO | {"stream": True}
    _, plain = await post(http, simulator, body)
    _, crlf = await post(http, simulator, body, crlf="1")
    assert plain.replace(b"\n", b"\r\n") == crlf


async def test_an_answer_has_as_many_tokens_as_commanded(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """Length is exact, however long, whatever the request's own limit."""
    _, raw = await post(http, simulator, HELLO | {"max_tokens": 5}, tokens="5000")
    assert json.loads(raw)["usage"]["completion_tokens"] == 5_000


async def test_vllms_own_parameters_set_the_length(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """`ignore_eos` goes on to `max_tokens`, as benchmarks ask."""
    _, raw = await post(http, simulator, HELLO | {"max_tokens": 700, "ignore_eos": True})
    assert json.loads(raw)["usage"]["completion_tokens"] == 700


async def test_a_command_that_means_nothing_gets_400(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """A test with a typing error does not pass by chance."""
    response, _ = await post(http, simulator, delay="soon")
    assert response.status == 400


async def test_more_headers_can_be_commanded(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """They stand beside the replica's name."""
    response, _ = await post(http, simulator, headers='{"etag": "1"}')
    assert response.headers["etag"] == "1"
    assert response.headers["x-simulated-replica"] == "replica-0"


# --- Requests ------------------------------------------------------------------------------------


async def test_requests_are_kept_as_they_came(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """A test reads replica, method, path, lower-case headers and the very bytes."""
    raw = b'{"contents" :[{"parts":[{"text":"x"}]}]}'
    url = f"http://127.0.0.1:{simulator.ports[1]}/v1beta/models/g:generateContent?key=1"
    async with http.post(url, data=raw, headers={"X-Custom": "Ab"}) as response:
        assert response.status == 200
    received = simulator.requests[-1]
    assert received.replica == "replica-1"
    assert received.path == "/v1beta/models/g:generateContent?key=1"
    assert received.headers["x-custom"] == "Ab"
    assert received.body == raw


async def test_only_so_many_requests_are_kept(http: aiohttp.ClientSession) -> None:
    """The oldest go first; scrapes and probes are no requests."""
    async with Simulator(keep=2) as simulator:
        for index in range(3):
            await post(http, simulator, path=f"/{index}")
        for path in ("/metrics", "/health"):
            async with http.get(simulator.url + path) as response:
                assert response.status == 200
    assert [received.path for received in simulator.requests] == ["/1", "/2"]


async def test_a_taken_port_is_an_os_error(simulator: Simulator) -> None:
    """Whoever starts it learns that the port is not free, and nothing stays open."""
    taken = Simulator(port=simulator.port)
    with pytest.raises(OSError, match="address already in use"):
        await taken.__aenter__()


async def test_a_row_of_ports_ends_at_the_last_one() -> None:
    """Else a replica would come to listen on port 1."""
    with pytest.raises(OSError, match="there is no port above 65,535"):
        await Simulator(port=65_535, replicas=2).__aenter__()


# --- Engine --------------------------------------------------------------------------------------


async def scrape(http: aiohttp.ClientSession, simulator: Simulator) -> dict[str, float]:
    """Return the replica's samples by name, without their labels."""
    async with http.get(f"{simulator.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    found = (re.fullmatch(r"([\w:]+)\{.*\} (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match}


async def test_the_metrics_have_vllms_names_and_follow_the_requests(
    simulator: Simulator, http: aiohttp.ClientSession
) -> None:
    """What a picker reads from vLLM it reads from a replica, and the numbers are the real ones."""
    prompt = {"model": "m", "messages": [{"role": "user", "content": "word " * 200}]}
    _, first = await post(http, simulator, prompt)
    await post(http, simulator, prompt)
    usage = json.loads(first)["usage"]
    samples = await scrape(http, simulator)
    assert samples["vllm:prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert samples["vllm:generation_tokens_total"] == 2 * usage["completion_tokens"]
    assert samples["vllm:prefix_cache_queries_total"] == 2 * usage["prompt_tokens"]
    assert samples["vllm:prefix_cache_hits_total"] == usage["prompt_tokens"] // 64 * 64
    assert samples["vllm:time_to_first_token_seconds_count"] == 2
    assert samples["vllm:num_requests_running"] == 0
    assert samples["vllm:num_requests_waiting"] == 0
    assert samples["vllm:kv_cache_usage_perc"] == 0
    assert samples["vllm:cache_config_info"] == 1


async def test_requests_beyond_the_slots_wait(http: aiohttp.ClientSession) -> None:
    """The gauges show who runs and who waits; a client that leaves frees its slot."""
    model = Model(replace(INSTANT, step_s=60.0, slots=1))
    async with Simulator(model=model) as simulator:
        life = simulator.replicas[0].life
        tasks = [asyncio.create_task(post(http, simulator)) for _ in range(2)]
        await reach(lambda: (life.running, life.waiting) == (1, 1))
        samples = await scrape(http, simulator)
        assert samples["vllm:num_requests_running"] == 1
        assert samples["vllm:num_requests_waiting"] == 1
        assert samples["vllm:kv_cache_usage_perc"] > 0
        tasks[0].cancel()
        await reach(lambda: life.waiting + life.running == 1)
        tasks[1].cancel()
        await reach(lambda: life.waiting + life.running == 0)
        await asyncio.gather(*tasks, return_exceptions=True)
        samples = await scrape(http, simulator)
        assert samples["vllm:kv_cache_usage_perc"] == 0


async def reach(condition: Any) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the engine has no event for every state
            await asyncio.sleep(0)


# --- Model ---------------------------------------------------------------------------------------


def test_a_value_is_made_for_every_kind_of_schema() -> None:
    """References, unions, enums, arrays and Gemini's upper-case types are understood."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "place": {"$ref": "#/$defs/place"},
            "maybe": {"anyOf": [{"type": "null"}, {"type": "NUMBER"}]},
            "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
            "either": {"type": ["null", "integer"]},
            "fixed": {"const": 7},
        },
        "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    assert value_for(schema, "Is it warm in San Juan today?") == {
        "unit": "C",
        "place": {"city": "San Juan"},
        "maybe": 1.5,
        "list": [True, True],
        "either": 1,
        "fixed": 7,
    }


def test_a_schema_that_refers_to_itself_ends() -> None:
    """Depth is bounded."""
    node: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert "next" in value_for(node, "x")


def test_the_words_depend_on_the_whole_prompt() -> None:
    """Same prompt, same words; another system prompt, other words."""
    ask = Ask(model="m", prompt="a", question="Hi")
    other = Ask(model="m", prompt="b", question="Hi")
    assert say(ask) == say(ask)
    assert say(ask).text != say(other).text
    assert say(ask).finish is Finish.STOP
