"""Tidy white space that carries no meaning."""

from __future__ import annotations

import re
from typing import Final

from filters.segments import edit_prose

# ZWSP, word joiner and BOM say nothing; ZWJ and ZWNJ (emoji, Persian) and bidi marks do, and stay.
_INVISIBLE: Final = "\u200b\u2060\ufeff"
# A rule is tried only where one of its marks is found: a few searches for a literal take a tenth of
# the time of one search for a pattern. Runs are begun only at their start and never backed out of:
# a long one costs its length, not its square.
_RULES: Final = (
    (tuple(_INVISIBLE), re.compile(rf"[{_INVISIBLE}]+"), ""),
    ((" \n", "\t\n", " \r\n", "\t\r\n"), re.compile(r"(?<![ \t])[ \t]++(?=\r?\n)"), ""),
    (("\n\n\n", "\n\r\n"), re.compile(r"((?:\r?\n){2})(?:\r?\n)+"), r"\1"),
)
_MARKS: Final = ("  ", *(mark for marks, _, _ in _RULES for mark in marks))
_RUN: Final = re.compile(r"(?<! ) {2,}+(?=\S)")


def tidy_spacing(text: str) -> str:
    """Shorten runs of spaces and blank lines and drop invisible characters, outside code.

    Indentation and lines that look like table rows keep their inner spaces.
    """
    return edit_prose(text, _tidy) if _has_any(_MARKS, text) else text


def _tidy(prose: str) -> str:
    for marks, pattern, replacement in _RULES:
        if _has_any(marks, prose):
            prose = pattern.sub(replacement, prose)
    if "  " not in prose:
        return prose
    # A line with a bar or a tab may be a table: its columns stay. So does indentation.
    return "\n".join(
        line if "|" in line or "\t" in line or line[:1] == " " else _RUN.sub(" ", line)
        for line in prose.split("\n")
    )


def _has_any(marks: tuple[str, ...], text: str) -> bool:
    for mark in marks:  # noqa: SIM110 - a generator costs more than the searches
        if mark in text:
            return True
    return False
