"""Speak as OpenAI, Gemini and Anthropic do: read a request, write a reply, a stream, an error.

The shapes are those that the official clients parse. Written apart from the gateway's dialects on
purpose: a test through both checks one reading of each API against another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from ext_proc.tools.simulated_model import (
    EMBEDDING_DIMENSIONS,
    Ask,
    Said,
    Spent,
    Tool,
    digest_of,
    embed,
    pack,
    tokens_of,
)
from filters.api import Finish
from filters.document import Json, encode

CREATED: Final = 1_767_225_600  # 2026-01-01: a date in every reply, the same in every reply
SSE: Final = "text/event-stream"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a stream, due when `step` tokens are there; `last` ones end a complete stream."""

    step: int
    data: bytes
    last: bool = False


class Api(Protocol):
    """One endpoint that generates text."""

    def read(self, body: Json) -> Ask:
        """Read a request; any error but `MemoryError` means that the body is none."""

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """Return the plain JSON reply."""

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """Return the content type and the parts of the streamed reply."""


def sse(data: Json, event: str = "") -> bytes:
    """Write one server-sent event."""
    head = b"event: %b\n" % event.encode() if event else b""
    return b"%bdata: %b\n\n" % (head, data if isinstance(data, bytes) else encode(data))


DONE: Final = sse(b"[DONE]")
ASSISTANT: Final = '\n{"role":"assistant","content":"'  # as the next request has it


def steps(said: Sequence[Said]) -> Iterator[tuple[int, int, str]]:
    """Go through the tokens as they are made: step from 1, index of the answer, the token."""
    for step in range(max((len(one.pieces) for one in said), default=0)):
        for index, one in enumerate(said):
            if step < len(one.pieces):
                yield step + 1, index, one.pieces[step]


def length(said: Sequence[Said]) -> int:
    """Return the step at which the longest answer ends."""
    return max((len(one.pieces) for one in said), default=0)


def text_in(content: Json) -> str:
    """Return the text of a string, of a list of parts, or of anything with text inside."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(filter(None, map(text_in, content)))
        case {"text": str(text)}:
            return text
        case {"content": inner} | {"parts": inner}:
            return text_in(inner)
        case _:
            return ""


def whole(*parts: Json) -> str:
    """Join what the model reads; what is no text is read as its JSON."""
    return "\n".join(
        part if isinstance(part, str) else encode(part).decode() for part in parts if part
    )


def first(body: Json, *names: str, default: Any = None) -> Any:
    """Return the first of the members that is there and not null."""
    return next((body[name] for name in names if body.get(name) is not None), default)


def _stops(value: Json) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


# --- OpenAI --------------------------------------------------------------------------------------

_OPENAI_FINISH: Final = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.TOOL: "tool_calls"}


def _openai_usage(spent: Spent) -> Json:
    # vLLM leaves prompt_tokens_details out unless told otherwise; so equal prompts, equal bytes.
    return {
        "prompt_tokens": spent.input,
        "completion_tokens": spent.output,
        "total_tokens": spent.input + spent.output,
    }


class OpenAIChat:
    """`/v1/chat/completions`."""

    def read(self, body: Json) -> Ask:
        """See `Api`."""
        messages = body["messages"]
        if not messages:
            raise ValueError("messages is empty")
        choice = body.get("tool_choice")
        shape = body.get("response_format") or {}
        schemas = {
            "json_object": {"properties": {"answer": {"type": "string"}}},
            "json_schema": (shape.get("json_schema") or {}).get("schema"),
        }
        least = int(body.get("min_tokens") or 0)
        most = first(body, "max_completion_tokens", "max_tokens")
        return Ask(
            model=str(body.get("model", "")),
            prompt=whole(body.get("tools"), *messages),
            turn=ASSISTANT,
            question=next(
                (text_in(m["content"]) for m in reversed(messages) if m["role"] == "user"), ""
            ),
            result=text_in(messages[-1]["content"]) if messages[-1]["role"] == "tool" else None,
            tools=tuple(
                Tool(tool["function"]["name"], tool["function"].get("parameters") or {})
                for tool in body.get("tools") or ()
                if tool["type"] == "function" and choice != "none"
            ),
            call=_openai_choice(choice),
            schema=schemas.get(shape.get("type", "")),
            max_tokens=most,
            # vLLM's own two: benchmarks use them to ask for an exact length.
            min_tokens=int(most) if body.get("ignore_eos") and most else least,
            choices=int(body.get("n") or 1),
            stop=_stops(body.get("stop")),
            stream=bool(body.get("stream")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """See `Api`."""
        choices = []
        for index, one in enumerate(said):
            message: Json = {"role": "assistant", "content": one.text, "refusal": None}
            if one.tool:
                message["content"] = None
                message["tool_calls"] = [self._call(ask, one, one.text)]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": _OPENAI_FINISH[one.finish],
                }
            )
        return self._head(ask, "chat.completion") | {
            "choices": choices,
            "usage": _openai_usage(spent),
        }

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """See `Api`."""
        return SSE, self._frames(ask, said, spent)

    def _frames(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Iterator[Frame]:
        head = self._head(ask, "chat.completion.chunk")
        if ask.include_usage:
            head["usage"] = None

        def chunk(index: int, delta: Json, finish: str | None = None) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse(head | {"choices": [choice]})

        for index, one in enumerate(said):
            opening: Json = {"role": "assistant", "content": None if one.tool else ""}
            if one.tool:
                opening["tool_calls"] = [{"index": 0, **self._call(ask, one, "")}]
            yield Frame(0, chunk(index, opening))
        for step, index, piece in steps(said):
            if said[index].tool:
                delta: Json = {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
            else:
                delta = {"content": piece}
            yield Frame(step, chunk(index, delta))
        end = length(said)
        for index, one in enumerate(said):
            yield Frame(end, chunk(index, {}, _OPENAI_FINISH[one.finish]))
        if ask.include_usage:
            yield Frame(end, sse(head | {"choices": [], "usage": _openai_usage(spent)}))
        yield Frame(end, DONE, last=True)

    def _head(self, ask: Ask, kind: str) -> dict[str, Json]:
        return {
            "id": f"chatcmpl-{digest_of(ask.model, ask.prompt)}",
            "object": kind,
            "created": CREATED,
            "model": ask.model,
            "system_fingerprint": "fp_simulated",
        }

    def _call(self, ask: Ask, one: Said, arguments: str) -> Json:
        return {
            "id": f"call_{digest_of(ask.prompt, one.text)}",
            "type": "function",
            "function": {"name": one.tool, "arguments": arguments},
        }


def _openai_choice(choice: Json) -> str | None:
    """Read a tool choice: a word, or an object that names the function at one of two places."""
    if isinstance(choice, dict):
        return str(first(choice.get("function") or choice, "name", default=""))
    return "" if choice == "required" else None


class OpenAICompletions:
    """`/v1/completions`, the older one without messages; one answer for each of the prompts."""

    def read(self, body: Json) -> Ask:
        """See `Api`."""
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else text_in(prompt) or encode(prompt).decode()
        many = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        most = int(first(body, "max_tokens", default=16))  # the API's own default
        return Ask(
            model=str(body.get("model", "")),
            prompt=text,
            question=text,
            max_tokens=most,
            min_tokens=most if body.get("ignore_eos") else int(body.get("min_tokens") or 0),
            choices=int(body.get("n") or 1) * (len(prompt) if many else 1),
            stop=_stops(body.get("stop")),
            stream=bool(body.get("stream")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """See `Api`."""
        choices = [
            self._choice(index, one.text, _OPENAI_FINISH[one.finish])
            for index, one in enumerate(said)
        ]
        return self._head(ask) | {"choices": choices, "usage": _openai_usage(spent)}

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """See `Api`."""
        return SSE, self._frames(ask, said, spent)

    def _frames(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Iterator[Frame]:
        head, end = self._head(ask), length(said)
        if ask.include_usage:
            head["usage"] = None
        for step, index, piece in steps(said):
            yield Frame(step, sse(head | {"choices": [self._choice(index, piece, None)]}))
        for index, one in enumerate(said):
            finish = _OPENAI_FINISH[one.finish]
            yield Frame(end, sse(head | {"choices": [self._choice(index, "", finish)]}))
        if ask.include_usage:
            yield Frame(end, sse(head | {"choices": [], "usage": _openai_usage(spent)}))
        yield Frame(end, DONE, last=True)

    def _head(self, ask: Ask) -> dict[str, Json]:
        return {
            "id": f"cmpl-{digest_of(ask.model, ask.prompt)}",
            "object": "text_completion",
            "created": CREATED,
            "model": ask.model,
        }

    def _choice(self, index: int, text: str, finish: str | None) -> Json:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


class OpenAIResponses:
    """`/v1/responses`, whose stream is a series of numbered, typed events without `[DONE]`."""

    def read(self, body: Json) -> Ask:
        """See `Api`."""
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        last = items[-1]
        shape = (body.get("text") or {}).get("format") or {}
        schemas = {
            "json_object": {"properties": {"answer": {"type": "string"}}},
            "json_schema": shape.get("schema"),
        }
        choice = body.get("tool_choice")
        return Ask(
            model=str(body.get("model", "")),
            prompt=whole(body.get("instructions"), body.get("tools"), *items),
            question=next(
                (text_in(i["content"]) for i in reversed(items) if i.get("role") == "user"), ""
            ),
            result=text_in(last["output"]) if last.get("type") == "function_call_output" else None,
            tools=tuple(
                Tool(tool["name"], tool.get("parameters") or {})
                for tool in body.get("tools") or ()
                if tool["type"] == "function" and choice != "none"
            ),
            call=_openai_choice(choice),
            schema=schemas.get(shape.get("type", "")),
            max_tokens=body.get("max_output_tokens"),
            stream=bool(body.get("stream")),
        )

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """See `Api`."""
        cut = said[0].finish is Finish.LENGTH
        return self._head(ask) | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(ask, said[0], said[0].text, done=True)],
            "usage": {
                "input_tokens": spent.input,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": spent.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": spent.input + spent.output,
            },
        }

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """See `Api`."""
        return SSE, self._frames(ask, said, spent)

    def _frames(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Iterator[Frame]:
        number, one = 0, said[0]
        opening = self._head(ask) | {"status": "in_progress", "output": [], "usage": None}
        item = self._item(ask, one, "", done=False)
        at: Json = {"item_id": item["id"], "output_index": 0}
        part_at: Json = at | {"content_index": 0}

        def event(step: int, kind: str, last: bool = False, **members: Json) -> Frame:
            nonlocal number
            data = {"type": kind, "sequence_number": number, **members}
            number += 1
            return Frame(step, sse(data, kind), last)

        yield event(0, "response.created", response=opening)
        yield event(0, "response.in_progress", response=opening)
        yield event(0, "response.output_item.added", output_index=0, item=item)
        end = len(one.pieces)
        if one.tool:
            kind = "response.function_call_arguments"
            for step, piece in enumerate(one.pieces, 1):
                yield event(step, f"{kind}.delta", **at, delta=piece)
            yield event(end, f"{kind}.done", **at, name=one.tool, arguments=one.text)
        else:
            part, text = self._part(""), "response.output_text"
            yield event(0, "response.content_part.added", **part_at, part=part)
            for step, piece in enumerate(one.pieces, 1):
                yield event(step, f"{text}.delta", **part_at, delta=piece, logprobs=[])
            yield event(end, f"{text}.done", **part_at, text=one.text, logprobs=[])
            done = self._part(one.text)
            yield event(end, "response.content_part.done", **part_at, part=done)
        item = self._item(ask, one, one.text, done=True)
        yield event(end, "response.output_item.done", output_index=0, item=item)
        reply = self.reply(ask, said, spent)
        yield event(end, f"response.{reply['status']}", last=True, response=reply)

    def _head(self, ask: Ask) -> dict[str, Json]:
        return {
            "id": f"resp_{digest_of(ask.model, ask.prompt, size=24)}",
            "object": "response",
            "created_at": CREATED,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": ask.max_tokens,
            "metadata": {},
            "model": ask.model,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "truncation": "disabled",
        }

    def _item(self, ask: Ask, one: Said, text: str, done: bool) -> Json:
        name = digest_of(ask.prompt, one.text, size=24)
        status = "in_progress" if not done else "completed"
        if done and one.finish is Finish.LENGTH:
            status = "incomplete"
        if one.tool:
            return {
                "id": f"fc_{name}",
                "type": "function_call",
                "status": status,
                "call_id": f"call_{name[:24]}",
                "name": one.tool,
                "arguments": text,
            }
        return {
            "id": f"msg_{name}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [self._part(text)] if done else [],
        }

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def openai_embeddings(body: Json) -> tuple[str, Json]:
    """Answer `/v1/embeddings`: return what was read, for its tokens, and the reply."""
    given = body["input"]
    many = isinstance(given, list) and not (given and isinstance(given[0], int))
    inputs = given if many else [given]
    texts = [one if isinstance(one, str) else encode(one).decode() for one in inputs]
    vectors = [embed(text, int(body.get("dimensions") or EMBEDDING_DIMENSIONS)) for text in texts]
    base64 = body.get("encoding_format") == "base64"
    used = sum(map(tokens_of, texts))
    return "\n".join(texts), {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": pack(vector) if base64 else vector,
            }
            for index, vector in enumerate(vectors)
        ],
        "model": body.get("model", ""),
        "usage": {"prompt_tokens": used, "total_tokens": used},
    }


# --- Gemini --------------------------------------------------------------------------------------

_GEMINI_FINISH: Final = {
    Finish.STOP: "STOP",
    Finish.LENGTH: "MAX_TOKENS",
    Finish.TOOL: "STOP",
}


_GEMINI_MODEL: Final = '\n{"role":"model","parts":[{"text":"'  # as the next request has it,
_GEMINI_PARTS: Final = '\n{"parts":[{"text":"'  # whichever comes first


class Gemini:
    """`generateContent` and `streamGenerateContent` of one model, as an array or as events.

    Members are read in both spellings, `generationConfig` and `generation_config`, as the API does.
    """

    _SCHEMAS: Final = ("parametersJsonSchema", "parameters_json_schema", "parameters")

    def __init__(self, model: str, stream: bool, events: bool) -> None:
        self._model: Final = model
        self._stream: Final = stream
        self._events: Final = events

    def read(self, body: Json) -> Ask:
        """See `Api`."""
        given = body["contents"]
        contents = given if isinstance(given, list) else [given]
        config = first(body, "generationConfig", "generation_config", default={})
        calling = first(body, "toolConfig", "tool_config", default={})
        calling = first(calling, "functionCallingConfig", "function_calling_config", default={})
        mode = calling.get("mode")
        allowed = first(calling, "allowedFunctionNames", "allowed_function_names", default=[""])
        users = [c for c in contents if c.get("role", "user") == "user" and text_in(c["parts"])]
        json_only = first(config, "responseMimeType", "response_mime_type") == "application/json"
        return Ask(
            model=self._model,
            prompt=whole(
                first(body, "systemInstruction", "system_instruction"),
                body.get("tools"),
                *contents,
            ),
            turn=_GEMINI_MODEL if next(iter(contents[0]), "") == "role" else _GEMINI_PARTS,
            question=text_in(users[-1]["parts"]) if users else "",
            result=self._result(contents[-1]),
            tools=tuple(
                Tool(one["name"], first(one, *self._SCHEMAS, default={}))
                for tool in body.get("tools") or ()
                for one in first(tool, "functionDeclarations", "function_declarations", default=())
                if mode != "NONE"
            ),
            call=allowed[0] if mode == "ANY" else None,
            schema=first(
                config,
                *("responseJsonSchema", "response_json_schema"),
                *("responseSchema", "response_schema"),
                default={"properties": {"answer": {"type": "string"}}} if json_only else None,
            ),
            max_tokens=first(config, "maxOutputTokens", "max_output_tokens"),
            choices=int(first(config, "candidateCount", "candidate_count", default=1)),
            stop=tuple(first(config, "stopSequences", "stop_sequences", default=())),
            stream=self._stream,
        )

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """See `Api`."""
        finishes = [_GEMINI_FINISH[one.finish] for one in said]
        texts = list(enumerate(one.text for one in said))
        return self._chunk(ask, said, texts, finishes, spent)

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """See `Api`."""
        chunks = self._chunks(ask, said, spent)
        return (SSE, self._sse(chunks)) if self._events else (JSON, self._array(chunks))

    def _sse(self, chunks: Iterator[tuple[int, Json, bool]]) -> Iterator[Frame]:
        for step, chunk, last in chunks:
            # The real API ends its lines with CRLF.
            yield Frame(step, sse(chunk).replace(b"\n\n", b"\r\n\r\n"), last)

    def _array(self, chunks: Iterator[tuple[int, Json, bool]]) -> Iterator[Frame]:
        mark = b"["
        for step, chunk, last in chunks:
            # Indented and with a comma on its own line, as the real API writes it.
            yield Frame(step, mark + msgspec.json.format(encode(chunk), indent=2))
            mark = b"\n,\r\n"
            if last:
                yield Frame(step, b"\n]", last=True)

    def _chunks(
        self, ask: Ask, said: Sequence[Said], spent: Spent
    ) -> Iterator[tuple[int, Json, bool]]:
        end = length(said)
        tools = [(index, one.text) for index, one in enumerate(said) if one.tool]
        if tools:  # a call comes whole
            finishes = [_GEMINI_FINISH[one.finish] for one in said]
            yield end, self._chunk(ask, said, tools, finishes, spent), True
            return
        for step, index, piece in steps(said):
            partial = Spent(spent.input, step * len(said))
            yield step, self._chunk(ask, said, [(index, piece)], [None], partial), False
        finishes = [_GEMINI_FINISH[one.finish] for one in said]
        empty = [(index, "") for index in range(len(said))]
        yield end, self._chunk(ask, said, empty, finishes, spent), True

    def _chunk(
        self,
        ask: Ask,
        said: Sequence[Said],
        texts: Sequence[tuple[int, str]],
        finishes: Sequence[str | None],
        spent: Spent,
    ) -> Json:
        candidates = []
        for (index, text), finish in zip(texts, finishes, strict=True):
            tool = said[index].tool
            part = (
                {"functionCall": {"name": tool, "args": msgspec.json.decode(text)}}
                if tool
                else {"text": text}
            )
            candidate: Json = {"content": {"parts": [part], "role": "model"}}
            if finish is not None:
                candidate["finishReason"] = finish
            candidates.append(candidate | {"index": index})
        return {
            "candidates": candidates,
            "usageMetadata": {
                "promptTokenCount": spent.input,
                "candidatesTokenCount": spent.output,
                "totalTokenCount": spent.input + spent.output,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": spent.input}],
            },
            "modelVersion": ask.model,
            "responseId": digest_of(ask.model, ask.prompt),
        }

    def _result(self, content: Json) -> str | None:
        for part in content["parts"]:
            found = first(part, "functionResponse", "function_response")
            if found is not None:
                response = found.get("response")
                inner = response.get("result") if isinstance(response, dict) else None
                return inner if isinstance(inner, str) else encode(inner or response).decode()
        return None


def gemini_count(body: Json) -> Json:
    """Answer `countTokens`."""
    inner = first(body, "generateContentRequest", "generate_content_request", default=body)
    total = tokens_of(whole(*inner["contents"]))
    details = [{"modality": "TEXT", "tokenCount": total}]
    return {"totalTokens": total, "promptTokensDetails": details}


def gemini_embed(body: Json, batch: bool) -> tuple[str, Json]:
    """Answer `embedContent` or `batchEmbedContents`: what was read, and the reply."""
    texts, vectors = [], []
    for one in body["requests"] if batch else [body]:
        text = text_in(one["content"])
        wanted = first(one, "outputDimensionality", "output_dimensionality")
        texts.append(text)
        vectors.append({"values": embed(text, int(wanted or EMBEDDING_DIMENSIONS))})
    return "\n".join(texts), {"embeddings": vectors} if batch else {"embedding": vectors[0]}


# --- Anthropic -----------------------------------------------------------------------------------

_ANTHROPIC_FINISH: Final = {
    Finish.STOP: "end_turn",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL: "tool_use",
}


class Anthropic:
    """`/v1/messages`, and what `count_tokens` reads."""

    def read(self, body: Json) -> Ask:
        """See `Api`."""
        messages = body["messages"]
        choice = body.get("tool_choice") or {}
        users = [m for m in messages if m["role"] == "user" and text_in(m["content"])]
        shape = (body.get("output_config") or {}).get("format") or {}
        return Ask(
            model=str(body.get("model", "")),
            prompt=whole(body.get("system"), body.get("tools"), *messages),
            turn=ASSISTANT,
            question=self._text(users[-1]["content"]) if users else "",
            result=self._result(messages[-1]["content"]),
            tools=tuple(
                Tool(tool["name"], tool["input_schema"])
                for tool in body.get("tools") or ()
                if "input_schema" in tool and choice.get("type") != "none"
            ),
            call={"any": "", "tool": choice.get("name")}.get(choice.get("type", "")),
            schema=shape.get("schema"),
            max_tokens=body.get("max_tokens"),
            stop=tuple(body.get("stop_sequences") or ()),
            stream=bool(body.get("stream")),
        )

    def reply(self, ask: Ask, said: Sequence[Said], spent: Spent) -> Json:
        """See `Api`."""
        return self._message(
            ask,
            content=[self._block(ask, said[0], said[0].text)],
            finish=_ANTHROPIC_FINISH[said[0].finish],
            spent=spent,
        )

    def stream(self, ask: Ask, said: Sequence[Said], spent: Spent) -> tuple[str, Iterator[Frame]]:
        """See `Api`."""
        return SSE, self._frames(ask, said[0], spent)

    def _frames(self, ask: Ask, one: Said, spent: Spent) -> Iterator[Frame]:
        def event(step: int, kind: str, last: bool = False, **members: Json) -> Frame:
            return Frame(step, sse({"type": kind, **members}, kind), last)

        opening = self._message(ask, content=[], finish=None, spent=Spent(spent.input, 1))
        yield event(0, "message_start", message=opening)
        yield event(0, "content_block_start", index=0, content_block=self._block(ask, one, ""))
        yield event(0, "ping")
        for step, piece in enumerate(one.pieces, 1):
            delta = (
                {"type": "input_json_delta", "partial_json": piece}
                if one.tool
                else {"type": "text_delta", "text": piece}
            )
            yield event(step, "content_block_delta", index=0, delta=delta)
        end = len(one.pieces)
        yield event(end, "content_block_stop", index=0)
        yield event(
            end,
            "message_delta",
            delta={"stop_reason": _ANTHROPIC_FINISH[one.finish], "stop_sequence": None},
            usage={"output_tokens": spent.output},
        )
        yield event(end, "message_stop", last=True)

    def _message(self, ask: Ask, content: Json, finish: str | None, spent: Spent) -> Json:
        return {
            "id": f"msg_{digest_of(ask.model, ask.prompt)}",
            "type": "message",
            "role": "assistant",
            "model": ask.model,
            "content": content,
            "stop_reason": finish,
            "stop_sequence": None,
            "usage": {
                "input_tokens": spent.input,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": spent.output,
                "service_tier": "standard",
            },
        }

    def _block(self, ask: Ask, one: Said, text: str) -> Json:
        if not one.tool:
            return {"type": "text", "text": text}
        return {
            "type": "tool_use",
            "id": f"toolu_{digest_of(ask.prompt, one.text)}",
            "name": one.tool,
            "input": msgspec.json.decode(text) if text else {},
        }

    def _text(self, content: Json) -> str:
        """Return the text that the user wrote, without that of tool results."""
        if isinstance(content, str):
            return content
        return text_in([block for block in content if block.get("type") != "tool_result"])

    def _result(self, content: Json) -> str | None:
        if isinstance(content, str):
            return None
        found = [block for block in content if block.get("type") == "tool_result"]
        return text_in(found[-1].get("content")) if found else None


# --- All of them ---------------------------------------------------------------------------------

_OPENAI_ERRORS: Final = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
_GEMINI_ERRORS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ANTHROPIC_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_GEMINI_PATH: Final = re.compile(r"/(?:models|tunedModels)/([^/:]+):(\w+)$")


def gemini_action(path: str) -> tuple[str, str] | None:
    """Return model and method of a Gemini path without its query, or None for any other path."""
    found = _GEMINI_PATH.search(path)
    return (found[1], found[2]) if found else None


def is_anthropic(path: str, headers: Any) -> bool:
    """Tell Anthropic's paths, and the ones that it shares with OpenAI, by its version header."""
    return "/messages" in path or "anthropic-version" in headers


def is_gemini(path: str, headers: Any) -> bool:
    """Tell Gemini's paths, and `/v1/models`, by its key header."""
    return path.startswith("/v1beta/") or ":" in path or "x-goog-api-key" in headers


def error(path: str, headers: Any, status: int, text: str) -> Json:
    """Write an error as the provider whose path it is does."""
    if is_anthropic(path, headers):
        kind = _ANTHROPIC_ERRORS.get(status, "api_error")
        inner = {"type": kind, "message": text}
        return {"type": "error", "error": inner, "request_id": f"req_{digest_of(path, text)}"}
    if is_gemini(path, headers):
        name = _GEMINI_ERRORS.get(status, "UNKNOWN")
        return {"error": {"code": status, "message": text, "status": name}}
    kind, code = _OPENAI_ERRORS.get(status, ("server_error", None))
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


def models(path: str, headers: Any, names: Sequence[str]) -> Json:
    """Answer the list of models, or one of them when the path names one."""
    one = path.rsplit("/models/", 1)[1] if "/models/" in path else ""
    if is_gemini(path, headers):
        entries = [
            {
                "name": f"models/{name}",
                "version": "simulated",
                "displayName": name,
                "inputTokenLimit": 131_072,
                "outputTokenLimit": 65_536,
                "supportedGenerationMethods": ["generateContent", "countTokens", "embedContent"],
            }
            for name in ([one] if one else names)
        ]
        return entries[0] if one else {"models": entries}
    if is_anthropic(path, headers):
        entries = [
            {
                "type": "model",
                "id": name,
                "display_name": name,
                "created_at": "2026-01-01T00:00:00Z",
            }
            for name in ([one] if one else names)
        ]
        ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
        return entries[0] if one else {"data": entries, **ends}
    entries = [
        {"id": name, "object": "model", "created": CREATED, "owned_by": "simulated"}
        for name in ([one] if one else names)
    ]
    return entries[0] if one else {"object": "list", "data": entries}
