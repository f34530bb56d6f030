"""A load played through the queues loses nobody, repeats itself, and obeys their rules."""

from __future__ import annotations

import math
from itertools import islice
from random import Random

import pytest

from ext_proc.adapters.queues import QueueLimits
from ext_proc.tools.queue_loads import (
    FLOOD,
    LONG,
    LONG_SHARE,
    LONG_TOKENS,
    MIXED,
    SHORT,
    Caller,
    load_of,
)
from ext_proc.tools.queue_loads import LOADS as QUEUE_LOADS
from ext_proc.tools.queue_run import WARM_S, QueueRun
from ext_proc.tools.routing_loads import Load
from filters.fair_queue import Rules
from filters.queue_order import Lane

REPLICAS = 2
FEW_S = 30.0
EACH = pytest.mark.parametrize("queued", [True, False])
BOTH = load_of("both", "few of both, for a quick run", SHORT, LONG)


def limits(*, queued: bool = True) -> QueueLimits | None:
    return QueueLimits(Rules()) if queued else None


def run_of(load: Load = BOTH, *, queued: bool = True, seed: int = 1) -> QueueRun:
    return QueueRun(load, limits(queued=queued), REPLICAS, seed=seed)


def callers(load: Load, many: int) -> list[tuple[float, Caller]]:
    found = islice(load.sessions(Random(1), REPLICAS), many)
    return [(at_s, one) for at_s, one in found if isinstance(one, Caller)]


@pytest.mark.slow
@EACH
def test_a_run_repeats_itself(queued: bool) -> None:
    """The same seed, the same figures, to the last digit; another one, others."""
    same = [run_of(queued=queued).play(FEW_S) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != run_of(queued=queued, seed=2).play(FEW_S)


def test_short_ones_are_the_same_with_and_without_long_ones() -> None:
    """Each at its time, of its class and tenant: what differs is what becomes of them."""
    alone, mixed = (callers(QUEUE_LOADS[name], 300) for name in ("short", MIXED))
    short = [(at_s, one) for at_s, one in mixed if one.stream == SHORT.name]
    assert [
        (at_s, one.said.count, one.tenant, one.priority) for at_s, one in alone[: len(short)]
    ] == [(at_s, one.said.count, one.tenant, one.priority) for at_s, one in short]


def test_one_in_twenty_is_long() -> None:
    """Of 100,000 tokens each."""
    mixed = [one for _, one in callers(QUEUE_LOADS[MIXED], 1_500)]
    long = [one for one in mixed if one.stream == LONG.name]
    assert {LONG_TOKENS} == {one.said.count for one in long}
    assert LONG_SHARE == pytest.approx(len(long) / len(mixed), abs=0.02)


def test_one_tenant_floods() -> None:
    """It sends twice as many as all others."""
    found = [one for _, one in callers(QUEUE_LOADS["flooded"], 3_000)]
    flood = [one for one in found if one.stream == FLOOD]
    assert 1 == len({one.tenant for one in flood})
    assert 2 / 3 == pytest.approx(len(flood) / len(found), abs=0.03)


@EACH
def test_nobody_is_lost(queued: bool) -> None:
    """Who came waits, is under way, has its answer, or was sent away."""
    run = run_of(queued=queued)
    run.play(FEW_S)
    at_replicas = {id(work) for engine in run.engines for work in engine.running}
    at_replicas |= {id(work) for engine in run.engines for work in engine.waiting}
    found = [
        (one.why is not None)
        + (one.number in run.answered)
        + (id(one.work) in at_replicas)
        + (math.isnan(one.served_s) and one.why is None)
        for one in run.arrivals
    ]
    assert [1] * len(run.arrivals) == found


def test_a_slot_is_held_by_whoever_is_under_way() -> None:
    """And by nobody else."""
    run = run_of()
    run.play(FEW_S)
    assert sum(engine.load for engine in run.engines) == run.queue.in_use


def test_long_prompts_are_read_at_one_of_few_replicas() -> None:
    """The other one is for the short."""
    run = run_of()
    reading: list[int] = []

    def look(now_s: float) -> None:
        reading.append(
            sum(
                any(
                    work.prompt_tokens == LONG_TOKENS and not work.first_s
                    for work in engine.running
                )
                for engine in run.engines
            )
        )

    run.watch = look
    run.play(FEW_S)
    assert {0, 1} >= set(reading)
    assert 1 in reading


def test_a_wait_at_the_gateway_counts() -> None:
    """The time to the first token begins when the request comes, not when it is picked for."""
    run = run_of()
    played = run.play(FEW_S)
    waited = [
        one
        for one in run.arrivals
        if one.wish.lane is Lane.BULK and one.served_s - one.came_s > 1 and one.came_s > WARM_S
    ]
    assert waited
    assert played.streams[LONG.name].ttft_s[-1] >= max(one.served_s - one.came_s for one in waited)


def test_who_has_no_answer_yet_counts_with_its_wait_so_far() -> None:
    """Else a pool that answers nobody would be the fastest."""
    played = run_of(queued=False).play(FEW_S)
    group = played.streams[LONG.name]
    assert group.asked == len(group.ttft_s)
