"""Say in microseconds about how many tokens a text is, without a tokeniser.

The weights are fitted to o200k, the encoding of GPT-4o and later, on prose and code in English and
on Chinese prose. A text of some hundred characters in either comes out within 15 %, but for a few
in a hundred; a sentence may be off by a quarter. cl100k, the encoding before it, has the same
number of tokens for English and half as many again for Chinese.
"""

from __future__ import annotations

import string
from typing import Final

# What is left of UTF-8 without these is one byte for each character that is no Latin letter.
_LETTERS_AND_TAILS: Final = string.ascii_letters.encode() + bytes(range(0x80, 0xC0))
_DIGITS: Final = string.digits.encode()
_HAN: Final = bytes(range(0xE4, 0xEA))  # first bytes of U+4000 to U+9FFF
_SHORT: Final = bytes(range(0xC0, 0xE0))  # of two bytes: accents, Greek, Cyrillic, Arabic
_INDENT: Final = "  "

# Tokens for each character of a kind.
_LETTER: Final = 0.133
_SPACE: Final = 0.48  # it begins a word
_INDENTED: Final = 0.17  # for two spaces: o200k joins them
_NEW_LINE: Final = 1.2
_DIGIT: Final = 0.64
_MARK: Final = 0.52
_HAN_CHARACTER: Final = 0.78
_SHORT_CHARACTER: Final = 0.4
_OTHER: Final = 1.0


def estimate_tokens(text: str) -> int:
    """Return about how many tokens of o200k `text` is: 0 for an empty one, else 1 or more.

    Costs 5 us for 1.5 KB and grows with the length.
    """
    if not text:
        return 0
    rest = text.encode("utf-8", "surrogatepass").translate(None, _LETTERS_AND_TAILS)
    letters = len(text) - len(rest)
    indents = text.count(_INDENT)
    spaces = rest.count(b" ")
    lines = rest.count(b"\n")
    marks = rest.translate(None, _DIGITS)
    tokens = (
        letters * _LETTER
        + (spaces - len(_INDENT) * indents) * _SPACE
        + indents * _INDENTED
        + lines * _NEW_LINE
        + (len(rest) - len(marks)) * _DIGIT
    )
    if not text.isascii():
        no_han = marks.translate(None, _HAN)
        no_short = no_han.translate(None, _SHORT)
        ascii_marks = len(no_short.decode("ascii", "ignore"))
        tokens += (
            (len(marks) - len(no_han)) * _HAN_CHARACTER
            + (len(no_han) - len(no_short)) * _SHORT_CHARACTER
            + (len(no_short) - ascii_marks) * _OTHER
        )
        tokens += (ascii_marks - spaces - lines) * _MARK
    else:
        tokens += (len(marks) - spaces - lines) * _MARK
    return max(1, round(tokens))
