"""Read the client's `Cache-Control` (RFC 9111, section 5.2.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_MOST_S: Final = 2**31  # RFC 9111, 1.2.2: what a larger number of seconds is taken for
_MOST_DIGITS: Final = 10
# A directive ends at a comma, but not at one in a quoted string.
_DIRECTIVE: Final = re.compile(r"(?:[^,\"]|\"(?:[^\"\\]|\\.)*+\"?)++", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Directives:
    """What a client asks of a cache; times in seconds, None where it sets no limit."""

    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False
    max_age_s: int | None = None
    min_fresh_s: int = 0

    def allow(self, age_s: float, left_s: float) -> bool:
        """Tell whether a stored answer of this age will do, with so much of its time left."""
        if self.max_age_s is not None and age_s > self.max_age_s:
            return False
        return left_s >= self.min_fresh_s


NOTHING_ASKED: Final = Directives()
"""Of a client that sends no such header."""


def parse(header: str) -> Directives:
    """Read a header value, several headers being joined by commas.

    Unknown directives are ignored, `max-stale` among them: nothing stale is kept. Of one that comes
    twice the stricter counts, and a limit that is no number of seconds allows nothing (RFC 9111,
    4.2.1: "considered stale").
    """
    flags = set()
    ages: list[int] = []
    fresh: list[int] = []
    for directive in _DIRECTIVE.findall(header.lower()):
        name, _, value = directive.partition("=")
        match name.strip():
            case "no-cache" | "no-store" | "only-if-cached" as flag:
                flags.add(flag)
            case "max-age":
                seconds = _seconds(value)
                ages.append(0 if seconds is None else seconds)
            case "min-fresh":
                seconds = _seconds(value)
                fresh.append(_MOST_S if seconds is None else seconds)
            case _:
                pass
    return Directives(
        no_cache="no-cache" in flags,
        no_store="no-store" in flags,
        only_if_cached="only-if-cached" in flags,
        max_age_s=min(ages, default=None),
        min_fresh_s=max(fresh, default=0),
    )


def _seconds(argument: str) -> int | None:
    """Read a number of seconds; RFC 9111, 5.2, wants tokens and quoted strings taken alike."""
    value = argument.strip()
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if not (value.isascii() and value.isdigit()):
        return None
    digits = value.lstrip("0")
    return min(int(digits or "0"), _MOST_S) if len(digits) <= _MOST_DIGITS else _MOST_S
