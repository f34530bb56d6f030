"""How many tokens a long prompt has by its samples, and what that costs."""

from __future__ import annotations

import random

import pytest

from filters.token_estimate import estimate_tokens
from filters.token_samples import MOST_WHOLE_CHARS, about_tokens
from tests.texts import TEXTS


def test_a_short_prompt_is_estimated_whole() -> None:
    """Its texts together are what they are apart, to a token for each."""
    texts = [text for text, *_ in TEXTS.values()]
    assert sum(map(len, texts)) < MOST_WHOLE_CHARS
    apart = sum(map(estimate_tokens, texts))
    assert pytest.approx(apart, abs=len(texts)) == about_tokens(texts, estimate_tokens)
    assert 0 == about_tokens([], estimate_tokens)


def test_words_sent_apart_are_not_run_together() -> None:
    """Each is a token, as it is in a sentence."""
    assert pytest.approx(400, rel=0.15) == about_tokens(["apple", "pears"] * 200, estimate_tokens)


@pytest.mark.parametrize("most_chars", [10, 5_000, 2_000_000])
def test_a_long_prompt_is_estimated_within_a_tenth(most_chars: int) -> None:
    """Mixed of Chinese, English and code, in texts of any length."""
    choice = random.Random(1)
    named = list(TEXTS.values())
    mixed = "\n".join(choice.choice(named)[0] for _ in range(400))
    texts = [mixed[at : at + most_chars] for at in range(0, len(mixed), most_chars)]
    whole = estimate_tokens(mixed)
    assert len(mixed) > 3 * MOST_WHOLE_CHARS
    assert whole * 0.9 < about_tokens(texts, estimate_tokens) < whole * 1.1


def test_no_more_is_estimated_than_samples() -> None:
    """Four megabytes cost as much as 64 KB."""
    asked: list[int] = []

    def estimate(text: str) -> int:
        asked.append(len(text))
        return len(text)

    assert 4_000_000 == about_tokens(["a" * 400_000] * 10, estimate)
    assert [MOST_WHOLE_CHARS] == asked
