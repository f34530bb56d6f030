"""What work needs follows from what it held of late, and from how chance spreads."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from filters.need import LONG_S, SHORT_S, Need


def after(*passed: tuple[int, float]) -> Need:
    need = Need()
    for held, seconds in passed:
        need.passed(held, 2 * held, seconds)
    return need


def mean(passed: Sequence[tuple[int, float]], fades_s: float) -> float:
    """Return a mean in which each moment counts the less the longer it is ago."""
    found, ago_s = 0.0, 0.0
    for held, seconds in reversed(passed):
        found += held * (math.exp(-ago_s / fades_s) - math.exp(-(ago_s + seconds) / fades_s))
        ago_s += seconds
    return found


@pytest.mark.parametrize(("held", "need"), [(0, 1), (1, 2), (4, 6), (16, 20), (100, 110)])
def test_it_needs_the_mean_and_its_root(held: int, need: int) -> None:
    """One at least."""
    assert need == after((held, math.inf)).slots(0)


def test_it_needs_what_it_holds() -> None:
    """However little that was before."""
    assert (7, 1) == (Need().slots(7), Need().replicas(0))


def test_the_greater_of_two_means_counts() -> None:
    """So a rise is seen soon, and a fall late."""
    rng = random.Random(1)
    for _ in range(50):
        passed = [(rng.randrange(12), rng.expovariate(0.2)) for _ in range(20)]
        greater = max(mean(passed, LONG_S), mean(passed, SHORT_S))
        assert math.ceil(greater + math.sqrt(greater)) == after(*passed).slots(0)


def test_replicas_are_counted_apart_from_slots() -> None:
    """Work whose answer has begun holds a slot still, but no replica up."""
    need = after((8, math.inf))
    assert (11, 20) == (need.slots(0), need.replicas(0))
    need.passed(0, 16, math.inf)
    assert (1, 20) == (need.slots(0), need.replicas(0))
