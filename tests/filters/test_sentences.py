"""Cutting texts into sentences without cutting what belongs together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.sentences import MOST_CHARS, MOST_HAN_CHARS, split_sentences
from tests.texts import TEXTS


def cut(text: str) -> list[str]:
    return [sentence.text.strip() for sentence in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It rained. We left.", ["It rained.", "We left."]),
        ("Why? Because! So it is.", ["Why?", "Because!", "So it is."]),
        ("It cost $3.50 in all. Cheap.", ["It cost $3.50 in all.", "Cheap."]),
        ("Dr. Smith met Mrs. Jones.", ["Dr. Smith met Mrs. Jones."]),
        ("See fig. 3, e.g. the axis. Then go on.", ["See fig. 3, e.g. the axis.", "Then go on."]),
        ("J. R. Hartley wrote it. He did.", ["J. R. Hartley wrote it.", "He did."]),
        ("Visit example.org/a?b=c! Now.", ["Visit example.org/a?b=c!", "Now."]),
        ("“Go.” She went.", ["“Go.”", "She went."]),
        ("1. Mix well. 2. Bake.", ["1. Mix well.", "2. Bake."]),
        ("他来了。她走了。", ["他来了。", "她走了。"]),
        ("他说：“走吧。”然后走了。", ["他说：“走吧。”", "然后走了。"]),
        ("价格是3.5元！真的吗？", ["价格是3.5元！", "真的吗？"]),
        ("真的吗?是的。", ["真的吗?", "是的。"]),
    ],
)
def test_a_sentence_ends_where_it_ends(text: str, expected: list[str]) -> None:
    """Numbers, short forms, initials, addresses and quotes are not its end."""
    assert expected == cut(text)


def test_lines_of_a_list_are_sentences() -> None:
    """They have no full stop."""
    assert ["- eggs", "- milk", "- flour"] == cut("- eggs\n- milk\n- flour")
    assert ["押金：两千元", "租期：一年"] == cut("押金：两千元\n租期：一年")


def test_wrapped_lines_are_one_sentence() -> None:
    """A line of some length goes on in the next one."""
    text = "This sentence is long enough to have been wrapped at\na width. This is another."
    assert [text[: text.index(" This is")], "This is another."] == cut(text)


def test_a_sentence_knows_its_heading() -> None:
    """Marked ones, and short lines that stand alone."""
    for heading in ("## Boilers", "第三章 锅炉", "Boilers"):
        first, second = split_sentences(f"{heading}\n\nThe limit is 12 bar.")
        assert (True, None) == (first.is_heading, first.heading)
        assert (False, 0) == (second.is_heading, second.heading)


@pytest.mark.parametrize(
    ("sentence", "most"),
    [
        ("word and word, " * 200, MOST_CHARS),
        ("说了又说，" * 200, MOST_HAN_CHARS),
        ("x" * 5_000, MOST_CHARS),
    ],
)
def test_a_sentence_without_end_is_cut_at_its_clauses(sentence: str, most: int) -> None:
    """One such would be all of a summary."""
    pieces = split_sentences(sentence)
    assert max(len(piece.text) for piece in pieces) <= most
    assert sentence == "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("name", TEXTS)
def test_nothing_of_a_text_is_lost(name: str) -> None:
    """Joined, the sentences are the text."""
    text, _ = TEXTS[name]
    assert text == "".join(sentence.text for sentence in split_sentences(text))


@given(st.text(alphabet=st.sampled_from(list("ab.!? \n,。，“”\"'1—#-：:天")) | st.characters()))
def test_nothing_of_any_text_is_lost(text: str) -> None:
    """Whatever it is."""
    assert text == "".join(sentence.text for sentence in split_sentences(text))


@pytest.mark.parametrize(
    "text",
    [
        "!" * 800_000 + "x",
        "." * 400_000 + " " * 400_000 + "a",
        "!)" * 400_000 + "x",
        "x" * 20_000_000 + "\n" + "ab\n" * 150_000,
    ],
    ids=["marks", "stops and spaces", "marks and brackets", "lines"],
)
@pytest.mark.slow
def test_a_run_of_marks_or_lines_is_gone_through_once(text: str) -> None:
    """What began at every mark of 16,000 took 6 s, and would take hours of these."""
    assert text == "".join(sentence.text for sentence in split_sentences(text))
