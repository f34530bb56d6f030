"""One stored answer serves the official clients of every chat dialect, plain and streamed."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeAlias

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.e2e.conftest import Gateways
from tests.gateway import Gateway, Upstream

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    # google-genai subclasses aiohttp's session when aiohttp is there.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]
MODEL: Final = "demo"
ROOM: Final = 400

Client: TypeAlias = Callable[[str, str, bool], Awaitable[tuple[str, str]]]
"""Asks a URL a question, streamed or not, and returns text and id of the answer."""


def across(tree: dict[str, Any]) -> None:
    """Let `faq` answer across dialects, and across tenants: each client has its key elsewhere."""
    cache = tree["node"]["metadata"]["forebay"]["profiles"]["faq"]["cache"]
    cache |= {"across_dialects": True, "share_tenants": True}


@pytest.fixture(scope="module")
def sharing(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    with gateways.open(upstream=upstream, edit=across) as gateway:
        yield gateway


async def chat(url: str, question: str, stream: bool) -> tuple[str, str]:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": ROOM,
    }
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        if not stream:
            reply = await client.chat.completions.create(**asked)
            return reply.choices[0].message.content or "", reply.id
        chunks = [one async for one in await client.chat.completions.create(**asked, stream=True)]
        (name,) = {chunk.id for chunk in chunks}
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), name


async def responses(url: str, question: str, stream: bool) -> tuple[str, str]:
    asked: dict[str, Any] = {
        "model": MODEL,
        "input": question,
        "max_output_tokens": ROOM,
        "store": False,
    }
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        if not stream:
            reply = await client.responses.create(**asked)
            return reply.output_text, reply.id
        async with client.responses.stream(**asked) as events:
            final = await events.get_final_response()
            return final.output_text, final.id


async def messages(url: str, question: str, stream: bool) -> tuple[str, str]:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": ROOM,
    }
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client:
        if stream:
            async with client.messages.stream(**asked) as events:
                message = await events.get_final_message()
        else:
            message = await client.messages.create(**asked)
        block = message.content[0]
        assert block.type == "text"
        return block.text, message.id


async def gemini(url: str, question: str, stream: bool) -> tuple[str, str]:
    config = types.GenerateContentConfig(max_output_tokens=ROOM)
    async with genai.Client(
        api_key="k", http_options=types.HttpOptions(base_url=url)
    ).aio as client:
        if not stream:
            reply = await client.models.generate_content(
                model=MODEL, contents=question, config=config
            )
            return reply.text or "", reply.response_id or ""
        chunks = [
            chunk
            async for chunk in await client.models.generate_content_stream(
                model=MODEL, contents=question, config=config
            )
        ]
        (name,) = {chunk.response_id or "" for chunk in chunks}
        return "".join(chunk.text or "" for chunk in chunks), name


CLIENTS: Final[dict[str, Client]] = {
    "openai.chat": chat,
    "openai.responses": responses,
    "anthropic.messages": messages,
    "gemini.generate": gemini,
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(CLIENTS, 2)])
async def test_what_one_client_was_told_another_ones_client_reads(
    sharing: Gateway, question: str, first: str, second: str, stream: bool
) -> None:
    """The model is asked once, and every client finds the same text under an id of its kind."""
    url = f"{sharing.url}/p/faq"
    with sharing.watch(exchanges=2) as seen:
        told, told_id = await CLIENTS[first](url, question, not stream)
        text, name = await CLIENTS[second](url, question, stream)
    assert (told, 1) == (text, len(seen.received))
    kinds = {"openai.chat": "chatcmpl-", "openai.responses": "resp_", "anthropic.messages": "msg_"}
    assert name.startswith(kinds.get(second, ""))
    assert told_id != name != ""
