"""Texts built to make cleaning slow: none may take more than its length is worth.

They are longer than what is cleaned of a prompt: the square of their length would take minutes.
"""

from __future__ import annotations

from typing import Final

import pytest

from filters.cleaning import RULES, clean

CHARS: Final = 1_048_576
TAGS: Final = 80_000
WIDE: Final = (
    "one two three four five six seven eight\n\n" * 2 + "one\n" + "\u3000\n" * 200_000 + "x"
)
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
def test_a_piece_said_a_million_times_over_is_cleaned(piece: str) -> None:
    """What was found once is not looked at for each piece that follows."""
    text = (piece * (CHARS // len(piece) + 1))[:CHARS]
    assert len(clean(text, RULES)) <= len(text)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [piece for piece in PIECES if "<" in piece])
def test_ten_times_the_tags_that_are_looked_at_are_cleaned(
    piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of too many tags keeps them, and would hide what they cost."""
    monkeypatch.setattr("filters.cleaning.MOST_TAGS", TAGS)
    text = piece * (TAGS // piece.count("<"))
    assert len(clean(text, RULES)) <= len(text)


@pytest.mark.slow
def test_paragraphs_that_are_nearly_the_same_are_told_apart() -> None:
    """By what each says, not each with each."""
    text = "\n\n".join(
        f"The value of all the things here is {index}, as said" for index in range(100_000)
    )
    assert text == clean(text, RULES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a  b {"' + '\\"' * 400_000 + "\\", 'a b {"' + '\\"' * 400_000 + "\\"),
        ("f()" + " " * 300_000 + "x\na  b", "f() x\na b"),
        ("a =>" + " " * 300_000 + ">\na  b", "a => >\na b"),
        (WIDE, WIDE),
    ],
    ids=["a string that ends in an escape", "a call", "an arrow", "lines of a wide space"],
)
def test_a_run_is_begun_once_and_never_backed_out_of(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pattern that did either took up to 2 s of 16,000 characters."""
    monkeypatch.setattr("filters.segments._LOOKED_AT_CHARS", len(text))  # the whole of the line
    assert expected == clean(text, RULES)
