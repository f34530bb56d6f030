"""Tell whether a request may be answered with less than full care."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from filters.api import Exchange, Role, Task, Turn
from filters.bounds import is_too_much
from filters.intent_rules import HIGH_RISK_DOMAINS, LOW_RISK_INTENTS
from filters.transcript import without_summaries
from filters.words import HIGH_RISK, LOW_RISK, WordFinder

_LOW: Final = WordFinder(LOW_RISK)
_HIGH: Final = WordFinder(HIGH_RISK)
TOO_LONG: Final = "too long to look for high risk"


class Risk:
    """The risk of one exchange; its words are looked through once, and only if it matters."""

    def __init__(self, exchange: Exchange, *, system_words: bool) -> None:
        """Look at `exchange`; with `system_words` what its system prompt says counts as well."""
        self._exchange: Final = exchange
        self._system_words: Final = system_words
        self._high: str | None = None

    def low(self) -> str | None:
        """Return what makes it a task of low risk, None for nothing; high risk is not looked for.

        That is what `classify` says or, without it, a word of the last question.
        """
        task = self._exchange.task
        if task is not None:
            return task.intent if _is_low(task) else None
        return _low_word(self._exchange.prompt.turns())

    def high(self) -> str:
        """Return which word anywhere in the prompt makes it risky, empty for none."""
        if self._high is None:
            said = [
                text.value
                for turn in self._exchange.prompt.turns()
                for text in turn.texts
                if self._system_words or text.role is not Role.SYSTEM
            ]
            if is_too_much(said):
                self._high = TOO_LONG
            else:
                word = _first(_HIGH, said)
                self._high = f"high risk: {word}" if word else ""
        return self._high

    def is_risky(self) -> bool:
        """Tell whether its trade or a word of it wants full care."""
        task = self._exchange.task
        return (task is not None and task.domain in HIGH_RISK_DOMAINS) or bool(self.high())


def _is_low(task: Task) -> bool:
    """Tell whether a lesser pool may serve it; a task of an expert stays with him."""
    return task.intent in LOW_RISK_INTENTS and not task.expert


def _low_word(turns: Sequence[Turn]) -> str | None:
    last = next((turn for turn in reversed(turns) if turn.role is Role.USER), None)
    if last is None:
        return None
    asked = [without_summaries(text.value) for text in last.texts]
    return None if is_too_much(asked) else _first(_LOW, asked)


def _first(words: WordFinder, texts: Iterable[str]) -> str | None:
    return next(filter(None, map(words.first, texts)), None)
