"""Let one exchange of all replicas ask the model for all that ask the same at the same time.

Whoever begins a flight takes a lock in Redis, `forebay:lead:{KEY}`, by a token of its own and for a
short time that it extends as long as it lives. Who finds it taken marks that it waits
(`forebay:waits:{KEY}`) and looks again and again, for the whole process, until an answer has landed
(`forebay:landed:{KEY}`) or the lock can be had. A lock that is lost costs a call of the model, no
more. Without Redis each process is by itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

from ext_proc.adapters.flights import (
    MOST_BYTES,
    MOST_WAITING,
    Flight,
    FlightWatch,
    LocalFlights,
    LocalSeat,
)
from ext_proc.adapters.redis_client import name_of
from ext_proc.adapters.redis_lane import Command
from filters.api import Boarding
from filters.errors import PortError

LEASE_MS: Final = 2_500  # how long others wait for a process that was killed
BEAT_S: Final = 0.8  # between two extensions of it: one may fail
AT_ONCE: Final = 64  # locks extended together: one batch
MARK_MS: Final = 1_500  # six looks of one that waits
LANDED_MS: Final = 5_000  # for those who look for it; longer than any pause of a process that lives
SHORTEST_S: Final = 0.01  # between two looks; then a tenth of the time waited so far
LONGEST_S: Final = 0.25
PART_WAITED: Final = 10
FAILURES: Final = 3  # in a row, before those of this process go on by themselves
_RELEASE: Final = (
    b"if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"
)


class Asks(Protocol):
    """Redis, as far as it is needed here: `RedisClient`."""

    async def ask(self, operation: str, key: bytes, *commands: Command) -> list[Any]:
        """Return the reply to each command; raise `PortError` when it fails or is late."""


class RedisFlights(LocalFlights):
    """`Flights` over all processes that share a Redis."""

    def __init__(
        self,
        redis: Asks,
        watch: FlightWatch,
        *,
        name: bytes,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Ask `redis`; `name` is this process's alone, also after a restart."""
        super().__init__(watch, most_waiting=most_waiting, most_bytes=most_bytes)
        self._redis: Final = redis
        self._tokens: Final = (b"%b-%d" % (name, number) for number in itertools.count())
        self._held: Final[dict[Flight, float]] = {}
        """Flights that may have the lock, and since when."""
        self._seeking: Final[set[asyncio.Task[None]]] = set()
        self._telling: Final[set[asyncio.Task[None]]] = set()
        self._beating: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Let go of everything, the locks included: who still waits goes alone."""
        await super().close()
        for flight in tuple(self._held):
            self.closed(flight, None, again=True)
        if self._beating is not None:
            self._beating.cancel()
        # Nobody waits any more, so they end; cancelled, one would not know of a lock it takes.
        await asyncio.gather(*self._seeking, return_exceptions=True)
        await asyncio.gather(*self._telling, return_exceptions=True)

    # --- What a flight of one process does otherwise ---------------------------------------------

    def begin(self, flight: Flight, seat: LocalSeat) -> None:
        """Begin a flight: its first seat waits to hear whether it leads, and may not know it."""
        self.seat(flight, seat)
        _start(self._seek(flight), self._seeking)

    async def watched(self, flight: Flight) -> bool:
        """Tell whether anybody waits, here or elsewhere."""
        return bool(flight.waiting) or await self._is_awaited(flight)

    def closed(self, flight: Flight, value: bytes | None, *, again: bool) -> None:
        """Give up the lock, and tell others what landed, or that nothing ever will."""
        self._held.pop(flight, None)
        if flight.token:
            told = value if value is not None or again else b""
            _start(self._give_up(flight, told), self._telling)

    # --- Those who do not lead -------------------------------------------------------------------

    async def _seek(self, flight: Flight) -> None:
        """Have the first of a flight lead once nobody does elsewhere, or end it with an answer."""
        landed: bytes | None = None
        try:
            flight.token = next(self._tokens)
            landed = await self._lead_or_follow(flight)
        finally:  # whatever went wrong: nobody may be left waiting
            is_open = self.is_open(flight)  # else the server ends
            if is_open and landed is None and self.lead_next(flight):
                self._hold(flight)
            else:
                if is_open:
                    boarding = Boarding.SHARED if landed else Boarding.ALONE
                    self.end(flight, boarding, landed or None)
                self.closed(flight, None, again=True)

    async def _lead_or_follow(self, flight: Flight) -> bytes | None:
        """Return what landed elsewhere, empty for what cannot be shared; None to lead.

        Without Redis, those of this process have one of them lead. A lock of which nothing was
        heard may have been taken: then it is as good as held.
        """
        key, loop = flight.key, asyncio.get_running_loop()
        take = ("SET", name_of(b"lead", key), flight.token, "NX", "PX", LEASE_MS)
        try:
            (taken,) = await self._redis.ask("lead", key, take)
        except PortError:
            return None
        if taken:
            return None
        for seat in flight.waiting:
            seat.waited = True
        mark = ("SET", name_of(b"waits", key), b"", "PX", MARK_MS)
        # The lock first: who gives it up has landed before.
        look = (mark, take, ("GET", name_of(b"landed", key)), ("PTTL", name_of(b"lead", key)))
        landed: bytes | None
        began_s, failures = loop.time(), 0
        while flight.waiting:
            try:
                _, taken, landed, left_ms = await self._redis.ask("follow", key, *look)
            except PortError:
                failures += 1
                if failures == FAILURES:
                    return None
            else:
                failures = 0
                # A lock that ends later than ours do, or never (-1), is not one of ours, or the
                # clock of Redis was set back.
                if taken or landed is not None or left_ms == -1 or left_ms > LEASE_MS:
                    return landed
            waited_s = loop.time() - began_s
            await asyncio.sleep(min(max(SHORTEST_S, waited_s / PART_WAITED), LONGEST_S))
        return None

    # --- The one that leads ----------------------------------------------------------------------

    def _hold(self, flight: Flight) -> None:
        loop = asyncio.get_running_loop()
        self._held[flight] = loop.time()
        if self._beating is None:
            self._beating = loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        """Extend the locks that are held for some time; most are given up before that."""
        self._beating = None
        if not self._held:
            return
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        old = [flight for flight, since_s in self._held.items() if now_s - since_s >= BEAT_S / 2]
        _start(self._extend_all(old), self._telling)
        self._beating = loop.call_later(BEAT_S, self._beat)

    async def _extend_all(self, flights: Sequence[Flight]) -> None:
        """Extend locks, but leave room in Redis for what requests ask."""
        for first in range(0, len(flights), AT_ONCE):
            held = [flight for flight in flights[first : first + AT_ONCE] if flight in self._held]
            await asyncio.gather(*map(self._extend, held))

    async def _extend(self, flight: Flight) -> None:
        """Extend a lock; one that was lost is another's, for which that does no harm."""
        lead = name_of(b"lead", flight.key)
        extend = (("GET", lead), ("PEXPIRE", lead, LEASE_MS))
        try:
            holder, _ = await self._redis.ask("lead", flight.key, *extend)
        except PortError:
            return
        if holder != flight.token:
            self._held.pop(flight, None)

    async def _is_awaited(self, flight: Flight) -> bool:
        """Tell whether anybody waits elsewhere."""
        exists = ("EXISTS", name_of(b"waits", flight.key))
        try:
            (others,) = await self._redis.ask("waits", flight.key, exists)
        except PortError:
            return False  # nobody there could be told
        return bool(others)

    async def _give_up(self, flight: Flight, told: bytes | None) -> None:
        key = flight.key
        commands: list[Command] = []
        if told is not None and await self._is_awaited(flight):
            commands.append(("SET", name_of(b"landed", key), told, "PX", LANDED_MS))
        commands.append(("EVAL", _RELEASE, 1, name_of(b"lead", key), flight.token))
        try:
            await self._redis.ask("land", key, *commands)
        except PortError:
            return  # the lock ends by itself


def _start(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
