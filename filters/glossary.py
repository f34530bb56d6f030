"""Find the terms of a trade that a prompt uses, and say what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Final

import ahocorasick_rs as ahocorasick

from filters.scripts import joins_words

LANGUAGES: Final = ("en", "zh")
_HEADING: Final = "Glossary:"
_CHINESE_HEADING: Final = "术语表："
_TERMS_AT_ONCE: Final = 48
_CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")


def bundled(domain: str) -> dict[str, str]:
    """Return the terms of a domain that come with Forebay, in every language there is."""
    found: dict[str, str] = {}
    for language in LANGUAGES:
        file = resources.files("filters") / "data" / "glossary" / f"{domain}.{language}.txt"
        for line in file.read_text("utf-8").splitlines():
            if line and not line.startswith("#"):
                terms, _, meaning = line.partition("=")
                found |= dict.fromkeys(map(str.strip, terms.split("|")), meaning.strip())
    return found


class Glossary:
    """Terms and their meanings, found in a text in one pass whatever their number.

    Case does not count, but of a term in capitals, such as PE, which may be a word otherwise. A
    term in Latin letters must stand alone, and of terms that overlap the longest is meant.
    """

    def __init__(self, terms: Mapping[str, str]) -> None:
        self._meanings: Final = dict(terms)
        cased = [term for term in terms if term.isupper() and term.isascii()]
        uncased = [term for term in terms if term not in set(cased)]
        self._cased: Final = [_Finder(some) for some in _several(cased)]
        self._uncased: Final = [_Finder(some, lower=True) for some in _several(uncased)]

    def used_in(self, texts: Sequence[str], most: int) -> list[str]:
        """Return at most so many of the terms in `texts`, in the order they first come.

        In that order a longer conversation only adds behind what a shorter one had.
        """
        found: dict[str, None] = {}
        for text in texts:
            for term in self._in(text):
                if len(found) == most:
                    return list(found)
                found[term] = None
        return list(found)

    def may_be_used_in(self, texts: Sequence[str]) -> bool:
        """Tell all texts at once that none of them has a term, as most have none."""
        text = "\n".join(texts)
        lower = text.lower()
        if len(lower) != len(text):
            return True
        for said, finders in ((lower, self._uncased), (text, self._cased)):
            for finder in finders:  # a loop, as of most there is one: `any` takes 0.3 us more
                if finder.may_find(said):
                    return True
        return False

    def _in(self, text: str) -> Iterator[str]:
        lower = text.lower()
        if len(lower) != len(text):  # a capital I with a dot becomes two characters
            lower = text
        hits: list[tuple[int, int, str]] = []
        for said, finders in ((text, self._cased), (lower, self._uncased)):
            for finder in finders:
                if finder.may_find(said):
                    hits += finder.find(said, text)
        last = 0
        for start, end, term in sorted(hits):  # of those that begin together the longest first
            if start >= last:
                yield term
                last = -end

    def write(self, terms: Iterable[str]) -> str:
        """Return the entries for `terms` as a text for a model."""
        entries = [f"- {term}: {self._meanings[term]}" for term in terms]
        chinese = all(map(_CHINESE.search, entries))
        return "\n".join((_CHINESE_HEADING if chinese else _HEADING, *entries))


class _Finder:
    """Finds a few dozen terms."""

    def __init__(self, terms: Sequence[str], *, lower: bool = False) -> None:
        words = [term.lower() for term in terms] if lower else terms
        self._terms: Final = terms
        self._finder: Final = ahocorasick.AhoCorasick(words)
        # Of so few terms it finds the first with vector instructions, at a tenth of the cost; what
        # overlaps with another, or is part of a word, it does not tell.
        self.may_find: Final = ahocorasick.AhoCorasick(
            words, ahocorasick.MatchKind.LeftmostFirst
        ).find_matches_as_strings

    def find(self, said: str, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield where a term begins and, below zero, where it ends, and the term.

        `said` is `text` or the same in lower case.
        """
        for term, start, end in self._finder.find_matches_as_indexes(said, overlapping=True):
            if not (joins_words(text, start) or joins_words(text, end)):
                yield start, -end, self._terms[term]


def _several(terms: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(terms), _TERMS_AT_ONCE):
        yield terms[start : start + _TERMS_AT_ONCE]
