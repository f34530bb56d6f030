"""Write tables of figures that pools have as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

Figures = TypeVar("Figures")
Row: TypeAlias = tuple[str, str, Callable[[Figures], float]]
"""A metric's name, what it says, and its value."""


def by_pool(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    prefix: str,
    rows: Iterable[Row[Figures]],
    pools: Mapping[str, Figures],
) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Yield a metric for each row, with a sample for each pool."""
    for name, text, value in rows:
        metric = family(f"{prefix}_{name}", text, labels=["pool"])
        for pool, figures in pools.items():
            metric.add_metric([pool], value(figures))
        yield metric
