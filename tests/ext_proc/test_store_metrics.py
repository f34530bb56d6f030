"""An operator sees what stores keep, let go of, refuse and take their time for."""

from __future__ import annotations

import io
import logging

import pytest

from ext_proc.adapters.layered_store import LayeredStore
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.redis_store import RedisStore
from ext_proc.app import open_redis, open_store
from ext_proc.config import MemorySettings, RedisSettings, StoreSettings
from ext_proc.session import Facts
from ext_proc.telemetry import Telemetry
from filters.cache_record import Unreadable
from filters.units import Size
from tests.fakes import FakeClock, drive

MEMORY = MemorySettings(size=Size("64KiB"))
REDIS = RedisSettings(url="redis://localhost:1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def telemetry(clock: FakeClock) -> Telemetry:
    return Telemetry.open(clock, io.BytesIO(), version="1.2.3", level=logging.WARNING)


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"forebay_{name}", labels)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (StoreSettings(memory=MEMORY), MemoryStore),
        (StoreSettings(redis=REDIS), RedisStore),
        (StoreSettings(memory=MEMORY, redis=REDIS), LayeredStore),
    ],
    ids=["memory", "redis", "both"],
)
async def test_the_settings_choose_the_store(
    settings: StoreSettings, kind: type, clock: FakeClock, telemetry: Telemetry
) -> None:
    """Nothing is connected to before it is asked."""
    redis = open_redis(settings.redis, clock, telemetry)
    store = open_store(settings, redis, clock, telemetry)
    assert kind is type(store)
    await store.close()


def test_what_memory_keeps_and_lets_go_of_is_shown(clock: FakeClock, telemetry: Telemetry) -> None:
    """Bytes and answers by now, and what is no longer there by its reason."""
    store = open_store(StoreSettings(memory=MEMORY), None, clock, telemetry)
    assert 0 == value(telemetry, "store_evictions_total", reason="room")
    for number in range(9):
        drive(store.put(b"%d" % number, b"x" * 9_000, 60))
    drive(store.put(b"big", b"x" * 100_000, 60))
    clock.advance(60)
    drive(store.get(b"8"))
    assert 5 == value(telemetry, "store_entries")
    assert 5 * 9_000 < (value(telemetry, "store_bytes") or 0) < 5 * 9_500
    assert {"room": 3, "time": 1, "size": 1, "sightings": 0} == {
        reason: value(telemetry, "store_evictions_total", reason=reason)
        for reason in ("room", "time", "size", "sightings")
    }


def test_how_long_a_store_takes_is_counted_by_what_it_was_asked(telemetry: Telemetry) -> None:
    """In buckets about the budget of 5 ms."""
    telemetry.store_took("redis", "get", 1_500_000)
    telemetry.store_took("redis", "get", 7_000_000)
    labels = {"store": "redis", "op": "get"}
    assert [0, 1, 1, 2] == [
        value(telemetry, "store_seconds_bucket", **labels, le=bound)
        for bound in ("0.001", "0.002", "0.005", "0.0075")
    ]
    assert 0.0085 == value(telemetry, "store_seconds_sum", **labels)


def test_writes_that_were_dropped_are_counted(telemetry: Telemetry) -> None:
    """Failed, late or not tried; a look-up is none."""
    for operation in ("put", "get", "sighted"):
        telemetry.store_failed("redis", operation)
        telemetry.store_bypassed("redis", operation)
    assert 2 == value(telemetry, "store_dropped_writes_total", store="redis")


def test_records_that_cannot_be_read_are_counted_by_reason(telemetry: Telemetry) -> None:
    """Each reason is there from the start, and no other text becomes a label."""
    for note in ("damaged", "damaged", "a text of somebody else's"):
        facts = Facts(profile="faq", notes={"cache": "miss", "cache.unreadable": note})
        telemetry.begin("faq", None).end(facts)
    assert {"foreign": 0, "version": 0, "damaged": 2} == {
        reason.value: value(telemetry, "cache_unreadable_total", reason=reason)
        for reason in Unreadable
    }
    assert value(telemetry, "cache_unreadable_total", reason="a text of somebody else's") is None
