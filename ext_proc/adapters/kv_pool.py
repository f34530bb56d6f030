"""Keep what is known of a pool's replicas true to what they say of their prefix caches.

Where the pool's tokenizer is known, every block they speak of is entered under a name that prompts
have too. Where it is not, their figures alone count: who threw everything away is forgotten, and
who takes in more than was sent from here keeps the less of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from ext_proc.adapters.kv_events import Heard, KvEvents, Place
from ext_proc.adapters.kv_wire import Batch, Cleared, Removed, Stored
from ext_proc.adapters.membership import address_of
from filters.api import Clock
from filters.block_book import BlockBook
from filters.picking import Picker

LEAST_SHARE: Final = 0.05
TURNOVER: Final = 0.25
"""What is sent from here is compared with what is taken in when so much of a cache is new."""


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Where replicas say what they hold."""

    port: int = 5_557
    replay_port: int = 0
    """0: what was missed cannot be asked for."""
    topic: str = ""
    relative: bool = False
    """The ports are added to that of the replica itself: several share a machine."""

    def place(self, address: str) -> Place:
        """Return where the replica at "ip:port" says it."""
        host, _, port = address.rpartition(":")
        own = int(port) if self.relative else 0
        host = host.strip("[]")
        replay = self.replay_port and f"tcp://{address_of(host, own + self.replay_port)}"
        events = f"tcp://{address_of(host, own + self.port)}"
        return Place(events, replay or "", self.topic)


@dataclass(slots=True)
class Said:
    """What replicas said, in numbers."""

    stored: int = 0
    """Blocks."""
    removed: int = 0
    cleared: int = 0
    """Times that everything was thrown away."""
    ignored: int = 0
    """Events that do not count."""


@dataclass(frozen=True, slots=True)
class KvFigures:
    """What is known by events, for metrics."""

    heard: Heard
    said: Said
    blocks: int
    """That replicas hold, by what they said."""
    orphans: int
    dropped: int
    lag_s: float
    """How old the last batch was when it was read, by the replica's clock."""
    book_bytes: int


@dataclass(slots=True)
class _Cache:
    """The cache of one replica, by its own figures."""

    room_tokens: int
    blocks: int = 0
    fresh_tokens: int = 0
    """Taken in since the last comparison."""
    entered_tokens: int = 0
    """What was sent from here by then, all in all."""
    share: float = 1.0
    """What part of what it takes in was sent from here."""


class PoolEvents:
    """Listens to the replicas of one pool. Needs a running event loop; `close` ends it."""

    def __init__(
        self, picker: Picker, settings: EventSettings, clock: Clock, *, by_tokens: bool
    ) -> None:
        """Listen to nobody yet."""
        self.settings: Final = settings
        self.book: Final = BlockBook() if by_tokens else None
        self._picker: Final = picker
        self._clock: Final = clock
        self._said: Final = Said()
        self._lag_s = 0.0
        self._caches: Final[dict[str, _Cache]] = {}
        self._events: Final = KvEvents(self)
        picker.listen(self.book)

    def follow(self, addresses: Iterable[str]) -> None:
        """Listen to these from now on, all of them known to the picker."""
        wanted = list(addresses)
        for address in self._caches.keys() - set(wanted):
            del self._caches[address]
        for address in wanted:
            if address not in self._caches:
                number = self._picker.replicas[address].number
                self._caches[address] = _Cache(self._picker.index.room(number))
        self._events.follow({one: self.settings.place(one) for one in wanted})

    async def close(self) -> None:
        """Listen to nobody any more, and go by what was sent alone."""
        self._picker.listen(None)
        await self._events.close()

    def room(self, address: str, tokens: int) -> int:
        """Return for how much of what is sent there a replica with so much room has any."""
        cache = self._caches.get(address)
        if cache is None:
            return tokens
        cache.room_tokens = tokens
        return tokens if self.book is not None else int(tokens * cache.share)

    def figures(self) -> KvFigures:
        """Return how it goes."""
        book = self.book
        return KvFigures(
            self._events.heard,
            self._said,
            sum(cache.blocks for cache in self._caches.values()),
            book.orphans if book is not None else 0,
            book.dropped if book is not None else 0,
            self._lag_s,
            book.size if book is not None else 0,
        )

    # --- What replicas say ------------------------------------------------------------------------

    def heard(self, address: str, batch: Batch) -> None:
        """See `kv_events.Listener`."""
        replica, cache = self._picker.replicas.get(address), self._caches.get(address)
        if replica is None or cache is None:
            return
        self._lag_s = max(0.0, self._clock.now() - batch.at_s)
        self._said.ignored += batch.ignored
        wrong: ValueError | None = None
        for event in batch.events:
            match event:
                case Stored():
                    try:
                        self._stored(replica.number, cache, event)
                    except ValueError as error:
                        wrong = error
                case Removed(hashes):
                    self._said.removed += len(hashes)
                    cache.blocks = max(0, cache.blocks - len(hashes))
                    if self.book is not None:
                        self.book.removed(replica.number, hashes)
                case Cleared():
                    self._said.cleared += 1
                    cache.blocks = 0
                    self._picker.cleared(address)
                case _:
                    assert_never(event)
        if self.book is None and cache.fresh_tokens > TURNOVER * cache.room_tokens:
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
        if self.book is not None:
            self.book.stored(
                replica,
                event.hashes,
                event.parent,
                event.ids,
                event.block_tokens,
                event.adapter,
                event.salts,
            )
        self._said.stored += count
        cache.blocks += count
        cache.fresh_tokens += count * event.block_tokens

    def _compare(self, address: str, replica: int, cache: _Cache) -> None:
        """See how much of what a replica takes in was sent from here.

        The rest, answers and what others send, pushes that out of its cache the sooner.
        """
        entered = self._picker.index.entered(replica)
        share = (entered - cache.entered_tokens) / cache.fresh_tokens
        cache.share = min(1.0, max(LEAST_SHARE, (cache.share + share) / 2))
        cache.entered_tokens, cache.fresh_tokens = entered, 0
        self._picker.add(address, int(cache.room_tokens * cache.share))
