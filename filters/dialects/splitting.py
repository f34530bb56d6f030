"""Make one event of a stream several, whose texts join to its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
"""Events of one stream mostly differ in their text alone: what stands round it is read once, of so
many streams."""
MOST_KEPT_BYTES: Final = 1_024
"""Of what stands round the text of one event."""
_TEXT: Final = b'"\\u0000the text"'

_Level: TypeAlias = "dict[str, msgspec.Raw] | list[msgspec.Raw]"
_Around: TypeAlias = tuple[bytes, bytes]
"""What stands before and behind the text of a piece."""


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

    def __call__(self, raw: bytes, parts: Sequence[str]) -> list[bytes] | None:
        """Return an event for each part, or None if `raw` is none whose text the parts are."""
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
            return None
        if len(parts) < 2:
            return None
        text = "".join(parts)
        around: Sequence[_Around] | None = None
        start, found, end = data.partition(encode(text))
        if found and len(start) + len(end) <= MOST_KEPT_BYTES:
            around = _kept(self, start, end)
        if around is None and (read := self._read(data)) is not None:
            levels, node = read
            try:
                around = self._around(levels) if _STRING.decode(node) == text else None
            except (msgspec.MsgspecError, UnicodeError):
                return None
        if around is None:
            return None
        (first, behind_first), (lead, trail), (last, behind_last) = around
        lead, trail = before + lead, trail + behind
        if len(parts) * (len(lead) + len(trail)) > MOST_ROUND_BYTES:
            return None
        said = list(map(encode, parts))
        return [
            b"".join((opening, first, said[0], behind_first, behind)),
            *[lead + one + trail for one in said[1:-1]],
            b"".join((before, last, said[-1], behind_last, behind)),
        ]

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

    def _around(self, levels: Sequence[_Level]) -> Sequence[_Around]:
        """Return what stands round the text of the first piece, of those behind it, of the last."""
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


@lru_cache(MOST_KEPT)
def _kept(split: Split, start: bytes, end: bytes) -> Sequence[_Around] | None:
    """Return what `Split` has round the pieces of a text between these, if that is its text."""
    if _TEXT in start or _TEXT in end:
        return None
    read = split._read(start + _TEXT + end)  # noqa: SLF001 - of this module
    if read is None or bytes(read[1]) != _TEXT:
        return None
    return split._around(read[0])  # noqa: SLF001 - of this module
