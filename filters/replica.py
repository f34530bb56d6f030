"""What is known of one model replica: what it says, what it was sent, and whether it answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from filters.block_book import Chain

STALE_S: Final = 2.0
"""What a replica said longer ago than this says nothing of how it is."""
RECENT_S: Final = 30.0
"""Work sent so long ago counts for a third of the same work just sent."""
LATE_S: Final = 1.2
"""A first token may come so late whatever was expected, before its replica is avoided."""
SUSPECT_S: Final = 3.0
"""Likewise for an answer that comes in one piece, before its replica is asked whether it is well:
such an answer may well take that long."""
LATE_TIMES: Final = 3.0
"""Later than so many times the expected time is late: a prompt of seconds is guessed badly too."""
_MIX: Final = 0x9E37_79B9_7F4A_7C15  # 2^64 over the golden ratio: all bits of a factor spread


@dataclass(frozen=True, slots=True)
class Signals:
    """What a replica says of itself."""

    at_s: float
    """When it said so, on the picker's clock."""
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    """What part of the memory for keys and values is in use, 0 to 1."""
    gpu_usage: float | None = None
    """What part of its time the GPU works, 0 to 1, where that is told."""


@dataclass(slots=True, eq=False)
class Ask:
    """A prompt that wants a replica."""

    names: Sequence[int]
    """Of its whole blocks."""
    ends: Sequence[int]
    """In tokens, of those."""
    sizes: Sequence[int]
    tokens: int
    """Of the whole prompt."""
    watched: bool = True
    """Its first token will be seen when it comes. Without, it says nothing of a replica's speed."""
    place: int = 0
    """A number of its beginning, the same in every process; 0 where there is none."""
    hope: float = 0.0
    """What part of it its home holds, on the average, though nobody here sent it there."""
    another_s: float = 0.0
    """What another prompt takes a replica, on the average."""
    chain: Chain | None = None
    """The prompt in the model's own tokens, where replicas say which of them they hold."""


@dataclass(slots=True, eq=False)
class Pick:
    """A request at a replica, until it ends."""

    number: int
    replica: Replica
    ask: Ask
    at_s: float
    held: int
    """Tokens of the prompt that the replica should have in its cache."""
    prefill_s: float
    """What the rest should take."""
    expected_s: float
    """To its first token."""
    queue: int = 0
    """How many requests the replica had when this one was sent."""
    losses: int = 0
    """How often it had thrown something away by then."""
    best: Sequence[tuple[float, int, Replica]] = ()
    """The weight of the few best, the tokens that they held, and who they are; best first."""
    strategy: str = ""
    """Who weighed, and whether the choice was another one: `least_load`, `expected, exploring`."""
    started: bool = False
    started_s: float = 0.0
    """When its first token came, or that of one behind it."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where to send the request: there, or else there."""
        chosen = self.replica
        others = (one.address for _, _, one in self.best if one is not chosen)
        return (chosen.address, *list(others)[:1])

    @property
    def why(self) -> str:
        """What decided, in a few words."""
        seen = ", ".join(f"{one.address} {weight:.4g} ({held})" for weight, held, one in self.best)
        return f"{self.strategy}: {seen}"


@dataclass(slots=True, eq=False)
class Replica:
    """What is known of one replica."""

    number: int
    """Its bit in the sets of the prefix index."""
    address: str
    key: int = 0
    """A number of its address, the same in every process."""
    signals: Signals | None = None
    said_s: float = 0.0
    """Since when it has been saying the same."""
    others_waiting: int = 0
    """Requests that wait there and are none of ours: other gateways share the replica."""
    others_running: int = 0
    most: int | None = None
    """How many it should have while another one has room, where work waits for the pool."""
    picks: dict[int, Pick] = field(default_factory=dict)
    """Requests sent there that have not ended, by number, in the order they were sent."""
    unstarted: dict[int, Pick] = field(default_factory=dict)
    """Those of them without a first token yet."""
    owed_s: float = 0.0
    """Seconds of prefill that it owed at `owed_at_s` to requests sent there."""
    owed_at_s: float = 0.0
    tokens: int = 0
    """Tokens of the prompts sent there that have not ended."""
    worked_s: float = 0.0
    """Seconds of prefill sent there of late, and of answers written: it fades."""
    worked_at_s: float = 0.0
    moved_s: float = 0.0
    """When a request was last sent there or ended there."""
    started_s: float = -math.inf
    """When something last started there."""
    avoided_s: float | None = None
    """Since when it is avoided: it was late, or refused a connection."""
    refusals: int = 0
    """Requests in a row to which it said that it cannot serve."""
    probe: Pick | None = None
    """The request sent there, though it is avoided, to see whether it starts."""
    busy_s: float = 0.0
    """When the prefills that are under way began, for what is learned of their cost."""
    done: list[Pick] = field(default_factory=list)
    """Those of them that are through."""

    def fresh(self, now_s: float) -> Signals | None:
        """Return what it said if that is recent enough, and not the same for ever.

        Figures that stood still while requests came and went are those of a stuck exporter.
        """
        signals = self.signals
        if signals is None or now_s - signals.at_s > STALE_S:
            return None
        return None if self.moved_s - self.said_s > STALE_S else signals

    def hear(self, signals: Signals) -> None:
        """Take what it said, and reckon from it what others sent there."""
        before = self.signals
        if before is None or (before.waiting, before.running, before.kv_usage) != (
            signals.waiting,
            signals.running,
            signals.kv_usage,
        ):
            self.said_s = signals.at_s
        others = max(0, signals.waiting + signals.running - len(self.picks))
        self.others_waiting = min(others, max(0, signals.waiting - len(self.unstarted)))
        self.others_running = others - self.others_waiting
        self.signals = signals

    def queue(self, now_s: float) -> int:
        """Return how many requests wait or run there: ours, and those of others it spoke of."""
        others = self.others_waiting + self.others_running
        return len(self.picks) + (others if others and self.fresh(now_s) else 0)

    def has_room(self, now_s: float) -> bool:
        """Tell whether it has less than it should have at the most."""
        return self.most is None or self.queue(now_s) < self.most

    def owed(self, now_s: float) -> float:
        """Return the seconds of prefill that it owes now: it works them off meanwhile."""
        return max(0.0, self.owed_s - (now_s - self.owed_at_s))

    def worked(self, now_s: float) -> float:
        """Return the share of its time that it worked of late, about."""
        return self.worked_s * math.exp((self.worked_at_s - now_s) / RECENT_S) / RECENT_S

    def add_work(self, seconds: float, now_s: float) -> None:
        """Count so much work, sent there now or done by now."""
        self.worked_s = self.worked(now_s) * RECENT_S + seconds
        self.worked_at_s = now_s

    def is_late(self, now_s: float) -> bool:
        """Tell whether a first token should have come, while nothing started since it was asked."""
        return self._is_overdue(self.unstarted.values(), now_s, watched=True)

    def is_suspect(self, now_s: float) -> bool:
        """Tell whether nothing came for long of an answer whose first token nobody sees."""
        return self._is_overdue(self.unstarted.values(), now_s, watched=False)

    def looks_avoided(self, now_s: float) -> bool:
        """Tell whether it is avoided, or so late that it is to be.

        Changes nothing and walks a copy: metrics ask in another thread.
        """
        if self.avoided_s is not None:
            return True
        return self._is_overdue(tuple(self.unstarted.values()), now_s, watched=True)

    def _is_overdue(self, picks: Iterable[Pick], now_s: float, *, watched: bool) -> bool:
        for pick in picks:
            if pick.ask.watched is watched:
                least_s = LATE_S if watched else SUSPECT_S
                since_s = max(pick.at_s, self.started_s)
                return now_s - since_s > max(least_s, LATE_TIMES * pick.expected_s)
        return False


@lru_cache(1_024)
def home_of(place: int, keys: tuple[int, ...]) -> int:
    """Return which of the replicas with these keys is a beginning's home, for every gateway.

    Where replicas come or go, only their own share of beginnings changes homes (rendezvous
    hashing). Prompts that begin alike come again and again.
    """
    pulls = [(place ^ key) * _MIX >> 32 & 0xFFFF_FFFF for key in keys]
    return pulls.index(max(pulls))
