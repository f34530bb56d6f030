"""Ask one Redis server: over few connections, many commands at once, and never waiting long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from redis.asyncio.connection import AbstractConnection

from ext_proc.adapters.breaker import Breaker, BreakerState
from ext_proc.adapters.redis_lane import Call, Command, Lane, Replies, settle
from ext_proc.redis_url import Address
from filters.api import Clock

LANES: Final = 4  # connections; a large value on one does not hold up what goes by another
BATCH: Final = 64  # commands written at once: longer ones only delay the first of their answers
MOST_WAITING: Final = 1024  # calls: 16 full batches, more than one budget serves
MOST_WAITING_BYTES: Final = 8 << 20  # of what is to be written: 128 answers of 64 KiB
CONNECT_LIMIT_S: Final = 1.0  # to connect nobody waits longer, and tries again
FAILURES: Final = 5  # in a row, before the server is bypassed
PAUSE_NS: Final = 1_000_000_000  # between one probe of a server that failed and the next

Connect: TypeAlias = Callable[[Address], AbstractConnection]
"""Returns a connection to a server that does not connect yet."""

Left: TypeAlias = Callable[[Replies], object]
"""Told what became of a call whose caller was cancelled meanwhile."""

LATE: Final = TimeoutError()
"""There was no answer within the budget."""
BYPASSED: Final = RuntimeError()
"""The server was not asked, for it failed moments ago."""
FULL: Final = RuntimeError()
"""The server was not asked, for too many others wait for it."""


class RedisNode:
    """One server (Redis 7.0 or later, or Valkey), asked within a budget of time.

    Commands that come together travel together: a batch costs a fraction of as many round trips,
    each on a connection of its own. A caller waits as long as it said at most, connecting
    included. What is late goes on without it to the hard limit: cancelling it would throw its
    connection away, and a server that takes longer than one budget to connect to (TLS, another
    zone) would never be reached.
    """

    def __init__(
        self,
        address: Address,
        connect: Connect,
        clock: Clock,
        *,
        budget_s: float,
        lanes: int = LANES,
    ) -> None:
        """Connect to nothing yet. An answer within `budget_s` closes the breaker."""
        self.address: Final = address
        self._clock: Final = clock
        self._budget_ns: Final = budget_s * 1e9
        self._lanes: Final = [Lane(partial(connect, address), self._freed) for _ in range(lanes)]
        self._idle: Final = [*self._lanes]
        self._greeted: Final[set[Lane]] = set()
        """Serve nothing but a `PING`, to find out whether they still could."""
        self._sent_ns: Final[dict[Lane, int]] = {}
        """When what is being served was sent."""
        self._quiet: asyncio.Future[None] | None = None
        """Done when nothing is under way any more, for who waits to close all."""
        self._waiting: Final[deque[Call]] = deque()
        self._waiting_bytes = 0
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._breaker: Final = Breaker(FAILURES, PAUSE_NS)
        self._retired = False

    @property
    def state(self) -> BreakerState:
        """Whether the server is asked at all."""
        return self._breaker.state

    def may_ask(self, now_ns: int) -> bool:
        """Return whether `ask` would try: it is well, or a probe is due."""
        return self._breaker.would_allow(now_ns)

    async def ask(
        self, commands: Sequence[Command], limit_s: float, *, left: Left | None = None
    ) -> Replies:
        """Return the replies, or what went wrong: `LATE` when `limit_s` went by.

        If the caller is cancelled meanwhile, they are sent all the same when there is a `left` to
        be told instead, in the same time and once.
        """
        started_ns = self._clock.monotonic_ns()
        weight = _weigh(commands) if left is not None else 0
        waiting = self._waiting
        # One that alone is larger goes when no other waits.
        too_much = (
            weight and self._waiting_bytes and self._waiting_bytes + weight > MOST_WAITING_BYTES
        )
        if len(waiting) >= MOST_WAITING or too_much:
            return FULL
        if self._retired or not self._breaker.allows(started_ns):
            return BYPASSED
        loop = asyncio.get_running_loop()
        call = Call(commands, loop.create_future(), weight, stays=left is not None)
        waiting.append(call)
        self._waiting_bytes += weight
        if len(waiting) == 1 and self._idle:
            loop.call_soon(self._send)  # together with what else is asked in this turn of the loop
        timer = loop.call_later(limit_s, _be_late, call)
        try:
            outcome = await call.outcome
        except asyncio.CancelledError:
            if left is None:
                timer.cancel()
                raise
            if call.outcome.cancelled():  # else there is one of which the caller was not told yet
                call.outcome = loop.create_future()
            call.outcome.add_done_callback(partial(self._outlived, started_ns, timer, left))
            raise
        timer.cancel()
        self._heed(started_ns, outcome)
        return outcome

    def connect(self) -> None:
        """Open what connections there may be, and again what the server closed; waits for nothing.

        So that no request pays for it. What serves a call at the moment is left alone.
        """
        if self._retired:
            return
        idle, self._idle[:] = tuple(self._idle), ()
        for lane in idle:
            self._start(self._greet(lane) if lane.is_open else self._open(lane, [_greeting()]))

    async def connected(self) -> bool:
        """Wait until what is being opened answers; return whether there is a connection."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        return any(lane.is_open for lane in self._lanes)

    async def retire(self) -> None:
        """Ask nothing more, let what runs end and close every connection."""
        self._retired = True
        if self._tasks or self._sent_ns:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet
        await self.close()

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        self._retired = True
        for call in self._waiting:
            settle(call, BYPASSED)
        self._waiting.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes:
            lane.abort(ConnectionError())

    def _send(self) -> None:
        """Let idle connections serve those who wait."""
        while self._waiting and self._idle:
            calls = self._next_batch()
            if not calls:
                return
            lane = self._idle.pop()
            if lane.is_open:
                self._serve(lane, calls)
            else:
                self._start(self._open(lane, calls))

    def _serve(self, lane: Lane, calls: Sequence[Call]) -> None:
        self._sent_ns[lane] = self._clock.monotonic_ns()
        lane.send(calls)

    def _freed(self, lane: Lane, answered: bool) -> None:
        """Take a connection back from a batch that was answered or lost."""
        started_ns = self._sent_ns.pop(lane)
        greeted = lane in self._greeted
        self._greeted.discard(lane)
        if answered:
            self._answered(started_ns)
        elif greeted and not self._retired:
            self._start(self._open(lane, [_greeting()]))  # it was not
            return
        self._rest(lane)

    def _rest(self, lane: Lane) -> None:
        """Let a connection serve who waits; those that are open are taken first."""
        self._idle.insert(len(self._idle) if lane.is_open else 0, lane)
        self._send()
        self._look_round()

    def _answered(self, started_ns: int) -> None:
        """Tell the breaker of a batch in time, even if its callers had waited too long before."""
        ended_ns = self._clock.monotonic_ns()
        if ended_ns - started_ns <= self._budget_ns:
            self._breaker.succeeded(ended_ns)

    def _heed(self, started_ns: int, outcome: Replies) -> None:
        """Tell the breaker of what was late or went wrong."""
        if not isinstance(outcome, list):
            self._breaker.failed(started_ns, self._clock.monotonic_ns())

    def _outlived(
        self,
        started_ns: int,
        timer: asyncio.TimerHandle,
        left: Left,
        settled: asyncio.Future[Replies],
    ) -> None:
        timer.cancel()
        outcome = settled.result()
        self._heed(started_ns, outcome)
        left(outcome)

    async def _greet(self, lane: Lane) -> None:
        """Find out whether a connection is still open at the other end."""
        greeting = _greeting()
        self._greeted.add(lane)
        self._serve(lane, [greeting])
        await asyncio.wait((greeting.outcome,))

    async def _open(self, lane: Lane, calls: Sequence[Call]) -> None:
        """Connect, then serve those who wait for it."""
        started_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await lane.open()
        except BaseException as error:
            why = error if isinstance(error, Exception) else ConnectionError()
            for call in calls:
                settle(call, why)
            self._rest(lane)
            if not isinstance(error, Exception):
                raise
        else:
            self._sent_ns[lane] = started_ns  # connecting is part of what they wait for
            lane.send(calls)
            await asyncio.wait([call.outcome for call in calls])

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._look_round()

    def _look_round(self) -> None:
        """Tell who waits for it that nothing is under way any more."""
        if self._quiet is not None and not self._tasks and not self._sent_ns:
            settled, self._quiet = self._quiet, None
            if not settled.done():
                settled.set_result(None)

    def _next_batch(self) -> list[Call]:
        calls: list[Call] = []
        while self._waiting and len(calls) < BATCH:
            call = self._waiting.popleft()
            self._waiting_bytes -= call.weight
            # Else nobody waits for it any more, and it was to be dropped then.
            if not call.outcome.done() or (call.stays and call.outcome.cancelled()):
                calls.append(call)
        return calls


def _greeting() -> Call:
    return Call([("PING",)], asyncio.get_running_loop().create_future())


def _be_late(call: Call) -> None:
    """Give up a call, unless its answer is here: a busy process may come to both at once.

    In this turn of the loop bytes are taken from the socket, in the next one they are read.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, settle, call, LATE)


def _weigh(commands: Sequence[Command]) -> int:
    return sum(len(part) for command in commands for part in command if isinstance(part, bytes))
