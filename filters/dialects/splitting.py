"""Make one event of a stream several, whose texts join to its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from filters.document import Json, Path, encode

# One line of data, behind lines of other fields; or an element of an array behind its comma.
_SSE: Final = re.compile(
    rb"(\xef\xbb\xbf)?((?:(?!data)[^\r\n]*(?:\r\n|\r|\n))*data: ?)(\{[^\r\n]*\})((?:\r\n|\r|\n)+)"
)
_ELEMENT: Final = re.compile(rb"([\s,\[]*)(\{.*\})", re.DOTALL)
_SEPARATOR: Final = b",\n"  # between elements, as providers write it but for a CR
_LEVEL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[msgspec.Raw])
_STRING: Final = msgspec.json.Decoder(str)
_MARK: Final = b"\0"  # in no JSON
_HERE: Final = msgspec.Raw(_MARK)
MOST_ROUND_BYTES: Final = 1024 * 1024
"""What may stand round the texts of all pieces of one event: each repeats its ids. An event with
more of that goes whole."""

MOST_KEPT: Final = 2_048
"""Events of one stream mostly differ in their text alone: what stands round it is read once. So
many are kept,"""
MOST_KEPT_BYTES: Final = 1_024
"""of so many bytes each,"""
KEY_BYTES: Final = 64
"""and found again by their first ones: most streams have an id among them."""
_TEXT: Final = b'"\\u0000the text"'

_Level: TypeAlias = "dict[str, msgspec.Raw] | list[msgspec.Raw]"
_Around: TypeAlias = Sequence[tuple[bytes, bytes]]
"""What stands before and behind the text of the first piece, of those behind it, and of the last.
"""
_NOTHING: Final[tuple[bytes, bytes, _Around]] = b"", b"", ()


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Where an endpoint's events have their text, and what of the rest each piece repeats.

    Members are told by their names, whatever object on the way to the text they stand in.
    """

    text: Path
    """An array on the way holds nothing else."""
    every: frozenset[str]
    """What all pieces have: ids, and what their readers ask for."""
    first: frozenset[str] = frozenset()
    """What the first piece alone has. All that is named nowhere, the last piece alone has."""
    instead: Mapping[str, Json] = field(default_factory=dict)
    """What the pieces before the last have in the place of members that the last one has."""

    kept: dict[bytes, tuple[bytes, bytes, _Around]] = field(
        default_factory=dict, init=False, repr=False
    )
    """What stands before and behind the text of events, and round those of their pieces."""

    def __call__(self, raw: bytes, parts: Sequence[str]) -> list[bytes] | None:
        """Return an event for each part, or None if `raw` is none whose text the parts are."""
        if len(parts) < 2:
            return None
        text = "".join(parts)
        written = encode(text)
        start, end, around = self.kept.get(raw[:KEY_BYTES], _NOTHING)
        if not (
            around
            and raw.startswith(start)
            and raw.endswith(end)
            and raw[len(start) : len(raw) - len(end)] == written
        ):
            around = self._framed(raw, text, written)
            if not around:
                return None
        (first, behind_first), (lead, trail), (last, behind_last) = around
        if len(parts) * (len(lead) + len(trail)) > MOST_ROUND_BYTES:
            return None
        said = list(map(encode, parts))
        return [
            first + said[0] + behind_first,
            *[lead + one + trail for one in said[1:-1]],
            last + said[-1] + behind_last,
        ]

    def _framed(self, raw: bytes, text: str, written: bytes) -> _Around:
        """Return what stands round the pieces of an event, nothing if its text is not this."""
        if (
            raw.startswith(b"data: {")
            and raw.endswith(b"}\n\n")
            and raw.find(b"\n") == len(raw) - 2
            and b"\r" not in raw
        ):  # nearly every event, and a tenth of the work
            opening = before = b"data: "
            data, behind = raw[6:-2], b"\n\n"
        elif (framed := _SSE.fullmatch(raw)) is not None:
            mark, before, data, behind = framed.groups(b"")
            opening = mark + before
        elif (framed := _ELEMENT.fullmatch(raw)) is not None:
            opening, data = framed.groups()
            before, behind = _SEPARATOR, b""
        else:
            return ()
        start, found, end = data.partition(written)
        rounds = self._between(start, end) if found else ()
        keeps = rounds and len(raw) - len(written) <= MOST_KEPT_BYTES
        if not rounds and (read := self._read(data)) is not None:
            levels, node = read
            try:
                rounds = self._around(levels) if _STRING.decode(node) == text else ()
            except (msgspec.MsgspecError, UnicodeError):
                return ()
        around = [
            (lead + one, other + behind)
            for lead, (one, other) in zip((opening, before, before), rounds, strict=False)
        ]
        if keeps:
            if len(self.kept) >= MOST_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[raw[:KEY_BYTES]] = opening + start, end + behind, around
        return around

    def _between(self, start: bytes, end: bytes) -> _Around:
        """Return what stands round the pieces of a text between these, if it is an event's text."""
        if _TEXT in start or _TEXT in end:
            return ()
        read = self._read(start + _TEXT + end)
        return self._around(read[0]) if read is not None and bytes(read[1]) == _TEXT else ()

    def _read(self, data: bytes) -> tuple[Sequence[_Level], bytes | msgspec.Raw] | None:
        """Return the objects and arrays on the way to the text, and what stands in its place."""
        levels: list[_Level] = []
        node: bytes | msgspec.Raw = data
        try:
            for step in self.text:
                level = _LEVEL.decode(node)
                node = level[0] if isinstance(level, list) else level[step]  # type: ignore[index]  # a step into an object is a name
                if isinstance(level, list) and (step != 0 or len(level) != 1):
                    return None
                levels.append(level)
        except (msgspec.MsgspecError, KeyError, IndexError, UnicodeError):
            return None
        return levels, node

    def _around(self, levels: Sequence[_Level]) -> _Around:
        """Return what stands round the texts of the pieces, in their JSON."""
        every, only_first, instead = self.every, self.first, self.instead
        first: Json = _HERE
        middle: Json = _HERE
        last: Json = _HERE
        for level, step in zip(reversed(levels), reversed(self.text), strict=True):
            if isinstance(level, list):
                first, middle, last = [first], [middle], [last]
                continue
            firsts: dict[str, Json] = {}
            middles: dict[str, Json] = {}
            lasts: dict[str, Json] = {}
            for name, value in level.items():
                if name == step:
                    firsts[name], middles[name], lasts[name] = first, middle, last
                elif name in every:
                    firsts[name] = middles[name] = lasts[name] = value
                elif name in only_first:
                    firsts[name] = value
                else:
                    lasts[name] = value
                    if name in instead:
                        firsts[name] = middles[name] = instead[name]
            first, middle, last = firsts, middles, lasts
        return [encode(one).partition(_MARK)[::2] for one in (first, middle, last)]
