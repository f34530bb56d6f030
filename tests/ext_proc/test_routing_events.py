"""What replicas say they hold is worth something where a gateway cannot know it."""

from __future__ import annotations

import pytest

from ext_proc.tools.routing_events import EventRun, ids_in
from ext_proc.tools.routing_events_table import HEAD, rows
from ext_proc.tools.routing_loads import LOADS
from filters.block_book import ID_BYTES

REPLICAS = 4
REQUESTS = 600


def hits(*, gateways: int, events: bool) -> float:
    run = EventRun(LOADS["shared"], REPLICAS, gateways=gateways, events=events)
    return run.go(REQUESTS).hit_rate


@pytest.mark.slow
def test_several_gateways_find_what_others_sent() -> None:
    """Without the replicas' word each computes again what the others had computed."""
    alone = hits(gateways=4, events=False)
    told = hits(gateways=4, events=True)
    assert told > alone + 0.05


@pytest.mark.slow
def test_one_gateway_loses_nothing_by_it() -> None:
    """It knows what was sent where in any case."""
    assert hits(gateways=1, events=True) > hits(gateways=1, events=False) - 0.01


@pytest.mark.slow
def test_the_table_has_a_row_for_each_number_of_gateways() -> None:
    """The shares are of what one cache as large as all could have: with events, nearly all."""
    table = [row.strip("| ").split(" | ") for row in rows("shared", requests=600, replicas=4)]
    assert [["shared", "1"], ["shared", "2"], ["shared", "4"]] == [row[:2] for row in table]
    assert {HEAD.partition("\n")[0].count("|") - 1} == {len(row) for row in table}
    _, _, alone, told, *_ = table[-1]
    assert float(alone.removesuffix(" %")) < float(told.removesuffix(" %")) <= 100


@pytest.mark.slow
def test_a_run_with_events_repeats() -> None:
    """The same seed, the same waits."""
    runs = [EventRun(LOADS["code"], 2, gateways=2).go(60) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("events", [False, True])
def test_a_cache_that_was_emptied_is_believed_in_without_events(events: bool) -> None:
    """Prompts are sent to a replica that began anew, for what it does not hold any more."""
    run = EventRun(LOADS["shared"], REPLICAS, events=events)
    run.until(30.0)
    run.engines[0].cache.clear()
    of_it = [asked.at == 0 for asked in run.answered.values()]
    believed = [held for (held, _), here in zip(run.beliefs(0), of_it, strict=True) if here]
    assert (not events) is any(believed)


@pytest.mark.slow
@pytest.mark.parametrize("events", [False, True])
def test_a_cache_under_pressure_is_believed_in_without_events(events: bool) -> None:
    """Answers and other gateways' prompts push out what was sent from here."""
    run = EventRun(LOADS["shared"], REPLICAS, gateways=4, events=events)
    run.until(60.0)
    wrong = sum(one > true for one, true in run.beliefs(0))
    asked = len(run.answered)
    assert (wrong > asked // 20) is not events


def test_blocks_have_tokens_of_their_own() -> None:
    """As many as a block has."""
    assert (64 * ID_BYTES, 128 * ID_BYTES) == (len(ids_in([1])), len(ids_in([1, -2])))
    assert ids_in([1]) != ids_in([2])
