"""What an operator is told of the cache is what its metrics counted."""

from __future__ import annotations

import io
import logging

import pytest

from ext_proc.cache_figures import figures_of, quantile
from ext_proc.session import Facts
from ext_proc.telemetry import Telemetry
from filters.api import Boarding, Note, Outcome
from tests.fakes import FakeClock


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry.open(FakeClock(), io.BytesIO(), version="1.2.3", level=logging.WARNING)


def test_a_profile_has_its_hits_and_what_they_saved(telemetry: Telemetry) -> None:
    """The rate is of what was looked for: a bypass was not."""

    def end(outcome: Outcome, **notes: Note) -> None:
        said = {name.replace("_", "."): note for name, note in notes.items()}
        telemetry.begin("faq", None).end(Facts(profile="faq", outcome=outcome, notes=said))

    telemetry.caches("raw")
    saved: dict[str, Note] = {"saved.input_tokens": 12, "saved.output_tokens": 34, "saved.ms": 1500}
    for _ in range(3):
        facts = Facts(profile="faq", outcome=Outcome.ANSWERED, notes={"cache": "hit", **saved})
        telemetry.begin("faq", None).end(facts)
    end(Outcome.COMPLETE, cache="miss", cache_sightings=5, cache_stored=100)
    end(Outcome.FORWARDED, cache="bypass")
    profiles = figures_of(telemetry.registry.collect())["profiles"]
    assert ["faq", "raw"] == list(profiles)
    assert profiles["faq"] == {
        "hit": 3,
        "miss": 1,
        "bypass": 1,
        "hit_rate": 0.75,
        "saved_input_tokens": 36,
        "saved_output_tokens": 102,
        "saved_s": 4.5,
        "admissions": {"stored": 1},
    }
    assert profiles["raw"]["hit_rate"] is None


def test_a_store_has_its_times_and_what_went_wrong(telemetry: Telemetry) -> None:
    """Series that never counted are left out."""
    for elapsed_ms in (1, 1, 1, 2):
        telemetry.store_took("redis", "get", elapsed_ms * 1_000_000)
    telemetry.store_failed("redis", "put")
    telemetry.store_bypassed("redis", "get")
    telemetry.store_unreadable("redis", "foreign")
    telemetry.coalesced(Boarding.SHARED)
    telemetry.read("store_breaker", "", lambda: 2)
    figures = figures_of(telemetry.registry.collect())
    times = figures["latency"]["redis get"]
    assert (4, "open") == (times["count"], figures["breaker"])
    assert 0.5 < times["p50_ms"] <= 1 < times["p99_ms"] <= 2
    assert {"put": 1} == figures["errors"]
    assert {"get": 1} == figures["bypassed"]
    assert {"foreign": 1} == figures["unreadable"]
    assert {"redis": 1} == figures["dropped_writes"]
    assert {"shared": 1} == figures["coalesced"]
    assert {} == figures["evictions"]


def test_a_process_without_a_breaker_has_none(telemetry: Telemetry) -> None:
    """Memory never fails."""
    assert figures_of(telemetry.registry.collect())["breaker"] is None


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (1.03, 2.0)],
    ids=["within the first", "at a bound", "within the second", "above the last"],
)
def test_a_quantile_is_read_from_buckets(share: float, expected: float) -> None:
    """Values are spread evenly within a bucket; above the last bound nothing is known."""
    assert expected == quantile([(1.0, 48.0), (2.0, 96.0), (float("inf"), 100.0)], share * 0.96)
