"""Name the reasons for which filters leave a prompt as it is, by a few fixed phrases."""

from __future__ import annotations

from typing import Final

from filters.api import Note

OTHER: Final = "other"
REASONS: Final = frozenset(
    {
        "broken",
        "bug",
        "closed",
        "compressed",
        "content type",
        "denied",
        "error",
        "every word counts",
        "failed",
        "fields",
        "filtered",
        "full",
        "incomplete",
        "late",
        "left",
        "length",
        "media",
        "no document",
        "no question",
        "no replica",
        "no summary",
        "no time left",
        "nothing",
        "nothing to win",
        "refused",
        "repeated member",
        "several",
        "shape",
        "sightings",
        "size",
        "stateful",
        "tags",
        "temperature",
        "the last word is not the user's",
        "the summary is empty",
        "throttled",
        "tokens",
        "tool",
        "tools",
        "unreadable",
        "workers",
    }
)
BEGINNINGS: Final = {
    "every word counts:": "every word counts",
    "intent ": "intent",
    "workers:": "workers",
}
"""Reasons that may go on with a word of the prompt or of the system."""


def reason_of(note: Note) -> str:
    """Return the phrase that a note `FILTER.skip` is counted by; a text of no phrase is `other`."""
    if note in REASONS:
        return str(note)
    text = str(note)
    for beginning, reason in BEGINNINGS.items():
        if text.startswith(beginning):
            return reason
    return OTHER
