"""Read and write Gemini's `generateContent` and `streamGenerateContent`.

Requests are read as proto JSON is: camelCase or snake_case names, and a single object where an
array is meant. Replies are camelCase, as the provider writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

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
from filters.framing import Event, Framer, JsonArrayFramer, SseFramer

_JSON: Final = "application/json"

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
_ROLES: Final = {
    "user": Role.USER,
    "model": Role.ASSISTANT,
    "function": Role.TOOL,
    "system": Role.SYSTEM,
}

_MEDIA: Final = frozenset(("inlineData", "inline_data", "fileData", "file_data"))
_RESULTS: Final = frozenset(("functionResponse", "function_response"))
_TOOLS: Final = _RESULTS | {
    "functionCall",
    "function_call",
    "toolCall",
    "tool_call",
    "toolResponse",
    "tool_response",
    "executableCode",
    "executable_code",
    "codeExecutionResult",
    "code_execution_result",
}

# Tools that the client runs. Every other (search, maps, retrieval, code execution, MCP servers)
# runs at the provider, and its answer depends on what is found there.
_CLIENT_TOOLS: Final = frozenset(
    ("functionDeclarations", "function_declarations", "computerUse", "computer_use")
)

# What the provider remembers under a name.
_STATE: Final = frozenset(
    ("cachedContent", "cached_content", "continuationToken", "continuation_token")
)

_CONFIGS: Final = ("generationConfig", "generation_config")

# https://ai.google.dev/gemini-api/docs/thinking: 2.5 takes a budget, later ones a level, none both.
# Pro cannot do without thinking, and Lite, when it thinks, not with less than 512 tokens.
_HAS_BUDGET: Final = re.compile(r"gemini-2\.5")
_HAS_LEVEL: Final = re.compile(r"gemini-(?:[3-9]|\d\d)")
_PRO_LEAST: Final = 128
_LITE_LEAST: Final = 512
_BUDGETS: Final = ("thinkingBudget", "thinking_budget")
_LEVELS: Final = ("thinkingLevel", "thinking_level")
_THINKING: Final = ("thinkingConfig", "thinking_config")
_INSTRUCTIONS: Final = ("systemInstruction", "system_instruction")

# google.genai.types.FinishReason; what is not here reads as `OTHER`.
_FINISHES: Final = {
    "STOP": Finish.STOP,
    "MAX_TOKENS": Finish.LENGTH,
    "CONTINUATION": Finish.LENGTH,
    "SAFETY": Finish.FILTERED,
    "RECITATION": Finish.FILTERED,
    "BLOCKLIST": Finish.FILTERED,
    "PROHIBITED_CONTENT": Finish.FILTERED,
    "SPII": Finish.FILTERED,
    "IMAGE_SAFETY": Finish.FILTERED,
    "IMAGE_PROHIBITED_CONTENT": Finish.FILTERED,
    "IMAGE_RECITATION": Finish.FILTERED,
    "ESCALATION": Finish.FILTERED,
    "MODEL_ARMOR": Finish.FILTERED,
}
_UNFINISHED: Final = "FINISH_REASON_UNSPECIFIED"  # proto JSON for "not set"

# google/rpc/code.proto names an HTTP status for each code; where several codes share one, the
# code that asks the client for the right thing.
_OWN_MEMBERS: Final = frozenset(("candidates", "usageMetadata"))
_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GeminiPrompt(BodyPrompt):
    """A Gemini request; model and stream form stand in its path."""

    __slots__ = ("event_stream",)

    def __init__(self, document: Document, path: str) -> None:
        root = document.root
        resource, method, query = _split(path)
        snake = root.get("generationConfig") is None and "generation_config" in root
        super().__init__(
            document,
            _SNAKE_SHAPE if snake else _SHAPE,
            model=_model(resource),
            stream=method == "streamGenerateContent",
            stateful=_is_stateful(root),
        )
        self.event_stream: Final = "alt=sse" in query
        """The stream asked for is server-sent events, not one JSON array."""

    def tools(self) -> Sequence[Json]:
        """Return the declared tools, as they stand in the body."""
        return _listed(self.document.root.get("tools"))


class Gemini:
    """The dialect of Gemini's generation endpoints, at Google AI and at Vertex AI.

    `Usage.input` includes what tools brought into the prompt, `Usage.output` includes thoughts.
    A stream has no closing event of its own: it ends after the chunk in which its candidates
    finish. Of several candidates the first is read; an assembled reply holds all.
    """

    name = "gemini.generate"
    provider = "gcp.gemini"
    operation = "generate_content"

    def read(self, document: Document, path: str) -> Prompt:
        """View a request; raise `NotJson` when contents or configuration are no such thing."""
        root = document.root
        if not isinstance(root.get("contents"), list | dict):
            raise NotJson("expected an array in contents")
        for name in _CONFIGS:
            if not isinstance(root.get(name), dict | None):
                raise NotJson(f"expected an object in {name}")
        return GeminiPrompt(document, path)

    def read_reply(self, reply: Json) -> Reply:
        """Read a `GenerateContentResponse`; a blocked prompt reads as filtered."""
        response = mapping(reply)
        first = _first(response)
        parts = _parts(first)
        has_tool = any(not _TOOLS.isdisjoint(part) for part in parts)
        finish = _finish(response, first)
        if finish is Finish.STOP and any("functionCall" in part for part in parts):
            finish = Finish.TOOL
        return Reply(
            text=_text(parts),
            finish=finish,
            usage=_usage(response.get("usageMetadata")),
            model=text(response.get("modelVersion")),
            has_tool=has_tool,
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return a framer for server-sent events, or for the JSON array of a stream."""
        if is_event_stream(content_type):
            return SseFramer()
        if prompt.stream and content_type.partition(";")[0].strip().lower() == _JSON:
            return JsonArrayFramer()
        return None

    def read_event(self, event: Event) -> Delta:
        """Read one chunk; it is the last when every candidate in it has finished."""
        delta = Delta(event.raw)
        if not event.data:
            return delta
        response = mapping(parse_or_none(event.data))
        first = _first(response)
        delta.text = _text(_parts(first))
        delta.finish = _finish(response, first)
        delta.usage = _usage(response.get("usageMetadata"))
        delta.done = _is_finished(response)
        delta.failed = response.get("error") is not None
        return delta

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return the response a stream stands for; None unless all its candidates finished.

        None as well after an error, or where a function call came in partial arguments.
        """
        response: dict[str, Json] = {}
        candidates: dict[int, _Candidate] = {}
        for event in events:
            if not event.data:
                continue
            chunk = parse_or_none(event.data)
            if not isinstance(chunk, dict) or chunk.get("error") is not None:
                return None
            for key, value in chunk.items():
                if key == "usageMetadata":
                    response[key] = {**mapping(response.get(key)), **mapping(value)}
                elif key != "candidates":
                    response[key] = value
            for candidate in items(chunk.get("candidates")):
                index = _index(candidate)
                if not candidates.setdefault(index, _Candidate()).add(mapping(candidate)):
                    return None
        if candidates:
            response["candidates"] = [candidates[index].whole() for index in sorted(candidates)]
        return encode(response) if _is_finished(response) else None

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the response as the stream asked for, or as it is when none was."""
        if not prompt.stream:
            return _JSON, encode(reply)
        chunks = _chunks(mapping(reply))
        if isinstance(prompt, GeminiPrompt) and prompt.event_stream:
            return EVENT_STREAM, b"".join(map(sse, chunks))
        return _JSON, b"[%b]" % b",\n".join(map(encode, chunks))

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return where a response has its id and, at Vertex AI, its time."""
        response = mapping(reply)
        told = {("responseId",): Stamp.ID, ("createTime",): Stamp.MOMENT}
        return {path: stamp for path, stamp in told.items() if text(response.get(path[0]))}

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return a response of one candidate."""
        usage = reply.usage or Usage()
        content = {"role": "model", "parts": [{"text": reply.text}]}
        counts = {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output,
            "totalTokenCount": usage.input + usage.output,
        }
        if usage.cached:
            counts["cachedContentTokenCount"] = usage.cached
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": counts,
            "modelVersion": reply.model,
            "responseId": name,
        }

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return an event for each part of the text of one."""
        return _SPLIT(raw, parts)

    def error(self, status: int, text: str) -> bytes:
        """Return a Google API error with the `google.rpc` name of the status.

        An object for array streams too: the provider wraps it there, and clients read both.
        """
        fallback = "INTERNAL" if status >= 500 else "FAILED_PRECONDITION"
        name = _STATUSES.get(status, fallback)
        return encode({"error": {"code": status, "message": text, "status": name}})

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return the error as an event, or as the last element of an array."""
        if last is not None and _OWN_MEMBERS.isdisjoint(mapping(parse_or_none(last.data))):
            return None
        return "", self.error(BROKEN_STATUS, why)


# --- The path ------------------------------------------------------------------------------------


def _split(path: str) -> tuple[str, str, Sequence[str]]:
    """Split `/v1beta/models/m:method?a=b` into resource, method and the query's parts."""
    route, _, query = path.partition("?")
    if "%" in path:
        route, query = unquote(route), unquote(query)
    resource, _, method = route.rstrip("/").rpartition(":")
    return resource, method, query.replace("$alt=", "alt=").split("&")


def _model(resource: str) -> str:
    """Return the model's name; other collections keep theirs, such as `tunedModels/name`."""
    parent, _, name = resource.rpartition("/")
    collection = parent.rpartition("/")[2]
    return name if collection in ("models", "") or not name else f"{collection}/{name}"


# --- The request ---------------------------------------------------------------------------------


def _turns(document: Document) -> list[Turn]:
    root = document.root
    turns = [
        _turn(document, root[name], (name,), Role.SYSTEM)
        for name in _INSTRUCTIONS
        if root.get(name) is not None
    ]
    contents = root.get("contents")
    if isinstance(contents, dict):
        turns.append(_turn(document, contents, ("contents",), _role(contents)))
        return turns
    for index, content in enumerate(items(contents)):
        if isinstance(content, dict):
            turns.append(_turn(document, content, ("contents", index), _role(content)))
    return turns


def _parameters(config: str) -> dict[Parameter, tuple[Path, ...]]:
    """Return where parameters may stand, `config` being the object this request uses."""
    names = {
        Parameter.TEMPERATURE: ("temperature",),
        Parameter.TOP_P: ("topP", "top_p"),
        Parameter.MAX_TOKENS: ("maxOutputTokens", "max_output_tokens"),
        Parameter.SEED: ("seed",),
        Parameter.CHOICES: ("candidateCount", "candidate_count"),
        Parameter.STOP: ("stopSequences", "stop_sequences"),
    }
    places = sorted(_CONFIGS, key=lambda place: place != config)
    return {
        parameter: tuple((place, spelling) for place in places for spelling in spellings)
        for parameter, spellings in names.items()
    }


def _role(content: dict[str, Json]) -> Role:
    return _ROLES.get(text(content.get("role")), _USER)


def _turn(document: Document, content: Json, path: Path, role: Role) -> Turn:
    """Read a content object, or the bare string that some clients send as an instruction."""
    if isinstance(content, str):
        return Turn(role, (Text(document, path, role),), path)
    parts = mapping(content).get("parts")
    if isinstance(parts, list) and len(parts) == 1:  # most turns, at half the time
        only = mapping(parts[0])
        if len(only) == 1 and isinstance(only.get("text"), str):
            return Turn(role, (Text(document, (*path, "parts", 0, "text"), role),), path)
    return _mixed_turn(document, _located(parts, (*path, "parts")), path, role)


def _mixed_turn(
    document: Document, parts: list[tuple[dict[str, Json], Path]], path: Path, role: Role
) -> Turn:
    texts: list[Text] = []
    has_tool = has_media = False
    results = 0
    for part, at in parts:
        if isinstance(part.get("text"), str) and part.get("thought") is not True:
            texts.append(Text(document, (*at, "text"), role))
            if len(part) == 1:
                continue
        for name in part:
            if name in _MEDIA:
                has_media = True
            elif name in _RESULTS:
                has_tool = True
                results += 1
                has_media = has_media or bool(mapping(part[name]).get("parts"))
                texts += _result_texts(document, part[name], (*at, name))
            elif name in _TOOLS:
                has_tool = True
    if results and results == len(parts) and role is _USER:
        role = Role.TOOL
    return Turn(role, tuple(texts), path, has_tool, has_media)


def _located(parts: Json, at: Path) -> list[tuple[dict[str, Json], Path]]:
    """Return each part with its path; a part may stand alone where an array is meant."""
    if isinstance(parts, dict):
        return [(parts, at)]
    return [(part, (*at, i)) for i, part in enumerate(items(parts)) if isinstance(part, dict)]


def _result_texts(document: Document, result: Json, at: Path) -> Iterator[Text]:
    """Yield the strings a function returned, such as its `output` or its `error`."""
    for key, value in mapping(mapping(result).get("response")).items():
        if isinstance(value, str):
            yield Text(document, (*at, "response", key), Role.TOOL)


def _listed(value: Json) -> list[Json]:
    return [value] if isinstance(value, dict) else items(value)


def _is_stateful(root: dict[str, Json]) -> bool:
    """Tell whether the answer depends on what is stored at, or fetched by, the provider."""
    if not _STATE.isdisjoint(root):
        return True
    tools = root.get("tools")
    return bool(tools) and any(mapping(tool).keys() - _CLIENT_TOOLS for tool in _listed(tools))


def _limit_thinking(document: Document, model: str, most: Thinking) -> bool:
    """Lower the budget or the level, whichever the request names; -1 leaves it to the model."""
    place = _first_of(document, (), _CONFIGS)
    place = _first_of(document, place, _THINKING)
    named = mapping(document.get(place))
    for name in named.keys() & set(_BUDGETS):
        asked, budget = named[name], _budget(model, most)
        if isinstance(asked, int) and (asked > budget or asked < 0):
            document.set((*place, name), budget)
            return True
    level = at_least(most.effort, Effort.LOW)  # not every model knows MINIMAL
    for name in named.keys() & set(_LEVELS):
        if (instead := lowered(named[name], level)) is not None:
            document.set((*place, name), instead)
            return True
    if not most.always or not named.keys().isdisjoint((*_BUDGETS, *_LEVELS)):
        return False
    if _HAS_BUDGET.search(model):
        document.set((*place, _BUDGETS[0]), _budget(model, most))
    elif _HAS_LEVEL.search(model) and lowered(Effort.MAX.value, level) is not None:
        document.set((*place, _LEVELS[0]), min(level, Effort.HIGH, key=list(Effort).index).value)
    else:
        return False
    return True


def _first_of(document: Document, at: Path, names: Sequence[str]) -> Path:
    """Return the path of the first member that is there, or of the first of all."""
    there = mapping(document.get(at)) if at else document.root
    return (*at, next((name for name in names if there.get(name) is not None), names[0]))


def _budget(model: str, most: Thinking) -> int:
    budget = 0 if most.effort is Effort.NONE else most.budget
    if "pro" in model:
        return max(budget, _PRO_LEAST)
    if "lite" in model and budget:
        return max(budget, _LITE_LEAST)
    return budget


def _instruct(document: Document, added: str) -> bool:
    place = _first_of(document, (), _INSTRUCTIONS)
    part = {"text": added}
    standing = document.get(place)
    if isinstance(standing, str):
        return append_to(document, place, part, added)
    if isinstance(only := mapping(standing).get("parts"), dict):
        document.set((*place, "parts"), [only, part])
    elif not append_to(document, (*place, "parts"), part, added):
        document.set(place, {"parts": [part]})
    return True


_SHAPE: Final = Shape(
    turns=_turns,
    parameters=_parameters("generationConfig"),
    limit_thinking=_limit_thinking,
    instruct=_instruct,
)
_SNAKE_SHAPE: Final = replace(_SHAPE, parameters=_parameters("generation_config"))


# --- The reply -----------------------------------------------------------------------------------


def _index(candidate: Json) -> int:
    """Return a candidate's index; proto JSON leaves a zero out."""
    index = mapping(candidate).get("index")
    return index if isinstance(index, int) else 0


def _first(response: dict[str, Json]) -> dict[str, Json]:
    """Return the candidate of index 0, or an empty one."""
    for candidate in items(response.get("candidates")):
        if isinstance(candidate, dict) and _index(candidate) == 0:
            return candidate
    return {}


def _parts(candidate: dict[str, Json]) -> list[dict[str, Json]]:
    parts = items(mapping(candidate.get("content")).get("parts"))
    return [part for part in parts if isinstance(part, dict)]


def _text(parts: list[dict[str, Json]]) -> str:
    return joined(part.get("text") for part in parts if part.get("thought") is not True)


def _has_finished(candidate: Json) -> bool:
    return text(mapping(candidate).get("finishReason")) not in ("", _UNFINISHED)


def _is_blocked(response: dict[str, Json]) -> bool:
    """Tell whether the prompt was refused; the provider then returns no candidate."""
    reason = mapping(response.get("promptFeedback")).get("blockReason")
    return bool(reason) and not response.get("candidates")


def _is_finished(response: dict[str, Json]) -> bool:
    candidates = items(response.get("candidates"))
    return all(map(_has_finished, candidates)) if candidates else _is_blocked(response)


def _finish(response: dict[str, Json], candidate: dict[str, Json]) -> Finish | None:
    if _has_finished(candidate):
        return _FINISHES.get(candidate["finishReason"], Finish.OTHER)
    return Finish.FILTERED if _is_blocked(response) else None


def _usage(usage: Json) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        input=count(usage.get("promptTokenCount")) + count(usage.get("toolUsePromptTokenCount")),
        output=count(usage.get("candidatesTokenCount")) + count(usage.get("thoughtsTokenCount")),
        cached=count(usage.get("cachedContentTokenCount")),
    )


# --- Streams -------------------------------------------------------------------------------------

_PLAIN: Final = frozenset(("text", "thought"))  # a part of these members alone may be cut or joined
_GROWING: Final = ("citationMetadata", "logprobsResult")  # each chunk brings its own share


class _Candidate:
    """One candidate of a streamed response, put together chunk by chunk."""

    __slots__ = ("_content", "_members", "_parts", "_texts")

    def __init__(self) -> None:
        self._members: dict[str, Json] = {}
        self._content: dict[str, Json] | None = None
        self._parts: list[dict[str, Json]] = []
        self._texts: list[str] = []
        """Pieces of the last part, while it is one that grows."""

    def add(self, candidate: dict[str, Json]) -> bool:
        """Add a chunk's share; return False when it cannot be put in its place."""
        for key, value in candidate.items():
            if key == "content":
                self._content = {**(self._content or {}), **mapping(value)}
            elif key in _GROWING:
                self._members[key] = _grown(mapping(self._members.get(key)), mapping(value))
            else:
                self._members[key] = value
        return all(map(self._add_part, _parts(candidate)))

    def _add_part(self, part: dict[str, Json]) -> bool:
        call = mapping(part.get("functionCall"))
        if "partialArgs" in call or "willContinue" in call:
            return False
        if not (part.keys() <= _PLAIN and isinstance(part.get("text"), str)):
            self._close_text()
            self._parts.append(part)
            return True
        if not part["text"] and self._parts:
            return True  # streams often end in an empty text that no plain reply has
        if not self._texts or self._parts[-1].get("thought") != part.get("thought"):
            self._close_text()
            self._parts.append(part)
        self._texts.append(part["text"])
        return True

    def _close_text(self) -> None:
        if self._texts:
            self._parts[-1]["text"] = "".join(self._texts)
            self._texts = []

    def whole(self) -> dict[str, Json]:
        """Return the candidate as a plain response holds it."""
        self._close_text()
        if self._content is None:
            return self._members
        content = self._content
        if self._parts or "parts" in content:
            content = {**content, "parts": self._parts}
        return {"content": content, **self._members}


def _grown(before: dict[str, Json], more: dict[str, Json]) -> dict[str, Json]:
    """Join the arrays of two objects member by member; of other values the later stands."""
    grown = {**before, **more}
    for key in before.keys() & more.keys():
        if isinstance(before[key], list) and isinstance(more[key], list):
            grown[key] = before[key] + more[key]
    return grown


def _chunks(response: dict[str, Json]) -> list[dict[str, Json]]:
    """Return the chunks that stream a whole response; the last brings usage and the finish."""
    shared = {
        key: value
        for key, value in response.items()
        if key not in ("candidates", "usageMetadata", "promptFeedback")
    }
    chunks = [
        {"candidates": [share], **shared}
        for place, candidate in enumerate(items(response.get("candidates")))
        for share in _shares(mapping(candidate), place)
    ] or [shared]
    if "promptFeedback" in response:
        chunks[0]["promptFeedback"] = response["promptFeedback"]
    if "usageMetadata" in response:
        chunks[-1]["usageMetadata"] = response["usageMetadata"]
    return chunks


def _shares(candidate: dict[str, Json], place: int) -> Iterator[dict[str, Json]]:
    """Yield what each chunk holds of a candidate that stands at `place` in the response."""
    index = {"index": candidate.get("index", place)} if place or "index" in candidate else {}
    parts = [piece for part in _parts(candidate) for piece in _cut(part)]
    content = mapping(candidate.get("content"))
    for part in parts[:-1]:
        yield {"content": {**content, "parts": [part]}, **index}
    last = {**candidate, **index}
    if parts:
        last["content"] = {**content, "parts": parts[-1:]}
    yield last


def _cut(part: dict[str, Json]) -> list[dict[str, Json]]:
    """Cut a text part as a model streams it; any other stays whole."""
    if part.keys() <= _PLAIN and part.get("text"):
        return [{**part, "text": piece} for piece in pieces(text(part["text"]))]
    return [part]


_SPLIT: Final = Split(
    ("candidates", 0, "content", "parts", 0, "text"),
    every=frozenset(("modelVersion", "responseId", "createTime", "index", "role")),
)

GEMINI: Final = Gemini()
