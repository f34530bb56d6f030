"""Read and write Anthropic's Messages API: `POST /v1/messages`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from filters.api import (
    Delta,
    Effort,
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
from filters.dialects.base import (
    BROKEN_STATUS,
    EVENT_STREAM,
    BodyPrompt,
    Shape,
    count,
    is_event_stream,
    items,
    joined,
    mapping,
    parse_or_none,
    pieces,
    sse,
    text,
)
from filters.dialects.instructions import append_to
from filters.dialects.splitting import Split
from filters.dialects.thinking import at_least, lowered
from filters.document import Document, Json, Path, encode
from filters.errors import NotJson
from filters.framing import Event, Framer, SseFramer

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}

# Tools that the client runs itself; types carry a date, such as bash_20250124. Every other typed
# tool runs at the provider, and its answer depends on a container, a search index or a server.
_CLIENT_TOOLS: Final = (
    "custom",
    "bash_",
    "text_editor_",
    "memory_",
    "computer_",
    "browser_",
    "tool_search_tool_",  # searches the tools of this very request
)

# From Opus 4.7 on a temperature is refused; from 4.6 on thinking has an effort and no budget. Some
# of them think whatever the request says. A cloud puts its own words before and behind the names.
_OWN_TEMPERATURE: Final = re.compile(
    r"opus-4-(?:[7-9]|\d\d)(?!\d)|(?:opus|sonnet|haiku|fable|mythos)-(?:[5-9]|\d\d)(?!\d)|mythos"
)
_HAS_EFFORT: Final = re.compile(f"(?:opus|sonnet)-4-6|{_OWN_TEMPERATURE.pattern}")
_ALWAYS_THINKS: Final = re.compile(r"fable|mythos|opus-5-5")
_LEAST_BUDGET: Final = 1024  # of anthropic.types.ThinkingConfigEnabledParam
_OFF: Final = {"type": "disabled"}

_FINISHES: Final = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL,
    "refusal": Finish.FILTERED,
}

# https://docs.anthropic.com/en/api/errors; 503 is not in that list but asks for the same patience.
_OWN_EVENTS: Final = ("message_", "content_block_", "ping")
_ERRORS: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# Deltas that append to one string, and the member that holds their part of it.
_APPENDED: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


class AnthropicMessages:
    """The dialect of Anthropic's messages endpoint.

    `Usage.input` is the whole prompt, `input_tokens` plus what was read from and written to the
    prompt cache, as Anthropic defines the total; `Usage.cached` is what was read. In a stream the
    counts are running totals spread over events: an event that does not repeat one reads as 0, so
    the greatest of each is the answer's.
    """

    name = "anthropic.messages"
    provider = "anthropic"
    operation = "chat"

    def read(self, document: Document, path: str) -> Prompt:
        """View a messages request; raise `NotJson` when it has no array of messages."""
        root = document.root
        if not isinstance(root.get("messages"), list):
            raise NotJson("expected an array in messages")
        return BodyPrompt(
            document,
            _SHAPE,
            model=text(root.get("model")),
            stream=root.get("stream") is True,
            stateful=_is_stateful(root),
        )

    def read_reply(self, reply: Json) -> Reply:
        """Read a message; one without a stop reason is unfinished."""
        message = mapping(reply)
        blocks = [mapping(block) for block in items(message.get("content"))]
        return Reply(
            text=joined(block.get("text") for block in blocks if block.get("type") == "text"),
            finish=_finish(message.get("stop_reason")),
            usage=_usage(message.get("usage")),
            model=text(message.get("model")),
            has_tool=any(_is_tool(text(block.get("type"))) for block in blocks),
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a framer for server-sent events, else None."""
        return SseFramer() if is_event_stream(content_type) else None

    def read_event(self, event: Event) -> Delta:
        """Read one event by the `type` in its data; `message_stop` ends the stream."""
        delta = Delta(event.raw)
        data = mapping(parse_or_none(event.data)) if event.data else {}
        match data.get("type"):
            case "content_block_delta":
                change = mapping(data.get("delta"))
                if change.get("type") == "text_delta":
                    delta.text = text(change.get("text"))
            case "content_block_start":
                block = mapping(data.get("content_block"))
                if block.get("type") == "text":
                    delta.text = text(block.get("text"))
            case "message_start":
                delta.usage = _usage(mapping(data.get("message")).get("usage"))
            case "message_delta":
                delta.finish = _finish(mapping(data.get("delta")).get("stop_reason"))
                delta.usage = _usage(data.get("usage"))
            case "message_stop":
                delta.done = True
            case "error":
                delta.failed = True
        return delta

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the message a stream stands for; None without its `message_stop`.

        None as well after an `error` event, or where something came that this cannot put in its
        place: half a message must not pass for a whole one.
        """
        message: dict[str, Json] | None = None
        blocks = _Blocks()
        stopped = False
        for event in events:
            if not event.data:
                continue
            data = mapping(parse_or_none(event.data))
            match data.get("type"):
                case "content_block_delta":
                    if not blocks.change(data.get("index"), mapping(data.get("delta"))):
                        return None
                case "content_block_start":
                    blocks.start(data.get("index"), mapping(data.get("content_block")))
                case "message_start":
                    message = mapping(data.get("message"))
                case "message_delta" if message is not None:
                    _amend(message, data)
                case "message_stop":
                    stopped = True
                case "error" | None:
                    return None
        content = blocks.content()
        if not stopped or not message or content is None:
            return None
        return encode({**message, "content": content})

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the message as an event stream, or as it is when no stream was asked for."""
        if not prompt.stream:
            return "application/json", encode(reply)
        return EVENT_STREAM, b"".join(sse(data, data["type"]) for data in _events(mapping(reply)))

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return where a message has its id; of its time it says nothing."""
        return {("id",): Stamp.ID} if text(mapping(reply).get("id")) else {}

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a message of one block."""
        usage = reply.usage or Usage()
        return {
            "id": f"msg_{name}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": [{"type": "text", "text": reply.text}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input - usage.cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": usage.cached,
                "output_tokens": usage.output,
            },
        }

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each part of the text of one."""
        return _SPLIT(raw, parts)

    def error(self, status: int, text: str) -> bytes:
        """Return an error body with Anthropic's error type for the status."""
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        kind = _ERRORS.get(status, fallback)
        return encode({"type": "error", "error": {"type": kind, "message": text}})

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return an `error` event."""
        if last is not None:
            kind = text(mapping(parse_or_none(last.data)).get("type"))
            if not kind.startswith(_OWN_EVENTS):
                return None
        return "error", self.error(BROKEN_STATUS, why)


# --- The request ---------------------------------------------------------------------------------


def _turns(document: Document) -> list[Turn]:
    root = document.root
    turns: list[Turn] = []
    if (system := root.get("system")) is not None:
        turns.append(_turn(document, system, ("system",), Role.SYSTEM, ("system",)))
    for index, message in enumerate(items(root.get("messages"))):
        if isinstance(message, dict):
            path = ("messages", index)
            at = ("messages", index, "content")
            role = _ROLES.get(text(message.get("role")), _USER)
            turns.append(_turn(document, message.get("content"), at, role, path))
    return turns


def _turn(document: Document, content: Json, at: Path, role: Role, path: Path) -> Turn:
    """Read a turn whose content, a string or an array of blocks, stands at `at`."""
    if isinstance(content, str):
        return Turn(role, (Text(document, at, role),), path)
    reader = _BlockReader(document)
    blocks = items(content)
    reader.read(blocks, at, role)
    if reader.has_tool and role is _USER and all(map(_is_result, blocks)):
        role = Role.TOOL
    return Turn(role, tuple(reader.texts), path, reader.has_tool, reader.has_media)


class _BlockReader:
    """What the blocks of one message hold: its texts, and whether tools or media are among them."""

    __slots__ = ("document", "has_media", "has_tool", "texts")

    def __init__(self, document: Document) -> None:
        self.document = document
        self.texts: list[Text] = []
        self.has_tool = False
        self.has_media = False

    def read(self, content: Json, at: Path, role: Role) -> None:
        """Read a string or an array of blocks that stands at `at`."""
        if isinstance(content, str):
            self.texts.append(Text(self.document, at, role))
            return
        for index, block in enumerate(items(content)):
            if not isinstance(block, dict):
                continue
            if block.get("type") != "text":
                self._read_block(block, (*at, index), role)
            elif isinstance(block.get("text"), str):
                self.texts.append(Text(self.document, (*at, index, "text"), role))

    def _read_block(self, block: dict[str, Json], at: Path, role: Role) -> None:
        match block.get("type"):
            case "tool_result":
                self.has_tool = True
                self.read(block.get("content"), (*at, "content"), Role.TOOL)
            case "thinking" | "redacted_thinking" | "tool_reference":
                pass  # signed, or a name: they go back to the model as they came
            case "search_result":
                self.read(block.get("content"), (*at, "content"), _source_role(block, role))
            case "document":
                self._read_document(block, at, _source_role(block, role))
            case kind if _is_tool(text(kind)):
                self.has_tool = True
            case _:
                self.has_media = True  # an image, an upload, or what is not known to be text

    def _read_document(self, block: dict[str, Json], at: Path, role: Role) -> None:
        source = mapping(block.get("source"))
        match source.get("type"):
            case "text" if isinstance(source.get("data"), str):
                self.texts.append(Text(self.document, (*at, "source", "data"), role))
            case "content":
                self.read(source.get("content"), (*at, "source", "content"), role)
            case _:
                self.has_media = True


def _source_role(block: dict[str, Json], role: Role) -> Role:
    """Return who speaks in a source; one to be cited is material like a tool's result.

    The answer cites it by character, so an edit would shift every citation the client gets.
    """
    return Role.TOOL if mapping(block.get("citations")).get("enabled") is True else role


def _is_result(block: Json) -> bool:
    return bool(mapping(block).get("type") == "tool_result")


def _is_tool(kind: str) -> bool:
    """Tell whether a block calls a tool, at the client or the provider, or carries a result."""
    return kind.endswith(("tool_use", "tool_result"))


def _takes_temperature(document: Document, model: str) -> bool:
    """Not while it thinks, and with `top_p` alone the two would be refused together."""
    root = document.root
    thinks = mapping(root.get("thinking")).get("type") not in (None, "disabled")
    nucleus = root.get("top_p") is not None and root.get("temperature") is None
    return not (thinks or nucleus or _OWN_TEMPERATURE.search(model))


def _limit_thinking(document: Document, model: str, most: Thinking) -> bool:
    """Lower the budget, which stays below `max_tokens`, or the effort; `none` switches it off."""
    match mapping(document.root.get("thinking")):
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return _limit_budget(document, budget, most)
        case {"type": "adaptive"}:
            return _limit_effort(document, model, most, by_default=True)
        case {"type": _}:
            return False
        case _:
            known = most.always and _HAS_EFFORT.search(model)
            return _limit_effort(document, model, most, by_default=bool(known))


def _limit_budget(document: Document, budget: int, most: Thinking) -> bool:
    room = document.root.get("max_tokens")
    allowed = min(budget, max(most.budget, _LEAST_BUDGET))
    if isinstance(room, int):
        allowed = min(allowed, room - 1)
    if most.effort is Effort.NONE or allowed < min(budget, _LEAST_BUDGET):
        document.set(("thinking",), _OFF)
        return True
    if allowed < budget:
        document.set(("thinking", "budget_tokens"), allowed)
    return allowed < budget


def _limit_effort(document: Document, model: str, most: Thinking, *, by_default: bool) -> bool:
    """Lower the effort; `by_default` also one that the request leaves to the provider, `high`."""
    if most.effort is Effort.NONE and by_default and not _ALWAYS_THINKS.search(model):
        document.set(("thinking",), _OFF)
        return True
    at = ("output_config", "effort")
    asked = document.get(at)
    if asked is None and by_default:
        asked = Effort.HIGH.value
    instead = lowered(asked, at_least(most.effort, Effort.LOW))
    if instead is not None:
        document.set(at, instead)
    return instead is not None


def _instruct(document: Document, added: str) -> bool:
    if not append_to(document, ("system",), {"type": "text", "text": added}, added):
        document.set(("system",), added)
    return True


def _is_stateful(root: dict[str, Json]) -> bool:
    """Tell whether the answer depends on a container, another message or a server-run tool."""
    if root.get("container") is not None or root.get("mcp_servers"):
        return True
    if mapping(root.get("diagnostics")).get("previous_message_id") is not None:
        return True
    if not (tools := root.get("tools")):
        return False
    kinds = (mapping(tool).get("type") for tool in items(tools))
    return any(kind and not text(kind).startswith(_CLIENT_TOOLS) for kind in kinds)


_SHAPE: Final = Shape(
    turns=_turns,
    parameters={
        Parameter.TEMPERATURE: (("temperature",),),
        Parameter.TOP_P: (("top_p",),),
        Parameter.MAX_TOKENS: (("max_tokens",),),
        Parameter.STOP: (("stop_sequences",),),
    },
    transport=frozenset(("stream", "cache_control")),
    takes_temperature=_takes_temperature,
    limit_thinking=_limit_thinking,
    instruct=_instruct,
)


# --- The reply -----------------------------------------------------------------------------------


def _finish(reason: Json) -> Finish | None:
    return _FINISHES.get(reason, Finish.OTHER) if isinstance(reason, str) else None


def _usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    cached = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input=count(usage.get("input_tokens")) + written + cached,
        output=count(usage.get("output_tokens")),
        cached=cached,
    )


# --- Streams -------------------------------------------------------------------------------------


class _Blocks:
    """The content blocks of a streamed message, put together piece by piece."""

    __slots__ = ("_appended", "_blocks")

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._appended: dict[tuple[int, str], list[str]] = {}

    def start(self, index: Json, block: dict[str, Json]) -> None:
        """Begin the block at `index`."""
        if isinstance(index, int):
            self._blocks[index] = block

    def change(self, index: Json, delta: dict[str, Json]) -> bool:
        """Apply a delta; return False when it has no place here."""
        block = self._blocks.get(index) if isinstance(index, int) else None
        if block is None:
            return False
        kind = text(delta.get("type"))
        if (member := _APPENDED.get(kind)) and isinstance(delta.get(member), str):
            self._appended.setdefault((index, member), []).append(delta[member])
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")
        elif kind == "citations_delta":
            block["citations"] = [*items(block.get("citations")), delta.get("citation")]
        else:
            return False
        return True

    def content(self) -> list[Json] | None:
        """Return the blocks in order, or None when a tool's input is not whole."""
        for (index, member), parts in self._appended.items():
            block = self._blocks[index]
            whole = "".join(parts)
            if member != "partial_json":
                block[member] = text(block.get(member)) + whole
            elif whole:
                raw = whole.encode()
                if not isinstance(parse_or_none(raw), dict):
                    return None
                block["input"] = msgspec.Raw(raw)  # as written: numbers keep their digits
        return [self._blocks[index] for index in sorted(self._blocks)]


def _amend(message: dict[str, Json], data: dict[str, Json]) -> None:
    """Apply a `message_delta`: counts it leaves out keep their value from `message_start`."""
    message.update(mapping(data.get("delta")))
    counts = {key: value for key, value in mapping(data.get("usage")).items() if value is not None}
    message["usage"] = {**mapping(message.get("usage")), **counts}
    told = ("type", "delta", "usage")
    message.update({key: value for key, value in data.items() if key not in told})


def _events(message: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield the data of the events that stream a whole message."""
    usage = mapping(message.get("usage"))
    # Known only at the end, where `message_delta` brings them.
    late = {
        key: message[key]
        for key in ("stop_reason", "stop_sequence", "stop_details", "container")
        if key in message
    }
    start: dict[str, Json] = {**message, **dict.fromkeys(late, None), "content": []}
    start["usage"] = {**usage, "output_tokens": 0}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(items(message.get("content"))):
        opening, deltas = _unfold(mapping(block))
        yield {"type": "content_block_start", "index": index, "content_block": opening}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": late, "usage": usage}
    yield {"type": "message_stop"}


def _unfold(block: dict[str, Json]) -> tuple[dict[str, Json], Iterable[dict[str, Json]]]:
    """Return a block as it starts and the deltas that fill it; unknown kinds start complete."""
    deltas: list[dict[str, Json]] = []
    match block:
        case {"type": "text", "text": str(whole)}:
            block = {**block, "text": ""}
            for citation in items(block.get("citations")):
                block["citations"] = []
                deltas.append({"type": "citations_delta", "citation": citation})
            deltas += ({"type": "text_delta", "text": piece} for piece in pieces(whole))
        case {"type": "thinking", "thinking": str(whole)}:
            deltas += ({"type": "thinking_delta", "thinking": piece} for piece in pieces(whole))
            if isinstance(signature := block.get("signature"), str):
                deltas.append({"type": "signature_delta", "signature": signature})
            block = {**block, "thinking": "", "signature": ""}
        case {"type": str(kind), "input": dict(arguments)} if kind.endswith("tool_use"):
            block = {**block, "input": {}}
            whole = encode(arguments).decode()
            deltas.append({"type": "input_json_delta", "partial_json": whole})
        case _:
            pass
    return block, deltas


_SPLIT: Final = Split(("delta", "text"), every=frozenset(("type", "index")))

ANTHROPIC_MESSAGES: Final = AnthropicMessages()
