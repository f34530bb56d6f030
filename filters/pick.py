"""Send each request to the replica of its pool that will start answering soonest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Delta,
    Exchange,
    Filter,
    Need,
    Outcome,
    Picked,
    Ports,
    Prompt,
    Verdict,
)
from filters.document import encode
from filters.errors import NO_REPLICA, FilterError
from filters.prefix_blocks import MOST_NAMED_BYTES, TOKEN_BYTES

_ENDS: Final = Need.HEAD | Need.END  # 1 us each time it is put together
_READ: Final = ("openai.chat", "openai.completions")
"""Dialects whose prompts can be read as their model reads them: vLLM's chat template is theirs."""
_ILL: Final = (502, 503, 504)
"""Replies that speak of a server; a 500 often speaks of a prompt."""
FIRST_ERROR: Final = 400
"""A reply of such a status or above says nothing of what was prefilled."""


class PickConfig(Config, frozen=True):
    """What is looked at, and for whom. How replicas are weighed is a setting of their pool."""

    across_tenants: bool = False
    """One tenant's prompts may go where another's began alike, and so be faster: that can be
    measured, and tells that somebody asked."""
    watch: bool = True
    """Streamed answers are watched for their first token: it tells how fast a replica is, and
    whether it still answers. Without, only replies that do not come in pieces tell."""


class PickFilter(Filter[PickConfig]):
    """Where a pool has no replicas that are known, the proxy chooses and nothing is done here."""

    name: ClassVar[str] = "pick"
    config_type: ClassVar[type[Config]] = PickConfig

    def __init__(self, config: PickConfig, prepared: Any, ports: Ports) -> None:
        super().__init__(config, prepared, ports)
        self._picked: Picked | None = None
        self._watched = False
        self._started = False

    @classmethod
    def shaping(cls, config: PickConfig) -> Any:
        """All replicas of a pool give the same answers."""
        return None

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Choose a replica, and another should the first one take no connection."""
        replicas = self.ports.replicas
        if not replicas.has(exchange.pool):
            return CONTINUE
        if wait_s := replicas.full_s(exchange.pool, exchange.subset):
            exchange.note("pick.skip", "full")
            return _ask_again(exchange, wait_s)
        prompt = exchange.prompt
        shown, tokens = beginning(prompt)
        tenant = "" if self.config.across_tenants else exchange.tenant
        self._watched = self.config.watch and prompt.stream
        chain = None
        if replicas.reads(exchange.pool) and exchange.dialect.name in _READ:
            chain = await replicas.read(exchange.pool, prompt, shared=self.config.across_tenants)
        picked = replicas.pick(
            exchange.pool,
            shown,
            f"{prompt.model}\n{tenant}",
            tokens=tokens,
            watched=self._watched,
            subset=exchange.subset,
            chain=chain,
        )
        if picked is None:
            exchange.note("pick.skip", "no replica")
            if exchange.must_pick or exchange.subset is not None:
                raise FilterError(503, NO_REPLICA)
            return CONTINUE
        self._picked = picked
        exchange.endpoints = picked.addresses
        exchange.note("pick.replica", picked.addresses[0])
        exchange.note("pick.why", picked.why)
        exchange.note("pick.held", picked.held)
        exchange.note("pick.expected_ms", round(picked.expected_s * 1e3))
        exchange.need(_ENDS)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Take the head for the beginning of an answer that comes in one piece."""
        head = exchange.reply_head
        if self._picked is None or head is None:
            return
        if head.served and head.served != self._picked.addresses[0]:
            self._picked.served(head.served)
            exchange.note("pick.served", head.served)
        if head.status >= FIRST_ERROR:
            return
        if self._watched:
            exchange.need(Need.REPLY)  # a server may send the head of a stream at once
        else:
            self._start(exchange, self._picked)

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """Take the first event for the first token."""
        if self._picked is not None and not self._started:
            self._start(exchange, self._picked)
        return (delta,)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Let go of the replica; what never started was not prefilled, as far as is known."""
        if self._picked is not None:
            head = exchange.reply_head
            ill = head is not None and head.status in _ILL
            self._picked.ended(good=self._started, ill=ill)

    def _start(self, exchange: Exchange, picked: Picked) -> None:
        self._started = True
        picked.started()
        if exchange.slot is not None and (self._watched or not exchange.prompt.stream):
            exchange.slot.begun()


def _ask_again(exchange: Exchange, wait_s: float) -> Answer:
    seconds = math.ceil(wait_s)  # RFC 9110, 10.2.3: whole ones
    body = exchange.dialect.error(429, f"all model servers are busy: ask again in {seconds} s")
    headers = {"content-type": "application/json", "retry-after": str(seconds)}
    return Answer(429, headers, body)


def beginning(prompt: Prompt) -> tuple[bytes, int]:
    """Return what a model reads first of a prompt, and about how many tokens all of it has.

    Tools come before what is said, as chat templates have it. It is no model's own template: all
    that matters is where two prompts begin alike.
    """
    tools = prompt.tools()
    parts = [encode(tools).decode()] if tools else []
    chars = 0
    for turn in prompt.turns():
        parts += ("\n", turn.role, "\n")
        for text in turn.texts:
            value = text.value
            if chars < MOST_NAMED_BYTES:  # the rest would be copied for nothing
                parts.append(value[: MOST_NAMED_BYTES - chars])
            chars += len(value)
    whole = "".join(parts)
    most = MOST_NAMED_BYTES if whole.isascii() else MOST_NAMED_BYTES // 2
    shown = whole[:most].encode(errors="surrogatepass")
    if len(whole) <= most:
        return shown, len(shown) // TOKEN_BYTES
    return shown, len(shown) * max(chars, len(whole)) // most // TOKEN_BYTES
