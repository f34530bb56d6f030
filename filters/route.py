"""Send low-risk work to the quantised pool and everything else to the full one."""

from __future__ import annotations

from typing import ClassVar, Final

from filters.api import CONTINUE, Config, Exchange, Filter, Prompt, Role, Verdict
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
    """Looks at words: a low-risk one in the last question, no high-risk one in any."""

    name: ClassVar[str] = "route"
    config_type: ClassVar[type[Config]] = RouteConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Choose the pool and note the word that decided."""
        if not self.config.downgrade:
            return CONTINUE
        if (low := _first_low_risk(exchange.prompt)) is None:
            return CONTINUE
        if high := _first_high_risk(exchange.prompt):
            exchange.note("route.why", f"high risk: {high}")
            return CONTINUE
        exchange.pool = self.config.pool
        exchange.note("route.why", f"low risk: {low}")
        return CONTINUE


def _first_low_risk(prompt: Prompt) -> str | None:
    """Return the low-risk word in what the user said last, if there is one."""
    for turn in reversed(prompt.turns()):
        if turn.role is Role.USER:
            found = (_LOW.first(text.value) for text in turn.texts)
            return next(filter(None, found), None)
    return None


def _first_high_risk(prompt: Prompt) -> str | None:
    """Return a high-risk word said by anyone, system prompts included, if there is one."""
    found = (_HIGH.first(text.value) for turn in prompt.turns() for text in turn.texts)
    return next(filter(None, found), None)
