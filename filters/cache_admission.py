"""Decide which requests may be answered from the cache, and which answers are worth keeping."""

from __future__ import annotations

from typing import Final

from filters.api import Exchange, Finish, Parameter, Usage
from filters.document import has_repeated_members, parse
from filters.errors import NotJson

BYTES_PER_TOKEN: Final = 4  # the usual rule of thumb, where a provider does not count
# Replayed as a stream, an answer repeats what surrounds its text in every piece of some 24
# characters and for every part: 60 KiB of the right shape would become 480 MB at each hit.
MOST_REPLAY_BYTES: Final = 16 * 1024 * 1024
PIECE_CHARS: Final = 24


def why_not_answered(exchange: Exchange, *, any_temperature: bool) -> str | None:
    """Return why a request may not be answered from the cache, or None.

    Its answer must rest on what it says alone, and would have to be the same a second time.
    """
    prompt = exchange.prompt
    if prompt.stateful:
        return "stateful"
    if (prompt.parameter(Parameter.CHOICES) or 1) != 1:
        return "choices"
    if any_temperature or exchange.dialect.operation == "embeddings":
        return None
    temperature = prompt.parameter(Parameter.TEMPERATURE)
    if temperature == 0 and temperature is not False:
        return None
    if temperature is None and prompt.parameter(Parameter.SEED) is not None:
        return None
    return "temperature"


def admit(
    exchange: Exchange, received: bytes, *, max_tokens: int, max_answer: int
) -> tuple[bytes, Usage] | str:
    """Return the plain reply to keep and its tokens, or why it is not worth its place.

    `received` is the whole body of a successful reply, streamed or not.
    """
    body = _plain_reply(exchange, received)
    if body is None:
        return "incomplete"
    plain = parse(body)
    if isinstance(plain, dict) and plain.get("error"):  # some send it behind half an answer
        return "error"
    reply = exchange.dialect.read_reply(plain)
    usage = reply.usage or Usage(output=len(reply.text.encode()) // BYTES_PER_TOKEN)
    if reply.finish is not Finish.STOP:
        return str(reply.finish)
    if reply.has_tool:
        return "tool"
    if usage.output > max_tokens:
        return "tokens"
    if len(body) > max_answer:
        return "size"
    if _most_replayed(body, reply.text) > MOST_REPLAY_BYTES:
        return "shape"
    if has_repeated_members(exchange.prompt.document.raw):
        return "repeated member"  # the upstream may have answered the one that is not in the key
    return body, usage


def _plain_reply(exchange: Exchange, received: bytes) -> bytes | None:
    """Return the plain JSON reply that a body is or stands for; None if it is not complete."""
    head = exchange.reply_head
    content_type = head.headers.get("content-type", "") if head else ""
    framer = exchange.dialect.framer(content_type, exchange.prompt)
    if framer is not None:
        return exchange.dialect.assemble([*framer.feed(received), *framer.close()])
    try:
        parse(received)
    except NotJson:
        return None
    return received


def _most_replayed(body: bytes, text: str) -> int:
    """Return how many bytes the replay of a reply may have at most, beside its text."""
    return (len(body) - len(text)) * (len(text) // PIECE_CHARS + body.count(b"{"))
