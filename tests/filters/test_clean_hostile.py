"""Texts built to make cleaning slow; the suite's time limit watches that none does."""

from __future__ import annotations

from typing import Final

import pytest

from filters.bounds import MOST_CHARS
from filters.cleaning import RULES, clean

PIECES: Final = [
    "<", "hi ", "Hi! ", "你好！", "\n", "\n \n", " ", "\t", "\r\n", "<a ", "<b>", "</b>", "</x>",
    "<title>", "A<B>", "<!--", "<script>", "<<b>b>", "&", "&amp;", "&am&amp;p;", "&#1", '{"', "{ ",
    '{"a":[', '[{"', '"', "`", "```\n", "`````a", "$", "$a\n", "\\(", "\\begin{a}", "~~~\n",
    "<code>", "<code ", "<tool_call>", "data:", "data:image/png;base64,", "data:,%", ";a=b", "A",
    "/9j/", "/9j/ ", "iVBORw0KGgo", "A" * 76 + "\n", "<pad>", "<pad> x ", "-", "-" * 12 + "\n",
    ".", " .", "a ........", "…", "\u200b", "\U000e0061", "\U0001f3f4\U000e0067", "\u00a0",
    "a  b\n", " a\n", "a,", "thanks. ", "a thanks, ", "a(", ") ", "a.", "a:", "if (", "public ",
    "x = f('a')\n", "import a,", "\n- ", "? ", "İ",
    "The pump was serviced in March 2021. Its bearings had been worn down by sand.\n\n",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_said_as_often_as_may_be_is_cleaned_in_time(piece: str) -> None:
    """A cost that grew with the square of the length would take minutes."""
    text = (piece * (MOST_CHARS // len(piece) + 1))[:MOST_CHARS]
    assert len(clean(text, RULES)) <= MOST_CHARS


@pytest.mark.slow
def test_paragraphs_that_are_nearly_the_same_are_told_apart_in_time() -> None:
    """By what each says, not each with each."""
    text = "\n\n".join(
        f"The value of all the things here is {index}, as said" for index in range(5_000)
    )
    assert text == clean(text, RULES)
