"""Send each request to the pool that fits it: by risk, task and length, and by who is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Exchange,
    Filter,
    Outcome,
    Verdict,
)
from filters.bounds import MOST_CHARS_APART
from filters.errors import FilterError
from filters.intent_rules import HIGH_RISK_DOMAINS
from filters.places import Place
from filters.risk import high_risk, low_risk
from filters.routing import (
    Choice,
    Rule,
    Size,
    counted_texts,
    is_near,
    longest,
    plan,
    room_of,
    roomiest,
    too_long,
)
from filters.token_samples import COUNT_S, about_tokens, tokens_of
from filters.units import PoolName

BUSY: Final = "all model servers that take this request are busy; try again"
RETRY_AFTER_S: Final = 1  # exchanges end all the time: a place is soon free


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

    _place: Place | None = None
    _counted: Size | None = None

    @classmethod
    def longest_wait_s(cls, config: RouteConfig) -> float:
        """Wait until a prompt is counted that may be too long for a pool."""
        return COUNT_S

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Choose the pool and note what decided; answer where no pool takes the request."""
        pools = self.ports.pools
        low = self._low_risk(exchange)
        if not (low or pools.choose or pools.guards(exchange.pool)):
            return CONTINUE
        size, line = await self._line_up(exchange, low)
        choice: Choice | None = line[0]
        if pools.guards(line[0].pool):
            self._place = Place(self.ports)
            choice = await self._place.enter(exchange, line, size)
        if choice is None:
            exchange.note("route.refused", 429)
            body = exchange.dialect.error(429, BUSY)
            headers = {"content-type": "application/json", "retry-after": str(RETRY_AFTER_S)}
            return Answer(429, headers, body)
        exchange.pool = choice.pool
        if choice.rule is not Rule.OWN or "route.alternatives" in exchange.notes:
            exchange.note("route.rule", choice.rule)
        if choice.rule is Rule.LOW_RISK:
            exchange.note("route.why", f"low risk: {low}")
        elif choice.why:
            exchange.note("route.why", choice.why)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Say how the pool did, where that is asked."""
        if self._place is not None and exchange.reply_head is not None:
            self._place.answered(exchange.reply_head)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Give the place back."""
        if self._place is not None:
            self._place.leave(exchange.reply_head, broke_off=exchange.broke_off)

    def _low_risk(self, exchange: Exchange) -> str:
        """Return what makes it low risk, empty where nothing does or high risk outweighs it."""
        if not self.config.downgrade or _is_apart(exchange):
            return ""  # vectors of two models are not compared
        low = low_risk(exchange)
        if low is None:
            return ""
        if high := high_risk(exchange, system_words=self.config.system_words):
            exchange.note("route.why", high)
            return ""
        return low

    def _wants_care(self, exchange: Exchange) -> bool:
        """Tell whether its trade or a word of it keeps it from lesser pools."""
        task = exchange.task
        return (task is not None and task.domain in HIGH_RISK_DOMAINS) or bool(
            high_risk(exchange, system_words=self.config.system_words)
        )

    async def _line_up(self, exchange: Exchange, low: str) -> tuple[Size, Sequence[Choice]]:
        """Return who may serve, the best first; raise `FilterError` where nobody's context does."""
        pools, apart = self.ports.pools, _is_apart(exchange)
        size = await self._size(exchange) if pools.measures else Size()
        expert = exchange.notes.get("classify.pool") == exchange.pool
        own = Choice(exchange.pool, Rule.EXPERT if expert else Rule.OWN)
        task = None if apart else exchange.task
        careful = pools.lesser_fallbacks and not low and self._wants_care(exchange)
        lesser = self.config.pool if low else ""
        line, choices, others = plan(pools, own, lesser, task, size, careful=careful)
        if not line:
            size = await self._size(exchange, exactly=True)
            line = roomiest(pools, choices, size)
        if not line:
            raise FilterError(400, too_long(size, longest(pools, choices)))
        if others:
            exchange.note("route.alternatives", others)
        return size, line

    async def _size(self, exchange: Exchange, *, exactly: bool = False) -> Size:
        """Return how long the prompt is, and note it; it is counted once at most."""
        if self._counted is not None:
            return self._counted
        prompt, tokens = exchange.prompt, self.ports.tokens
        texts = counted_texts(prompt, apart=_is_apart(exchange))
        size = Size(about_tokens(texts, tokens.estimate), room_of(prompt))
        matters = exactly or is_near(size, self.ports.pools.contexts)
        if matters and sum(map(len, texts)) <= MOST_CHARS_APART:  # to count more takes too long
            size = size._replace(tokens=await tokens_of(texts, prompt.model, tokens))
            self._counted = size
        exchange.note("route.tokens", size.tokens)
        exchange.note("route.bucket", size.bucket)
        return size


def _is_apart(exchange: Exchange) -> bool:
    """Tell whether each of its texts is a prompt of its own, and no task."""
    return exchange.dialect.operation == "embeddings"
