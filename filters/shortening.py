"""Find what of a prompt's texts may become a summary, and put the summary in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from filters.passages import Span, find_passages, outside, question_in
from filters.segments import edit_prose
from filters.sentences import has_han
from filters.summary import NOTHING_KEPT, summarise_all
from filters.token_estimate import estimate_tokens
from filters.words import WordFinder

LEAST_PIECE_TOKENS: Final = 24  # between code a shorter piece of prose stays
MARK: Final = "[Summary] "
MARK_HAN: Final = "[摘要] "
MARK_TOKENS: Final = 4
MOST_ORDERS_CHARS: Final = 4_000  # what a system prompt is for stands at its beginning
_CUT: Final = "\0"  # no prose holds it

# A task that works on every word: a summary of its document is another document.
_EVERY_WORD: Final = WordFinder(
    (
        # English
        "translate", "translation", "translating", "translator", "proofread", "proofreading",
        "rewrite", "reword", "rephrase", "paraphrase", "copyedit", "copy-edit", "spelling",
        "grammar", "typos", "verbatim", "word for word", "line by line", "sentence by sentence",
        "paragraph by paragraph", "quote", "transcribe", "reformat", "convert", "anonymise",
        "anonymize", "redact", "continue the story", "continue the text", "word count",
        "how many words", "how many times", "full text", "whole text", "entire text",
        # and tasks that want everything of a kind
        "list all", "list every", "find all", "find every", "extract all", "extract every",
        "name all", "name every", "every single", "each of the",
        # Chinese
        "翻译", "译成", "译为", "校对", "润色", "改写", "重写", "扩写", "仿写", "续写", "逐字",
        "逐句", "逐段", "逐行", "原封不动", "错别字", "病句", "语法错误", "排版", "转写",
        "转换成", "字数", "多少字", "出现了几次", "全文", "脱敏", "标点", "列出所有",
        "找出所有", "提取所有", "列出全部", "找出全部", "提取全部", "每一个", "每一条", "逐一",
        "逐条",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of prose in one of the texts."""

    text: int
    span: Span
    prose: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be shortened, and for which question; or why nothing may."""

    question: str = ""
    pieces: tuple[Piece, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Shortened:
    """Texts by their index, and how many tokens their documents had before and have after."""

    texts: dict[int, str]
    before: int
    after: int
    why_not: str = ""


def plan(texts: Sequence[str], asked_from: int, orders: str) -> Plan:
    """Return which prose of `texts` is a document; those from `asked_from` on are the last turn.

    `orders` is what the system prompt says.
    """
    spans = [
        find_passages(text, has_task=index == len(texts) - 1 or index < asked_from)
        for index, text in enumerate(texts)
    ]
    task = "\n".join(
        outside(text, spans[index]) for index, text in enumerate(texts) if index >= asked_from
    )
    pieces = tuple(
        piece
        for index, text in enumerate(texts)
        for span in spans[index]
        for piece in _prose(index, text, span)
    )
    if not pieces:
        return Plan(why_not="no document")
    if word := _EVERY_WORD.first(task) or _EVERY_WORD.first(orders[:MOST_ORDERS_CHARS]):
        return Plan(why_not=f"every word counts: {word}")
    return Plan(question_in(task), pieces)


def extract(texts: Sequence[str], asked_from: int, orders: str, most_tokens: int) -> Shortened:
    """Replace documents by sentences of theirs, of about `most_tokens` tokens in all."""
    planned = plan(texts, asked_from, orders)
    if planned.why_not:
        return Shortened({}, 0, 0, planned.why_not)
    prose = [piece.prose for piece in planned.pieces]
    return put(texts, planned, summarise_all(prose, most_tokens - MARK_TOKENS, planned.question))


def put(texts: Sequence[str], planned: Plan, summaries: Sequence[str]) -> Shortened:
    """Put a summary in the place of each piece."""
    changed: dict[int, str] = {}
    before = after = 0
    for piece, summary in reversed(list(zip(planned.pieces, summaries, strict=True))):
        start, end = piece.span
        text = changed.get(piece.text, texts[piece.text])
        mark = MARK_HAN if has_han(summary) else MARK
        marked = summary if summary in (piece.prose, NOTHING_KEPT) else mark + summary
        before += estimate_tokens(piece.prose)
        after += estimate_tokens(marked)
        changed[piece.text] = text[:start] + marked + text[end:]
    if after >= before:
        return Shortened({}, before, before, "nothing to gain")
    return Shortened(changed, before, after)


def put_one(texts: Sequence[str], planned: Plan, summary: str) -> Shortened:
    """Put one summary of all pieces in the place of the first."""
    rest = [NOTHING_KEPT] * (len(planned.pieces) - 1)
    return put(texts, planned, [summary.strip(), *rest])


def _prose(index: int, text: str, span: Span) -> list[Piece]:
    """Return the prose in a passage: code, mathematics and JSON stay where they are."""
    passage = text[span[0] : span[1]]
    if _CUT in passage:
        return []
    found: list[str] = []

    def note(prose: str) -> str:
        found.append(prose)
        return _CUT

    between = edit_prose(passage, note).split(_CUT)
    pieces: list[Piece] = []
    at = span[0]
    for kept, prose in zip(between, found, strict=False):  # what is kept ends the passage
        at += len(kept)
        bare = prose.strip()
        if estimate_tokens(bare) >= LEAST_PIECE_TOKENS:
            start = at + prose.index(bare)
            pieces.append(Piece(index, (start, start + len(bare)), bare))
        at += len(prose)
    return pieces
