"""Keep answers in Redis, where every replica of Forebay finds them, and never wait long for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ext_proc.adapters.breaker import Breaker, BreakerState
from filters.api import Clock
from filters.errors import ConfigError, PortError

T = TypeVar("T")

CONNECTIONS: Final = 32  # a connection serves one command at a time, of about 0.2 ms
HARD_LIMIT_S: Final = 1.0  # a command nobody waits for any more is given up after this
FAILURES: Final = 5  # in a row, before the store is bypassed
PAUSE_NS: Final = 1_000_000_000  # between one probe of a store that failed and the next


class StoreWatch(Protocol):
    """Who is told of what went wrong."""

    def store_failed(self, store: str, operation: str) -> None:
        """Count that a store broke or was late in `operation`: `get`, `put` or `sighted`."""

    def store_bypassed(self, store: str, operation: str) -> None:
        """Count that `operation` was not tried, for the store failed moments ago."""


class RedisStore:
    """A `Store` on one Redis (7.0 or later, for `PEXPIRE NX`) or Valkey server.

    A caller waits `timeout_s` at most, connecting included. What is late goes on behind its back
    to the hard limit: cancelling it would throw its connection away, and a server that takes
    longer than one budget to connect to (TLS, another zone) would never be reached.
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
            self._pool: Final = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=timeout_s,  # for a free connection
                socket_timeout=HARD_LIMIT_S,
                socket_connect_timeout=HARD_LIMIT_S,
                retry=Retry(NoBackoff(), 0),
                protocol=2,  # RESP3 would cost one more round trip for each connection
                driver_info=None,  # likewise
                **options,
            )
        except ValueError as error:
            raise ConfigError("forebay.store.redis.url", str(error)) from None
        self._redis: Final = redis.Redis(connection_pool=self._pool)
        self._clock: Final = clock
        self._watch: Final = watch
        self._timeout_s: Final = timeout_s
        self._breaker: Final = Breaker(FAILURES, PAUSE_NS)
        self._running: Final[set[asyncio.Task[Any]]] = set()

    @property
    def state(self) -> BreakerState:
        """Whether Redis is asked at all."""
        return self._breaker.state

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""
        value: bytes | None = await self._ask("get", self._command("GET", b"forebay:answer:" + key))
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds."""
        name = b"forebay:answer:" + key
        if ttl_ms := max(0, int(ttl_s * 1000)):
            command = self._command("SET", name, value, "PX", ttl_ms)
        else:
            command = self._command("DEL", name)  # Redis refuses a time of zero
        await self._ask("put", command)

    async def sighted(self, key: bytes, window_s: float) -> int:
        """Count one more sighting of `key`; a window begins with the first one in it."""
        name = b"forebay:seen:" + key
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.incr(name)
        pipeline.pexpire(name, max(1, int(window_s * 1000)), nx=True)
        count, _ = await self._ask("sighted", pipeline.execute())
        return int(count)

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._pool.aclose()

    def _command(self, *parts: bytes | str | int) -> Coroutine[Any, Any, Any]:
        return self._redis.execute_command(*parts)  # type: ignore[no-untyped-call] # redis-py's

    async def _ask(self, operation: str, command: Coroutine[Any, Any, T]) -> T:
        """Run `command` within the budget; raise `PortError` when it fails or is late."""
        started_ns = self._clock.monotonic_ns()
        if not self._breaker.allows(started_ns):
            command.close()
            self._watch.store_bypassed("redis", operation)
            raise PortError("redis is bypassed: it failed moments ago")
        task = asyncio.ensure_future(command)
        self._running.add(task)
        task.add_done_callback(self._settle)
        done, _ = await asyncio.wait((task,), timeout=self._timeout_s)
        if not done:
            reason = f"no answer in {self._timeout_s * 1000:g} ms"
        elif (error := task.exception()) is None:
            self._breaker.succeeded(self._clock.monotonic_ns())
            return task.result()
        elif isinstance(error, redis.RedisError | OSError):
            reason = type(error).__name__
        else:
            raise error
        self._breaker.failed(started_ns, self._clock.monotonic_ns())
        self._watch.store_failed("redis", operation)
        raise PortError(f"redis {operation}: {reason}")

    def _settle(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to ask, which asyncio would complain about
