"""Count what happens, for Prometheus."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels: TypeAlias = tuple[str, ...]

MOST_CHILDREN: Final = 1000
"""Combinations of label values for one metric; what comes later is counted as `other`.

Values come from closed sets, so that this is a guard against a mistake, not a setting.
"""

# Forebay's own work takes tens of microseconds; a stage that waits may take seconds.
STAGE_BOUNDS_S: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.1, 0.5, 2.5, 10.0),
)
EXCHANGE_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0),
)
TTFT_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.5, 2.0, 3.0),
    *(5.0, 8.0, 15.0, 30.0, 60.0),
)
# 12.5 ms are 80 tokens/s, 200 ms the longest pause that a paced stream may have.
GAP_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.0083, 0.0125, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 10.0),
)
PACE_BOUNDS_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# A budget of 5 ms is the default; what a server on the same machine takes is a tenth of it.
STORE_BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01),
    *(0.025, 0.1, 0.5, 2.0),
)


class _Labelled(Protocol):
    def labels(self, *values: str) -> Self: ...


MetricT = TypeVar("MetricT", bound=_Labelled)


class Children(dict[Labels, MetricT], Generic[MetricT]):
    """The children of a metric by their label values: a look-up costs a tenth of `labels()`."""

    def __init__(self, metric: MetricT) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: Labels) -> MetricT:
        """Make a child, or share one among all that come after too many."""
        if len(self) >= MOST_CHILDREN:
            return self._metric.labels(*("other",) * len(labels))
        child = self[labels] = self._metric.labels(*labels)
        return child


class Histogram(Collector):
    """A histogram of times; only the loop's thread may count.

    `prometheus_client.Histogram` looks through its bounds one by one under two locks: 3 us a value,
    and 4 ms for the gaps of a long stream, in which the loop serves nobody.
    """

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], bounds_s: Sequence[float]
    ) -> None:
        self._name: Final = name
        self._documentation: Final = documentation
        self._labels: Final = tuple(labels)
        self._bounds_s: Final = tuple(bounds_s)
        self._bounds_ns: Final = [round(bound * 1e9) for bound in bounds_s]
        self._children: Final[dict[Labels, tuple[list[int], list[int]]]] = {}
        """Label values to how many values each bucket has, and what they add up to."""

    def observe(self, labels: Labels, value_ns: int) -> None:
        """Count a time in nanoseconds."""
        child = self._children.get(labels) or self._child(labels)
        child[0][bisect_left(self._bounds_ns, value_ns)] += 1
        child[1][0] += value_ns

    def observe_each(self, named_ns: Iterable[tuple[str, int]]) -> None:
        """Count a time for each value of the one label."""
        children, bounds = self._children, self._bounds_ns
        for name, value_ns in named_ns:
            counts, total = children.get((name,)) or self._child((name,))
            counts[bisect_left(bounds, value_ns)] += 1
            total[0] += value_ns

    def observe_all(self, labels: Labels, values_ns: Sequence[int]) -> None:
        """Count many times in nanoseconds."""
        counts, total = self._child(labels)
        bounds = self._bounds_ns
        for value_ns in values_ns:
            counts[bisect_left(bounds, value_ns)] += 1
        total[0] += sum(values_ns)

    def _child(self, labels: Labels) -> tuple[list[int], list[int]]:
        if labels not in self._children and len(self._children) >= MOST_CHILDREN:
            labels = ("other",) * len(labels)
        return self._children.setdefault(labels, ([0] * (len(self._bounds_ns) + 1), [0]))

    def collect(self) -> Iterable[Metric]:
        """Return what was counted, in Prometheus's cumulative form."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        bounds = [*map(str, self._bounds_s), "+Inf"]
        for labels, (counts, total) in tuple(self._children.items()):
            cumulative = [float(count) for count in accumulate(counts)]
            buckets = list(zip(bounds, cumulative, strict=True))
            family.add_metric(labels, buckets, total[0] / 1e9)
        return [family]


class Tally(Collector):
    """A counter by labels; only the loop's thread may count.

    `prometheus_client.Counter` takes a lock and 1 us, several times for each hit.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name: Final = name
        self._documentation: Final = documentation
        self._labels: Final = tuple(labels)
        self._values: Final[dict[Labels, float]] = {}

    def add(self, labels: Labels, value: float = 1) -> None:
        """Count `value` more."""
        values = self._values
        if labels not in values and len(values) >= MOST_CHILDREN:
            labels = ("other",) * len(labels)
        values[labels] = values.get(labels, 0) + value

    def collect(self) -> Iterable[Metric]:
        """Return what was counted."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in tuple(self._values.items()):
            family.add_metric(labels, value)
        return [family]


class Counts(Collector):
    """A counter that somebody else keeps, by the values of one label."""

    def __init__(
        self, name: str, documentation: str, label: str, counts: Callable[[], Mapping[Any, int]]
    ) -> None:
        self._name: Final = name
        self._documentation: Final = documentation
        self._label: Final = label
        self._counts: Final = counts

    def collect(self) -> Iterable[Metric]:
        """Return what is counted by now."""
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, count in tuple(self._counts().items()):
            family.add_metric([value], count)
        return [family]


class Metrics:
    """Every metric of Forebay, in a registry of its own."""

    def __init__(self, version: str) -> None:
        # A time of creation for each child would double what is scraped, and nobody asks for it.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call] # it has no types
        self.registry: Final = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        prometheus.GCCollector(registry=self.registry)
        self._gauge("build_info", "The running version", ("version", "python")).labels(
            version, platform.python_version()
        ).set(1)
        by_quality = ("profile", "quality")
        self.requests: Final = self._tally(
            "requests", "Exchanges that ended", ("profile", "dialect", "quality", "outcome")
        )
        self.stages: Final = self._histogram(
            "stage_seconds", "Time in one filter, its waits included", ("stage",), STAGE_BOUNDS_S
        )
        self.crowded: Final = self._counter(
            "crowded", "Requests refused because too many were open", ("profile",)
        )
        self.broken: Final = self._counter(
            "streams_broken", "Streamed answers that came not to be whole", ("dialect", "how")
        )
        self.unread: Final = self._counter(
            "replies_unread", "Replies that were to be read and could not be", ("why",)
        )
        self.exchanges: Final = self._histogram(
            "exchange_seconds",
            "From the request's head until Forebay let the exchange go",
            (*by_quality, "outcome"),
            EXCHANGE_BOUNDS_S,
        )
        self.ttft: Final = self._histogram(
            "ttft_seconds",
            "From the request's head to the first token, where the reply is read",
            by_quality,
            TTFT_BOUNDS_S,
        )
        self.gaps: Final = self._histogram(
            "inter_token_seconds",
            "Between the pieces of a streamed answer, where it is read",
            by_quality,
            GAP_BOUNDS_S,
        )
        self.paced: Final = self._histogram(
            "pace_held_seconds",
            "For how long something of a streamed answer waited, where something did",
            ("profile",),
            PACE_BOUNDS_S,
        )
        self.tokens: Final = self._tally(
            "tokens",
            "Tokens in, out, in the upstream's prefix cache, saved, and of prompts estimated",
            ("direction", *by_quality),
        )
        self.cuts: Final = self._counter(
            "cut_tokens",
            "Tokens of the texts that a rule cut, before and after it",
            ("rule", "when"),
        )
        self.tasks: Final = self._tally(
            "tasks", "What was asked for, as far as it could be told", ("intent", "domain")
        )
        self.experts: Final = self._counter(
            "experts", "Requests of a trade that went to its expert", ("domain", "pool")
        )
        self.routes: Final = self._tally(
            "routes", "Where requests went, and what decided", ("pool", "rule", "bucket")
        )
        self.params: Final = self._counter(
            "params", "Requests in which the profile set something", ("change",)
        )
        self.skips: Final = self._counter(
            "skips", "What a filter left as it was, and why", ("filter", "reason")
        )
        self.cache: Final = self._tally("cache", "What the cache said", ("profile", "outcome"))
        self.admissions: Final = self._tally(
            "cache_admissions", "Answers that were stored, or why not", ("profile", "result")
        )
        self.saved_tokens: Final = self._tally(
            "cache_saved_tokens", "Tokens that hits did not ask for", ("profile", "direction")
        )
        self.saved_seconds: Final = self._tally(
            "cache_saved_seconds", "Time that the upstream took for what hits gave", ("profile",)
        )
        self.coalesced: Final = self._counter(
            "coalesced", "Exchanges that waited for another's answer, by how it ended", ("outcome",)
        )
        self.filter_errors: Final = self._counter(
            "filter_errors", "Filters that failed and were undone", ("filter",)
        )
        self.store_errors: Final = self._counter(
            "store_errors", "Calls to a store that broke or were late", ("store", "op")
        )
        self.store_bypassed: Final = self._counter(
            "store_bypassed", "Calls to a store not made because it failed", ("store", "op")
        )
        self.store_unreadable: Final = self._counter(
            "store_unreadable", "Values in a store that could not be read", ("store", "reason")
        )
        self.store_seconds: Final = self._histogram(
            "store_seconds",
            "Time until a store answered or failed",
            ("store", "op"),
            STORE_BOUNDS_S,
        )
        self.store_dropped: Final = self._counter(
            "store_dropped_writes", "Answers that a store did not take", ("store",)
        )
        self.unreadable: Final = self._counter(
            "cache_unreadable", "Records in a store that could not be read", ("reason",)
        )
        self.store_searches: Final = self._counter(
            "store_searches", "Searches for the servers of a store", ("store", "result")
        )
        self.upstream: Final = self._counter(
            "upstream_requests",
            "Questions of Forebay's own to a cluster, by how they went",
            ("cluster", "outcome"),
        )
        self.upstream_seconds: Final = self._histogram(
            "upstream_seconds", "Time that these took", ("cluster",), EXCHANGE_BOUNDS_S
        )
        self.reloads: Final = self._counter(
            "config_reloads", "Changes of the settings file", ("result",)
        )
        self.stream_failures: Final = self._counter(
            "stream_failures", "Streams of the proxy that were given up", ("reason",)
        )
        self.protocol_errors: Final = self._counter(
            "protocol_errors",
            "Streams and connections that the native transport gave up",
            ("reason",),
        )
        self.spans: Final = self._counter(
            "spans", "Spans that ended, were exported, or failed to be", ("result",)
        )

    def read(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Show a value that somebody else keeps: `value` is called when metrics are read."""
        gauge = prometheus.Gauge(f"forebay_{name}", documentation, registry=self.registry)
        gauge.set_function(value)

    def read_counts(
        self, name: str, documentation: str, label: str, counts: Callable[[], Mapping[Any, int]]
    ) -> None:
        """Show counts that somebody else keeps: `counts` is called when metrics are read."""
        self.registry.register(Counts(f"forebay_{name}", documentation, label, counts))

    def _counter(
        self, name: str, documentation: str, labels: Sequence[str]
    ) -> Children[prometheus.Counter]:
        metric = prometheus.Counter(
            f"forebay_{name}", documentation, labels, registry=self.registry
        )
        return Children(metric)

    def _tally(self, name: str, documentation: str, labels: Sequence[str]) -> Tally:
        tally = Tally(f"forebay_{name}", documentation, labels)
        self.registry.register(tally)
        return tally

    def _gauge(self, name: str, documentation: str, labels: Sequence[str]) -> prometheus.Gauge:
        return prometheus.Gauge(f"forebay_{name}", documentation, labels, registry=self.registry)

    def _histogram(
        self, name: str, documentation: str, labels: Sequence[str], bounds_s: Sequence[float]
    ) -> Histogram:
        histogram = Histogram(f"forebay_{name}", documentation, labels, bounds_s)
        self.registry.register(histogram)
        return histogram
