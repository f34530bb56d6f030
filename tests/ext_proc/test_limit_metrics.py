"""What is shown of pools with limits."""

from __future__ import annotations

from ext_proc.adapters.limits import Figures, Refusal
from ext_proc.telemetry.limits import LimitMetrics
from tests.ext_proc.test_telemetry import Books


def test_how_full_the_pools_are_is_shown() -> None:
    """Each at the moment that metrics are read; both reasons from the start."""
    refused: dict[str, int] = {Refusal.RATE: 0, Refusal.CONCURRENT: 7}
    pools = {"best_effort": Figures(5, 32, 2, refused, 3, 4)}
    books = Books()
    books.telemetry.registry.register(LimitMetrics(lambda: pools))
    shown = {
        "limit_in_use": 5,
        "limit_capacity": 32,
        "limit_gateways": 2,
        "limit_lost_leases_total": 3,
        "limit_unshared_total": 4,
    }
    assert shown == {name: books.value(name, pool="best_effort") for name in shown}
    assert [0, 7] == [
        books.value("limit_refused_total", pool="best_effort", reason=reason)
        for reason in ("rate", "concurrent")
    ]
    pools.clear()
    assert books.value("limit_in_use", pool="best_effort") is None
