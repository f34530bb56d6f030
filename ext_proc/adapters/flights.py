"""Let one exchange of this process ask the model for all that ask the same at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from filters.api import Boarding

MOST_WAITING: Final = 4_000  # less than half of the connections that the shipped Envoy takes
MOST_BYTES: Final = 64 * 1024 * 1024  # of prompts, held while others are asked
WOKEN: Final = 32  # in one turn of the loop: to answer all of them takes some milliseconds


class FlightWatch(Protocol):
    """Who is told what became of those who did not ask at once."""

    def coalesced(self, boarding: Boarding) -> None:
        """Count one that waited, or found no room to."""


class Flight:
    """Who asks the model for one key, and who waits for it, in order of arrival."""

    __slots__ = ("key", "leader", "token", "waiting")

    def __init__(self, key: bytes) -> None:
        self.key: Final = key
        self.leader: LocalSeat | None = None
        self.waiting: Final[dict[LocalSeat, None]] = {}
        self.token = b""
        """What it is called in a lock that it may hold elsewhere; empty where it holds none."""


class LocalFlights:
    """`Flights` of one process. Nothing here waits but those who wait for an answer."""

    def __init__(
        self, watch: FlightWatch, *, most_waiting: int = MOST_WAITING, most_bytes: int = MOST_BYTES
    ) -> None:
        """Let at most so many wait in all flights together, and hold at most so many bytes."""
        self.waiting = 0
        """How many wait."""
        self._watch: Final = watch
        self._most_waiting: Final = most_waiting
        self._most_bytes: Final = most_bytes
        self._bytes = 0
        self._flights: Final[dict[bytes, Flight]] = {}

    def __len__(self) -> int:
        """Return how many flights are open."""
        return len(self._flights)

    @property
    def held_bytes(self) -> int:
        """What those who wait hold."""
        return self._bytes

    async def close(self) -> None:
        """Let go of everything: who still waits goes alone."""
        for flight in tuple(self._flights.values()):
            self.end(flight, Boarding.ALONE)

    def board(self, key: bytes, *, room: int, size: int = 0) -> LocalSeat:
        """Take a place in the flight of `key`, beginning one where there is none; never fails."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(key)
            seat = LocalSeat(self, flight, size)
            self.begin(flight, seat)
        elif (
            len(flight.waiting) >= room
            or self.waiting >= self._most_waiting
            or self._bytes + size > self._most_bytes
        ):
            seat = LocalSeat(self, None, size)
            self._watch.coalesced(Boarding.FULL)
        else:
            seat = LocalSeat(self, flight, size)
            seat.waited = True
            self.seat(flight, seat)
        return seat

    # --- What a flight over several processes does otherwise -------------------------------------

    def begin(self, flight: Flight, seat: LocalSeat) -> None:
        """Begin a flight with its first seat, which leads."""
        seat.boarding = Boarding.LEADS
        flight.leader = seat

    async def watched(self, flight: Flight) -> bool:
        """Tell whether anybody waits."""
        return bool(flight.waiting)

    def closed(self, flight: Flight, value: bytes | None, *, again: bool) -> None:
        """Tell others, elsewhere, of the end of a flight; `value` is what it brought, if it did."""

    # --- How seats change ------------------------------------------------------------------------

    def seat(self, flight: Flight, seat: LocalSeat) -> None:
        """Have a seat wait."""
        seat.boarding = Boarding.WAITING
        flight.waiting[seat] = None
        self.waiting += 1
        self._bytes += seat.size

    def settle(self, seat: LocalSeat, boarding: Boarding) -> asyncio.Future[None] | None:
        """End the wait of a seat; return what it waits for, if it does by now."""
        flight = seat.flight
        assert flight is not None  # it waits
        del flight.waiting[seat]
        self.waiting -= 1
        self._bytes -= seat.size
        seat.boarding = boarding
        if boarding is Boarding.LEADS:
            flight.leader = seat
        else:
            seat.flight = None
        if seat.waited:
            self._watch.coalesced(boarding)
        return seat.told

    def is_open(self, flight: Flight) -> bool:
        """Tell whether a flight did not end yet."""
        return self._flights.get(flight.key) is flight

    def lead_next(self, flight: Flight) -> bool:
        """Have the first who waits lead; return False where nobody waits."""
        flight.leader = None
        first = next(iter(flight.waiting), None)
        if first is None:
            return False
        _wake((self.settle(first, Boarding.LEADS),))
        return True

    def end(self, flight: Flight, boarding: Boarding, value: bytes | None = None) -> None:
        """End a flight and the wait of all in it."""
        del self._flights[flight.key]
        leader, flight.leader = flight.leader, None
        if leader is not None:
            leader.flight = None
        waited = []
        for seat in tuple(flight.waiting):
            seat.value = value
            waited.append(self.settle(seat, boarding))
        _wake(waited)


class LocalSeat:
    """One exchange's place in a flight."""

    __slots__ = ("_flights", "boarding", "flight", "size", "told", "value", "waited")

    def __init__(self, flights: LocalFlights, flight: Flight | None, size: int) -> None:
        self._flights: Final = flights
        self.flight = flight
        """None once nothing is held in it."""
        self.size: Final = size
        self.boarding = Boarding.FULL
        self.waited = False
        self.value: bytes | None = None
        self.told: asyncio.Future[None] | None = None

    async def answer(self, wait_s: float) -> bytes | None:
        """Return what another exchange was told; None when this one has to ask, or goes alone."""
        if self.boarding is Boarding.WAITING:
            loop = asyncio.get_running_loop()
            self.told = loop.create_future()
            timer = loop.call_later(wait_s, self._be_late)
            try:
                await self.told
            except asyncio.CancelledError:
                self.leave()  # it may have been made to lead a moment ago
                raise
            finally:
                timer.cancel()
        value, self.value = self.value, None
        return value

    async def watched(self) -> bool:
        """Tell whoever leads whether others wait, here or elsewhere."""
        flight = self.flight
        if flight is None or flight.leader is not self:
            return False
        return await self._flights.watched(flight)

    def land(self, value: bytes) -> None:
        """Give all who wait `value`."""
        flight = self.flight
        if flight is not None and flight.leader is self:
            self._over()
            self._flights.end(flight, Boarding.SHARED, value)
            self._flights.closed(flight, value, again=True)

    def leave(self, *, again: bool = True) -> None:
        """Let go of the place."""
        flight = self.flight
        if flight is None:
            return
        if flight.leader is not self:
            self._flights.settle(self, Boarding.OVER)
            return
        self._over()
        if again and self._flights.lead_next(flight):
            return
        self._flights.end(flight, Boarding.ALONE)
        self._flights.closed(flight, None, again=again)

    def _over(self) -> None:
        self.boarding = Boarding.OVER
        self.flight = None

    def _be_late(self) -> None:
        if self.boarding is Boarding.WAITING:
            _wake((self._flights.settle(self, Boarding.LATE),))


def _wake(waited: Sequence[asyncio.Future[None] | None]) -> None:
    """Wake those who wait, some at a time: between them the loop serves others."""
    for one in waited[:WOKEN]:
        if one is not None and not one.done():
            one.set_result(None)
    if len(waited) > WOKEN:
        asyncio.get_running_loop().call_soon(_wake, waited[WOKEN:])
