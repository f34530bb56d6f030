"""Keep the last rounds of a long conversation and make a summary of what came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from filters.api import CONTINUE, Config, Exchange, Filter, Role, Text, Verdict
from filters.bounds import is_too_much
from filters.errors import PortError
from filters.rounds import old_rounds, question_in, round_starts, rounds_to_cut, take_old_rounds
from filters.transcript import (
    Gone,
    condense,
    may_be_transcript,
    old_parts,
    read_transcript,
    write_summary,
    write_transcript,
)
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
        said = _values(exchange)  # hardly any character is more than one token
        if sum(map(len, said)) <= self.config.limit or self._fits(*said):
            return CONTINUE
        self._ends_ns = self.ports.clock.monotonic_ns() + round(self.config.deadline * 1e9)
        try:
            await self._shape_messages(exchange, self.config.step)
            if not self._fits(*_values(exchange)):
                await self._shape_messages(exchange, 1)
            for place in range(len(_asked(exchange))):
                for step in (self.config.step, 1):
                    await self._shape_transcript(exchange, place, step)
        except PortError as error:
            exchange.note("shape.skip", str(error))
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

    async def _shape_transcript(self, exchange: Exchange, place: int, step: int) -> None:
        """Do the same to a conversation that stands in a text of the user's."""
        text = _asked(exchange)[place]
        if not may_be_transcript(text.value, self.config.rounds) or self._fits(text.value):
            return
        if is_too_much([text.value]):
            exchange.note("shape.skip", "size")
            return
        before, parts = read_transcript(text.value)
        starts = round_starts(part.role or Role.SYSTEM for part in parts)
        cut = rounds_to_cut(len(starts), self.config.rounds, step)
        if not cut:
            return
        old = old_parts(parts, starts, cut, at_question=self.config.place == "question")
        summary = await self._summarise(exchange, old.gone, parts[starts[-1]].words, old.texts)
        if summary:
            text.value = write_transcript(before, old.kept, summary, old.place)

    def _fits(self, *texts: str) -> bool:
        return sum(map(self.ports.tokens.estimate, texts)) <= self.config.limit

    async def _summarise(
        self, exchange: Exchange, gone: Gone, question: str, went: Sequence[str]
    ) -> str:
        """Return what is to stand in the place of `went`, empty when nothing would be won."""
        left_s = (self._ends_ns - self.ports.clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            raise PortError("no time left")
        said = await self.ports.workers.run(
            condense, gone.words, question, self.config.summary, deadline_s=left_s
        )
        summary = write_summary(gone.turns, said)
        before = sum(map(self.ports.tokens.estimate, went))
        after = self.ports.tokens.estimate(summary)
        if not said or after >= before:
            exchange.note("shape.skip", "nothing to win")
            return ""
        exchange.cut(RULE, before, after)
        exchange.note("shape.turns", gone.turns)
        return summary


def _values(exchange: Exchange) -> list[str]:
    return [text.value for turn in exchange.prompt.turns() for text in turn.texts]


def _asked(exchange: Exchange) -> list[Text]:
    """Return the user's texts, each of which may be a transcript."""
    turns = exchange.prompt.turns()
    return [text for turn in turns for text in turn.texts if text.role is Role.USER]
