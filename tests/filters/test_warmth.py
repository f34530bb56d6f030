"""A replica that has just begun is left alone, and then gets its share little by little."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from filters.picking import Picker, ask_of
from filters.prefill_cost import PrefillCost
from filters.strategies import STRATEGIES
from filters.warmth import Warmth

A, B, C, D = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"
AWARE = ("expected", "blend", "affinity", "least_load")


def picker_of(strategy: str = "expected") -> Picker:
    """Return a picker over four replicas that share nothing, with foreseeable dice."""
    cost = PrefillCost()
    dice = random.Random(7).random
    picker = Picker(STRATEGIES[strategy](cost), cost, explore=0.0, rng=dice, name=strategy)
    for address in (A, B, C, D):
        picker.add(address, 1_000_000)
    return picker


def picked(picker: Picker, times: int, now_s: float = 0.0) -> Counter[str]:
    """Return how many of so many requests at once, all different, each replica gets."""
    counted: Counter[str] = Counter()
    for number in range(times):
        ask = ask_of(f"{number} {now_s} {'x' * 400}".encode(), "m")
        counted[picker.pick(ask, now_s).replica.address] += 1
    return counted


def test_who_is_not_named_takes_everything() -> None:
    """Nothing is thrown for it."""
    warmth = Warmth()
    assert warmth.takes(A, 0.0, 4, lambda: pytest.fail("no dice"))
    assert 0 == len(warmth)


def test_the_share_grows_from_a_tenth_to_all_and_is_then_forgotten() -> None:
    """With four replicas, a whole share is a quarter."""
    warmth = Warmth()
    warmth.ease(A, 100.0, 20.0)
    share: dict[float, int] = {}
    for now_s in (100.0, 101.0, 110.0, 119.0):
        point = (number / 1000 for number in range(1000)).__next__
        taken = [warmth.takes(A, now_s, 4, point) for _ in range(1000)]
        share[now_s] = taken.count(True)
    assert {100.0: 25, 101.0: 25, 110.0: 125, 119.0: 238} == share
    assert 1 == len(warmth)
    assert warmth.takes(A, 120.0, 4, lambda: 0.999)
    assert 0 == len(warmth)


def test_no_time_to_grow_in_is_a_whole_share() -> None:
    """At once."""
    warmth = Warmth()
    warmth.hold(A)
    assert warmth.holds(A)
    warmth.ease(A, 100.0, 0.0)
    assert (0, False) == (len(warmth), warmth.holds(A))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_replica_that_is_held_gets_nothing(strategy: str) -> None:
    """Whoever weighs."""
    picker = picker_of(strategy)
    picker.warmth.hold(B)
    assert {A, C, D} == set(picked(picker, 60))


@pytest.mark.parametrize("strategy", AWARE)
def test_a_replica_that_eases_in_gets_less_than_the_others(strategy: str) -> None:
    """Though it is idle, and they are not; in the end it gets as much and more."""
    picker = picker_of(strategy)
    picked(picker, 40)
    picker.remove(B)
    picker.add(B, 1_000_000)
    picker.warmth.ease(B, 0.0, 10.0)
    assert picked(picker, 200)[B] < 20
    assert picked(picker, 200, 10.0)[B] > 50


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_where_all_are_held_all_serve(strategy: str) -> None:
    """No request waits for warmth."""
    picker = picker_of(strategy)
    for address in (A, B, C, D):
        picker.warmth.hold(address)
    assert {A, B, C, D} == set(picked(picker, 60))


def test_a_replica_that_is_held_serves_before_one_that_does_not_answer() -> None:
    """Cold is better than gone."""
    picker = picker_of()
    picker.warmth.hold(A)
    for address in (B, C, D):
        picker.refused(address, 0.0)
    assert {A: 20} == picked(picker, 20)


def test_a_replica_that_is_held_and_does_not_answer_is_no_better() -> None:
    """Where nobody is left, all are tried."""
    picker = picker_of()
    picker.warmth.hold(A)
    for address in (A, B, C, D):
        picker.refused(address, 0.0)
    assert {A, B, C, D} == set(picked(picker, 60))


def test_a_replica_that_is_gone_is_forgotten() -> None:
    """One that comes at its address is another."""
    picker = picker_of()
    picker.warmth.hold(A)
    picker.remove(A)
    assert 0 == len(picker.warmth)
