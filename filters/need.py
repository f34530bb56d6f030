"""Reckon how much of a pool work of one kind needs, from how much it held of late.

What comes by chance needs more than it holds on average, or it waits: about the root of that more
(the square-root rule of queueing theory). Half of the root is felt. Twice the root helps little,
and takes a third of what long prompts have in a pool that is full.
"""

from __future__ import annotations

import math
from typing import Final

LONG_S: Final = 30.0
"""About as long as a long prompt is read: what was needed in that time will be needed again."""
SHORT_S: Final = 5.0
"""A rise is seen so fast; a fall counts only after `LONG_S`."""


class Need:
    """What some work needs of two things, its slots and its replicas."""

    __slots__ = ("_long_replicas", "_long_slots", "_short_replicas", "_short_slots")

    def __init__(self) -> None:
        self._long_slots = self._long_replicas = 0.0
        self._short_slots = self._short_replicas = 0.0

    def passed(self, slots: int, replicas: int, seconds: float) -> None:
        """Know that it held so many of both for so long."""
        fades = math.exp(-seconds / LONG_S)
        self._long_slots = slots + (self._long_slots - slots) * fades
        self._long_replicas = replicas + (self._long_replicas - replicas) * fades
        fades = math.exp(-seconds / SHORT_S)
        self._short_slots = slots + (self._short_slots - slots) * fades
        self._short_replicas = replicas + (self._short_replicas - replicas) * fades

    def slots(self, held: int) -> int:
        """Return how many it should be left, that holds `held` at this moment; one at least."""
        return _least(held, max(self._long_slots, self._short_slots))

    def replicas(self, held: int) -> int:
        """Return the same of replicas."""
        return _least(held, max(self._long_replicas, self._short_replicas))


def _least(held: int, mean: float) -> int:
    return max(1, held, math.ceil(mean + math.sqrt(mean)))
