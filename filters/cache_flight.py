"""Have those who ask the same at the same time wait for one answer."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from filters.api import Boarding, Config, Exchange, Seat
from filters.units import Duration

# Why an answer is not kept that the next to ask may get a better one for.
_FAILED: Final = frozenset(("incomplete", "error", "None"))


class Coalesce(Config, frozen=True):
    """Who waits for an answer that another one went for: those whose answers are kept."""

    wait: Duration = Duration("10s")
    """Who waited so long goes alone; 0s: nobody waits."""
    room: Annotated[int, msgspec.Meta(ge=1, le=4_000)] = 1_000
    """At most so many wait for one answer."""
    rare: bool = False
    """Also those who were not seen often enough to be kept: the head of every reply is looked at.

    A miss costs a sixth more then, one message of the proxy's beside, and is held until the model
    answers.
    """


def is_for_nobody(why: str) -> bool:
    """Tell whether an answer that is not kept for this reason can be shared with nobody either.

    Otherwise it failed: the next one may have more luck.
    """
    return why not in _FAILED


def note_flight(exchange: Exchange, seat: Seat) -> None:
    """Say how an exchange came to ask the model itself, or that it did not have to."""
    if seat.waited or seat.boarding is Boarding.FULL:
        exchange.note("cache.flight", seat.boarding)
