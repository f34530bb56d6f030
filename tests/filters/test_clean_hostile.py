"""Texts built to make cleaning slow: none may take more than its length is worth."""

from __future__ import annotations

import time
from typing import Final

import pytest

from filters.bounds import MOST_CHARS
from filters.cleaning import MOST_TAGS, RULES, clean

MOST_SECONDS: Final = 2
PIECES: Final = [
    "<", "hi ", "Hi! ", "你好！", "\n", "\n \n", " ", "\t", "\r\n", "<a ", "<b>", "</b>", "</x>",
    "<title>", "A<B>", "<!--", "<b x=1 ", '<b x="', '<b x="1" ', "a <br> b", "<p> b ",
    "<b> and </b>", "<script> a </script>", "<!-- and -->", "<A/>", "<Ab ", "<Ab/>", "</b> a ",
    "<b><i></b></i>", "<b>a <i> b? ", "<br>a", "<script>", "<<b>b>", "&", "&amp;",
    "&am&amp;p;", "&#1", '{"', "{ ", '{"a":[', '[{"', '"', "`", "```\n", "`````a",
    "$", "$a\n", "\\(", "\\begin{a}", "~~~\n",
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
    """A cost that grew with the square of the length would take minutes of the processor."""
    text = (piece * (MOST_CHARS // len(piece) + 1))[:MOST_CHARS]
    started = time.thread_time()
    left = clean(text, RULES)
    assert time.thread_time() - started < MOST_SECONDS
    assert len(left) <= MOST_CHARS


@pytest.mark.slow
@pytest.mark.parametrize("piece", [piece for piece in PIECES if "<" in piece])
def test_as_many_tags_as_are_looked_at_are_cleaned_in_time(piece: str) -> None:
    """A text of more tags keeps them, and would hide what they cost."""
    text = piece * (MOST_TAGS // piece.count("<"))
    started = time.thread_time()
    left = clean(text, RULES)
    assert time.thread_time() - started < MOST_SECONDS
    assert len(left) <= len(text)


@pytest.mark.slow
def test_paragraphs_that_are_nearly_the_same_are_told_apart_in_time() -> None:
    """By what each says, not each with each."""
    text = "\n\n".join(
        f"The value of all the things here is {index}, as said" for index in range(5_000)
    )
    started = time.thread_time()
    assert text == clean(text, RULES)
    assert time.thread_time() - started < MOST_SECONDS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('a  b {"' + '\\"' * 8_000 + "\\", id="a string that ends in an escape"),
        pytest.param(("f()" + " " * 394 + "x\n") * 40 + "a  b", id="a call and spaces"),
        pytest.param(("a =>" + " " * 394 + ">\n") * 40 + "a  b", id="an arrow and spaces"),
        pytest.param(
            "one two three four five six seven eight\n\n" * 2 + "one\n" + "\u3000\n" * 8_000 + "x",
            id="lines of a wide space",
        ),
    ],
)
def test_what_is_cleaned_while_others_wait_takes_no_time(text: str) -> None:
    """Patterns that begin everywhere, or back out of a run, took up to 2 s of 16,000 characters."""
    started = time.thread_time()
    clean(text, RULES)
    assert time.thread_time() - started < MOST_SECONDS / 40
