"""How alike two answers are: ROUGE-L, the longest row of words that both have in that order.

Chin-Yew Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004; here the F1 of recall
and precision, neither answer being the right one. A Chinese or Japanese character is a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

MOST_WORDS: Final = 4_000
"""Of each text; what comes behind does not count. Two of that length take some milliseconds."""
_ALONE: Final = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD: Final = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}_])\w)+")


def likeness(one: str, other: str) -> float:
    """Return ROUGE-L of two texts, 0 to 1; case, width, marks and white space do not count.

    Two texts without any word are alike only if they are the same.
    """
    first, second = words(one), words(other)
    if not first and not second:
        return float(one.strip() == other.strip())
    return 2 * longest_common(first, second) / (len(first) + len(second))


def words(text: str) -> list[str]:
    """Return the words of a text, `MOST_WORDS` at most."""
    found = _WORD.finditer(unicodedata.normalize("NFKC", text).casefold())
    return [word[0] for word, _ in zip(found, range(MOST_WORDS), strict=False)]


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    A column of the table is one number, each bit the step from a row to the next: Hyyrö,
    "Bit-Parallel LCS-length Computation Revisited", 2004.
    """
    where: dict[str, int] = {}
    for at, word in enumerate(one):
        where[word] = where.get(word, 0) | 1 << at
    every = (1 << len(one)) - 1
    column = every
    for word in other:
        if at_word := where.get(word):
            taken = column & at_word
            column = (column + taken | column - taken) & every
    return len(one) - column.bit_count()
