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

_Level: TypeAlias = "dict[str, msgspec.Raw] | list[msgspec.Raw]"


@dataclass(frozen=True, slots=True)
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
        levels: list[_Level] = []
        node: bytes | msgspec.Raw = data
        try:
            for step in self.text:
                level = _LEVEL.decode(node)
                node = level[0] if isinstance(level, list) else level[step]  # type: ignore[index]  # a step into an object is a name
                if isinstance(level, list) and (step != 0 or len(level) != 1):
                    return None
                levels.append(level)
            whole = _STRING.decode(node)
        except (msgspec.MsgspecError, KeyError, IndexError, UnicodeError):
            return None
        if "".join(parts) != whole or len(parts) < 2:
            return None
        starts, middles, ends = self._around(levels)
        if len(parts) * len(b"".join((before, *middles, behind))) > MOST_ROUND_BYTES:
            return None
        said = [encode(part) for part in parts]
        return [
            b"%b%b%b%b%b" % (opening, starts[0], said[0], starts[1], behind),
            *(b"%b%b%b%b%b" % (before, middles[0], one, middles[1], behind) for one in said[1:-1]),
            b"%b%b%b%b%b" % (before, ends[0], said[-1], ends[1], behind),
        ]

    def _around(self, levels: Sequence[_Level]) -> list[list[bytes]]:
        """Return what stands before and behind the text in the first piece, the last, and others.

        The others' is second.
        """
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
        return [encode(one).split(_MARK) for one in (first, middle, last)]
