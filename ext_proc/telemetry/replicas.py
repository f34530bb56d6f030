"""Show how the pools are whose replicas Forebay picks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.telemetry.by_pool import by_pool


class PoolFigures(Protocol):
    """A pool at one moment."""

    @property
    def replicas(self) -> int:
        """How many are known."""

    @property
    def avoided(self) -> int:
        """How many of them get no requests, for they do not answer."""

    @property
    def under_way(self) -> int:
        """Requests that were sent to one of them and are not over."""

    @property
    def index_bytes(self) -> int:
        """What is kept of prompts sent there."""

    @property
    def strategy_failures(self) -> int:
        """How often the strategy broke, and another one picked."""

    @property
    def constants(self) -> Mapping[str, float]:
        """What was learned of the cost of a prefill."""

    @property
    def cold(self) -> int:
        """How many replicas have begun and do not have their whole share of requests yet."""

    @property
    def warm_ups(self) -> Mapping[str, int]:
        """How many warm-ups ended how."""

    @property
    def hurried(self) -> int:
        """How often there was no time for the strategy, and another one picked."""

    @property
    def each(self) -> Mapping[str, Mapping[str, float]]:
        """What is known of each replica, by its address."""


_GAUGES: Final[tuple[tuple[str, str, Callable[[PoolFigures], float]], ...]] = (
    ("known", "Replicas that Forebay picks among", lambda pool: pool.replicas),
    ("avoided", "Replicas that do not answer", lambda pool: pool.avoided),
    ("cold", "Replicas that have begun and get less than their share", lambda pool: pool.cold),
    ("requests", "Requests that were sent to a replica", lambda pool: pool.under_way),
    ("index_bytes", "Memory for what replicas were sent", lambda pool: pool.index_bytes),
)


class ReplicaFigures(Collector):
    """Metrics of every pool with replicas; `figures` is called when they are read."""

    def __init__(self, figures: Callable[[], Mapping[str, PoolFigures]]) -> None:
        self._figures: Final = figures

    def collect(self) -> Iterable[Metric]:
        """Return how the pools are by now."""
        pools = self._figures()
        yield from by_pool(GaugeMetricFamily, "forebay_replica", _GAUGES, pools)
        broken = CounterMetricFamily(
            "forebay_replica_strategy_failures", "Picks whose strategy broke", labels=["pool"]
        )
        hurried = CounterMetricFamily(
            "forebay_replica_hurried_picks", "Picks without time for the strategy", labels=["pool"]
        )
        each = GaugeMetricFamily(
            "forebay_replica_state",
            "What a replica says of itself, and what was sent there",
            labels=["pool", "replica", "figure"],
        )
        warmed = CounterMetricFamily(
            "forebay_replica_warm_ups",
            "Warm-ups of replicas that had begun, by how they ended",
            labels=["pool", "outcome"],
        )
        cost = GaugeMetricFamily(
            "forebay_replica_cost",
            "What was learned of the cost of a prefill",
            labels=["pool", "constant"],
        )
        for pool, figures in pools.items():
            broken.add_metric([pool], figures.strategy_failures)
            for outcome, count in figures.warm_ups.items():
                warmed.add_metric([pool, outcome], count)
            for constant, learned in figures.constants.items():
                cost.add_metric([pool, constant], learned)
            hurried.add_metric([pool], figures.hurried)
            for replica, known in figures.each.items():
                for figure, found in known.items():
                    each.add_metric([pool, replica, figure], found)
        yield broken
        yield hurried
        yield each
        yield warmed
        yield cost
