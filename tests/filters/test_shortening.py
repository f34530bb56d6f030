"""Putting summaries into the places of documents, and of nothing else."""

from __future__ import annotations

from typing import Final

import pytest

from filters.shortening import MARK, MARK_HAN, extract, plan, put_one
from filters.summary import NOTHING_KEPT
from filters.token_estimate import estimate_tokens
from tests.texts import TEXTS

LETTER: Final = TEXTS["english_letter"][0]
REPORT: Final = TEXTS["english_report"][0]
NEWS: Final = TEXTS["chinese_news"][0]
CODE: Final = TEXTS["python"][0]
ASKED: Final = "What strikes the wall when there is wind?"
FACT: Final = "a loose bracket on the northern gutter strikes the wall"


def shorten(*texts: str, most_tokens: int = 64, orders: str = "") -> list[str]:
    """Return the texts of one turn after they were shortened."""
    shortened = extract(texts, 0, orders, most_tokens)
    return [shortened.texts.get(index, text) for index, text in enumerate(texts)]


def test_a_document_becomes_a_summary_in_its_place() -> None:
    """What stands around it stays, and a mark says that it is a summary."""
    before, after = "Answer in one word.\n<document>\n", f"\n</document>\n{ASKED}"
    (text,) = shorten(f"{before}{LETTER}{after}")
    assert text.startswith(f"{before}{MARK}")
    assert text.endswith(after)
    assert FACT in text
    assert "There is nothing to pay" not in text


def test_a_chinese_summary_has_a_chinese_mark() -> None:
    """The model sees one language."""
    (text,) = shorten(f"<文章>\n{NEWS}\n</文章>\n热线多久之内上门？")
    assert f"<文章>\n{MARK_HAN}" in text
    assert "工作人员将在两小时内上门检查" in text


def test_the_tokens_of_documents_are_counted() -> None:
    """Before and after, by estimate; the task is no part of either."""
    shortened = extract([f"<document>{LETTER}</document>\n{ASKED}"], 0, "", 64)
    assert estimate_tokens(LETTER) == shortened.before
    assert 30 < shortened.after < 80


def test_documents_share_the_tokens() -> None:
    """The one that answers keeps more; nothing of another may be left."""
    text = f"<doc>{REPORT}</doc>\n<doc>{LETTER}</doc>\n{ASKED}"
    (after,) = shorten(text, most_tokens=56)
    assert FACT in after
    assert f"<doc>{NOTHING_KEPT}</doc>" in after


@pytest.mark.parametrize(
    "kept",
    [
        f"```python\n{CODE}```",
        CODE,
        '{"rows": [{"wind": 1, "wall": "a"}, {"wind": 2, "wall": "b"}]}',
        "$$\\int_0^1 f(x)\\,dx = 1$$",
    ],
    ids=["fence", "code", "json", "mathematics"],
)
def test_what_is_no_prose_stays_in_a_document(kept: str) -> None:
    """Code, JSON and mathematics are word for word or wrong."""
    (text,) = shorten(f"<document>\n{LETTER}\n\n{kept}\n\n{REPORT}\n</document>\n{ASKED}")
    assert kept.strip() in text
    assert FACT in text
    assert REPORT not in text


def test_a_document_in_an_earlier_turn_is_shortened_for_the_last_question() -> None:
    """That is what the model is to answer."""
    texts = [f"Here is a letter.\n\n{LETTER}", ASKED]
    shortened = extract(texts, 1, "", 64)
    assert [0] == list(shortened.texts)
    assert FACT in shortened.texts[0]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("Translate it into French.", "translate"),
        ("Proofread the text.", "proofread"),
        ("List all the names in it.", "list all"),
        ("请把它翻译成英文。", "翻译"),
        ("请列出所有的日期。", "列出所有"),
    ],
)
def test_a_task_on_every_word_keeps_every_word(task: str, why: str) -> None:
    """A translation of a summary is no translation of the document."""
    shortened = extract([f"<document>{LETTER}</document>\n{task}"], 0, "", 64)
    assert ({}, f"every word counts: {why}") == (shortened.texts, shortened.why_not)


def test_a_system_prompt_may_say_what_the_task_is() -> None:
    """The user then sends nothing but the text."""
    shortened = extract([LETTER], 0, "You translate letters: translate all you get.", 64)
    assert "every word counts: translate" == shortened.why_not


def test_such_words_in_the_document_mean_nothing() -> None:
    """It is the task that counts."""
    text = f"<document>{LETTER} He may translate the guarantee.</document>\n{ASKED}"
    assert FACT in shorten(text)[0]


@pytest.mark.parametrize("text", ["", "hi", "Write a poem.", ASKED, "{}", "```\nx\n```"])
def test_without_a_document_nothing_changes(text: str) -> None:
    """And why not is said."""
    assert "no document" == extract([text], 0, "", 64).why_not


def test_what_would_not_be_shorter_stays() -> None:
    """A summary of 1,000 tokens is not for a letter."""
    shortened = extract([f"<document>{LETTER}</document>\n{ASKED}"], 0, "", 1_000)
    assert ({}, "nothing to gain") == (shortened.texts, shortened.why_not)


def test_a_summary_by_a_model_stands_for_all_documents() -> None:
    """In the place of the first; the others are left out, never empty."""
    texts = [f"<doc>{REPORT}</doc>\n<doc>{LETTER}</doc>\n{ASKED}"]
    planned = plan(texts, 0, "")
    shortened = put_one(texts, planned, " Short. \n")
    assert f"<doc>{MARK}Short.</doc>\n<doc>{NOTHING_KEPT}</doc>\n{ASKED}" == shortened.texts[0]
    assert ASKED == planned.question


def test_a_text_with_a_stray_zero_stays() -> None:
    """It is the mark by which prose is found."""
    assert "no document" == extract([f"<doc>{LETTER}\0</doc>\n{ASKED}"], 0, "", 64).why_not
