"""Tell the reader of a stream that it broke off, so that half an answer is not taken for a whole.

Pure, and only for streams whose end came through: of one that was reset nothing can be said any
more, and its reader knows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from filters.api import Dialect
from filters.dialects.base import mapping, parse_or_none, text
from filters.document import Json, parse
from filters.errors import NotJson
from filters.framing import Event, Framer

WHY: Final = "the stream ended before the answer did"


class Break(enum.StrEnum):
    """How a streamed answer came to be none."""

    CUT = "cut"
    """The exchange was over in the midst of it: upstream, client or proxy left."""
    UNFINISHED = "unfinished"
    """It ended like any other, without what ends an answer."""
    FAILED = "failed"
    """The provider said in it that it failed."""


UPSTREAMS: Final = frozenset((Break.UNFINISHED, Break.FAILED))
"""Those that are the upstream's doing, if the client is not to blame (`is_clients_fault`). Of one
that was `CUT` nobody knows."""

_CLIENTS: Final = range(400, 500)
_CLIENTS_NAMES: Final = frozenset(
    (
        # Anthropic's types; the first is one of OpenAI's as well
        *("invalid_request_error", "authentication_error", "billing_error", "permission_error"),
        *("not_found_error", "request_too_large", "rate_limit_error"),
        # OpenAI's codes
        *("invalid_prompt", "rate_limit_exceeded", "insufficient_quota"),
        *("context_length_exceeded", "content_policy_violation", "bio_policy"),
        *("misalignment_policy_violation", "data_residency_mismatch", "invalid_image"),
        *("invalid_image_format", "invalid_base64_image", "invalid_image_url", "image_too_large"),
        *("image_too_small", "image_parse_error", "image_content_policy_violation"),
        *("invalid_image_mode", "image_file_too_large", "unsupported_image_media_type"),
        *("empty_image_file", "failed_to_download_image", "image_file_not_found"),
        # Google's
        *("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED"),
        *("NOT_FOUND", "FAILED_PRECONDITION"),
    )
)


@dataclass(frozen=True, slots=True)
class Ending:
    """What stands at the end of a stream."""

    rest: Sequence[Event]
    """What was left of the stream, as far as it goes to the client."""
    error: Event | None = None
    """What is put behind it."""
    broken: bool = False


def ending(dialect: Dialect, framer: Framer, last: Event | None, *, sent: bool) -> Ending:
    """Close the framer of a stream that had not ended its answer so far.

    `last` is the last event with data. Unless the client has all bytes already (`sent`), it does
    not get half an event: readers that know the rules leave it out (WHATWG HTML, 9.2.6), others
    would stumble over it before they come to the error.
    """
    rest = framer.close()
    if framer.transparent:
        return Ending(rest)  # who knows what it said
    for event in rest:
        delta = dialect.read_event(event)
        if delta.done or delta.finish is not None or delta.failed:
            return Ending(rest)
    whole = [event for event in rest if _is_whole(event)]
    told = dialect.broken(whole[-1] if whole else last, WHY)
    if told is None:
        return Ending(rest, broken=True)
    name, data = told
    kept = rest if sent else whole
    error = framer.append(data, name, behind=b"".join(event.raw for event in kept))
    if not error:
        return Ending(rest, broken=True)
    return Ending(kept, Event(error, name, data), broken=True)


def is_clients_fault(data: bytes) -> bool:
    """Tell whether an error in a stream would have had a status below 500, had it come in time.

    `data` is that of the event. A number in it decides, where there is one; else names do.
    """
    event = mapping(parse_or_none(data))
    error = mapping(event.get("error") or mapping(event.get("response")).get("error")) or event
    said = [error.get(key) for key in ("code", "status", "type")]
    statuses = [status for status in map(_status, said) if status is not None]
    if statuses:
        return statuses[0] in _CLIENTS
    return any(text(name) in _CLIENTS_NAMES for name in said)


def _status(said: Json) -> int | None:
    """Read a status, which some write as a string."""
    if isinstance(said, str) and len(said) == 3 and said.isdecimal():
        return int(said)
    return said if isinstance(said, int) and not isinstance(said, bool) else None


def _is_whole(event: Event) -> bool:
    """Tell whether all of an event came but the line that ends it."""
    try:
        parse(event.data)
    except NotJson:
        return False
    return True
