"""Count who waits for a pool, how long, and who is sent away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.telemetry.metrics import Histogram, Tally
from filters.queue_order import Lane, Priority, Shed, Wish

WAIT_BOUNDS_S: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    *(5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)
_LABELS: Final = ("pool", "queue", "class", "tenant")
TENANTS: Final = {True: "named", False: "anonymous"}
"""Classes of tenants: with a credential or without. Their names are in no metric."""


class QueueFigures(Protocol):
    """A pool with queues at one moment."""

    @property
    def slots(self) -> int:
        """How many exchanges it takes at once."""

    @property
    def in_use(self) -> Mapping[Lane, int]:
        """How many slots each queue was given."""

    @property
    def depth(self) -> Mapping[Lane, Mapping[Priority, int]]:
        """How many wait."""

    @property
    def anonymous(self) -> Mapping[Lane, Mapping[Priority, int]]:
        """How many of them came without a credential."""


class QueueMetrics(Collector):
    """Metrics of every pool with queues; `figures` is called when they are read."""

    def __init__(self, figures: Callable[[], Mapping[str, QueueFigures]] = dict) -> None:
        self.figures = figures
        self._waits: Final = Histogram(
            "forebay_queue_wait_seconds", "Waits for a slot of a pool", _LABELS, WAIT_BOUNDS_S
        )
        self._shed: Final = Tally(
            "forebay_queue_shed", "Exchanges that got no slot", (*_LABELS, "reason")
        )

    def served(self, pool: str, wish: Wish, waited_s: float, *, named: bool) -> None:
        """Count somebody who got a slot."""
        labels = (pool, wish.lane, _WORDS[wish.priority], TENANTS[named])
        self._waits.observe(labels, round(waited_s * 1e9))

    def shed(self, pool: str, wish: Wish, why: Shed, *, named: bool) -> None:
        """Count somebody who was sent away."""
        self._shed.add((pool, wish.lane, _WORDS[wish.priority], TENANTS[named], why))

    def collect(self) -> Iterable[Metric]:
        """Return how the pools are by now, and what was counted."""
        pools = self.figures()
        slots = GaugeMetricFamily(
            "forebay_queue_slots", "Exchanges that a pool takes at once", labels=["pool"]
        )
        in_use = GaugeMetricFamily(
            "forebay_queue_in_use", "Slots that are held", labels=["pool", "queue"]
        )
        depth = GaugeMetricFamily("forebay_queue_depth", "Exchanges that wait", labels=_LABELS)
        for name, pool in pools.items():
            slots.add_metric([name], pool.slots)
            for lane in Lane:
                in_use.add_metric([name, lane], pool.in_use[lane])
                for priority, count in pool.depth[lane].items():
                    anonymous = pool.anonymous[lane][priority]
                    for named, some in ((True, count - anonymous), (False, anonymous)):
                        depth.add_metric([name, lane, priority.word, TENANTS[named]], some)
        return [slots, in_use, depth, *self._waits.collect(), *self._shed.collect()]


_WORDS: Final = {priority: priority.word for priority in Priority}
