"""Find the terms of a trade that a prompt uses, and say what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

import ahocorasick

LANGUAGES: Final = ("en", "zh")
_HEADING: Final = "Glossary:"
_CHINESE_HEADING: Final = "术语表："
_CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")
_WORD: Final = re.compile(r"\w", re.ASCII)


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
        self._automaton = ahocorasick.Automaton()
        for term in self._meanings:
            self._automaton.add_word(term.lower(), term)
        self._automaton.make_automaton()

    def used_in(self, texts: Iterable[str], most: int) -> list[str]:
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

    def _in(self, text: str) -> Iterable[str]:
        hits: list[tuple[int, int, str]] = []
        lower = text.lower()
        if len(lower) != len(text):  # a capital I with a dot becomes two characters
            lower = text
        for end, term in self._automaton.iter(lower):
            start = end + 1 - len(term)
            if _stands_alone(text, start, end + 1) and _is_meant(term, text[start : end + 1]):
                while hits and hits[-1][0] >= start:
                    hits.pop()  # it lies in this one
                hits.append((start, end, term))
        last = -1
        for start, end, term in hits:
            if start > last:
                yield term
                last = end

    def write(self, terms: Iterable[str]) -> str:
        """Return the entries for `terms` as a text for a model."""
        entries = [f"- {term}: {self._meanings[term]}" for term in terms]
        chinese = all(map(_CHINESE.search, entries))
        return "\n".join((_CHINESE_HEADING if chinese else _HEADING, *entries))


def _stands_alone(text: str, start: int, end: int) -> bool:
    return not (_joined(text, start) or _joined(text, end))


def _joined(text: str, at: int) -> bool:
    """Tell whether a Latin word goes on across a place in a text."""
    return bool(0 < at < len(text) and _WORD.match(text, at - 1) and _WORD.match(text, at))


def _is_meant(term: str, written: str) -> bool:
    return written == term if term.isupper() and term.isascii() else True
