"""Stand-ins for every port, and a way to run a coroutine without an event loop.

They are fakes, not mocks: each passes the contract tests that the real thing passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from filters.api import (
    UNLIMITED,
    Answer,
    Boarding,
    Heard,
    Lease,
    Part,
    Ports,
    Prompt,
    Question,
    SentAway,
    Staged,
)
from filters.block_book import Chain
from filters.errors import PortError
from filters.queue_order import Wish
from filters.token_samples import exact_tokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PortWait:
    """What a fake port yields where the real one would wait."""

    port: str

    def __await__(self) -> Generator[PortWait, None, None]:
        yield self


def drive(coroutine: Coroutine[Any, Any, T], waits: list[PortWait] | None = None) -> T:
    """Step `coroutine` to its end and return its result; fail if it waits for no port.

    `waits` collects what it waited for, in order.
    """
    while True:
        try:
            waited_for = coroutine.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if not isinstance(waited_for, PortWait):
            coroutine.close()
            raise AssertionError(f"waited for {waited_for!r}, which is no port")
        if waits is not None:
            waits.append(waited_for)


class FakeClock:
    """A `Clock` that stands still until told to advance."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._start = now
        self._elapsed_ns = 0

    def now(self) -> float:
        return self._start + self._elapsed_ns / 1e9

    def monotonic_ns(self) -> int:
        return self._elapsed_ns

    def advance(self, seconds: float) -> None:
        self._elapsed_ns += round(seconds * 1e9)


class FakeStore:
    """A `Store` that remembers what it was asked and breaks when told to.

    `failing` makes every call raise `PortError`. `waiting` makes every call wait once, for
    `drive` to see: such a store runs under no event loop.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.values: dict[bytes, tuple[int, bytes]] = {}
        self.sightings: dict[bytes, list[int]] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.failing = False
        self.waiting = False

    async def get(self, key: bytes) -> bytes | None:
        await self._called("get", key)
        ends_ns, value = self.values.get(key, (0, None))
        return value if ends_ns > self._clock.monotonic_ns() else None

    async def find(self, key: bytes) -> tuple[bytes, float] | None:
        await self._called("find", key)
        ends_ns, value = self.values.get(key, (0, b""))
        left_ns = ends_ns - self._clock.monotonic_ns()
        return (value, left_ns / 1e9) if left_ns > 0 else None

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        await self._called("put", key)
        self.values[key] = (self._clock.monotonic_ns() + round(ttl_s * 1e9), value)

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        await self._called("sighted", key)
        now_ns = self._clock.monotonic_ns()
        times = self.sightings.setdefault(key, [])
        times.append(now_ns)
        begins_ns = now_ns - round(window_s * 1e9)
        return sum(time_ns > begins_ns for time_ns in times[-most:])

    async def close(self) -> None:
        self.values.clear()
        self.sightings.clear()

    async def _called(self, operation: str, key: bytes) -> None:
        self.calls.append((operation, key))
        if self.waiting:
            await PortWait("store")
        if self.failing:
            raise PortError(f"fake {operation}: told to fail")


class FakeStoreWatch:
    """Keeps what went wrong, as store and operation."""

    def __init__(self) -> None:
        self.failed: list[tuple[str, str]] = []
        self.bypassed: list[tuple[str, str]] = []
        self.unreadable: list[tuple[str, str]] = []
        self.searched: list[bool] = []
        self.took: list[tuple[str, str]] = []

    def store_failed(self, store: str, operation: str) -> None:
        self.failed.append((store, operation))

    def store_bypassed(self, store: str, operation: str) -> None:
        self.bypassed.append((store, operation))

    def store_unreadable(self, store: str, reason: str) -> None:
        self.unreadable.append((store, reason))

    def store_took(self, store: str, operation: str, elapsed_ns: int) -> None:
        self.took.append((store, operation))

    def store_searched(self, store: str, *, found: bool) -> None:
        self.searched.append(found)


class FakeFlights:
    """A `Flights` whose waits end with the time of a clock, or with a look at them.

    Under `drive` somebody waits once, and is late if nothing came of it by then; `looping` lets it
    run under an event loop.
    """

    def __init__(self, clock: FakeClock, *, most_waiting: int = 1_000) -> None:
        self.clock = clock
        self.looping = False
        self.flights: dict[bytes, list[FakeSeat]] = {}
        """Who is in each flight, the one that leads first."""
        self.most_waiting = most_waiting
        self.elsewhere = False
        """Others wait, in another process."""

    def board(self, key: bytes, *, room: int, size: int = 0) -> FakeSeat:
        seats = self.flights.setdefault(key, [])
        seat = FakeSeat(self, key)
        waiting = sum(len(seats) - 1 for seats in self.flights.values() if seats)
        if not seats:
            seat.boarding = Boarding.LEADS
        elif len(seats) > room or waiting >= self.most_waiting:
            return seat
        else:
            seat.boarding, seat.waited = Boarding.WAITING, True
        seats.append(seat)
        return seat

    async def close(self) -> None:
        for seats in tuple(self.flights.values()):
            seats[0].leave(again=False)


class FakeSeat:
    def __init__(self, flights: FakeFlights, key: bytes) -> None:
        self._flights = flights
        self._key = key
        self._value: bytes | None = None
        self.boarding = Boarding.FULL
        self.waited = False

    async def answer(self, wait_s: float) -> bytes | None:
        ends_ns = self._flights.clock.monotonic_ns() + round(wait_s * 1e9)
        try:
            while self.boarding is Boarding.WAITING:
                if self._flights.clock.monotonic_ns() >= ends_ns:
                    self.leave()
                    self.boarding = Boarding.LATE
                elif self._flights.looping:
                    await asyncio.sleep(0)
                else:
                    await PortWait("flights")
                    ends_ns = 0
        except BaseException:
            self.leave()
            raise
        return self._value

    async def watched(self) -> bool:
        if self.boarding is not Boarding.LEADS:
            return False
        return self._flights.elsewhere or len(self._flights.flights[self._key]) > 1

    def land(self, value: bytes) -> None:
        if self.boarding is Boarding.LEADS:
            self._end(Boarding.SHARED, value)

    def leave(self, *, again: bool = True) -> None:
        if self.boarding is Boarding.LEADS and not again:
            self._end(Boarding.ALONE)
        elif self.boarding in (Boarding.LEADS, Boarding.WAITING):
            seats = self._flights.flights[self._key]
            seats.remove(self)
            if seats:
                seats[0].boarding = Boarding.LEADS
            else:
                del self._flights.flights[self._key]
            self.boarding = Boarding.OVER

    def _end(self, boarding: Boarding, value: bytes | None = None) -> None:
        for seat in self._flights.flights.pop(self._key):
            seat.boarding, seat._value = boarding, value
        self.boarding, self._value = Boarding.OVER, None


class FakeFlightWatch:
    """Keeps what became of those who waited."""

    def __init__(self) -> None:
        self.seen: list[Boarding] = []

    def coalesced(self, boarding: Boarding) -> None:
        self.seen.append(boarding)


class FakeRandom:
    """Random bytes that anybody can foresee: zeros, and at the end how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, size: int, /) -> bytes:
        self.asked += 1
        return self.asked.to_bytes(size, "big")


class FakeTokens:
    """A `Tokens` for which four bytes of UTF-8 are a token."""

    deadline_s = 0.0
    """The last one that a count was given."""

    def estimate(self, text: str) -> int:
        return self.count(text)

    def count(self, text: str, model: str = "") -> int:
        return -(-len(text.encode()) // 4)

    async def count_apart(self, texts: Sequence[str], model: str, *, deadline_s: float) -> int:
        self.deadline_s = deadline_s
        await PortWait("tokens")
        return exact_tokens(texts, partial(self.count, model=model))


class FakeWorkers:
    """A `Workers` that works where it is called; `failing` makes every call raise `PortError`."""

    def __init__(self) -> None:
        self.failing = False
        self.calls: list[str] = []

    async def run(self, work: Callable[..., T], *arguments: Any, deadline_s: float) -> T:
        self.calls.append(work.__name__)
        await PortWait("workers")
        if self.failing:
            raise PortError("fake workers: told to fail")
        try:
            return work(*arguments)
        except Exception as error:
            raise PortError(f"fake workers: {type(error).__name__}") from error


@dataclass(slots=True)
class FakeModels:
    """A `Models` that says what it was given to say, and breaks where it was given nothing."""

    labels: Mapping[str, float] = field(default_factory=dict)
    summary: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Folder and text of every call."""

    async def classify(self, folder: str, text: str, deadline_s: float) -> Mapping[str, float]:
        self.calls.append((folder, text))
        await PortWait("models")
        if not self.labels:
            raise PortError("fake models: nothing to say")
        return self.labels

    async def summarise(self, folder: str, text: str, max_tokens: int, deadline_s: float) -> str:
        self.calls.append((folder, text))
        await PortWait("models")
        if not self.summary:
            raise PortError("fake models: nothing to say")
        return self.summary


@dataclass(slots=True)
class FakeUpstream:
    """An `Upstream` that answers what it was given to answer, and breaks without."""

    answer: str = ""
    asked: list[tuple[str, str, str, int]] = field(default_factory=list)
    """Cluster, model, prompt and most tokens of every call."""
    traces: list[str] = field(default_factory=list)
    """The traceparent of every call."""

    async def ask(
        self,
        cluster: str,
        model: str,
        prompt: str,
        *,
        max_tokens: int,
        deadline_s: float,
        whole: bool = True,
        traceparent: str = "",
    ) -> str:
        self.asked.append((cluster, model, prompt, max_tokens))
        self.traces.append(traceparent)
        await PortWait("upstream")
        if not self.answer:
            raise PortError("fake upstream: nothing to answer")
        return self.answer


@dataclass(slots=True)
class FakePicked:
    """A request at a replica, as `FakeReplicas` keeps it."""

    addresses: tuple[str, ...]
    prompt: bytes
    seed: str
    tokens: int
    watched: bool
    chain: Chain | None = None
    why: str = "fake"
    held: int = 64
    expected_s: float = 0.25
    starts: int = 0
    good: bool | None = None
    """How it ended; None while it is under way."""
    ill: bool = False

    def served(self, address: str) -> None:
        self.addresses = (address, *(one for one in self.addresses if one != address))

    def started(self) -> None:
        self.starts += 1

    def ended(self, *, good: bool = True, ill: bool = False) -> None:
        if self.good is None:
            self.good, self.ill = good, ill


@dataclass(slots=True)
class FakeReplicas:
    """A `Replicas` that takes the first two of those it was given for a pool."""

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    picked: list[FakePicked] = field(default_factory=list)
    full: float = 0.0
    """What `full_s` says of every pool."""
    reading: Callable[[Prompt, bool], Chain | None] | None = None
    """What prompts are cut into; None: they are not read."""
    gpus: Mapping[str, float] = field(default_factory=dict)
    """How busy the GPU of an address is."""

    def gpu_usage(self, pool: str, address: str) -> float | None:
        return self.gpus.get(address)

    def has(self, pool: str) -> bool:
        return pool in self.addresses

    def reads(self, pool: str) -> bool:
        return self.reading is not None

    async def read(self, pool: str, prompt: Prompt, *, shared: bool) -> Chain | None:
        await PortWait("replicas")
        return None if self.reading is None else self.reading(prompt, shared)

    def pick(
        self,
        pool: str,
        prompt: bytes,
        seed: str,
        *,
        tokens: int = 0,
        watched: bool = True,
        subset: Collection[str] | None = None,
        chain: Chain | None = None,
    ) -> FakePicked | None:
        there = self.addresses.get(pool, ())
        allowed = tuple(one for one in there if subset is None or one in subset)
        if not allowed:
            return None
        picked = FakePicked(allowed[:2], prompt, seed, tokens or len(prompt) // 4, watched, chain)
        self.picked.append(picked)
        return picked

    def full_s(self, pool: str, subset: Collection[str] | None = None) -> float:
        return self.full


@dataclass(slots=True)
class FakeLease:
    """A place in a pool of `FakeLimits`."""

    limits: FakeLimits
    pool: str
    released: int = 0
    """How often `release` was called."""

    def release(self) -> None:
        self.released += 1
        if self.released == 1:
            self.limits.free[self.pool] += 1


@dataclass(slots=True)
class FakeLimits:
    """A `Limits` with so many places in each pool; a pool that is not named has no limit.

    `looping` lets it run under an event loop.
    """

    free: dict[str, int] = field(default_factory=dict)
    looping: bool = False
    leases: list[FakeLease] = field(default_factory=list)

    async def take(self, pool: str) -> Lease | None:
        if pool not in self.free:
            return UNLIMITED
        if not self.looping:
            await PortWait("limits")
        if not self.free[pool]:
            return None
        self.free[pool] -= 1
        self.leases.append(FakeLease(self, pool))
        return self.leases[-1]


@dataclass(slots=True)
class FakeSlot:
    """A slot of `FakeQueues`."""

    waited_s: float = 0.0
    released: int = 0
    """How often `release` was called."""
    begins: int = 0
    """How often `begun` was."""

    def begun(self) -> None:
        self.begins += 1

    def release(self) -> None:
        self.released += 1


@dataclass(slots=True)
class FakeQueues:
    """A `Queues` that gives everybody a slot, or sends everybody away, as it is told to."""

    bulk: dict[str, int] = field(default_factory=dict)
    """From how many tokens on what is bulk, for each pool with a queue."""
    says: SentAway | None = None
    waits_s: float = 0.0
    """How long everybody waits, if at all."""
    wishes: list[Wish] = field(default_factory=list)
    slots: list[FakeSlot] = field(default_factory=list)

    def bulk_from(self, pool: str) -> int | None:
        return self.bulk.get(pool)

    async def enter(self, pool: str, wish: Wish) -> FakeSlot | SentAway:
        self.wishes.append(wish)
        if self.waits_s:
            await PortWait("queues")
        if self.says is not None:
            return self.says
        self.slots.append(FakeSlot(self.waits_s))
        return self.slots[-1]


@dataclass(slots=True)
class FakeBreakers:
    """A `Breakers` whose breakers are open (False) or closed (True), as they are told to be."""

    closed: dict[str, bool] = field(default_factory=dict)
    ends: list[tuple[str, bool | None]] = field(default_factory=list)
    """Pool and how it went, of every exchange that ended."""
    breaks: list[str] = field(default_factory=list)
    """Pools of those that began well and came to nothing."""

    def watches(self, pool: str) -> bool:
        return pool in self.closed

    def admits(self, pool: str) -> bool:
        return self.closed.get(pool, True)

    def ended(self, pool: str, began_ns: int, *, good: bool | None) -> None:
        self.ends.append((pool, good))

    def broke(self, pool: str, began_ns: int, well_ns: int) -> None:
        self.breaks.append(pool)


@dataclass(slots=True)
class FakeStages:
    """A `Stages` that sends what is meant for a pool where it was told to."""

    staged: dict[str, Staged] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Pool and tenant of every exchange."""
    told: list[tuple[Staged, Heard, Question | None]] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    moved: dict[str, str] = field(default_factory=dict)
    """What the answers of tenants are shaped by whom a canary serves."""

    def choose(self, pool: str, tenant: str) -> Staged:
        self.asked.append((pool, tenant))
        return self.staged.get(pool) or Staged(pool)

    def shaped_by(self, profile: str, tenant: str) -> str:
        return self.moved.get(tenant, "")

    def heard(self, staged: Staged, heard: Heard, question: Question | None = None) -> None:
        self.told.append((staged, heard, question))

    def skipped(self, staged: Staged, why: str) -> None:
        self.skips.append(why)


@dataclass(slots=True)
class FakeBerth:
    """A place in `FakeBatches`; it waits once, unless it leads."""

    leads: bool = False
    size: int = 0
    why: str = ""
    given: Answer | None = None
    left: int = 0
    """How often `leave` was called."""

    async def answer(self) -> Answer | None:
        if not self.leads:
            await PortWait("batches")
        return self.given

    def leave(self) -> None:
        self.left += 1


@dataclass(slots=True)
class FakeBatches:
    """A `Batches` that gives the places that it was told to give; else everybody leads."""

    berths: list[FakeBerth] = field(default_factory=list)
    taken: list[tuple[Part, int, float, float]] = field(default_factory=list)
    """Every request with most, wait and deadline."""

    def take(self, part: Part, *, most: int, wait_s: float, deadline_s: float) -> FakeBerth:
        self.taken.append((part, most, wait_s, deadline_s))
        return self.berths.pop(0) if self.berths else FakeBerth(leads=True)


class FakeWheel:
    """A `Wheel` that is turned by hand, and the time of its clock with it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.alarms: list[FakeAlarm] = []

    def at(self, when_ns: int, call: Callable[[], None]) -> FakeAlarm:
        alarm = FakeAlarm(self, when_ns, call)
        self.alarms.append(alarm)
        return alarm

    def turn(self, seconds: float) -> None:
        """Let time pass; each call comes when it is due."""
        end_ns = self._clock.monotonic_ns() + round(seconds * 1e9)
        while self.alarms:
            alarm = min(self.alarms, key=lambda one: one.when_ns)
            if alarm.when_ns > end_ns:
                break
            self._clock.advance(max(0, alarm.when_ns - self._clock.monotonic_ns()) / 1e9)
            self.alarms.remove(alarm)
            alarm.call()
        self._clock.advance((end_ns - self._clock.monotonic_ns()) / 1e9)


@dataclass(eq=False)
class FakeAlarm:
    wheel: FakeWheel
    when_ns: int
    call: Callable[[], None]

    def cancel(self) -> None:
        if self in self.wheel.alarms:
            self.wheel.alarms.remove(self)


def fake_ports(clock: FakeClock | None = None, **others: Any) -> Ports:
    """Return fakes of every port; `others` take the place of those of their names."""
    clock = clock or FakeClock()
    ports: dict[str, Any] = {
        "store": FakeStore(clock),
        "flights": FakeFlights(clock),
        "clock": clock,
        "upstream": FakeUpstream(),
        "tokens": FakeTokens(),
        "random": FakeRandom(),
        "workers": FakeWorkers(),
        "models": FakeModels(),
        "replicas": FakeReplicas(),
        "limits": FakeLimits(),
        "queues": FakeQueues(),
        "breakers": FakeBreakers(),
        "stages": FakeStages(),
        "batches": FakeBatches(),
        "wheel": FakeWheel(clock),
    }
    return Ports(**ports | others)
