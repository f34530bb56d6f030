"""Show how the breakers of pools are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class BreakerFigures(Protocol):
    """A breaker at one moment."""

    @property
    def state(self) -> int:
        """0 closed, 1 probed, 2 open."""

    @property
    def opened(self) -> int:
        """How often it opened."""

    @property
    def total(self) -> int:
        """Answers that are counted."""

    @property
    def bad(self) -> int:
        """Errors among them."""


class PoolBreakerFigures(Collector):
    """Metrics of every pool with a breaker; `figures` is called when they are read."""

    def __init__(self, figures: Callable[[], Mapping[str, BreakerFigures]]) -> None:
        self._figures: Final = figures

    def collect(self) -> Iterable[Metric]:
        """Return how the breakers are by now."""
        state = GaugeMetricFamily(
            "forebay_breaker_state",
            "A pool is asked (0), probed (1), left alone (2)",
            labels=["pool"],
        )
        answers = GaugeMetricFamily(
            "forebay_breaker_answers",
            "A pool's answers in the window of its breaker",
            labels=["pool", "outcome"],
        )
        opened = CounterMetricFamily(
            "forebay_breaker_opened", "Times that a pool had too many errors", labels=["pool"]
        )
        for pool, figures in self._figures().items():
            state.add_metric([pool], figures.state)
            answers.add_metric([pool, "good"], figures.total - figures.bad)
            answers.add_metric([pool, "error"], figures.bad)
            opened.add_metric([pool], figures.opened)
        return state, answers, opened
