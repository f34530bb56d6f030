"""Send low-risk work to the quantised pool and everything else to the full one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from filters.api import CONTINUE, Config, Exchange, Filter, Role, Verdict
from filters.bounds import is_too_much
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
        turns = exchange.prompt.turns()
        last = next((turn for turn in reversed(turns) if turn.role is Role.USER), None)
        if last is None:
            return CONTINUE
        asked = [text.value for text in last.texts]
        if is_too_much(asked) or not (low := _first(_LOW, asked)):
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


def _first(words: WordFinder, texts: Iterable[str]) -> str | None:
    return next(filter(None, map(words.first, texts)), None)
