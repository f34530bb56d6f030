"""Have texts that come one by one embedded together, so that a model server is asked less often."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from filters.api import (
    CONTINUE,
    Berth,
    Config,
    Exchange,
    Filter,
    Need,
    Outcome,
    Part,
    Verdict,
)
from filters.gathering import WAYS, Way
from filters.onward import onward_headers, unmarked
from filters.units import Duration, Size, SomeSize, SomeTime


class GatherConfig(Config, frozen=True):
    """Which texts are gathered, and for how long."""

    wait: SomeTime = Duration("50ms")
    """So long after the first of a batch it goes, however many it has by then."""
    most: Annotated[int, msgspec.Meta(ge=2, le=256)] = 16
    """A batch of so many goes at once."""
    longest: SomeSize = Size("32KiB")
    """A longer request goes by itself: what it takes is its text, not the call."""
    deadline: SomeTime = Duration("10s")
    """A batch without an answer by then is given up, and its requests go each by itself."""


class GatherFilter(Filter[GatherConfig]):
    """Lets the first of several alike go at once; those that come meanwhile go as one.

    Whatever becomes of a batch but a good answer for each, its requests go on as they came.
    """

    name: ClassVar[str] = "gather"
    config_type: ClassVar[type[Config]] = GatherConfig

    _berth: Berth | None = None

    @classmethod
    def shaping(cls, config: GatherConfig) -> Any:
        """Change nothing: a text has the same embedding in any company."""
        return None

    @classmethod
    def longest_wait_s(cls, config: GatherConfig) -> float:
        """Wait for others, and for an answer."""
        return config.wait + config.deadline

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Answer from a batch, or note why not."""
        way = WAYS.get(exchange.dialect.name)
        if way is None or exchange.must_pick:  # such a gateway has no way for questions of ours
            return CONTINUE
        part = self._part(exchange, way)
        if isinstance(part, str):
            exchange.note("gather.skip", part)
            return CONTINUE
        config = self.config
        berth = self._berth = self.ports.batches.take(
            part, most=config.most, wait_s=config.wait, deadline_s=config.deadline
        )
        answer = await berth.answer()
        if answer is not None:
            exchange.note("gather", "batch")
            exchange.note("gather.size", berth.size)
            return answer
        if berth.leads:
            exchange.note("gather", "first")
            exchange.need(Need.END)  # its answer's head too, which `HEAD` would have uncompressed
        elif berth.why:
            exchange.note("gather.skip", berth.why)
        return CONTINUE

    async def on_response(self, exchange: Exchange) -> None:
        """Let those go who waited meanwhile."""
        self._leave()

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Let them go at the latest."""
        self._leave()

    def _leave(self) -> None:
        if self._berth is not None:
            self._berth.leave()

    def _part(self, exchange: Exchange, way: Way) -> Part | str:
        """Return what can be asked with others, or why it cannot."""
        document = exchange.prompt.document
        if len(document.raw) > self.config.longest:
            return "size"
        path = exchange.head.path
        single = way.take_apart(path, document, self.ports.tokens.estimate)
        if isinstance(single, str):
            return single
        return Part(
            way=way,
            single=single,
            pool=exchange.pool,
            path=path,
            headers=unmarked(onward_headers(exchange)),
            tenant=exchange.tenant,
            traceparent=exchange.traceparent,
        )
