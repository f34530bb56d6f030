"""Two answers are as alike as the longest row of words that both have is long."""

from __future__ import annotations

import random

import pytest

from filters.likeness import MOST_WORDS, likeness, longest_common, words


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 1.0),
        ("The cat, sat!", "the  CAT\nsat", 1.0),
        ("\uff46\uff55\uff4c\uff4c width", "full width", 1.0),
        ("a b c d", "a c", 2 * 2 / 6),
        ("a b c d", "d c b a", 2 * 1 / 8),
        ("one two", "three four", 0.0),
        ("水会结冰", "水结冰", 2 * 3 / 7),
        ("水会结冰。", "水会结冰", 1.0),
        ("Python 是语言", "python 是一种语言", 2 * 4 / 10),
        ("カタカナ", "カナ", 2 * 2 / 6),
        ("한국어 문장", "한국어 문장", 1.0),
        ("said", "", 0.0),
        ("", "", 1.0),
        ("!!!", "!!!\n", 1.0),
        ("!!!", "???", 0.0),
    ],
)
def test_likeness_is_the_f1_of_the_longest_common_row(
    one: str, other: str, expected: float
) -> None:
    """Order counts; case, width and marks do not; a Chinese character is a word."""
    assert expected == likeness(one, other)
    assert expected == likeness(other, one)


def test_the_row_is_the_one_that_the_table_of_the_textbook_finds() -> None:
    """For rows of any length, repeated words included."""
    dice = random.Random(7)
    for _ in range(300):
        one, other = ([dice.choice("abcd") for _ in range(dice.randrange(40))] for _ in range(2))
        assert _by_table(one, other) == longest_common(one, other)


def _by_table(one: list[str], other: list[str]) -> int:
    above = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for at, there in enumerate(other):
            row.append(above[at] + 1 if word == there else max(above[at + 1], row[at]))
        above = row
    return above[-1]


def test_what_is_behind_many_words_does_not_count() -> None:
    """So that no pair of answers holds a worker for long."""
    text = "word " * MOST_WORDS
    assert MOST_WORDS == len(words(text + "more"))
    assert 1.0 == likeness(text + "one end", text + "another")
