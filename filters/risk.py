"""Tell whether a request may be answered with less than full care."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from filters.api import Exchange, Role, Turn
from filters.bounds import is_too_much
from filters.intent_rules import LOW_RISK_INTENTS
from filters.transcript import without_summaries
from filters.words import HIGH_RISK, LOW_RISK, WordFinder

_LOW: Final = WordFinder(LOW_RISK)
_HIGH: Final = WordFinder(HIGH_RISK)
TOO_LONG: Final = "too long to look for high risk"


def low_risk(exchange: Exchange) -> str | None:
    """Return what makes it a task of low risk, None for nothing; high risk is not looked for.

    That is what `classify` says or, without it, a word of the last question.
    """
    task = exchange.task
    if task is None:
        return _low_word(exchange.prompt.turns())
    # A task of an expert stays with him.
    return task.intent if task.intent in LOW_RISK_INTENTS and not task.expert else None


def high_risk(exchange: Exchange, *, system_words: bool) -> str:
    """Return what makes it risky, empty for nothing: a word anywhere in the prompt.

    With `system_words` what its system prompt says counts as well.
    """
    said = [
        text.value
        for turn in exchange.prompt.turns()
        for text in turn.texts
        if system_words or text.role is not Role.SYSTEM
    ]
    if is_too_much(said):
        return TOO_LONG
    word = _first(_HIGH, said)
    return f"high risk: {word}" if word else ""


def _low_word(turns: Sequence[Turn]) -> str | None:
    last = next((turn for turn in reversed(turns) if turn.role is Role.USER), None)
    if last is None:
        return None
    asked = [without_summaries(text.value) for text in last.texts]
    return None if is_too_much(asked) else _first(_LOW, asked)


def _first(words: WordFinder, texts: Iterable[str]) -> str | None:
    return next(filter(None, map(words.first, texts)), None)
