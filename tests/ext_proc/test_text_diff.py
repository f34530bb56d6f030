"""Diffs of prompts: whole sentences, the words that changed, and the members beside the texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.tools.text_diff import (
    ABSENT,
    changed_members,
    changed_words,
    lines_of,
    unified,
)

LONG = "This sentence is here to make the line long enough to be cut. " * 2


def test_the_same_texts_have_no_diff() -> None:
    """Nothing to show."""
    assert [] == unified([("user", "a\nb")], [("user", "a\nb")])


def test_a_line_that_went_is_shown_with_its_neighbours() -> None:
    """As `diff -u` writes it, with one line around."""
    before = [("user", "one\ntwo\nthree\nfour\nfive")]
    after = [("user", "one\ntwo\nthree\nfive")]
    assert ["@@ -4,3 +4,2 @@", " three", "-four", " five"] == unified(before, after)


def test_a_text_that_went_is_shown_with_its_role() -> None:
    """Whole turns may go."""
    before = [("user", "hello"), ("assistant", "hi"), ("user", "bye")]
    assert ["@@ -2,4 +2,2 @@", " hello", "-[assistant]", "-hi", " [user]"] == unified(
        before, [("user", "hello"), ("user", "bye")]
    )


def test_long_lines_are_cut_into_sentences() -> None:
    """Of a paragraph in one line only what changed is shown."""
    lines = lines_of([("user", f"{LONG}Short. 第一句。第二句！End")])
    assert [
        "[user]",
        *[LONG.split(". ", maxsplit=1)[0] + "."] * 2,
        "Short.",
        "第一句。",
        "第二句！",
        "End",
    ] == lines


def test_empty_lines_do_not_hold_a_diff_together() -> None:
    """They are alike everywhere."""
    before = [("user", "a\n\nb\n\nc")]
    after = [("user", "x\n\ny\n\nc")]
    lines = unified(before, after)
    assert ["-a", "-", "-b"] == [line for line in lines if line.startswith("-")]


@pytest.mark.parametrize(
    ("old", "new", "gone", "come"),
    [
        ("the very big house", "the big house", [" very"], []),
        ("the big house", "the red house", ["big"], ["red"]),
        ("完全不同", "something else", [], []),
    ],
)
def test_the_words_that_changed_are_marked(
    old: str, new: str, gone: list[str], come: list[str]
) -> None:
    """Unless the lines have little in common."""
    (_, left), (_, right) = changed_words([f"-{old}", f"+{new}"])
    assert gone == [f"-{old}"[start:end] for start, end in left]
    assert come == [f"+{new}"[start:end] for start, end in right]


TEXTS = st.lists(
    st.tuples(st.sampled_from(["user", "system"]), st.text(alphabet="ab. \n。-+@", max_size=60)),
    max_size=4,
)


def patched(lines: list[str], diff: list[str]) -> list[str]:
    """Apply a unified diff, holding its context and removed lines against what is there."""
    out: list[str] = []
    at = 0
    for line in diff:
        sign, text = line[0], line[1:]
        if sign == "@":
            first, _, length = line.split()[1][1:].partition(",")
            start = int(first) if length == "0" else int(first) - 1
            out += lines[at:start]
            at = start
        elif sign == "+":
            out.append(text)
        else:
            assert lines[at] == text
            out += [text] if sign == " " else []
            at += 1
    return out + lines[at:]


@pytest.mark.slow
@given(TEXTS, TEXTS)
def test_a_diff_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    """Whatever the texts; and marking words changes no line."""
    diff = unified(before, after)
    assert lines_of(after) == patched(lines_of(before), diff)
    assert diff == [line for line, _ in changed_words(diff)]


def test_members_that_changed_came_or_went_are_told_with_their_paths() -> None:
    """Texts are left to the diff."""
    before = {"t": 1, "messages": [{"content": "a", "x": 1}], "gone": None}
    after = {"t": 0.3, "messages": [{"content": "b", "x": 1}], "new": {"a": []}}
    texts = frozenset({("messages", 0, "content")})
    assert [
        (("t",), 1, 0.3),
        (("new",), ABSENT, {"a": []}),
        (("gone",), None, ABSENT),
    ] == changed_members(before, after, texts)


def test_a_text_that_came_is_left_to_the_diff_too() -> None:
    """Such as instructions where there were none; what is no text is not."""
    texts = frozenset({("system",)})
    assert [] == changed_members({}, {"system": "Be brief."}, texts)
    assert [(("system",), ABSENT, [1])] == changed_members({}, {"system": [1]}, texts)


def test_an_array_of_another_length_is_one_difference() -> None:
    """What moved in it cannot be told."""
    before = {"messages": [1, 2, 3], "same": [1]}
    after = {"messages": [1], "same": [2]}
    assert [(("messages",), [1, 2, 3], [1]), (("same", 0), 1, 2)] == changed_members(
        before, after, frozenset()
    )
