"""What the dialects share."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Parameter, Role, Turn
from filters.dialects import base
from filters.dialects.base import BodyPrompt, Shape, count, items, mapping, pieces, sse, text
from filters.document import Document
from filters.framing import Event, SseFramer
from tests.exchanges import WORDS, ask

SHAPE = Shape(
    turns=lambda document: [Turn(Role.USER, (), (name,)) for name in document.root],
    parameters={Parameter.MAX_TOKENS: (("new",), ("old",)), Parameter.SEED: (("deep", "seed"),)},
    transport=frozenset(("stream", "options")),
    tools=(("tools",), ("functions",)),
)


def prompt(raw: str) -> BodyPrompt:
    return BodyPrompt(Document(raw.encode()), SHAPE, model="m", stream=False)


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_pieces_joined_are_the_text(whole: str) -> None:
    """Nothing is lost, and no piece is empty or a giant."""
    cut = pieces(whole)
    assert whole == "".join(cut)
    assert all(cut)
    assert all(len(piece) <= 40 or not piece.isascii() for piece in cut)


def test_pieces_end_at_the_end_of_words() -> None:
    """A word of up to 16 letters stays whole."""
    cut = pieces("The quick brown fox jumps over the lazy dog and an incomprehensibility.")
    assert [
        "The quick brown fox jumps",
        " over the lazy dog and an",
        " incomprehensibility.",
    ] == cut


@pytest.mark.parametrize(
    "cluster",
    ["e\u0301", "👍🏽", "👩\u200d👩\u200d👧", "❤\ufe0f", "\r\n"],
    ids=["combining mark", "skin tone", "joined emoji", "variation selector", "CRLF"],
)
def test_what_shows_as_one_character_is_never_cut(cluster: str) -> None:
    """Wherever it stands, marks, joiners and line feeds stay with the character before them."""
    for offset in range(41):
        cut = pieces("x" * offset + cluster + "y" * 50)
        assert any(cluster in piece for piece in cut), offset


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text("\r\n:d\u2028", max_size=5)))
def test_an_event_reads_back_whatever_its_data(data: dict[str, str]) -> None:
    """Line ends inside JSON are escaped, so one line holds it."""
    raw = sse(data, "delta")
    assert [Event(raw, "delta", raw.split(b"data: ", 1)[1][:-2])] == SseFramer().feed(raw)
    assert data == json.loads(raw.split(b"data: ", 1)[1])


def test_a_parameter_is_read_from_the_first_place_that_holds_one() -> None:
    """Null is absent, zero is a value."""
    assert 0 == prompt('{"new": 0, "old": 2}').parameter(Parameter.MAX_TOKENS)
    assert 2 == prompt('{"new": null, "old": 2}').parameter(Parameter.MAX_TOKENS)
    assert prompt("{}").parameter(Parameter.MAX_TOKENS) is None
    assert prompt("{}").parameter(Parameter.STOP) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"old":1}', b'{"old":9}'),
        ('{"new":1,"old":2}', b'{"new":9,"old":2}'),
        ("{}", b'{"new":9}'),
        ('{"new":null}', b'{"new":9}'),
    ],
)
def test_a_parameter_is_set_where_it_stands_else_in_the_first_place(
    raw: str, expected: bytes
) -> None:
    """A server that only knows the older name keeps getting that."""
    asked = prompt(raw)
    asked.set_parameter(Parameter.MAX_TOKENS, 9)
    assert expected == asked.document.render()


def test_a_parameter_the_dialect_lacks_cannot_be_set() -> None:
    """`KeyError`, and the body stays."""
    asked = prompt("{}")
    with pytest.raises(KeyError):
        asked.set_parameter(Parameter.STOP, "x")
    assert not asked.document.changed


def test_turns_are_read_once_until_an_edit_may_have_moved_them() -> None:
    """The same turns come back, until the structure changes."""
    asked = prompt('{"a": "b"}')
    first = asked.turns()
    asked.document.set(("a",), "c")
    assert first is asked.turns()
    asked.document.set(("d",), "e")
    assert [("a",), ("d",)] == [turn.path for turn in asked.turns()]


@pytest.mark.parametrize("name", WORDS)
def test_what_is_said_follows_every_edit_and_its_undoing(name: str) -> None:
    """A text that was read before an edit says afterwards what stands there then."""
    asked = ask(name, "first").prompt
    (one,) = asked.texts()
    assert ("first", ["first"]) == (one.value, list(asked.said()))
    mark = asked.document.mark()
    one.value = "second"
    assert ("second", ["second"]) == (one.value, list(asked.said()))
    asked.document.rollback(mark)
    assert ("first", ["first"]) == (one.value, list(asked.said()))
    asked.document.remove(asked.turns()[0].path)
    assert ("", []) == (one.value, list(asked.said()))


def test_only_transport_that_is_present_is_named() -> None:
    """Null is present: it is in the body."""
    assert {"stream"} == prompt('{"stream": null, "x": {}}').transport_members()
    assert {"options"} == prompt('{"x": [], "options": {"usage": 1}}').transport_members()


def test_tools_of_every_kind_are_shown_joined() -> None:
    """What is no array holds no tools."""
    assert [1, 2] == prompt('{"tools": [1], "functions": [2]}').tools()
    assert [] == prompt('{"tools": {}}').tools()


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", [1], {"a": 1}, -1])
def test_what_has_another_shape_reads_as_empty(value: Any) -> None:
    """Each reader takes its own shape only; a count is a whole number above nothing."""
    assert (value if isinstance(value, dict) else {}) == mapping(value)
    assert (value if isinstance(value, list) else []) == items(value)
    assert (value if isinstance(value, str) else "") == text(value)
    assert (1 if value == 1 and value is not True else 0) == count(value)


def test_what_is_no_json_parses_to_none() -> None:
    """Streams carry words such as `[DONE]` beside JSON."""
    assert base.parse_or_none(b"[DONE]") is None
    assert [1] == base.parse_or_none(b"[1]")
