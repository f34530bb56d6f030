"""Which part of a prompt is the document, and which the task."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.passages import find_passages, outside, question_in
from tests.texts import TEXTS

LETTER: Final = TEXTS["english_letter"][0]
NEWS: Final = TEXTS["chinese_news"][0]
ASKED: Final = "Who is coming back in the spring?"
ASKED_HAN: Final = "热线多久之内上门？"


def found(text: str, *, has_task: bool = True) -> list[str]:
    return [text[start:end] for start, end in find_passages(text, has_task=has_task)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Answer from the document.\n<document>\n", f"\n</document>\n{ASKED}"),
        ('<doc id="1" lang="en">', f"</doc>\n\n{ASKED}"),
        ("<documents>\n<document>", f"</document>\n</documents>\n{ASKED}"),
        ("<CONTEXT>\n", f"\n</CONTEXT>\n{ASKED}"),
        ('Read this:\n"""\n', f'\n"""\n{ASKED}'),
        ("Read this:\n```text\n", f"\n```\n{ASKED}"),
        ("Be brief.\n\nDocument:\n", f"\n\nQuestion: {ASKED}"),
        ("Be brief.\n\n**Context:** ", f"\n\n**Question:** {ASKED}"),
        ("### Article\n", f"\n\n### Question: {ASKED}"),
        ("You are a clerk.\n\nAnswer in one word.\n\n", f"\n\n{ASKED}\n\nAnswer in JSON."),
        ("Summarise the following letter in two sentences:\n\n", f"\n\n{ASKED}"),
        (f"{ASKED}\n\nDocument:\n", "\n\nBe brief."),
    ],
)
def test_a_document_is_found_by_how_it_is_set_off(before: str, after: str) -> None:
    """By elements, quotes, marks, or as what stands between instructions and question."""
    text = f"{before}{LETTER}{after}"
    (passage,) = found(text)
    assert LETTER.endswith(passage)
    assert len(passage) > 0.9 * len(LETTER)
    assert ASKED in outside(text, find_passages(text, has_task=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<文章>\n", f"\n</文章>\n{ASKED_HAN}"),
        ("请根据文章回答。\n\n文章：\n", f"\n\n问题：{ASKED_HAN}"),
        ("参考资料：\n", f"\n\n请回答：{ASKED_HAN}"),
        ("请用一句话回答下面的问题。\n\n", f"\n\n{ASKED_HAN}"),
        (f"{ASKED_HAN}\n\n正文：", "\n\n要求：用一句话回答。"),
    ],
)
def test_a_chinese_document_is_found_as_well(before: str, after: str) -> None:
    """Its marks may have colons of full width."""
    text = f"{before}{NEWS}{after}"
    (passage,) = found(text)
    assert NEWS.endswith(passage)
    assert len(passage) > 0.9 * len(NEWS)
    assert ASKED_HAN in outside(text, find_passages(text, has_task=True))


def test_several_documents_are_several_passages() -> None:
    """As a search puts them into a prompt."""
    text = "".join(f"<source>{one}</source>\n" for one in (LETTER, NEWS)) + ASKED
    assert [LETTER, NEWS] == found(text)
    assert [LETTER, NEWS] == found(f"Document 1:\n{LETTER}\n\nDocument 2:\n{NEWS}\n\nQ: {ASKED}")


def test_the_last_sentence_is_never_part_of_it() -> None:
    """It may be the question, though nothing sets it off."""
    text = LETTER.replace("\n", " ") + " And who is coming back?"
    (passage,) = found(text)
    assert "And who is coming back?" not in passage


def test_the_first_sentence_is_not_part_of_it_where_it_leads_in() -> None:
    """The document may begin in the same line."""
    letter = LETTER.replace("\n", " ")
    (passage,) = found(f"Say in short what this letter says: {letter}")
    assert letter.startswith(passage)


def test_a_part_of_its_own_is_a_document_as_a_whole() -> None:
    """The task stands in another part."""
    assert [LETTER] == found(LETTER, has_task=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n\n ",
        "hi",
        ASKED,
        "Write a poem.\n\nMake it short.\n\nUse no rhymes.",
        "<document>short</document> What is it?",
        "Document: none.\n\nQuestion: why?",
        "<document>" * 10,
        "</document>" * 10,
    ],
)
def test_a_prompt_without_a_document_has_none(text: str) -> None:
    """What is short is no document, and what is never closed no element."""
    assert [] == found(text)


@pytest.mark.parametrize(
    ("task", "question"),
    [
        ("Use the text. If it is not there, say so. When was it built?", "When was it built?"),
        ("Please tell me the year. Thanks.", "Please tell me the year. "),
        ("请仔细阅读。它是哪一年建的？", "它是哪一年建的？"),
        ("the year", "the year"),
    ],
)
def test_a_task_asks_with_its_questions(task: str, question: str) -> None:
    """Or orders, or all of it."""
    assert question == question_in(task)


@given(st.text(st.sampled_from(list("a \n:：<>/document\"'`?。.问")), max_size=300), st.booleans())
def test_passages_lie_in_the_text_one_behind_the_other(text: str, has_task: bool) -> None:
    """Whatever the text."""
    spans = find_passages(text * 3, has_task=has_task)
    edges = [edge for span in spans for edge in span]
    assert sorted(edges) == edges
    assert all(0 <= edge <= len(text) * 3 for edge in edges)


@pytest.mark.parametrize(
    "text",
    [
        "文档" + "\t" * 200_000 + "x",
        "Document" + " " * 200_000 + "x",
        "Question" + " " * 200_000 + "x",
        "```markdown" + "\n" * 400_000,
        "# " + "#" * 200_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_runs_of_spaces_are_read_once(text: str) -> None:
    """A few thousand of them took minutes where a pattern could part them in three ways."""
    assert len(find_passages(text, has_task=True)) <= 1
