"""Answer a prompt seen before without asking the model again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final

import msgspec

from filters import cache_control
from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Delta,
    Dialect,
    Exchange,
    Filter,
    Finish,
    Need,
    Outcome,
    Parameter,
    Prompt,
    Usage,
    Verdict,
)
from filters.cache_key import cache_key
from filters.document import parse
from filters.errors import NotJson, PortError
from filters.units import Duration, Size, SomeSize, SomeTime

# A stream repeats its envelope in every event: some 250 bytes for a token of 4, less where events
# hold more. With the default settings half a MiB is kept of a stream that is being read.
STREAM_OVERHEAD: Final = 8
BYTES_PER_TOKEN: Final = 4  # the usual rule of thumb, where a provider does not count
# Replayed as a stream, an answer repeats what surrounds its text in every piece of some 24
# characters and for every part: 60 KiB of the right shape would become 480 MB at each hit.
MOST_REPLAY_BYTES: Final = 16 * 1024 * 1024
PIECE_CHARS: Final = 24


class CacheConfig(Config, frozen=True):
    """What is kept, for how long, and from which sighting on."""

    ttl: SomeTime = Duration("300s")
    """How long an answer serves."""
    admit_after: Annotated[int, msgspec.Meta(ge=1)] = 5
    """A request is stored from this many sightings in `window` on."""
    window: SomeTime = Duration("1h")
    """Over what time sightings are counted."""
    any_temperature: bool = False
    """Also requests whose answer would vary; else temperature 0, or a seed and no temperature."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 256
    """Longer answers are not stored."""
    max_answer: SomeSize = Size("64KiB")
    """Answers of more bytes are not stored either."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A stored answer: the provider's plain JSON reply, and when and how it was given."""

    at: float
    """Unix time in seconds."""
    quality: str
    output_tokens: int
    input_tokens: int
    body: bytes


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Record)


class CacheFilter(Filter[CacheConfig]):
    """Looks an exchange up when its request is whole, and stores its answer after the last byte."""

    name: ClassVar[str] = "cache"
    config_type: ClassVar[type[Config]] = CacheConfig

    _key: bytes = b""
    _collecting: bool = False
    _size: int = 0

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Answer from the store, or say why not: `MISS`, or `BYPASS` with a reason."""
        directives = cache_control.parse(exchange.head.headers.get("cache-control", ""))
        if reason := self._why_not(exchange, directives):
            return self._bypass(exchange, reason)
        self._key = cache_key(exchange)
        try:
            if not directives.no_cache:
                stored = await self.ports.store.get(self._key)
                if stored and (hit := self._hit(exchange, stored, directives)):
                    return hit
            sightings = await self.ports.store.sighted(self._key + b":seen", self.config.window)
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
        content_type = exchange.reply_head.headers.get("content-type", "")
        body = _plain_reply(exchange.dialect, exchange.prompt, content_type, b"".join(self._pieces))
        if body is None:
            exchange.note("cache.skip", "incomplete")
            return
        plain = parse(body)
        if isinstance(plain, dict) and plain.get("error"):  # some send it behind half an answer
            exchange.note("cache.skip", "error")
            return
        reply = exchange.dialect.read_reply(plain)
        usage = reply.usage or Usage(output=len(reply.text.encode()) // BYTES_PER_TOKEN)
        if reply.finish is not Finish.STOP or reply.has_tool:
            exchange.note("cache.skip", str(reply.finish))
        elif usage.output > self.config.max_tokens:
            exchange.note("cache.skip", "tokens")
        elif len(body) > self.config.max_answer:
            exchange.note("cache.skip", "size")
        elif _most_replayed(body, reply.text) > MOST_REPLAY_BYTES:
            exchange.note("cache.skip", "shape")
        else:
            record = Record(
                at=self.ports.clock.now(),
                quality=exchange.client_headers.get("x-model-quality", ""),
                output_tokens=usage.output,
                input_tokens=usage.input,
                body=body,
            )
            exchange.note("cache.stored", len(body))  # said first: the exchange's end may cancel us
            try:
                await self.ports.store.put(self._key, _ENCODER.encode(record), self.config.ttl)
            except PortError as error:
                del exchange.notes["cache.stored"]
                exchange.note("cache.store", str(error))

    def _why_not(self, exchange: Exchange, directives: cache_control.Directives) -> str | None:
        """Return why this request may not be answered from the cache, or None."""
        prompt = exchange.prompt
        if directives.no_store:
            return "no-store"
        if prompt.stateful:
            return "stateful"
        if (prompt.parameter(Parameter.CHOICES) or 1) != 1:
            return "choices"
        if self.config.any_temperature or exchange.dialect.operation == "embeddings":
            return None
        temperature = prompt.parameter(Parameter.TEMPERATURE)
        if temperature == 0 and temperature is not False:
            return None
        if temperature is None and prompt.parameter(Parameter.SEED) is not None:
            return None
        return "temperature"

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
        try:
            record = _DECODER.decode(stored)
            reply = parse(record.body)
        except (msgspec.MsgspecError, NotJson):
            exchange.note("cache.store", "unreadable record")
            return None
        age_s = max(0, math.floor(self.ports.clock.now() - record.at))
        if directives.max_age_s is not None and age_s > directives.max_age_s:
            return None
        if exchange.prompt.stream:
            content_type, body = exchange.dialect.replay(reply, exchange.prompt)
        else:
            content_type, body = "application/json", record.body
        exchange.note("cache", "hit")
        exchange.note("cache.age_s", age_s)
        exchange.note("saved.input_tokens", record.input_tokens)
        exchange.note("saved.output_tokens", record.output_tokens)
        remaining_s = max(0, math.floor(self.config.ttl) - age_s)
        headers = {
            "content-type": content_type,
            "x-cache": "HIT",
            "cache-status": f"forebay; hit; ttl={remaining_s}",
            "age": str(age_s),
        }
        if record.quality:
            headers["x-model-quality"] = record.quality
        return Answer(200, headers, body)


def _most_replayed(body: bytes, text: str) -> int:
    """Return how many bytes the replay of a reply may have at most, beside its text."""
    return (len(body) - len(text)) * (len(text) // PIECE_CHARS + body.count(b"{"))


def _plain_reply(dialect: Dialect, prompt: Prompt, content_type: str, body: bytes) -> bytes | None:
    """Return the plain JSON reply of a whole body, streamed or not; None if it is not complete."""
    framer = dialect.framer(content_type, prompt)
    if framer is None:
        try:
            parse(body)
        except NotJson:
            return None
        return body
    return dialect.assemble([*framer.feed(body), *framer.close()])
