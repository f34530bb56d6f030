"""Which headers go along when a request is asked by another way than the proxy's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from filters.api import Exchange

_OF_THIS_WAY: Final = ("x-forebay-", "x-envoy-", "x-forwarded-", "x-gateway-", ":")
_OF_THIS_REQUEST: Final = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade"),  # RFC 9110, 7.6.1
        *("accept-encoding", "traceparent", "tracestate", "x-request-id"),
        *("x-cache", "x-model-quality"),
    )
)


def onward_headers(exchange: Exchange) -> dict[str, str]:
    """Return what goes upstream with a request, credentials included."""
    return {
        name: value
        for name, value in {**exchange.head.headers, **exchange.upstream_headers}.items()
        if name not in _OF_THIS_REQUEST and not name.startswith(_OF_THIS_WAY)
    }


_MARKS: Final = frozenset(
    (
        *("b3", "baggage", "request-id", "sentry-trace", "uber-trace-id", "x-amzn-trace-id"),
        *("x-client-request-id", "x-cloud-trace-context", "x-correlation-id"),
        *("x-ms-client-request-id"),
    )
)
_KINDS_OF_MARKS: Final = ("x-b3-", "x-datadog-")


def unmarked(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers without those that tell a request from all others, such as tracers set."""
    return {
        name: value
        for name, value in headers.items()
        if name not in _MARKS and not name.startswith(_KINDS_OF_MARKS)
    }


_OF_THIS_REPLY: Final = frozenset(
    (
        *("connection", "content-encoding", "content-length", "keep-alive", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
        *("age", "cache-status", "date", "etag", "server-timing", "set-cookie"),
        *("x-cache", "x-model-quality"),
    )
)


def returned_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what of a reply's headers may go to others than the one that it was made for."""
    return {
        name: value
        for name, value in ((name.lower(), value) for name, value in headers.items())
        if name not in _OF_THIS_REPLY and not name.startswith(_OF_THIS_WAY)
    }
