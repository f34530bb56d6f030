"""How a JSON body is edited without disturbing what nobody edited."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.document import Document, Path, encode, has_repeated_members, parse
from filters.errors import NotJson

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
KEY = st.sampled_from(["a", "b", "c", "é"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEY, below, max_size=3),
    max_leaves=12,
)
OBJECT = st.dictionaries(KEY, JSON, max_size=4)
PATH = st.lists(KEY | st.integers(min_value=0, max_value=3), min_size=1, max_size=4).map(tuple)
EDITS = st.lists(
    st.tuples(st.just("set"), PATH, JSON) | st.tuples(st.just("remove"), PATH, st.none()),
    max_size=8,
)
Edit = tuple[str, Path, Any]

ODD = (
    b'{"big": 123456789012345678901234567890, "small":1.10e-3 ,\n'
    b' "esc": "\\u00e9\\/\\ud83d\\ude42", "twice": {"x": 1, "x" : 2},\r\n'
    b' "a": {"t": "old", "n": -0 , "u": [ ]},\t"list" : [ {"t" : "one", "n": 1.0}, null, '
    b'{"t": "two"} ], "a\\u0062" : true }'
)


def apply(document: Document, edits: list[Edit]) -> None:
    for kind, path, value in edits:
        if kind == "remove":
            document.remove(path)
        else:
            try:
                document.set(path, copy.deepcopy(value))
            except KeyError:
                continue


def plain(root: Any, edits: list[Edit]) -> Any:
    """Do the same edits on plain JSON, the slow and obvious way."""
    root = copy.deepcopy(root)
    for kind, path, value in edits:
        if kind == "remove":
            plain_remove(root, path)
        elif plain_fits(root, path):
            plain_set(root, path, copy.deepcopy(value))
    return root


def plain_fits(node: Any, path: Path) -> bool:
    if not path:
        return True
    if node is None:
        return all(isinstance(step, str) for step in path)
    step = path[0]
    match node, step:
        case dict(), str():
            return plain_fits(node.get(step), path[1:])
        case list(), int() if step < len(node):
            return plain_fits(node[step], path[1:])
    return False


def plain_set(node: Any, path: Path, value: Any) -> None:
    step, *below = path
    if not below:
        node[step] = value
        return
    if (isinstance(node, dict) and node.get(step) is None) or node[step] is None:
        node[step] = {}
    plain_set(node[step], tuple(below), value)


def plain_remove(node: Any, path: Path) -> None:
    for step in path[:-1]:
        match node, step:
            case dict(), str() if step in node:
                node = node[step]
            case list(), int() if step < len(node):
                node = node[step]
            case _:
                return
    match node, path[-1]:
        case (dict(), str() as last) if last in node:
            del node[last]
        case (list(), int() as last) if last < len(node):
            del node[last]


# --- What comes out ------------------------------------------------------------------------------


def test_an_untouched_body_is_the_very_bytes_that_came() -> None:
    """Nothing is encoded again when nothing was edited."""
    document = Document(ODD)
    assert document.render() is ODD
    assert not document.changed


@given(root=OBJECT, edits=EDITS)
def test_edits_render_as_the_same_edits_on_plain_json(root: Any, edits: list[Edit]) -> None:
    """Rendered bytes, the root that filters see, and the obvious result are one."""
    document = Document(json.dumps(root).encode())
    apply(document, edits)
    expected = plain(root, edits)
    assert expected == document.root
    assert expected == json.loads(document.render())
    assert document.render() == document.render()


@given(root=OBJECT, first=EDITS, second=EDITS)
def test_rollback_undoes_every_edit_since_the_mark(
    root: Any, first: list[Edit], second: list[Edit]
) -> None:
    """What was edited before the mark stands, what came behind it never was."""
    document = Document(json.dumps(root).encode())
    apply(document, first)
    rendered, seen, mark = document.render(), copy.deepcopy(document.root), document.mark()
    apply(document, second)
    document.rollback(mark)
    assert seen == document.root
    assert rendered == document.render()
    document.rollback(0)
    assert root == document.root
    assert document.render() is document.raw


def test_an_edit_leaves_every_other_value_as_it_was_written() -> None:
    """Big integers, number formats, escapes, duplicate keys and white space elsewhere survive."""
    document = Document(ODD)
    document.set(("a", "t"), "new")
    expected = (
        b'{"big":123456789012345678901234567890,"small":1.10e-3,'
        b'"esc":"\\u00e9\\/\\ud83d\\ude42","twice":{"x": 1, "x" : 2},'
        b'"a":{"t":"new","n":-0,"u":[ ]},'
        b'"list":[ {"t" : "one", "n": 1.0}, null, {"t": "two"} ],"ab":true}'
    )
    assert expected == document.render()


def test_an_item_is_taken_from_an_array_without_touching_its_neighbours() -> None:
    """The items that stay keep their bytes, and later edits find them at their places."""
    document = Document(b'{"l": [{"n": 1.0}, 2, {"n": 1E2, "t": "x"}, 99999999999999999999.0 ]}')
    document.remove(("l", 1))
    document.set(("l", 1, "t"), "y")
    assert b'{"l":[{"n": 1.0},{"n":1E2,"t":"y"},99999999999999999999.0]}' == document.render()


@pytest.mark.parametrize("raw", [b"{}", b'{"a": null}', b'{"a": {}}', b'{"a": {"b": null}}'])
def test_missing_objects_on_the_way_are_made(raw: bytes) -> None:
    """Absent and null parents become objects."""
    document = Document(raw)
    document.set(("a", "b", "c"), 1)
    assert b'{"a":{"b":{"c":1}}}' == document.render()
    assert {"a": {"b": {"c": 1}}} == document.root


@pytest.mark.parametrize(
    "path",
    [(), ("s", "x"), ("s", 0), ("n", "x"), ("l", 9), ("l", -1), ("l", "x"), ("o", 0), ("z", 0)],
)
def test_a_path_that_leads_nowhere_is_refused_and_changes_nothing(path: Path) -> None:
    """A path through a scalar, past an array's end or of the wrong kind raises `KeyError`."""
    document = Document(b'{"s": "text", "n": 1, "l": [1], "o": {}}')
    with pytest.raises(KeyError):
        document.set(path, 1)
    assert document.render() is document.raw
    assert 0 == document.structure


@pytest.mark.parametrize("path", [(), ("s", 0), ("z",), ("l", 9), ("l", "x"), ("s", "x", "y")])
def test_nothing_is_removed_where_nothing_is(path: Path) -> None:
    """Removing what is not there is no edit."""
    document = Document(b'{"s": "text", "l": [1]}')
    document.remove(path)
    assert document.render() is document.raw


def test_a_character_of_a_string_is_not_a_value() -> None:
    """A path through a string finds the default, not one of its characters."""
    assert Document(b'{"s": "text"}').get(("s", 0)) is None


def test_the_same_text_again_is_no_edit() -> None:
    """A filter that changes nothing leaves the bytes alone."""
    document = Document(ODD)
    document.set(("a", "t"), "old")
    assert document.render() is ODD


def test_a_text_for_a_text_moves_nothing() -> None:
    """Views of the document stay good when one text takes another's place, and only then."""
    document = Document(ODD)
    document.set(("a", "t"), "new")
    assert 0 == document.structure
    document.set(("a", "t"), ["new"])
    assert 1 == document.structure
    document.rollback(0)
    assert document.structure > 1


def test_what_cannot_be_sent_is_refused_where_it_comes_from() -> None:
    """A lone surrogate raises at once, in the filter that made it, and changes nothing."""
    document = Document(b'{"a": "x"}')
    for value in ("\ud800", {"deep": ["\ud800"]}):
        with pytest.raises(ValueError, match="surrogates"):
            document.set(("a",), value)
    assert document.render() is document.raw


def test_later_edits_inside_a_value_that_was_set_are_undone_alone() -> None:
    """A container that was set keeps its first state in the journal."""
    document = Document(b'{"l": []}')
    document.set(("l",), [{"t": [1, 2, 3]}])
    mark = document.mark()
    document.remove(("l", 0, "t", 0))
    assert b'{"l":[{"t":[2,3]}]}' == document.render()
    document.rollback(mark)
    assert b'{"l":[{"t":[1,2,3]}]}' == document.render()


@given(root=OBJECT, values=st.dictionaries(PATH, JSON, max_size=4))
def test_replaced_gives_a_changed_copy_and_leaves_the_document(
    root: Any, values: dict[Path, Any]
) -> None:
    """The copy shares what it does not change."""
    document = Document(json.dumps(root).encode())
    present: dict[Path, Any] = {}
    for path in sorted(values, key=len):
        nested = any(path[:length] in present for length in range(1, len(path)))
        if document.get(path, ...) is not ... and not nested:
            present[path] = values[path]
    expected = copy.deepcopy(root)
    for path, value in present.items():
        plain_set(expected, path, value)
    assert expected == document.replaced(present)
    assert root == document.root
    assert document.render() is document.raw


# --- What comes in -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'"text"',
        b"1",
        b"null",
        b"{",
        b"{} x",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08\x00",
        b"\x00",
        b'{"a": "\x00"}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00 "}',
        b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": ' * 5000 + b"1" + b"}" * 5000,
        b"[" * 5_000_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_what_is_no_safe_json_object_is_refused(raw: bytes) -> None:
    """Foreign bytes, half and over-deep JSON, bad UTF-8 and lone surrogates raise `NotJson`."""
    with pytest.raises(NotJson):
        Document(raw)


def test_an_escaped_nul_and_deep_but_sane_nesting_are_read() -> None:
    r"""`\u0000` is a character like others; 200 levels are no attack."""
    raw = b'{"a": "\\u0000", "b": ' + b"[" * 200 + b"]" * 200 + b"}"
    document = Document(raw)
    document.set(("c",), 1)
    assert "\x00" == document.get(("a",))
    assert b'{"a":"\\u0000","b":' + b"[" * 200 + b"]" * 200 + b',"c":1}' == document.render()


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    """No input raises anything but `NotJson`."""
    try:
        document = Document(raw)
    except NotJson:
        return
    assert document.root == json.loads(raw)


@given(JSON)
def test_encoded_json_reads_as_itself(value: Any) -> None:
    """`encode` and `parse` are each other's inverse."""
    assert value == parse(encode(value))


@given(JSON)
def test_what_was_encoded_has_no_member_twice(value: Any) -> None:
    """Whatever stands in its strings."""
    assert not has_repeated_members(encode(value))


@pytest.mark.parametrize(
    "raw", [b'{"a":1,"a":1}', rb'[{"b":{"a":1, "\u0061" : 2}}]', rb'{"\":":":\\","\":":1}']
)
def test_a_member_that_stands_twice_is_seen(raw: bytes) -> None:
    """At any depth, and in whatever spelling."""
    assert has_repeated_members(raw)
