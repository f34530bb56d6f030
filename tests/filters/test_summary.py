"""What a summary keeps of a text, and what for."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.sentences import split_sentences
from filters.summary import NOTHING_KEPT, summarise, summarise_all
from filters.token_estimate import estimate_tokens
from tests.texts import TEXTS

LIMIT: Final = 64
ENGLISH: Final = (
    "The valley has four mills, and all of them are old. The Larkspur Mill has a roof of slate. "
    "Its wheel was made in 1874. The Merrow Mill has a roof of copper. Its wheel was made in 1902. "
    "Visitors come in summer, mostly by train. The path along the river is closed in winter. "
    "Nobody may swim in the ponds. Flour is no longer ground in any of the mills. "
    "A fair is held in May. The innkeeper does not accept cards. The bridge was painted last year. "
)
CHINESE: Final = (
    "山谷里有四座磨坊，都很老了。青石磨坊的屋顶是石板的。它的水轮造于1874年。"
    "柳溪磨坊的屋顶是铜的。它的水轮造于1902年。夏天游客很多，大多坐火车来。"
    "冬天河边的小路不开放。池塘里不许游泳。现在磨坊都不再磨面粉。五月有集市。"
    "旅店不收银行卡。桥去年刷过漆。"
)


@pytest.mark.parametrize(
    ("text", "question", "fact"),
    [
        (ENGLISH, "What is the Merrow Mill roofed with?", "The Merrow Mill has a roof of copper."),
        (ENGLISH, "May one swim in a pond?", "Nobody may swim in the ponds."),
        (ENGLISH, "Can I pay by card at the inn?", "The innkeeper does not accept cards."),
        (CHINESE, "柳溪磨坊的屋顶是什么做的？", "柳溪磨坊的屋顶是铜的。"),
        (CHINESE, "可以在池塘游泳吗？", "池塘里不许游泳。"),
    ],
)
def test_what_is_asked_for_is_kept(text: str, question: str, fact: str) -> None:
    """Word for word, with its negation."""
    assert fact in summarise(text, LIMIT, question)


@pytest.mark.parametrize(
    ("text", "question", "facts"),
    [
        (
            ENGLISH,
            "When was the wheel of the Merrow Mill made?",
            ["The Merrow Mill has a roof of copper. ", "Its wheel was made in 1902."],
        ),
        (CHINESE, "柳溪磨坊的水轮是哪年造的？", ["柳溪磨坊的屋顶是铜的。", "它的水轮造于1902年。"]),
    ],
)
def test_a_fact_comes_with_the_sentence_that_says_of_what(
    text: str, question: str, facts: list[str]
) -> None:
    """A pronoun alone could mean the other mill."""
    assert "".join(facts) in summarise(text, LIMIT, question)


def test_a_fact_is_found_under_its_heading() -> None:
    """Which is kept with it."""
    filler = "The weather was fair and the road was dry on every day of the week.\n\n" * 12
    text = f"{filler}## Boiler B-12\n\nThe limit is 9 bar.\n\n## Boiler B-27\n\nThe limit is 7 bar."
    summary = summarise(text, LIMIT, "How many bar can boiler B-27 take?")
    assert "## Boiler B-27\n\nThe limit is 7 bar." in summary


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("question", ["", "What does it say about the price?", "价格是多少？"])
def test_a_summary_is_made_of_whole_sentences_in_their_order(name: str, question: str) -> None:
    """And fits, within what an estimate of its sentences is worth."""
    text, _ = TEXTS[name]
    summary = summarise(text, LIMIT, question)
    at = 0
    for sentence in split_sentences(text):
        found = summary.find(sentence.text.strip(), at)
        at = found + len(sentence.text.strip()) if found >= 0 else at
    assert len(summary) == at
    assert 0 < estimate_tokens(summary) <= LIMIT * 1.1 or 1 == len(split_sentences(summary))


def test_a_text_that_fits_stays_as_it_is() -> None:
    """White space and all."""
    assert " Two\n\n words.  " == summarise(" Two\n\n words.  ", LIMIT)


def test_the_same_text_has_the_same_summary() -> None:
    """Caches of prefixes live on it."""
    assert 1 == len({summarise(ENGLISH, LIMIT, "Which roof?") for _ in range(5)})


def test_a_sentence_is_kept_once() -> None:
    """Its repetition says nothing."""
    text = ENGLISH + "Nobody may swim in the ponds. " * 5
    assert 1 == summarise(text, LIMIT, "May one swim?").count("swim")


def test_without_a_question_the_beginning_and_the_subject_are_kept() -> None:
    """What the sentences have in common."""
    assert summarise(ENGLISH, LIMIT).startswith("The valley has four mills")


def test_several_texts_share_one_budget() -> None:
    """The one that has the answer gets it; nothing stands for the others."""
    other = TEXTS["english_letter"][0]
    summaries = summarise_all([other, ENGLISH], 24, "What is the Merrow Mill roofed with?")
    assert NOTHING_KEPT == summaries[0]
    assert "The Merrow Mill has a roof of copper." in summaries[1]


@given(st.text(min_size=1), st.text(), st.integers(1, 50))
def test_any_text_has_a_summary(text: str, question: str, limit: int) -> None:
    """That is never empty, and no longer than the text."""
    summary = summarise(text, limit, question)
    assert summary
    assert len(summary) <= max(len(text), len(NOTHING_KEPT))
