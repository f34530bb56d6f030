"""Send each request to the pool that fits it: by risk, task and length, and by who is there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Exchange,
    Filter,
    Outcome,
    Ports,
    Verdict,
)
from filters.errors import FilterError
from filters.places import Place
from filters.risk import Risk
from filters.routing import (
    Choice,
    Rule,
    Size,
    bucket_of,
    counted,
    counted_texts,
    line_up,
    longest,
    ranked,
    room_of,
    roomiest,
    size_of,
    too_long,
)
from filters.units import PoolName

BUSY: Final = "all model servers that take this request are busy; try again"
RETRY_AFTER_S: Final = 1  # exchanges end all the time: a place is soon free
MOST_NAMED: Final = 8  # alternatives: a note has 1,000 characters at most


class RouteConfig(Config, frozen=True):
    """Where low-risk tasks go, and what is none. What pools take is a setting of theirs."""

    downgrade: bool = True
    """Low-risk tasks may be answered by the quantised pool."""
    pool: PoolName = "best_effort"
    """The pool they go to."""
    system_words: bool = False
    """High-risk words of system prompts count as well."""


class RouteFilter(Filter[RouteConfig]):
    """The pools that fit come first; of these the first that works and is not full serves."""

    name: ClassVar[str] = "route"
    config_type: ClassVar[type[Config]] = RouteConfig

    def __init__(self, config: RouteConfig, prepared: Any, ports: Ports) -> None:
        super().__init__(config, prepared, ports)
        self._place: Final = Place(ports)

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Choose the pool and note what decided; answer where no pool takes the request."""
        risk = Risk(exchange, system_words=self.config.system_words)
        own = Choice(exchange.pool, Rule.OWN)
        low = self._low_risk(exchange, risk)
        size, line = Size(), [own] if low is None else [low, own]
        if self.ports.pools.by_name:
            if exchange.notes.get("classify.pool") == exchange.pool:
                own = own._replace(rule=Rule.EXPERT)
            size, line = self._line_up(exchange, own, low, risk)
        choice = await self._place.enter(exchange, line, size)
        if choice is None:
            exchange.note("route.refused", 429)
            body = exchange.dialect.error(429, BUSY)
            headers = {"content-type": "application/json", "retry-after": str(RETRY_AFTER_S)}
            return Answer(429, headers, body)
        exchange.pool = choice.pool
        if choice.rule is not Rule.OWN or self.ports.pools.by_name:
            exchange.note("route.rule", choice.rule)
        if choice.why:
            exchange.note("route.why", choice.why)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Say how the pool did, where that is asked."""
        if exchange.reply_head is not None:
            self._place.answered(exchange.reply_head)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Give the place back."""
        self._place.leave(exchange.reply_head)

    def _low_risk(self, exchange: Exchange, risk: Risk) -> Choice | None:
        """Return the pool for low-risk tasks if this is one, and none of high risk."""
        if not self.config.downgrade or _is_apart(exchange):
            return None  # vectors of two models are not compared
        low = risk.low()
        if low is None:
            return None
        if high := risk.high():
            exchange.note("route.why", high)
            return None
        return Choice(self.config.pool, Rule.LOW_RISK, f"low risk: {low}")

    def _line_up(
        self, exchange: Exchange, own: Choice, low: Choice | None, risk: Risk
    ) -> tuple[Size, list[Choice]]:
        """Return who may serve, the best first; raise `FilterError` where nobody's context does."""
        pools, prompt, tokens = self.ports.pools, exchange.prompt, self.ports.tokens
        count = partial(tokens.count, model=prompt.model)
        texts: Sequence[str] = ()
        size = Size()
        if pools.measures:
            texts = counted_texts(prompt, apart=_is_apart(exchange))
            size = size_of(texts, room_of(prompt), pools.contexts, tokens.estimate, count)
            exchange.note("route.tokens", size.tokens)
            exchange.note("route.bucket", bucket_of(size.tokens))
        task = None if _is_apart(exchange) else exchange.task
        choices = ranked(pools, own, low, task, size, risky=risk.is_risky)
        line = line_up(pools, choices, size)
        if not line:
            size = size._replace(tokens=counted(texts, size.tokens, count))
            exchange.note("route.tokens", size.tokens)
            line = roomiest(pools, choices, size)
        if not line:
            raise FilterError(400, too_long(size, longest(pools, choices)))
        others = [choice for choice in choices if choice.pool != line[0].pool]
        if others:
            there = {choice.pool for choice in line}
            exchange.note(
                "route.alternatives",
                ", ".join(
                    f"{pool} ({rule if pool in there else 'length does not fit'})"
                    for pool, rule, _ in others[:MOST_NAMED]
                ),
            )
        return size, line


def _is_apart(exchange: Exchange) -> bool:
    """Tell whether each of its texts is a prompt of its own, and no task."""
    return exchange.dialect.operation == "embeddings"
