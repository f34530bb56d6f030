"""Send low-risk work to the quantised pool and everything else to the full one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from filters.api import CONTINUE, Config, Exchange, Filter, Role, Task, Turn, Verdict
from filters.bounds import is_too_much
from filters.intent_rules import LOW_RISK_INTENTS
from filters.transcript import without_summaries
from filters.units import PoolName
from filters.words import HIGH_RISK, LOW_RISK, WordFinder

_LOW: Final = WordFinder(LOW_RISK)
_HIGH: Final = WordFinder(HIGH_RISK)


class RouteConfig(Config, frozen=True):
    """Where low-risk tasks go."""

    downgrade: bool = True
    """Low-risk tasks may be answered by the quantised pool."""
    pool: PoolName = "best_effort"
    """The pool they go to."""


class RouteFilter(Filter[RouteConfig]):
    """Low risk is what `classify` says or, without it, a word of the last question.

    One high-risk word anywhere in the prompt outweighs it.
    """

    name: ClassVar[str] = "route"
    config_type: ClassVar[type[Config]] = RouteConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Choose the pool and note what decided."""
        if not self.config.downgrade:
            return CONTINUE
        turns = exchange.prompt.turns()
        task = exchange.task
        low = _low_risk_word(turns) if task is None else _low_risk_task(task)
        if low is None:
            return CONTINUE
        said = [text.value for turn in turns for text in turn.texts]
        if is_too_much(said):
            exchange.note("route.why", "too long to look for high risk")
        elif high := _first(_HIGH, said):
            exchange.note("route.why", f"high risk: {high}")
        else:
            exchange.pool = self.config.pool
            exchange.note("route.why", f"low risk: {low}")
        return CONTINUE


def _low_risk_task(task: Task) -> str | None:
    """Return the intent if a lesser pool may serve it; a task of an expert stays with him."""
    return task.intent if task.intent in LOW_RISK_INTENTS and not task.expert else None


def _low_risk_word(turns: Sequence[Turn]) -> str | None:
    last = next((turn for turn in reversed(turns) if turn.role is Role.USER), None)
    if last is None:
        return None
    asked = [without_summaries(text.value) for text in last.texts]
    return None if is_too_much(asked) else _first(_LOW, asked)


def _first(words: WordFinder, texts: Iterable[str]) -> str | None:
    return next(filter(None, map(words.first, texts)), None)
