"""Ask whichever Redis server has a key, within a budget of time.

All that Forebay keeps of one answer has names with its key in braces. A cluster puts what has the
same text in braces into the same slot, so that it travels together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redis.exceptions import AskError, MovedError

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_dial import Dial, open_tls
from ext_proc.adapters.redis_lane import Command, Replies
from ext_proc.adapters.redis_node import BYPASSED, FULL, LANES, LATE, Left, RedisNode
from ext_proc.adapters.redis_places import RedisPlaces, Search
from ext_proc.adapters.redis_search import ask_cluster, ask_sentinel
from ext_proc.adapters.store_watch import StoreWatch
from ext_proc.redis_url import Kind, parse_redis_url
from filters.api import Clock
from filters.errors import ConfigError, PortError

KEEP_S: Final = 30.0  # between two looks at idle connections: balancers close them after minutes


def name_of(what: bytes, key: bytes) -> bytes:
    """Return the name in Redis of `what` (`answer`, `seen`, ...) belongs to the answer `key`."""
    return b"forebay:%b:{%b}" % (what, key)


class RedisClient:
    """Redis 7.0 or later, or Valkey: a server, what Sentinels watch over, or a cluster."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        watch: StoreWatch,
        *,
        timeout_s: float = 0.005,
        password: str = "",
        sentinel_username: str = "",
        sentinel_password: str = "",
        ca_file: str = "",
        reads_replicas: bool = False,
        lanes: int = LANES,
    ) -> None:
        """Connect to nothing yet; raise `ConfigError` for a `url` that is none of Redis.

        `timeout_s` bounds every `ask`, and `lanes` the connections to each server.
        """
        try:
            read = parse_redis_url(url)
        except ValueError as error:
            raise ConfigError("forebay.store.redis.url", str(error)) from None
        tls = open_tls(ca_file) if read.tls else None
        clustered = read.kind is Kind.CLUSTER
        dial = Dial(read.username, password, read.db, tls, clustered and reads_replicas)
        search: Search | None
        match read.kind:
            case Kind.ONE:
                search = None
            case Kind.SENTINEL:
                sentinel = Dial(sentinel_username, sentinel_password, tls=tls)
                search = partial(ask_sentinel, read.service, sentinel)
            case Kind.CLUSTER:
                search = partial(ask_cluster, dial)
        self._places: Final = RedisPlaces(
            read.servers,
            lambda at: RedisNode(at, dial, clock, budget_s=timeout_s, lanes=lanes),
            search=search,
            searched=lambda found: watch.store_searched("redis", found=found),
            asks_found=clustered,
            reads_replicas=reads_replicas,
        )
        self._clock: Final = clock
        self.watch: Final = watch
        self._timeout_s: Final = timeout_s
        self._keeping: asyncio.Task[None] | None = None

    @property
    def state(self) -> BreakerState:
        """Whether Redis is asked at all: the worst of its servers' states."""
        return self._places.state

    async def ask(
        self,
        operation: str,
        key: bytes,
        *commands: Command,
        reads: bool = False,
        over: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Return the reply to each command; raise `PortError` when it fails or is late.

        Every command is about a name of `name_of(..., key)`. They are sent together, one after
        the other, although others' may come between; even if the caller is cancelled, unless they
        only read (`reads`: a replica may answer, if those are to be asked). What becomes of those
        is counted as if it had waited, but one that is sent elsewhere is not followed; then `over`
        is called, whatever it was: commands that must come after them may be asked from there on.
        """
        started_ns = self._clock.monotonic_ns()
        limit_s = self._timeout_s
        node = self._places.serving(key, started_ns, reads=reads)
        if node is None:
            try:
                await self._places.known(limit_s)
            except asyncio.CancelledError:
                if not reads:
                    self._outlived(operation, started_ns, over, BYPASSED)
                raise
            node = self._places.serving(key, started_ns, reads=reads)
            limit_s = self._left_s(started_ns)
        outcome: Replies = BYPASSED
        if node is not None:
            left = None if reads else partial(self._outlived, operation, started_ns, over)
            outcome = await node.ask(commands, limit_s, left=left)
            if isinstance(outcome, AskError):
                outcome = await self._ask_another(outcome, node, commands, started_ns, left)
        accounted = self._accounted(operation, started_ns, outcome)
        if isinstance(accounted, PortError):
            raise accounted
        return accounted

    async def open(self, limit_s: float) -> bool:
        """Connect to every server, and stay connected: to connect may take longer than an answer.

        Wait `limit_s` at most; return whether each is connected by then.
        """
        if self._keeping is None:
            self._keeping = asyncio.ensure_future(self._keep_connected())
            self._places.connect()
        try:
            async with asyncio.timeout(limit_s):
                return await self._places.connected()
        except TimeoutError:
            return False

    async def _keep_connected(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self._places.connect()

    async def masters(self) -> list[RedisNode]:
        """Return every server that has keys of its own, none when they could not be found."""
        await self._places.known(self._timeout_s)
        return self._places.masters

    async def ask_at(self, node: RedisNode, operation: str, *commands: Command) -> list[Any]:
        """Return the replies of this server; raise `PortError` when it fails or is late."""
        outcome = await node.ask(commands, self._timeout_s)
        if isinstance(outcome, list):
            return outcome
        raise self._failure(operation, outcome)

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        if self._keeping is not None:
            self._keeping.cancel()
        await self._places.close()

    async def _ask_another(
        self,
        error: AskError,
        node: RedisNode,
        commands: tuple[Command, ...],
        started_ns: int,
        left: Left | None,
    ) -> Replies:
        """Ask the server that another one named, in the time that is left."""
        other = self._places.redirected(error, node)
        limit_s = self._left_s(started_ns)
        if other is None or limit_s <= 0:
            return error
        if isinstance(error, MovedError):
            return await other.ask(commands, limit_s, left=left)
        asking = [step for command in commands for step in (("ASKING",), command)]
        outcome = await other.ask(asking, limit_s, left=left)
        return outcome[1::2] if isinstance(outcome, list) else outcome

    def _left_s(self, started_ns: int) -> float:
        return self._timeout_s - (self._clock.monotonic_ns() - started_ns) / 1e9

    def _outlived(
        self,
        operation: str,
        started_ns: int,
        over: Callable[[], object] | None,
        outcome: Replies,
    ) -> None:
        """Count what became of an `ask` whose caller was cancelled, and tell who wants to know."""
        self._accounted(operation, started_ns, outcome)
        if over is not None:
            over()

    def _accounted(
        self, operation: str, started_ns: int, outcome: Replies
    ) -> list[Any] | PortError:
        """Count what became of an `ask`; return the replies, or what is to be raised."""
        if outcome is not BYPASSED and outcome is not FULL:
            elapsed_ns = self._clock.monotonic_ns() - started_ns
            self.watch.store_took("redis", operation, elapsed_ns)
        if isinstance(outcome, list):
            return outcome
        self._places.doubt()
        return self._failure(operation, outcome)

    def _failure(self, operation: str, outcome: Replies) -> PortError:
        if outcome is BYPASSED:
            self.watch.store_bypassed("redis", operation)
            return PortError("redis is bypassed: it failed moments ago")
        if outcome is FULL:
            self.watch.store_bypassed("redis", operation)
            return PortError("redis is bypassed: too many wait for it")
        self.watch.store_failed("redis", operation)
        late = f"no answer in {self._timeout_s * 1000:g} ms"
        reason = late if outcome is LATE else type(outcome).__name__
        return PortError(f"redis {operation}: {reason}")
