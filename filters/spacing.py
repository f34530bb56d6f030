"""Tidy white space and characters that carry no meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from filters.segments import edit_prose

# ZWSP, word joiner and BOM say nothing; ZWJ and ZWNJ (emoji, Persian) and bidi marks do, and stay.
_INVISIBLE: Final = "\u200b\u2060\ufeff\u00ad"
# Thai, Lao, Tibetan, Burmese and Khmer are written without spaces: there a ZWSP ends a word.
_UNSPACED: Final = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
# Tags spell the flags of regions behind a black flag; anywhere else they hide text from the reader.
_HIDDEN: Final = re.compile(
    rf"(?P<keep>(?<=[{_UNSPACED}])\u200b(?=[{_UNSPACED}])|\U0001f3f4[\U000e0020-\U000e007f]++)"
    rf"|[{_INVISIBLE}\U000e0000-\U000e007f]+"
)
# A text is hidden in tags where one of those that any text has is found.
_TAGS: Final = "\U000e0001\U000e0020" + "".join(chr(0xE0000 + ord(letter)) for letter in "aeiou")
HIDDEN_TRACES: Final = (*_INVISIBLE, *_TAGS)
"""A text without any of these hides nothing."""
TRACES: Final = ("  ", "\u00a0", " \n", "\t\n", " \r\n", "\t\r\n", "\n\n\n", "\n\r\n")
"""A text without any of these is tidy."""
# A rule is tried only where one of its marks is found: a few searches for a literal take a tenth of
# the time of one search for a pattern. Runs are begun only at their start and never backed out of:
# a long one costs its length, not its square.
_BLANKS: Final = " \t\u00a0"
_BLANK: Final = re.compile(r"((?:\r?\n){2})(?:\r?\n)+")
_RUN: Final = re.compile(r"(?<![ \u00a0])[ \u00a0]{2,}+(?=\S)")
_QUOTED: Final = re.compile(r'"[^"]*+"|“[^“”]*+”')
_NO_RUNS: Final[dict[int, int]] = {}
_INDENTED: Final = (" ", "\t", "\u00a0", "\u3000")


def drop_invisible(text: str) -> str:
    """Drop characters that nobody sees and that say nothing, outside code."""
    if text.isascii() or not (_has_any(_INVISIBLE, text) or _has_any(_TAGS, text)):
        return text
    return edit_prose(text, lambda prose: _HIDDEN.sub(lambda found: found["keep"] or "", prose))


def tidy_spacing(text: str) -> str:
    """Shorten runs of spaces and blank lines, outside code.

    Indentation, lines that look like table rows and lines that are aligned with a neighbour keep
    their inner spaces, and so does what is quoted: it may be meant to the letter.
    """
    if _has_run(text) or _has_line_end(text) or _has_blank(text):
        return edit_prose(text, _tidy)
    return text


def _tidy(prose: str) -> str:
    if _has_line_end(prose):
        *lines, last = prose.split("\n")
        prose = "\n".join([*map(_strip, lines), last])
    if _has_blank(prose):
        prose = _join_blank(prose)
    if not _has_run(prose):
        return prose
    lines = prose.split("\n")
    runs = [_runs(line) if _has_run(line) else _NO_RUNS for line in lines]
    for index, own in enumerate(runs):
        above = runs[index - 1] if index else _NO_RUNS
        below = runs[index + 1] if index + 1 < len(runs) else _NO_RUNS
        # Columns of a table end in one place.
        if own and own.keys().isdisjoint(above) and own.keys().isdisjoint(below):
            lines[index] = _shorten(lines[index], own)
    return "\n".join(lines)


def _strip(line: str) -> str:
    if line[-1:] == "\r":
        return line[:-1].rstrip(_BLANKS) + "\r"
    return line.rstrip(_BLANKS)


def _join_blank(prose: str) -> str:
    if "\r" in prose:
        return _BLANK.sub(r"\1", prose)
    while "\n\n\n" in prose:  # twenty times as fast as the pattern
        prose = prose.replace("\n\n\n", "\n\n")
    return prose


def _runs(line: str) -> dict[int, int]:
    """Return where runs of spaces in a line of prose end, and where they begin."""
    if line.startswith(_INDENTED) or "|" in line or "\t" in line:
        return _NO_RUNS
    if not any(map(str.isalnum, line)):
        return _NO_RUNS  # part of a drawing
    if '"' in line or "“" in line:
        line = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), line)
    if "\u00a0" in line:
        return {run.end(): run.start() for run in _RUN.finditer(line)}
    runs: dict[int, int] = {}
    begins = line.find("  ")
    while begins >= 0:
        ends = begins + 2
        while line.startswith("  ", ends):
            ends += 2
        ends += line.startswith(" ", ends)
        if not line[ends : ends + 1].isspace() and ends < len(line):
            runs[ends] = begins
        begins = line.find("  ", ends)
    return runs


def _shorten(line: str, runs: Mapping[int, int]) -> str:
    pieces: list[str] = []
    at = 0
    for ends, begins in runs.items():
        pieces.append(line[at:begins])
        at = ends
    return " ".join([*pieces, line[at:]])


# A character is found at a twentieth of the cost of two: the rare one is looked for first.


def _has_run(text: str) -> bool:
    if "  " in text:
        return True
    return "\u00a0" in text and ("\u00a0\u00a0" in text or " \u00a0" in text or "\u00a0 " in text)


def _has_line_end(text: str) -> bool:
    if "\n" not in text:
        return False
    if " \n" in text or ("\t" in text and ("\t\n" in text or "\t\r\n" in text)):
        return True
    if "\u00a0" in text and ("\u00a0\n" in text or "\u00a0\r\n" in text):
        return True
    return "\r" in text and " \r\n" in text


def _has_blank(text: str) -> bool:
    return "\n" in text and ("\n\n\n" in text or ("\r" in text and "\n\r\n" in text))


def _has_any(marks: str, text: str) -> bool:
    for mark in marks:  # noqa: SIM110 - a generator costs more than the searches
        if mark in text:
            return True
    return False
