"""Share a pool's slots among short and long prompts, so that neither waits for the other for long.

Two queues, served by their weights: of the time that slots are held while fast work waits, each
gets its part. What is long holds a slot for long and cannot be stopped, so that the bulk queue has
more slots at once than its part only where nobody fast waits, and of what fast work did not need
of late; one is left even when none came. The same goes for replicas: until its answer begins, a
long prompt takes all of one, and what comes there behind it waits. Time is given from outside:
nothing here waits.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

from filters.need import Need
from filters.queue_order import Lane, Priority, Shed, State, Ticket, Waiting, Wish, ends_of

RETRY_S: Final = 5.0
"""When to ask again, where it is not known how fast a queue drains."""
MOST_RETRY_S: Final = 120.0
LOOK_S: Final = 0.5
"""How often it is looked whether fast work needs less than it did, while bulk work waits for it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a pool's slots are shared."""

    length: int = 200
    """Requests that may wait in each queue."""
    share: float = 0.5
    """The part of these that one tenant may have."""
    fast: int = 90
    bulk: int = 10
    slice_s: float = 0.5
    """The bulk queue is served no more often than this while somebody waits in the fast one."""

    @property
    def bulk_part(self) -> float:
        """The part of the slots that is the bulk queue's."""
        return self.bulk / (self.fast + self.bulk)

    @property
    def tenant_places(self) -> int:
        """How many of one tenant may wait in each queue."""
        return max(1, int(self.length * self.share))


class _Queue:
    """One of the two, with the slots that it was given."""

    __slots__ = ("in_use", "seen_s", "served_s", "unbegun", "used_s", "waiting")

    def __init__(self) -> None:
        self.waiting: Final = Waiting()
        self.in_use = 0
        self.unbegun = 0
        """How many of those that hold a slot have no answer yet, as far as is known."""
        self.used_s = 0.0
        """Seconds that its slots were held since somebody waits in the fast queue."""
        self.served_s = -math.inf
        """When it was last given a slot."""
        self.seen_s = -math.inf
        """When somebody last came or gave a slot back."""


class FairQueue:
    """The way into one pool. `capacity` may be changed at any time; who holds a slot keeps it."""

    def __init__(self, rules: Rules, capacity: int) -> None:
        self.rules = rules
        self.capacity = capacity
        self.replicas = 0
        """How many the pool consists of; 0: it is not known. May be changed at any time as well."""
        self._numbers: Final = itertools.count()
        self._fast: Final = _Queue()
        self._bulk: Final = _Queue()
        self._need: Final = Need()
        """Of fast work."""
        self._at_s = -math.inf
        self._ends: Final[list[Ticket]] = []
        """Who waits, by when the wait ends."""

    @property
    def in_use(self) -> int:
        """How many slots are held."""
        return self._fast.in_use + self._bulk.in_use

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._ends)

    @property
    def bulk_slots(self) -> int:
        """How many slots the bulk queue may have whatever fast work needs."""
        return max(1, math.ceil(self.capacity * self.rules.bulk_part))

    @property
    def bulk_replicas(self) -> int:
        """At how many replicas it may have prompts read at once, whatever fast work needs."""
        return max(1, math.ceil(self.replicas * self.rules.bulk_part))

    def slots_of(self, lane: Lane) -> int:
        """Return how many slots a queue holds."""
        return self._of(lane).in_use

    def depth(self, lane: Lane) -> dict[Priority, int]:
        """Return how many of each class wait in a queue."""
        return self._of(lane).waiting.counts()

    def depth_of(self, tenant: str, lane: Lane) -> dict[Priority, int]:
        """Return how many of one tenant's do."""
        return self._of(lane).waiting.counts_of(tenant)

    def enter(self, wish: Wish, now_s: float) -> tuple[Ticket, Ticket | None]:
        """Take somebody in, who is served at once, waits, or is sent away as the ticket says.

        With it comes the ticket of another one who had to leave for that.
        """
        self._pass(now_s)
        queue = self._of(wish.lane)
        queue.seen_s = now_s
        ticket = Ticket(wish, next(self._numbers), now_s)
        if self._is_free(queue, now_s):
            self._serve(queue, ticket, now_s)
            return ticket, None
        displaced = None
        full, why = self._is_full(queue, wish)
        if full:
            displaced = queue.waiting.lesser(wish, self.rules.length, own=why is Shed.SHARE)
        if wish.wait_s <= 0 or (full and displaced is None):
            ticket.state, ticket.why = State.OVER, why if full else Shed.LATE
            return ticket, None
        if displaced is not None:
            self._send_away(displaced, Shed.DISPLACED)
        self._begin(queue)
        queue.waiting.add(ticket)
        insort(self._ends, ticket, key=ends_of)
        return ticket, displaced

    def next(self, now_s: float) -> Ticket | None:
        """Give somebody who waits a slot, if there is one for anybody; to be called until None."""
        if self.in_use >= self.capacity or not self._ends:
            return None
        self._pass(now_s)
        queue = self._turn(now_s)
        if queue is None:
            return None
        ticket = queue.waiting.take(now_s)
        self._forget(ticket)
        self._serve(queue, ticket, now_s)
        return ticket

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Take a place or a slot back; nothing happens where there is none any more."""
        self._pass(now_s)
        if ticket.state is State.WAITING:
            self._send_away(ticket, None)
        elif ticket.state is State.SERVED:
            queue = self._of(ticket.wish.lane)
            self.begun(ticket, now_s)
            queue.in_use -= 1
            queue.seen_s = now_s
            if queue is self._bulk:  # what ended sooner has used a whole slice
                queue.used_s += max(0.0, self.rules.slice_s - (now_s - ticket.served_s))
            ticket.state = State.OVER

    def begun(self, ticket: Ticket, now_s: float) -> None:
        """Say that an answer has begun: what is long is read, and holds nobody up any more."""
        if ticket.state is State.SERVED and not ticket.begun:
            self._pass(now_s)
            ticket.begun = True
            self._of(ticket.wish.lane).unbegun -= 1

    def late(self, now_s: float) -> list[Ticket]:
        """Send everybody away whose wait is over, and return them."""
        late = []
        while self._ends and self._ends[0].ends[0] <= now_s:
            late.append(self._ends[0])
            self._send_away(self._ends[0], Shed.LATE)
        return late

    def due_s(self, now_s: float) -> float:
        """Return when `late` or `next` may find somebody though nothing happened; inf: never."""
        due_s = self._ends[0].ends[0] if self._ends else math.inf
        if not self._bulk.waiting.count or self._fast.waiting.count:
            return due_s
        if not self._fast.in_use and (quiet_s := self._quiet_from_s) > now_s:
            due_s = min(due_s, quiet_s)
        if self.in_use < self.capacity and self._has_room(*self._all_but_one):
            due_s = min(due_s, self._spaced_s if self._spaced_s > now_s else now_s + LOOK_S)
        return due_s

    def retry_s(self, wish: Wish, why: Shed, now_s: float) -> float:
        """Return when there should be a place for somebody who was sent away."""
        waiting = self._of(wish.lane).waiting
        rate = waiting.rate(now_s)
        ahead = waiting.count
        if why is Shed.SHARE:  # those of one tenant go one in each round
            ahead = waiting.places.get(wish.tenant, 0) * len(waiting.places)
        return min(MOST_RETRY_S, (ahead + 1) / rate) if rate else RETRY_S

    # --- Whose turn it is -------------------------------------------------------------------------

    @property
    def _quiet_from_s(self) -> float:
        """When so long nobody came to the fast queue that bulk work may have most of its slots."""
        return self._fast.seen_s + self.rules.slice_s / self.rules.bulk_part

    @property
    def _spaced_s(self) -> float:
        """When bulk work may displace fast work again, or take what that could need."""
        return self._bulk.served_s + self.rules.slice_s

    def _turn(self, now_s: float) -> _Queue | None:
        fast, bulk = self._fast, self._bulk
        if not bulk.waiting.count:
            return fast
        if not fast.waiting.count:
            return bulk if self._bulk_may(now_s) else None
        if not self._has_room(self.bulk_slots, self.bulk_replicas):
            return fast
        if now_s < self._spaced_s:
            return fast
        owed = bulk.used_s * self.rules.fast < fast.used_s * self.rules.bulk
        return bulk if owed else fast

    def _bulk_may(self, now_s: float) -> bool:
        """Tell whether bulk work may have a slot that nobody else waits for."""
        if self._has_room(self.bulk_slots, self.bulk_replicas):
            return True
        fast = self._fast
        if not fast.in_use and now_s >= self._quiet_from_s:
            return self._has_room(*self._all_but_one)
        slots = self.capacity - self._need.slots(fast.in_use)
        replicas = self.replicas - self._need.replicas(fast.unbegun)
        # Spaced, so that what one of them does to fast work is seen before the next.
        return now_s >= self._spaced_s and self._has_room(slots, replicas)

    @property
    def _all_but_one(self) -> tuple[int, int]:
        """The most slots and replicas that bulk work ever has."""
        return self.capacity - 1, max(1, self.replicas - 1)

    def _has_room(self, slots: int, replicas: int) -> bool:
        """Tell whether bulk work has fewer slots, and reads at fewer replicas, than that."""
        bulk = self._bulk
        return bulk.in_use < slots and (not self.replicas or bulk.unbegun < replicas)

    def _is_free(self, queue: _Queue, now_s: float) -> bool:
        if self.in_use >= self.capacity or queue.waiting.count:
            return False
        return queue is self._fast or (not self._fast.waiting.count and self._bulk_may(now_s))

    # --- The books --------------------------------------------------------------------------------

    def _of(self, lane: Lane) -> _Queue:
        return self._fast if lane is Lane.FAST else self._bulk

    def _pass(self, now_s: float) -> None:
        """Count the time that slots were held, and while somebody waited in the fast queue."""
        passed_s = now_s - self._at_s
        self._need.passed(self._fast.in_use, self._fast.unbegun, passed_s)
        if self._fast.waiting.count:
            self._fast.used_s += self._fast.in_use * passed_s
            self._bulk.used_s += self._bulk.in_use * passed_s
        self._at_s = now_s

    def _begin(self, queue: _Queue) -> None:
        """Begin to count anew where nobody waited: no queue saves up what it did not ask for."""
        if queue.waiting.count:
            return
        fast, bulk, rules = self._fast, self._bulk, self.rules
        if queue is fast:
            fast.used_s = bulk.used_s = 0.0
        elif not bulk.in_use:
            bulk.used_s = max(bulk.used_s, fast.used_s * rules.bulk / rules.fast)

    def _serve(self, queue: _Queue, ticket: Ticket, now_s: float) -> None:
        queue.in_use += 1
        queue.unbegun += 1
        queue.served_s = ticket.served_s = now_s
        ticket.state = State.SERVED

    def _is_full(self, queue: _Queue, wish: Wish) -> tuple[bool, Shed]:
        waiting, rules = queue.waiting, self.rules
        if waiting.places.get(wish.tenant, 0) >= rules.tenant_places:
            return True, Shed.SHARE
        return waiting.count >= rules.length, Shed.FULL

    def _send_away(self, ticket: Ticket, why: Shed | None) -> None:
        self._of(ticket.wish.lane).waiting.remove(ticket)
        self._forget(ticket)
        ticket.state, ticket.why = State.OVER, why

    def _forget(self, ticket: Ticket) -> None:
        del self._ends[bisect_left(self._ends, ticket.ends, key=ends_of)]
