"""Read and write OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from filters.api import (
    Delta,
    Effort,
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
from filters.api import Finish as FinishReason
from filters.dialects import openai
from filters.dialects.base import (
    BodyPrompt,
    Shape,
    items,
    joined,
    mapping,
    pieces,
    text,
)
from filters.dialects.instructions import append_to_messages, append_to_question
from filters.dialects.splitting import Split
from filters.document import Document, Json, Path
from filters.errors import NotJson
from filters.framing import Event, Framer

_SWITCHES: Final = ("enable_thinking", "thinking")
_CHUNK: Final = "chat.completion.chunk"

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
_TOOL: Final = Role.TOOL
_ROLES: Final = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


class OpenAIChat:
    """The dialect of chat completions. Of several choices the first is read."""

    name = "openai.chat"
    provider = openai.PROVIDER
    operation = "chat"

    def read(self, document: Document, path: str) -> Prompt:
        """View a chat request; raise `NotJson` when it has no array of messages."""
        root = document.root
        if not isinstance(root.get("messages"), list):
            raise NotJson("expected an array in messages")
        return BodyPrompt(
            document,
            _SHAPE,
            model=openai.model(document, path),
            stream=root.get("stream") is True,
            stateful=root.get("web_search_options") is not None,
        )

    def read_reply(self, reply: Json) -> Reply:
        """Read a chat completion; it is unfinished while any of its choices is."""
        completion = mapping(reply)
        choices = [mapping(choice) for choice in items(completion.get("choices"))]
        messages = [mapping(choice.get("message")) for choice in choices]
        finishes = [openai.finish(choice.get("finish_reason")) for choice in choices]
        finish = finishes[0] if finishes and None not in finishes else None
        if finish is not None and messages[0].get("refusal"):
            finish = FinishReason.FILTERED
        return Reply(
            text=_text(messages[0].get("content")) if messages else "",
            finish=finish,
            usage=openai.usage(completion.get("usage")),
            model=text(completion.get("model")),
            has_tool=any(map(_calls_tool, messages)),
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a framer for server-sent events, else None."""
        return openai.framer(content_type)

    def read_event(self, event: Event) -> Delta:
        """Read one chunk; `[DONE]` ends the stream."""
        return openai.read_chunk(event, _said)

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the completion a stream stands for; None unless `[DONE]` came and all finished.

        None as well after an error, or where something came that this cannot put in its place.
        """
        return openai.assemble(events, _Choice, "chat.completion")

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the completion as an event stream, or as it is when no stream was asked for."""
        return openai.replay(reply, prompt, _CHUNK, _told)

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return where a completion has its id and time; `store: true` keeps it under its id."""
        return openai.stamps(reply, kept=prompt.document.root.get("store") is True)

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a completion of one choice."""
        message = {"role": "assistant", "content": reply.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion",
            "created": at_s,
            "model": reply.model,
            "choices": [choice],
            "usage": openai.write_usage(reply.usage or Usage()),
        }

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each part of the text of one."""
        return _SPLIT(raw, parts)

    def error(self, status: int, text: str) -> bytes:
        """Return OpenAI's error object."""
        return openai.error(status, text)

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return the error object as an event."""
        return openai.broken(last, why)


# --- The request ---------------------------------------------------------------------------------


def _turns(document: Document) -> list[Turn]:
    turns: list[Turn] = []
    for index, message in enumerate(items(document.root.get("messages"))):
        if not isinstance(message, dict):
            continue
        role = _ROLES.get(text(message.get("role")), _USER)
        content = message.get("content")
        at = ("messages", index, "content")
        has_media = False
        texts: tuple[Text, ...] = ()
        if isinstance(content, str):
            texts = (Text(document, at, role),)
        elif isinstance(content, list):
            texts, has_media = _parts(document, content, at, role)
        turns.append(
            Turn(role, texts, ("messages", index), role is _TOOL or _calls_tool(message), has_media)
        )
    return turns


def _parts(
    document: Document, content: list[Json], at: Path, role: Role
) -> tuple[tuple[Text, ...], bool]:
    """Return the texts of a content array, and whether anything but text is in it."""
    texts: list[Text] = []
    has_media = False
    for index, part in enumerate(content):
        if isinstance(part, str):  # not OpenAI's form, but servers take it
            texts.append(Text(document, (*at, index), role))
        elif not isinstance(part, dict):
            continue
        elif isinstance(part.get("text"), str):
            texts.append(Text(document, (*at, index, "text"), role))
        elif part.get("type") not in ("text", "refusal"):
            has_media = True
    return tuple(texts), has_media


def _limit_thinking(document: Document, model: str, most: Thinking) -> bool:
    """Lower `reasoning_effort`; `none` also turns the switch in the chat templates of open models.

    Qwen and GLM call it `enable_thinking`, DeepSeek `thinking`; vLLM and SGLang pass it on.
    """
    changed = openai.limit_effort(document, ("reasoning_effort",), model, most)
    if most.effort is not Effort.NONE:
        return changed
    switches = document.get(("chat_template_kwargs",))
    for name in _SWITCHES:
        if mapping(switches).get(name) is True:
            document.set(("chat_template_kwargs", name), value=False)
            changed = True
    if switches is None and most.always and not openai.is_own(model):
        document.set(("chat_template_kwargs", _SWITCHES[0]), value=False)
        changed = True
    return changed


def _instruct(document: Document, added: str) -> bool:
    part = {"type": "text", "text": added}
    return append_to_messages(document, "messages", part, added) or append_to_question(
        document, "messages", part, added
    )


def _calls_tool(message: dict[str, Json]) -> bool:
    return bool(message.get("tool_calls") or message.get("function_call"))


_SHAPE: Final = Shape(
    turns=_turns,
    parameters={
        Parameter.TEMPERATURE: (("temperature",),),
        Parameter.TOP_P: (("top_p",),),
        # OpenAI's reasoning models refuse the older name; where both stand, vLLM reads the first.
        Parameter.MAX_TOKENS: (("max_completion_tokens",), ("max_tokens",)),
        Parameter.SEED: (("seed",),),
        Parameter.CHOICES: (("n",),),
        Parameter.STOP: (("stop",),),
    },
    transport=openai.TRANSPORT,
    tools=(("tools",), ("functions",)),
    takes_temperature=lambda _, model: not openai.thinks(model),
    limit_thinking=_limit_thinking,
    instruct=_instruct,
)


# --- The reply -----------------------------------------------------------------------------------


def _said(choice: dict[str, Json]) -> str:
    return _text(mapping(choice.get("delta")).get("content"))


def _text(content: Json) -> str:
    """Return a content's text: a string, or an array of parts as some servers write it."""
    if isinstance(content, list):
        return joined(mapping(part).get("text") for part in content)
    return text(content)


# --- Streams put together ------------------------------------------------------------------------


class _Choice:
    """One choice of a streamed completion, put together delta by delta."""

    __slots__ = ("_calls", "_function", "_members", "_message", "_strings")

    def __init__(self) -> None:
        self._members: dict[str, Json] = {}
        self._message: dict[str, Json] = {"role": "assistant", "content": None}
        self._strings = openai.Strings()
        self._calls: dict[int, _Call] = {}
        self._function: _Call | None = None

    def add(self, choice: dict[str, Json]) -> None:
        """Take a choice of a chunk; raise `Unfit` for what has no place."""
        for key, value in choice.items():
            if key == "delta":
                for name, part in mapping(value).items():
                    self._add(name, part)
            elif key == "logprobs":
                openai.add_logprobs(self._members, value)
            elif key != "index" and (value is not None or key not in self._members):
                self._members[key] = value

    def _add(self, name: str, part: Json) -> None:
        if name == "role":
            self._message["role"] = part or self._message["role"]
        elif isinstance(part, str):
            self._strings.add(name, part)
        elif name == "tool_calls":
            for call in items(part):
                self._add_call(call)
        elif name == "function_call" and isinstance(part, dict):
            self._function = self._function or _Call()
            self._function.add({"function": part})
        elif name == "annotations" and isinstance(part, list):
            self._message[name] = items(self._message.get(name)) + part
        elif part:
            raise openai.Unfit
        else:
            self._message.setdefault(name, part)

    def _add_call(self, call: Json) -> None:
        if not isinstance(call, dict):
            raise openai.Unfit
        index = call.get("index")
        if index is None and call.get("id"):
            index = len(self._calls)  # servers that send calls whole may leave it out
        if not isinstance(index, int):
            raise openai.Unfit
        if index not in self._calls:
            self._calls[index] = _Call()
        self._calls[index].add(call)

    def whole(self, index: int) -> dict[str, Json]:
        """Return the choice as a plain reply has it; raise `Unfit` when it has not finished."""
        if openai.finish(self._members.get("finish_reason")) is None:
            raise openai.Unfit
        message = {**self._message, **self._strings.joined()}
        calls = [self._calls[key].whole() for key in sorted(self._calls)]
        if calls:
            message["tool_calls"] = calls
        if self._function:
            message["function_call"] = self._function.whole()["function"]
        return {"index": index, "message": message, **self._members}


class _Call:
    """One streamed tool call: what stands in it once, and the strings that grow."""

    __slots__ = ("_members", "_nested")

    def __init__(self) -> None:
        self._members: dict[str, Json] = {}
        self._nested: dict[str, openai.Strings] = {}

    def add(self, call: dict[str, Json]) -> None:
        """Take a part of the call; raise `Unfit` for what has no place."""
        for key, value in call.items():
            if isinstance(value, dict):
                strings = self._nested.setdefault(key, openai.Strings())
                for name, part in value.items():
                    if isinstance(part, str):
                        strings.add(name, part)
                    elif part is not None:
                        raise openai.Unfit
            elif key != "index" and value is not None:
                self._members[key] = value

    def whole(self) -> dict[str, Any]:
        """Return the call as a plain reply has it."""
        return self._members | {key: part.joined() for key, part in self._nested.items()}


# --- Streams taken apart -------------------------------------------------------------------------


def _told(choice: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield what each chunk says of a choice: the message's deltas, and last what stands beside."""
    for delta in _deltas(mapping(choice.get("message"))):
        yield {"delta": delta, "finish_reason": None}
    beside = {key: value for key, value in choice.items() if key != "message"}
    yield {**beside, "delta": {}}


_CALLS: Final = ("tool_calls", "function_call")


def _deltas(message: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield the deltas that add up to a message: texts in pieces, what has no parts whole."""
    start: dict[str, Json] = {"role": "assistant", "content": None}
    texts: list[tuple[str, str]] = []
    for name, value in message.items():
        if name == "content" and value is not None:
            start[name] = ""
            texts.append((name, _text(value)))
        elif isinstance(value, str) and name != "role":
            texts.append((name, value))
        elif name not in _CALLS:
            start[name] = value
    yield start
    # Servers send what a model thought before what it said.
    for name, value in sorted(texts, key=lambda named: named[0] == "content"):
        for piece in pieces(value):
            yield {name: piece}
    for index, call in enumerate(items(message.get("tool_calls"))):
        for part in _call_parts(mapping(call)):
            yield {"tool_calls": [{"index": index, **part}]}
    if isinstance(function := message.get("function_call"), dict):
        for part in _call_parts({"function": function}):
            yield {"function_call": part["function"]}


def _call_parts(call: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield a call as it starts, its growing string empty, and then that string in pieces."""
    for kind, grows in (("function", "arguments"), ("custom", "input")):
        nested = call.get(kind)
        if isinstance(nested, dict) and isinstance(nested.get(grows), str):
            yield {**call, kind: {**nested, grows: ""}}
            for piece in pieces(nested[grows]):
                yield {kind: {grows: piece}}
            return
    yield call


_SPLIT: Final = Split(
    ("choices", 0, "delta", "content"),
    every=openai.OF_EVERY_CHUNK,
    first=frozenset(("role",)),
    instead={"finish_reason": None, "logprobs": None},
)

OPENAI_CHAT: Final = OpenAIChat()
