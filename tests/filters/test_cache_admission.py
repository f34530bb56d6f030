"""Which answers are worth keeping, beside what `test_cache.py` shows of the whole filter."""

from __future__ import annotations

import pytest

from filters.cache_admission import Admitted, admit
from filters.cache_settings import CacheConfig
from filters.document import encode, parse
from tests.exchanges import answer, ask, exchange_of, reply_head
from tests.fakes import FakeTokens, PortWait, drive


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b'{"messages":[{"content":"bad"}],"messages":[{"content":"good"}]}', False),
        (b'{"messages":[{"content":"bad","content":"good"}]}', False),
        (b'{"messages":[{"content":"good"}]}', True),
    ],
)
def test_the_answer_to_a_body_that_can_be_read_in_two_ways_is_not_kept(
    body: bytes, kept: bool
) -> None:
    """The key is that of the last member; an upstream that reads the first answered another."""
    exchange = exchange_of("openai.chat", body, "/v1/chat/completions")
    exchange.reply_head = reply_head()
    admitted = drive(admit(exchange, answer("openai.chat"), CacheConfig(), FakeTokens()))
    assert (kept or "repeated member") == (isinstance(admitted, Admitted) or admitted)


@pytest.mark.parametrize(
    ("tokens", "most", "waits"),
    [(200, 256, []), (2_000, 2_560, [PortWait("tokens")]), (2_000, 256, [])],
    ids=["short", "long", "long, and far from the most"],
)
def test_an_answer_that_nobody_counted_is_counted_while_others_are_served(
    tokens: int, most: int, waits: list[PortWait]
) -> None:
    """Where it is long, and near the most that is kept."""
    reply = parse(answer("openai.chat", "why " * tokens))
    assert isinstance(reply, dict)
    del reply["usage"]
    exchange = ask("openai.chat", "why?")
    exchange.reply_head = reply_head()
    waited: list[PortWait] = []
    admitted = drive(
        admit(exchange, encode(reply), CacheConfig(max_tokens=most), FakeTokens()), waited
    )
    assert isinstance(admitted, Admitted)
    assert (tokens, waits) == (admitted.usage.output, waited)
