"""Hear how a pool on its way in does, beside the one whose place it is to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from filters.api import (
    CONTINUE,
    Config,
    Delta,
    Ending,
    Exchange,
    Filter,
    Heard,
    Need,
    Outcome,
    Question,
    Verdict,
)
from filters.hearing import Ear, ending_of
from filters.onward import onward_headers


class StageConfig(Config, frozen=True):
    """Nothing: a stage is a setting of its pool."""


class StageFilter(Filter[StageConfig]):
    """Stands behind `route` in every profile as long as some pool has a stage.

    Where no filter asked which pool it is to be, this one does. A shadow is asked when the client
    has its answer.
    """

    name: ClassVar[str] = "stage"
    config_type: ClassVar[type[Config]] = StageConfig

    _ear: Ear | None = None

    @classmethod
    def shaping(cls, config: StageConfig) -> Any:
        """Change nothing."""
        return None

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Ask for the reply where it is evidence."""
        staged = exchange.staged
        if staged is None:
            staged = exchange.staged = self.ports.stages.choose(exchange.pool, exchange.tenant)
            exchange.pool = staged.pool
        trial = staged.trial
        # A pool that is full or broken may have sent it elsewhere.
        if trial is not None and exchange.pool == staged.pool:
            exchange.note("stage.trial", f"{trial.step}: {trial.new} for {trial.old}")
            exchange.need(Need.REPLY)
            self._ear = Ear(self.ports.clock.monotonic_ns())
        return CONTINUE

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """Hear a piece of the answer."""
        if self._ear is not None:
            self._ear.take(delta, self.ports.clock.monotonic_ns())
        return (delta,)

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Say what was heard, and what a shadow is to be asked."""
        staged, ear, stages = exchange.staged, self._ear, self.ports.stages
        if staged is None or ear is None or outcome is Outcome.ANSWERED:
            return
        heard = self._heard(exchange, ear, outcome)
        if isinstance(heard, str):
            stages.skipped(staged, heard)
        elif not staged.shadow:
            stages.heard(staged, heard)
        elif why := _why_not_again(exchange, heard):
            exchange.note("stage.skip", why)
            stages.skipped(staged, why)
        else:
            stages.heard(staged, heard, _question(exchange))

    def _heard(self, exchange: Exchange, ear: Ear, outcome: Outcome) -> Heard | str:
        """Return what was heard, or why that is no evidence."""
        now_ns = self.ports.clock.monotonic_ns()
        status = exchange.reply_head.status if exchange.reply_head else 0
        if outcome is Outcome.GONE:
            return Heard(Ending.LEFT, now_ns - ear.asked_ns)
        if outcome not in (Outcome.COMPLETE, Outcome.FORWARDED):
            return "failed"
        heard = ear.heard(status, now_ns, stream=exchange.prompt.stream)
        if outcome is Outcome.FORWARDED and ending_of(status, whole=True) is Ending.ANSWERED:
            return "unreadable"  # compressed, or of a type that nobody knows
        return heard


def _why_not_again(exchange: Exchange, heard: Heard) -> str:
    """Return why no other pool is asked, empty when it is."""
    if heard.ending not in (Ending.ANSWERED, Ending.FAILED):
        return heard.ending
    # What the one provider remembers, the other does not know; and the tools that a provider calls
    # by itself must not be called twice.
    return "stateful" if exchange.prompt.stateful else ""


def _question(exchange: Exchange) -> Question:
    """Return the request as it went upstream, with the credentials it had there."""
    document = exchange.prompt.document
    return Question(
        exchange.dialect,
        exchange.prompt,
        exchange.head.path,
        onward_headers(exchange),
        document.render() if document.changed else document.raw,
        exchange.traceparent,
    )
