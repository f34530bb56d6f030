"""Let a light model draft the reasoning, so that the big one answers without thinking long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from filters.api import (
    CONTINUE,
    Config,
    Effort,
    Exchange,
    Filter,
    Role,
    Thinking,
    Turn,
    Verdict,
)
from filters.draft import MOST_QUESTION_CHARS, draft_prompt, question_in, with_draft
from filters.errors import PortError
from filters.units import ClusterName, Duration, SomeTime

EASY: Final = frozenset(
    ("greeting", "translate", "summarise", "rewrite", "extract", "classify", "list")
)
"""Intents whose answer no reasoning makes better."""
_NO_THINKING: Final = Thinking(Effort.NONE, 0, always=True)


class ThinkConfig(Config, frozen=True):
    """Who drafts, and when."""

    cluster: Annotated[ClusterName, msgspec.Meta(min_length=1)]
    """Envoy's name for the servers of the light model."""
    model: Annotated[str, msgspec.Meta(min_length=1)]
    """What they call it."""
    deadline: SomeTime = Duration("1.5s")
    """A later draft is not waited for."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4_000)] = 200
    """A draft is cut there."""
    only: tuple[str, ...] = ()
    """Intents to draft for, as `classify` names them; none: all but the easy ones."""


class ThinkFilter(Filter[ThinkConfig]):
    """Adds a draft to the last question and turns the model's own thinking off.

    Without a draft in time the request goes on as it was, its thinking included.
    """

    name: ClassVar[str] = "think"
    config_type: ClassVar[type[Config]] = ThinkConfig

    @classmethod
    def longest_wait_s(cls, config: ThinkConfig) -> float:
        """Wait for one draft."""
        return config.deadline

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Draft, and note why not."""
        turns = exchange.prompt.turns()
        if why := self._why_not(exchange, turns):
            exchange.note("think.skip", why)
            return CONTINUE
        config = self.config
        try:
            draft = await self.ports.upstream.ask(
                config.cluster,
                config.model,
                draft_prompt(turns[:-1], turns[-1]),
                max_tokens=config.max_tokens,
                deadline_s=config.deadline,
                whole=False,  # the first steps of a long chain are a draft as well
                traceparent=exchange.traceparent,
            )
        except PortError as error:
            exchange.note("think.skip", str(error))
            return CONTINUE
        question = question_in(turns[-1])[-1]
        question.value = with_draft(question.value, draft)
        exchange.note("think.tokens", self.ports.tokens.estimate(draft))
        exchange.note("think.off", exchange.prompt.limit_thinking(_NO_THINKING))
        return CONTINUE

    def _why_not(self, exchange: Exchange, turns: Sequence[Turn]) -> str:
        """Return why a prompt gets no draft, empty when it gets one."""
        prompt, task = exchange.prompt, exchange.task
        intent = task.intent if task else ""
        if (intent not in self.config.only) if self.config.only else (intent in EASY):
            return f"intent {intent or 'unknown'}"
        if prompt.stateful:
            return "stateful"  # the question may lie in what the provider remembers
        if prompt.tools():
            return "tools"  # a model that does not know of them would reason past them
        if not turns or turns[-1].role is not Role.USER or turns[-1].has_tool:
            return "no question"  # results of tools, or the beginning of the answer
        if any(turn.has_media for turn in turns):
            return "media"  # it would reason about what it cannot see
        if _goes_on(exchange, turns):
            return "no question"
        if not question_in(turns[-1]):
            return "no question"
        if sum(len(text.value) for text in turns[-1].texts) > MOST_QUESTION_CHARS:
            return "size"
        return ""


def _goes_on(exchange: Exchange, turns: Sequence[Turn]) -> bool:
    """Tell whether the prompt is to be gone on with or measured, rather than answered."""
    operation, get = exchange.dialect.operation, exchange.prompt.document.get
    if operation == "text_completion":  # several are asked apart; an echo would show the draft
        return len(turns) > 1 or bool(get(("suffix",)) or get(("echo",)))
    return operation == "embeddings"
