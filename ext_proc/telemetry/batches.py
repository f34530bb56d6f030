"""Count what became of embeddings that were asked for together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ext_proc.telemetry.metrics import Histogram, Tally

SIZE_BOUNDS: Final = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
ANSWERED: Final = "answered"
OUTCOMES: Final = (
    *(ANSWERED, "broken", "bug", "denied", "failed", "late", "left", "refused", "throttled"),
    "unreadable",
)
_UNIT: Final = 1_000_000_000  # the histogram is one of seconds, and counts in nanoseconds


class BatchMetrics(Collector):
    """Metrics of all batches of this gateway."""

    def __init__(self) -> None:
        by_outcome = ("outcome",)
        self._batches: Final = Tally(
            "forebay_batches", "Calls for several embeddings, and how they went", by_outcome
        )
        self._requests: Final = Tally(
            "forebay_batch_requests", "Requests that were in them when they went", by_outcome
        )
        self._saved: Final = Tally(
            "forebay_batch_saved_calls", "Calls that the upstream did not get", ()
        )
        self._sizes: Final = Histogram(
            "forebay_batch_size", "How many requests were in a batch", (), SIZE_BOUNDS
        )
        for outcome in OUTCOMES:  # a rate misses the first count of a series not there before
            self._batches.add((outcome,), 0)
            self._requests.add((outcome,), 0)
        self._saved.add((), 0)

    def batch_asked(self, outcome: str, size: int) -> None:
        """Count a batch; all but `answered` say why its requests went on by themselves."""
        self._batches.add((outcome,))
        self._requests.add((outcome,), size)
        self._sizes.observe((), size * _UNIT)
        if outcome == ANSWERED:
            self._saved.add((), size - 1)

    def collect(self) -> Iterable[Metric]:
        """Return what was counted."""
        for metric in (self._batches, self._requests, self._saved, self._sizes):
            yield from metric.collect()
