"""A run in virtual time loses nothing, repeats itself, and ranks strategies as reason has it."""

from __future__ import annotations

import pytest

from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_possible import possible
from ext_proc.tools.routing_run import ORACLE, Run, hit_rate
from filters.strategies import STRATEGIES

ALL = [*STRATEGIES, ORACLE]
EACH = pytest.mark.parametrize("strategy", ALL)
EACH_LOAD = pytest.mark.parametrize("load", LOADS)
REPLICAS = 3
FEW = 60


@EACH
def test_a_run_repeats_itself(strategy: str) -> None:
    """The same seed, the same figures, to the last digit."""
    load = LOADS["shared"]
    assert Run(load, strategy, REPLICAS).go(FEW) == Run(load, strategy, REPLICAS).go(FEW)


def test_another_seed_is_another_run() -> None:
    """A figure that depends on the seed much is none."""
    load = LOADS["shared"]
    runs = [Run(load, "expected", REPLICAS, seed=seed).go(FEW) for seed in (1, 2)]
    assert runs[0].ttft_s != runs[1].ttft_s


@EACH
def test_all_that_were_asked_are_answered(strategy: str) -> None:
    """Each of the first so many, once, after it was asked and not before its first token."""
    run = Run(LOADS["code"], strategy, REPLICAS)
    result = run.go(FEW)
    answered = [run.answered[number] for number in range(FEW)]
    assert [True] * FEW == [
        one.work.arrived_s < one.work.first_s <= one.work.finished_s for one in answered
    ]
    assert FEW - FEW // 4 == len(result.ttft_s)
    assert sorted(result.ttft_s) == result.ttft_s


@EACH
def test_replicas_compute_what_was_asked_and_not_cached(strategy: str) -> None:
    """No token of a prompt is lost, none is computed twice for the same request."""
    run = Run(LOADS["shared"], strategy, REPLICAS)
    run.go(FEW)
    works = [one.work for one in run.answered.values()]
    under_way = sum(
        work.computed - work.cached for engine in run.engines for work in engine.running
    )
    owed = sum(work.prompt_tokens - work.cached for work in works)
    assert owed + under_way == sum(engine.prefilled for engine in run.engines)


@pytest.mark.slow
@EACH_LOAD
@EACH
def test_no_strategy_hits_more_than_is_possible(strategy: str, load: str) -> None:
    """One cache as large as all bounds them, but for the order in which requests come."""
    requests = 300
    most = possible(LOADS[load], REPLICAS, requests).hit_rate
    assert Run(LOADS[load], strategy, REPLICAS).go(requests).hit_rate <= most + 0.02


@pytest.mark.slow
@EACH_LOAD
def test_the_oracle_is_not_behind_round_robin(load: str) -> None:
    """Who sees everything waits less."""
    oracle, round_robin = (
        Run(LOADS[load], strategy, REPLICAS).go(400) for strategy in (ORACLE, "round_robin")
    )
    assert oracle.mean_s < round_robin.mean_s
    assert oracle.percentile(0.95) <= round_robin.percentile(0.95)


@pytest.mark.slow
def test_expected_comes_close_to_the_oracle() -> None:
    """It knows what it sent where; that is nearly all there is to know."""
    results = {
        strategy: Run(LOADS["shared"], strategy, 4).go(800)
        for strategy in ("expected", ORACLE, "round_robin")
    }
    behind = results["round_robin"].mean_s
    gain = behind - results["expected"].mean_s
    assert gain >= 0.9 * (behind - results[ORACLE].mean_s)


def test_sessions_at_once_are_asked_at_once() -> None:
    """A cold start: 25 come before anything is in any cache."""
    run = Run(LOADS["code"], "expected", REPLICAS, at_once=25)
    run.go(FEW)
    first = [run.answered[number] for number in range(25)]
    assert [0.0] * 25 == [one.work.arrived_s for one in first]
    assert {0, 1, 2} == {one.at for one in first}


def test_the_share_of_hits_of_nothing_is_nothing() -> None:
    """No division by zero tokens."""
    assert 0.0 == hit_rate([])
