"""Exchanges for tests of filters: the same question in every provider's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from filters.api import Exchange, ReplyHead, RequestHead
from filters.dialects import DIALECTS
from filters.document import Document, encode

CHATS = [name for name in DIALECTS if not name.endswith(".embeddings")]
"""Dialects whose answer is text."""


@dataclass(frozen=True, slots=True)
class Words:
    """How one provider asks and answers; `ANSWER` stands for the text of the answer."""

    path: str
    stream_path: str
    ask: Any
    system: Any
    temperature: tuple[str, ...]
    seed: tuple[str, ...] | None
    answer: Any


def _chat(question: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}]}


def _chat_system(body: dict[str, Any], system: str) -> None:
    body["messages"].insert(0, {"role": "system", "content": system})


def _anthropic_system(body: dict[str, Any], system: str) -> None:
    body["system"] = system


def _gemini_system(body: dict[str, Any], system: str) -> None:
    body["systemInstruction"] = {"parts": [{"text": system}]}


def _responses_system(body: dict[str, Any], system: str) -> None:
    body["instructions"] = system


def _completions_system(body: dict[str, Any], system: str) -> None:
    body["prompt"] = f"{system}\n{body['prompt']}"


WORDS = {
    "openai.chat": Words(
        "/v1/chat/completions",
        "/v1/chat/completions",
        _chat,
        _chat_system,
        ("temperature",),
        ("seed",),
        lambda text, tokens: {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens},
        },
    ),
    "openai.completions": Words(
        "/v1/completions",
        "/v1/completions",
        lambda question: {"model": "m", "prompt": question},
        _completions_system,
        ("temperature",),
        ("seed",),
        lambda text, tokens: {
            "id": "c",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens},
        },
    ),
    "openai.responses": Words(
        "/v1/responses",
        "/v1/responses",
        lambda question: {"model": "m", "input": question, "store": False},
        _responses_system,
        ("temperature",),
        None,
        lambda text, tokens: {
            "id": "r",
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [
                {
                    "type": "message",
                    "id": "m1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                }
            ],
            "usage": {"input_tokens": 5, "output_tokens": tokens, "total_tokens": 5 + tokens},
        },
    ),
    "gemini.generate": Words(
        "/v1beta/models/m:generateContent",
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        lambda question: {"contents": [{"role": "user", "parts": [{"text": question}]}]},
        _gemini_system,
        ("generationConfig", "temperature"),
        ("generationConfig", "seed"),
        lambda text, tokens: {
            "candidates": [
                {
                    "content": {"role": "model", "parts": [{"text": text}]},
                    "finishReason": "STOP",
                    "index": 0,
                }
            ],
            "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": tokens},
            "modelVersion": "m",
        },
    ),
    "anthropic.messages": Words(
        "/v1/messages",
        "/v1/messages",
        lambda question: {
            "model": "m",
            "max_tokens": 100,
            "messages": [{"role": "user", "content": question}],
        },
        _anthropic_system,
        ("temperature",),
        None,
        lambda text, tokens: {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": tokens},
        },
    ),
}


def ask(
    dialect: str,
    question: str,
    *,
    system: str | None = None,
    stream: bool = False,
    temperature: float | None = None,
    seed: int | None = None,
    headers: Mapping[str, str] | None = None,
    tenant: str = "tenant",
    profile: str = "default",
    more: Mapping[str, Any] | None = None,
) -> Exchange:
    """Return an exchange in which a client of `dialect` asks `question`."""
    words = WORDS[dialect]
    body = words.ask(question)
    if system is not None:
        words.system(body, system)
    if temperature is not None:
        _put(body, words.temperature, temperature)
    if seed is not None:
        assert words.seed is not None
        _put(body, words.seed, seed)
    if stream and "alt=" not in words.stream_path:
        body["stream"] = True
    body.update(more or {})
    path = words.stream_path if stream else words.path
    return exchange_of(dialect, encode(body), path, headers=headers, tenant=tenant, profile=profile)


def exchange_of(
    dialect: str,
    body: bytes,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    tenant: str = "tenant",
    profile: str = "default",
) -> Exchange:
    """Return an exchange with a body as it stands."""
    view = DIALECTS[dialect]
    return Exchange(
        profile=profile,
        tenant=tenant,
        head=RequestHead("POST", path, headers or {}),
        dialect=view,
        prompt=view.read(Document(body), path),
        pool="full",
    )


def answer(dialect: str, text: str = "an answer", tokens: int = 3) -> bytes:
    """Return the plain reply in which a provider says `text`."""
    return encode(WORDS[dialect].answer(text, tokens))


def reply_head(content_type: str = "application/json", status: int = 200) -> ReplyHead:
    return ReplyHead(status, {":status": str(status), "content-type": content_type})


def _put(body: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        body = body.setdefault(step, {})
    body[path[-1]] = value
