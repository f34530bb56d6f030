"""Say who of those that wait in one queue comes next: by class, by tenant in turn, by deadline.

The most urgent class comes first. In a class each tenant has its turn, one request in each round;
of a tenant, and of all in one round, the one with the earliest deadline. Only each `AGED_EVERY`th
turn, and where turns are slow the first after each `AGED_S`, may be a lesser class's, where
somebody waited there `AGE_S` for each class in between; of several the one that had no turn for
longest. So none starves, and none gets more than that.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left, insort
from typing import Any, Final

import msgspec

AGE_S: Final = 5.0
AGED_EVERY: Final = 10
AGED_S: Final = 45.0
"""A queue of long prompts may have two turns a minute: nobody should wait for the tenth of them.
Two of them in a row are never lesser classes'."""
KEEPS: Final = 10
"""A class keeps a tenth of the places in a queue, whoever more urgent wants them."""
MEMORY_S: Final = 30.0
"""What was served so long ago counts for a third in how fast a queue drains."""


class Lane(enum.StrEnum):
    """One of the two queues of a pool."""

    FAST = "fast"
    BULK = "bulk"


class Priority(enum.IntEnum):
    """A class, the most urgent first."""

    URGENT = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3

    @property
    def word(self) -> str:
        """What settings, headers and metrics call it."""
        return self.name.lower()


class Shed(enum.StrEnum):
    """Why somebody was sent away."""

    FULL = "full"
    """The queue had no place."""
    SHARE = "share"
    """Its tenant had as many as one may have."""
    DISPLACED = "displaced"
    """Its place went to a more urgent one, or to a tenant with fewer."""
    LATE = "late"
    """It waited as long as it may."""


class Wish(msgspec.Struct, frozen=True):  # every request makes one: a dataclass takes 1 us more
    """What is known of a request that wants a slot."""

    lane: Lane
    priority: Priority
    tenant: str
    wait_s: float
    """How long it may wait."""
    deadline_s: float = 0.0
    """After how long it should be served; 0: when the wait ends."""


class State(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()
    SERVED = enum.auto()
    """It holds a slot."""
    OVER = enum.auto()


class Ticket(msgspec.Struct, eq=False):
    """A request in a queue, until it left or gave its slot back."""

    wish: Wish
    number: int
    """In the order in which they came."""
    came_s: float
    state: State = State.WAITING
    why: Shed | None = None
    """Why it is over, where it was sent away."""
    served_s: float = 0.0
    begun: bool = False
    """Its answer has."""
    told: Any = None
    """Whoever keeps it may leave here whom to tell."""

    @property
    def due(self) -> tuple[float, int]:
        """By when it should be served; of equal ones the first comes first."""
        return self.came_s + (self.wish.deadline_s or self.wish.wait_s), self.number

    @property
    def ends(self) -> tuple[float, int]:
        """When its wait ends."""
        return self.came_s + self.wish.wait_s, self.number


def number_of(ticket: Ticket) -> int:
    """Return a ticket's number."""
    return ticket.number


def due_of(ticket: Ticket) -> tuple[float, int]:
    """Return by when a ticket should be served."""
    return ticket.due


def ends_of(ticket: Ticket) -> tuple[float, int]:
    """Return when a ticket's wait ends."""
    return ticket.ends


class _Tenant:
    """What one tenant has waiting in a class."""

    __slots__ = ("round", "tickets")

    def __init__(self, turn: int) -> None:
        self.round = turn
        self.tickets: Final[list[Ticket]] = []
        """By deadline."""


class _Class:
    """Those of one class that wait in a queue."""

    __slots__ = ("by_age", "round", "served", "tenants", "turn")

    def __init__(self) -> None:
        self.turn = 0
        """When it had a turn, in turns of its queue."""
        self.by_age: Final[list[Ticket]] = []
        self.tenants: Final[dict[str, _Tenant]] = {}
        self.round = 0
        self.served: Final[set[str]] = set()
        """Tenants that had their turn in this round."""

    def add(self, ticket: Ticket) -> None:
        name = ticket.wish.tenant
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = _Tenant(self.round + (name in self.served))
        insort(tenant.tickets, ticket, key=due_of)
        self.by_age.append(ticket)

    def remove(self, ticket: Ticket, *, served: bool) -> None:
        name = ticket.wish.tenant
        tenant = self.tenants[name]
        del tenant.tickets[bisect_left(tenant.tickets, ticket.due, key=due_of)]
        del self.by_age[bisect_left(self.by_age, ticket.number, key=number_of)]
        if served:
            if tenant.round > self.round:
                self.round = tenant.round
                self.served.clear()
            self.served.add(name)
            tenant.round = self.round + 1
        if not tenant.tickets:
            del self.tenants[name]
        if not self.tenants:
            self.round = 0
            self.served.clear()

    def first(self) -> Ticket:
        tenant = min(self.tenants.values(), key=lambda one: (one.round, one.tickets[0].due))
        return tenant.tickets[0]

    def most(self) -> str:
        """Return the tenant that has the most here."""
        return max(self.tenants, key=lambda name: len(self.tenants[name].tickets))

    def last_of(self, name: str) -> Ticket:
        """Return what a tenant sent last."""
        return max(self.tenants[name].tickets, key=number_of)


class Waiting:
    """Those who wait in one queue."""

    __slots__ = (
        "_aged_s", "_at_s", "_busy_s", "_classes", "_drained", "_turn", "_unaged", "count",
        "places",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.places: Final[dict[str, int]] = {}
        """How many each tenant has here."""
        self._classes: Final = {priority: _Class() for priority in Priority}
        self._turn = 0
        self._unaged = AGED_EVERY
        """How many were served since one came before its class's turn, this one among them."""
        self._aged_s = -math.inf
        """When one last came before its class's turn."""
        self._drained = self._busy_s = self._at_s = 0.0

    def add(self, ticket: Ticket) -> None:
        """Have a ticket wait."""
        if not self.count:
            self._at_s = ticket.came_s  # a pause says nothing of how fast it drains
        self._classes[ticket.wish.priority].add(ticket)
        self.count += 1
        name = ticket.wish.tenant
        self.places[name] = self.places.get(name, 0) + 1

    def remove(self, ticket: Ticket) -> None:
        """Let a ticket go that is not served."""
        self._remove(ticket, served=False)

    def take(self, now_s: float) -> Ticket:
        """Take out whose turn it is."""
        ticket, aged = self._next(now_s)
        if aged:
            self._unaged, self._aged_s = 0, now_s
        self._unaged += 1
        self._turn += 1
        self._classes[ticket.wish.priority].turn = self._turn
        self._remove(ticket, served=True)
        fade = math.exp((self._at_s - now_s) / MEMORY_S)
        self._drained = self._drained * fade + 1
        self._busy_s = self._busy_s * fade + (now_s - self._at_s)
        self._at_s = now_s
        return ticket

    def counts(self) -> dict[Priority, int]:
        """Return how many wait in each class."""
        return {priority: len(one.by_age) for priority, one in self._classes.items()}

    def counts_of(self, tenant: str) -> dict[Priority, int]:
        """Return how many of one tenant wait in each class."""
        found = ((priority, one.tenants.get(tenant)) for priority, one in self._classes.items())
        return {priority: len(one.tickets) if one else 0 for priority, one in found}

    def rate(self, now_s: float) -> float:
        """Return how many a second it was let out of late, while somebody waited; 0: not known."""
        busy_s = self._busy_s + (now_s - self._at_s if self.count else 0.0)
        return self._drained / busy_s if busy_s > 0 else 0.0

    def lesser(self, wish: Wish, length: int, *, own: bool) -> Ticket | None:
        """Return who should give up one of `length` places for another one, if there is anybody.

        That is the last of the least urgent class; `own`: of the same tenant. In the same class, a
        tenant that has less there takes a place from the one with the most.
        """
        for priority in reversed(Priority):
            tenants = self._classes[priority].tenants
            if priority < wish.priority or (own and priority == wish.priority):
                return None
            if not tenants or (own and wish.tenant not in tenants):
                continue
            keeps = len(self._classes[priority].by_age) <= length // KEEPS
            if keeps and not own and priority > wish.priority:
                continue
            name = wish.tenant if own else self._classes[priority].most()
            has = len(tenants[wish.tenant].tickets) if wish.tenant in tenants else 0
            if priority == wish.priority and len(tenants[name].tickets) <= has + 1:
                return None
            return self._classes[priority].last_of(name)
        return None

    def _next(self, now_s: float) -> tuple[Ticket, bool]:
        first, *others = ((at, one) for at, one in self._classes.items() if one.by_age)
        slow = self._unaged > 1 and now_s - self._aged_s >= AGED_S
        if others and (slow or self._unaged >= AGED_EVERY):
            aged = (
                one for at, one in others if now_s - one.by_age[0].came_s >= (at - first[0]) * AGE_S
            )
            if (found := min(aged, key=lambda one: one.turn, default=None)) is not None:
                return found.by_age[0], True
        return first[1].first(), False

    def _remove(self, ticket: Ticket, *, served: bool) -> None:
        self._classes[ticket.wish.priority].remove(ticket, served=served)
        self.count -= 1
        name = ticket.wish.tenant
        if self.places[name] == 1:
            del self.places[name]
        else:
            self.places[name] -= 1
