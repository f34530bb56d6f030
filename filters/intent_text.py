"""Lay out a request so that the marks by which a task is known can be found in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

EDGE_CHARS: Final = 200  # an instruction stands at either end of a prompt; 0.1 us a character
CHINESE_EDGE_CHARS: Final = 80  # say as much

_CLAUSE: Final = "^"
_ALONE: Final = "=(){}[]<>+*/%$"
"""Each stands alone, as a word does."""
_TABLE: Final = str.maketrans(
    dict.fromkeys("\n,;:!。，；：！、", "^")
    | dict.fromkeys("？", "?")
    | dict.fromkeys("€£¥", "$")
    | dict.fromkeys("123456789", "0")
    | dict.fromkeys("\t\r-_.\"'`“”‘’「」《》（）【】…#|~@&\\", " ")  # noqa: RUF001 - quotes as people write them
)
_LATIN: Final = re.compile("[a-z0àáâäãåæçèéêëìíîïñòóôöøùúûüß]+")
_HAN: Final = re.compile("[\u3400-\u9fff]")


def edges(texts: Sequence[str]) -> str:
    """Return the first and the last characters of what somebody said in `texts`, at least one."""
    first, last = texts[0], texts[-1]
    edge = CHINESE_EDGE_CHARS if _HAN.search(first, 0, EDGE_CHARS) else EDGE_CHARS
    if len(texts) == 1 and len(first) <= 2 * edge:
        return first
    return f"{first[:edge]}\n{last[-edge:]}"


def laid_out(text: str) -> str:
    """Return `text` in lower case, its words spaced, `^` where a clause starts, digits as 0."""
    spaced = text.lower().replace("^", " ").replace(". ", "\n").translate(_TABLE)
    spaced = spaced.replace("^", " ^ ").replace("?", " ? ^ ")
    for mark in _ALONE:
        if mark in spaced:
            spaced = spaced.replace(mark, f" {mark} ")
    if not spaced.isascii():
        spaced = _LATIN.sub(r" \g<0> ", spaced)
    return f" ^ {' '.join(spaced.split())} ^ "


def marks(layout: str) -> Iterable[str]:
    """Yield what a model may know a task by: parts of a layout, some of them more than once.

    Words alone, in pairs, and in threes at the start of a clause; how a word begins; one to three
    Chinese characters, with where the clause starts or ends.
    """
    tokens = layout.split()
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else ""
        if _HAN.match(token):
            yield from _chinese_marks(token, before)
            continue
        if before:
            yield f" {before} {token} " if not _HAN.match(before) else f"{before[-1]} {token} "
            if len(before) > 1 and _HAN.match(before):
                yield f"{before[-2:]} {token} "
        if token == _CLAUSE:
            continue
        yield f" {token} "
        for length in (5, 7):
            if len(token) > length:
                yield f" {token[:length]}"
        if place > 1 and tokens[place - 2] == "^":
            yield f" ^ {before} {token} "


def _chinese_marks(token: str, before: str) -> Iterable[str]:
    for length in (1, 2, 3):
        for start in range(len(token) - length + 1):
            yield token[start : start + length]
        if before == "^" and len(token) >= length:
            yield f" ^ {token[:length]}"
