"""Ways to weigh the replicas of a pool for one prompt; the least weight is picked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from filters.prefill_cost import PrefillCost
from filters.replica import RECENT_S, Ask, Replica, home_of

FAR: Final = 1e12
"""More than any replica's tokens: it comes behind all that hold enough of the prompt."""

ENOUGH: Final = 0.80
"""Who holds so much of a prompt is as good as who holds all of it."""

OVERWORKED: Final = 1.25
"""A replica that works so many times what all do on the average does too much."""

BALANCE: Final = 5.0
MOST_BALANCE: Final = 50.0
"""What a prompt gives up for balance is no more than so many times its prefill, and so many behind
a replica that does too much: where it goes matters for that being spared when it comes back, and a
short one would wait behind others beside a replica that rests after a long one."""


class Strategy(Protocol):
    """Weighs the replicas of a pool for one prompt; the least weight is picked."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """Return a weight for each of `replicas`, which hold so many tokens of the prompt."""


class Expected:
    """The least expected time to the first token: owed work, own work, and the answers between."""

    def __init__(
        self,
        cost: PrefillCost,
        own_weight: float = 2.0,
        balance_s: float = 12.0,
        overworked_s: float = 100.0,
    ) -> None:
        self._cost: Final = cost
        self.own_weight = own_weight
        """A prefill done twice also takes room in two caches: it weighs more than waiting does."""
        self.balance_s = balance_s
        """What a replica that never rests is worse than an idle one, in seconds: what is asked
        today comes back tomorrow, so new prefixes and copies go where the least is done."""
        self.overworked_s = overworked_s
        """The same once more, of what it works beyond `OVERWORKED` times the mean: a beginning that
        much is asked of then gets another copy, dear as that is at first."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`. What others wait for is taken to be as what waits here."""
        cost, weight = self._cost, self.own_weight
        whole_s = cost.seconds(0, ask.tokens)
        balance_s = min(self.balance_s, BALANCE * whole_s)
        overworked_s = min(self.overworked_s, MOST_BALANCE * whole_s)
        seconds = {have: cost.seconds(have, ask.tokens) for have in set(held)}
        share, another_s = cost.decode_s, ask.another_s
        # A pool may have 64 replicas, and every call of a method costs each of them 0.1 us: so what
        # `Replica.worked` and `Replica.owed` say is reckoned here.
        exp = math.exp
        worked = [
            replica.worked_s * exp((replica.worked_at_s - now_s) / RECENT_S) / RECENT_S
            if replica.worked_s
            else 0.0
            for replica in replicas
        ]
        most = OVERWORKED * sum(worked) / len(worked)
        weights: list[float] = []
        for replica, have, work in zip(replicas, held, worked, strict=True):
            weight_s = weight * seconds[have] + balance_s * work
            if (owed_s := replica.owed_s - (now_s - replica.owed_at_s)) > 0:
                weight_s += owed_s
            waiting = replica.others_waiting
            others = waiting + replica.others_running
            if others and replica.fresh(now_s) is not None:
                weight_s += share * (len(replica.picks) + others)
                weight_s += another_s * waiting
            else:
                weight_s += share * len(replica.picks)
            if work > most:
                weight_s += overworked_s * (work - most)
            weights.append(weight_s)
        if ask.hope:
            home = home_of(ask.place, tuple([replica.key for replica in replicas]))
            weights[home] -= weight * ask.hope * seconds[held[home]]
        return weights


class Blend:
    """The weighted sum of prefix, queue and memory that llm-d began with, 3 : 3 : 2 by default.

    Who holds enough of the prompt is taken to hold all of it: among those, queue and memory decide.
    """

    def __init__(self, prefix: float = 3, queue: float = 3, kv: float = 2) -> None:
        self.prefix, self.queue, self.kv = prefix, queue, kv

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        queues = [replica.queue(now_s) for replica in replicas]
        least, most = min(queues), max(queues)
        spread = most - least or 1
        enough = ENOUGH * ask.tokens
        weights: list[float] = []
        for replica, have, queue in zip(replicas, held, queues, strict=True):
            signals = replica.fresh(now_s)
            usage = signals.kv_usage if signals else 0.0
            score = (
                self.prefix * (1.0 if have >= enough else have / ask.tokens)
                + self.queue * (most - queue) / spread
                + self.kv * (1 - usage)
            )
            weights.append(-score)
        return weights


class Affinity:
    """Those that hold enough of the prompt, and of them the one with the least tokens to work on.

    One that owes more prefill than its prefix saves is left, as long as another owes less; for the
    one with the least tokens of all where all are left.
    """

    def __init__(self, cost: PrefillCost) -> None:
        self._cost: Final = cost

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        enough = ENOUGH * ask.tokens
        owed = [replica.owed(now_s) for replica in replicas]
        least_s = min(owed)
        whole_s = self._cost.seconds(0, ask.tokens)
        return [
            replica.tokens
            + (
                0.0
                if have >= enough
                and owed_s - least_s <= whole_s - self._cost.seconds(have, ask.tokens)
                else FAR
            )
            for replica, have, owed_s in zip(replicas, held, owed, strict=True)
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


STRATEGIES: Final[Mapping[str, Callable[[PrefillCost], Strategy]]] = {
    "expected": Expected,
    "blend": lambda cost: Blend(),
    "affinity": Affinity,
    "least_load": lambda cost: LeastLoad(),
    "random": lambda cost: Random(),
    "round_robin": lambda cost: RoundRobin(),
}
"""By the word in settings; the first is the one without any."""
