"""Show how full the pools are that take only so much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.telemetry.by_pool import by_pool


class LimitFigures(Protocol):
    """A pool with limits at one moment."""

    @property
    def in_use(self) -> int:
        """How many exchanges of this gateway are in it."""

    @property
    def capacity(self) -> int:
        """How many may be, of all gateways together."""

    @property
    def gateways(self) -> int:
        """How many share the limits."""

    @property
    def refused(self) -> Mapping[str, int]:
        """How many were not let in, by reason."""

    @property
    def lost(self) -> int:
        """How many leases Redis forgot that were held."""

    @property
    def unshared(self) -> int:
        """How many exchanges were judged without Redis."""


_GAUGES: Final[tuple[tuple[str, str, Callable[[LimitFigures], int]], ...]] = (
    ("in_use", "Exchanges of this gateway in a pool with limits", lambda pool: pool.in_use),
    ("capacity", "Exchanges that may be in a pool, of all gateways", lambda pool: pool.capacity),
    ("gateways", "Gateways that share the limits of a pool", lambda pool: pool.gateways),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[LimitFigures], int]], ...]] = (
    ("lost_leases", "Leases that were forgotten while they were held", lambda pool: pool.lost),
    ("unshared", "Exchanges judged by this gateway's share alone", lambda pool: pool.unshared),
)


class LimitMetrics(Collector):
    """Metrics of every pool with limits; `figures` is called when they are read."""

    def __init__(self, figures: Callable[[], Mapping[str, LimitFigures]]) -> None:
        self._figures: Final = figures

    def collect(self) -> Iterable[Metric]:
        """Return how the pools are by now."""
        pools = self._figures()
        yield from by_pool(GaugeMetricFamily, "forebay_limit", _GAUGES, pools)
        yield from by_pool(CounterMetricFamily, "forebay_limit", _COUNTERS, pools)
        refused = CounterMetricFamily(
            "forebay_limit_refused",
            "Exchanges that a pool had no room for",
            labels=["pool", "reason"],
        )
        for pool, figures in pools.items():
            for reason, count in figures.refused.items():
                refused.add_metric([pool, reason], count)
        yield refused
