"""Replicas are asked again and again, and none keeps others from being asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from statistics import fmean

import pytest

from ext_proc.adapters.replica_scrape import MOST_PAGE_BYTES, Scraper
from ext_proc.adapters.replica_signals import Said
from tests.model_server import ModelServer

PATIENCE_S = 60.0


class Told:
    """Keeps what replicas say, and wakes who waits for it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, object]] = []
        self._more = asyncio.Condition()
        self._waking: set[asyncio.Task[None]] = set()

    def said(self, address: str, said: Said) -> None:
        self._tell("said", address, said)

    def refused(self, address: str) -> None:
        self._tell("refused", address, None)

    def silent(self, address: str, why: str) -> None:
        self._tell("silent", address, why)

    async def until(self, kind: str, address: str, times: int = 1) -> object:
        """Wait until something was told so often; return what it was the last time."""

        def found() -> list[object]:
            return [what for one, whose, what in self.events if (one, whose) == (kind, address)]

        async with asyncio.timeout(PATIENCE_S), self._more:
            await self._more.wait_for(lambda: len(found()) >= times)
        return found()[-1]

    def _tell(self, kind: str, address: str, what: object) -> None:
        self.events.append((kind, address, what))
        task = asyncio.create_task(self._wake())
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _wake(self) -> None:
        async with self._more:
            self._more.notify_all()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def scraper(told: Told) -> AsyncIterator[Scraper]:
    made = Scraper(told, period_s=0.001, rng=lambda: 0.01)
    yield made
    await made.close()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


async def test_a_page_is_read(told: Told, scraper: Scraper, server: ModelServer) -> None:
    """At first whole, then what changes."""
    server.running, server.waiting, server.kv_usage = 3, 2, 0.5
    scraper.follow([server.address])
    assert Said(2, 3, 0.5) == await told.until("said", server.address, 2)
    assert ("said", server.address, Said(2, 3, 0.5, None, 16_000, 1.0)) == told.events[0]


async def test_pages_are_asked_for_again_and_again(
    told: Told, scraper: Scraper, server: ModelServer
) -> None:
    """What changed is told with the next one."""
    scraper.follow([server.address])
    await told.until("said", server.address)
    server.running = 7
    await told.until("said", server.address, len(told.events) + 2)
    assert ("said", server.address, Said(0, 7, 0.0)) == told.events[-1]


async def test_a_replica_is_asked_twenty_times_a_second_and_never_in_step(
    told: Told, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pauses are 50 ms, a fifth more or less: several gateways do not ask all at once."""
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 40:
            enough.set()
            await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    now_s = loop.time()
    scraper = Scraper(told, rng=random.Random(1).random, sleep=sleep)
    with monkeypatch.context() as stopped:
        # The clock stands still: an answer takes nothing off the pause behind it.
        stopped.setattr(loop, "time", lambda: now_s)
        scraper.follow([server.address])
        await enough.wait()
    await scraper.close()
    assert {"said"} == {kind for kind, _, _ in told.events}
    assert 40 == len(set(pauses))
    assert 0.04 <= min(pauses) < 0.045
    assert 0.055 < max(pauses) <= 0.06
    assert pytest.approx(0.05, rel=0.05) == fmean(pauses)


async def test_tensorrts_place_is_found(told: Told, scraper: Scraper, server: ModelServer) -> None:
    """Its page is not where the others have theirs."""
    server.metrics_path = "/prometheus/metrics"
    scraper.follow([server.address])
    await told.until("said", server.address)
    assert ("silent", server.address, "status 404") == told.events[0]


async def test_one_that_hangs_is_asked_once_while_others_are_asked_on(
    told: Told, scraper: Scraper, server: ModelServer
) -> None:
    """One question at a time each."""
    async with ModelServer() as hung:
        hung.pages.clear()
        scraper.follow([hung.address, server.address])
        await told.until("said", server.address, 20)
        assert 1 == hung.asked["/metrics"]


async def test_one_that_hangs_is_given_up(told: Told, server: ModelServer) -> None:
    """And asked again later."""
    server.pages.clear()
    scraper = Scraper(told, period_s=0.001, deadline_s=0.01, rng=lambda: 0.0)
    scraper.follow([server.address])
    await told.until("silent", server.address, 2)
    server.pages.set()
    await told.until("said", server.address)
    await scraper.close()


async def test_one_that_is_not_there_refuses(told: Told, scraper: Scraper) -> None:
    """Nobody listens."""
    async with ModelServer() as gone:
        pass
    scraper.follow([gone.address])
    await told.until("refused", gone.address, 2)


@pytest.mark.parametrize("page", [b"up 1\n", b"x" * (MOST_PAGE_BYTES + 1)])
async def test_another_page_says_nothing(
    told: Told, scraper: Scraper, server: ModelServer, page: bytes
) -> None:
    """Nor does one that does not end."""
    server.page = page
    scraper.follow([server.address])
    why = await told.until("silent", server.address)
    assert why in ("no figures of a model server", f"more than {MOST_PAGE_BYTES} bytes")


async def test_one_whose_words_break_whoever_listens_is_asked_on(server: ModelServer) -> None:
    """Without, a replica would never again be heard, and nobody would know."""

    class Broken(Told):
        def said(self, address: str, said: Said) -> None:
            super().said(address, said)
            if 1 == len(self.events):
                raise KeyError(address)

    told = Broken()
    scraper = Scraper(told, period_s=0.001, rng=lambda: 0.0)
    scraper.follow([server.address])
    await told.until("said", server.address, 2)
    await scraper.close()


async def test_only_those_followed_are_asked(
    told: Told, scraper: Scraper, server: ModelServer
) -> None:
    """Whoever left a pool is left alone."""
    async with ModelServer() as other:
        scraper.follow([server.address])
        await told.until("said", server.address)
        scraper.follow([other.address])
        asked = server.asked["/metrics"]
        await told.until("said", other.address, 5)
        assert (1, asked) == (len(scraper), server.asked["/metrics"])
