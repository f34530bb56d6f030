"""The official clients get right answers through the gateway, and a known one without the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import uuid4

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.gateway import Gateway

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # google-genai subclasses aiohttp's session when aiohttp is there.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
MODEL: Final = "demo"
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 2}},
    "required": ["city", "days"],
}
TOOL_QUESTION: Final = "How is the weather in Lima"  # the simulator calls a tool for it


@dataclass(frozen=True, slots=True)
class Asking:
    """Where and as whom a client asks, and with which temperature (None: with none)."""

    url: str
    key: str
    temperature: float | None = 0.0


Way: TypeAlias = Callable[[Asking, str], Awaitable[str]]
"""One way to ask a question with an official client; returns the text of the answer."""

# --- OpenAI --------------------------------------------------------------------------------------


def _openai(asking: Asking) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{asking.url}/v1", api_key=asking.key, max_retries=0)


def _async_openai(asking: Asking) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{asking.url}/v1", api_key=asking.key, max_retries=0)


def _chat(asking: Asking, question: str) -> Any:
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": question}]}
    if asking.temperature is not None:
        asked["temperature"] = asking.temperature
    return asked


async def chat_sync(asking: Asking, question: str) -> str:
    def ask() -> str:
        with _openai(asking) as client:
            reply = client.chat.completions.create(**_chat(asking, question))
            return reply.choices[0].message.content or ""

    return await asyncio.to_thread(ask)


async def chat_sync_stream(asking: Asking, question: str) -> str:
    def ask() -> str:
        with (
            _openai(asking) as client,
            client.chat.completions.create(**_chat(asking, question), stream=True) as stream,
        ):
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    return await asyncio.to_thread(ask)


async def chat_async(asking: Asking, question: str) -> str:
    async with _async_openai(asking) as client:
        reply = await client.chat.completions.create(**_chat(asking, question))
        return reply.choices[0].message.content or ""


async def chat_async_stream(asking: Asking, question: str) -> str:
    async with (
        _async_openai(asking) as client,
        client.chat.completions.stream(**_chat(asking, question)) as stream,
    ):
        reply = await stream.get_final_completion()
        return reply.choices[0].message.content or ""


async def responses_async(asking: Asking, question: str) -> str:
    async with _async_openai(asking) as client:
        reply = await client.responses.create(
            model=MODEL, input=question, temperature=asking.temperature, store=False
        )
        return reply.output_text


async def responses_async_stream(asking: Asking, question: str) -> str:
    temperature = openai.omit if asking.temperature is None else asking.temperature
    async with (
        _async_openai(asking) as client,
        client.responses.stream(
            model=MODEL, input=question, temperature=temperature, store=False
        ) as stream,
    ):
        reply = await stream.get_final_response()
        return reply.output_text


async def completions_async(asking: Asking, question: str) -> str:
    async with _async_openai(asking) as client:
        reply = await client.completions.create(
            model=MODEL, prompt=question, temperature=asking.temperature, max_tokens=400
        )
        return reply.choices[0].text


async def completions_async_stream(asking: Asking, question: str) -> str:
    async with _async_openai(asking) as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt=question,
            temperature=asking.temperature,
            max_tokens=400,
            stream=True,
        )
        return "".join([chunk.choices[0].text async for chunk in stream])


# --- Gemini --------------------------------------------------------------------------------------


def _gemini(asking: Asking) -> genai.Client:
    return genai.Client(api_key=asking.key, http_options=types.HttpOptions(base_url=asking.url))


def _config(asking: Asking) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(temperature=asking.temperature)


async def gemini_sync(asking: Asking, question: str) -> str:
    def ask() -> str:
        with _gemini(asking) as client:
            reply = client.models.generate_content(
                model=MODEL, contents=question, config=_config(asking)
            )
            return reply.text or ""

    return await asyncio.to_thread(ask)


async def gemini_sync_stream(asking: Asking, question: str) -> str:
    def ask() -> str:
        with _gemini(asking) as client:
            stream = client.models.generate_content_stream(
                model=MODEL, contents=question, config=_config(asking)
            )
            return "".join(chunk.text or "" for chunk in stream)

    return await asyncio.to_thread(ask)


async def gemini_async(asking: Asking, question: str) -> str:
    with _gemini(asking) as client:
        async with client.aio as aio:
            reply = await aio.models.generate_content(
                model=MODEL, contents=question, config=_config(asking)
            )
            return reply.text or ""


async def gemini_async_stream(asking: Asking, question: str) -> str:
    with _gemini(asking) as client:
        async with client.aio as aio:
            stream = await aio.models.generate_content_stream(
                model=MODEL, contents=question, config=_config(asking)
            )
            return "".join([chunk.text or "" async for chunk in stream])


# --- Anthropic -----------------------------------------------------------------------------------


def _message(asking: Asking, question: str) -> Any:
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 400,
        "messages": [{"role": "user", "content": question}],
    }
    if asking.temperature is not None:  # the client has no argument for it, the API still has
        asked["extra_body"] = {"temperature": asking.temperature}
    return asked


async def anthropic_sync(asking: Asking, question: str) -> str:
    def ask() -> str:
        with anthropic.Anthropic(base_url=asking.url, api_key=asking.key, max_retries=0) as client:
            return _first_text(client.messages.create(**_message(asking, question)))

    return await asyncio.to_thread(ask)


async def anthropic_sync_stream(asking: Asking, question: str) -> str:
    def ask() -> str:
        with (
            anthropic.Anthropic(base_url=asking.url, api_key=asking.key, max_retries=0) as client,
            client.messages.stream(**_message(asking, question)) as stream,
        ):
            return stream.get_final_text()

    return await asyncio.to_thread(ask)


def _async_anthropic(asking: Asking) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=asking.url, api_key=asking.key, max_retries=0)


async def anthropic_async(asking: Asking, question: str) -> str:
    async with _async_anthropic(asking) as client:
        return _first_text(await client.messages.create(**_message(asking, question)))


async def anthropic_async_stream(asking: Asking, question: str) -> str:
    async with (
        _async_anthropic(asking) as client,
        client.messages.stream(**_message(asking, question)) as stream,
    ):
        return await stream.get_final_text()


def _first_text(message: Any) -> str:
    text: str = message.content[0].text
    return text


# --- Answers and hits ----------------------------------------------------------------------------

WAYS: Final[list[Way]] = [
    *(chat_sync, chat_sync_stream, chat_async, chat_async_stream),
    *(responses_async, responses_async_stream, completions_async, completions_async_stream),
    *(gemini_sync, gemini_sync_stream, gemini_async, gemini_async_stream),
    *(anthropic_sync, anthropic_sync_stream, anthropic_async, anthropic_async_stream),
]
PAIRS: Final[list[tuple[Way, Way]]] = [
    (chat_sync, chat_sync_stream),
    (responses_async, responses_async_stream),
    (completions_async, completions_async_stream),
    (gemini_async, gemini_async_stream),
    (anthropic_sync, anthropic_async_stream),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def _said(question: str) -> str:
    return f"This is a simulated answer from {MODEL} to “{question}”."


@every_way
async def test_a_client_gets_its_second_answer_without_the_upstream(
    gateway: Gateway, question: str, way: Way
) -> None:
    """The faq profile keeps an answer at its first sighting, whatever the temperature."""
    asking = Asking(f"{gateway.url}/p/faq", uuid4().hex, temperature=None)
    with gateway.watch() as first:
        answer = await way(asking, question)
    with gateway.watch() as second:
        again = await way(asking, question)
    assert answer.startswith(_said(question))
    assert answer == again
    assert [1, 0] == [len(first.received), len(second.received)]
    assert ["miss", "hit"] == [first.notes["cache"], second.notes["cache"]]


@pytest.mark.parametrize(
    "way",
    [chat_async, responses_async, gemini_async, anthropic_async],
    ids=lambda way: way.__name__,
)
async def test_the_default_profile_keeps_an_answer_from_the_fifth_sighting_on(
    gateway: Gateway, question: str, way: Way
) -> None:
    """Five calls reach the upstream and the sixth is a hit, at temperature 0."""
    asking = Asking(gateway.url, uuid4().hex)
    answers = set()
    with gateway.watch(exchanges=5) as before:
        for _ in range(5):
            answers.add(await way(asking, question))
    with gateway.watch() as after:
        answers.add(await way(asking, question))
    assert (5, 0) == (len(before.received), len(after.received))
    assert [1, 2, 3, 4, 5] == [line["notes"]["cache.sightings"] for line in before.lines]
    assert "hit" == after.notes["cache"]
    assert 1 == len(answers)


@pytest.mark.parametrize(
    "way", [chat_async, gemini_async, anthropic_async], ids=lambda way: way.__name__
)
async def test_the_default_profile_keeps_no_answer_that_may_vary(
    gateway: Gateway, question: str, way: Way
) -> None:
    """Above temperature 0 every call reaches the upstream."""
    asking = Asking(gateway.url, uuid4().hex, temperature=0.7)
    with gateway.watch(exchanges=6) as seen:
        for _ in range(6):
            await way(asking, question)
    assert 6 == len(seen.received)
    assert {"temperature"} == {line["notes"]["cache.why"] for line in seen.lines}


@pytest.mark.parametrize(
    ("plain", "stream"),
    PAIRS,
    ids=[f"{plain.__name__}-{stream.__name__}" for plain, stream in PAIRS],
)
@pytest.mark.parametrize("from_stream", [False, True], ids=["kept-plain", "kept-streamed"])
async def test_one_stored_answer_serves_plain_and_streaming_clients(
    gateway: Gateway, question: str, plain: Way, stream: Way, from_stream: bool
) -> None:
    """Whichever kind asked first, the other kind's client reads the same text from the store."""
    asking = Asking(f"{gateway.url}/p/faq", uuid4().hex)
    first, second = (stream, plain) if from_stream else (plain, stream)
    with gateway.watch():
        answer = await first(asking, question)
    with gateway.watch() as seen:
        again = await second(asking, question)
    assert ([], "hit") == (seen.received, seen.notes["cache"])
    assert answer == again


async def test_embeddings_are_answered_from_the_store(gateway: Gateway, question: str) -> None:
    """They are deterministic by nature and have no temperature."""
    asking = Asking(f"{gateway.url}/p/faq", uuid4().hex)
    async with _async_openai(asking) as client:
        with gateway.watch():
            first = await client.embeddings.create(model=MODEL, input=question)
        with gateway.watch() as seen:
            second = await client.embeddings.create(model=MODEL, input=question)
    assert ([], "hit") == (seen.received, seen.notes["cache"])
    assert first.data[0].embedding == second.data[0].embedding


async def test_other_endpoints_of_a_provider_pass(gateway: Gateway) -> None:
    """Lists of models and counts of tokens are no calls to a model and come as they are."""
    asking = Asking(f"{gateway.url}/p/faq", uuid4().hex)
    async with _async_openai(asking) as gpt, _async_anthropic(asking) as claude:
        assert ["simulated"] == [model.id async for model in gpt.models.list()]
        counted = await claude.messages.count_tokens(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}]
        )
    assert counted.input_tokens > 0


# --- Tools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["", "/p/faq"], ids=["default", "faq"])
async def test_openais_clients_call_tools(gateway: Gateway, question: str, profile: str) -> None:
    """Plain and streamed: the call, then an answer with its result in it; neither is kept."""
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    messages: Any = [{"role": "user", "content": f"{TOOL_QUESTION}? {question}"}]
    asked: Any = {"model": MODEL, "tools": [tool], "temperature": 0}
    async with _async_openai(Asking(gateway.url + profile, uuid4().hex)) as client:
        with gateway.watch(exchanges=3) as seen:
            plain = await client.chat.completions.create(**asked, messages=messages)
            async with client.chat.completions.stream(**asked, messages=messages) as stream:
                streamed = await stream.get_final_completion()
            call = (plain.choices[0].message.tool_calls or [])[0]
            result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
            messages += [plain.choices[0].message.model_dump(exclude_none=True), result]
            answer = await client.chat.completions.create(**asked, messages=messages)
    assert call.type == "function"
    again = (streamed.choices[0].message.tool_calls or [])[0].function
    assert ("get_weather", call.function.arguments) == (again.name, again.arguments)
    assert {"city", "days"} == set(json.loads(call.function.arguments))
    assert (answer.choices[0].message.content or "").startswith("The tool returned: 18 degrees.")
    assert 3 == len(seen.received)


async def test_openais_responses_call_tools(gateway: Gateway, question: str) -> None:
    """A function call is an item of the output, its result an item of the next input."""
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    asked = f"{TOOL_QUESTION}? {question}"
    async with _async_openai(Asking(f"{gateway.url}/p/faq", uuid4().hex)) as client:
        async with client.responses.stream(
            model=MODEL, input=asked, tools=[tool], store=False
        ) as stream:
            call = (await stream.get_final_response()).output[0]
        assert call.type == "function_call"
        items: Any = [
            {"role": "user", "content": asked},
            call.model_dump(include={"type", "call_id", "name", "arguments"}),
            {"type": "function_call_output", "call_id": call.call_id, "output": "fog"},
        ]
        answer = await client.responses.create(model=MODEL, input=items, tools=[tool], store=False)
    assert answer.output_text.startswith("The tool returned: fog.")


def test_geminis_client_calls_functions(gateway: Gateway, question: str) -> None:
    """Its automatic calling runs the function and ends with a text about the result."""

    def get_weather(city: str) -> str:
        return f"sunny in {city[:4]}"

    config = types.GenerateContentConfig(tools=[get_weather], temperature=0)
    with _gemini(Asking(f"{gateway.url}/p/faq", uuid4().hex)) as client:
        chat = client.chats.create(model=MODEL, config=config)
        reply = chat.send_message(f"{question} {TOOL_QUESTION}?")
    assert (reply.text or "").startswith("The tool returned: sunny in Lima.")


async def test_geminis_client_streams_function_calls(gateway: Gateway, question: str) -> None:
    """A call comes whole, in a chunk of its own."""
    declared = types.FunctionDeclaration(name="get_weather", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[declared])])
    with _gemini(Asking(f"{gateway.url}/p/faq", uuid4().hex)) as client:
        async with client.aio as aio:
            stream = await aio.models.generate_content_stream(
                model=MODEL, contents=f"{question} {TOOL_QUESTION}?", config=config
            )
            calls = [call async for chunk in stream for call in chunk.function_calls or []]
    assert [("get_weather", {"city": "Lima", "days": 2})] == [(c.name, c.args) for c in calls]


async def test_anthropics_clients_use_tools(gateway: Gateway, question: str) -> None:
    """A streamed tool use, then an answer with the tool's result in it."""
    asked: Any = {
        "model": MODEL,
        "max_tokens": 400,
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
    }
    messages: Any = [{"role": "user", "content": f"{question} {TOOL_QUESTION}?"}]
    async with _async_anthropic(Asking(f"{gateway.url}/p/faq", uuid4().hex)) as client:
        async with client.messages.stream(**asked, messages=messages) as stream:
            use = (await stream.get_final_message()).content[0]
        assert use.type == "tool_use"
        block = {"type": "tool_use", "id": use.id, "name": use.name, "input": use.input}
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
        messages += [
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]},
        ]
        answer = await client.messages.create(**asked, messages=messages)
    assert {"city": "Lima", "days": 2} == use.input
    assert _first_text(answer).startswith("The tool returned: rain.")
