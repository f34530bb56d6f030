"""Turn what a file says into typed settings, and find everything wrong with it in one pass.

`msgspec.convert` stops at its first error and names types; whoever edits a file wants all of them,
in the words of the file.
"""

from __future__ import annotations

import difflib
import functools
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from ext_proc.yaml_file import Place, Problem, YamlFile, found
from filters.errors import ConfigError
from filters.units import Duration, Size

StructT = TypeVar("StructT", bound=msgspec.Struct)
Members = Mapping[str, tuple[Any, Place]]
"""A mapping's values, each with the place where it is written: not all need come from one."""


class Secret(str):
    """Text that never stands in a file and is never shown.

    `Annotated[Secret, Meta(extra={"variable": "NAME"})]` says which variable holds it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret('***')" if self else "Secret('')"


class Invalid:
    """Stands for a value that could not be read; the reader's problems say why."""


INVALID: Final = Invalid()


class SettingsReader:
    """Reads values out of one file and collects the problems it meets."""

    def __init__(self, file: YamlFile) -> None:
        self.file: Final = file
        self.pools: Collection[str] | None = None
        """Names that a setting of kind `PoolName` may have; None as long as they are not known."""
        self._problems: dict[Problem, None] = {}

    @property
    def problems(self) -> list[Problem]:
        """What was found so far, each once: an inherited setting is read again by every heir."""
        return list(self._problems)

    def wrong(self, place: Place, message: str) -> Invalid:
        """Note a problem and return what stands for the value."""
        self.note(self.file.problem(place, show(place), message))
        return INVALID

    def note(self, problem: Problem) -> None:
        """Note a problem that lies elsewhere."""
        self._problems[problem] = None

    def read(self, kind: Any, value: Any, place: Place) -> Any:
        """Return `value` as a `kind`, or `INVALID`.

        Of `Meta(extra=...)` it knows `check`, a function that raises `ValueError` for a value that
        will not do; `names`, "pool" or "cluster", of which this reader knows the former; and
        `variable`, described at `Secret`.
        """
        info, extra = _kind(kind)
        result = self._value(kind, info, extra, value, place)
        if result is INVALID:
            return INVALID
        if extra.get("names") == "pool":
            return self._pool(result, place)
        try:
            extra.get("check", bool)(result)
        except ValueError as error:
            return self.wrong(place, str(error))
        return result

    def _value(
        self, kind: Any, info: inspect.Type, extra: Mapping[str, Any], value: Any, place: Place
    ) -> Any:
        match info:
            case inspect.StructType(cls=cls):
                if not isinstance(value, dict):
                    return self.wrong(place, f"expected a mapping, got {found(value)}")
                members = {key: (below, (*place, key)) for key, below in value.items()}
                return self.struct(cls, members, place)
            case inspect.DictType():
                return self._mapping(typing.get_args(kind)[1], value, place)
            case inspect.ListType() | inspect.VarTupleType():
                return self._list(kind, value, place)
            case inspect.UnionType():
                return self._optional(kind, value, place)
            case inspect.CustomType(cls=cls) if cls is Secret:
                variable = extra["variable"]
                return self.wrong(place, f"expected {variable} in the environment, got it here")
            case inspect.CustomType(cls=cls):
                return self._measure(cls, value, place)
            case inspect.IntType() if isinstance(value, float) and value.is_integer():
                value = int(value)
            case _:
                pass
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            got = self._found(info, value, place)
            return self.wrong(place, f"expected {_expected(info)}, got {got}")

    def struct(self, kind: type[StructT], members: Members, place: Place) -> StructT | Invalid:
        """Return a `kind` made of `members`, or `INVALID`."""
        fields = _fields(kind)
        for key, (_, where) in members.items():
            if key not in fields:
                self.wrong(where, unknown("key", key, fields))
        values = {
            key: self.read(fields[key].type, value, where)
            for key, (value, where) in members.items()
            if key in fields
        }
        for key, field in fields.items():
            if key in values:
                continue
            info, extra = _kind(field.type)
            if field.required:
                values[key] = self.wrong((*place, key), f"expected {_expected(info)}, got nothing")
            elif extra.get("names") == "pool":
                values[key] = self._pool(field.default, (*place, key), " by default")
        if INVALID in values.values():
            return INVALID
        try:
            return kind(**values)
        except ConfigError as error:
            steps = error.path.split(".") if error.path else ()
            where = members[steps[0]][1] if steps and steps[0] in members else (*place, *steps)
            self.wrong(where, error.message)
        except ValueError as error:
            self.wrong(place, str(error))
        return INVALID

    def _mapping(self, kind: Any, value: Any, place: Place) -> Any:
        if not isinstance(value, dict):
            return self.wrong(place, f"expected a mapping, got {found(value)}")
        read = {key: self.read(kind, below, (*place, key)) for key, below in value.items()}
        return INVALID if INVALID in read.values() else read

    def _list(self, kind: Any, value: Any, place: Place) -> Any:
        if not isinstance(value, list):
            return self.wrong(place, f"expected a list, got {found(value)}")
        of = typing.get_args(kind)[0]
        read = [self.read(of, item, (*place, index)) for index, item in enumerate(value)]
        return INVALID if INVALID in read else typing.get_origin(kind)(read)

    def _optional(self, kind: Any, value: Any, place: Place) -> Any:
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        if value is None and len(kinds) < len(typing.get_args(kind)):
            return None
        return self.read(kinds[0], value, place)

    def _measure(self, kind: type, value: Any, place: Place) -> Any:
        assert kind is Duration or kind is Size
        if not isinstance(value, str):
            return self.wrong(place, f"expected {kind.expected}, got {found(value)}")
        try:
            return kind(value)
        except ValueError as error:
            return self.wrong(place, str(error))

    def _pool(self, name: str, place: Place, how: str = "") -> Any:
        if self.pools is None or name in self.pools:
            return name
        return self.wrong(place, not_among("a pool", name, self.pools, how))

    def _found(self, info: inspect.Type, value: Any, place: Place) -> str:
        """Name what was found; say so where YAML made something else of what was meant as text."""
        written = self.file.written(place)
        if isinstance(info, inspect.StrType) and written and not isinstance(value, str):
            return f'{found(value)} (to mean the text, quote it: "{written}")'
        return found(value)


ABOUT_AS_LIKE: Final = 0.1  # of two names, by the share of letters that they have in common


def show(place: Place) -> str:
    """Write a place as messages do: `forebay.profiles.chat.cache.ttl`."""
    if place[:3] == ("node", "metadata", "forebay"):
        place = place[2:]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(steps).removeprefix(".")


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return what may have been meant: the likest one, and another that is about as like."""
    found = difflib.get_close_matches(name, list(known), n=2)
    likest = [difflib.SequenceMatcher(None, name, one).ratio() for one in found]
    return [
        one for one, like in zip(found, likest, strict=True) if likest[0] - like < ABOUT_AS_LIKE
    ]


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is not known, and what may have been meant."""
    if name == "<<":
        return "Envoy's YAML knows no merge keys; a profile inherits by `base: NAME`"
    if nearest := _nearest(name, known):
        return f"unknown {what}, did you mean {' or '.join(nearest)}?"
    return f"unknown {what}, expected one of {_listed(known)}"


def not_among(what: str, name: str, known: Iterable[str], how: str = "") -> str:
    """Say that `name` names no such thing, and what may have been meant."""
    message = f'expected {what}, got "{name}"{how}'
    if nearest := _nearest(name, known):
        return f"{message}, did you mean {' or '.join(nearest)}?"
    return f"{message}; there is {_listed(known)}"


def clusters_in(config: msgspec.Struct) -> list[tuple[str, str]]:
    """Return the clusters that settings name, each under its key: `upstream.cluster`, `light`."""
    named: list[tuple[str, str]] = []
    for key, field in _fields(type(config)).items():
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            named += [(f"{key}.{below}", name) for below, name in clusters_in(value)]
        elif value and _kind(field.type)[1].get("names") == "cluster":
            named.append((key, value))
    return named


def pools_in(config: msgspec.Struct) -> list[str]:
    """Return the pools that settings name."""
    named: list[str] = []
    for field in _fields(type(config)).values():
        value = getattr(config, field.name)
        if isinstance(value, msgspec.Struct):
            named += pools_in(value)
        elif isinstance(value, str) and _names_pool(field.type):
            named.append(value)
    return named


def _names_pool(kind: Any) -> bool:
    """Tell whether a field of this type names a pool, optional or not."""
    info = inspect.type_info(kind)
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    return any(
        isinstance(member, inspect.Metadata) and (member.extra or {}).get("names") == "pool"
        for member in members
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


@functools.cache
def _kind(kind: Any) -> tuple[inspect.Type, dict[str, Any]]:
    """Return what a type is, and what its `Meta(extra=...)` says of it."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.Metadata):
        return info.type, info.extra or {}
    return info, {}


def _expected(info: inspect.Type) -> str:
    match info:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return f"a whole number{_bounds(info)}"
        case inspect.FloatType():
            return f"a number{_bounds(info)}"
        case inspect.StrType(min_length=shortest, pattern=pattern):
            if pattern:
                return f"text of the form {pattern}"
            return "text that is not empty" if shortest else "text"
        case inspect.EnumType(cls=cls):
            return f"one of {', '.join(str(member.value) for member in cls)}"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.CustomType(cls=cls):
            return str(getattr(cls, "expected", cls.__name__))
        case inspect.StructType() | inspect.DictType():
            return "a mapping"
        case _:
            return "a list"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    bounds = [
        f"{words} {bound}"
        for words, bound in (
            ("of at least", info.ge),
            ("above", info.gt),
            ("of at most", info.le),
            ("below", info.lt),
        )
        if bound is not None
    ]
    return f" {' and '.join(bounds)}" if bounds else ""
