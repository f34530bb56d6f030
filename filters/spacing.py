"""Tidy white space and characters that carry no meaning."""

from __future__ import annotations

import re
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
# A rule is tried only where one of its marks is found: a few searches for a literal take a tenth of
# the time of one search for a pattern. Runs are begun only at their start and never backed out of:
# a long one costs its length, not its square.
_LINE_END: Final = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\r?\n)")
_BLANK: Final = re.compile(r"((?:\r?\n){2})(?:\r?\n)+")
_RUN: Final = re.compile(r"(?<![ \u00a0])[ \u00a0]{2,}+(?=\S)")
_INDENTED: Final = (" ", "\t", "\u00a0", "\u3000")


def drop_invisible(text: str) -> str:
    """Drop characters that nobody sees and that say nothing, outside code."""
    if text.isascii() or not (_has_any(_INVISIBLE, text) or _has_any(_TAGS, text)):
        return text
    return edit_prose(text, lambda prose: _HIDDEN.sub(lambda found: found["keep"] or "", prose))


def tidy_spacing(text: str) -> str:
    """Shorten runs of spaces and blank lines, outside code.

    Indentation, lines that look like table rows and lines that are aligned with a neighbour keep
    their inner spaces.
    """
    if _has_run(text) or _has_line_end(text) or _has_blank(text):
        return edit_prose(text, _tidy)
    return text


def _tidy(prose: str) -> str:
    if _has_line_end(prose):
        prose = _LINE_END.sub("", prose)
    if _has_blank(prose):
        prose = _BLANK.sub(r"\1", prose)
    if not _has_run(prose):
        return prose
    lines = prose.split("\n")
    runs = [_runs(line) for line in lines]
    for index, ends in enumerate(runs):
        above = runs[index - 1] if index else frozenset()
        below = runs[index + 1] if index + 1 < len(runs) else frozenset()
        if ends and ends.isdisjoint(above) and ends.isdisjoint(below):
            lines[index] = _RUN.sub(" ", lines[index])
    return "\n".join(lines)


def _runs(line: str) -> frozenset[int]:
    """Return where runs of spaces end in a line of prose; columns of a table end in one place."""
    if line.startswith(_INDENTED) or "|" in line or "\t" in line or not _has_run(line):
        return frozenset()
    if not any(map(str.isalnum, line)):
        return frozenset()  # part of a drawing
    return frozenset(found.end() for found in _RUN.finditer(line))


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
