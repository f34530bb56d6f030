"""What replicas say of their caches is shown with the other metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.registry import CollectorRegistry

from ext_proc.adapters.kv_settings import EventFigures, Heard
from ext_proc.telemetry.replica_events import ReplicaEvents


@dataclass(frozen=True)
class Pool:
    events: EventFigures | None


HEARD = Heard(
    batches=1,
    malformed=2,
    lost=3,
    replayed=4,
    restarts=5,
    behind=6,
    stored=7,
    removed=8,
    cleared=9,
    ignored=10,
)
FIGURES = EventFigures(
    HEARD, blocks=11, orphans=12, dropped=13, lag_s=0.5, book_bytes=14, prompts={"good": 15}
)


def test_every_figure_is_shown() -> None:
    """For each pool whose replicas say something."""
    registry = CollectorRegistry()
    registry.register(ReplicaEvents(lambda: {"full": Pool(FIGURES), "small": Pool(None)}))
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }
    expected = {
        ("forebay_kv_blocks", "full"): 11.0,
        ("forebay_kv_lag_seconds", "full"): 0.5,
        ("forebay_kv_book_bytes", "full"): 14.0,
        ("forebay_kv_batches_total", "full"): 1.0,
        ("forebay_kv_malformed_total", "full"): 2.0,
        ("forebay_kv_lost_total", "full"): 3.0,
        ("forebay_kv_replayed_total", "full"): 4.0,
        ("forebay_kv_restarts_total", "full"): 5.0,
        ("forebay_kv_behind_total", "full"): 6.0,
        ("forebay_kv_orphans_total", "full"): 12.0,
        ("forebay_kv_dropped_total", "full"): 13.0,
        ("forebay_kv_events_total", "full", "stored"): 7.0,
        ("forebay_kv_events_total", "full", "removed"): 8.0,
        ("forebay_kv_events_total", "cleared", "full"): 9.0,
        ("forebay_kv_events_total", "full", "ignored"): 10.0,
        ("forebay_kv_prompts_total", "full", "good"): 15.0,
    }
    assert expected == found


def test_nothing_is_shown_where_nobody_says_anything() -> None:
    """The page is no longer for it."""
    registry = CollectorRegistry()
    registry.register(ReplicaEvents(lambda: {"small": Pool(None)}))
    assert [] == list(registry.collect())
