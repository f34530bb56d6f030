"""What is counted of embeddings that were asked for together."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ext_proc.telemetry.batches import OUTCOMES, BatchMetrics


def test_batches_are_counted_by_how_they_went() -> None:
    """Every outcome is there from the start; only answers save calls."""
    registry, metrics = CollectorRegistry(), BatchMetrics()
    registry.register(metrics)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"forebay_{name}", labels)

    assert {0.0} == {value("batches_total", outcome=outcome) for outcome in OUTCOMES}
    assert 0 == value("batch_saved_calls_total")
    metrics.batch_asked("answered", 16)
    metrics.batch_asked("answered", 3)
    metrics.batch_asked("refused", 5)
    assert (2, 1) == (
        value("batches_total", outcome="answered"),
        value("batches_total", outcome="refused"),
    )
    assert (19, 5) == (
        value("batch_requests_total", outcome="answered"),
        value("batch_requests_total", outcome="refused"),
    )
    assert 17 == value("batch_saved_calls_total")
    assert (3, 24) == (value("batch_size_count"), value("batch_size_sum"))
    below = [value("batch_size_bucket", le=bound) for bound in ("2", "3", "6", "12", "16")]
    assert [0, 1, 2, 2, 3] == below
