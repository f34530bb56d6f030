"""Say what the cache did: to the client by `X-Cache` and `Cache-Status`, to the operator by notes.

`Cache-Status` is that of RFC 9211; its `fwd` says why a request goes on.
"""

from __future__ import annotations

from typing import Final

from filters.api import Exchange
from filters.errors import FilterError

MISS: Final = "miss"
"""Nothing was found."""
REQUEST: Final = "request"
"""The client takes nothing of what may have been found."""
NOT_STORED: Final = "no stored answer fits, and the request wants no other"


def say_miss(exchange: Exchange, forward: str, sightings: int) -> None:
    """Say that the model answers, and why."""
    exchange.client_headers["x-cache"] = "MISS"
    exchange.upstream_headers["x-cache"] = "MISS"
    exchange.client_headers["cache-status"] = f"forebay; fwd={forward}"
    exchange.note("cache", "miss")
    exchange.note("cache.sightings", sightings)


def say_bypass(exchange: Exchange, reason: str) -> None:
    """Say that the model answers and nothing was looked for, and why."""
    exchange.client_headers["x-cache"] = "BYPASS"
    exchange.client_headers["cache-status"] = f"forebay; fwd=bypass; detail={reason}"
    exchange.note("cache", "bypass")
    exchange.note("cache.why", reason)


def not_stored(exchange: Exchange, reason: str) -> FilterError:
    """Return the refusal of RFC 9111, 5.2.1.7; `reason` says why nothing was looked for, if so."""
    exchange.client_headers["x-cache"] = "BYPASS" if reason else "MISS"
    status = f"forebay; detail={reason or 'only-if-cached'}"  # neither hit nor forwarded
    exchange.client_headers["cache-status"] = status
    exchange.note("cache", "bypass" if reason else "miss")
    exchange.note("cache.why", reason or "only-if-cached")
    return FilterError(504, NOT_STORED)
