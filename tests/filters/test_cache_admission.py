"""Which answers are worth keeping, beside what `test_cache.py` shows of the whole filter."""

from __future__ import annotations

import pytest

from filters.cache_admission import Admitted, admit
from filters.cache_settings import CacheConfig
from tests.exchanges import answer, exchange_of, reply_head
from tests.fakes import FakeTokens


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
    admitted = admit(exchange, answer("openai.chat"), CacheConfig(), FakeTokens())
    assert (kept or "repeated member") == (isinstance(admitted, Admitted) or admitted)
