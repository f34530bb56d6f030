"""One life of a simulated replica, from its start to its end: its engine, and what it counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from ext_proc.tools.kv_publisher import BlockEvents, Form, Publisher, publish_now
from ext_proc.tools.replica_model import Engine, Hardware, Work
from ext_proc.tools.replica_page import Names, Page
from ext_proc.tools.replica_time import TimedEngine, Timers
from ext_proc.tools.replica_tokens import TextWork
from ext_proc.tools.simulated_model import BYTES_PER_TOKEN

SERVER_BLOCK_TOKENS: Final = 16  # vLLM's, where `bench routing` has fewer and larger ones
INSTANT: Final = Hardware(
    step_s=0.0,
    prefill_s=0.0,
    decode_s=0.0,
    context_s=0.0,
    cache_tokens=65_536,
)
"""Takes no time, and little of ours: for who wants answers and nothing to learn from."""
SERVER: Final = Hardware(block_tokens=SERVER_BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Model:
    """What a replica is made of."""

    hardware: Hardware = INSTANT
    speed: float = 1.0
    """How many times as fast as the hardware says everything happens."""
    door_s: float = 0.0
    """What a request takes before it waits at all: a template is filled in, a text cut up."""
    context_tokens: int = 0
    """Longer requests are refused; 0: taken as far as they fit."""
    names: Names = Names.VLLM
    """Of metrics."""
    form: Form = Form.ARRAYS
    """Of events about blocks."""


class TooLong(Exception):
    """A request has more tokens than the model reads."""


class Life:
    """One life; it counts under the name of one model."""

    def __init__(
        self, model: Model, name: str, timers: Timers, publisher: Publisher | None = None
    ) -> None:
        hardware = model.hardware
        self.model: Final = model
        self.began_s: Final = time.time()
        self.silent = False
        """Whether it says that it does nothing."""
        self._events: Final = BlockEvents(hardware.block_tokens, model.form) if publisher else None
        self._publisher: Final = publisher
        self.engine: Final = Engine(hardware, self._events)
        self.timed: Final = TimedEngine(self.engine, timers, self, speed=model.speed)
        self._counted: Final[dict[Work, int]] = {}
        """Tokens of the requests under way that are counted so far."""
        self.page: Final = Page(
            self,
            name,
            began_s=self.began_s,
            block_tokens=hardware.block_tokens,
            blocks=self.engine.cache.blocks,
            names=model.names,
        )

    @property
    def waiting(self) -> int:
        """Requests that wait, by what it says."""
        return 0 if self.silent else len(self.engine.waiting)

    @property
    def running(self) -> int:
        """Requests that run, likewise."""
        return 0 if self.silent else len(self.engine.running)

    @property
    def usage(self) -> float:
        """The share of the memory for keys and values in use."""
        return self.engine.cache.usage

    def metrics(self) -> bytes:
        """Return the page of metrics as of now."""
        self.timed.catch_up()
        for work in tuple(self._counted):
            self._count(work, self.timed.written(work))
        return self.page.render()

    @asynccontextmanager
    async def run(
        self, prompt: str, answers: Sequence[str], tokens: Sequence[int], *, reason: str = "stop"
    ) -> AsyncIterator[Running]:
        """Read a prompt once for each answer, of so many tokens; wait for the first ones.

        An answer is what stands behind the prompt when a conversation goes on. Raise `TooLong`.
        """
        hardware, begin = self.model.hardware, prompt.encode(errors="replace")
        read = -(-len(begin) // BYTES_PER_TOKEN)
        if self.model.context_tokens and read + max(tokens) > self.model.context_tokens:
            raise TooLong(
                f"The model reads and writes at most {self.model.context_tokens} tokens, but the "
                f"request has {read} and asks for {max(tokens)}."
            )
        if self.model.door_s:
            await asyncio.sleep(self.model.door_s / self.timed.speed)
        works = [
            TextWork(
                begin + answer.encode(errors="replace"),
                read,
                count,
                block_tokens=hardware.block_tokens,
                reason=reason,
                most_tokens=self.engine.cache.blocks * hardware.block_tokens,
            )
            for answer, count in zip(answers, tokens, strict=True)
        ]
        running = Running(self.timed, works)
        try:
            for work in works:
                self._counted[work] = 0
                self.timed.arrive(work)
            await running.reach(1)
            yield running
        finally:
            for work in works:
                self._leave(work)

    def admitted(self, work: Work, now_s: float) -> None:
        """See `Listener`."""
        assert isinstance(work, TextWork)
        work.admitted_s = now_s
        self.page.admitted(work.prompt_tokens, work.cached, now_s - work.arrived_s)

    def started(self, work: Work, now_s: float) -> None:
        """See `Listener`."""
        assert isinstance(work, TextWork)
        self.page.started(
            work.prompt_tokens, work.cached, now_s - work.arrived_s, now_s - work.admitted_s
        )

    def ended(self, work: Work, now_s: float) -> None:
        """See `Listener`."""
        assert isinstance(work, TextWork)
        self._count(work, work.answer_tokens)
        del self._counted[work]
        self.page.ended(work.said_tokens, now_s - work.arrived_s, now_s - work.first_s, work.reason)

    def planned(self) -> None:
        """See `Listener`."""
        if self._events is not None and self._publisher is not None:
            publish_now(self._publisher, self._events)

    def _count(self, work: Work, written: int) -> None:
        assert isinstance(work, TextWork)
        if work not in self._counted:
            return  # it ended as it was looked how far it was
        written = min(written, work.said_tokens)
        self.page.wrote(written - self._counted[work])
        self._counted[work] = written

    def _leave(self, work: TextWork) -> None:
        """Take a request out whose client went away."""
        now_s = self.timed.catch_up()
        self._count(work, self.timed.written(work))
        if work not in self._counted:
            return  # it ended
        tokens = self._counted.pop(work)
        self.timed.drop(work)
        decode_s = now_s - work.first_s if work.first_s else 0.0
        self.page.ended(tokens, now_s - work.arrived_s, decode_s, "abort")


class Running:
    """A request that a replica works on."""

    def __init__(self, timed: TimedEngine, works: Sequence[TextWork]) -> None:
        self._timed: Final = timed
        self._works: Final = works

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that needed no prefill."""
        return self._works[0].cached

    async def reach(self, tokens: int) -> None:
        """Wait until so many tokens of each answer are there, or all it has."""
        for work in self._works:
            wanted = min(tokens, work.answer_tokens)
            if self._timed.written(work) < wanted:
                there = asyncio.get_running_loop().create_future()
                self._timed.call_when(work, wanted, lambda there=there: _done(there))  # type: ignore[misc]
                await there


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():  # its client may have gone away meanwhile
        future.set_result(None)
