"""Choose the replica of a pool that will start answering soonest.

One `Picker` for each pool. It knows what it sent where, what the replicas say of themselves, and
which beginnings of prompts each should have in its cache; the strategies only weigh that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from filters.prefill_cost import PrefillCost
from filters.prefix_index import PrefixIndex

STALE_S: Final = 2.0
"""What a replica said longer ago than this says nothing of how it is."""

RECENT_S: Final = 90.0
"""Work sent so long ago counts for a third of the same work just sent."""
EXPLORE_S: Final = 0.02
"""More prefill than that is too much to pay for a look at another replica."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a replica says of itself."""

    at_s: float
    """When it said so, on the picker's clock."""
    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    """What part of the memory for keys and values is in use, 0 to 1."""


@dataclass(slots=True)
class Replica:
    """What is known of one replica."""

    number: int
    """Its bit in the sets of the prefix index."""
    address: str
    signals: Signals | None = None
    picks: dict[int, Pick] = field(default_factory=dict)
    """Requests sent there that have not ended, by number, in the order they were sent."""
    owed_s: float = 0.0
    """Seconds of prefill that it owed at `owed_at_s` to requests sent there."""
    owed_at_s: float = 0.0
    tokens: int = 0
    """Tokens of the prompts sent there that have not ended."""
    worked_s: float = 0.0
    """Seconds of prefill sent there of late: it fades."""
    worked_at_s: float = 0.0

    def fresh(self, now_s: float) -> Signals | None:
        """Return what it said if that is recent enough."""
        signals = self.signals
        return signals if signals is not None and now_s - signals.at_s <= STALE_S else None

    def queue(self, now_s: float) -> int:
        """Return how many requests wait or run there: ours since it spoke, and all it spoke of."""
        signals = self.fresh(now_s)
        if signals is None:
            return len(self.picks)
        return max(len(self.picks), signals.waiting + signals.running)

    def owed(self, now_s: float) -> float:
        """Return the seconds of prefill that it owes now: it works them off meanwhile."""
        return max(0.0, self.owed_s - (now_s - self.owed_at_s))

    def worked(self, now_s: float) -> float:
        """Return the share of its time that it worked on prompts of late, about."""
        return self.worked_s * math.exp((self.worked_at_s - now_s) / RECENT_S) / RECENT_S


@dataclass(slots=True)
class Ask:
    """A prompt that wants a replica."""

    names: Sequence[int]
    """Of its whole blocks."""
    ends: Sequence[int]
    """In tokens, of those."""
    sizes: Sequence[int]
    tokens: int
    """Of the whole prompt."""


@dataclass(slots=True)
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
    started: bool = False


class Strategy(Protocol):
    """Weighs the replicas of a pool for one prompt; the least weight is picked."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """Return a weight for each of `replicas`, which hold so many tokens of the prompt."""


class Expected:
    """The least expected time to the first token: owed work, own work, and the answers between."""

    def __init__(self, cost: PrefillCost, own_weight: float = 2.0, balance_s: float = 12.0) -> None:
        self._cost: Final = cost
        self.own_weight = own_weight
        """A prefill done twice also takes room in two caches: it weighs more than waiting does."""
        self.balance_s = balance_s
        """What a replica that only works on prompts is worse than an idle one, in seconds: what is
        asked today comes back tomorrow, so new prefixes and copies go where the least is done."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        cost, weight = self._cost, self.own_weight
        seconds = {have: cost.seconds(have, ask.tokens) for have in set(held)}
        share = cost.decode_s
        return [
            replica.owed(now_s)
            + weight * seconds[have]
            + share * replica.queue(now_s)
            + self.balance_s * replica.worked(now_s)
            for replica, have in zip(replicas, held, strict=True)
        ]


class Blend:
    """The weighted sum of prefix, queue and memory that llm-d began with, 3 : 3 : 2 by default."""

    def __init__(self, prefix: float = 3, queue: float = 3, kv: float = 2) -> None:
        self.prefix, self.queue, self.kv = prefix, queue, kv

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        queues = [replica.queue(now_s) for replica in replicas]
        least, most = min(queues), max(queues)
        spread = most - least or 1
        weights: list[float] = []
        for replica, have, queue in zip(replicas, held, queues, strict=True):
            signals = replica.fresh(now_s)
            usage = signals.kv_usage if signals else 0.0
            score = (
                self.prefix * have / max(1, ask.tokens)
                + self.queue * (most - queue) / spread
                + self.kv * (1 - usage)
            )
            weights.append(-score)
        return weights


class Affinity:
    """Those that hold most of the prompt, and of them the one with the least tokens to work on.

    A replica whose load costs more than the prefix saves is left for the least loaded of all.
    """

    def __init__(self, threshold: float = 0.80, most_tokens_ahead: int = 32_768) -> None:
        self.threshold = threshold
        self.most_tokens_ahead = most_tokens_ahead

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        least = min(replica.tokens for replica in replicas)
        enough = self.threshold * ask.tokens
        far = 1e12
        return [
            replica.tokens
            + (0.0 if have >= enough and replica.tokens - least <= self.most_tokens_ahead else far)
            for replica, have in zip(replicas, held, strict=True)
        ]


class LeastLoad:
    """The fewest requests waiting or running."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        return [replica.queue(now_s) for replica in replicas]


class Random:
    """Any."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        return [0.0] * len(replicas)


class RoundRobin:
    """Each in its turn."""

    def __init__(self) -> None:
        self._turn = 0

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        self._turn += 1
        count = len(replicas)
        return [(index - self._turn) % count for index in range(count)]


class Picker:
    """The replicas of one pool, and the picks among them."""

    def __init__(
        self,
        strategy: Strategy,
        cost: PrefillCost,
        *,
        explore: float = 0.02,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.strategy = strategy
        self.cost: Final = cost
        self.index: Final = PrefixIndex()
        self.replicas: Final[dict[str, Replica]] = {}
        self.explore = explore
        self._rng: Final = rng
        self._numbers = 0
        self._picks = 0

    def add(self, address: str, room_tokens: int) -> Replica:
        """Take a replica in, which holds so many tokens."""
        replica = self.replicas[address] = Replica(self._numbers, address)
        self._numbers += 1
        self.index.add(replica.number, room_tokens)
        return replica

    def pick(self, ask: Ask, now_s: float) -> Pick:
        """Choose a replica and count on it."""
        replicas = list(self.replicas.values())
        held = self._held(ask, replicas)
        weights = self.strategy.weigh(ask, replicas, held, now_s)
        best = min(weights)
        ties = [index for index, weight in enumerate(weights) if weight <= best]
        chosen = ties[int(self._rng() * len(ties))] if len(ties) > 1 else ties[0]
        if self.explore and self._rng() < self.explore:
            chosen = self._other(ask, replicas, held, chosen, now_s)
        return self._send(ask, replicas[chosen], held[chosen], now_s)

    def started(self, pick: Pick, now_s: float) -> None:
        """Say that the first token came: what was asked there before it is prefilled as well."""
        if pick.started:
            return
        pick.started = True
        replica = pick.replica
        ahead = 0.0
        for other in replica.picks.values():
            if other.number <= pick.number:
                other.started = True
            elif not other.started:
                ahead += other.prefill_s
        replica.owed_s, replica.owed_at_s = ahead, now_s

    def ended(self, pick: Pick, now_s: float, *, good: bool = True) -> None:
        """Say that the request is over."""
        replica = pick.replica
        if replica.picks.pop(pick.number, None) is None:
            return
        replica.tokens -= pick.ask.tokens
        if not pick.started:
            replica.owed_s = max(0.0, replica.owed(now_s) - pick.prefill_s)
            replica.owed_at_s = now_s
        if not good:
            kept = sum(1 for end in pick.ask.ends if end <= pick.held)
            self.index.forget(replica.number, pick.ask.names[kept:])

    def _held(self, ask: Ask, replicas: Sequence[Replica]) -> list[int]:
        """Return how many tokens of the prompt each replica should hold."""
        everyone = 0
        for replica in replicas:
            everyone |= 1 << replica.number
        tokens = [0] * len(replicas)
        for blocks, owners in self.index.match(ask.names, everyone):
            end = ask.ends[blocks - 1]
            for at, replica in enumerate(replicas):
                if owners >> replica.number & 1:
                    tokens[at] = end
        return tokens

    def _other(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], chosen: int, now_s: float
    ) -> int:
        """Return another replica, the less likely the more it has to do.

        One that would have to compute much that the chosen one holds is none of them: the copy
        would also take the place of something else in its cache.
        """
        most_s = self.cost.seconds(held[chosen], ask.tokens) + EXPLORE_S
        idle = [
            1 / (1 + replica.queue(now_s))
            if at != chosen and self.cost.seconds(held[at], ask.tokens) <= most_s
            else 0.0
            for at, replica in enumerate(replicas)
        ]
        total = sum(idle) + 1 / (1 + replicas[chosen].queue(now_s))
        point = self._rng() * total
        for at, weight in enumerate(idle):
            point -= weight
            if point < 0:
                return at
        return chosen

    def _send(self, ask: Ask, replica: Replica, held: int, now_s: float) -> Pick:
        self._picks += 1
        seconds = self.cost.seconds(held, ask.tokens)
        owed = replica.owed(now_s)
        expected_s = owed + seconds + self.cost.decode_s * replica.queue(now_s)
        pick = Pick(self._picks, replica, ask, now_s, held, seconds, expected_s)
        replica.owed_s, replica.owed_at_s = owed + seconds, now_s
        replica.worked_s = replica.worked(now_s) * RECENT_S + seconds
        replica.worked_at_s = now_s
        replica.picks[pick.number] = pick
        replica.tokens += ask.tokens
        self.index.record(replica.number, ask.names, ask.sizes)
        return pick
