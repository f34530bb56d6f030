"""Cut a Chinese or English text into sentences that keep numbers, names and quotes whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

# A sentence that is longer is cut at its clauses: it would be most of a summary.
MOST_CHARS: Final = 400
MOST_HAN_CHARS: Final = 140

# A full stop ends a sentence before a space and what may begin one; so 3.5, e.g. x and a.b stay.
# Runs are begun only at their start and never backed out of: a long one costs its length.
_END: Final = re.compile(
    r"[。！？；…]+[”’」』）)\"']*"
    r"|(?<![!?])[!?]++[”’」』）)\"']*+(?=\s|\Z|[\u3400-\u9fff])"
    r"|(?<!\.)\.++[”’\"')\]]*+(?=\s++[\"'“\u2018(\[]?[^\sa-z,;:)]|\s*+\Z)"
)
_SHORT_FORM: Final = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Mt|Gen|Col|Sgt|Rev|Hon|Gov|Sen|Rep|Capt|Lt|No|Nos|Fig|Figs"
    r"|Eq|Sec|Ch|Vol|Art|pp?|figs?|eq|vol|vs|cf|al|etc|approx|dept|est|Inc|Ltd|Co|Corp|Jan|Feb|Mar|Apr|Jun|Jul"
    r"|Aug|Sept?|Oct|Nov|Dec)|\b[A-Z]|\b[a-z]\.[a-z]|\A\s*\d{1,3})\.\Z"
)
_CLAUSE_END: Final = re.compile(r"[,;:，、：](?=\D)\s*")
_BLANK_LINE: Final = re.compile(r"\n[ \t\r]*\n")
_ITEM: Final = re.compile(
    r"\s*(?:[-*+•·|>]\s|#{1,6}\s|\(?\d{1,3}[.)、]|[（(]?[一二三四五六七八九十]{1,3}[)）、.]"
    r"|第[一二三四五六七八九十百零\d]{1,5}[章节条篇部回])"
)
_HEADING: Final = re.compile(r"#{1,6}\s+\S|第[一二三四五六七八九十百零\d]{1,5}[章节篇部]")
_HAN: Final = re.compile(r"[\u3400-\u9fff]")
_WRAPPED_CHARS: Final = 50  # a shorter line was ended on purpose
_HEADING_CHARS: Final = 80


class Sentence(NamedTuple):  # a text may have tens of thousands: a dataclass takes twice as long
    """A sentence and where it stands: joined, all sentences of a text are the text."""

    text: str
    """With the white space behind it."""
    paragraph: int
    is_heading: bool = False
    heading: int | None = None
    """Index of the heading that it stands under."""


def split_sentences(text: str) -> list[Sentence]:
    """Return the sentences of `text` in their order. Lines of a list are sentences."""
    sentences: list[Sentence] = []
    heading: int | None = None
    for number, paragraph in enumerate(_paragraphs(text)):
        bare = paragraph.strip()
        for line in _lines(paragraph):
            if _is_heading(line, alone=line.strip() == bare):
                heading = len(sentences)
                sentences.append(Sentence(line, number, is_heading=True))
                continue
            sentences += [Sentence(piece, number, heading=heading) for piece in _split(line)]
    return sentences


def has_han(text: str) -> bool:
    """Tell whether a Chinese character is in `text`."""
    return not text.isascii() and _HAN.search(text) is not None


def _paragraphs(text: str) -> Iterator[str]:
    at = 0
    for gap in _BLANK_LINE.finditer(text):
        if gap.start() >= at:
            end = gap.end()
            while end < len(text) and text[end].isspace():
                end += 1
            yield text[at:end]
            at = end
    if at < len(text):
        yield text[at:]


def _lines(paragraph: str) -> Iterator[str]:
    """Join lines that were wrapped at a width, and keep those apart that were not."""
    kept: list[str] = []
    for line in paragraph.splitlines(keepends=True):
        if kept and not _goes_on(kept[-1], line):
            yield "".join(kept)
            kept = []
        kept.append(line)
    yield "".join(kept)


def _goes_on(line: str, after: str) -> bool:
    """Whether `after` goes on with a sentence that `line` began, or belongs to nothing."""
    bare = line.rstrip()
    if not bare or not after.strip():
        return True
    if len(bare) < _WRAPPED_CHARS or has_han(bare[-1:]):
        return False  # most lines: the patterns take longer
    return not (_ITEM.match(after) or _HEADING.match(line))


def _is_heading(line: str, *, alone: bool) -> bool:
    bare = line.strip()
    if not bare or len(bare) > _HEADING_CHARS or "\n" in bare:
        return False
    if _HEADING.match(bare):
        return bare[-1] not in "。！？.!?；;"
    return (
        alone
        and bare[-1] not in "。！？.!?；;,，\"'”"
        and ": " not in bare
        and "：" not in bare[:-1]
    )


def _split(line: str) -> Iterator[str]:
    """Cut at the ends of sentences; what is too long for one, at clauses."""
    at = 0
    for end in _END.finditer(line):
        stop = end.end()
        if line[end.start()] == "." and _SHORT_FORM.search(line[max(at, stop - 12) : stop]):
            continue
        while stop < len(line) and line[stop].isspace():
            stop += 1
        yield from _within_bounds(line[at:stop])
        at = stop
    if at < len(line):
        yield from _within_bounds(line[at:])


def _within_bounds(sentence: str) -> Iterator[str]:
    if len(sentence) <= MOST_HAN_CHARS:  # the lesser bound
        yield sentence
        return
    most = MOST_HAN_CHARS if has_han(sentence[:MOST_CHARS]) else MOST_CHARS
    at = 0
    while len(sentence) - at > most:
        cut = at
        for clause in _CLAUSE_END.finditer(sentence, at, at + most):
            cut = clause.end()
        if cut == at:
            cut = sentence.rfind(" ", at, at + most) + 1
        if cut <= at:
            cut = at + most
        yield sentence[at:cut]
        at = cut
    if at < len(sentence):
        yield sentence[at:]
