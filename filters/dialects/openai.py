"""What OpenAI's endpoints, and the many servers that speak like them, have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from filters.api import Delta, Effort, Finish, Prompt, Stamp, Thinking, Usage
from filters.dialects.base import (
    BROKEN_STATUS,
    EVENT_STREAM,
    count,
    is_event_stream,
    items,
    mapping,
    parse_or_none,
    sse,
    text,
)
from filters.dialects.thinking import at_least, lowered
from filters.document import Document, Json, Path, encode
from filters.framing import Event, Framer, SseFramer

PROVIDER: Final = "openai"
JSON: Final = "application/json"
DONE: Final = b"[DONE]"
DONE_EVENT: Final = b"data: [DONE]\n\n"

# How to deliver, bill and place a request; none of it reaches the model.
TRANSPORT: Final = frozenset(
    ("stream", "stream_options", "prompt_cache_key", "prompt_cache_retention")
)

_FINISHES: Final = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL,
    "function_call": Finish.TOOL,
    "content_filter": Finish.FILTERED,
}

# OpenAI documents codes by status and shows these types; the rest is told by its hundred.
_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}

# A router may put a vendor before the name. The chat models among them think not.
MOST_NAME_CHARS: Final = 256  # of a model: the end of it says what it is
_THINKS: Final = re.compile(r"(?:^|/)(?:o[1-9](?:-|$)|gpt-(?:[5-9]|\d\d)(?!.*chat))")
_KNOWS_NONE: Final = re.compile(r"(?:^|/)gpt-(?:5\.\d|[6-9]|\d\d)")
_KNOWS_MINIMAL: Final = re.compile(r"(?:^|/)gpt-5(?![.\d])")
_PRO: Final = re.compile(
    r"(?:^|/)gpt-[\d.]+-pro"
)  # knows no effort below medium, gpt-5-pro but one
_OWN: Final = re.compile(r"(?:^|/)(?:gpt-|chatgpt-|o[1-9](?:-|$))")

_DEPLOYMENT: Final = re.compile(r"/deployments/([^/?]+)")

OF_EVERY_CHUNK: Final = frozenset(
    ("id", "object", "created", "model", "system_fingerprint", "service_tier", "index")
)
"""What all chunks of a stream of choices say alike."""


def model(document: Document, path: str) -> str:
    """Return the model asked for; Azure names it as a deployment in the path."""
    named = document.root.get("model")
    if isinstance(named, str):
        return named
    found = _DEPLOYMENT.search(path)
    return found[1] if found else ""


def thinks(model: str) -> bool:
    """Tell by its name whether one of OpenAI's own models reasons; those keep their temperature.

    They refuse any but 1: "does not support 0 with this model".
    """
    return bool(_THINKS.search(model[-MOST_NAME_CHARS:]))


def is_own(model: str) -> bool:
    """Tell by its name whether OpenAI serves a model; others come from servers that speak alike."""
    return bool(_OWN.search(model))


def limit_effort(document: Document, at: Path, model: str, most: Thinking) -> bool:
    """Lower the effort that stands at `at`; put it there where the limit holds always.

    Of OpenAI's models only those from gpt-5.1 on know `none`, and only gpt-5 knows `minimal`
    (https://developers.openai.com/api/docs/guides/reasoning); the others get `low`.
    """
    asked = document.get(at)
    if (asked is None and not most.always) or _PRO.search(model):
        return False
    known = _KNOWS_NONE if most.effort is Effort.NONE else _KNOWS_MINIMAL
    effort = most.effort if known.search(model) else at_least(most.effort, Effort.LOW)
    if asked is None and most.always and thinks(model):
        instead: str | None = effort.value
    else:
        instead = lowered(asked, effort)
    if instead is not None:
        document.set(at, instead)
    return instead is not None


def framer(content_type: str) -> Framer | None:
    """Return a framer for server-sent events, else None."""
    return SseFramer() if is_event_stream(content_type) else None


def finish(reason: Json) -> Finish | None:
    """Read a choice's `finish_reason`."""
    return _FINISHES.get(reason, Finish.OTHER) if isinstance(reason, str) else None


def usage(value: Json) -> Usage | None:
    """Read the `usage` of all endpoints but responses."""
    if not isinstance(value, dict):
        return None
    return Usage(
        input=count(value.get("prompt_tokens")),
        output=count(value.get("completion_tokens")),
        cached=count(mapping(value.get("prompt_tokens_details")).get("cached_tokens")),
    )


def read_chunk(event: Event, said: Callable[[dict[str, Json]], str]) -> Delta:
    """Read one chunk of a stream of choices, of which the first counts; `[DONE]` ends the stream.

    `said` returns the text in a choice.
    """
    delta = Delta(event.raw)
    if not event.data:
        return delta
    if event.data == DONE:
        delta.done = True
        return delta
    chunk = mapping(parse_or_none(event.data))
    if chunk.get("error") or event.name == "error":
        delta.failed = True
    delta.usage = usage(chunk.get("usage"))
    for choice in map(mapping, items(chunk.get("choices"))):
        if choice.get("index", 0) == 0:
            delta.text += said(choice)
            delta.finish = finish(choice.get("finish_reason"))
    return delta


def stamps(reply: Json, *, kept: bool) -> dict[Path, Stamp]:
    """Return where a reply of chat or completions has its id and time; not the id of a kept one."""
    found: dict[Path, Stamp] = {}
    told = mapping(reply)
    if text(told.get("id")) and not kept:
        found["id",] = Stamp.ID
    if count(told.get("created")):
        found["created",] = Stamp.SECONDS
    return found


def write_usage(usage: Usage) -> dict[str, Json]:
    """Write the `usage` of all endpoints but responses."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def error(status: int, message: str) -> bytes:
    """Return OpenAI's error object."""
    kind = _ERRORS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return encode({"error": {"message": message, "type": kind, "param": None, "code": None}})


def broken(last: Event | None, message: str) -> tuple[str, bytes] | None:
    """Return the error object as an event, as vLLM sends it too."""
    if last is not None and "choices" not in mapping(parse_or_none(last.data)):
        return None
    return "", error(BROKEN_STATUS, message)


# --- Chunks put together -------------------------------------------------------------------------


class Choice(Protocol):
    """One choice of a streamed reply, put together chunk by chunk."""

    def add(self, choice: dict[str, Json]) -> None:
        """Take a choice of a chunk; raise `Unfit` for what has no place."""

    def whole(self, index: int) -> dict[str, Json]:
        """Return the choice as a plain reply has it; raise `Unfit` when it has not finished."""


def assemble(events: Iterable[Event], choice_type: Callable[[], Choice], kind: str) -> bytes | None:
    """Return the plain reply a stream stands for; None unless `[DONE]` came and all finished.

    `kind` is the reply's `object`. None as well after an error, or where something came that
    cannot be put in its place.
    """
    envelope = _Envelope()
    choices: dict[int, Choice] = {}
    done = False
    try:
        for event in events:
            if event.data == DONE:
                done = True
            elif event.data:
                if done or event.name == "error":  # not what a complete stream has
                    return None
                _gather(parse_or_none(event.data), envelope, choices, choice_type)
        whole = [choices[index].whole(index) for index in range(len(choices))]
    except (Unfit, KeyError):
        return None
    return encode(envelope.around(whole, kind)) if done and whole else None


def _gather(
    chunk: Json,
    envelope: _Envelope,
    choices: dict[int, Choice],
    choice_type: Callable[[], Choice],
) -> None:
    if not isinstance(chunk, dict):
        raise Unfit
    envelope.add(chunk)
    for choice in map(mapping, items(chunk.get("choices"))):
        index = choice.get("index")
        if not isinstance(index, int):
            raise Unfit
        if index not in choices:
            choices[index] = choice_type()
        choices[index].add(choice)


class Unfit(Exception):
    """A stream holds what cannot be put in its place; half an answer must not pass for a whole."""


class Strings:
    """Strings that arrive in parts, by name; joined once, at a cost of their length."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}

    def add(self, name: str, part: str) -> None:
        """Append a part."""
        self._parts.setdefault(name, []).append(part)

    def joined(self) -> dict[str, str]:
        """Return every string whole."""
        return {name: "".join(parts) for name, parts in self._parts.items()}


class _Envelope:
    """What surrounds the choices of a stream: the members of its chunks, and the usage."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        self._members: dict[str, Json] = {}

    def add(self, chunk: dict[str, Json]) -> None:
        """Take a chunk's members; the first that says something stays, but for the usage the last.

        Raise `Unfit` for an error.
        """
        if chunk.get("error"):
            raise Unfit
        members = self._members
        for key, value in chunk.items():
            if key in _PER_CHUNK or (key == "usage" and value is None):
                continue
            if key == "usage" or not members.get(key):
                members[key] = value

    def around(self, choices: list[Json], kind: str) -> dict[str, Json]:
        """Return the plain reply; `kind` is its `object`."""
        members = self._members.copy()
        last = {"usage": members.pop("usage")} if "usage" in members else {}
        return {**members, "object": kind, "choices": choices, **last}


_PER_CHUNK: Final = frozenset(("choices", "object", "obfuscation"))


def add_logprobs(into: dict[str, Json], logprobs: Json) -> None:
    """Append the lists of a chunk's `logprobs` to those before; raise `Unfit` for another shape."""
    if logprobs is None:
        into.setdefault("logprobs", None)
        return
    lists = into.get("logprobs") or {}
    for key, value in mapping(logprobs).items():
        if not isinstance(value, list | None):
            raise Unfit
        if value and lists.get(key):
            lists[key].extend(value)
        elif value or key not in lists:
            lists[key] = value
    into["logprobs"] = lists


def name_of(value: Json) -> str:
    """Return the `type` of a part or an item."""
    return text(mapping(value).get("type"))


# --- Replies taken apart -------------------------------------------------------------------------


def replay(
    reply: Json,
    prompt: Prompt,
    kind: str,
    told: Callable[[dict[str, Json]], Iterable[dict[str, Json]]],
) -> tuple[str, bytes]:
    """Return a plain reply as an event stream, or as it is when no stream was asked for.

    `kind` is the `object` of its chunks; `told` yields what each chunk says of a choice.
    """
    if not prompt.stream:
        return JSON, encode(reply)
    options = mapping(prompt.document.root.get("stream_options"))
    with_usage = options.get("include_usage") is True
    return EVENT_STREAM, b"".join(
        [*map(sse, _chunks(mapping(reply), kind, with_usage, told)), DONE_EVENT]
    )


def _chunks(
    reply: dict[str, Json],
    kind: str,
    with_usage: bool,
    told: Callable[[dict[str, Json]], Iterable[dict[str, Json]]],
) -> Iterator[dict[str, Json]]:
    shared = {key: value for key, value in reply.items() if key not in ("choices", "usage")}
    shared["object"] = kind
    if with_usage:
        shared["usage"] = None
    for position, choice in enumerate(map(mapping, items(reply.get("choices")))):
        index = choice.get("index", position)
        for part in told(choice):
            yield {**shared, "choices": [{"index": index, **part}]}
    if with_usage and (spent := reply.get("usage")) is not None:
        yield {**shared, "choices": [], "usage": spent}
