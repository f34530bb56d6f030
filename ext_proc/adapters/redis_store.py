"""Keep answers in Redis, where every replica of Forebay finds them, and never wait long for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import redis.asyncio as redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ext_proc.adapters.breaker import Breaker, BreakerState
from filters.api import Clock
from filters.errors import ConfigError, PortError

LANES: Final = 4  # connections; a large value on one does not hold up what goes by another
BATCH: Final = 64  # commands written at once: longer ones only delay the first of their answers
HARD_LIMIT_S: Final = 1.0  # a batch nobody waits for any more is given up after this
FAILURES: Final = 5  # in a row, before the store is bypassed
PAUSE_NS: Final = 1_000_000_000  # between one probe of a store that failed and the next

Command: TypeAlias = tuple[bytes | str | int, ...]
Replies: TypeAlias = list[Any] | Exception
"""The reply to each command of a call, or what went wrong; never raised where nobody listens."""


class StoreWatch(Protocol):
    """Who is told of what went wrong."""

    def store_failed(self, store: str, operation: str) -> None:
        """Count that a store broke or was late in `operation`: `get`, `put` or `sighted`."""

    def store_bypassed(self, store: str, operation: str) -> None:
        """Count that `operation` was not tried, for the store failed moments ago."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one caller asked, and where its outcome goes."""

    commands: Sequence[Command]
    outcome: asyncio.Future[Replies]


class RedisStore:
    """A `Store` on one Redis (7.0 or later, for `PEXPIRE NX`) or Valkey server.

    Commands that come together travel together: a batch costs a fraction of as many round trips,
    each on a connection of its own. A caller waits `timeout_s` at most, connecting included. What
    is late goes on without it to the hard limit: cancelling it would throw its connection away,
    and a server that takes longer than one budget to connect to (TLS, another zone) would never
    be reached.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        watch: StoreWatch,
        *,
        timeout_s: float = 0.005,
        password: str | None = None,
    ) -> None:
        """Connect to nothing yet; raise `ConfigError` for a `url` that is none of Redis."""
        options: dict[str, Any] = {"password": password} if password else {}
        try:
            pool = redis.ConnectionPool.from_url(
                url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,  # one timer for a batch instead of one for each reply
                socket_connect_timeout=None,  # likewise
                protocol=2,  # RESP3 would cost one more round trip for each connection
                driver_info=None,  # likewise
                **options,
            )
        except ValueError as error:
            raise ConfigError("forebay.store.redis.url", str(error)) from None
        make = pool.make_connection
        self._connections: Final[list[AbstractConnection]] = [
            make()  # type: ignore[no-untyped-call] # redis-py's
            for _ in range(LANES)
        ]
        self._idle: Final = list(self._connections)
        self._waiting: Final[deque[Call]] = deque()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._clock: Final = clock
        self._watch: Final = watch
        self._timeout_s: Final = timeout_s
        self._late: Final = PortError(f"no answer in {timeout_s * 1000:g} ms")
        self._breaker: Final = Breaker(FAILURES, PAUSE_NS)

    @property
    def state(self) -> BreakerState:
        """Whether Redis is asked at all."""
        return self._breaker.state

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""
        value: bytes | None
        (value,) = await self._ask("get", ("GET", b"forebay:answer:" + key))
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds, even if the caller is cancelled.

        An answer is stored when its exchange ends, and the end of the proxy's stream cancels.
        """
        name = b"forebay:answer:" + key
        if ttl_ms := max(0, int(ttl_s * 1000)):
            await self._ask("put", ("SET", name, value, "PX", ttl_ms))
        else:
            await self._ask("put", ("DEL", name))  # Redis refuses a time of zero

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; a window begins with the first one in it."""
        name = b"forebay:seen:" + key
        window_ms = max(1, int(window_s * 1000))
        # NX heals a counter whose connection broke between the two: it would stay for ever.
        count, _ = await self._ask("sighted", ("INCR", name), ("PEXPIRE", name, window_ms, "NX"))
        return min(int(count), most)

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections:
            await connection.disconnect()

    async def _ask(self, operation: str, *commands: Command) -> list[Any]:
        """Return the replies within the budget; raise `PortError` when it fails or is late."""
        started_ns = self._clock.monotonic_ns()
        if not self._breaker.allows(started_ns):
            self._watch.store_bypassed("redis", operation)
            raise PortError("redis is bypassed: it failed moments ago")
        loop = asyncio.get_running_loop()
        call = Call(commands, loop.create_future())
        self._waiting.append(call)
        if self._idle and len(self._waiting) == 1:
            loop.call_soon(self._send)  # together with what else is asked in this turn of the loop
        timer = loop.call_later(self._timeout_s, _settle, call, self._late)
        # A cancelled caller cancels what it waits for, and what is not sent by then is left out.
        waiting = asyncio.shield(call.outcome) if operation == "put" else call.outcome
        try:
            outcome = await waiting
        finally:
            timer.cancel()
        if isinstance(outcome, list):
            return outcome
        self._breaker.failed(started_ns, self._clock.monotonic_ns())
        self._watch.store_failed("redis", operation)
        reason = str(outcome) if outcome is self._late else type(outcome).__name__
        raise PortError(f"redis {operation}: {reason}")

    def _send(self) -> None:
        """Let an idle connection serve those who wait."""
        if self._waiting and self._idle:
            task = asyncio.ensure_future(self._serve(self._idle.pop()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: AbstractConnection) -> None:
        """Serve batch after batch until nobody waits."""
        try:
            while calls := self._next_batch():
                self._send()  # what is left over goes by another connection
                started_ns = self._clock.monotonic_ns()
                try:
                    async with asyncio.timeout(HARD_LIMIT_S):
                        await _exchange(connection, calls)
                    self._answered(started_ns)
                except Exception as error:  # noqa: BLE001 - whatever broke, each call hears of it
                    await connection.disconnect(nowait=True)
                    for call in calls:
                        _settle(call, error)
        finally:
            self._idle.append(connection)

    def _answered(self, started_ns: int) -> None:
        """Tell the breaker of a batch in time, even if its callers had waited too long before."""
        ended_ns = self._clock.monotonic_ns()
        if ended_ns - started_ns <= self._timeout_s * 1e9:
            self._breaker.succeeded(ended_ns)

    def _next_batch(self) -> list[Call]:
        calls: list[Call] = []
        while self._waiting and len(calls) < BATCH:
            call = self._waiting.popleft()
            if not call.outcome.done():  # else nobody waits for it any more
                calls.append(call)
        return calls


async def _exchange(connection: AbstractConnection, calls: Sequence[Call]) -> None:
    """Write the commands of all calls at once and hand each call its replies."""
    await connection.connect()  # type: ignore[no-untyped-call] # redis-py's
    try:
        stale = await connection.can_read()
    except redis.ConnectionError:
        stale = True
    if stale:  # the server closed it meanwhile
        await connection.disconnect(nowait=True)
        await connection.connect()  # type: ignore[no-untyped-call] # redis-py's
    commands = [command for call in calls for command in call.commands]
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    for call in calls:
        outcome: Replies = []
        for _ in call.commands:
            try:
                reply = await connection.read_response()
            except redis.ResponseError as error:
                outcome = error
            else:
                if isinstance(outcome, list):
                    outcome.append(reply)
        _settle(call, outcome)


def _settle(call: Call, outcome: Replies) -> None:
    if not call.outcome.done():
        call.outcome.set_result(outcome)
