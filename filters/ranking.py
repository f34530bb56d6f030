"""Say how much each sentence of a text deserves to be kept, and which other one it leans on.

A sentence is kept for what it shares with the question (Okapi BM25), with the other sentences
(TextRank, by way of their terms), for how rare its words are, and for where it stands.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from filters.sentences import Sentence
from filters.terms import names_in, terms_of

# Question, other sentences, rarity, place. The second row is for a question that the text knows
# nothing of, such as what it says in short.
_WEIGHTS: Final = (0.8, 0.05, 0.13, 0.02)
_WEIGHTS_UNASKED: Final = (0.0, 0.6, 0.15, 0.25)
_K1: Final = 1.2
_B: Final = 0.3  # low: a fact in a long sentence is a fact
# What a sentence is about may stand before it: in its heading, or in the sentence that "it" means.
_HEADING_SHARE: Final = 0.7
_MEANT_SHARE: Final = 1.0  # of two that are even, the first is kept first
_BEFORE_SHARE: Final = 0.2
_FADING: Final = 0.8  # with each sentence between that speaks of something else
_NAME_BONUS: Final = 1.5  # what a question names, it is about
_NUMBER_BONUS: Final = 1.3  # for a sentence that holds a number where one is asked for
_ROUNDS: Final = 3  # of rank going from sentences to their terms and back; more changes little
_DAMPING: Final = 0.85

# The second group may go with a name of its own: this pump, 该诊所.
_MEANS_ANOTHER: Final = re.compile(
    r"\W*(?:(?:if|when|once|while|until|after|before|because|since|as|and|but|so) )?"
    r"(?:(?P<pronoun>(?:it|its|they|their|them|he|his|she|her)\b|[它他她其])"
    r"|(?:this|that|these|those|the (?:former|latter|same))\b|[这该此]|前者|后者|对此|为此)",
    re.IGNORECASE,
)
_DIGIT: Final = re.compile(
    r"\d|[一二三四五六七八九十百千万亿两]+(?:[年月日号人个元米吨岁座次台名层家公小分]|%)"
)
_ASKS_NUMBER: Final = re.compile(
    r"\bhow (?:many|much|long|old|far|tall|deep|big|large|high|often|heavy|fast)\b|\bwhen\b"
    r"|\b(?:what|which) (?:year|date|day|time|month|number|percentage|amount|price|age)\b"
    r"|多少|多大|多长|多高|多重|多久|多远|几[年月日号个人岁次台名层家座天点]|哪年|哪天|何时|什么时候|哪一[年天]",
    re.IGNORECASE,
)
# What a task says of any text tells no sentence from another.
_OF_THE_TASK: Final = re.compile(
    r"\b(?:summari[sz]e|summary|documents?|articles?|texts?|passages?|paragraphs?|following|above"
    r"|below|answers?|questions?|briefly|sentences?|words?)\b"
    r"|总结|概括|归纳|摘要|文章|文档|文本|材料|资料|原文|全文|内容|以下|以上|下面|上面|上述|回答|问题|一下|简要",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence with its terms, and which text it comes from."""

    sentence: Sentence
    source: int
    terms: Counter[str]

    def means_another(self, *, names: bool) -> bool:
        """Whether it begins with a word for what another sentence `names`, as this one may do."""
        found = _MEANS_ANOTHER.match(self.sentence.text)
        return found is not None and (found["pronoun"] is not None or not names)


@dataclass(frozen=True, slots=True)
class Rank:
    """What a sentence is worth, and the sentence or heading that says what it speaks of."""

    score: float
    leans_on: int | None


def rank(units: Sequence[Unit], question: str) -> list[Rank]:
    """Return the rank of each of `units`, which stand in the order of their texts."""
    found_in = Counter(term for unit in units for term in unit.terms)
    rarity = {
        term: math.log(1 + (len(units) - count + 0.5) / (count + 0.5))
        for term, count in found_in.items()
    }
    names = names_in(question)
    asked = {
        term: rarity[term] * (_NAME_BONUS if term in names else 1.0)
        for term in rarity.keys() & set(terms_of(_OF_THE_TASK.sub(" ", question)))
    }
    about, leans_on = _about(units, asked)
    if _ASKS_NUMBER.search(question):
        about = [
            score * (_NUMBER_BONUS if _DIGIT.search(unit.sentence.text) else 1.0)
            for score, unit in zip(about, units, strict=True)
        ]
    rare = [sum(rarity[term] for term in unit.terms) / (len(unit.terms) or 1) for unit in units]
    place = [_place(units, index) for index in range(len(units))]
    scores = [0.0] * len(units)
    shares = _WEIGHTS if any(about) else _WEIGHTS_UNASKED
    for share, part in zip(shares, (about, _central(units, rarity), rare, place), strict=True):
        most = max(part, default=0.0) or 1.0
        scores = [score + share * one / most for score, one in zip(scores, part, strict=True)]
    return [Rank(score, other) for score, other in zip(scores, leans_on, strict=True)]


def _about(
    units: Sequence[Unit], asked: Mapping[str, float]
) -> tuple[list[float], list[int | None]]:
    """Return how much each sentence is about what is `asked`, its context included.

    And the sentence or heading that its context is.
    """
    scores: list[float] = []
    leans_on: list[int | None] = []
    average = sum(unit.terms.total() for unit in units) / (len(units) or 1) or 1.0
    start = 0  # of the text that the sentence comes from
    topic: dict[str, float] = {}  # what is asked that the paragraph spoke of last
    spoken_at: int | None = None  # and where
    itself: int | None = None  # the last sentence that means no other
    for index, unit in enumerate(units):
        before = units[index - 1] if index else unit
        if unit.source != before.source:
            start = index
        if unit.source != before.source or unit.sentence.paragraph != before.sentence.paragraph:
            topic, spoken_at, itself = {}, None, None
        length = 1 - _B + _B * unit.terms.total() / average
        own = {
            term: asked[term] * unit.terms[term] * (_K1 + 1) / (unit.terms[term] + _K1 * length)
            for term in asked.keys() & unit.terms.keys()
        }
        meant = unit.means_another(names=bool(own))
        context = {term: score for term, score in topic.items() if term not in own}
        leans = (spoken_at if context else itself) if meant else None
        score = sum(own.values())
        score += (_MEANT_SHARE if meant else _BEFORE_SHARE) * sum(context.values())
        if unit.sentence.heading is not None:
            heading = start + unit.sentence.heading
            headed = asked.keys() & units[heading].terms.keys() - own.keys() - context.keys()
            score += _HEADING_SHARE * sum(asked[term] for term in headed)
            leans = heading if leans is None and headed else leans
        scores.append(score)
        leans_on.append(leans)
        if not meant:
            itself = index
        if own:
            spoken_at = spoken_at if meant and topic else index
            topic = {**topic, **own} if meant else own
        elif not meant:
            topic = {term: score * _FADING for term, score in topic.items()}
    return scores, leans_on


def _central(units: Sequence[Unit], rarity: Mapping[str, float]) -> list[float]:
    """Return what sentences are to each other.

    Rank goes from sentences to their terms and back, so that the work grows with the number of
    terms and not with the square of the number of sentences.
    """
    ranks = [1.0] * len(units)
    weights = [sum(rarity[term] for term in unit.terms) or 1.0 for unit in units]
    holders = Counter(term for unit in units for term in unit.terms)
    for _ in range(_ROUNDS):
        terms: dict[str, float] = dict.fromkeys(rarity, 0.0)
        for unit, one, weight in zip(units, ranks, weights, strict=True):
            for term in unit.terms:
                terms[term] += one * rarity[term] / weight
        ranks = [
            1 - _DAMPING + _DAMPING * sum(terms[term] / holders[term] for term in unit.terms)
            for unit in units
        ]
        mean = sum(ranks) / (len(ranks) or 1) or 1.0
        ranks = [one / mean for one in ranks]
    return ranks


def _place(units: Sequence[Unit], index: int) -> float:
    """Return 1 for a text's first sentence, half for a paragraph's first, 0 for a heading."""
    unit = units[index]
    if unit.sentence.is_heading:
        return 0.0
    if not index or units[index - 1].source != unit.source:
        return 1.0
    return 0.5 if units[index - 1].sentence.paragraph != unit.sentence.paragraph else 0.2
