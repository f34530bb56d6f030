"""Pools with a breaker are watched, each for itself, and what becomes of it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import prometheus_client as prometheus

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.error_breaker import Limits
from ext_proc.adapters.pool_breakers import PoolBreakers
from ext_proc.telemetry.breakers import PoolBreakerFigures
from tests.fakes import FakeClock

LIMITS = Limits()


@dataclass
class FakeLog:
    """Keeps lines."""

    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


def breakers_of(*pools: str) -> tuple[PoolBreakers, FakeClock, FakeLog]:
    clock, log = FakeClock(), FakeLog()
    breakers = PoolBreakers(clock, log)
    breakers.follow(dict.fromkeys(pools, LIMITS))
    return breakers, clock, log


def fail(breakers: PoolBreakers, clock: FakeClock, pool: str, times: int = 20) -> None:
    for _ in range(times):
        breakers.admits(pool)
        breakers.ended(pool, clock.monotonic_ns(), good=False)


def test_a_pool_without_a_breaker_is_not_watched_and_always_asked() -> None:
    """What it is told of it is forgotten."""
    breakers, clock, log = breakers_of("cheap")
    fail(breakers, clock, "full")
    assert [False, True] == [breakers.watches(pool) for pool in ("full", "cheap")]
    assert breakers.admits("full")
    assert [] == log.lines


def test_a_pool_that_fails_is_left_alone_and_others_are_not() -> None:
    """The log says so once, with the answers that it was judged by."""
    breakers, clock, log = breakers_of("cheap", "full")
    breakers.ended("cheap", clock.monotonic_ns(), good=True)
    fail(breakers, clock, "cheap")
    assert [False, True] == [breakers.admits(pool) for pool in ("cheap", "full")]
    assert [("breaker opened", {"pool": "cheap", "answers": 20, "errors": 19})] == log.lines


def test_it_is_asked_again_after_a_rest_and_the_log_says_when_it_is_well() -> None:
    """A probe that fails is not told of: it is open as it was."""
    breakers, clock, log = breakers_of("cheap")
    fail(breakers, clock, "cheap")
    clock.advance(10)
    fail(breakers, clock, "cheap", 1)
    clock.advance(10)
    for _ in range(3):
        assert breakers.admits("cheap")
        breakers.ended("cheap", clock.monotonic_ns(), good=True)
    assert ["breaker opened", "breaker closed"] == [event for event, _ in log.lines]


def test_the_same_settings_leave_a_breaker_as_it_is() -> None:
    """Other ones, or none meanwhile, make another."""
    breakers, clock, _ = breakers_of("cheap")
    fail(breakers, clock, "cheap")
    breakers.follow({"cheap": LIMITS, "full": LIMITS})
    assert not breakers.admits("cheap")
    breakers.follow({"cheap": Limits(least=10)})
    assert [True, False] == [breakers.admits("cheap"), breakers.watches("full")]
    fail(breakers, clock, "cheap")
    breakers.follow({})
    breakers.follow({"cheap": Limits(least=10)})
    assert breakers.admits("cheap")


def test_metrics_show_each_breaker() -> None:
    """Its state as a number, what it counts, and how often it opened."""
    breakers, clock, _ = breakers_of("cheap", "full")
    breakers.ended("full", clock.monotonic_ns(), good=True)
    fail(breakers, clock, "cheap")
    registry = prometheus.CollectorRegistry()
    registry.register(PoolBreakerFigures(breakers.figures))

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"forebay_breaker_{name}", labels)

    assert [2, 0] == [shown("state", pool=pool) for pool in ("cheap", "full")]
    assert [1, 0] == [shown("opened_total", pool=pool) for pool in ("cheap", "full")]
    assert 20 == shown("answers", pool="cheap", outcome="error")
    assert 1 == shown("answers", pool="full", outcome="good")
    clock.advance(60)
    assert 0 == shown("answers", pool="full", outcome="good")
    breakers.admits("cheap")
    assert BreakerState.PROBING == shown("state", pool="cheap")


def test_figures_leave_a_window_as_it_is() -> None:
    """They are read in another thread than answers are counted in."""
    breakers, clock, _ = breakers_of("cheap")
    breakers.ended("cheap", clock.monotonic_ns(), good=False)
    window = breakers._breakers["cheap"].window
    clock.advance(60)
    figures = breakers.figures()["cheap"]
    assert ((0, 0), (1, 1)) == ((figures.total, figures.bad), (window.total, window.bad))
