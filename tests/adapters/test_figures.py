"""Figures for metrics are read in a thread, while the loop changes what they walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ext_proc.adapters import pool_breakers, replicas
from ext_proc.adapters.error_breaker import Limits
from ext_proc.adapters.pool_breakers import PoolBreakers
from ext_proc.adapters.replicas import FollowedReplicas, ReplicaSettings
from filters.picking import ask_of
from filters.replica import Ask
from tests.fakes import FakeClock


class Lines:
    """A log that nobody reads."""

    def warning(self, event: str, **fields: object) -> None:
        pass


def before(call: Callable[..., Any], change: Callable[[], object]) -> Callable[..., Any]:
    """Return a call that has something changed first, as another thread may."""

    def changing(*args: Any) -> Any:
        change()
        return call(*args)

    return changing


def test_a_breaker_may_come_while_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is among the next figures."""
    breakers = PoolBreakers(FakeClock(), Lines())
    breakers.follow({"full": Limits(), "spare": Limits()})
    pools = dict.fromkeys(("full", "spare", "late"), Limits())
    late = before(pool_breakers.Figures, lambda: breakers.follow(pools))
    monkeypatch.setattr(pool_breakers, "Figures", late)
    assert ["full", "spare"] == list(breakers.figures())
    assert ["full", "spare", "late"] == list(breakers.figures())


async def test_pools_may_come_while_replicas_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are among the next figures."""
    followed = FollowedReplicas(FakeClock(), Lines())
    followed.follow({"full": ReplicaSettings(), "spare": ReplicaSettings()})
    pools = {name: ReplicaSettings() for name in ("full", "spare", "late")}
    late = before(replicas.Figures, lambda: followed.follow(pools))
    monkeypatch.setattr(replicas, "Figures", late)
    assert ["full", "spare"] == list(followed.figures())
    assert ["full", "spare", "late"] == list(followed.figures())
    await followed.close()


async def test_replicas_may_come_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are among the next figures."""
    followed = FollowedReplicas(FakeClock(), Lines())
    followed.follow({"full": ReplicaSettings()})
    picker = followed._pools["full"].picker
    picker.add("one", 1_000)
    picker.add("two", 1_000)
    late = before(replicas._figures, lambda: picker.add("late", 1_000))
    monkeypatch.setattr(replicas, "_figures", late)
    assert ["one", "two"] == list(followed.figures()["full"].each)
    assert ["one", "two", "late"] == list(followed.figures()["full"].each)
    await followed.close()


async def test_a_late_replica_is_shown_and_left_as_it_is() -> None:
    """Who reads figures avoids nobody: that is for who picks."""
    clock = FakeClock()
    followed = FollowedReplicas(clock, Lines())
    followed.follow({"full": ReplicaSettings()})
    picker = followed._pools["full"].picker
    replica = picker.add("one", 1_000)
    picker.pick(ask_of(b"hello", "m"), clock.monotonic_ns() / 1e9)
    clock.advance(100)
    figures = followed.figures()["full"]
    assert (1, 1, None) == (figures.avoided, figures.each["one"]["avoided"], replica.avoided_s)
    await followed.close()


async def test_requests_may_start_while_replicas_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is late is told by what waited when the reading began."""
    clock = FakeClock()
    followed = FollowedReplicas(clock, Lines())
    followed.follow({"full": ReplicaSettings()})
    picker = followed._pools["full"].picker
    replica = picker.add("one", 1_000)
    for _ in range(2):
        picker.pick(ask_of(b"hello", "m"), clock.monotonic_ns() / 1e9)

    def started(ask: Ask) -> bool:
        replica.unstarted.clear()
        return False

    monkeypatch.setattr(Ask, "watched", property(started))
    assert (0, 2) == (followed.figures()["full"].avoided, len(replica.picks))
    assert {} == replica.unstarted
    await followed.close()
