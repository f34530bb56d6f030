"""The bench of what shorter prompts keep: its cases, its measure, its plot."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ext_proc.tools.bench_facts import (
    GOAL_CUT,
    GOAL_KEPT,
    USUAL,
    Row,
    good,
    measure,
    plot,
    table,
)
from ext_proc.tools.facts import Case, Fact, is_kept, made_cases, made_chats, texts_of
from ext_proc.tools.facts_words import LANGUAGES
from filters.token_estimate import estimate_tokens

NAMED = Fact("the Holm Mill", "The Holm Mill dates from 1874.", "How old is it?", True)
MEANT = Fact("the Holm Mill", "It dates from 1874.", "How old is the Holm Mill?", False)


def case(fact: Fact) -> Case:
    return Case("tags", (), fact, ("the Merrow Mill",))


@pytest.mark.parametrize(
    ("fact", "prompt", "expected"),
    [
        (NAMED, "So. The Holm Mill dates from 1874. Yes.", True),
        (NAMED, "The Holm Mill dates from 1873.", False),
        (NAMED, "", False),
        (MEANT, "The Holm Mill is old. It dates from 1874.", True),
        (MEANT, "It dates from 1874.", False),
        (MEANT, "The Holm Mill and the Merrow Mill are old. It dates from 1874.", False),
        (MEANT, "The Merrow Mill is old. It dates from 1874. The Holm Mill is not.", False),
    ],
)
def test_a_fact_is_kept_when_it_is_there_and_clear_of_whom(
    fact: Fact, prompt: str, expected: bool
) -> None:
    """A pronoun behind another subject's name is a wrong answer."""
    assert expected == is_kept(case(fact), prompt)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_asked_can_be_answered_from_the_whole(language: str) -> None:
    """Every fact is in its document or chat, clear of whom; the question is at hand as well."""
    words = LANGUAGES[language]
    cases = [*made_cases(words, 1, 20, 4), *made_chats(words, 1, 10, 4)]
    assert 120 == len(cases)
    for one in cases:
        assert is_kept(one, texts_of(one.messages))
        assert one.fact.question in texts_of(one.messages)
        assert estimate_tokens(texts_of(one.messages)) > 512


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_machine_gets_the_same_cases(language: str) -> None:
    """Figures can be compared."""
    words = LANGUAGES[language]
    assert made_cases(words, 7, 6, 2) == made_cases(words, 7, 6, 2)
    assert made_cases(words, 7, 6, 2) != made_cases(words, 8, 6, 2)


@pytest.mark.slow
async def test_the_goals_are_met_on_a_small_run() -> None:
    """In both languages, of documents and of chats, through the filters and real processes."""
    rows = await measure(documents=20, chats=12, each=5)
    assert good(rows), "\n".join(table(rows))


def row(summary: int, kept: int, after: int) -> Row:
    return Row("en", "documents", summary, 100, kept, 1_000, after, 4.2)


@pytest.mark.parametrize(
    ("kept", "after", "expected"), [(97, 400, True), (96, 400, False), (97, 401, False)]
)
def test_both_goals_count(kept: int, after: int, expected: bool) -> None:
    """60 % of the tokens gone, 97 % of the facts still there; other sizes do not count."""
    assert (0.6, 0.97) == (GOAL_CUT, GOAL_KEPT)
    assert expected is good([row(USUAL, kept, after), row(32, 0, 999)])


def test_the_table_has_a_line_for_each_sort() -> None:
    """With what is to be reached below."""
    head, line, goal = table([row(USUAL, 98, 300), row(32, 50, 100)])
    assert ["en", "documents", "100", "10", "->", "3", "70.0%", "98.0%", "4.2"] == line.split()
    assert ["goal", "60%", "97%"] == goal.split()
    assert "fact kept" in head


def test_the_plot_is_an_svg_with_a_point_for_each_row() -> None:
    """That any browser shows."""
    drawn = ElementTree.fromstring(plot([row(32, 50, 100), row(USUAL, 98, 300)]))
    assert "{http://www.w3.org/2000/svg}svg" == drawn.tag
    assert 2 == len(drawn.findall("{*}circle"))
