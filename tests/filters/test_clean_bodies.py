"""Cleaning any body: what is no text of the user's stays, and once is enough."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Role
from filters.clean import CleanConfig, CleanFilter
from filters.cleaning import RULES, Passage, clean_passages
from filters.document import encode, parse
from tests.exchanges import CHATS, WORDS, exchange_of
from tests.fakes import drive, fake_ports

# What the rules look for, in pieces: they meet in every order.
FRAGMENTS: Final = st.sampled_from(
    [
        "pump", "sand", "The", "not", "2021", "thanks", "Thanks", "hi", "Hello", "你好", "谢谢",
        "水泵在三月检修过轴承磨损需要更换", "的", "了",
        "The pump was serviced by the crew in March",
        "It has been worn down by the sand of the sea", " ", "  ", "\n", "\n\n", "\n\n\n", "\t",
        "\r\n", ".", "!", "?", "，", "。", "！", ",", ";", ":", "<", ">", "<b>", "</b>", "<p>",
        "</p>", "<title>", "</title>", "<source>", "<ctx>", "</ctx>", "<code>", "</code>", "<U>",
        "&amp;", "&nbsp;", "&lt;", "&gt;", "&#8212;", "amp;", "&", "#", "<pad>", "[PAD]",
        "<|endoftext|>", "----------", "-", "=", "==========", "|", "+", "........", ". . . .",
        "\u200b", "\ufeff", "\u00a0", "\u3000", "\U000e0061", "\U0001f3f4", "👋", "👨\u200d👩",
        "data:image/png;base64,", "data:", "iVBORw0KGgo", "A" * 130, "A" * 76, "/9j/", "`", "```",
        "$", "\\(", '{"', "}", '[{"', '"', "x = f('a')", "    ", "print(1)", "<!--", "-->",
        "<script>", "</script>", "translate", "html", "base64", "mean", "重复", "[INST]", "ก", "İ",
        "<a href='", "'", "/",
    ]
)  # fmt: skip
TEXTS: Final = st.lists(FRAGMENTS, max_size=30).map("".join)
ALL: Final = frozenset(RULES)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.sampled_from(["a   b", "<p>"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 2)), min_size=1, max_size=4),
    st.lists(TEXTS, max_size=1),
    st.sampled_from([ALL, ALL - {"relevance"}]),
)
def test_cleaning_a_conversation_twice_changes_nothing_more(
    said: list[tuple[str, int]], systems: list[str], rules: frozenset[str]
) -> None:
    """Whatever one rule uncovers for another; and no text is emptied."""
    answers = 0
    passages = []
    for turn, (text, more) in enumerate(said):
        answers += more
        passages.append(Passage(text, turn, answers))
    once = clean_passages(copy.deepcopy(passages), rules, systems)
    again = copy.deepcopy(passages)
    for passage, value in zip(again, once.values, strict=True):
        passage.value = value
    assert [] == clean_passages(again, rules, systems).edits
    assert [bool(text.strip()) for text, _ in said] == [bool(text.strip()) for text in once.values]


@pytest.mark.slow
@given(
    st.sampled_from(CHATS),
    TEXTS,
    st.dictionaries(st.sampled_from(["x", "metadata", "temperature", "user", "n"]), JSON),
)
def test_nothing_but_the_text_of_the_user_is_touched(
    dialect: str, text: str, more: dict[str, Any]
) -> None:
    """Numbers, names, and strings that are no text of the prompt stay as they were."""
    words = WORDS[dialect]
    body = words.ask(text) | more
    words.system(body, "<p>so   much</p>") if dialect != "openai.completions" else None
    exchange = exchange_of(dialect, encode(body), words.path)
    config = CleanConfig(relevance=True)
    clean = CleanFilter(config, CleanFilter.prepare(config), fake_ports())
    drive(clean.on_request(exchange))
    after = parse(exchange.prompt.document.render())
    for turn in exchange.prompt.turns():
        for one in turn.texts:
            if one.role is Role.USER:
                _put(after, one.path, "")
                _put(body, one.path, "")
    assert body == after


def _put(body: Any, path: tuple[str | int, ...], value: str) -> None:
    for step in path[:-1]:
        body = body[step]
    body[path[-1]] = value
