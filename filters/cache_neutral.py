"""Read a plain question the same in every chat dialect, or say that it is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from filters.api import Exchange, Parameter, Prompt, Role, Turn
from filters.bounds import is_too_much
from filters.cache_folding import fold_white_space
from filters.cache_rules import VARIANT_HEADERS, Ignored, dropped_members, variant_query
from filters.document import Json

_NUMBERS: Final = (
    Parameter.TEMPERATURE,
    Parameter.TOP_P,
    Parameter.MAX_TOKENS,
    Parameter.SEED,
)
_ROLES: Final = (Role.SYSTEM, Role.USER, Role.ASSISTANT)
# Both versions answer a plain question in the same form; the later one refuses to be told how to
# sample: https://platform.claude.com/docs/en/api/versioning
_VERSION: Final = "anthropic-version"
_VERSIONS: Final = ("2023-06-01", "2026-10-21")
# Each of the others may change what a provider does.
_UNUSUAL_HEADERS: Final = tuple(
    name for name in VARIANT_HEADERS if name not in (":authority", _VERSION)
)
_TEXT_KINDS: Final = frozenset(("text", "input_text", "output_text"))


@dataclass(frozen=True, slots=True)
class _Form:
    """How a dialect writes a plain question; whatever else stands in a body makes it another."""

    path: re.Pattern[str]
    """The endpoint, behind a prefix that counts."""
    members: frozenset[str]
    is_plain: Callable[[dict[str, Json]], bool]
    """Whether what is below those members is plain as well."""


def neutral_request(exchange: Exchange, ignore: frozenset[Ignored]) -> tuple[Json, ...] | None:
    """Return what counts of a question that every chat dialect can ask; None for any other.

    That is model, turns of one text each and the parameters all know: nothing that one provider
    alone may act on.
    """
    form = _FORMS.get(exchange.dialect.name)
    prompt, head = exchange.prompt, exchange.head
    place = form.path.fullmatch(head.path.partition("?")[0]) if form else None
    if form is None or place is None or prompt.stateful or variant_query(head.path):
        return None
    headers, root = head.headers, prompt.document.root
    if any(map(headers.get, _UNUSUAL_HEADERS)):
        return None
    version = headers.get(_VERSION)
    if version and (version not in _VERSIONS or (version == _VERSIONS[1] and _is_steered(prompt))):
        return None
    members = root.keys() - dropped_members(exchange, ignore)
    if not members <= form.members or not form.is_plain(root):
        return None
    turns, parameters = _said(prompt.turns()), _parameters(exchange)
    if turns is None or parameters is None:
        return None
    authority = headers.get(":authority", "")
    return "any chat", authority, place[1], prompt.model, turns, parameters


def _is_steered(prompt: Prompt) -> bool:
    return any(
        prompt.parameter(name) is not None for name in (Parameter.TEMPERATURE, Parameter.TOP_P)
    )


def _said(turns: Json) -> list[Json] | None:
    """Return who said what; None unless a user's text ends it and all is text."""
    plain: list[tuple[Role, str]] = []
    turn: Turn
    for turn in turns:
        if turn.has_tool or turn.has_media or turn.role not in _ROLES or len(turn.texts) != 1:
            return None
        plain.append((turn.role, turn.texts[0].value))
    if not plain or plain[-1][0] is not Role.USER:
        return None  # the beginning of an answer is gone on with here, and answered there
    if is_too_much([text for _, text in plain]):
        return list(plain)
    return [(role, fold_white_space(text)) for role, text in plain]


def _parameters(exchange: Exchange) -> list[Json] | None:
    parameter = exchange.prompt.parameter
    found: list[Json] = []
    for name in _NUMBERS:
        value = parameter(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1.0 is 1; a large seed has more digits than a float
        found.append(value)
    stop = parameter(Parameter.STOP)
    found.append([stop] if isinstance(stop, str) else stop or [])
    return found if parameter(Parameter.CHOICES) in (None, 1) else None


# --- What each dialect's plain question may hold -------------------------------------------------


def _is_message(message: Json) -> bool:
    """Tell whether a message of OpenAI's or Anthropic's is a role and one text."""
    if not isinstance(message, dict) or not message.keys() <= {"role", "content", "type"}:
        return False
    if message.get("type", "message") != "message" or "role" not in message:
        return False
    return _is_content(message.get("content"))


def _is_content(content: Json) -> bool:
    if isinstance(content, list) and len(content) == 1:
        part = content[0]
        if not isinstance(part, dict) or part.keys() != {"type", "text"}:
            return False
        return part["type"] in _TEXT_KINDS and isinstance(part["text"], str)
    return isinstance(content, str)


def _is_chat(root: dict[str, Json]) -> bool:
    if None not in (root.get("max_tokens"), root.get("max_completion_tokens")):
        return False  # which of them a server reads is not known here
    return all(map(_is_message, root["messages"]))


def _is_messages(root: dict[str, Json]) -> bool:
    return _is_content(root.get("system", "")) and all(map(_is_message, root["messages"]))


def _is_responses(root: dict[str, Json]) -> bool:
    if root.get("store") is not False or not isinstance(root.get("instructions"), str | None):
        return False  # a response that is kept can be gone on with
    given = root.get("input")
    return isinstance(given, str) or (isinstance(given, list) and all(map(_is_message, given)))


def _is_gemini(root: dict[str, Json]) -> bool:
    contents = root.get("contents")
    if not isinstance(contents, list) or not all(map(_is_gemini_content, contents)):
        return False
    for name in ("systemInstruction", "system_instruction"):
        if root.get(name) is not None and not _is_gemini_content(root[name]):
            return False
    configs = [root[name] for name in _CONFIGS if root.get(name) is not None]
    return len(configs) <= 1 and all(config.keys() <= _CONFIG_MEMBERS for config in configs)


def _is_gemini_content(content: Json) -> bool:
    if not isinstance(content, dict) or not content.keys() <= {"role", "parts"}:
        return False
    parts = content.get("parts")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], dict):
        return False
    return parts[0].keys() == {"text"} and isinstance(parts[0]["text"], str)


_CONFIGS: Final = ("generationConfig", "generation_config")
_CONFIG_MEMBERS: Final = frozenset(
    (
        *("temperature", "topP", "top_p", "maxOutputTokens", "max_output_tokens", "seed"),
        *("candidateCount", "candidate_count", "stopSequences", "stop_sequences"),
    )
)
_SAMPLING: Final = frozenset(("model", "temperature", "top_p"))
_FORMS: Final[Mapping[str, _Form]] = {
    "openai.chat": _Form(
        re.compile("(.*)/v1/chat/completions"),
        _SAMPLING | {"messages", "max_tokens", "max_completion_tokens", "seed", "stop", "n"},
        _is_chat,
    ),
    "openai.responses": _Form(
        re.compile("(.*)/v1/responses"),
        _SAMPLING | {"input", "instructions", "max_output_tokens", "store"},
        _is_responses,
    ),
    "anthropic.messages": _Form(
        re.compile("(.*)/v1/messages"),
        _SAMPLING | {"messages", "system", "max_tokens", "stop_sequences"},
        _is_messages,
    ),
    "gemini.generate": _Form(
        re.compile(r"(.*)/v1(?:beta)?/models/[^/]+:(?:g|streamG)enerateContent"),
        frozenset(("contents", "systemInstruction", "system_instruction", *_CONFIGS)),
        _is_gemini,
    ),
}
# Text completions are not among them: they go on with a text where a chat answers it.
