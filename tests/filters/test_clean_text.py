"""What cleaning takes out of a text, and above all what it leaves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.cleaning import clean
from filters.markup import is_about_markup, strip_markup
from filters.spacing import tidy_spacing

CLEANED = [
    ("<p>Hello <b>world</b></p>", "Hello world"),
    ("<table><tr><td>a</td><td>b</td></tr></table>", "a\tb"),
    ("before<!-- a note -->after", "beforeafter"),
    ("<script>var tag = '<b>';</script>kept", "kept"),
    ("<STYLE type='text/css'>p { color: red }</STYLE>kept", "kept"),
    ("<!DOCTYPE html><html><body>kept</body></html>", "kept"),
    ("<a href=\"x>y\" title='a>b'>link</a>", "link"),
    ("<p>5&nbsp;%&mdash;yes</p>", "5 %—yes"),
    ("<br/>one<br />two", "one\ntwo"),
    ("总结<b>这篇</b>文章", "总结这篇文章"),
    ("a    b", "a b"),
    ("a\n\n\n\n\nb", "a\n\nb"),
    ("a\r\n\r\n\r\n\r\nb", "a\r\n\r\nb"),
    ("line   \nnext\t\n", "line\nnext\n"),
    ("zero\u200bwidth\ufeff", "zerowidth"),
    ("<<b>b id=q>x</b>", "x"),
    ("<<b>b>x</b>", "<b>x"),
    ("<\u200bb>x</b>", "x"),
]

UNTOUCHED = [
    # Code and mathematics
    "```html\n<p>  spaced   out </p>\n```",
    "~~~\nx   =  1\n~~~",
    "Use `<br>`   twice".replace("   ", " "),
    "```\nnever closed   <b>",
    "$a < b$ and $$c    > d$$",
    r"\(a  <b> c\)",
    # Frames that prompts use
    "<context>facts</context><question>why?</question>",
    "<thinking>step</thinking>",
    "<document index='1'>text</document>",
    # What only looks like markup
    "if a < b and c > d then a<b>c is false".replace("<b>", "< b >"),
    "x <- y; i<3 mail <me@example.org> <https://example.org>",
    "List<String> xs; std::vector<int> v;",
    # JSON as a whole
    '{"html": "<b>bold</b>",   "n":   1}',
    '[ "<p>",    2 ]',
    # Tables and indentation
    "| a   | b   |\n|-----|-----|",
    "name\tvalue   x",
    "    indented   code\n    more",
    "def f():\n    return 1",
    # Joiners and marks that carry meaning
    "👨\u200d👩\u200d👧 \u0645\u06cc\u200c\u062e\u0648",
    "abc \u202b\u05e2\u05d1\u202c def",
    # Would be empty
    "<p></p>",
    "<!-- only a comment -->",
    "   ",
    "",
]

ABOUT_MARKUP = [
    "Why does <div>x</div> not render?",
    "Fix this: <p>hello<b>world</p>",
    "这段 HTML 有什么问题？<p>你好",
    "Which tag is missing here? <ul><li>a</ul>",
    "How do I escape <b> in XML?",
    "请解析<td>1</td>",
]


@pytest.mark.parametrize(("dirty", "expected"), CLEANED)
def test_noise_is_taken_out(dirty: str, expected: str) -> None:
    """Markup, comments, runs of white space and invisible characters go."""
    assert expected == clean(dirty).strip("\n") + ("\n" if expected.endswith("\n") else "")


@pytest.mark.parametrize("text", UNTOUCHED)
def test_what_carries_meaning_stays(text: str) -> None:
    """Code, mathematics, frames, JSON, tables and joiners keep every character."""
    assert text == clean(text)


@pytest.mark.parametrize("text", ABOUT_MARKUP)
def test_a_question_about_markup_keeps_its_markup(text: str) -> None:
    """Who asks about tags wants the tags seen."""
    assert is_about_markup([text])


def test_words_inside_tags_do_not_make_a_page_a_question_about_markup() -> None:
    """`<html>` itself is no question; only the prose counts."""
    page = "Summarise this: <html><head><style>code {}</style></head><body>News</body></html>"
    assert not is_about_markup([page])


def test_each_rule_can_be_off() -> None:
    """A rule that is off finds nothing."""
    assert "<b>a</b>  b" == clean("<b>a</b>  b", ())
    assert "<b>a</b> b" == clean("<b>a</b>  b", {"white_space"})
    assert "a  b" == clean("<b>a</b>  b", {"html"})


FRAGMENTS = st.sampled_from(
    ["<", ">", "b", "</b>", "<b>", "<p>", "<!--", "-->", "<script>", "</script>", " ", "  ", "\n",
     "\t", "\r\n", "`", "```", "$", "&nbsp;", "&", ";", "|", "\u200b", "中", "👨\u200d👩", "=",
     '"', "'", "{", "[", "nbsp", "İ"]
)  # fmt: skip


@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    """Cleaning is a projection, whatever the pieces make when they meet."""
    once = clean(text)
    assert once == clean(once)


@given(st.text())
def test_a_text_is_never_emptied(text: str) -> None:
    """Where the rules leave nothing, the text stays as it was."""
    assert bool(text.strip()) == bool(clean(text).strip())


@pytest.mark.parametrize(
    "bomb",
    ["<a " * 20_000, "<!--" * 20_000, "<a href='" * 20_000, "<script>" * 20_000,
     "<" * 100_000, ("<a " + "x " * 1900) * 100],
)  # fmt: skip
def test_hostile_markup_is_left_alone(bomb: str) -> None:
    """Text built to make the search backtrack comes through; the suite's time limit watches."""
    assert bomb == strip_markup(bomb)


@pytest.mark.parametrize("bomb", [" " * 200_000, "\n \n" * 50_000, "$" * 50_000, "\\(" * 50_000])
def test_hostile_spacing_ends(bomb: str) -> None:
    """Runs of any length are tidied in one pass."""
    assert len(bomb) >= len(tidy_spacing(bomb))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bomb", "expected"),
    [
        (("<a" + " " * 40_000) * 65, "<a " * 64 + "<a" + " " * 40_000),
        ("a" + " " * 2_500_000, "a" + " " * 2_500_000),
    ],
    ids=["opened tags", "spaces"],
)
def test_a_long_run_of_spaces_costs_its_length(bomb: str, expected: str) -> None:
    """Not its square, which takes hours."""
    assert expected == clean(bomb)
