"""Whether ways to pick a replica come in the same order in two runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Final, NamedTuple

APART: Final = 1.25
"""Ways whose 95th percentiles are closer than that are of one rank: a live run is short."""


class Order(NamedTuple):
    """How the order of a run agrees with that of another one, by the 95th percentile."""

    told: int
    """Pairs that the other run tells apart."""
    turned: tuple[tuple[str, str], ...]
    """Those of them that this run tells apart as well, but the other way round: first the one that
    the other run has first."""
    closer: tuple[tuple[str, str], ...]
    """Those in the wrong order here by less than that."""

    @property
    def agrees(self) -> float:
        """What share of the pairs is in the same order."""
        right = self.told - len(self.turned) - len(self.closer)
        return right / self.told if self.told else 1.0


def order_of(here: Mapping[str, float], there: Mapping[str, float]) -> Order:
    """Hold the figures of a run against those of another one, which says who is apart."""
    told = 0
    turned: list[tuple[str, str]] = []
    closer: list[tuple[str, str]] = []
    for pair in combinations([name for name in there if name in here], 2):
        first, last = sorted(pair, key=there.__getitem__)
        if there[last] < APART * there[first]:
            continue
        told += 1
        if here[first] > APART * here[last]:
            turned.append((first, last))
        elif here[first] > here[last]:
            closer.append((first, last))
    return Order(told, tuple(turned), tuple(closer))
