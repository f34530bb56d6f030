"""Say in a few of its own sentences what a text says, above all what is asked of it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from filters.sentences import Sentence, split_sentences
from filters.terms import names_in, terms_of
from filters.token_estimate import estimate_tokens

NOTHING_KEPT: Final = "[…]"
"""Stands where nothing of a text was kept, for a message is never emptied."""

# What counts for a sentence: what it shares with the question, with the other sentences, how rare
# its words are, and where it stands. The second row is for a question that the text knows nothing
# of, such as what it says in short.
_WEIGHTS: Final = (0.8, 0.05, 0.13, 0.02)
_WEIGHTS_UNASKED: Final = (0.0, 0.6, 0.15, 0.25)
# Okapi BM25. Its b is low: a fact in a long sentence is a fact.
_K1: Final = 1.2
_B: Final = 0.3
# What a sentence is about may stand before it: in its heading, or in the sentence that "it" means.
_HEADING_SHARE: Final = 0.7
_BEFORE_SHARE: Final = 0.2
_FADING: Final = 0.8  # with each sentence between that speaks of something else
_NAME_BONUS: Final = 1.5  # what a question names, it is about
_KIND_BONUS: Final = 1.3  # it holds a number where one is asked for
_ROUNDS: Final = 3  # of rank going from sentences to their terms and back; more changes little
_DAMPING: Final = 0.85
_REPEATS: Final = 0.85  # a sentence that shares so much with one that was taken says nothing else

_MEANS_ANOTHER: Final = re.compile(
    r"\W*(?:(?:(?:if|when|once|while|until|after|before|because|since|as|and|but|so) )?"
    r"(?:it|its|they|their|them|he|his|she|her|this|that|these|those"
    r"|the (?:former|latter|same))\b|[它他她其这该此]|前者|后者|对此|为此)",
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
class _Scored:
    """A sentence with its terms, and which text it comes from."""

    sentence: Sentence
    source: int
    terms: Counter[str]


def summarise(text: str, most_tokens: int, question: str = "") -> str:
    """Return sentences of `text` of about `most_tokens` tokens in all, in their order.

    Those come first that `question` is about. A text that fits comes back as it is.
    """
    (summary,) = summarise_all([text], most_tokens, question)
    return summary


def summarise_all(texts: Sequence[str], most_tokens: int, question: str = "") -> list[str]:
    """Return a summary for each of `texts`, of about `most_tokens` for all of them together.

    A text of which nothing is kept becomes `NOTHING_KEPT`.
    """
    if sum(map(estimate_tokens, texts)) <= most_tokens:
        return list(texts)
    units = [
        _Scored(sentence, source, Counter(terms_of(sentence.text)))
        for source, text in enumerate(texts)
        for sentence in split_sentences(text)
    ]
    kept = _chosen(units, *_scores(units, question), most_tokens)
    summaries: list[list[int]] = [[] for _ in texts]
    for index in sorted(kept):
        summaries[units[index].source].append(index)
    return [_joined(units, indexes) if indexes else NOTHING_KEPT for indexes in summaries]


def _scores(units: Sequence[_Scored], question: str) -> tuple[list[float], list[int | None]]:
    """Return how much each sentence deserves to be kept, and which other one it leans on."""
    found_in = Counter(term for unit in units for term in unit.terms)
    rarity = {
        term: math.log(1 + (len(units) - count + 0.5) / (count + 0.5))
        for term, count in found_in.items()
    }
    asked = rarity.keys() & set(terms_of(_OF_THE_TASK.sub(" ", question)))
    names = names_in(question)
    weights = {term: rarity[term] * (_NAME_BONUS if term in names else 1.0) for term in asked}
    about, leans_on = _about(units, asked, weights)
    if _ASKS_NUMBER.search(question):
        about = [
            score * (_KIND_BONUS if _DIGIT.search(unit.sentence.text) else 1.0)
            for score, unit in zip(about, units, strict=True)
        ]
    central = _central(units, rarity)
    telling = [sum(rarity[term] for term in unit.terms) / (len(unit.terms) or 1) for unit in units]
    place = [_place(units, index) for index in range(len(units))]
    scores = [0.0] * len(units)
    shares = _WEIGHTS if any(about) else _WEIGHTS_UNASKED
    for weight, part in zip(shares, (about, central, telling, place), strict=True):
        most = max(part) or 1.0
        scores = [score + weight * one / most for score, one in zip(scores, part, strict=True)]
    return scores, leans_on


def _about(
    units: Sequence[_Scored], asked: set[str], weights: dict[str, float]
) -> tuple[list[float], list[int | None]]:
    """Return how much each sentence is about the terms `asked`, its context included (BM25).

    And the sentence or heading that holds what its context adds.
    """
    leans_on: list[int | None] = [None] * len(units)
    if not asked:
        return [0.0] * len(units), leans_on
    average = sum(unit.terms.total() for unit in units) / len(units) or 1.0
    scores: list[float] = []
    start = 0  # of the text that the sentence comes from
    topic: set[str] = set()  # what of the question the paragraph spoke of last
    spoken_at: int | None = None  # and where
    itself: int | None = None  # the last sentence that means no other
    strength = 1.0
    for index, unit in enumerate(units):
        before = units[index - 1] if index else unit
        if unit.source != before.source:
            start = index
        if unit.source != before.source or unit.sentence.paragraph != before.sentence.paragraph:
            topic = set()
            itself = None
        length = 1 - _B + _B * unit.terms.total() / average
        own = asked & unit.terms.keys()
        score = 0.0
        for term in own:
            times = unit.terms[term]
            score += weights[term] * times * (_K1 + 1) / (times + _K1 * length)
        meant = _means_another(unit)
        share = strength if meant else strength * _BEFORE_SHARE
        score += share * sum(weights[term] for term in topic - own)
        heading = unit.sentence.heading
        if heading is not None:
            context = (asked & units[start + heading].terms.keys()) - own - topic
            score += _HEADING_SHARE * sum(weights[term] for term in context)
            if context:
                leans_on[index] = start + heading
        if meant:
            leans_on[index] = spoken_at if topic - own else itself
        else:
            itself = index
        if own:
            if not (meant and topic):
                spoken_at = index
            topic = own | topic if meant else own
            strength = 1.0
        elif not meant:
            strength *= _FADING
        scores.append(score)
    return scores, leans_on


def _central(units: Sequence[_Scored], rarity: dict[str, float]) -> list[float]:
    """Return the rank of each sentence: TextRank, but by way of the terms that sentences share.

    Rank goes from sentences to their terms and back, so that the work grows with the number of
    terms and not with the square of the number of sentences.
    """
    ranks = [1.0] * len(units)
    weights = [sum(rarity[term] for term in unit.terms) or 1.0 for unit in units]
    for _ in range(_ROUNDS):
        terms: dict[str, float] = dict.fromkeys(rarity, 0.0)
        totals: dict[str, float] = dict.fromkeys(rarity, 0.0)
        for unit, rank, weight in zip(units, ranks, weights, strict=True):
            for term in unit.terms:
                terms[term] += rank * rarity[term] / weight
                totals[term] += 1.0
        ranks = [
            1 - _DAMPING + _DAMPING * sum(terms[term] / totals[term] for term in unit.terms)
            for unit in units
        ]
        mean = sum(ranks) / len(ranks) or 1.0
        ranks = [rank / mean for rank in ranks]
    return ranks


def _place(units: Sequence[_Scored], index: int) -> float:
    """Return 1 for a text's first sentence, half for a paragraph's first, 0 for a heading."""
    unit = units[index]
    if unit.sentence.is_heading:
        return 0.0
    if not index or units[index - 1].source != unit.source:
        return 1.0
    return 0.5 if units[index - 1].sentence.paragraph != unit.sentence.paragraph else 0.2


def _chosen(
    units: Sequence[_Scored],
    scores: Sequence[float],
    leans_on: Sequence[int | None],
    most_tokens: int,
) -> set[int]:
    """Return the indexes of the best sentences that fit, with what they cannot stand without."""
    kept: set[int] = set()
    left = most_tokens
    for index in sorted(range(len(units)), key=lambda index: (-scores[index], index)):
        if left <= 0:
            break
        unit = units[index]
        if index in kept or not unit.terms or unit.sentence.is_heading:
            continue
        if _repeats(units, index, kept):
            continue
        support = leans_on[index]
        together = {index} if support is None else {index, support}
        cost = sum(_cost(units[one]) for one in together - kept)
        if cost > left and kept:
            continue
        kept |= together
        left -= cost
    return kept


def _repeats(units: Sequence[_Scored], index: int, kept: Iterable[int]) -> bool:
    terms = units[index].terms.keys()
    return any(len(terms & units[other].terms.keys()) >= _REPEATS * len(terms) for other in kept)


def _cost(unit: _Scored) -> int:
    return estimate_tokens(unit.sentence.text.rstrip()) + 1  # and the line's end


def _means_another(unit: _Scored) -> bool:
    return _MEANS_ANOTHER.match(unit.sentence.text) is not None


def _joined(units: Sequence[_Scored], indexes: Sequence[int]) -> str:
    """Put sentences together: neighbours as they stood, others on lines of their own."""
    pieces: list[str] = []
    for position, index in enumerate(indexes):
        text = units[index].sentence.text
        neighbour = position + 1 < len(indexes) and indexes[position + 1] == index + 1
        pieces.append(text if neighbour else f"{text.rstrip()}\n")
    return "".join(pieces).rstrip()
