"""Ask one Redis server: over few connections, many commands at once, and never waiting long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias

from redis.asyncio.connection import AbstractConnection

from ext_proc.adapters.breaker import Breaker, BreakerState
from ext_proc.adapters.redis_wire import (
    Call,
    Command,
    Replies,
    abort,
    exchange,
    settle,
    writer_of,
)
from ext_proc.redis_url import Address
from filters.api import Clock

LANES: Final = 4  # connections; a large value on one does not hold up what goes by another
BATCH: Final = 64  # commands written at once: longer ones only delay the first of their answers
MOST_WAITING: Final = 1024  # calls: 16 full batches, more than one budget serves
MOST_WAITING_BYTES: Final = 8 << 20  # of what is to be written: 128 answers of 64 KiB
HARD_LIMIT_S: Final = 1.0  # a batch nobody waits for any more is given up after this
FAILURES: Final = 5  # in a row, before the server is bypassed
PAUSE_NS: Final = 1_000_000_000  # between one probe of a server that failed and the next

Connect: TypeAlias = Callable[[Address], AbstractConnection]
"""Returns a connection to a server that does not connect yet."""

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
        self._connect: Final = connect
        self._clock: Final = clock
        self._budget_ns: Final = budget_s * 1e9
        self._lanes: Final = lanes
        self._connections: Final[list[AbstractConnection]] = []
        self._idle: Final[list[AbstractConnection]] = []
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
        self, commands: Sequence[Command], limit_s: float, *, stays: bool = False
    ) -> Replies:
        """Return the replies, or what went wrong: `LATE` when `limit_s` went by.

        What `stays` is sent even if the caller is cancelled meanwhile.
        """
        started_ns = self._clock.monotonic_ns()
        weight = _weigh(commands) if stays else 0
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
        call = Call(commands, loop.create_future(), weight, stays)
        waiting.append(call)
        self._waiting_bytes += weight
        if len(waiting) == 1 and (self._idle or len(self._connections) < self._lanes):
            loop.call_soon(self._send)  # together with what else is asked in this turn of the loop
        timer = loop.call_later(limit_s, _be_late, call)
        try:
            outcome = await call.outcome
        finally:
            timer.cancel()
        if not isinstance(outcome, list):
            self._breaker.failed(started_ns, self._clock.monotonic_ns())
        return outcome

    def connect(self) -> None:
        """Open what connections there may be, and again what the server closed; waits for nothing.

        So that no request pays for it. What serves a call at the moment is left alone.
        """
        if self._retired:
            return
        while len(self._connections) < self._lanes:
            self._connections.append(self._connect(self.address))
            self._idle.append(self._connections[-1])
        while self._idle:
            self._start(self._greet(self._idle.pop()))

    async def connected(self) -> bool:
        """Wait until what is under way has ended; return whether there is a connection."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        return any(writer_of(connection) is not None for connection in self._connections)

    async def retire(self) -> None:
        """Ask nothing more, let what runs end and close every connection."""
        self._retired = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.close()

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        self._retired = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in self._waiting:
            settle(call, BYPASSED)
        self._waiting.clear()
        for connection in self._connections:
            abort(writer_of(connection))
            await connection.disconnect()

    def _send(self) -> None:
        """Let an idle connection, or one more, serve those who wait."""
        if not self._waiting:
            return
        if self._idle:
            connection = self._idle.pop()
        elif len(self._connections) < self._lanes:
            connection = self._connect(self.address)
            self._connections.append(connection)
        else:
            return
        self._start(self._serve(connection))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, connection: AbstractConnection) -> None:
        """Have a connection open, and serve those who came meanwhile."""
        was_open = writer_of(connection) is not None
        if not await self._try(connection, [_greeting()]) and was_open:
            await self._try(connection, [_greeting()])  # it was not, at the other end
        await self._serve(connection)

    async def _serve(self, connection: AbstractConnection) -> None:
        """Serve batch after batch until nobody waits."""
        try:
            while calls := self._next_batch():
                self._send()  # what is left over goes by another connection
                await self._try(connection, calls)
        finally:
            self._idle.append(connection)

    async def _try(self, connection: AbstractConnection, calls: Sequence[Call]) -> bool:
        """Have a batch answered; return whether the server did."""
        started_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(HARD_LIMIT_S):
                await exchange(connection, calls)
        except Exception as error:  # noqa: BLE001 - whatever broke, each call hears of it
            await connection.disconnect(nowait=True)
            for call in calls:
                settle(call, error)
            return False
        self._answered(started_ns)
        return True

    def _answered(self, started_ns: int) -> None:
        """Tell the breaker of a batch in time, even if its callers had waited too long before."""
        ended_ns = self._clock.monotonic_ns()
        if ended_ns - started_ns <= self._budget_ns:
            self._breaker.succeeded(ended_ns)

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
