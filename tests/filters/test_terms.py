"""The terms by which a question finds a sentence."""

from __future__ import annotations

import pytest

from filters.terms import names_in, stem, terms_of


@pytest.mark.parametrize(
    "words",
    [
        ("carry", "carries", "carried"),
        ("run", "running", "runs"),
        ("establish", "established", "establishment"),
        ("roof", "roofs", "roofed"),
        ("price", "prices", "priced"),
        ("locate", "located", "locates"),
        ("director", "directors", "direct"),
    ],
)
def test_forms_of_a_word_have_one_stem(words: tuple[str, ...]) -> None:
    """Whichever the question uses."""
    assert 1 == len({stem(word) for word in words})


def test_words_that_say_nothing_are_left_out() -> None:
    """Articles, pronouns, question words; in Chinese, particles."""
    assert [] == terms_of("What is it that you have, and where are they?")
    assert ["天空", "蓝色"] == terms_of("天空是蓝色的吗？")


def test_chinese_is_taken_in_pairs() -> None:
    """A name that both have is found without a dictionary."""
    assert ["青石", "石博", "博物", "物馆"] == terms_of("青石博物馆")


def test_numbers_and_codes_are_terms() -> None:
    """However they are written."""
    assert ["1200", "p204", "3.5"] == terms_of("1,200 of P-204 at 3.5")
    assert terms_of("p204") == terms_of("P-204")


def test_a_question_names_what_has_capitals_and_digits() -> None:
    """Its first word is no name for that."""
    assert {stem("larkspur"), stem("museum")} == names_in("When was the Larkspur Museum built?")
    assert {"p204"} == names_in("Where is pump P-204?")
    assert set() == names_in("Where is it? Why not?")
