"""The words that say how much care a task needs, in Chinese and English."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

import ahocorasick_rs as ahocorasick  # 3 ns a character; pyahocorasick takes 14

from filters.scripts import joins_words, plain_letters

LOW_RISK: Final = (
    # Chinese
    "总结", "概括", "归纳", "摘要", "列出", "列举", "罗列", "是否", "是不是", "有没有", "几个",
    "多少个", "有几", "数一数",
    # English
    "summarise", "summarize", "summary of", "sum up", "tl;dr", "tldr", "list the", "list all",
    "list every", "list out", "list some", "list any", "make a list", "enumerate", "yes or no",
    "yes/no", "true or false", "how many", "count the",
)  # fmt: skip
HIGH_RISK: Final = (
    # Chinese
    "法律意见", "法律建议", "法律咨询", "律师", "诉讼", "起诉", "合同纠纷", "医疗诊断", "诊断",
    "处方", "用药", "剂量", "药量", "副作用", "症状", "治疗", "手术", "过敏", "怀孕", "自杀",
    "自残", "财务建议", "投资建议", "理财建议", "贷款建议", "税务", "报税", "买入", "卖出",
    # English
    "legal advice", "legal opinion", "lawsuit", "attorney", "lawyer", "liability", "sue", "court",
    "medical advice", "diagnosis", "diagnose", "diagnosed", "prescription", "prescribe", "dosage",
    "dose", "overdose", "side effect", "side effects", "symptom", "symptoms", "treatment",
    "surgery", "allergy", "allergic", "pregnant", "suicide", "suicidal", "self-harm",
    "financial advice", "investment advice", "tax advice", "tax return", "should i invest",
    "should i buy", "should i sell", "mortgage",
)  # fmt: skip

# Soft hyphens, accents that stand alone, and what steers or joins text without being seen.
_UNSEEN: Final = re.compile("[\u00ad\u0300-\u036f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")


class WordFinder:
    """Finds the first of many words in a text, in one pass whatever their number.

    Neither case nor width counts, nor marks that nobody sees, nor the script of letters that look
    alike. An English word must stand alone: `sue` is not in `issue`.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words: Final = tuple(words)
        self._automaton: Final = ahocorasick.AhoCorasick([word.lower() for word in self._words])

    def first(self, text: str) -> str | None:
        """Return the word of the list that ends first in `text`, or None."""
        lower = text.lower() if text.isascii() else fold(text)
        for word, start, end in self._automaton.find_matches_as_indexes(lower, overlapping=True):
            if not (joins_words(lower, start) or joins_words(lower, end)):
                return self._words[word]
        return None


def fold(text: str) -> str:
    """Return `text` in lower case and plain width, without accents and marks that nobody sees.

    Letters of other scripts that look like Latin ones are these.
    """
    plain = unicodedata.normalize("NFKD", text)
    return plain_letters(_UNSEEN.sub("", plain)).lower()
