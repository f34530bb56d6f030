"""Replay a load through the queues of a gateway, its picker and model replicas, in virtual time.

The queues, the rule for slots and the picker are the gateway's own. A request's time to the first
token begins when it comes to the gateway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ext_proc.adapters.queues import QueueLimits
from ext_proc.tools.queue_loads import LONG_TOKENS, Caller
from ext_proc.tools.replica_model import Work
from ext_proc.tools.routing_loads import Load, Session
from ext_proc.tools.routing_run import SCRAPE_S, Asked, Run, percentile
from filters.fair_queue import FairQueue, Rules
from filters.live_slots import PoolSlots
from filters.queue_order import Lane, Priority, Shed, State, Ticket, Wish

WARM_S: Final = 60.0
"""So long caches fill and slots settle, unmeasured."""
MEASURED_S: Final = 600.0
WAIT_S: Final = 30.0
"""The longest wait, as `admit` comes with it."""


@dataclass(frozen=True, slots=True)
class Group:
    """What became of requests that have something in common."""

    asked: int
    ttft_s: Sequence[float]
    """To the first token, sorted, of those that were not sent away; of those without one at the
    end, how long they were waiting for it."""
    waits_s: Sequence[float]
    """For a slot, sorted, of those that got one."""
    shed: Mapping[str, int]

    def percentile(self, share: float) -> float:
        """Return the time to the first token that this share of them stays below, in s."""
        return percentile(self.ttft_s, share)

    @property
    def shed_share(self) -> float:
        """The share of them that was sent away."""
        return sum(self.shed.values()) / self.asked if self.asked else 0.0

    @property
    def longest_wait_s(self) -> float:
        """The longest wait for a slot that ended with one."""
        return self.waits_s[-1] if self.waits_s else 0.0


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a load, after the warm-up."""

    load: str
    queued: bool
    replicas: int
    seconds: float
    streams: Mapping[str, Group]
    classes: Mapping[tuple[Lane, Priority], Group]
    turnless_s: Mapping[tuple[Lane, Priority], float]
    """The longest time that some of a class waited and none of it was served."""
    bulk_rate: float
    """Long prompts prefilled a second, in parts of one."""
    busy: float
    """The mean share of the time that replicas worked."""
    depths: Sequence[tuple[float, int, int]] = ()
    """Once a second, how many of each queue wait."""


@dataclass(slots=True, eq=False)
class Arrival:
    """A request at the gateway, and what became of it."""

    caller: Caller
    work: Work
    wish: Wish
    came_s: float
    number: int
    served_s: float = math.nan
    why: Shed | None = None


@dataclass(slots=True)
class _Turns:
    """How long a class goes without a turn."""

    waiting: int = 0
    since_s: float = 0.0
    longest_s: float = 0.0

    def begin(self, now_s: float) -> None:
        if not self.waiting:
            self.since_s = now_s
        self.waiting += 1

    def end(self, now_s: float, *, served: bool) -> None:
        self.waiting -= 1
        if served or not self.waiting:
            self.look(now_s)
            self.since_s = now_s

    def look(self, now_s: float) -> None:
        if now_s > WARM_S:
            self.longest_s = max(self.longest_s, now_s - max(self.since_s, WARM_S))


@dataclass(slots=True)
class _Seen:
    """What is counted while it plays."""

    turns: dict[tuple[Lane, Priority], _Turns] = field(default_factory=dict)
    depths: list[tuple[float, int, int]] = field(default_factory=list)
    bulk_s: float = 0.0
    worked_s: float = 0.0


class QueueRun(Run):
    """A load that passes through queues; without `limits` through none."""

    def __init__(
        self,
        load: Load,
        limits: QueueLimits | None,
        replicas: int,
        *,
        seed: int = 1,
        strategy: str = "expected",
    ) -> None:
        super().__init__(load, strategy, replicas, seed=seed)
        how = limits or QueueLimits(Rules())
        self._queued: Final = limits is not None
        self._bulk_from: Final = how.bulk_from
        self._slots: Final = PoolSlots(how.replica_slots)
        self.queue: Final = FairQueue(how.rules, how.slots)
        self.arrivals: Final[list[Arrival]] = []
        self._tickets: Final[dict[int, Ticket]] = {}
        """By the `id` of the work that holds the slot."""
        self._seen: Final = _Seen()
        self.watch: Callable[[float], None] = lambda now_s: None
        """Called once a second while it is measured."""

    def play(self, seconds: float = MEASURED_S) -> Played:
        """Play so many seconds after the warm-up."""
        for at in range(len(self.engines)):
            self._at(SCRAPE_S * at / len(self.engines), self._tick, at)
        for second in range(math.ceil(WARM_S), math.ceil(WARM_S + seconds)):
            self._at(second, self._look)
        self._at(WARM_S, self._warm)
        end_s = WARM_S + seconds
        self.until(end_s)
        return self._played(seconds, end_s)

    # --- At the gateway ---------------------------------------------------------------------------

    def _ask(self, now_s: float, session: Session) -> None:
        assert isinstance(session, Caller)
        chain, prompt, answer = session.ask()
        lane = Lane.BULK if prompt >= self._bulk_from else Lane.FAST
        wish = Wish(lane, session.priority, session.tenant, WAIT_S)
        arrival = Arrival(session, Work(chain, prompt, answer), wish, now_s, len(self.arrivals))
        self.arrivals.append(arrival)
        if not self._queued:
            self._serve(now_s, arrival)
            return
        ticket, displaced = self.queue.enter(wish, now_s)
        if displaced is not None:
            self._gone(now_s, displaced)
        ticket.told = arrival
        match ticket.state:
            case State.WAITING:
                self._turns(wish).begin(now_s)
            case State.SERVED:
                self._tickets[id(arrival.work)] = ticket
                self._serve(now_s, arrival)
            case State.OVER:
                arrival.why = ticket.why

    def _serve_all(self, now_s: float) -> None:
        """Give slots to all who may have one, and send away whose wait is over."""
        for late in self.queue.late(now_s):
            self._gone(now_s, late)
        while (ticket := self.queue.next(now_s)) is not None:
            self._turns(ticket.wish).end(now_s, served=True)
            self._tickets[id(ticket.told.work)] = ticket
            self._serve(now_s, ticket.told)

    def _serve(self, now_s: float, arrival: Arrival) -> None:
        arrival.served_s = now_s
        self._send(now_s, arrival.number, arrival.caller, arrival.work, arrival.came_s)

    def _gone(self, now_s: float, ticket: Ticket) -> None:
        ticket.told.why = ticket.why
        self._turns(ticket.wish).end(now_s, served=False)

    def _tick(self, now_s: float, at: int) -> None:
        """Hear a replica, as the gateway does 20 times a second."""
        self._at(now_s + SCRAPE_S, self._tick, at)
        address = self._addresses[at]
        self.picker.heard(address, self._signals(now_s, at))
        if self._queued:
            self._slots.heard(address, self.picker.replicas[address])
            slots = self._slots.ours(self.picker.replicas)
            assert slots is not None  # this one spoke
            self.queue.capacity, self.queue.replicas = slots, len(self.picker.replicas)
            self._serve_all(now_s)

    def _started(self, now_s: float, asked: Asked) -> None:
        super()._started(now_s, asked)
        if self._queued:
            self.queue.begun(self._tickets[id(asked.work)], now_s)
            self._serve_all(now_s)

    def _finish(self, now_s: float, asked: Asked) -> None:
        super()._finish(now_s, asked)
        if self._queued:
            self.queue.leave(self._tickets.pop(id(asked.work)), now_s)
            self._serve_all(now_s)

    def _scrape(self, now_s: float, at: int) -> None:
        """Do nothing: they are heard whether or not somebody asks."""

    # --- What is seen of it -----------------------------------------------------------------------

    def _turns(self, wish: Wish) -> _Turns:
        return self._seen.turns.setdefault((wish.lane, wish.priority), _Turns())

    def _warm(self, now_s: float) -> None:
        self._seen.bulk_s = self._bulk_s()
        self._seen.worked_s = self._all_worked_s()

    def _look(self, now_s: float) -> None:
        fast, bulk = (sum(self.queue.depth(lane).values()) for lane in (Lane.FAST, Lane.BULK))
        self._seen.depths.append((now_s, fast, bulk))
        self.watch(now_s)

    def _all_worked_s(self) -> float:
        return sum(engine.worked_s for engine in self.engines)

    def _bulk_s(self) -> float:
        """Return the seconds of prefill that went into long prompts so far."""
        hardware = self.engines[0].hardware
        return sum(
            hardware.prefill(0, one.work.computed)
            for one in self.arrivals
            if one.wish.lane is Lane.BULK
        )

    def _played(self, seconds: float, end_s: float) -> Played:
        for turns in self._seen.turns.values():
            if turns.waiting:
                turns.look(end_s)
        measured = [one for one in self.arrivals if one.came_s >= WARM_S]
        streams: dict[str, list[Arrival]] = {}
        classes: dict[tuple[Lane, Priority], list[Arrival]] = {}
        for one in measured:
            streams.setdefault(one.caller.stream, []).append(one)
            classes.setdefault((one.wish.lane, one.wish.priority), []).append(one)
        whole_s = self.engines[0].hardware.prefill(0, LONG_TOKENS)
        worked_s = self._all_worked_s() - self._seen.worked_s
        return Played(
            self._load.name,
            self._queued,
            len(self.engines),
            seconds,
            {name: _group(some, end_s) for name, some in sorted(streams.items())},
            {of: _group(some, end_s) for of, some in sorted(classes.items())},
            {of: turns.longest_s for of, turns in sorted(self._seen.turns.items())},
            (self._bulk_s() - self._seen.bulk_s) / whole_s / seconds,
            worked_s / len(self.engines) / seconds,
            self._seen.depths,
        )


def _group(some: Sequence[Arrival], end_s: float) -> Group:
    stayed = [one for one in some if one.why is None]
    return Group(
        len(some),
        sorted((one.work.first_s or end_s) - one.came_s for one in stayed),
        sorted(one.served_s - one.came_s for one in stayed if not math.isnan(one.served_s)),
        dict(sorted(Counter(str(one.why) for one in some if one.why is not None).items())),
    )
