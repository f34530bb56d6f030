"""A master of Redis is killed under load: no client sees an error, and hits come back."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Ask, Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import Upstream, seconds
from tests.redis_server import RedisCluster, RedisServer, SentinelRedis

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
RATE: Final = 200  # requests a second
QUESTIONS: Final = 24  # so many that every master of a cluster has some
BEFORE: Final = 200  # requests answered before the kill
PATIENCE_S: Final = 60.0  # for what takes a few seconds where nothing else runs
TIMEOUT: Final = "25ms"  # five times the default: the machine that tests may be busy


@dataclass(frozen=True, slots=True)
class Servers:
    """Redis: how it is reached, and its masters."""

    url: str
    masters: Sequence[RedisServer]


@pytest.fixture(params=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    if request.param == "cluster":
        with RedisCluster(tmp_path) as cluster:
            yield Servers(cluster.url, cluster.nodes[:3])
    else:
        with SentinelRedis(tmp_path) as watched:
            yield Servers(watched.url, [watched.master])


class Load:
    """Asks one question after the other, at a rate that does not wait for answers."""

    def __init__(self, call: Caller, asked: Sequence[Ask]) -> None:
        self.ended = False
        self.answered = 0
        self.bad: Final[list[str]] = []
        """What a client should not have seen."""
        self.lost: Final[Counter[int]] = Counter()
        """How often a question was no hit since the kill."""
        self.back_s: Final[dict[int, float]] = {}
        """How long after the kill a question that was lost was asked that was a hit again."""
        self._call: Final = call
        self._asked: Final = asked
        self._killed: float | None = None
        self._came: Final = asyncio.Event()

    async def run(self) -> None:
        """Ask until it is to end, and let what was asked be answered."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for n in itertools.count():
                await asyncio.sleep(began + n / RATE - time.monotonic())
                if self.ended:
                    return
                group.create_task(self._ask(n % len(self._asked)))

    async def until(self, good: Callable[[], bool]) -> None:
        """Wait until what was seen is enough."""
        async with asyncio.timeout(PATIENCE_S):
            while not good():
                self._came.clear()
                await self._came.wait()

    def kill(self, server: RedisServer) -> None:
        """Kill a server; what was asked before does not count."""
        server.kill()
        self._killed = time.monotonic()

    async def _ask(self, question: int) -> None:
        asked_at = time.monotonic()
        try:
            reply = await self._call(self._asked[question], "faq")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.bad.append(repr(error))
            return
        if reply.status != 200 or reply.cut:
            self.bad.append(f"{reply.status} {reply.body[:200]!r}")
        self.answered += 1
        if self._killed is not None and asked_at > self._killed:
            if reply.cache != "HIT":
                self.lost[question] += 1
                self.back_s.pop(question, None)
            elif question in self.lost:
                self.back_s.setdefault(question, asked_at - self._killed)
        self._came.set()


async def test_a_master_that_is_killed_costs_no_client_an_error_and_its_answers_come_back(
    gateways: Gateways,
    upstream: Upstream,
    servers: Servers,
    http: aiohttp.ClientSession,
    question: str,
    record_property: Callable[[str, object], None],
) -> None:
    """Its replica takes its place, and Forebay finds it; until then the model answers."""
    asked = [ask_for(CHAT, f"{question} {n}") for n in range(QUESTIONS)]
    with gateways.open(upstream=upstream, edit=_keep_in(servers.url)) as gateway:
        call = Caller(http, gateway.url)
        holders = [await _store(call, one, servers.masters) for one in asked]
        (victim, _), *_ = Counter(holders).most_common()
        its_own = {n for n, holder in enumerate(holders) if holder == victim}
        load = Load(call, asked)
        async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(load.run())
            await load.until(lambda: load.answered >= BEFORE)
            load.kill(servers.masters[victim])
            await load.until(lambda: its_own <= load.back_s.keys())
            took_s = max(load.back_s[n] for n in its_own)
            load.ended = True
        searches = gateway.metrics()['forebay_store_searches_total{result="found",store="redis"}']
    others = sum(count for n, count in load.lost.items() if n not in its_own)
    record_property("hits_back_s", took_s)
    print(
        f"hits back {took_s:.2f} s after the kill; {load.answered} answers, "
        f"{load.lost.total()} of them no hits since, {others} on other masters; "
        f"{searches:g} searches"
    )
    assert [] == load.bad


async def _store(call: Caller, asked: Ask, masters: Sequence[RedisServer]) -> int:
    """Ask until it is a hit; return which master has the answer."""
    before = _kept(masters)
    started = time.monotonic()
    while seconds(started) < PATIENCE_S:
        reply = await call(asked, "faq")
        if reply.cache == "HIT":
            ((number, _),) = _kept(masters) - before
            return number
    raise TimeoutError("no hit")


def _kept(masters: Sequence[RedisServer]) -> set[tuple[int, str]]:
    return {
        (number, name)
        for number, master in enumerate(masters)
        for name in master.ask("KEYS", "forebay:answer:*")
    }


def _keep_in(url: str) -> Callable[[dict[str, Any]], None]:
    def edit(tree: dict[str, Any]) -> None:
        settings = {"redis": {"url": url, "timeout": TIMEOUT}}
        tree["node"]["metadata"]["forebay"]["store"] = settings

    return edit
