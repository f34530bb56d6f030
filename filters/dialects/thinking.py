"""How much a model may think, in the words that several providers share."""

from __future__ import annotations

from typing import Final

from filters.api import Effort
from filters.document import Json

_RANKS: Final[dict[str, int]] = {effort.value: rank for rank, effort in enumerate(Effort)}


def lowered(asked: Json, most: Effort) -> str | None:
    """Return the effort to ask for instead, written as `asked` is; None to leave it.

    What is no known effort stays.
    """
    if not isinstance(asked, str) or _RANKS.get(asked.lower(), 0) <= _RANKS[most]:
        return None
    return most.value.upper() if asked.isupper() else most.value


def at_least(effort: Effort, least: Effort) -> Effort:
    """Return `effort`, or `least` where that is more."""
    return effort if _RANKS[effort] >= _RANKS[least] else least
