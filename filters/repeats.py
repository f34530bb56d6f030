"""Drop paragraphs that say again what one before them said."""

from __future__ import annotations

import re
from typing import Final

from filters.segments import GAP, edit_prose, is_code

_SHORTEST: Final = 40  # characters; a Chinese one counts as three: they say as much
_SHORTEST_SENTENCE: Final = 12  # likewise; "Yes." is said again for good reason
_FAR_CHARS: Final = 1_000  # a question asked again behind so much is meant
_PROBED_CHARS: Final = 8_192  # in a longer text looking for probes costs more than it saves

_SENTENCE: Final = re.compile(r"[^.!?;。！？；…\n]+")
_WORD: Final = re.compile(r"[^\W_]+")
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Words that carry no fact: two sentences that differ by these alone say the same. Negations,
# numbers and quantities are not among them.
_FUNCTION_WORDS: Final = frozenset(
    [
        "a", "an", "the", "of", "to", "in", "on", "at", "for", "and", "that", "this", "these",
        "those", "is", "are", "was", "were", "be", "been", "which", "who", "whom", "its", "it",
        "as", "by", "with", "also", "very", "so", "then", "there", "here", "just", "really",
        "please",
    ]
)  # fmt: skip
_FUNCTION_CHARACTERS: Final = str.maketrans("", "", "的了地得着呢吧吗啊呀哦嘛")
# Pieces of words that every repetition has as well, whatever happens to plurals and small words.
_PROBE: Final = re.compile(
    r"[^\W_s\u0080-\U0010ffff]{4,8}|[^\W_\x00-\x7f的了地得着呢吧吗啊呀哦嘛]{2,4}"
)
_ASCII_PROBE: Final = re.compile(r"[a-rt-z0-9]{4,8}")  # the same, found in a fifth of the time
_PROBED_HEAD: Final = 120  # characters of a paragraph
_GAP: Final = "\n\n"
_TABLE: Final = re.compile(r"[|\t]|^[^\S\n]*+(?:[-*+>#]|\d+[.)])\s", re.MULTILINE)


def drop_repeats(text: str) -> str:
    """Return `text` without paragraphs of which every sentence stood in it before.

    Case, punctuation, spacing, plurals and words such as "the" do not count. Lists, tables, quotes
    and code stay, and so does the last paragraph where it repeats one from far before.
    """
    if not may_repeat(text):
        return text
    seen: dict[str, int] = {}
    stems = _Stems()
    total = len(text)
    at = 0

    def drop(prose: str) -> str:
        nonlocal at
        begins = text.find(prose, at)
        at = begins + len(prose)
        return _drop(prose, seen, stems, begins, total)

    return edit_prose(text, drop)


def may_repeat(text: str, *, is_tidy: bool = False) -> bool:
    """Tell whether a paragraph repeats another, be it prose or not, at as little cost as may be.

    `is_tidy` says that no line ends with blanks, and no empty one as Windows has it.
    """
    if len(text) < _SHORTEST or "\n" not in text:
        return False
    lower = text.lower()
    if not is_tidy and (" \n" in lower or "\t" in lower or "\r" in lower):
        lower = _GAP.join(GAP.split(lower)[::2])
    if len(lower) <= _PROBED_CHARS and not _may_one_have_stood(lower):
        return False
    seen: set[str] = set()
    stems = _Stems()
    for paragraph in lower.split(_GAP):
        keys = _sentences(paragraph, stems)
        if keys and seen.issuperset(keys):
            return True
        seen.update(keys)
    return False


def _may_one_have_stood(text: str) -> bool:
    """Tell whether the first words of a paragraph stand before it in `text`, as far as probes tell.

    Paragraphs stand between empty lines.
    """
    probe = (_ASCII_PROBE if text.isascii() else _PROBE).search
    gap = text.find(_GAP)
    while gap >= 0:
        begins = gap + len(_GAP)
        gap = text.find(_GAP, begins)
        ends = len(text) if gap < 0 else gap
        if ends - begins > _SHORTEST // 3:
            head = min(ends, begins + _PROBED_HEAD)
            found = probe(text, begins, head)
            while found and text.find(found[0], 0, begins) >= 0:
                found = probe(text, found.end(), head)
            if found is None:
                return True
    return False


def _drop(prose: str, seen: dict[str, int], stems: _Stems, begins: int, total: int) -> str:
    pieces = GAP.split(prose)
    kept: list[str] = []
    at = begins
    for index in range(0, len(pieces), 2):
        paragraph = pieces[index]
        gap = pieces[index + 1] if index + 1 < len(pieces) else ""
        end = at + len(paragraph)
        keys = _keys(paragraph, stems)
        first = [seen.get(key, -1) for key in keys]
        is_last = end >= total - len(gap)
        if (
            keys
            and min(first) >= 0
            and not (is_last and at - max(first) > _FAR_CHARS)
            and not _is_framed(kept, gap, pieces, index)
        ):
            if is_last and kept:
                kept[-1] = gap  # the blank line before it goes with it
        else:
            for key in keys:
                seen.setdefault(key, at)
            kept += [paragraph, gap]
        at = end + len(gap)
    return "".join(kept)


def _keys(paragraph: str, stems: _Stems) -> list[str]:
    """Return what each sentence says; nothing for a paragraph that is too short or no prose."""
    if _weight(paragraph) < _SHORTEST or _TABLE.search(paragraph):
        return []
    if any(is_code(line) or line[:1] in (" ", "\t") for line in paragraph.split("\n")):
        return []
    keys = _sentences(paragraph, stems)
    return keys if keys and max(map(_weight, keys)) >= _SHORTEST_SENTENCE else []


class _Stems(dict[str, str]):
    """Words without what does not count, each worked on once; nothing for a function word."""

    def __missing__(self, word: str) -> str:
        stem = word
        if not word.isascii():
            stem = word.translate(_FUNCTION_CHARACTERS)
        elif word in _FUNCTION_WORDS:
            stem = ""
        elif len(word) > 3 and word[-1] == "s" and word[-2] not in "su":
            stem = word[:-1]
        self[word] = stem
        return stem


def _sentences(paragraph: str, stems: _Stems) -> list[str]:
    """Return what each sentence says."""
    said = (
        " ".join(filter(None, map(stems.__getitem__, _WORD.findall(sentence))))
        for sentence in _SENTENCE.findall(paragraph.lower())
    )
    return [sentence for sentence in said if sentence]


def _weight(text: str) -> int:
    return len(text) if text.isascii() else len(text) + 2 * len(_CJK.findall(text))


def _is_framed(kept: list[str], gap: str, pieces: list[str], index: int) -> bool:
    """Tell whether a paragraph is all that stands between two tags: the frame would be empty."""
    before = kept[-2].rstrip() if len(kept) > 1 else ""
    after = pieces[index + 2].lstrip() if gap and index + 2 < len(pieces) else ""
    return before.endswith(">") and after.startswith("</")
