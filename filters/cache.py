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
from filters.cache_flight import collapsed, is_for_nobody, note_flight
from filters.cache_key import KeyRule, cache_key
from filters.cache_record import Unreadable, read_record, write_record
from filters.cache_reply import deliver, hit, note_hit, recorded
from filters.cache_settings import CacheConfig
from filters.errors import FilterError, NotJson, PortError

# A stream repeats its envelope in every event: some 250 bytes for a token of 4, less where events
# hold more. With the default settings half a MiB is kept of a stream that is being read.
STREAM_OVERHEAD: Final = 8
# Why a request goes on, as RFC 9211, 2.2, has it: nothing was found, or nothing the client takes.
MISS: Final = "miss"
REQUEST: Final = "request"
NOT_STORED: Final = "no stored answer fits, and the request wants no other"


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
        directives = cache_control.parse(exchange.head.headers.get("cache-control", ""))
        why = why_not_answered(exchange, any_temperature=self.config.any_temperature)
        if reason := "no-store" if directives.no_store else why:
            return self._bypass(exchange, reason, directives)
        self._key = cache_key(exchange, self.prepared)
        exchange.note("cache.key", self._key.decode())
        if hit := await self._stored(exchange, directives):
            return hit
        if directives.only_if_cached:
            raise self._not_stored(exchange, "store" if self._broken else "")
        seat = await self._counted(exchange, directives)
        if seat and (hit := await self._shared(exchange, seat, directives)):
            return hit
        if self._admitted:
            exchange.need(Need.REPLY)
        elif seat and seat.boarding is Boarding.LEADS:
            exchange.need(Need.HEAD)
        if self._broken:
            return self._bypass(exchange, "store", directives)
        exchange.client_headers["x-cache"] = "MISS"
        exchange.upstream_headers["x-cache"] = "MISS"
        exchange.client_headers["cache-status"] = f"forebay; fwd={self._forward}"
        self._asked_ns = self.ports.clock.monotonic_ns()
        exchange.note("cache", "miss")
        exchange.note("cache.sightings", self._sightings)
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
        if value and (hit := self._hit(exchange, value, directives)):
            return collapsed(hit)
        return None

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
                given = admit(exchange, received, self.config, self.ports.tokens)
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

    def _bypass(self, exchange: Exchange, reason: str, asked: cache_control.Directives) -> Verdict:
        if asked.only_if_cached:
            raise self._not_stored(exchange, reason)
        exchange.client_headers["x-cache"] = "BYPASS"
        exchange.client_headers["cache-status"] = f"forebay; fwd=bypass; detail={reason}"
        exchange.note("cache", "bypass")
        exchange.note("cache.why", reason)
        return CONTINUE

    def _not_stored(self, exchange: Exchange, reason: str) -> FilterError:
        """Return the refusal of RFC 9111, 5.2.1.7, for what was not found or not looked for."""
        exchange.client_headers["x-cache"] = "BYPASS" if reason else "MISS"
        status = f"forebay; detail={reason or 'only-if-cached'}"  # neither hit nor forwarded
        exchange.client_headers["cache-status"] = status
        exchange.note("cache", "bypass" if reason else "miss")
        exchange.note("cache.why", reason or "only-if-cached")
        return FilterError(504, NOT_STORED)

    def _hit(
        self, exchange: Exchange, stored: bytes, asked: cache_control.Directives
    ) -> Answer | None:
        """Return the stored answer as this client asked for it; None when it will not do."""
        record = read_record(stored)
        if isinstance(record, Unreadable):
            exchange.note("cache.unreadable", record)
            return None
        now = self.ports.clock.now()
        ttl_s = self.config.ttl_context if record.context else self.config.ttl
        # A store may round its time up, the settings may have changed, and so may the clock.
        left_s = min(record.ends - now, record.at + ttl_s - now, ttl_s)
        age_s = max(0.0, now - record.at)
        if left_s <= 0:
            return None
        if not asked.allow(age_s, left_s):
            self._forward = REQUEST
            return None
        try:
            reply = deliver(record, exchange, now, self.ports.random)
        except NotJson:  # the next answer takes its place
            exchange.note("cache.unreadable", Unreadable.DAMAGED)
            return None
        if reply is None:
            return None
        note_hit(exchange, record, age_s)
        return hit(record, reply, age_s, left_s)
