"""Give a stored answer as a reply of its own: new id, new time, in the words of who asks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from filters.api import Dialect, Exchange, Finish, Prompt, Random, Stamp, Usage
from filters.cache_admission import Admitted, rests_on_context
from filters.cache_record import Mark, Record, spread_ttl
from filters.cache_settings import CacheConfig
from filters.dialects import DIALECTS
from filters.document import Json, encode, parse
from filters.json_spans import spans

NAME_BYTES: Final = 16  # of an id: as unlikely to come twice as a UUID
_PREFIX: Final = re.compile(r"[A-Za-z]{1,16}[-_]")  # `chatcmpl-`, `msg_`: what kind of id it is


def recorded(
    exchange: Exchange,
    given: Admitted,
    config: CacheConfig,
    key: bytes,
    at_s: float,
    took_ms: int,
) -> Record:
    """Return what is kept of an answer, and until when."""
    context = rests_on_context(exchange.prompt)
    return Record(
        at=at_s,
        ends=at_s + spread_ttl(config.ttl_context if context else config.ttl, key),
        quality=exchange.client_headers.get("x-model-quality", ""),
        output_tokens=given.usage.output,
        input_tokens=given.usage.input,
        body=given.body,
        dialect=exchange.dialect.name,
        took_ms=took_ms,
        context=context,
        marks=find_marks(given.body, given.plain, exchange.dialect, exchange.prompt),
    )


class Written(NamedTuple):
    """A reply as the client gets it."""

    content_type: str
    body: bytes


def deliver(record: Record, exchange: Exchange, at_s: float, random: Random) -> Written | None:
    """Return the reply that `record` is for this client; None when it cannot be written for it."""
    dialect, prompt = exchange.dialect, exchange.prompt
    if record.dialect == dialect.name:
        body = renewed(record.body, record.marks, int(at_s), random)
        if not prompt.stream:
            return Written("application/json", body)
        return Written(*dialect.replay(parse(body), prompt))
    plain = _rewritten(record, dialect, int(at_s), random)
    if plain is None:
        return None
    if not prompt.stream:
        return Written("application/json", encode(plain))
    return Written(*dialect.replay(plain, prompt))


def _rewritten(record: Record, dialect: Dialect, at_s: int, random: Random) -> Json:
    """Return the answer in another dialect's words, or None."""
    source = DIALECTS.get(record.dialect)
    if source is None:
        return None
    reply = source.read_reply(parse(record.body))
    if reply.finish is not Finish.STOP or reply.has_tool:
        return None
    counted = reply.usage or Usage(record.input_tokens, record.output_tokens)
    return dialect.write(replace(reply, usage=counted), random(NAME_BYTES).hex(), at_s)


# --- What no two replies share -------------------------------------------------------------------


def find_marks(body: bytes, plain: Json, dialect: Dialect, prompt: Prompt) -> tuple[Mark, ...]:
    """Return where in the bytes of a plain reply its ids and times stand, in their order."""
    stamps = dialect.stamps(plain, prompt)
    if not stamps:
        return ()
    marks = []
    for path, (start, end) in spans(body, stamps).items():
        stamp = stamps[path]
        if stamp is not Stamp.SECONDS:
            start, end = start + 1, end - 1  # noqa: PLW2901 - the quotes stay
        if stamp is Stamp.ID and (prefix := _PREFIX.match(body[start:end].decode())):
            start += prefix.end()  # noqa: PLW2901
        marks.append(Mark(start, end, stamp))
    return tuple(sorted(marks, key=lambda mark: mark.start))


def renewed(body: bytes, marks: Sequence[Mark], at_s: int, random: Random) -> bytes:
    """Return a plain reply with an id and a time of its own; all else keeps its bytes."""
    if not marks:
        return body
    pieces: list[bytes] = []
    at = 0
    for start, end, stamp in marks:
        pieces.append(body[at:start])
        if stamp is _ID:
            pieces.append(random(NAME_BYTES).hex().encode())
        elif stamp is _SECONDS:
            pieces.append(b"%d" % at_s)
        else:
            moment = datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
            pieces.append(moment.encode())
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


_ID: Final = Stamp.ID  # in Python 3.11 reading an enum's member costs 0.1 us
_SECONDS: Final = Stamp.SECONDS
