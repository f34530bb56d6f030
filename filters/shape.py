"""Keep the last rounds of a long conversation and make a summary of what came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from filters.api import CONTINUE, Config, Exchange, Filter, Prompt, Role, Verdict
from filters.bounds import MOST_CHARS_APART, MOST_TEXTS, has_too_many_values, is_too_much
from filters.deadline import Deadline
from filters.errors import PortError
from filters.rounds import old_rounds, question_in, shape_transcript, take_old_rounds
from filters.token_samples import about_tokens
from filters.transcript import MOST_ASKED_CHARS, Gone, condense, may_be_transcript, write_summary
from filters.units import Duration, SomeTime

RULE: Final = "shape.rounds"


class ShapeConfig(Config, frozen=True):
    """What stays, and what stands for the rest."""

    rounds: Annotated[int, msgspec.Meta(ge=1)] = 3
    """So many of the last rounds stay whole; a round is what the user says and all that answers."""
    limit: Annotated[int, msgspec.Meta(ge=1)] = 2_048
    """Prompts of up to so many tokens stay as they are."""
    summary: Annotated[int, msgspec.Meta(ge=32)] = 128
    """What goes becomes at most so many tokens."""
    step: Annotated[int, msgspec.Meta(ge=1)] = 4
    """So many rounds go at a time, where that is enough: between, the same ones stay."""
    place: Literal["start", "question"] = "start"
    """Where the summary stands: before the rounds that stay, or before the last question."""
    deadline: SomeTime = Duration("1s")
    """A prompt whose summary takes longer goes on as it was."""


class ShapeFilter(Filter[ShapeConfig]):
    """Acts over a limit, and twice at most: by steps first, then on all but the last rounds.

    The second time the first summary is summarised along with the rest.
    """

    name: ClassVar[str] = "shape"
    config_type: ClassVar[type[Config]] = ShapeConfig

    @classmethod
    def longest_wait_s(cls, config: ShapeConfig) -> float:
        """Wait for all summaries together."""
        return config.deadline

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Shape the messages, or a transcript in one of them, and note why not."""
        if exchange.dialect.operation == "embeddings":
            return CONTINUE
        prompt = exchange.prompt
        if len(prompt.texts()) > MOST_TEXTS:
            exchange.note("shape.skip", "size")
            return CONTINUE
        said = prompt.said()
        chars = sum(map(len, said))  # hardly any character is more than one token
        if chars <= self.config.limit:
            return CONTINUE
        if chars > MOST_CHARS_APART or _has_too_much(prompt):
            exchange.note("shape.skip", "size")
            return CONTINUE
        if self._fits(said):
            return CONTINUE
        self._deadline = Deadline(self.ports.clock, self.config.deadline)
        try:
            await self._shape_messages(exchange, self.config.step)
            if not self._fits(prompt.said()):
                await self._shape_messages(exchange, 1)
            await self._shape_transcripts(exchange)
        except PortError as error:
            exchange.note("shape.skip", "no summary")
            exchange.note("shape.why", str(error))
        return CONTINUE

    async def _shape_messages(self, exchange: Exchange, step: int) -> None:
        """Take old rounds out of the messages of a prompt over the limit."""
        prompt, config = exchange.prompt, self.config
        turns = prompt.turns()
        old = old_rounds(
            prompt.document,
            turns,
            keep=config.rounds,
            step=step,
            at_question=config.place == "question",
        )
        if old is None:
            return
        summary = await self._summarise(exchange, old.gone, question_in(turns), old.texts)
        if summary:
            take_old_rounds(prompt.document, old, summary)

    async def _shape_transcripts(self, exchange: Exchange) -> None:
        """Do the same to conversations that stand in texts of the user's."""
        config = self.config
        asked = [
            text
            for turn in exchange.prompt.turns()
            for text in turn.texts
            if text.role is Role.USER and self._may_be_long_transcript(text.value)
        ]
        if is_too_much([text.value for text in asked]):
            exchange.note("shape.skip", "size")
            return
        for text in asked:
            for step in (config.step, 1):
                if self._fits([text.value]):
                    break
                shaped = await self.ports.workers.run(
                    shape_transcript,
                    text.value,
                    config.rounds,
                    step,
                    config.place,
                    config.summary,
                    deadline_s=self._deadline.left_s(),
                )
                if shaped is None:
                    break
                text.value = shaped.text
                self._say(exchange, shaped.turns, shaped.before, shaped.after)

    def _may_be_long_transcript(self, text: str) -> bool:
        return len(text) > self.config.limit and may_be_transcript(text, self.config.rounds)

    def _fits(self, texts: Sequence[str]) -> bool:
        return about_tokens(texts, self.ports.tokens.estimate) <= self.config.limit

    async def _summarise(
        self, exchange: Exchange, gone: Gone, question: str, went: Sequence[str]
    ) -> str:
        """Return what is to stand in the place of `went`, empty when nothing would be won."""
        said = await self.ports.workers.run(
            condense,
            gone.words,
            question[-MOST_ASKED_CHARS:],
            self.config.summary,
            deadline_s=self._deadline.left_s(),
        )
        summary = write_summary(gone.turns, said)
        before = about_tokens(went, self.ports.tokens.estimate)
        after = self.ports.tokens.estimate(summary)
        turns = gone.turns if said and after < before else 0
        self._say(exchange, turns, before, after)
        return summary if turns else ""

    def _say(self, exchange: Exchange, turns: int, before: int, after: int) -> None:
        if not turns:
            exchange.note("shape.skip", "nothing to win")
            return
        exchange.cut(RULE, before, after)
        exchange.note("shape.turns", turns)


def _has_too_much(prompt: Prompt) -> bool:
    """Tell whether there are too many messages to go through, or too much in those with tools."""
    turns = prompt.turns()
    if len(turns) > MOST_TEXTS:
        return True
    return has_too_many_values(prompt.document.raw) and any(turn.has_tool for turn in turns)
