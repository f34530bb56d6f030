"""Read the W3C header that says which trace a request belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# https://www.w3.org/TR/trace-context/#traceparent-header: a later version may append fields.
_TRACEPARENT: Final = re.compile(
    "(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span of the caller; ids are hexadecimal."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str | None) -> TraceParent | None:
    """Return what the header says, or None when there is none or it is malformed."""
    if text is None or (match := _TRACEPARENT.fullmatch(text)) is None:
        return None
    trace_id, span_id, flags = match.groups()
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
