"""Name the ways in which a simulated replica can fail, and read what one is to be like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from filters.units import Duration

SLOWER: Final = 4.0
STATUS: Final = 503
ALL: Final = "*"


class Kind(StrEnum):
    """What fails."""

    SLOW = "slow"
    """It works, but `factor` times as slowly."""
    ERROR = "error"
    """A share of requests gets an error at once."""
    HANG = "hang"
    """It takes connections and answers nothing, health and metrics neither."""
    SILENT = "silent"
    """It says that it is well and idle, and never answers."""
    CRASH = "crash"
    """Its connections are reset, and it takes none."""
    FROZEN = "frozen"
    """It works, but its metrics stay what they were."""
    STALE = "stale"
    """It works, but does not answer who asks for its metrics."""


ENDS_IN_RESTART: Final = frozenset({Kind.HANG, Kind.SILENT, Kind.CRASH})
"""Nothing is left of what a replica did before; its caches are empty."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way of failing, and when."""

    kind: Kind
    after_s: float = 0.0
    """So long after it was asked for, or after the start, it begins."""
    for_s: float = math.inf
    """So long it lasts."""
    factor: float = SLOWER
    status: int = STATUS
    share: float = 1.0
    """Of requests that get an error."""

    @classmethod
    def read(cls, kind: str, options: Mapping[str, str]) -> Fault:
        """Read one; raise `ValueError` with what was found and expected."""
        if kind not in list(Kind):
            raise ValueError(f'expected one of {", ".join(Kind)}, got "{kind}"')
        read: dict[str, float] = {}
        for name, text in options.items():
            if name not in _OPTIONS:
                raise ValueError(f'expected one of {", ".join(_OPTIONS)}, got "{name}"')
            read[name] = _number(name, text)
        return cls(
            Kind(kind),
            after_s=read.get("after", 0.0),
            for_s=read.get("for", math.inf),
            factor=read.get("factor", SLOWER),
            status=int(read.get("status", STATUS)),
            share=read.get("share", 1.0),
        )


_OPTIONS: Final = ("after", "for", "factor", "status", "share")
_BOUNDS: Final = {"factor": (0.01, 1_000.0), "status": (400.0, 599.0), "share": (0.0, 1.0)}


def fault_of(text: str) -> tuple[str, Fault]:
    """Read `REPLICA:KIND,after=5s,for=10s`; return which replica fails, `*` for each, and how.

    Raise `ValueError` with what was found and expected.
    """
    replica, colon, rest = text.rpartition(":")
    kind, *options = rest.split(",")
    pairs = [option.partition("=") for option in options]
    if not (colon and replica and all(equals for _, equals, _ in pairs)):
        raise ValueError(f'expected something like "replica-0:slow,for=10s", got "{text}"')
    return replica, Fault.read(kind, {name: value for name, _, value in pairs})


def _number(name: str, text: str) -> float:
    if name not in _BOUNDS:
        return float(Duration(text))
    least, most = _BOUNDS[name]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ValueError(f'expected for {name} a number from {least:g} to {most:g}, got "{text}"')
    return number
