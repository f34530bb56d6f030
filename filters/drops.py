"""Drop fields of a request's body by JSONPath rules, and never a message or a tool in use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias, assert_never

import msgspec

from filters.api import Prompt, Role
from filters.document import Document, Json, Path

MOST_LOOKED_AT: Final = 20_000  # values of a body, for all rules together; 0.5 us each
MOST_FILTERED: Final = 500  # values that conditions are put to; 20 us each
_NOT_DROPPED: Final = ("model", "stream")  # what is known of a request was read from them
_TOOLS: Final = ("tools", "functions")
_CHOICES: Final = ("tool_choice", "toolConfig", "tool_config", "function_call")
_WITH_TOOLS: Final = (*_CHOICES, "parallel_tool_calls")
_OPTIONAL: Final = ("auto", "none", "AUTO", "NONE", "MODE_UNSPECIFIED")


@dataclass(frozen=True, slots=True)
class Names:
    """The step `.a` or `['a', 'b']`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """The step `[0]` or `[0, -1]`."""

    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The step `[1:3]`."""

    part: slice


@dataclass(frozen=True, slots=True)
class Anywhere:
    """The step `..`: the value itself and whatever is in it."""


@dataclass(frozen=True, slots=True)
class Every:
    """The step `[*]`: every member or item."""


@dataclass(frozen=True, slots=True)
class Where:
    """The step `[?...]`: members or items that meet conditions."""

    conditions: Any
    """A filter of jsonpath-ng, which finds what meets it in a value."""


Step: TypeAlias = Names | Places | Part | Anywhere | Every | Where


@dataclass(frozen=True, slots=True)
class Rule:
    """A JSONPath, as steps from the root."""

    steps: tuple[Step, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The members of the root that the rule names, none when it searches everywhere."""
        first = self.steps[0]
        return first.names if isinstance(first, Names) else ()


def compile_rule(text: str) -> Rule:
    """Return the rule that a JSONPath says; raise `ValueError` for one that cannot be followed."""
    # It takes 50 ms to import: only profiles that have such rules pay for it.
    from jsonpath_ng.exceptions import JSONPathError
    from jsonpath_ng.ext.parser import parse

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what the library is about to take out
            tree = parse(text)
            steps = tuple(_steps(tree))
    except (JSONPathError, Warning) as error:
        raise ValueError(f'expected a JSONPath such as "$.safetySettings", got "{text}"') from error
    if not text.startswith("$") or not steps:
        raise ValueError(f'expected a JSONPath that begins with "$.", got "{text}"')
    named = steps[1] if isinstance(steps[0], Anywhere) else steps[0]
    if not isinstance(named, Names):
        raise ValueError(f'expected a JSONPath that names a field first, got "{text}"')
    if len(steps) == 1 and any(name in _NOT_DROPPED for name in named.names):
        raise ValueError(f'expected a field that a request can do without, got "{text}"')
    return Rule(steps)


def check_rule(text: str) -> None:
    """Raise `ValueError` for a JSONPath that cannot be followed."""
    compile_rule(text)


DropRule: TypeAlias = Annotated[str, msgspec.Meta(extra={"check": check_rule})]
"""A setting that is a JSONPath; one that cannot be followed is refused when settings are read."""


def _steps(tree: Any) -> Iterator[Step]:
    """Flatten the library's tree; it is read, not run: its search keeps no bound."""
    match type(tree).__name__:
        case "Root":
            pass
        case "Child":
            yield from _steps(tree.left)
            yield from _steps(tree.right)
        case "Descendants":
            yield from _steps(tree.left)
            yield Anywhere()
            yield from _steps(tree.right)
        case "Fields" if "*" in tree.fields:
            yield Every()
        case "Fields":
            yield Names(tuple(tree.fields))
        case "Index":
            yield Places(tuple(tree.indices))
        case "Slice" if (tree.start, tree.end, tree.step) != (None, None, None):
            yield Part(slice(tree.start, tree.end, tree.step))
        case "Slice" | "Wildcard":
            yield Every()
        case "Filter" if not _searches(tree):
            yield Where(tree)
        case other:
            raise Warning(other)


def _searches(conditions: Any) -> bool:
    """Tell whether conditions search below a value or run patterns: that has no bound."""
    said = repr(conditions)
    return "Descendants" in said or "Wildcard" in said or "=~" in said or "Root" in said


class TooMuch(Exception):
    """More values than can be looked at in one go."""


@dataclass(slots=True)
class _Search:
    """What a search may still look at."""

    spared: frozenset[str]
    """Members of the root that only a rule which names them looks into."""
    looked_at: int = 0
    filtered: int = 0

    def find(self, value: Json, steps: tuple[Step, ...], path: Path) -> Iterator[Path]:
        self.looked_at += 1
        if self.looked_at > MOST_LOOKED_AT:
            raise TooMuch
        if not steps:
            yield path
            return
        step, rest = steps[0], steps[1:]
        if isinstance(step, Anywhere):
            yield from self.find(value, rest, path)
            for key, below in _members(value):
                if not (not path and key in self.spared):
                    yield from self.find(below, steps, (*path, key))
            return
        for key, below in self._taken(value, step):
            yield from self.find(below, rest, (*path, key))

    def _taken(
        self, value: Json, step: Names | Places | Part | Every | Where
    ) -> Iterator[tuple[str | int, Json]]:
        match step:
            case Names(names):
                if isinstance(value, dict):
                    yield from ((name, value[name]) for name in names if name in value)
            case Places(indexes):
                if isinstance(value, list):
                    size = len(value)
                    yield from ((at % size, value[at]) for at in indexes if -size <= at < size)
            case Part(part):
                if isinstance(value, list):
                    yield from ((index, value[index]) for index in range(len(value))[part])
            case Every():
                yield from _members(value)
            case Where(conditions):
                members = list(_members(value))
                self.filtered += len(members)
                if self.filtered > MOST_FILTERED:
                    raise TooMuch
                met = {_key(found.path) for found in conditions.find(value)}
                yield from (member for member in members if member[0] in met)
            case _:
                assert_never(step)


def _key(path: Any) -> str | int:
    key: str | int = path.fields[0] if hasattr(path, "fields") else path.indices[0]
    return key


def _members(value: Json) -> Iterator[tuple[str | int, Json]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from enumerate(value)


def drop_fields(prompt: Prompt, rules: Sequence[Rule]) -> list[Json]:
    """Drop what `rules` find, and return it; raise `TooMuch`, and drop nothing, where it is much.

    A rule looks into messages only where it names their field first. Whatever it says, it drops
    no message of the conversation, no text of one, nothing in a tool's call or result, and no
    declared tool that the conversation calls or the request asks for. System prompts it may.
    """
    document = prompt.document
    turns = prompt.turns()
    kept = _Kept(prompt)
    spared = frozenset(str(turn.path[0]) for turn in turns if turn.path)
    search = _Search(spared)
    found: dict[Path, None] = {}
    for rule in rules:
        for path in search.find(document.root, rule.steps, ()):
            if path[0] not in spared or path[0] in rule.named:
                found[path] = None
    dropped: list[Json] = []
    # From the end: what stands later in an array moves when something before it goes.
    for path in sorted(found, key=_from_the_end, reverse=True):
        value = document.get(path, dropped)
        if value is dropped or kept.holds(path, value):
            continue
        dropped.append(value)
        _remove(document, path, spared)
    if dropped and not any(document.root.get(name) for name in _TOOLS):
        _drop_choice(document, found)
    return dropped


def _from_the_end(path: Path) -> tuple[tuple[int, int, str], ...]:
    return tuple((1, step, "") if isinstance(step, int) else (0, 0, step) for step in path)


def _remove(document: Document, path: Path, spared: frozenset[str]) -> None:
    """Remove a value, and the containers outside messages that hold nothing more."""
    document.remove(path)
    while len(path) > 1 and path[0] not in spared:
        path = path[:-1]
        if document.get(path) not in ([], {}):
            break
        document.remove(path)


def _drop_choice(document: Document, found: dict[Path, None]) -> None:
    """Without tools there is nothing to choose from, and providers refuse a choice."""
    if any(path[0] in _TOOLS for path in found):
        for name in _WITH_TOOLS:
            document.remove((name,))


_WHAT_IT_IS: Final = ("role", "type")  # of a message: without, a system prompt would be a user's


class _Kept:
    """What no rule drops."""

    def __init__(self, prompt: Prompt) -> None:
        self._document = prompt.document
        self._prefixes: set[Path] = set()
        self._turns = {turn.path for turn in prompt.turns()}
        self._tools: set[Path] = set()
        called: list[Json] = [prompt.document.root.get(name) for name in _CHOICES]
        for turn in prompt.turns():
            # A system prompt goes whole or not at all.
            shortest = len(turn.path) + 1 if turn.role is Role.SYSTEM else 1
            for path in (turn.path, *(text.path for text in turn.texts)):
                self._prefixes.update(path[:end] for end in range(shortest, len(path) + 1))
            if turn.has_tool:
                self._tools.add(turn.path)
                called.append(prompt.document.get(turn.path))
        self._used = frozenset(_names(called))
        self._must_call = any(map(_asks_for_a_tool, called[: len(_CHOICES)]))

    def holds(self, path: Path, value: Json) -> bool:
        if path in self._prefixes:
            return True
        if path[-1] in _WHAT_IT_IS and path[:-1] in self._turns:
            return True
        if any(path[:end] in self._tools for end in range(len(path) + 1)):
            return True
        if path[0] in _TOOLS:
            named = path[-1] == "name" or not self._used.isdisjoint(_names([value]))
            return self._must_call or named
        # The last part of a message stays: providers refuse one without any.
        siblings = self._document.get(path[:-1])
        in_turn = path[:1] in self._turns or path[:2] in self._turns
        return isinstance(siblings, list) and len(siblings) == 1 and in_turn


def _names(values: list[Json]) -> Iterator[str]:
    """Return what is called `name` in values, however deep."""
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(name := value.get("name"), str):
                yield name
            left += value.values()
        elif isinstance(value, list):
            left += [
                {"name": one} if isinstance(one, str) else one for one in value
            ]  # Gemini lists the functions that are allowed by name alone


def _asks_for_a_tool(choice: Json) -> bool:
    if isinstance(choice, str):
        return choice not in _OPTIONAL
    if isinstance(choice, dict):
        inner = choice.get("functionCallingConfig", choice.get("function_calling_config", choice))
        kind = inner.get("mode", inner.get("type")) if isinstance(inner, dict) else None
        return kind is not None and kind not in _OPTIONAL
    return False
