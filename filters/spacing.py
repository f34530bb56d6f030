"""Tidy white space that carries no meaning."""

from __future__ import annotations

import re
from typing import Final

from filters.segments import edit_prose

# ZWSP, word joiner and BOM say nothing; ZWJ and ZWNJ (emoji, Persian) and bidi marks do, and stay.
_INVISIBLE: Final = "\u200b\u2060\ufeff"
_UNTIDY: Final = re.compile(rf"[{_INVISIBLE}]|[ \t]{{2}}|[ \t]\n|\n\s*\n\s*\n|[ \t]\r\n")
_INVISIBLE_RUN: Final = re.compile(rf"[{_INVISIBLE}]+")
# Begun only at a run's start and never backed out of: a long run costs its length, not its square.
_TRAILING: Final = re.compile(r"(?<![ \t])[ \t]++(?=\r?\n)")
_BLANK_LINES: Final = re.compile(r"((?:\r?\n){2})(?:\r?\n)+")
# A line with a bar or a tab may be a table: its columns stay. So does indentation.
_INNER_RUN: Final = re.compile(r"(?<=[^\s])  +(?=[^\s])")


def tidy_spacing(text: str) -> str:
    """Shorten runs of spaces and blank lines and drop invisible characters, outside code.

    Indentation and lines that look like table rows keep their inner spaces.
    """
    if not _UNTIDY.search(text):
        return text
    return edit_prose(text, _tidy)


def _tidy(prose: str) -> str:
    prose = _INVISIBLE_RUN.sub("", prose)
    prose = _TRAILING.sub("", prose)
    prose = _BLANK_LINES.sub(r"\1", prose)
    if "  " not in prose:
        return prose
    return "\n".join(
        line if "|" in line or "\t" in line or line[:1] == " " else _INNER_RUN.sub(" ", line)
        for line in prose.split("\n")
    )
