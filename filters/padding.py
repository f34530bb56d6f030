"""Drop what fills a text up: padding tokens and rows of dashes."""

from __future__ import annotations

import re
from typing import Final

from filters.segments import edit_prose

# Tokens that tokenisers append to make texts of one length, or to end one. A mask is a question,
# the marks of a chat template say who speaks: both stay.
_PAD: Final = (
    r"(?:<pad>|\[PAD\]|<\|pad\|>|<\|padding\|>|<\|endoftext\|>|<\|end_of_text\|>|<\|eot_id\|>"
    r"|<\|finetune_right_pad_id\|>|<eos>|<\|vision_pad\|>|<\|image_pad\|>)"
)
_MARKS: Final = ("<pad>", "[PAD]", "<|pa", "<|en", "<|eot", "<|finetune", "<eos>", "_pad|>")
# Several in a row; or one that the text begins with or, behind a sentence, ends with.
_TOKENS: Final = re.compile(
    rf"{_PAD}(?:\s*{_PAD})++|\A\s*{_PAD}(?=\s*\S)|(?<=[.!?。！？\n]){_PAD}(?=\s*\Z)"
    rf"|(?<=[.!?。！？\n] ){_PAD}(?=\s*\Z)"
)
_TEMPLATES: Final = (
    "<|im_start|>", "<|start_header_id|>", "[INST]", "<start_of_turn>", "<|user|>", "<|system|>"
)  # fmt: skip
_ROW: Final = re.compile(r"[ \t]*(?P<mark>[-=_*#~+.·•—─━═–])(?P=mark){9,}+[ \t]*\r?\Z")
_ROWS: Final = tuple(mark * 10 for mark in "-=_*#~+.·•—─━═–")
_ASCII_ROWS: Final = tuple(filter(str.isascii, _ROWS))
TRACES: Final = (*_MARKS, *_ROWS, "........", ". . . .", "········", "…………")
"""In a text without any of these nothing is padding."""
_LEADERS: Final = re.compile(r"(?<=[^\s.·…])(?P<before>[ ]?)(?:\.{8,}|(?:[ ]\.){8,}|·{8,}|…{4,})")


def is_template(text: str) -> bool:
    """Tell whether a text is in a model's own chat template, whose tokens say who speaks."""
    return ("<" in text or "[INST]" in text) and any(mark in text for mark in _TEMPLATES)


def drop_padding(text: str) -> str:
    """Return `text` without runs of padding tokens, and with rows of one mark shortened to three.

    A line drawn under a heading of its length, beside others of a drawing or in a table stays.
    """
    tokens = ("<" in text or "[PAD]" in text) and any(mark in text for mark in _MARKS)
    rows = _has_row(text)
    leaders = "........" in text or " . . . ." in text
    if not leaders and not text.isascii():
        leaders = "········" in text or "…………" in text
    if not (tokens or rows or leaders):
        return text

    def drop(prose: str) -> str:
        if tokens:
            prose = _TOKENS.sub("", prose)
        if rows:
            prose = _shorten_rows(prose)
        return _LEADERS.sub(r"\g<before>...", prose) if leaders else prose

    return edit_prose(text, drop)


def _has_row(text: str) -> bool:
    for row in _ASCII_ROWS if text.isascii() else _ROWS:  # noqa: SIM110 - faster
        if row[0] in text and row in text:  # a character is found at a tenth of the cost of a row
            return True
    return False


def _shorten_rows(prose: str) -> str:
    lines = prose.split("\n")
    for index, line in enumerate(lines):
        row = _ROW.match(line)
        if row is None:
            continue
        mark = row["mark"]
        above = lines[index - 1] if index else ""
        below = lines[index + 1] if index + 1 < len(lines) else ""
        bare = line.strip()
        if (
            len(bare) <= len(above.strip()) + 2
            and above.strip()
            and len(bare) >= len(above.strip())
        ):
            continue  # it underlines a heading, which some formats want at its full length
        if any(_draws(other.strip(), mark) for other in (above, below)):
            continue
        lines[index] = line.replace(bare, mark * 3)
    return "\n".join(lines)


def _draws(line: str, mark: str) -> bool:
    """Tell whether a neighbouring line belongs to the same drawing or table."""
    return line[:1] in (mark, "|", "+", "│", "┃") or line[-1:] in ("|", "+", "│", "┃")
