"""Finding values in the bytes of a JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.json_spans import spans

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=4), below, max_size=4)
    ),
    max_leaves=12,
)


def leaves(value: Any, at: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Return every value that holds no other, under its path."""
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        return {
            path: leaf for step, below in inner for path, leaf in leaves(below, (*at, step)).items()
        }
    return {at: value}


@given(JSON, st.sampled_from([None, 1]), st.booleans())
def test_every_value_stands_where_it_is_found(value: Any, indent: int | None, plain: bool) -> None:
    """Whatever the layout and the escapes, and whatever the names."""
    raw = json.dumps(value, indent=indent, ensure_ascii=plain).encode()
    expected = leaves(value)
    found = {
        path: json.loads(raw[start:end]) for path, (start, end) in spans(raw, expected).items()
    }
    assert expected == found


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"id":"a","id":"b"}', {("id",): b'"b"'}),
        (b'{"x":{"id":"a"},"y":["id","a"]}', {}),
        (b'{"i\\u0064": "a\\"}"}', {("id",): b'"a\\"}"'}),
        (b'{"text":"\\"id\\":1","id":1.5e3 }', {("id",): b"1.5e3"}),
    ],
)
def test_only_what_was_asked_for_is_found(raw: bytes, expected: dict[Any, bytes]) -> None:
    """Not what only looks like it: a value, another object's member, a text."""
    assert expected == {path: raw[a:b] for path, (a, b) in spans(raw, {("id",)}).items()}
