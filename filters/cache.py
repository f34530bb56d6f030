"""Answer a prompt seen before without asking the model again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from filters import cache_control
from filters.api import (
    CONTINUE,
    Answer,
    Boarding,
    Config,
    Delta,
    Exchange,
    Filter,
    Need,
    Outcome,
    Seat,
    Verdict,
)
from filters.cache_admission import Admitted, admit, why_not_answered
from filters.cache_flight import is_for_nobody, note_flight
from filters.cache_hit import collapsed, serve
from filters.cache_key import KeyRule, cache_key
from filters.cache_record import write_record
from filters.cache_reply import recorded
from filters.cache_settings import CacheConfig
from filters.cache_status import MISS, REQUEST, not_stored, say_bypass, say_miss
from filters.errors import PortError

# A stream repeats its envelope in every event: some 250 bytes for a token of 4, less where events
# hold more. With the default settings half a MiB is kept of a stream that is being read.
STREAM_OVERHEAD: Final = 8


class CacheFilter(Filter[CacheConfig]):
    """Looks an exchange up when its request is whole, and stores its answer after the last byte."""

    name: ClassVar[str] = "cache"
    config_type: ClassVar[type[Config]] = CacheConfig

    @classmethod
    def prepare(cls, config: CacheConfig) -> KeyRule:
        """Read what the profile says of keys."""
        return config.key_rule

    @classmethod
    def shaping(cls, config: CacheConfig) -> Any:
        """Return what decides which requests are one, and whether their answers may call tools."""
        return sorted(set(config.ignore)), config.tools

    @classmethod
    def longest_wait_s(cls, config: CacheConfig) -> float:
        """Wait for an answer that another exchange went for."""
        return config.coalesce.wait

    _key: bytes = b""
    _seat: Seat | None = None
    _broken: bool = False
    _sightings: int = 0
    _admitted: bool = False
    _collecting: bool = False
    _size: int = 0
    _asked_ns: int = 0
    _forward: str = MISS

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Answer from the store, or say why not: `MISS`, or `BYPASS` with a reason."""
        asked = exchange.head.headers.get("cache-control")
        directives = cache_control.parse(asked) if asked else cache_control.NOTHING_ASKED
        why = why_not_answered(exchange, any_temperature=self.config.any_temperature)
        if reason := "no-store" if directives.no_store else why:
            return _bypassed(exchange, reason, directives)
        self._key = cache_key(exchange, self.prepared)
        exchange.note("cache.key", self._key.decode())
        if hit := await self._stored(exchange, directives):
            return hit
        if directives.only_if_cached:
            raise not_stored(exchange, "store" if self._broken else "")
        seat = await self._counted(exchange, directives)
        if seat and (hit := await self._shared(exchange, seat, directives)):
            return hit
        if self._admitted:
            exchange.need(Need.REPLY)
        elif seat and seat.boarding is Boarding.LEADS:
            exchange.need(Need.HEAD)
        if self._broken:
            return _bypassed(exchange, "store", directives)
        say_miss(exchange, self._forward, self._sightings)
        self._asked_ns = self.ports.clock.monotonic_ns()
        return CONTINUE

    async def _stored(
        self, exchange: Exchange, directives: cache_control.Directives
    ) -> Answer | None:
        """Return what the store has for this client."""
        if directives.no_cache:
            self._forward = REQUEST
            return None
        try:
            stored = await self.ports.store.get(self._key)
        except PortError as error:
            exchange.note("cache.store", str(error))
            self._broken = True
            return None
        return self._hit(exchange, stored, directives) if stored else None

    async def _counted(
        self, exchange: Exchange, directives: cache_control.Directives
    ) -> Seat | None:
        """Count a sighting; return a place among those who ask the same, for one that takes part.

        Where all do, what a flight asks elsewhere goes with the sighting: both begin before one is
        awaited.
        """
        config = self.config
        takes_part = bool(config.coalesce.wait) and not directives.no_cache
        if takes_part and (config.coalesce.rare or config.admit_after == 1):
            self._seat = self._board(exchange)
        if not self._broken:
            store = self.ports.store
            try:
                self._sightings = await store.sighted(self._key, config.window, config.admit_after)
            except PortError as error:
                exchange.note("cache.store", str(error))
                self._broken = True
            self._admitted = self._sightings >= config.admit_after
        if takes_part and self._admitted and self._seat is None:
            self._seat = self._board(exchange)
        return self._seat

    def _board(self, exchange: Exchange) -> Seat:
        """Take a place among those who ask the same."""
        size = len(exchange.prompt.document.raw)
        return self.ports.flights.board(self._key, room=self.config.coalesce.room, size=size)

    async def _shared(
        self, exchange: Exchange, seat: Seat, directives: cache_control.Directives
    ) -> Answer | None:
        """Return what another exchange went for; None when this one has to go itself."""
        value = await seat.answer(self.config.coalesce.wait)
        note_flight(exchange, seat)
        hit = self._hit(exchange, value, directives) if value else None
        if seat.waited and seat.boarding is Boarding.LEADS and not self._broken:
            hit = await self._stored(exchange, directives)  # the one before may have stored it
        return collapsed(hit) if hit else None

    async def on_response(self, exchange: Exchange) -> None:
        """Collect only what is worth storing, or waited for: a success that is not compressed."""
        head, seat = exchange.reply_head, self._seat
        if head is None or head.status != 200:
            self._leave(again=True)
        elif "content-encoding" in head.headers:
            self._leave(again=False)
        elif self._admitted or (seat is not None and await seat.watched()):
            exchange.need(Need.REPLY)
            self._collecting = True
            self._pieces: list[bytes] = []
        else:
            self._leave(again=True)

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """Keep the bytes until there are too many."""
        if self._collecting:
            self._size += len(delta.raw)
            if self._size <= self.config.max_answer * STREAM_OVERHEAD:
                self._pieces.append(delta.raw)
            else:
                self._collecting = False
                self._pieces.clear()
                exchange.note("cache.skip", "size")
                self._leave(again=False)
        return (delta,)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Store a complete answer and share it; a partial one never."""
        # A reply whose body was not shown, for its type, is no failure: the next one is the same.
        again = outcome is not Outcome.FORWARDED
        try:
            if outcome is Outcome.COMPLETE and self._collecting:
                received = b"".join(self._pieces)
                given = await admit(exchange, received, self.config, self.ports.tokens)
                if isinstance(given, str):
                    exchange.note("cache.skip", given)
                    again = not is_for_nobody(given)
                else:
                    await self._give(exchange, given)
        finally:  # also when cancelled: others wait
            self._leave(again=again)

    async def _give(self, exchange: Exchange, given: Admitted) -> None:
        """Store an answer that is worth its place, and give it to those who wait."""
        clock = self.ports.clock
        took_ms = (clock.monotonic_ns() - self._asked_ns) // 1_000_000
        record = recorded(exchange, given, self.config, self._key, clock.now(), took_ms)
        written = write_record(record)
        try:
            if not self._admitted:
                exchange.note("cache.skip", "sightings")
            elif given.usage.output > self.config.max_tokens:
                exchange.note("cache.skip", "tokens")
            else:
                # Said first: the exchange's end may cancel us.
                exchange.note("cache.stored", len(given.body))
                await self.ports.store.put(self._key, written, record.ends - record.at)
        except PortError as error:
            del exchange.notes["cache.stored"]
            exchange.note("cache.store", str(error))
        finally:  # whoever comes from here on finds it stored, if it is
            if self._seat is not None:
                self._seat.land(written)

    def _leave(self, *, again: bool) -> None:
        if self._seat is not None:
            self._seat.leave(again=again)

    def _hit(
        self, exchange: Exchange, stored: bytes, asked: cache_control.Directives
    ) -> Answer | None:
        """Return the stored answer as this client asked for it; None when it will not do."""
        answer = serve(stored, exchange, self.config, asked, self.ports)
        if isinstance(answer, Answer):
            return answer
        if answer == REQUEST:
            self._forward = REQUEST
        return None


def _bypassed(exchange: Exchange, reason: str, asked: cache_control.Directives) -> Verdict:
    if asked.only_if_cached:
        raise not_stored(exchange, reason)
    say_bypass(exchange, reason)
    return CONTINUE
