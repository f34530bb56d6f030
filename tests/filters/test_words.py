"""The word lists, and what counts as finding a word."""

import pytest

from filters.words import HIGH_RISK, LOW_RISK, WordFinder


@pytest.mark.parametrize("word", [*LOW_RISK, *HIGH_RISK])
def test_every_word_is_found_alone_and_in_a_sentence(word: str) -> None:
    """A word stands at either end, between spaces, or in any case."""
    finder = WordFinder([word])
    assert word == finder.first(word)
    assert word == finder.first(f"so {word.upper()}, please")


@pytest.mark.parametrize("text", ["an issue of tissue", "courteous", "resue", "sue_me", "2sue"])
def test_an_english_word_must_stand_alone(text: str) -> None:
    """`sue` is not in `issue`, nor `court` in `courteous`."""
    assert WordFinder(["sue", "court"]).first(text) is None


def test_a_chinese_word_needs_no_borders() -> None:
    """Chinese writes no spaces between words."""
    assert "总结" == WordFinder(LOW_RISK).first("请帮我总结一下这篇文章")


def test_a_word_inside_another_does_not_hide_the_later_one() -> None:
    """A hit that does not stand alone is passed over, and the search goes on."""
    assert "sue" == WordFinder(["sue"]).first("this issue: I will sue")


def test_a_text_whose_lower_case_is_longer_is_searched_all_the_same() -> None:
    """`İ` becomes two characters in lower case; positions are those of the lower text."""
    assert "sue" == WordFinder(["sue"]).first("İİİ sue")


def test_no_word_is_in_both_lists() -> None:
    """A word cannot be low and high risk at once."""
    assert set() == set(LOW_RISK) & set(HIGH_RISK)


@pytest.mark.parametrize(
    "text",
    [
        "dos\u202eage",
        "\uff44\uff4f\uff53\uff41\uff47\uff45",
        "do\u0301sage",
        "DO\u00adSAGE",
        "do\u200bsage",
        "一次\uff0cdosage 用",
        "d\u043esag\u0435",
        "D\u041eS\u0391GE",
        "\u0501\u03bf\u0455\u0430g\u0435",
    ],
)
def test_marks_that_nobody_sees_hide_no_word(text: str) -> None:
    """Nor does the width of its letters, nor their script: Cyrillic and Greek ones look alike."""
    assert "dosage" == WordFinder(["dosage"]).first(f"List the {text}")


@pytest.mark.parametrize(
    "text",
    ["В суде рассмотрят иск", "Ο δικαστής αποφάσισε", "список рек"],  # noqa: RUF001 - whole words
)
def test_words_of_another_script_are_no_english_ones(text: str) -> None:
    """Their letters look alike one by one; a word of them does not."""
    assert WordFinder([*LOW_RISK, *HIGH_RISK]).first(text) is None
