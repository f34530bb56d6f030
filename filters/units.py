"""Values with their unit, as settings write them: "10m", "64KiB"."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final, Self, TypeAlias

import msgspec

_SECONDS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_BYTES: Final = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
# 15 digits: what a float holds exactly, and more than any setting needs.
_WRITTEN: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([A-Za-z]+)")

PoolName: TypeAlias = Annotated[str, msgspec.Meta(extra={"names": "pool"})]
"""A setting that names a pool: a name that is none is refused when the settings are read."""


ClusterName: TypeAlias = Annotated[str, msgspec.Meta(extra={"names": "cluster"})]
"""A setting that names one of the proxy's clusters, empty for none; `forebay check` looks for it.

`Ports.upstream` asks there, by way of the egress listener.
"""


class Duration(float):
    """A length of time: a number of seconds, written "5ms", "300s", "10m", "1.5h".

    Units: us, ms, s, m, h, d. One number, one unit, no sign, no space. Raise `ValueError` for any
    other text.
    """

    expected: Final = 'a duration such as "10m"'

    def __new__(cls, value: str | float) -> Self:
        """Take a number of seconds, or read a text."""
        if isinstance(value, str):
            value = _parse(value, _SECONDS, cls.expected)
        return super().__new__(cls, value)

    def __str__(self) -> str:
        """Write it in the largest unit of which it is a whole number, such as "5m"."""
        if not self:
            return "0s"
        for unit, seconds in _SECONDS.items():
            count = self / seconds
            if round(count) >= 1 and math.isclose(count, round(count), rel_tol=1e-12):
                return f"{round(count)}{unit}"
        return f"{self / _SECONDS['us']:.9f}".rstrip("0").rstrip(".") + "us"


class Size(int):
    """A number of bytes, written "512B", "64KiB", "1.5MiB".

    Units are binary: B, KiB, MiB, GiB, TiB. One number, one unit, no sign, no space; a part of a
    byte is cut off. Raise `ValueError` for any other text.
    """

    expected: Final = 'a size such as "64KiB"'

    def __new__(cls, value: str | int) -> Self:
        """Take a number of bytes, or read a text."""
        if isinstance(value, str):
            value = int(_parse(value, _BYTES, cls.expected))
        return super().__new__(cls, value)

    def __str__(self) -> str:
        """Write it in the largest unit of which it is a whole number, such as "64KiB"."""
        for unit, size in _BYTES.items():
            if self and self % size == 0:
                return f"{self // size}{unit}"
        return "0B"


def _check_above_zero(value: Duration | Size) -> None:
    if not value:
        raise ValueError(f'expected more than nothing, got "{value}"')


SomeTime: TypeAlias = Annotated[Duration, msgspec.Meta(extra={"check": _check_above_zero})]
"""A setting that is a `Duration`, but none at all is refused when the settings are read."""
SomeSize: TypeAlias = Annotated[Size, msgspec.Meta(extra={"check": _check_above_zero})]
"""Likewise for a `Size`."""


def decode(kind: type, value: Any) -> Any:
    """Decode a `Duration` or a `Size` for `msgspec`, as its `dec_hook`."""
    if kind is Duration or kind is Size:
        if not isinstance(value, str):
            raise ValueError(f"expected {kind.expected}, got {value!r}")
        return kind(value)
    raise NotImplementedError


def _parse(text: str, units: dict[str, float] | dict[str, int], expected: str) -> float:
    match = _WRITTEN.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f'expected {expected}, got "{text}"')
    number, unit = match.groups()
    return (float(number) if "." in number else int(number)) * units[unit]
