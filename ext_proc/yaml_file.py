"""Read YAML exactly as Envoy reads it, and remember on which line everything stands.

What Envoy does was measured on 1.40.0, by what it shows in /config_dump for a file of oddities:

1. A plain scalar may be null, a boolean, a whole number or text; quotes or a block make it text.
2. The words y, yes, on, true and n, no, off, false are booleans, in lower, upper and title case.
3. Whole numbers may be octal (010 is 8) or hexadecimal (0x1F).
4. Keys are text, whatever they look like; a key tagged `!ignore` is dropped with its value.
5. There are no merge keys, other tags mean nothing, and of a repeated key the last one counts.

The last is refused here: whoever wrote the first one meant something by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from filters.errors import ConfigError

Loader: Any
try:
    from yaml import CSafeLoader as Loader  # ten times as fast
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader as Loader

Place: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the top of a file, such as `("admin", "address")`."""

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS: Final = {
    form: value
    for value, words in ((True, "y yes true on"), (False, "n no false off"))
    for word in words.split()
    for form in (word, word.upper(), word.capitalize())
}
_WHOLE: Final = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
MOST_DIGITS: Final = 32  # no number is longer, and Python reads none of 4,300
MOST_BYTES: Final = 1 << 20  # as much as a ConfigMap holds; reading it stops a server for a second
MOST_VALUES: Final = 1_000_000  # aliases written out; Envoy takes 300 bytes for each
_REAL: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a file: where, and what was expected and found."""

    file: str
    line: int | None
    path: str
    message: str
    warning: bool = False
    """It works, but hardly as it was meant."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        level = "warning" if self.warning else ""
        return ": ".join(part for part in (where, self.path, level, self.message) if part)


class BadConfig(ConfigError):
    """A file is refused; `problems` holds everything wrong with it, in the order of its lines."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(problems[0].path, problems[0].message)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A YAML file's value, and where each part of it stands."""

    name: str
    value: dict[str, Any]
    """Mappings, lists, text, numbers, booleans and None. An alias shares what its anchor has."""
    node: yaml.Node
    repeated: tuple[tuple[Place, int], ...] = ()
    """Keys that stand twice in one mapping, with the line of the second."""

    def line(self, place: Place) -> int:
        """Return the line of `place`, or of the nearest thing around it that exists.

        A member's line is its key's, so that an alias leads to its use and what is inside it to
        the anchor.
        """
        return self._find(place)[0]

    def written(self, place: Place) -> str | None:
        """Return the scalar at `place` as it stands in the file, or None if there is none."""
        node = self._find(place)[1]
        return node.value if isinstance(node, yaml.ScalarNode) else None

    def problem(self, place: Place, path: str, message: str, *, warning: bool = False) -> Problem:
        """Return a problem at `place`."""
        return Problem(self.name, self.line(place), path, message, warning)

    def _find(self, place: Place) -> tuple[int, yaml.Node | None]:
        node: yaml.Node | None = self.node
        line: int = self.node.start_mark.line + 1
        for step in place:
            if isinstance(node, yaml.MappingNode):
                members = [(key, below) for key, below in node.value if _key(key) == step]
                if not members:
                    return line, None
                key, node = members[-1]
                line = key.start_mark.line + 1
            elif (
                isinstance(node, yaml.SequenceNode)
                and isinstance(step, int)
                and step < len(node.value)
            ):
                node = node.value[step]
                line = max(line, node.start_mark.line + 1)
            else:
                return line, None
        return line, node


def read_yaml(path: Path | str) -> YamlFile:
    """Read a file; raise `BadConfig` when it is missing, too long, no YAML, empty or no mapping."""
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise _refused(name, None, f"expected a readable file, got: {why}") from None
    if len(raw) > MOST_BYTES:
        raise _refused(name, None, "expected a file of at most 1 MiB, got a longer one")
    return parse_yaml(name, raw)


def parse_yaml(name: str, raw: bytes | str) -> YamlFile:
    """Read YAML from memory; `name` is what messages call it. Raise as `read_yaml` does."""
    try:
        node = yaml.compose(raw, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        raise _refused(name, *_syntax_error(raw, error)) from None
    except yaml.reader.ReaderError as error:
        raise _refused(name, None, f"expected UTF-8 text, got: {error.reason}") from None
    except RecursionError:
        raise _refused(name, None, "expected YAML, got one nested too deep") from None
    if node is None:
        raise _refused(name, None, "expected a mapping, got an empty file")
    builder = _Builder(name)
    try:
        value = builder.build(node, ())
    except RecursionError:
        raise _refused(name, None, "expected YAML, got one nested too deep") from None
    if not isinstance(value, dict):
        raise _refused(name, node.start_mark.line + 1, f"expected a mapping, got {found(value)}")
    return YamlFile(name, value, node, tuple(builder.repeated))


def found(value: object) -> str:
    """Name a value in a message: text in quotes, what holds other values by its kind."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"' if len(value) <= 60 else f'"{value[:60]}…"'
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return str(value)


@dataclass(slots=True)
class _Builder:
    """Turns nodes into plain values; what an alias names is built once and shared."""

    name: str
    repeated: list[tuple[Place, int]] = field(default_factory=list)
    _built: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """By node: its value, and how many values it is with all its aliases written out."""
    _open: set[int] = field(default_factory=set)
    _values: int = 0

    def build(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.ScalarNode):
            self._values += 1
            return _scalar(node)
        if id(node) in self._built:
            value, values = self._built[id(node)]
            self._values += values
            if self._values > MOST_VALUES:
                line = node.start_mark.line + 1
                message = f"expected aliases that stand for less than {MOST_VALUES:,} values"
                raise _refused(self.name, line, f"{message}, got more")
            return value
        if id(node) in self._open:
            line = node.start_mark.line + 1
            raise _refused(self.name, line, "expected YAML that ends, got an alias inside its own")
        self._open.add(id(node))
        before = self._values
        self._values += 1
        if isinstance(node, yaml.MappingNode):
            value = dict(self._members(node, place))
        else:
            value = [self.build(item, (*place, i)) for i, item in enumerate(node.value)]
        self._open.discard(id(node))
        self._built[id(node)] = value, self._values - before
        return value

    def _members(self, node: yaml.MappingNode, place: Place) -> Iterator[tuple[str, Any]]:
        seen = set()
        for key_node, below in node.value:
            key = _key(key_node)
            if key is None:
                continue
            if not isinstance(key, str):
                line = key_node.start_mark.line + 1
                raise _refused(self.name, line, f"expected text as a key, got {found(key)}")
            here = (*place, key)
            if key in seen:
                self.repeated.append((here, key_node.start_mark.line + 1))
            seen.add(key)
            yield key, self.build(below, here)


def _key(node: yaml.Node) -> Any:
    """Return a key's text, None for one to ignore, or an empty collection for what is no text."""
    if node.tag == "!ignore":
        return None
    if isinstance(node, yaml.ScalarNode):
        return "null" if node.value in ("", "~") and not node.style else node.value
    return {} if isinstance(node, yaml.MappingNode) else []


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style:
        return text
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if len(text) <= MOST_DIGITS and (whole := _WHOLE.fullmatch(text)):
        sign, digits = whole.groups()
        octal = len(digits) > 1 and digits.isdigit() and digits.startswith("0")
        number = int(digits, 8 if octal else 0)
        return -number if sign == "-" else number
    if _REAL.fullmatch(text):
        return float(text)
    return text


def _syntax_error(raw: bytes | str, error: yaml.MarkedYAMLError) -> tuple[int | None, str]:
    mark = error.problem_mark or error.context_mark
    reason = str(error.problem or error.context).removeprefix("but ")
    if mark is None:
        return None, f"expected YAML, got: {reason}"
    if "cannot start any token" in reason:
        text = raw if isinstance(raw, str) else raw.decode(errors="replace")
        first = text.splitlines()[mark.line][mark.column : mark.column + 1]
        reason = "a tab, which cannot indent" if first == "\t" else f"a bare {first}, to be quoted"
    return mark.line + 1, f"expected YAML, got: {reason} (column {mark.column + 1})"


def _refused(name: str, line: int | None, message: str) -> BadConfig:
    return BadConfig((Problem(name, line, "", message),))
