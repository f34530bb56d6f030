"""What is shown of pools with queues."""

from __future__ import annotations

from ext_proc.adapters.queues import Figures
from ext_proc.telemetry.queues import QueueMetrics
from filters.queue_order import Lane, Priority, Shed, Wish
from tests.ext_proc.test_telemetry import Books


def test_who_waits_who_waited_and_who_was_sent_away_is_shown() -> None:
    """By pool, queue and class; of tenants only whether they have a credential."""
    depth = {lane: dict.fromkeys(Priority, 0) for lane in Lane}
    depth[Lane.BULK][Priority.LOW] = 3
    anonymous = {lane: dict.fromkeys(Priority, 0) for lane in Lane}
    anonymous[Lane.BULK][Priority.LOW] = 1
    figures = Figures(64, {Lane.FAST: 9, Lane.BULK: 2}, depth, anonymous)
    metrics = QueueMetrics(lambda: {"full": figures})
    books = Books()
    books.telemetry.registry.register(metrics)
    wish = Wish(Lane.BULK, Priority.LOW, "a tenant", 30.0)
    metrics.served("full", wish, 0.3, named=True)
    metrics.shed("full", wish, Shed.LATE, named=False)
    assert 64 == books.value("queue_slots", pool="full")
    assert [9, 2] == [books.value("queue_in_use", pool="full", queue=lane) for lane in Lane]
    where = {"pool": "full", "queue": "bulk", "class": "low"}
    assert 2 == books.value("queue_depth", tenant="named", **where)
    assert 1 == books.value("queue_depth", tenant="anonymous", **where)
    assert 1 == books.value("queue_wait_seconds_count", tenant="named", **where)
    assert 0.3 == books.value("queue_wait_seconds_sum", tenant="named", **where)
    assert 1 == books.value("queue_shed_total", tenant="anonymous", reason="late", **where)
