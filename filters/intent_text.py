"""Lay out a request so that the marks by which a task is known can be found in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from filters.scripts import plain_letters

EDGE_CHARS: Final = 200  # an instruction stands at either end of a prompt
CHINESE_EDGE_CHARS: Final = 80  # say as much

_CLAUSE: Final = "^"
_ALONE: Final = "?=+$"
"""Each stands alone, as a word does."""
_AS: Final = {"^": "\n.,;:!^", "=": "=<>{}[]", "+": "+*/%", "$": "$", "?": "?"}
"""What a sign is laid out as; every other one is a gap."""


def _laid_out_as(character: str, signs: Mapping[str, str]) -> str:
    if character.isalpha():
        return character.lower()
    if character.isdigit():
        return "0"
    return next((sign for sign, kind in signs.items() if character in kind), " ")


# A table of bytes: one of characters takes ten times as long.
_TABLE: Final = bytes(ord(_laid_out_as(chr(code), _AS)) for code in range(128)) + bytes(
    range(128, 256)
)
_WIDE: Final = (
    *((sign, "^") for sign in "。，；：！、"),
    ("？", "?"),
    *((sign, " ") for sign in "“”‘’「」《》（）【】…—–•·\u00a0\u3000"),  # noqa: RUF001 - as people write them
)
_LATIN: Final = re.compile("[a-z0-9\u00df-\u024f]+")
_HAN: Final = re.compile("[\u3400-\u9fff]")
_GAPS: Final = re.compile("( +)")


def edges(texts: Sequence[str]) -> str:
    """Return the first and the last characters of what somebody said in `texts`, at least one."""
    first, last = texts[0], texts[-1]
    edge = EDGE_CHARS
    if not first.isascii() and _HAN.search(first, 0, EDGE_CHARS):
        edge = CHINESE_EDGE_CHARS
    if len(texts) == 1 and len(first) <= 2 * edge:
        return first
    return f"{first[:edge]}\n{last[-edge:]}"


def laid_out(text: str) -> str:
    """Return `text` in lower case, its words spaced, `^` where a clause starts, digits as 0.

    Marks are looked for in every request, so this takes no step for each word: where two gaps
    meet, both stay.
    """
    if not text.isascii():
        text = plain_letters(text).lower()
        for wide, sign in _WIDE:  # for texts so short, faster than a table or one expression
            text = text.replace(wide, sign)
        if _HAN.search(text):
            text = _LATIN.sub(r" \g<0> ", text)
    # A half of a surrogate pair, which a JSON escape can make, is no character.
    spaced = f"^{text}^".encode("utf-8", "replace").translate(_TABLE).decode()
    spaced = spaced.replace("^ ", "^").replace("^", " ^ ")
    for sign in _ALONE:
        if sign in spaced:
            spaced = spaced.replace(sign, f" {sign} ")
    return spaced


def marks(layout: str) -> Iterable[str]:
    """Yield what a model may know a task by: parts of a layout, some of them more than once.

    Words alone, in pairs, and in threes at the start of a clause; how a word begins; one to three
    Chinese characters, with where the clause starts. What stands apart by more than a space is no
    pair.
    """
    tokens: list[str] = []
    for part in _GAPS.split(layout.strip(" ")):
        if part == " ":
            continue
        if part.startswith(" "):
            tokens.append("")
            continue
        before = tokens[-1] if tokens else ""
        if _HAN.match(part):
            yield from _chinese_marks(part, before)
            tokens.append("")
            continue
        if before:
            yield f" {before} {part} "
            if before != _CLAUSE and tokens[-2:-1] == [_CLAUSE]:
                yield f" ^ {before} {part} "
        yield f" {part} "
        for length in (5, 7):
            if len(part) > length:
                yield f" {part[:length]}"
        tokens.append(part)


def _chinese_marks(token: str, before: str) -> Iterable[str]:
    for length in (1, 2, 3):
        for start in range(len(token) - length + 1):
            yield token[start : start + length]
        if before == _CLAUSE and len(token) >= length:
            yield f" ^ {token[:length]}"
