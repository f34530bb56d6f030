"""Name where a request went and what decided, by words of closed sets."""

from __future__ import annotations

from typing import Final

from ext_proc.session import Facts
from ext_proc.telemetry.metrics import Labels
from filters.api import Note
from filters.routing import Rule

UNKNOWN: Final = "unknown"
NOWHERE: Final = "none"
_RULES: Final = frozenset(Rule)
_REFUSALS: Final[dict[Note, str]] = {400: "too_long", 429: "busy"}
"""Statuses by which `route` refuses, and what that is called."""


def decision_of(facts: Facts) -> Labels | None:
    """Return pool, rule and length bucket; None where `route` had nothing to decide."""
    notes = facts.notes
    rule = notes.get("route.rule")
    if rule is None:
        refused = notes.get("route.refused")
        if refused is None:
            return None
        return NOWHERE, _REFUSALS.get(refused, UNKNOWN), str(notes.get("route.bucket", UNKNOWN))
    if rule not in _RULES:
        return None
    return facts.pool or NOWHERE, str(rule), str(notes.get("route.bucket", UNKNOWN))
