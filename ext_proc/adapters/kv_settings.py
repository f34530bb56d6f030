"""Say where replicas tell what their prefix caches hold, and in numbers what they told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ext_proc.adapters.membership import address_of
from filters.block_book import Chain

READ_S: Final = 0.05
"""A prompt that takes longer to be cut into tokens is sent without: where it was sent before is
known in any case."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica says it."""

    events: str
    """Such as `tcp://10.0.0.1:5557`."""
    replay: str = ""
    """Where what was missed is asked for; empty: nowhere."""
    topic: str = ""


@dataclass(frozen=True, slots=True)
class EventSettings:
    """Where the replicas of a pool say what they hold."""

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
        replay = f"tcp://{address_of(host, own + self.replay_port)}" if self.replay_port else ""
        return Place(f"tcp://{address_of(host, own + self.port)}", replay, self.topic)


@dataclass(slots=True)
class Heard:
    """What came in, in numbers."""

    batches: int = 0
    malformed: int = 0
    lost: int = 0
    """Batches that were missed for good."""
    replayed: int = 0
    restarts: int = 0
    behind: int = 0
    """Looks that ended before everything was read."""
    stored: int = 0
    """Blocks."""
    removed: int = 0
    cleared: int = 0
    """Times that everything was thrown away."""
    ignored: int = 0
    """Events that do not count."""


@dataclass(frozen=True, slots=True)
class EventFigures:
    """What is known by events."""

    heard: Heard
    blocks: int
    """That replicas hold, by what they said."""
    orphans: int
    """Blocks behind one that is not known: what was said of that one was lost."""
    dropped: int
    """Blocks forgotten for want of memory."""
    lag_s: float
    """How old the last batch was when it was read, by the replica's clock."""
    book_bytes: int
    prompts: Mapping[str, int] = field(default_factory=dict)
    """How many were cut into tokens, by how that went."""


class SaidBlocks(Protocol):
    """What the replicas of a pool say of their caches, and prompts as their model reads them."""

    @property
    def reads(self) -> bool:
        """Whether prompts can be read."""

    async def read(self, body: Any, model: str, *, shared: bool) -> Chain | None:
        """See `filters.api.Replicas`."""

    def follow(self, addresses: Iterable[str]) -> None:
        """Listen to these from now on, all of them known to the picker."""

    def room(self, address: str, tokens: int) -> int:
        """Return for how much of what is sent there a replica with so much room has any."""

    def figures(self) -> EventFigures:
        """Return how it goes."""

    def close(self) -> None:
        """Listen to nobody any more, and go by what was sent alone."""
