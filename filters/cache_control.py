"""Read the client's `Cache-Control` (RFC 9111, section 5.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Directives:
    """What a client asks of a cache; `max_age_s` in seconds, None when it sets no limit."""

    no_cache: bool = False
    no_store: bool = False
    max_age_s: int | None = None


_NONE: Final = Directives()


def parse(header: str) -> Directives:
    """Read a header value; directives that are unknown or malformed are ignored (RFC 9111, 5.2)."""
    if not header:
        return _NONE
    no_cache = no_store = False
    max_age_s = None
    for directive in header.lower().split(","):
        name, _, value = directive.strip().partition("=")
        value = value.strip('" ')
        match name.strip():
            case "no-cache":
                no_cache = True
            case "no-store":
                no_store = True
            case "max-age" if value.isascii() and value.isdigit():
                max_age_s = int(value[:9])
            case _:
                pass
    return Directives(no_cache, no_store, max_age_s)
