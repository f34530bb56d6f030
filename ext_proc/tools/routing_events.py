"""Replay a load with replicas that say what they hold, before one gateway or several.

Several gateways do not know what the others sent where, and each takes all of a replica's cache
for its own: what they know of it by what they sent alone is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from ext_proc.tools.replica_model import BLOCK_TOKENS, Engine, Work
from ext_proc.tools.routing_loads import Load, Session
from ext_proc.tools.routing_run import EXPLORE, SLOWER, Asked, Run
from filters.block_book import BlockBook, ids_of
from filters.picking import Picker
from filters.prefill_cost import PrefillCost
from filters.replica import Ask
from filters.strategies import Expected

EXPECTED: Final = "expected"
WITH_EVENTS: Final = "expected+events"


class EventRun(Run):
    """A run of `expected` in which requests come through several gateways by turns."""

    def __init__(
        self,
        load: Load,
        replicas: int,
        *,
        gateways: int = 1,
        events: bool = True,
        shared: bool = True,
        seed: int = 1,
    ) -> None:
        """Make a run; without `events`, replicas do not say what they hold.

        Without `shared`, a prompt is held only where its own gateway sent it.
        """
        super().__init__(load, EXPECTED, replicas, seed=seed)
        self._name = WITH_EVENTS if events else EXPECTED
        self._shared: Final = shared
        self._books: Final = [BlockBook() for _ in range(gateways)] if events else []
        self._pickers: Final[list[Picker]] = []
        self._by: Final[dict[int, Picker]] = {}
        """Which picker sent a request, by the `id` of its pick."""
        hardware = load.hardware
        for number in range(gateways):
            cost = PrefillCost(hardware.prefill_s * SLOWER, hardware.prefill_doubles / SLOWER)
            picker = Picker(
                Expected(cost),
                cost,
                explore=EXPLORE,
                rng=random.Random(seed + 1 + number).random,  # noqa: S311 - repeatable
            )
            for address in self._addresses:
                picker.add(address, hardware.cache_tokens)
            if events:
                picker.listen(self._books[number])
            self._pickers.append(picker)
        if events:
            self.engines[:] = [
                Engine(hardware, Teller(self._books, number)) for number in range(replicas)
            ]

    def beliefs(self, gateway: int) -> Iterator[tuple[int, int]]:
        """Return how much of each answered prompt its replica holds, as a gateway thinks and truly.

        In tokens.
        """
        picker = self._pickers[gateway]
        for asked in self.answered.values():
            work = asked.work
            ask = self._wish(work.chain, work.prompt_tokens)
            number = picker.replicas[self._addresses[asked.at]].number
            if picker.book is not None and ask.chain is not None:
                found = picker.book.held(ask.chain, 1 << number)
            else:
                match = picker.index.match(ask.names, 1 << number)
                found = [(ask.ends[blocks - 1], owners) for blocks, owners in match]
            true = self.engines[asked.at].cache.held(work.chain) * BLOCK_TOKENS
            yield found[0][0] if found else 0, true

    def _ask(self, now_s: float, session: Session) -> None:
        self.picker = self._pickers[len(self.answered) % len(self._pickers)]
        super()._ask(now_s, session)

    def _arrive(self, now_s: float, asked: Asked) -> None:
        self._by[id(asked.pick)] = self.picker
        super()._arrive(now_s, asked)

    def _started(self, now_s: float, asked: Asked) -> None:
        self.picker = self._by[id(asked.pick)]
        super()._started(now_s, asked)

    def _finish(self, now_s: float, asked: Asked) -> None:
        self.picker = self._by.pop(id(asked.pick))
        super()._finish(now_s, asked)

    def _scrape(self, now_s: float, at: int) -> None:
        last_s = self._scraped_s[at]
        super()._scrape(now_s, at)
        if self._scraped_s[at] != last_s:
            for picker in self._pickers:
                if picker is not self.picker:
                    picker.heard(self._addresses[at], self._signals(now_s, at))

    def _wish(self, chain: Sequence[int], prompt: int) -> Ask:
        ask = super()._wish(chain, prompt)
        if self.picker.book is not None:
            ids = ids_in(chain[: prompt // BLOCK_TOKENS])
            ask.chain = self.picker.book.chain(ids, shared=self._shared)
        return ask


class Teller:
    """A `BlockWatch` that enters at once, in every gateway's book, what a replica says."""

    def __init__(self, books: Sequence[BlockBook], replica: int) -> None:
        self._books: Final = books
        self._replica: Final = replica

    def stored(self, work: Work, first: int, end: int) -> None:
        """See `BlockWatch`."""
        hashes = work.chain[first:end]
        parent = work.chain[first - 1] if first else None
        ids = ids_in(hashes)
        for book in self._books:
            book.stored(self._replica, hashes, parent, ids, BLOCK_TOKENS)

    def removed(self, blocks: Sequence[int]) -> None:
        """See `BlockWatch`."""
        for book in self._books:
            book.removed(self._replica, blocks)

    def cleared(self) -> None:
        """See `BlockWatch`."""
        for book in self._books:
            book.clear(self._replica)


def ids_in(blocks: Sequence[int]) -> bytes:
    """Return tokens for blocks that have none: the same for the same block."""
    halves = (
        half
        for block in blocks
        for half in (block & 0xFFFF_FFFF, block >> 32 & 0xFFFF_FFFF) * (BLOCK_TOKENS // 2)
    )
    return ids_of(halves)
