"""The official clients get answers, streams and tool calls from `forebay up` as it comes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e import test_clients as ways
from tests.e2e.test_clients import MODEL, SCHEMA, TOOL_QUESTION, Asking, Way
from tests.e2e.test_up import starting

pytestmark = ways.pytestmark


@pytest.fixture(scope="module")
def asking() -> Iterator[Asking]:
    """Return a running `forebay up` and a key for it."""
    with tempfile.TemporaryDirectory(prefix="fb") as name, starting(Path(name)) as up:
        up.started()
        yield Asking(up.url, "a-key")


@pytest.mark.parametrize(
    "way",
    [
        *(ways.chat_sync, ways.chat_sync_stream),
        *(ways.anthropic_sync, ways.anthropic_sync_stream),
        *(ways.gemini_sync, ways.gemini_sync_stream),
    ],
    ids=lambda way: way.__name__,
)
async def test_an_official_client_is_answered(asking: Asking, question: str, way: Way) -> None:
    """Whole and streamed, with nothing set but the URL and a key."""
    answer = await way(asking, question)
    assert answer.startswith(f"This is a simulated answer from {MODEL} to “{question}”.")


def openai_call(asking: Asking) -> Any:
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    with openai.OpenAI(base_url=f"{asking.url}/v1", api_key=asking.key, max_retries=0) as client:
        reply = client.chat.completions.create(
            model=MODEL, tools=[tool], messages=[{"role": "user", "content": TOOL_QUESTION}]
        )
    call = (reply.choices[0].message.tool_calls or [])[0]
    assert call.type == "function"
    return call.function.name


def anthropic_call(asking: Asking) -> Any:
    with anthropic.Anthropic(base_url=asking.url, api_key=asking.key, max_retries=0) as client:
        reply = client.messages.create(
            model=MODEL,
            max_tokens=400,
            tools=[{"name": "get_weather", "input_schema": SCHEMA}],
            messages=[{"role": "user", "content": TOOL_QUESTION}],
        )
    (use,) = reply.content
    assert use.type == "tool_use"
    return use.name


def gemini_call(asking: Asking) -> Any:
    declared = types.FunctionDeclaration(name="get_weather", parameters_json_schema=SCHEMA)
    options = types.HttpOptions(base_url=asking.url)
    with genai.Client(api_key=asking.key, http_options=options) as client:
        reply = client.models.generate_content(
            model=MODEL,
            contents=TOOL_QUESTION,
            config=types.GenerateContentConfig(
                tools=[types.Tool(function_declarations=[declared])]
            ),
        )
    (call,) = reply.function_calls or []
    return call.name


@pytest.mark.parametrize(
    "call", [openai_call, anthropic_call, gemini_call], ids=lambda call: call.__name__
)
def test_an_official_client_is_told_to_call_a_tool(
    asking: Asking, call: Callable[[Asking], Any]
) -> None:
    """The client reads the call from its provider's own shape."""
    assert "get_weather" == call(asking)
