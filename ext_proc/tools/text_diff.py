"""Show how texts differ: a unified diff that is cut into sentences, and the words that changed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

LONG_LINE_CHARS: Final = 100  # a longer line is cut into its sentences
CONTEXT_LINES: Final = 1
MOST_WORDS: Final = 400  # comparing takes time with their square
MOST_PAIRS: Final = 400  # of lines that may have become each other; 0.1 ms each
LEAST_LIKENESS: Final = 0.5

_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=\S)|(?<=[。！？；])")
_WORD: Final = re.compile(r"\w+|\s+|.", re.DOTALL)

Texts = Sequence[tuple[str, str]]
"""Who speaks, and what."""
Span = tuple[int, int]


def lines_of(texts: Texts) -> list[str]:
    """Write texts as lines: `[role]`, then what is said, long lines sentence by sentence."""
    lines: list[str] = []
    for role, text in texts:
        lines.append(f"[{role}]")
        for line in text.splitlines():
            lines += _SENTENCE.split(line) if len(line) > LONG_LINE_CHARS else [line]
    return lines


def unified(before: Texts, after: Texts) -> list[str]:
    """Return the lines of a unified diff, from the first `@@` on."""
    old, new = lines_of(before), lines_of(after)
    # Empty lines are alike everywhere: they may not hold a diff together.
    matcher = difflib.SequenceMatcher(lambda line: not line.strip(), old, new, autojunk=False)
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        _, one, _, three, _ = group[0]
        _, _, two, _, four = group[-1]
        lines.append(f"@@ -{_range(one, two)} +{_range(three, four)} @@")
        for tag, first, last, first_new, last_new in group:
            if tag == "equal":
                lines += [f" {line}" for line in old[first:last]]
            else:
                lines += [f"-{line}" for line in old[first:last]]
                lines += [f"+{line}" for line in new[first_new:last_new]]
    return lines


def _range(start: int, end: int) -> str:
    """Write a range of lines as POSIX has it in `diff -u`."""
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


def changed_words(lines: Sequence[str]) -> Iterator[tuple[str, list[Span]]]:
    """Return each line of a unified diff with the spans that changed within it.

    A removed line is compared with the added one of its block that is most like it; where nothing
    is like it, nothing is marked.
    """
    at = 0
    while at < len(lines):
        removed = _run(lines, at, "-")
        added = _run(lines, at + len(removed), "+")
        if not removed and not added:
            yield lines[at], []
            at += 1
            continue
        marks: dict[int, list[Span]] = {}
        for old, new in _pairs(removed, added):
            marks[old], marks[len(removed) + new] = _compare(removed[old][1:], added[new][1:])
        for offset, line in enumerate((*removed, *added)):
            yield line, marks.get(offset, [])
        at += len(removed) + len(added)


def _pairs(removed: Sequence[str], added: Sequence[str]) -> Iterator[Span]:
    """Return the places of lines that became each other, in their order."""
    if len(removed) * len(added) > MOST_PAIRS:
        return
    start = 0
    for old, line in enumerate(removed):
        words = _words(line)
        alike = [
            (difflib.SequenceMatcher(None, words, _words(added[new])).quick_ratio(), -new)
            for new in range(start, len(added))
        ]
        likeness, new = max(alike, default=(0.0, 0))
        if likeness >= LEAST_LIKENESS:
            yield old, -new
            start = -new + 1


def _words(line: str) -> list[str]:
    return _WORD.findall(line, 1)


def _run(lines: Sequence[str], start: int, sign: str) -> Sequence[str]:
    end = start
    while end < len(lines) and lines[end].startswith(sign):
        end += 1
    return lines[start:end]


def _compare(old: str, new: str) -> tuple[list[Span], list[Span]]:
    """Return the spans of two lines that the other one lacks, counted with the sign in front."""
    words, others = _WORD.findall(old), _WORD.findall(new)
    if len(words) > MOST_WORDS or len(others) > MOST_WORDS:
        return [], []
    matcher = difflib.SequenceMatcher(None, words, others, autojunk=False)
    starts, other_starts = _starts(words), _starts(others)
    left: list[Span] = []
    right: list[Span] = []
    for tag, one, two, three, four in matcher.get_opcodes():
        if tag != "equal":
            left += [(starts[one], starts[two])] if two > one else []
            right += [(other_starts[three], other_starts[four])] if four > three else []
    return left, right


def _starts(words: Sequence[str]) -> list[int]:
    starts = [1]
    for word in words:
        starts.append(starts[-1] + len(word))
    return starts


# --- Members -------------------------------------------------------------------------------------

ABSENT: Final = object()
"""A member that is not there."""


def changed_members(
    before: Any, after: Any, texts: frozenset[tuple[str | int, ...]]
) -> list[tuple[tuple[str | int, ...], Any, Any]]:
    """Return the path of each JSON value that differs, with both values; `texts` are left out.

    Where an array has another length, or a value another type, the whole of it is one difference.
    """
    found: list[tuple[tuple[str | int, ...], Any, Any]] = []
    left: list[tuple[tuple[str | int, ...], Any, Any]] = [((), before, after)]
    while left:
        path, old, new = left.pop()
        if isinstance(old, dict) and isinstance(new, dict):
            keys = [*new, *(key for key in old if key not in new)]
            left += [
                ((*path, key), old.get(key, ABSENT), new.get(key, ABSENT)) for key in reversed(keys)
            ]
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            left += reversed([((*path, number), *pair) for number, pair in pairs])
        elif (
            path in texts and not isinstance(old, dict | list) and not isinstance(new, dict | list)
        ):
            continue
        elif old is ABSENT or new is ABSENT or old != new:
            found.append((path, old, new))
    return found
