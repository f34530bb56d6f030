"""The estimate against what o200k really makes of texts in Chinese, English and code."""

from __future__ import annotations

import pytest

from filters.token_estimate import estimate_tokens
from tests.texts import TEXTS

WITHIN = 0.15


@pytest.mark.parametrize("name", TEXTS)
def test_an_estimate_is_within_15_percent(name: str) -> None:
    """Of the tokens that o200k makes of the text; test_tokens.py counts them again."""
    text, tokens = TEXTS[name]
    assert pytest.approx(tokens, rel=WITHIN) == estimate_tokens(text)


def test_an_empty_text_is_no_token() -> None:
    """And any other is one at least."""
    assert (0, 1, 1) == (estimate_tokens(""), estimate_tokens(" "), estimate_tokens("a"))


@pytest.mark.parametrize(
    "text", ["\ud800", "\0", "😀👩‍👩‍👧", "\uff46\uff55", "مرحبا", "ありがとう", "안녕"]
)
def test_any_character_can_be_estimated(text: str) -> None:
    """A lone surrogate as well: no text is refused."""
    assert 1 <= estimate_tokens(text) <= 3 * len(text.encode("utf-8", "surrogatepass"))


def test_an_estimate_grows_with_the_text() -> None:
    """Twice the text, twice the tokens."""
    for text, _ in TEXTS.values():
        assert 2 * estimate_tokens(text) == pytest.approx(estimate_tokens(text + text), abs=2)
