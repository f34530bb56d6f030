"""Tell which script a text is written in, and where its words end."""

from __future__ import annotations

import re
from typing import Final

_SAMPLE_CHARS: Final = 2_000  # a text's beginning says what it is written in
_HAN_SHARE: Final = 6  # one character of so many: a Chinese word is shorter than an English one
_HAN: Final = re.compile("[\u3400-\u9fff]")
_KANA: Final = re.compile("[\u3040-\u30ff]")
_CYRILLIC_OR_GREEK: Final = re.compile("[\u0370-\u052f]")
# As they look, upper and lower case apart: the small form of a letter may look like another one.
_LOOK_ALIKES: Final = str.maketrans(
    "АВЕЅІЈКМНОРСТУХҮԀԚԜаеѕіјкорсухѵһԁԛԝӏΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϳανικορυχϲ",
    "ABESIJKMHOPCTYXYDQWaesijkopcyxvhdqwlABEZHIKMNOPTYXCjavikopuxc",
)


def is_chinese(text: str) -> bool:
    """Tell whether so much of a text is Chinese that its writer reads Chinese."""
    sample = text[:_SAMPLE_CHARS]
    if sample.isascii() or _KANA.search(sample):
        return False
    return len(_HAN.findall(sample)) * _HAN_SHARE > len(sample)


def plain_letters(text: str) -> str:
    """Return `text` with Cyrillic and Greek letters that look like Latin ones as these."""
    return text.translate(_LOOK_ALIKES) if _CYRILLIC_OR_GREEK.search(text) else text


def joins_words(text: str, at: int) -> bool:
    """Tell whether a Latin word goes on across a place in a text."""
    return 0 < at < len(text) and _is_latin(text[at - 1]) and _is_latin(text[at])


def _is_latin(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")
