"""Name what became of an answer that the cache did not have, by a few fixed words."""

from __future__ import annotations

from typing import Final

from ext_proc.session import Facts
from ext_proc.telemetry.skips import reason_of
from filters.api import Outcome

STORED: Final = "stored"
STATUS: Final = "status"
"""It was no success."""
SIGHTINGS: Final = "sightings"
"""Its request was not seen often enough."""
INCOMPLETE: Final = "incomplete"
"""Its end was not seen."""


def result_of(facts: Facts) -> str | None:
    """Return whether a miss's answer was stored, or why not; None where it had none."""
    notes = facts.notes
    if "cache.stored" in notes:
        return STORED
    if "cache.skip" in notes:
        return reason_of(notes["cache.skip"])
    if "cache.sightings" not in notes:
        return None
    if facts.status not in (0, 200):
        return STATUS
    return SIGHTINGS if facts.outcome is Outcome.FORWARDED else INCOMPLETE
