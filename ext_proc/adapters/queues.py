"""Have exchanges wait for a pool until its replicas can take them: a future each, and one timer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from filters.api import Clock, SentAway, Slot
from filters.fair_queue import FairQueue, Rules
from filters.live_slots import PoolSlots
from filters.queue_order import Lane, Priority, Shed, State, Ticket, Wish
from filters.replica import Replica

EVERYBODY: Final = 1 << 30
"""Slots of a pool that has no queue any more, for those who still wait."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How a pool has work wait, and how much it takes."""

    rules: Rules
    bulk_from: int = 8_192
    """Prompts of so many tokens are bulk work."""
    slots: int = 64
    """Exchanges at once, while no replica says how it is."""
    replica_slots: int = 256
    """At most at each replica."""


class QueueWatch(Protocol):
    """Who is told how long exchanges waited, and who was sent away."""

    def served(self, pool: str, wish: Wish, waited_s: float, *, named: bool) -> None:
        """Count somebody who got a slot; `named`: with a credential."""

    def shed(self, pool: str, wish: Wish, why: Shed, *, named: bool) -> None:
        """Count somebody who was sent away."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A pool with queues at one moment."""

    slots: int
    """How many it has."""
    in_use: Mapping[Lane, int]
    depth: Mapping[Lane, Mapping[Priority, int]]
    anonymous: Mapping[Lane, Mapping[Priority, int]]
    """How many of `depth` came without a credential."""


class HeldSlot:
    """A `filters.api.Slot`."""

    __slots__ = ("_pool", "_ticket")

    def __init__(self, pool: _Pool, ticket: Ticket) -> None:
        self._pool: Final = pool
        self._ticket: Final = ticket

    @property
    def waited_s(self) -> float:
        """See `filters.api.Slot`."""
        return self._ticket.served_s - self._ticket.came_s

    def begun(self) -> None:
        """See `filters.api.Slot`."""
        self._pool.begun(self._ticket)

    def release(self) -> None:
        """See `filters.api.Lease`."""
        self._pool.leave(self._ticket)


class _Pool:
    """The queue of one pool, and who is to be told."""

    def __init__(self, name: str, limits: QueueLimits, clock: Clock, watch: QueueWatch) -> None:
        self.name: Final = name
        self.limits: QueueLimits | None = limits
        """None: the pool has no queue any more, but some hold a slot of it."""
        self.live: Final = PoolSlots(limits.replica_slots)
        self.queue: Final = FairQueue(limits.rules, limits.slots)
        self._clock: Final = clock
        self._watch: Final = watch
        self._timer: asyncio.TimerHandle | None = None

    @property
    def now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    async def enter(self, wish: Wish, *, named: bool) -> Slot | SentAway:
        now_s = self.now_s
        ticket, displaced = self.queue.enter(wish, now_s)
        if displaced is not None:
            self._wake(displaced)
        if ticket.state is State.WAITING:
            told = ticket.told = asyncio.get_running_loop().create_future()
            self._set_timer(now_s)
            try:
                await told
            except BaseException:  # it left, or was given a slot that it does not live to see
                self.leave(ticket)
                raise
        if ticket.state is State.SERVED:
            self._watch.served(self.name, wish, ticket.served_s - ticket.came_s, named=named)
            return HeldSlot(self, ticket)
        why = ticket.why or Shed.LATE
        self._watch.shed(self.name, wish, why, named=named)
        return SentAway(why, self.queue.retry_s(wish, why, self.now_s))

    def leave(self, ticket: Ticket) -> None:
        """Take a place or a slot back, once."""
        if ticket.state is State.OVER:
            return
        now_s = self.now_s
        self.queue.leave(ticket, now_s)
        if self.queue.waiting:
            self.serve(now_s)

    def begun(self, ticket: Ticket) -> None:
        """Know that an answer has begun: another prompt may be read."""
        now_s = self.now_s
        self.queue.begun(ticket, now_s)
        if self.queue.waiting and ticket.wish.lane is Lane.BULK:
            self.serve(now_s)

    def serve(self, now_s: float) -> None:
        """Give slots to all who may have one, and send those away whose wait is over."""
        for late in self.queue.late(now_s):
            self._wake(late)
        while (ticket := self.queue.next(now_s)) is not None:
            self._wake(ticket)
        self._set_timer(now_s)

    def weigh(self, replicas: Mapping[str, Replica]) -> None:
        """Have as many slots as the replicas can take, where they say how they are."""
        if self.limits is None:
            self.queue.capacity, self.queue.replicas = EVERYBODY, 0
            for replica in replicas.values():
                replica.most = None
            return
        slots = self.live.ours(replicas)
        self.queue.capacity = self.limits.slots if slots is None else slots
        self.queue.replicas = 0 if slots is None else len(replicas)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, ticket: Ticket) -> None:
        told: asyncio.Future[None] = ticket.told
        if not told.done():
            told.set_result(None)

    def _set_timer(self, now_s: float) -> None:
        self.close()
        due_s = self.queue.due_s(now_s)
        if due_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due_s - now_s), self._due)

    def _due(self) -> None:
        self._timer = None
        self.serve(self.now_s)


class PoolQueues:
    """A `filters.api.Queues`. `close` lets nobody be woken any more."""

    def __init__(
        self,
        clock: Clock,
        watch: QueueWatch,
        replicas_of: Callable[[str], Mapping[str, Replica]] = lambda pool: {},
        *,
        nobody: str = "",
    ) -> None:
        """Have no queue yet; `nobody` is the tenant of all who come without a credential."""
        self._clock: Final = clock
        self._watch: Final = watch
        self._replicas_of: Final = replicas_of
        self._nobody: Final = nobody
        self._pools: Final[dict[str, _Pool]] = {}

    def follow(self, limits: Mapping[str, QueueLimits]) -> None:
        """Go by these limits, by the names of pools; who has a slot keeps it."""
        for name, how in limits.items():
            pool = self._pools.get(name)
            if pool is None:
                pool = self._pools[name] = _Pool(name, how, self._clock, self._watch)
            pool.limits, pool.queue.rules = how, how.rules
            pool.live.bound(how.replica_slots)
        for name, pool in tuple(self._pools.items()):
            if name not in limits:
                pool.limits = None
                if not pool.queue.in_use and not pool.queue.waiting:
                    del self._pools[name]
            pool.weigh(self._replicas_of(name))
            if pool.queue.waiting:
                pool.serve(pool.now_s)

    def close(self) -> None:
        """Stop all timers."""
        for pool in self._pools.values():
            pool.close()

    def bulk_from(self, pool: str) -> int | None:
        """See `filters.api.Queues`."""
        known = self._pools.get(pool)
        return known.limits.bulk_from if known is not None and known.limits is not None else None

    async def enter(self, pool: str, wish: Wish) -> Slot | SentAway:
        """See `filters.api.Queues`."""
        return await self._pools[pool].enter(wish, named=wish.tenant != self._nobody)

    def said(self, name: str, address: str) -> None:
        """Hear that a replica of a pool spoke, or cannot be reached."""
        pool = self._pools.get(name)
        if pool is None or pool.limits is None:
            return
        replicas = self._replicas_of(name)
        replica = replicas.get(address)
        if replica is not None:
            pool.live.heard(address, replica)
        pool.weigh(replicas)
        if pool.queue.waiting:
            pool.serve(pool.now_s)

    def figures(self) -> dict[str, Figures]:
        """Return how the pools are that have queues."""
        return {
            name: Figures(
                pool.queue.capacity,
                {lane: pool.queue.slots_of(lane) for lane in Lane},
                {lane: pool.queue.depth(lane) for lane in Lane},
                {lane: pool.queue.depth_of(self._nobody, lane) for lane in Lane},
            )
            for name, pool in tuple(self._pools.items())
            if pool.limits is not None
        }
