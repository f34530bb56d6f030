"""A replica that fails in a run fails as it says, and clients are tried elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ext_proc.tools import routing_faults
from ext_proc.tools.replica_model import Work
from ext_proc.tools.routing_faults import VICTIM, Failed, Fault, FaultyRun
from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_run import SCRAPE_S
from filters.replica import Signals

EACH = pytest.mark.parametrize("fault", Fault)
NO_ANSWER = pytest.mark.parametrize("fault", [Fault.HUNG, Fault.SILENT])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail after 10 s of virtual time, for 12."""
    for name, seconds in (("AFTER_S", 10.0), ("LASTS_S", 12.0), ("GOES_ON_S", 6.0)):
        monkeypatch.setattr(routing_faults, name, seconds)


@pytest.fixture
def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no first token ever be late."""
    monkeypatch.setattr("filters.replica.LATE_S", math.inf)


def run_of(fault: Fault, strategy: str = "round_robin") -> FaultyRun:
    return FaultyRun(LOADS["shared"], strategy, 3, fault)


def fail(fault: Fault, strategy: str = "round_robin") -> Failed:
    return run_of(fault, strategy).play()


@EACH
def test_a_failure_repeats_itself(fault: Fault) -> None:
    """The same seed, the same figures."""
    assert fail(fault) == fail(fault)


@EACH
def test_clients_that_can_go_elsewhere_see_no_error(fault: Fault) -> None:
    """Whoever asks after it failed is answered by another replica, at the latest in the end."""
    assert 0 == fail(fault).errors_after


def test_answers_that_were_begun_break_off_when_a_replica_is_killed() -> None:
    """Nobody can go on with them; those are the errors there are."""
    run = run_of(Fault.KILLED)
    begun: list[Work] = []

    def look(now_s: float) -> None:
        begun.extend(work for work in run.engines[VICTIM].running if work.first_s)

    run._at(math.nextafter(routing_faults.AFTER_S, 0.0), look)
    assert run.play().errors_before == len(begun) > 0


def test_who_cannot_connect_is_tried_elsewhere_at_once() -> None:
    """No client waits for a time-out."""
    assert fail(Fault.KILLED).p95_s < routing_faults.TRY_S


@NO_ANSWER
def test_an_overdue_first_token_is_noticed(fault: Fault) -> None:
    """Whatever the strategy: the replica gets single requests that probe it, and no others."""
    failed = fail(fault)
    assert failed.noticed_s < routing_faults.MOST_NOTICE_S
    assert 0 < failed.probes <= routing_faults.LASTS_S


@NO_ANSWER
def test_what_nobody_notices_shows_when_it_is_tried_elsewhere(
    fault: Fault, unnoticed: None
) -> None:
    """Which shows that the figure can be missed."""
    failed = fail(fault)
    assert failed.noticed_s > routing_faults.TRY_S > routing_faults.MOST_NOTICE_S


@EACH
def test_a_replica_that_is_well_again_is_used_again(fault: Fault) -> None:
    """Round robin sends it the next request."""
    assert fail(fault).back_s < routing_faults.MOST_BACK_S


def test_frozen_metrics_are_recent_and_wrong() -> None:
    """They say when they were read, and what was true once."""
    run = run_of(Fault.FROZEN)
    seen: list[tuple[float, Signals]] = []

    def look(now_s: float) -> None:
        run._scrape(now_s, VICTIM)
        said = run.picker.replicas["replica-0"].signals
        assert said is not None
        seen.append((now_s - said.at_s, replace(said, at_s=0.0)))

    for at_s in (10.5, 13.0, 16.0, 21.0):
        run._at(at_s, look)
    run.play()
    assert [True] * 4 == [age_s < SCRAPE_S for age_s, _ in seen]
    assert 1 == len({said for _, said in seen})
