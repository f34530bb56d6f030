"""Fold the white space of prose, where it says nothing, and of nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from filters.segments import edit_prose

_INDENTED_LINE: Final = re.compile(r"\n(?: ?\t|  )[ \t]*+\S")
_CELLS: Final = re.compile(r"\S\t++\S")  # a row of a table, where an empty cell is one tab more
_SPACES: Final = "\n\r\t\v\f\x1c\x1d\x1e\x1f"  # of ASCII, as `str.isspace` has it
# Without one of these a text has no code, JSON or mathematics, or none that one line changes.
_MARKS_OF_CODE: Final = "`$\\~={}[<>|"
# Without one of these either it has no table, and in ASCII no space but " " and line feeds.
_MARKS: Final = _MARKS_OF_CODE + _SPACES.replace("\n", "")
_END: Final = "\0"  # no white space, and hardly ever in a text


def fold_all(texts: Collection[str]) -> Iterable[str]:
    """Return what `fold_white_space` makes of each text.

    One look at all of them tells that none has to be taken with care, as most have not.
    """
    joined = _END.join(texts)
    for mark in _MARKS:
        if mark in joined:
            return map(fold_white_space, texts)
    if joined.isascii():
        folded = " ".join(filter(None, joined.split("\n")))
        careful = "  " in folded  # a run, or a line that is indented or ends with a space
    else:
        folded = " ".join(joined.split())
        careful = bool(_INDENTED_LINE.search(joined))
    parts = folded.split(_END)
    if careful or len(parts) != len(texts):
        return map(fold_white_space, texts)
    return map(str.strip, parts)


def fold_white_space(text: str) -> str:
    """Fold runs of white space in prose to one space.

    Code, even unfenced, keeps its own, and so does a table whose columns are parted by tabs.
    """
    if not text or _INDENTED_LINE.search(text) or ("\t" in text and _CELLS.search(text)):
        return text
    for mark in _MARKS_OF_CODE:
        if mark in text:
            return edit_prose(text, _fold).strip()
    return _fold(text).strip()


def _fold(prose: str) -> str:
    # The spaces at the ends count: code may stand beyond them.
    if not prose.isascii():
        # Scripts that have spaces of their own; those with none are one word a line.
        words = prose.split()
        if not words:
            return " "
        left = " " if prose[0].isspace() else ""
        right = " " if prose[-1].isspace() else ""
        return f"{left}{' '.join(words)}{right}"
    for space in _SPACES:  # a tenth of the time of splitting into words
        if space in prose:
            prose = prose.replace(space, " ")
    while "  " in prose:
        prose = prose.replace("  ", " ")
    return prose
