"""Show what replicas say of their prefix caches, and how well that is heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.adapters.kv_settings import EventFigures
from ext_proc.telemetry.by_pool import by_pool


class WithEvents(Protocol):
    """A pool at one moment."""

    @property
    def events(self) -> EventFigures | None:
        """What its replicas said, where they do."""


_GAUGES: Final[tuple[tuple[str, str, Callable[[EventFigures], float]], ...]] = (
    ("blocks", "Blocks that replicas said they hold", lambda one: one.blocks),
    ("lag_seconds", "Age of the last batch of events when it was read", lambda one: one.lag_s),
    ("book_bytes", "Memory for what replicas said", lambda one: one.book_bytes),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[EventFigures], int]], ...]] = (
    ("batches", "Batches of events read", lambda one: one.heard.batches),
    ("malformed", "Batches or parts of them that made no sense", lambda one: one.heard.malformed),
    ("lost", "Batches missed for good", lambda one: one.heard.lost),
    ("replayed", "Batches missed and had again", lambda one: one.heard.replayed),
    ("restarts", "Replicas that began anew", lambda one: one.heard.restarts),
    ("behind", "Looks that ended before all was read", lambda one: one.heard.behind),
    ("orphans", "Blocks behind one that is not known", lambda one: one.orphans),
    ("dropped", "Blocks forgotten for want of memory", lambda one: one.dropped),
)
_KINDS: Final[tuple[tuple[str, Callable[[EventFigures], int]], ...]] = (
    ("stored", lambda one: one.heard.stored),
    ("removed", lambda one: one.heard.removed),
    ("cleared", lambda one: one.heard.cleared),
    ("ignored", lambda one: one.heard.ignored),
)


class ReplicaEvents(Collector):
    """Metrics of every pool whose replicas say what they hold."""

    def __init__(self, pools: Callable[[], Mapping[str, WithEvents]]) -> None:
        """`pools` is called when metrics are read."""
        self._pools: Final = pools

    def collect(self) -> Iterable[Metric]:
        """Return how it is by now; nothing where no replica is listened to."""
        pools = {name: one.events for name, one in self._pools().items() if one.events is not None}
        if not pools:
            return
        yield from by_pool(GaugeMetricFamily, "forebay_kv", _GAUGES, pools)
        yield from by_pool(CounterMetricFamily, "forebay_kv", _COUNTERS, pools)
        said = CounterMetricFamily(
            "forebay_kv_events",
            "Blocks stored or removed, clearings, and events that do not count",
            labels=["pool", "kind"],
        )
        prompts = CounterMetricFamily(
            "forebay_kv_prompts", "Prompts cut into tokens", labels=["pool", "result"]
        )
        for pool, figures in pools.items():
            for kind, count in _KINDS:
                said.add_metric([pool, kind], count(figures))
            for result, number in figures.prompts.items():
                prompts.add_metric([pool, result], number)
        yield said
        yield prompts
