"""Edit a JSON body without disturbing what nobody edited.

A `Document` keeps the bytes that came and a journal of edits. Untouched, it renders as those same
bytes. Edited, only the members on the path of an edit are encoded again; every other value is
copied from the original bytes, so that big integers, number formats, escapes and unknown fields
survive a rewrite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from filters.errors import NotJson

Json: TypeAlias = Any
"""A JSON value as `msgspec` decodes it: dict, list, str, int, float, bool or None."""
Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root, such as `("messages", 0, "content")`."""

_DECODER: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_LEVEL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw] | None)
_STRING: Final = re.compile(rb'"(?>[^"\\]++|\\.)*+"', re.DOTALL)
_HOLDERS: Final = (str, dict, list)  # a number that comes or goes moves no text
_ABSENT: Final = object()
_REMOVED: Final = object()


def parse(raw: bytes) -> Json:
    """Decode JSON; raise `NotJson` for anything else, too deep a nesting included."""
    try:
        return _DECODER.decode(raw)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def encode(value: Json) -> bytes:
    """Encode a JSON value compactly, as UTF-8."""
    return _ENCODER.encode(value)


def has_repeated_members(raw: bytes) -> bool:
    """Tell whether an object somewhere in a JSON text has two members of one name.

    Parsers read the first, the last or neither of them (RFC 8259, section 4).
    """
    written = _STRING.sub(b"", raw).count(b":")
    read = 0
    left = [parse(raw)]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            read += len(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    return written != read


class _Edit(NamedTuple):
    """One edit: what to repeat on the original bytes, and what to put back when it is undone."""

    path: Path
    value: Json
    """A container is kept as its encoding, so that later edits inside it do not reach the journal;
    `_REMOVED` for a removal."""
    parent: Any
    before: Json
    """What stood in `parent` at `step`, or `_ABSENT`."""
    step: str | int


class Document:
    """A JSON object, the bytes it came from, and the edits made since."""

    __slots__ = ("_journal", "raw", "root", "structure", "version")

    def __init__(self, raw: bytes) -> None:
        """Parse `raw`; raise `NotJson` when it is not a JSON object."""
        root = parse(raw)
        if not isinstance(root, dict):
            raise NotJson(f"expected an object, got {type(root).__name__}")
        self.raw: Final = raw
        self.root: Final[dict[str, Json]] = root
        self.structure = 0
        """Grows with every edit that may move other values: views made before it are stale."""
        self.version = 0
        """Grows with every edit, undone ones included: values read before it may be others."""
        self._journal: list[_Edit] = []

    @property
    def changed(self) -> bool:
        """Whether any edit was made that still stands."""
        return bool(self._journal)

    def get(self, path: Path, default: Json = None) -> Json:
        """Return the value at `path`, or `default` when there is none."""
        node: Json = self.root
        if len(path) == 1:  # most parameters, most of them absent: an exception takes 0.6 us
            return node.get(path[0], default)
        try:
            for step in path:
                if node.__class__ is str:  # the one scalar that an index does not refuse
                    return default
                node = node[step]
        except (KeyError, IndexError, TypeError):
            return default
        return node

    def set(self, path: Path, value: Json) -> None:
        """Put `value` at `path`; missing objects on the way (absent or null) are made.

        The value belongs to the document from then on and must not be mutated by the caller.
        Raise `KeyError` when the path runs through something that is neither object nor array or
        past the end of an array; `ValueError` when the value cannot be written as JSON.
        """
        kept = value
        if isinstance(value, str):
            value.encode()  # a lone surrogate must fail here, where it came from
        elif isinstance(value, dict | list):
            kept = msgspec.Raw(encode(value))
        parent, step, nested = _place(self.root, path, value)
        before = parent.get(step, _ABSENT) if isinstance(parent, dict) else parent[step]
        if isinstance(nested, str) and isinstance(before, str):
            if nested == before:
                return
        elif isinstance(nested, _HOLDERS) or isinstance(before, _HOLDERS):
            self.structure += 1
        parent[step] = nested
        self.version += 1
        self._journal.append(_Edit(path, kept, parent, before, step))

    def remove(self, path: Path) -> None:
        """Drop the member or item at `path`; nothing happens when there is none."""
        before = self.get(path, _ABSENT)
        if before is _ABSENT or not path:
            return
        parent, step, _ = _place(self.root, path, _REMOVED)
        del parent[step]
        self.structure += 1
        self.version += 1
        self._journal.append(_Edit(path, _REMOVED, parent, before, step))

    def mark(self) -> int:
        """Return a mark to which `rollback` can return."""
        return len(self._journal)

    def rollback(self, mark: int) -> None:
        """Undo every edit made since `mark`."""
        while len(self._journal) > mark:
            edit = self._journal.pop()
            if edit.value is _REMOVED and isinstance(edit.parent, list):
                edit.parent.insert(int(edit.step), edit.before)
            elif edit.before is _ABSENT:
                del edit.parent[edit.step]
            else:
                edit.parent[edit.step] = edit.before
            self.structure += 1
            self.version += 1

    def replaced(self, values: Mapping[Path, Json]) -> dict[str, Json]:
        """Return the root with `values` in place, sharing whatever they do not touch.

        The document itself stays as it is. Every path must exist, and none lie below another.
        """
        if not values:
            return self.root
        root = self.root.copy()
        ours = {id(root)}  # the copies, each made once
        for path, value in values.items():
            node: Json = root
            for step in path[:-1]:
                below = node[step]
                if id(below) not in ours:
                    below = node[step] = below.copy()
                    ours.add(id(below))
                node = below
            node[path[-1]] = value
        return root

    def render(self) -> bytes:
        """Return the body to send: the very bytes that came when nothing was edited."""
        if not self._journal:
            return self.raw
        root = _opened(self.raw)
        for edit in self._journal:
            parent, step, value = _place(root, edit.path, edit.value)
            if value is _REMOVED:
                del parent[step]
            else:
                parent[step] = value
        return encode(root)


def _place(root: Json, path: Path, value: Json) -> tuple[Any, Any, Json]:
    """Find the container and the step at which to put which value so that it ends up at `path`.

    Containers on the way that are still raw bytes are opened, one level each. Where one is missing
    the value comes back wrapped in the objects to make.
    """
    node = root
    for depth, step in enumerate(path, 1):
        if isinstance(node, dict) and isinstance(step, str):
            below = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and 0 <= step < len(node):
            below = node[step]
        else:
            break
        if depth == len(path):
            return node, step, value
        if isinstance(below, msgspec.Raw):
            below = node[step] = _opened(below)
        if below is None:
            for missing in reversed(path[depth:]):
                if not isinstance(missing, str):
                    raise KeyError(path)
                value = {missing: value}
            return node, step, value
        node = below
    raise KeyError(path)


def _opened(raw: Any) -> Any:
    """Decode one level of a container, or null; what is below stays bytes."""
    return _LEVEL.decode(raw)
