"""Decide which requests may be answered from the cache, and which answers are worth keeping."""

from __future__ import annotations

from typing import Final, NamedTuple

from filters.api import Exchange, Finish, Parameter, Prompt, Role, Tokens, Usage
from filters.cache_settings import CacheConfig
from filters.document import Json, has_repeated_members, parse
from filters.errors import NotJson
from filters.token_samples import tokens_of

CONTEXT_CHARS: Final = 2_000  # of one text of a user's: a document rather than a question
DOUBT: Final = 1.5  # an estimate of tokens is nearer than that
# Replayed as a stream, an answer repeats what surrounds its text in every piece of some 24
# characters and for every part: 60 KiB of the right shape would become 480 MB at each hit.
MOST_REPLAY_BYTES: Final = 16 * 1024 * 1024
PIECE_CHARS: Final = 24
_CHOICES: Final = Parameter.CHOICES  # in Python 3.11 reading an enum's member costs 0.1 us
_TEMPERATURE: Final = Parameter.TEMPERATURE


def why_not_answered(exchange: Exchange, *, any_temperature: bool) -> str | None:
    """Return why a request may not be answered from the cache, or None.

    Its answer must rest on what it says alone, and would have to be the same a second time.
    """
    prompt = exchange.prompt
    if prompt.stateful:
        return "stateful"
    if (prompt.parameter(_CHOICES) or 1) != 1:
        return "choices"
    if any_temperature or exchange.dialect.operation == "embeddings":
        return None
    temperature = prompt.parameter(_TEMPERATURE)
    if temperature == 0 and temperature is not False:
        return None
    if temperature is None and prompt.parameter(Parameter.SEED) is not None:
        return None
    return "temperature"


class Admitted(NamedTuple):
    """An answer that may be given again."""

    body: bytes
    """The plain reply, whether it came streamed or not."""
    plain: Json
    usage: Usage
    """As the provider counted, or its output counted here."""


async def admit(
    exchange: Exchange, received: bytes, config: CacheConfig, tokens: Tokens
) -> Admitted | str:
    """Return the answer to give again, or why that must not be.

    `received` is the whole body of a successful reply, streamed or not.
    """
    body = _plain_reply(exchange, received)
    if body is None:
        return "incomplete"
    plain = parse(body)
    if isinstance(plain, dict) and plain.get("error"):  # some send it behind half an answer
        return "error"
    reply = exchange.dialect.read_reply(plain)
    if (reply.has_tool or reply.finish is Finish.TOOL) and not config.tools:
        return "tool"
    if reply.finish not in (Finish.STOP, Finish.TOOL):
        return str(reply.finish)
    if len(body) > config.max_answer:
        return "size"
    if _most_replayed(body, reply.text) > MOST_REPLAY_BYTES:
        return "shape"
    if has_repeated_members(exchange.prompt.document.raw):
        return "repeated member"  # the upstream may have answered the one that is not in the key
    usage = reply.usage
    if usage is None:
        model = exchange.prompt.model
        usage = Usage(output=await _counted(reply.text, model, config.max_tokens, tokens))
    return Admitted(body, plain, usage)


async def _counted(text: str, model: str, most: int, tokens: Tokens) -> int:
    """Return how many tokens an answer is: counted where it is near the most that are kept."""
    estimate = tokens.estimate(text)
    if most / DOUBT < estimate < most * DOUBT:
        return await tokens_of([text], model, tokens)
    return estimate


def rests_on_context(prompt: Prompt) -> bool:
    """Tell whether a prompt carries more than a question: what it rests on may be another soon.

    That is an earlier answer, a tool's call or result, an image, a sound or a file, or a text of a
    user's that is long enough for a document.
    """
    return any(
        turn.role in (Role.ASSISTANT, Role.TOOL)
        or turn.has_tool
        or turn.has_media
        or (turn.role is Role.USER and any(len(text.value) > CONTEXT_CHARS for text in turn.texts))
        for turn in prompt.turns()
    )


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
