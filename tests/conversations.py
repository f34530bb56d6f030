"""Conversations in every provider's words, with calls of tools and media in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from filters.api import Exchange
from filters.document import encode
from tests.exchanges import WORDS, exchange_of

DIALECTS: Final = ("openai.chat", "openai.responses", "anthropic.messages", "gemini.generate")
"""Those that take a conversation message by message."""
LISTS: Final = {"openai.responses": "input", "gemini.generate": "contents"}
ODD: Final = 12345678901234567890123  # no double holds it


@dataclass(frozen=True, slots=True)
class Round:
    """What the user says, how often a tool is called for it, and what is answered."""

    question: str
    answer: str = ""
    calls: int = 0
    media: bool = False


def conversation(dialect: str, rounds: Sequence[Round], *, system: str = "") -> Exchange:
    """Return an exchange in which a client of `dialect` sends `rounds`."""
    write = _WRITERS[dialect]
    messages = [one for number, asked in enumerate(rounds) for one in write(asked, number)]
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": 100,
        LISTS.get(dialect, "messages"): messages,
    }
    if system:
        WORDS[dialect].system(body, system)
    raw = encode({**body, "odd": 0}).replace(b'"odd":0', b'"odd": 1.50e+3')
    return exchange_of(dialect, raw.replace(b'"N"', b"%d" % ODD), WORDS[dialect].path)


def messages_of(dialect: str, body: Any) -> list[Any]:
    """Return the messages of a decoded request."""
    found: list[Any] = body[LISTS.get(dialect, "messages")]
    return found


def _chat(asked: Round, number: int) -> list[Any]:
    content: Any = asked.question
    if asked.media:
        content = [
            {"type": "text", "text": asked.question},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        ]
    written: list[Any] = [{"role": "user", "content": content, "odd": "N"}]
    for call in range(asked.calls):
        name = f"call_{number}_{call}"
        function = {"name": "look", "arguments": "{}"}
        calls = [{"id": name, "type": "function", "function": function}]
        written += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": name, "content": '{"found": 1}'},
        ]
    return [*written, *([{"role": "assistant", "content": asked.answer}] if asked.answer else [])]


def _responses(asked: Round, number: int) -> list[Any]:
    parts: list[Any] = [{"type": "input_text", "text": asked.question}]
    if asked.media:
        parts.append({"type": "input_image", "image_url": "data:image/png;base64,AA"})
    written: list[Any] = [{"role": "user", "content": parts, "odd": "N"}]
    for call in range(asked.calls):
        name = f"call_{number}_{call}"
        written += [
            {"type": "reasoning", "id": f"rs_{name}", "summary": []},
            {"type": "function_call", "id": f"fc_{name}", "call_id": name, "arguments": "{}"},
            {"type": "function_call_output", "call_id": name, "output": '{"found": 1}'},
        ]
    answer = [{"type": "output_text", "text": asked.answer}]
    said = {"type": "message", "role": "assistant", "content": answer}
    return [*written, *([said] if asked.answer else [])]


def _anthropic(asked: Round, number: int) -> list[Any]:
    parts: list[Any] = [{"type": "text", "text": asked.question}]
    if asked.media:
        source = {"type": "base64", "media_type": "image/png", "data": "AA"}
        parts.insert(0, {"type": "image", "source": source})
    written: list[Any] = [{"role": "user", "content": parts, "odd": "N"}]
    for call in range(asked.calls):
        name = f"toolu_{number}_{call}"
        result = {"type": "tool_result", "tool_use_id": name, "content": '{"found": 1}'}
        written += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look.", "signature": "x"},
                    {"type": "tool_use", "id": name, "name": "look", "input": {}},
                ],
            },
            {"role": "user", "content": [result]},
        ]
    return [*written, *([{"role": "assistant", "content": asked.answer}] if asked.answer else [])]


def _gemini(asked: Round, number: int) -> list[Any]:
    parts: list[Any] = [{"text": asked.question}]
    if asked.media:
        parts.append({"inlineData": {"mimeType": "image/png", "data": "AA"}})
    written: list[Any] = [{"role": "user", "parts": parts, "odd": "N"}]
    for call in range(asked.calls):
        place = {"place": f"{number}.{call}"}  # its older models give calls no ids
        result = {"name": "look", "response": {"result": '{"found": 1}', **place}}
        written += [
            {"role": "model", "parts": [{"functionCall": {"name": "look", "args": place}}]},
            {"role": "user", "parts": [{"functionResponse": result}]},
        ]
    answer = {"role": "model", "parts": [{"text": asked.answer}]}
    return [*written, *([answer] if asked.answer else [])]


_WRITERS: Final = {
    "openai.chat": _chat,
    "openai.responses": _responses,
    "anthropic.messages": _anthropic,
    "gemini.generate": _gemini,
}
