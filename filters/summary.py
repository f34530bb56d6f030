"""Say in a few of its own sentences what a text says, above all what is asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from filters.ranking import Rank, Unit, rank
from filters.sentences import split_sentences
from filters.terms import terms_of
from filters.token_estimate import estimate_tokens

NOTHING_KEPT: Final = "[…]"
"""Stands where nothing of a text was kept, for a message is never emptied."""
_REPEATS: Final = 0.85  # a sentence that shares so much with one that was taken says nothing else


def summarise(text: str, most_tokens: int, question: str = "") -> str:
    """Return sentences of `text` of about `most_tokens` tokens in all, in their order.

    Those come first that `question` is about. A text that fits comes back as it is. Costs 4 ms for
    1,000 tokens, and grows with the length.
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
        Unit(sentence, source, Counter(terms_of(sentence.text)))
        for source, text in enumerate(texts)
        for sentence in split_sentences(text)
    ]
    summaries: list[list[int]] = [[] for _ in texts]
    for index in sorted(_chosen(units, rank(units, question), most_tokens)):
        summaries[units[index].source].append(index)
    return [_joined(units, indexes) if indexes else NOTHING_KEPT for indexes in summaries]


def _chosen(units: Sequence[Unit], ranks: Sequence[Rank], most_tokens: int) -> set[int]:
    """Return the indexes of the best sentences that fit, with what they cannot stand without."""
    kept: set[int] = set()
    left = most_tokens
    order = sorted(range(len(units)), key=lambda index: (-ranks[index].score, index))
    for index in order:
        if left <= 0:
            break
        unit = units[index]
        if index in kept or not unit.terms or unit.sentence.is_heading:
            continue
        if _repeats(units, index, kept):
            continue
        support = ranks[index].leans_on
        together = {index} if support is None else {index, support}
        cost = sum(_cost(units[one]) for one in together - kept)
        if cost <= left:
            kept |= together
            left -= cost
    # More than is allowed, but nothing would say nothing.
    return kept or {index for index in order[:1] if units[index].terms}


def _repeats(units: Sequence[Unit], index: int, kept: Iterable[int]) -> bool:
    terms = units[index].terms.keys()
    return any(len(terms & units[other].terms.keys()) >= _REPEATS * len(terms) for other in kept)


def _cost(unit: Unit) -> int:
    return estimate_tokens(unit.sentence.text.rstrip()) + 1  # and the line's end


def _joined(units: Sequence[Unit], indexes: Sequence[int]) -> str:
    """Put sentences together: neighbours as they stood, others on lines of their own."""
    pieces: list[str] = []
    for position, index in enumerate(indexes):
        text = units[index].sentence.text
        neighbour = position + 1 < len(indexes) and indexes[position + 1] == index + 1
        pieces.append(text if neighbour else f"{text.rstrip()}\n")
    return "".join(pieces).rstrip()
