"""What replicas say they hold decides where prompts go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.adapters.kv_settings import EventFigures, EventSettings
from ext_proc.adapters.membership import Fixed
from ext_proc.adapters.prompt_tokens import TokenCutter
from ext_proc.adapters.replica_signals import Said
from ext_proc.adapters.replicas import FollowedReplicas, HeldPick, ReplicaSettings
from filters.api import Prompt
from filters.block_book import Chain
from filters.dialects import DIALECTS
from filters.document import Document
from tests.adapters.test_prompt_tokens import tokens_of, write_model
from tests.fakes import FakeClock
from tests.kv_publisher import PATIENCE_S, AllBlocksCleared, KvPublisher, removed, stored

POOL = "full"
ONE, OTHER = "127.0.0.1:1", "127.0.0.2:1"
SEED = "m\ntenant"
LONG = "".join(f"{number} " for number in range(2_000))
SHORT = LONG[: len(LONG) // 2]


class Lines:
    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []
        self.written = asyncio.Event()

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})
        self.written.set()


class Followed(FollowedReplicas):
    """Takes replicas to be there, though nobody has a page."""

    def refused(self, address: str) -> None:
        """Nobody is avoided for that."""


class Pool:
    """Two replicas that only say what they hold."""

    def __init__(self, one: KvPublisher, other: KvPublisher, folder: Path | None) -> None:
        self.log = Lines()
        self.replicas = Followed(
            FakeClock(),
            self.log,
            period_s=3_600.0,
            probing_s=3_600.0,
            read_s=PATIENCE_S,
            rng=lambda: 0.01,
        )
        self.one = one
        self.other = other
        self.folder = folder
        self.settings = ReplicaSettings(
            Fixed((ONE, OTHER)),
            explore=0.0,
            events=EventSettings(one.port, one.replay_port),
            tokenizer=str(folder or ""),
        )

    @property
    def figures(self) -> EventFigures:
        figures = self.replicas.figures()[POOL].events
        assert figures is not None
        return figures

    async def begin(self) -> None:
        self.replicas.follow({POOL: self.settings})
        await self.one.subscribed()
        await self.other.subscribed()
        if self.folder is not None:
            await self.until(lambda: self.replicas.reads(POOL))

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is so: what replicas say comes by itself, and nobody tells when."""
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.to_thread(lambda: None)

    async def heard(self, batches: int) -> None:
        await self.until(lambda: self.figures.heard.batches >= batches)

    def tokens(self, text: str) -> list[int]:
        assert self.folder is not None
        cutter = TokenCutter(self.folder)
        return tokens_of(cutter.join(cutter.pieces(cutter.template.write(body(text)))))

    async def held(self, text: str, *, shared: bool = False, seed: str = SEED) -> list[int]:
        """Return what part in a hundred each replica holds of a prompt, which goes nowhere."""
        chain = await self.replicas.read(POOL, prompt(text), shared=shared)
        found: list[int] = []
        for address in (ONE, OTHER):
            picked = self.pick(text, address, chain, seed)
            found.append(round(100 * picked.held / (len(shown(text)) // 4)))
            picked.ended(good=False)
        return found

    async def send(self, text: str, address: str, seed: str = SEED) -> None:
        """Send a prompt there, and have its first token back."""
        chain = await self.replicas.read(POOL, prompt(text), shared=False)
        picked = self.pick(text, address, chain, seed)
        picked.started()
        picked.ended()

    def pick(self, text: str, address: str, chain: Chain | None, seed: str = SEED) -> HeldPick:
        picked = self.replicas.pick(POOL, shown(text), seed, subset=(address,), chain=chain)
        assert picked is not None
        return picked


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def prompt(text: str) -> Prompt:
    document = Document(msgspec.json.encode(body(text)))
    return DIALECTS["openai.chat"].read(document, "/v1/chat/completions")


def shown(text: str) -> bytes:
    return b"user\n" + text.encode()


@asynccontextmanager
async def begun(folder: Path | None) -> AsyncIterator[Pool]:
    async with (
        KvPublisher() as one,
        KvPublisher(one.port, one.replay_port, host="127.0.0.2") as other,
    ):
        pool = Pool(one, other, folder)
        await pool.begin()
        yield pool
        await pool.replicas.close()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    """One that knows its tokenizer, and how large blocks are."""
    async with begun(write_model(tmp_path / "model")) as made:
        made.one.publish(stored(range(16)))
        await made.heard(1)
        yield made


@pytest.fixture
async def guessing() -> AsyncIterator[Pool]:
    """One without a tokenizer."""
    async with begun(None) as made:
        yield made


# --- By tokens -----------------------------------------------------------------------------------


async def test_a_prompt_is_held_where_it_was_sent_until_it_is_evicted(pool: Pool) -> None:
    """Nobody else would know."""
    await pool.send(LONG, ONE)
    pool.one.publish(stored(pool.tokens(LONG)))
    await pool.heard(2)
    before = await pool.held(LONG)
    pool.one.publish(removed(pool.tokens(LONG), first=len(pool.tokens(LONG)) // 16 // 2))
    await pool.heard(3)
    half, none = await pool.held(LONG)
    pool.one.publish(AllBlocksCleared())
    await pool.heard(4)
    assert 90 < before[0] <= 100
    assert 40 < half <= 50
    assert ([before[1], none], [0, 0]) == ([0, 0], await pool.held(LONG))


async def test_what_a_tenant_sent_says_nothing_to_another(pool: Pool) -> None:
    """A replica holds it, but that is theirs to know; unless tenants share."""
    pool.one.publish(stored(pool.tokens(LONG)))
    await pool.heard(2)
    alone = await pool.held(LONG)
    shared = await pool.held(LONG, shared=True)
    assert [0, 0] == alone
    assert (0, True) == (shared[1], shared[0] > 90)


async def test_what_was_thrown_away_while_a_request_waited_is_held_again(pool: Pool) -> None:
    """It was computed once more."""
    chain = await pool.replicas.read(POOL, prompt(LONG), shared=False)
    picked = pool.pick(LONG, ONE, chain)
    pool.one.publish(stored(pool.tokens(LONG)), removed(pool.tokens(LONG)))
    await pool.heard(2)
    gone = (await pool.held(LONG))[0]
    picked.started()
    picked.ended()
    assert (0, True) == (gone, (await pool.held(LONG))[0] > 90)


async def test_what_failed_is_not_held(pool: Pool) -> None:
    """Though it was sent there."""
    chain = await pool.replicas.read(POOL, prompt(LONG), shared=True)
    pool.pick(LONG, ONE, chain).ended(good=False)
    assert [0, 0] == await pool.held(LONG, shared=True)


async def test_where_replicas_fall_silent_what_was_sent_counts(pool: Pool) -> None:
    """As without their word."""
    await pool.send(LONG, ONE)
    found = await pool.held(LONG)
    assert (True, 0) == (found[0] > 90, found[1])


async def test_what_cannot_be_read_goes_by_what_was_sent(pool: Pool) -> None:
    """Such as a prompt with an image."""
    picked = pool.pick(LONG, ONE, None)
    picked.started()
    picked.ended()
    again = pool.pick(LONG, ONE, None)
    assert again.held > 0.9 * len(shown(LONG)) // 4


async def test_a_replica_that_began_anew_holds_nothing(pool: Pool) -> None:
    """Its page says so before its events do."""
    await pool.send(LONG, ONE)
    pool.one.publish(stored(pool.tokens(LONG)))
    await pool.heard(2)
    pool.replicas.said(ONE, Said(0, 0, 0.0, began_s=1.0))
    pool.replicas.said(ONE, Said(0, 0, 0.0, began_s=2.0))
    assert [0, 0] == await pool.held(LONG)


async def test_what_makes_no_sense_is_counted_and_the_rest_is_heard(pool: Pool) -> None:
    """Of the same batch, even."""
    odd = stored(range(64))
    odd.token_ids = odd.token_ids[:-1]
    await pool.send(LONG, ONE)
    pool.one.publish(odd, AllBlocksCleared())
    await pool.until(lambda: pool.figures.heard.malformed == 1)
    assert ([0, 0], 1) == (await pool.held(LONG), pool.figures.heard.cleared)


async def test_figures_say_what_is_known(pool: Pool) -> None:
    """For metrics."""
    pool.one.publish(stored(range(160), first=3), stored(range(100, 164)), removed(range(16)))
    await pool.heard(2)
    figures = pool.figures
    heard = figures.heard
    assert (2, 12, 1) == (heard.batches, heard.stored, heard.removed)
    assert (11, 7, 0) == (figures.blocks, figures.orphans, figures.dropped)
    assert (0.0, True) == (figures.lag_s, figures.book_bytes > 0)
    await pool.replicas.read(POOL, prompt(SHORT), shared=False)
    assert {"good": 1, "unreadable": 0, "late": 0} == pool.figures.prompts


async def test_a_broken_tokenizer_is_said_and_what_was_sent_counts(tmp_path: Path) -> None:
    """The gateway serves."""
    async with (
        KvPublisher() as one,
        KvPublisher(one.port, one.replay_port, host="127.0.0.2") as other,
    ):
        pool = Pool(one, other, tmp_path / "nothing")
        pool.replicas.follow({POOL: pool.settings})
        async with asyncio.timeout(PATIENCE_S):
            await pool.log.written.wait()
        await pool.send(LONG, ONE)
        found = await pool.held(LONG)
        await pool.replicas.close()
    (line,) = pool.log.lines
    assert ("tokenizer_unreadable", POOL) == (line["event"], line["pool"])
    assert (True, False) == (found[0] > 90, pool.replicas.reads(POOL))


async def test_settings_may_change(pool: Pool) -> None:
    """What replicas said is forgotten; what was sent there is not."""
    await pool.send(LONG, ONE)
    pool.one.publish(stored(pool.tokens(LONG)), removed(pool.tokens(LONG)))
    await pool.heard(2)
    with_events = await pool.held(LONG)
    pool.replicas.follow({POOL: replace(pool.settings, events=None, tokenizer="")})
    await pool.send(LONG, ONE)
    without = await pool.held(LONG)
    assert ([0, 0], True, None) == (
        with_events,
        without[0] > 90,
        pool.replicas.figures()[POOL].events,
    )


async def test_strategies_that_go_by_nothing_else_have_no_prompt_read(pool: Pool) -> None:
    """It would be for nothing."""
    pool.replicas.follow({POOL: replace(pool.settings, strategy="least_load")})
    by_load = pool.replicas.reads(POOL)
    pool.replicas.follow({POOL: pool.settings})
    assert (False, True) == (by_load, pool.replicas.reads(POOL))


# --- By figures ----------------------------------------------------------------------------------


async def test_without_a_tokenizer_prompts_are_not_read(guessing: Pool) -> None:
    """Nothing could be done with it."""
    found = await guessing.replicas.read(POOL, prompt(LONG), shared=False)
    assert (False, None) == (guessing.replicas.reads(POOL), found)


async def test_without_a_tokenizer_a_clearing_counts(guessing: Pool) -> None:
    """Of that replica alone."""
    await guessing.send(LONG, ONE)
    await guessing.send(LONG, OTHER)
    guessing.one.publish(AllBlocksCleared())
    await guessing.heard(1)
    found = await guessing.held(LONG)
    assert (0, True) == (found[0], found[1] > 90)


async def test_who_takes_in_more_than_was_sent_keeps_the_less_of_it(guessing: Pool) -> None:
    """Half of what it holds is from elsewhere."""
    room = 64 * 64
    guessing.replicas.said(ONE, Said(0, 0, 0.0, room_tokens=room))
    for number in range(8):
        text = f"{number}" * 1_024
        await guessing.send(text, ONE)
        guessing.one.publish(stored([number] * 1_024), stored([100 + number] * 64))
        await guessing.heard(number + 1)
    newest = (await guessing.held("7" * 1_024))[0]
    oldest = (await guessing.held("0" * 1_024))[0]
    guessing.replicas.said(ONE, Said(0, 0, 0.0, room_tokens=room))  # on its page, all of it is room
    assert (100, 0, 100) == (newest, oldest, (await guessing.held("7" * 1_024))[0])


async def test_who_takes_in_what_was_sent_keeps_all_of_it(guessing: Pool) -> None:
    """Nothing pushes it out."""
    guessing.replicas.said(ONE, Said(0, 0, 0.0, room_tokens=64 * 64))
    for number in range(8):
        await guessing.send(f"{number}" * 1_024, ONE)
        guessing.one.publish(stored([number] * 256))
    await guessing.heard(8)
    assert [100, 0] == await guessing.held("0" * 1_024)
