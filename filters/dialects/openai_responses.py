"""Read and write OpenAI's responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from filters.api import (
    Delta,
    Finish,
    Parameter,
    Prompt,
    Reply,
    Role,
    Stamp,
    Text,
    Thinking,
    Turn,
    Usage,
)
from filters.dialects import openai
from filters.dialects.base import (
    EVENT_STREAM,
    BodyPrompt,
    Shape,
    count,
    items,
    joined,
    mapping,
    parse_or_none,
    pieces,
    sse,
    text,
)
from filters.dialects.instructions import append_to, append_to_messages
from filters.dialects.splitting import Split
from filters.document import Document, Json, Path, encode
from filters.errors import NotJson
from filters.framing import Event, Framer

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
_ROLES: Final = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}

# Members that refer to what the provider keeps: earlier turns, or a prompt with a life of its own.
_STATE: Final = ("previous_response_id", "conversation", "prompt")

# Tools that the client runs itself. Every other (search, files, code, MCP servers) runs at the
# provider, and its answer depends on what is found there.
_CLIENT_TOOLS: Final = frozenset(
    ("function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer")
)

_TEXT_PARTS: Final = frozenset(("input_text", "output_text", "text", "summary_text"))

# A reply in one of these states has ended; one that failed, was cancelled, or still waits or runs
# has no answer to show.
_ENDED: Final = frozenset(("completed", "incomplete"))
_LAST_EVENTS: Final = frozenset(("response.completed", "response.incomplete"))
_FAILURES: Final = frozenset(("error", "response.failed"))

_REASONS: Final = {
    "max_output_tokens": Finish.LENGTH,
    "content_filter": Finish.FILTERED,
}


class OpenAIResponses:
    """The dialect of responses.

    An answer that only the provider's memory explains is stateful; so is one that runs in the
    background, whose reply is a receipt. `store` is not: the answer does not depend on it.
    """

    name = "openai.responses"
    provider = openai.PROVIDER
    operation = "chat"

    def read(self, document: Document, path: str) -> Prompt:
        """View a request; raise `NotJson` when it has no input and names none kept elsewhere."""
        root = document.root
        remembers = any(root.get(name) is not None for name in _STATE)
        given = root.get("input")
        if not isinstance(given, str | list) and not (given is None and remembers):
            raise NotJson("expected a string or an array in input")
        return BodyPrompt(
            document,
            _SHAPE,
            model=openai.model(document, path),
            stream=root.get("stream") is True,
            stateful=remembers or _is_stateful(root),
        )

    def read_reply(self, reply: Json) -> Reply:
        """Read a response object; one still running, failed or cancelled is unfinished."""
        response = mapping(reply)
        output = [mapping(item) for item in items(response.get("output"))]
        parts = [
            mapping(part)
            for item in output
            if item.get("type") == "message"
            for part in items(item.get("content"))
        ]
        has_tool = any(_is_tool(openai.name_of(item)) for item in output)
        finish = _finish(response)
        if finish is Finish.STOP:
            if any(part.get("type") == "refusal" for part in parts):
                finish = Finish.FILTERED
            elif any(openai.name_of(item) in _CLIENT_CALLS for item in output):
                finish = Finish.TOOL
        return Reply(
            text=joined(part.get("text") for part in parts),
            finish=finish,
            usage=_usage(response.get("usage")),
            model=text(response.get("model")),
            has_tool=has_tool,
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a framer for server-sent events, else None."""
        return openai.framer(content_type)

    def read_event(self, event: Event) -> Delta:
        """Read one event by the `type` in its data; a completed response ends the stream."""
        delta = Delta(event.raw)
        if not event.data:
            return delta
        data = mapping(parse_or_none(event.data))
        kind = text(data.get("type"))
        if kind == "response.output_text.delta":
            delta.text = text(data.get("delta"))
        elif kind in _LAST_EVENTS:
            response = self.read_reply(data.get("response"))
            delta.finish = response.finish
            delta.usage = response.usage
            delta.done = response.finish is not None
        elif kind in _FAILURES:
            delta.failed = True
        return delta

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the response that the last event carries, or None when there is none."""
        for event in reversed(events):
            data = mapping(parse_or_none(event.data)) if event.data else {}
            kind = text(data.get("type"))
            if kind in _FAILURES:  # behind a whole response it takes that back
                return None
            if kind in _LAST_EVENTS:
                response = mapping(data.get("response"))
                return encode(response) if text(response.get("status")) in _ENDED else None
        return None

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the response as an event stream, or as it is when no stream was asked for."""
        if not prompt.stream:
            return openai.JSON, encode(reply)
        events = enumerate(_events(mapping(reply)))
        return EVENT_STREAM, b"".join(
            sse({"type": kind, "sequence_number": number, **data}, kind)
            for number, (kind, data) in events
        )

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return where a response has its times and, if it was not to be kept, its ids.

        What is kept can be gone on with by its id, and is so unless `store` is false. Items that
        belong to reasoning keep theirs: it is encrypted together with them.
        """
        response = mapping(reply)
        found: dict[Path, Stamp] = {
            (name,): Stamp.SECONDS for name in _TIMES if _is_time(response.get(name))
        }
        if prompt.document.root.get("store") is not False:
            return found
        if text(response.get("id")):
            found["id",] = Stamp.ID
        output = items(response.get("output"))
        if all(openai.name_of(item) == "message" for item in output):
            for index, item in enumerate(output):
                if text(item.get("id")):
                    found["output", index, "id"] = Stamp.ID
        return found

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a response of one message."""
        usage = reply.usage or Usage()
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {
            "type": "message",
            "id": f"msg_{name}",
            "status": "completed",
            "role": "assistant",
            "content": [part],
        }
        return {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": at_s,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": reply.model,
            "output": [message],
            "parallel_tool_calls": True,
            "store": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": {
                "input_tokens": usage.input,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.input + usage.output,
            },
        }

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each part of the text of one."""
        return _SPLIT(raw, parts)

    def error(self, status: int, text: str) -> bytes:
        """Return OpenAI's error object."""
        return openai.error(status, text)

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return an `error` event with the next number in the stream."""
        before: Json = -1
        if last is not None:
            data = mapping(parse_or_none(last.data))
            if not openai.name_of(data).startswith("response."):
                return None
            before = data.get("sequence_number")
        told: dict[str, Json] = {"type": "error", "code": "server_error"}
        told |= {"message": why, "param": None}
        if isinstance(before, int):  # not every server numbers its events
            told["sequence_number"] = before + 1
        return "error", encode(told)


# --- The request ---------------------------------------------------------------------------------


def _turns(document: Document) -> list[Turn]:
    root = document.root
    turns: list[Turn] = []
    if isinstance(root.get("instructions"), str):
        texts = (Text(document, ("instructions",), Role.SYSTEM),)
        turns.append(Turn(Role.SYSTEM, texts, ("instructions",)))
    given = root.get("input")
    if isinstance(given, str):
        turns.append(Turn(_USER, (Text(document, ("input",), _USER),), ("input",)))
    for index, item in enumerate(items(given)):
        if isinstance(item, dict):
            turns.append(_turn(document, item, ("input", index)))
    return turns


def _turn(document: Document, item: dict[str, Json], path: Path) -> Turn:
    kind = text(item.get("type")) or "message"
    if kind == "message":
        role = _ROLES.get(text(item.get("role")), _USER)
        texts, has_media = _texts(document, item.get("content"), (*path, "content"), role)
        return Turn(role, texts, path, has_media=has_media)
    if kind.endswith("_output"):
        texts, has_media = _texts(document, item.get("output"), (*path, "output"), Role.TOOL)
        return Turn(Role.TOOL, texts, path, has_tool=True, has_media=has_media)
    # A reasoning item may not be cut from the call that follows it, so it counts as one.
    has_tool = kind == "reasoning" or _is_tool(kind)
    return Turn(Role.ASSISTANT, (), path, has_tool=has_tool)


def _texts(
    document: Document, content: Json, at: Path, role: Role
) -> tuple[tuple[Text, ...], bool]:
    """Return the texts of a string or an array of parts, and whether anything else is in it."""
    if isinstance(content, str):
        return (Text(document, at, role),), False
    texts: list[Text] = []
    has_media = False
    for index, part in enumerate(items(content)):
        if isinstance(part, dict):
            kind = openai.name_of(part)
            if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
                texts.append(Text(document, (*at, index, "text"), role))
            elif kind != "refusal" and kind not in _TEXT_PARTS:
                has_media = True
    return tuple(texts), has_media


def _is_tool(kind: str) -> bool:
    """Tell whether an item calls a tool, at the client or the provider, or carries a result."""
    return kind.endswith(("_call", "_output")) or kind.startswith("mcp_")


def _limit_thinking(document: Document, model: str, most: Thinking) -> bool:
    return openai.limit_effort(document, ("reasoning", "effort"), model, most)


def _instruct(document: Document, added: str) -> bool:
    part = {"type": "input_text", "text": added}
    if append_to_messages(document, "input", part, added):
        return True  # they stand behind the instructions
    if not append_to(document, ("instructions",), part, added):
        document.set(("instructions",), added)
    return True


def _is_stateful(root: dict[str, Json]) -> bool:
    if root.get("background") is True:
        return True
    if any(openai.name_of(item) == "item_reference" for item in items(root.get("input"))):
        return True
    return any(openai.name_of(tool) not in _CLIENT_TOOLS for tool in items(root.get("tools")))


_SHAPE: Final = Shape(
    turns=_turns,
    parameters={
        Parameter.TEMPERATURE: (("temperature",),),
        Parameter.TOP_P: (("top_p",),),
        Parameter.MAX_TOKENS: (("max_output_tokens",),),
    },
    transport=openai.TRANSPORT,
    takes_temperature=lambda _, model: not openai.thinks(model),
    limit_thinking=_limit_thinking,
    instruct=_instruct,
)


# --- The reply -----------------------------------------------------------------------------------

# Calls that wait for the client; the others were answered before the response ended.
_CLIENT_CALLS: Final = frozenset(
    (
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "apply_patch_call",
        "computer_call",
        "mcp_approval_request",
    )
)


_TIMES: Final = ("created_at", "completed_at")


def _is_time(value: Json) -> bool:
    return isinstance(value, int | float) and value > 1  # not `true`


def _finish(response: dict[str, Json]) -> Finish | None:
    match response.get("status"):
        case "completed":
            return Finish.STOP
        case "incomplete":
            reason = mapping(response.get("incomplete_details")).get("reason")
            return _REASONS.get(text(reason), Finish.OTHER)
        case _:
            return None


def _usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        input=count(usage.get("input_tokens")),
        output=count(usage.get("output_tokens")),
        cached=count(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
    )


# --- Streams taken apart -------------------------------------------------------------------------

_Told = Iterator[tuple[str, dict[str, Any]]]
"""Event types and what they tell beside type and number."""


def _events(response: dict[str, Json]) -> _Told:
    """Yield the events that stream a whole response."""
    started = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    started.pop("completed_at", None)
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(map(mapping, items(response.get("output")))):
        empty, events = _item(item)
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": empty}
        for kind, data in events:
            yield kind, {"item_id": text(item.get("id")), **at, **data}
        yield "response.output_item.done", {**at, "item": item}
    status = "incomplete" if response.get("status") == "incomplete" else "completed"
    yield f"response.{status}", {"response": response}


def _item(item: dict[str, Json]) -> tuple[dict[str, Json], _Told]:
    """Return an item as it starts, and the events that fill it; unknown kinds start complete."""
    empty = {**item, "status": "in_progress"} if "status" in item else item
    match item:
        case {"type": "message", "content": list(parts)}:
            return {**empty, "content": []}, _message(parts)
        case {"type": "reasoning"}:
            empty = {**empty, "summary": []}
            if item.get("content") is not None:
                empty["content"] = []
            return empty, _reasoning(item)
        case {"type": "function_call", "arguments": str(whole)}:
            events = _growth("response.function_call_arguments", whole, "arguments", {})
            return {**empty, "arguments": ""}, events
        case {"type": "custom_tool_call", "input": str(whole)}:
            events = _growth("response.custom_tool_call_input", whole, "input", {})
            return {**empty, "input": ""}, events
        case _:
            return empty, iter(())


def _message(parts: list[Json]) -> _Told:
    for index, part in enumerate(map(mapping, parts)):
        at = {"content_index": index}
        match part:
            case {"type": "output_text", "text": str(whole)}:
                logprobs = items(part.get("logprobs"))
                empty: dict[str, Json] = {**part, "text": "", "annotations": []}
                if "logprobs" in part:
                    empty["logprobs"] = []
                yield "response.content_part.added", {**at, "part": empty}
                more = {**at, "logprobs": []}
                last = {**at, "logprobs": logprobs}
                yield from _growth("response.output_text", whole, "text", more, last)
                for number, annotation in enumerate(items(part.get("annotations"))):
                    told = {**at, "annotation_index": number, "annotation": annotation}
                    yield "response.output_text.annotation.added", told
            case {"type": "refusal", "refusal": str(whole)}:
                yield "response.content_part.added", {**at, "part": {**part, "refusal": ""}}
                yield from _growth("response.refusal", whole, "refusal", at)
            case _:
                yield "response.content_part.added", {**at, "part": part}
        yield "response.content_part.done", {**at, "part": part}


def _reasoning(item: dict[str, Json]) -> _Told:
    for index, part in enumerate(map(mapping, items(item.get("summary")))):
        at = {"summary_index": index}
        yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
        yield from _growth("response.reasoning_summary_text", text(part.get("text")), "text", at)
        yield "response.reasoning_summary_part.done", {**at, "part": part}
    for index, part in enumerate(map(mapping, items(item.get("content")))):
        at = {"content_index": index}
        yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
        yield from _growth("response.reasoning_text", text(part.get("text")), "text", at)
        yield "response.content_part.done", {**at, "part": part}


def _growth(
    kind: str, whole: str, member: str, more: dict[str, Json], last: dict[str, Json] | None = None
) -> _Told:
    """Yield a string in pieces and then whole; `more` and `last` go with the former, the latter."""
    for piece in pieces(whole):
        yield f"{kind}.delta", {**more, "delta": piece}
    yield f"{kind}.done", {**(more if last is None else last), member: whole}


_SPLIT: Final = Split(
    ("delta",),
    every=frozenset(("type", "item_id", "output_index", "content_index", "sequence_number")),
    instead={"logprobs": []},
)

OPENAI_RESPONSES: Final = OpenAIResponses()
