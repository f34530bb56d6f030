"""Make of what a store has the answer for one client, if it will do."""

from __future__ import annotations

from dataclasses import replace

from filters.api import Answer, Exchange, Ports
from filters.cache_control import Directives
from filters.cache_record import Record, Unreadable, read_record
from filters.cache_reply import Written, deliver
from filters.cache_settings import CacheConfig
from filters.cache_status import MISS, REQUEST
from filters.errors import NotJson


def serve(
    stored: bytes, exchange: Exchange, config: CacheConfig, asked: Directives, ports: Ports
) -> Answer | str:
    """Return the stored answer as this client asked for it, or why the model is to be asked.

    That is `REQUEST` where the client wants none so old, else `MISS`.
    """
    record = read_record(stored)
    if isinstance(record, Unreadable):
        exchange.note("cache.unreadable", record)
        return MISS
    now = ports.clock.now()
    ttl_s = config.ttl_context if record.context else config.ttl
    # A store may round its time up, the settings may have changed, and so may the clock.
    left_s = min(record.ends - now, record.at + ttl_s - now, ttl_s)
    age_s = max(0.0, now - record.at)
    if left_s <= 0:
        return MISS
    if not asked.allow(age_s, left_s):
        return REQUEST
    try:
        reply = deliver(record, exchange, now, ports.random)
    except NotJson:  # the next answer takes its place
        exchange.note("cache.unreadable", Unreadable.DAMAGED)
        return MISS
    if reply is None:
        return MISS
    _note(exchange, record, age_s)
    return _answer(record, reply, age_s, left_s)


def collapsed(answer: Answer) -> Answer:
    """Return a hit as what it is: an answer that another exchange went for."""
    status = "forebay; fwd=miss; collapsed"
    return replace(answer, headers={**answer.headers, "cache-status": status})


def _answer(record: Record, reply: Written, age_s: float, left_s: float) -> Answer:
    """Return a stored answer with what RFC 9111 and RFC 9211 have said of it."""
    headers = {
        "content-type": reply.content_type,
        "x-cache": "HIT",
        "cache-status": f"forebay; hit; ttl={int(left_s)}",
        "age": str(int(age_s)),
    }
    if record.quality:
        headers["x-model-quality"] = record.quality
    return Answer(200, headers, reply.body)


def _note(exchange: Exchange, record: Record, age_s: float) -> None:
    """Say what was found and what it saved."""
    exchange.note("cache", "hit")
    exchange.note("cache.age_s", int(age_s))
    exchange.note("saved.input_tokens", record.input_tokens)
    exchange.note("saved.output_tokens", record.output_tokens)
    exchange.note("saved.ms", record.took_ms)
