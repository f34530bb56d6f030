"""Keep what is known of a pool's replicas true to what they say of their prefix caches.

Where the pool's tokenizer is known, every block they speak of is entered under a name that prompts
have too. Where it is not, their figures alone count: who threw everything away is forgotten, and
who takes in more than was sent from here keeps the less of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

from ext_proc.adapters.kv_events import KvEvents
from ext_proc.adapters.kv_settings import READ_S, EventFigures, EventSettings
from ext_proc.adapters.kv_wire import Batch, Cleared, Removed, Stored
from filters.api import Clock
from filters.block_book import BlockBook, Chain
from filters.errors import PortError
from filters.picking import Picker

if TYPE_CHECKING:
    from ext_proc.adapters.prompt_tokens import PromptReader

LEAST_SHARE: Final = 0.05
TURNOVER: Final = 0.25
"""What is sent from here is compared with what is taken in when so much of a cache is new."""
KEPT: Final = 0.9
"""What a comparison is worth at the next one: some ten count, in which a cache is new twice."""


class Log(Protocol):
    """Where it is said that prompts cannot be read."""

    def warning(self, event: str, **fields: object) -> object:
        """Write a line."""


@dataclass(slots=True)
class _Cache:
    """The cache of one replica, by its own figures."""

    room_tokens: int
    blocks: int = 0
    fresh_tokens: int = 0
    """Taken in since the last comparison."""
    entered_tokens: int = 0
    """What was sent from here by then, all in all."""
    taken: float = 1.0
    """What was taken in of late, and what of that was sent from here: in caches."""
    sent: float = 1.0
    share: float = 1.0


class PoolEvents:
    """Listens to the replicas of one pool. Needs a running event loop; `close` ends it."""

    def __init__(
        self,
        name: str,
        picker: Picker,
        settings: EventSettings,
        tokenizer: str,
        clock: Clock,
        log: Log,
        *,
        read_s: float = READ_S,
    ) -> None:
        """Listen to nobody yet. `tokenizer` is a folder, empty where there is none."""
        self._name: Final = name
        self._picker: Final = picker
        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = log
        self._read_s: Final = read_s
        self._lag_s = 0.0
        self._caches: Final[dict[str, _Cache]] = {}
        self._events: Final = KvEvents(self)
        self._book = BlockBook() if tokenizer else None
        self._reader: PromptReader | None = None
        picker.listen(self._book)
        self._loading = asyncio.create_task(self._load(Path(tokenizer))) if tokenizer else None

    @property
    def reads(self) -> bool:
        """See `SaidBlocks`."""
        return self._reader is not None

    async def read(self, body: Any, model: str, *, shared: bool) -> Chain | None:
        """See `SaidBlocks`."""
        if self._reader is None or self._book is None or not self._book.block_tokens:
            return None
        ids = await self._reader.read(body)
        return None if ids is None else self._book.chain(ids, model, shared=shared)

    def follow(self, addresses: Iterable[str]) -> None:
        """See `SaidBlocks`."""
        wanted = list(addresses)
        for address in self._caches.keys() - set(wanted):
            del self._caches[address]
        for address in wanted:
            if address not in self._caches:
                number = self._picker.replicas[address].number
                self._caches[address] = _Cache(self._picker.index.room(number))
        self._events.follow({one: self._settings.place(one) for one in wanted})

    def close(self) -> None:
        """See `SaidBlocks`."""
        if self._loading is not None:
            self._loading.cancel()
        if self._reader is not None:
            self._reader.close()
        self._events.close()
        self._picker.listen(None)

    def room(self, address: str, tokens: int) -> int:
        """See `SaidBlocks`."""
        cache = self._caches.get(address)
        if cache is None:
            return tokens
        cache.room_tokens = tokens
        return tokens if self._book is not None else int(tokens * cache.share)

    def figures(self) -> EventFigures:
        """See `SaidBlocks`."""
        book, reader = self._book, self._reader
        return EventFigures(
            self._events.heard,
            sum(cache.blocks for cache in tuple(self._caches.values())),
            book.orphans if book is not None else 0,
            book.dropped if book is not None else 0,
            self._lag_s,
            book.size if book is not None else 0,
            asdict(reader.read_so_far) if reader is not None else {},
        )

    async def _load(self, folder: Path) -> None:
        """Read the tokenizer in a thread: it may take a second."""
        from ext_proc.adapters.prompt_tokens import PromptReader, TokenCutter

        try:
            cutter = await asyncio.to_thread(TokenCutter, folder)
        except PortError as error:
            self._log.warning("tokenizer_unreadable", pool=self._name, why=str(error))
            self._book = None  # what was said under names that no prompt will have is of no use
            self._picker.listen(None)
        else:
            self._reader = PromptReader(cutter, self._read_s)

    # --- What replicas say ------------------------------------------------------------------------

    def heard(self, address: str, batch: Batch) -> None:
        """See `kv_events.Listener`."""
        replica, cache = self._picker.replicas.get(address), self._caches.get(address)
        if replica is None or cache is None:
            return
        said = self._events.heard
        self._lag_s = max(0.0, self._clock.now() - batch.at_s)
        said.ignored += batch.ignored
        wrong: ValueError | None = None
        for event in batch.events:
            match event:
                case Stored():
                    try:
                        self._stored(replica.number, cache, event)
                    except ValueError as error:
                        wrong = error
                case Removed(hashes):
                    said.removed += len(hashes)
                    cache.blocks = max(0, cache.blocks - len(hashes))
                    if self._book is not None:
                        self._book.removed(replica.number, hashes)
                case Cleared():
                    said.cleared += 1
                    cache.blocks = 0
                    self._picker.cleared(address)
                case _:
                    assert_never(event)
        if self._book is None and cache.fresh_tokens > TURNOVER * cache.room_tokens:
            self._compare(address, replica.number, cache)
        if wrong is not None:
            raise wrong

    def began(self, address: str) -> None:
        """See `kv_events.Listener`."""
        if (cache := self._caches.get(address)) is not None:
            cache.blocks = 0
        self._picker.restarted(address)

    def _stored(self, replica: int, cache: _Cache, event: Stored) -> None:
        count = len(event.hashes)
        if self._book is not None:
            self._book.stored(
                replica,
                event.hashes,
                event.parent,
                event.ids,
                event.block_tokens,
                event.adapter,
                event.salts,
            )
        self._events.heard.stored += count
        cache.blocks += count
        cache.fresh_tokens += count * event.block_tokens

    def _compare(self, address: str, replica: int, cache: _Cache) -> None:
        """See how much of what a replica takes in was sent from here.

        The rest, answers and what others send, pushes that out of its cache the sooner.
        """
        entered = self._picker.index.entered(replica)
        cache.taken = KEPT * cache.taken + cache.fresh_tokens / cache.room_tokens
        cache.sent = KEPT * cache.sent + (entered - cache.entered_tokens) / cache.room_tokens
        cache.share = min(1.0, max(LEAST_SHARE, cache.sent / cache.taken))
        cache.entered_tokens, cache.fresh_tokens = entered, 0
        self._picker.add(address, int(cache.room_tokens * cache.share))
