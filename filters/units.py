"""Values with their unit, as settings write them: "10m", "64KiB"."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

import msgspec

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Nine digits: no setting needs more, and none can then overflow what it is handed to.
_WRITTEN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([A-Za-z]+)")

PoolName: TypeAlias = Annotated[str, msgspec.Meta(extra={"names": "pool"})]
"""A setting that names a pool: a name that is none is refused when the settings are read."""


class Duration(float):
    """A length of time in seconds."""

    expected: Final = 'a duration such as "10m"'

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read "5ms", "300s", "10m", "1.5h"; raise `ValueError` for anything else.

        Units: us, ms, s, m, h, d. One number, one unit, no sign, no space.
        """
        return cls(_parse(text, _SECONDS, cls.expected))

    def __str__(self) -> str:
        """Return the text in its largest whole unit, such as "5m"; `parse` reads it back."""
        if not self:
            return "0s"
        for unit in ("d", "h", "m", "s", "ms"):
            # A nanosecond is below every unit, and above what a float loses on the way.
            count = round(self / _SECONDS[unit], 9)
            if count >= 1 and count.is_integer():
                return f"{count:.0f}{unit}"
        return f"{self / _SECONDS['us']:.9g}us"


class Size(int):
    """A number of bytes."""

    expected: Final = 'a size such as "64KiB"'

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read "512B", "64KiB", "1.5MiB"; raise `ValueError` for anything else.

        Units are binary: B, KiB, MiB, GiB, TiB. One number, one unit, no sign, no space; a part
        of a byte is cut off.
        """
        return cls(_parse(text, _BYTES, cls.expected))

    def __str__(self) -> str:
        """Return the text in its largest whole unit, such as "64KiB"; `parse` reads it back."""
        unit = next(unit for unit in reversed(_BYTES) if self % _BYTES[unit] == 0 or unit == "B")
        return f"{int(self) // _BYTES[unit]}{unit}" if self else "0B"


def decode(kind: type, value: Any) -> Any:
    """Decode a `Duration` or a `Size` for `msgspec`, as its `dec_hook`."""
    if kind is Duration or kind is Size:
        if not isinstance(value, str):
            raise ValueError(f"expected {kind.expected}, got {value!r}")
        return kind.parse(value)
    raise NotImplementedError


def _parse(text: str, units: dict[str, Any], expected: str) -> float:
    match = _WRITTEN.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f'expected {expected}, got "{text}"')
    number, unit = match.groups()
    return (float(number) if "." in number else int(number)) * float(units[unit])
