"""Replicas that come, or come again, are warmed up before they are picked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ext_proc.adapters.membership import Fixed
from ext_proc.adapters.replica_warm_up import WarmUp
from ext_proc.adapters.replicas import ReplicaSettings
from tests.adapters.test_replicas import PATIENCE_S, POOL, PROMPT, Followed, Lines
from tests.fakes import FakeClock
from tests.model_server import ModelServer

HOW = WarmUp(
    ({"messages": [{"role": "user", "content": "Why is the basin calm?"}]},),
    deadline_s=PATIENCE_S,
    slow_start_s=10.0,
)


class Warmed(Followed):
    """Wakes who waits for a warm-up to end."""

    async def warmed(self, count: int, outcome: str = "warm") -> None:
        """Wait until so many warm-ups ended so."""
        async with asyncio.timeout(PATIENCE_S):
            while self.figures()[POOL].warm_ups.get(outcome, 0) < count:
                self._told.clear()
                await self._told.wait()

    def picked(self, times: int = 20) -> set[str]:
        """Pick for as many prompts as that, and return where."""
        return {self.address(PROMPT + b"%d" % number) for number in range(times)}

    @property
    def cold(self) -> int:
        return self.figures()[POOL].cold


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
async def replicas(clock: FakeClock, log: Lines) -> AsyncIterator[Warmed]:
    made = Warmed(clock, log)
    yield made
    await made.close()


@pytest.fixture
async def one() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


def pool_of(*servers: ModelServer, how: WarmUp | None = HOW) -> dict[str, ReplicaSettings]:
    members = Fixed(tuple(server.address for server in servers))
    return {POOL: ReplicaSettings(members, "round_robin", warm_up=how)}


async def test_replicas_there_before_are_warmed_up_and_serve_meanwhile(
    replicas: Warmed, one: ModelServer, other: ModelServer
) -> None:
    """This gateway may be the one that has begun, and all of them may be cold."""
    one.answers.clear()
    other.answers.clear()
    replicas.follow(pool_of(one, other))
    await replicas.until(replicas=2)
    await one.chatted(1)
    await other.chatted(1)
    assert (0, {one.address, other.address}) == (replicas.cold, replicas.picked())
    one.answers.set()
    other.answers.set()
    await replicas.warmed(2)
    assert 0 == replicas.cold


async def test_a_replica_that_comes_gets_no_request_before_it_is_warm(
    replicas: Warmed, clock: FakeClock, one: ModelServer, other: ModelServer
) -> None:
    """Then its share grows for as long as is said."""
    replicas.follow(pool_of(one))
    await replicas.warmed(1)
    other.answers.clear()
    replicas.follow(pool_of(one, other))
    await other.chatted(1)
    assert (1, {one.address}) == (replicas.cold, replicas.picked())
    other.answers.set()
    await replicas.warmed(2)
    assert (1, {one.address, other.address}) == (replicas.cold, replicas.picked())
    clock.advance(10)
    assert {one.address, other.address} == replicas.picked()
    assert 0 == replicas.cold


@pytest.mark.parametrize("seen", ["refused", "another process"])
async def test_a_replica_that_has_restarted_is_warmed_up_again(
    replicas: Warmed, one: ModelServer, other: ModelServer, seen: str
) -> None:
    """It took no connection and then does, or it says that it began at another time."""
    replicas.follow(pool_of(one, other))
    await replicas.warmed(2)
    await replicas.heard(one.address, other.address)
    other.answers.clear()
    if seen == "refused":
        await other.__aexit__(None, None, None)
        await replicas.until(avoided=1)
        await other.__aenter__()
    else:
        other.began_s += 60
        other.page = b"nothing"  # for one question: then the page is read whole
        silent = asyncio.Event()
        replicas.silent = lambda *_: silent.set()  # type: ignore[method-assign] # one moment of it
        await silent.wait()
        del replicas.silent
        other.page = None
    await other.chatted(2)
    assert (1, {one.address}) == (replicas.cold, replicas.picked())
    other.answers.set()
    await replicas.warmed(3)
    assert {one.address, other.address} == replicas.picked()


async def test_a_replica_without_figures_that_takes_connections_again_has_begun(
    replicas: Warmed, one: ModelServer, other: ModelServer
) -> None:
    """It says nothing of itself; a probe finds that it answers."""
    other.metrics_path = "/elsewhere"
    replicas.follow(pool_of(one, other))
    await replicas.warmed(2)
    await other.__aexit__(None, None, None)
    await replicas.until(avoided=1)
    await other.__aenter__()
    await replicas.warmed(3)
    await replicas.until(avoided=0)
    assert {one.address, other.address} == replicas.picked()


async def test_a_replica_that_does_not_get_warm_gets_requests_all_the_same(
    replicas: Warmed, log: Lines, one: ModelServer, other: ModelServer
) -> None:
    """Once time is up; the log says why it is cold."""
    how = replace(HOW, deadline_s=0.05, slow_start_s=0.0)
    replicas.follow(pool_of(one, how=how))
    await replicas.warmed(1)
    other.answers.clear()
    replicas.follow(pool_of(one, other, how=how))
    await replicas.warmed(1, "late")
    assert {one.address, other.address} == replicas.picked()
    said = {"pool": POOL, "replica": other.address, "why": "late: nothing"}
    assert [{"event": "replica_not_warm", **said}] == log.lines


async def test_a_cold_replica_serves_where_it_is_the_only_one_left(
    replicas: Warmed, one: ModelServer, other: ModelServer
) -> None:
    """A pool is not lost to a warm-up."""
    replicas.follow(pool_of(one))
    await replicas.warmed(1)
    other.answers.clear()
    replicas.follow(pool_of(one, other))
    await other.chatted(1)
    await one.__aexit__(None, None, None)
    await replicas.until(avoided=1, replicas=2)
    assert {other.address} == replicas.picked()


async def test_nobody_is_held_once_nobody_is_to_be_warmed_up(
    replicas: Warmed, one: ModelServer, other: ModelServer
) -> None:
    """The settings changed meanwhile."""
    replicas.follow(pool_of(one))
    await replicas.warmed(1)
    other.answers.clear()
    replicas.follow(pool_of(one, other))
    await other.chatted(1)
    replicas.follow(pool_of(one, other, how=None))
    assert (0, {one.address, other.address}) == (replicas.cold, replicas.picked())
