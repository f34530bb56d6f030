"""Answer a prompt seen before without asking the model again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final

import msgspec

from filters import cache_control
from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Delta,
    Exchange,
    Filter,
    Need,
    Outcome,
    Verdict,
)
from filters.cache_admission import admit, why_not_answered
from filters.cache_key import KeyRule, cache_key
from filters.cache_record import Record, Unreadable, read_record, spread_ttl, write_record
from filters.cache_rules import Ignored
from filters.document import parse
from filters.errors import PortError
from filters.units import Duration, Size, SomeSize, SomeTime

# A stream repeats its envelope in every event: some 250 bytes for a token of 4, less where events
# hold more. With the default settings half a MiB is kept of a stream that is being read.
STREAM_OVERHEAD: Final = 8


class CacheConfig(Config, frozen=True):
    """What is kept, for how long, and from which sighting on."""

    ttl: SomeTime = Duration("300s")
    """How long an answer serves."""
    admit_after: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    """A request is stored from this many sightings in `window` on."""
    window: SomeTime = Duration("1h")
    """Over what time sightings are counted."""
    any_temperature: bool = False
    """Also requests whose answer would vary; else temperature 0, or a seed and no temperature."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Longer answers are not stored."""
    max_answer: SomeSize = Size("64KiB")
    """Answers of more bytes are not stored either."""
    ignore: tuple[Ignored, ...] = ()
    """Members of a request that do not count, such as `user`."""
    share_tenants: bool = False
    """Give one tenant's answers to the others."""
    across_dialects: bool = False
    """Answer a plain question from what was stored for a client of another provider's."""

    @property
    def key_rule(self) -> KeyRule:
        """What of it bears on keys."""
        return KeyRule(frozenset(self.ignore), self.share_tenants, self.across_dialects)


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
        """Return what decides which requests are taken for one."""
        return sorted(set(config.ignore))

    _key: bytes = b""
    _collecting: bool = False
    _size: int = 0

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Answer from the store, or say why not: `MISS`, or `BYPASS` with a reason."""
        directives = cache_control.parse(exchange.head.headers.get("cache-control", ""))
        why = why_not_answered(exchange, any_temperature=self.config.any_temperature)
        if reason := "no-store" if directives.no_store else why:
            return self._bypass(exchange, reason)
        self._key = cache_key(exchange, self.prepared)
        exchange.note("cache.key", self._key.decode())
        try:
            if not directives.no_cache:
                stored = await self.ports.store.get(self._key)
                if stored and (hit := self._hit(exchange, stored, directives)):
                    return hit
            sightings = await self.ports.store.sighted(
                self._key, self.config.window, self.config.admit_after
            )
        except PortError as error:
            exchange.note("cache.store", str(error))
            return self._bypass(exchange, "store")
        exchange.client_headers["x-cache"] = "MISS"
        exchange.upstream_headers["x-cache"] = "MISS"
        forward = "request" if directives.no_cache else "uri-miss"
        exchange.client_headers["cache-status"] = f"forebay; fwd={forward}"
        exchange.note("cache", "miss")
        exchange.note("cache.sightings", sightings)
        if sightings >= self.config.admit_after:
            exchange.need(Need.REPLY)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Collect only what is worth storing: a success that was not cut or compressed."""
        head = exchange.reply_head
        self._collecting = (
            head is not None
            and bool(self._key)
            and head.status == 200
            and "content-encoding" not in head.headers
        )
        self._pieces: list[bytes] = []

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
        return (delta,)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Store a complete answer; a partial one never."""
        if outcome is not Outcome.COMPLETE or not self._collecting or exchange.reply_head is None:
            return
        admitted = admit(
            exchange,
            b"".join(self._pieces),
            max_tokens=self.config.max_tokens,
            max_answer=self.config.max_answer,
        )
        if isinstance(admitted, str):
            exchange.note("cache.skip", admitted)
            return
        body, usage = admitted
        now = self.ports.clock.now()
        ttl_s = spread_ttl(self.config.ttl, self._key)
        record = Record(
            at=now,
            ends=now + ttl_s,
            quality=exchange.client_headers.get("x-model-quality", ""),
            output_tokens=usage.output,
            input_tokens=usage.input,
            body=body,
        )
        exchange.note("cache.stored", len(body))  # said first: the exchange's end may cancel us
        try:
            await self.ports.store.put(self._key, write_record(record), ttl_s)
        except PortError as error:
            del exchange.notes["cache.stored"]
            exchange.note("cache.store", str(error))

    def _bypass(self, exchange: Exchange, reason: str) -> Verdict:
        exchange.client_headers["x-cache"] = "BYPASS"
        exchange.client_headers["cache-status"] = f"forebay; fwd=bypass; detail={reason}"
        exchange.note("cache", "bypass")
        exchange.note("cache.why", reason)
        return CONTINUE

    def _hit(
        self, exchange: Exchange, stored: bytes, directives: cache_control.Directives
    ) -> Answer | None:
        """Return the stored answer as this client asked for it, unless it is too old for it."""
        record = read_record(stored)
        if isinstance(record, Unreadable):
            exchange.note("cache.unreadable", record)
            return None
        now = self.ports.clock.now()
        if record.ends <= now:  # a store may round its time up
            return None
        age_s = max(0, math.floor(now - record.at))
        if directives.max_age_s is not None and age_s > directives.max_age_s:
            return None
        if exchange.prompt.stream:
            content_type, body = exchange.dialect.replay(parse(record.body), exchange.prompt)
        else:
            content_type, body = "application/json", record.body
        exchange.note("cache", "hit")
        exchange.note("cache.age_s", age_s)
        exchange.note("saved.input_tokens", record.input_tokens)
        exchange.note("saved.output_tokens", record.output_tokens)
        remaining_s = math.floor(record.ends - now)
        headers = {
            "content-type": content_type,
            "x-cache": "HIT",
            "cache-status": f"forebay; hit; ttl={remaining_s}",
            "age": str(age_s),
        }
        if record.quality:
            headers["x-model-quality"] = record.quality
        return Answer(200, headers, body)
