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
from filters.document import parse
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
"""Those that are the upstream's doing for certain. Of one that was `CUT` nobody knows."""


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


def _is_whole(event: Event) -> bool:
    """Tell whether all of an event came but the line that ends it."""
    try:
        parse(event.data)
    except NotJson:
        return False
    return True
