"""Know which Redis server has a key, and look again when it turns out to be another."""

from __future__ import annotations

import asyncio
import random
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from redis.exceptions import AskError, MovedError

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_node import RedisNode
from ext_proc.adapters.redis_search import SLOTS, Span
from ext_proc.redis_url import Address

GAP_S: Final = 0.5  # between two searches: a failover is found this much later at most
AGE_NS: Final = 60_000_000_000  # what is known is looked up again after this: replicas come and go
MOST_ASKED: Final = 5  # servers in one search; the next one asks others
MOST_SERVERS: Final = 1024  # Redis Cluster Specification: no more than about 1000

Search: TypeAlias = Callable[[Address], Awaitable[Sequence[Span]]]
"""Asks one server which servers there are; none when it is of no help."""


class Shard:
    """A master and who has a copy of what it has."""

    __slots__ = ("_replicas", "_turn", "master")

    def __init__(self, master: RedisNode, replicas: Sequence[RedisNode] = ()) -> None:
        self.master: Final = master
        self._replicas: Final = replicas
        self._turn = 0

    def reader(self, now_ns: int) -> RedisNode:
        """Return a replica, each in its turn, but none that is bypassed; else the master."""
        for _ in self._replicas:
            self._turn = (self._turn + 1) % len(self._replicas)
            if self._replicas[self._turn].may_ask(now_ns):
                return self._replicas[self._turn]
        return self.master


class RedisPlaces:
    """Which server has a key.

    `search` is asked of one server after the other when nothing is known yet, and when something
    known turned out wrong: never in anybody's way, one search at a time, `GAP_S` apart.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        node_at: Callable[[Address], RedisNode],
        *,
        search: Search | None = None,
        searched: Callable[[bool], None],
        asks_found: bool = False,
        reads_replicas: bool = False,
    ) -> None:
        """Know `servers`: the first has every key, unless there is a `search` to ask them.

        `searched` is told of every search whether it found anything; `asks_found` asks those that
        it found as well.
        """
        self._servers: Final = list(servers)
        self._node_at: Final = node_at
        self._search: Final = search
        self._searched: Final = searched
        self._asks_found: Final = asks_found
        self._reads_replicas: Final = reads_replicas
        self._found: list[Address] = []
        self._nodes: Final[dict[Address, RedisNode]] = {}
        self._shards: list[Shard | None] = [None] * SLOTS
        self._searching: asyncio.Task[None] | None = None
        self._retiring: Final[set[asyncio.Task[None]]] = set()
        self._next_search_s = 0.0
        self._old_at_ns = 0
        self._failed = False
        self._connects = False
        self._closed = False
        if search is None:
            self._shards = [Shard(self._node(servers[0]))] * SLOTS

    @property
    def state(self) -> BreakerState:
        """The worst state of any server; open when none could be found."""
        if self._failed and not self._nodes:
            return BreakerState.OPEN
        nodes = tuple(self._nodes.values())
        return max((node.state for node in nodes), default=BreakerState.CLOSED)

    @property
    def masters(self) -> list[RedisNode]:
        """Every server that has keys of its own."""
        return list(dict.fromkeys(shard.master for shard in self._shards if shard is not None))

    def connect(self) -> None:
        """Open connections to every server that is known, and from here on to those yet found."""
        self._connects = True
        if not self._nodes:
            self.doubt()
        for node in self._nodes.values():
            node.connect()

    async def connected(self) -> bool:
        """Wait until what `connect` began has ended; return whether every server is connected."""
        if self._searching is not None:
            await asyncio.wait((self._searching,))
        nodes = tuple(self._nodes.values())
        return bool(nodes) and all([await node.connected() for node in nodes])

    def serving(self, key: bytes, now_ns: int, *, reads: bool = False) -> RedisNode | None:
        """Return the server to ask about `key`, None when it is not known; one that `reads` only.

        The slot is that of a name with `{key}` in it: what stands there up to a closing brace.
        """
        if self._search is not None and now_ns >= self._old_at_ns:
            self._old_at_ns = now_ns + AGE_NS
            self.doubt()
        shard = self._shards[crc_hqx(key.partition(b"}")[0], 0) % SLOTS]
        if shard is None:
            return None
        return shard.reader(now_ns) if reads and self._reads_replicas else shard.master

    async def known(self, limit_s: float) -> None:
        """Wait for the first search, `limit_s` at most; for later ones nobody does."""
        self.doubt()
        if self._searching is not None and not self._nodes and not self._failed:
            await asyncio.wait((self._searching,), timeout=limit_s)

    def doubt(self) -> None:
        """Search as soon as that may be: something known is wrong."""
        if self._search is not None and self._searching is None and not self._closed:
            self._searching = asyncio.ensure_future(self._look(self._search))

    def redirected(self, error: AskError, by: RedisNode) -> RedisNode | None:
        """Return the server that one says to ask in its stead; for ever, if it `MOVED`."""
        if self._search is None or not 0 <= error.slot_id < SLOTS:
            return None
        # A server that does not know its own name leaves it out.
        address = (error.host or by.address[0], error.port)
        if address not in self._nodes and len(self._nodes) >= MOST_SERVERS:
            return None
        node = self._node(address)
        if isinstance(error, MovedError):
            self._shards[error.slot_id] = Shard(node)
            self.doubt()
        return node

    async def close(self) -> None:
        """Search no more and close every connection."""
        self._closed = True
        tasks = [*self._retiring, *([self._searching] if self._searching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self._nodes.values():
            await node.close()

    def _node(self, address: Address) -> RedisNode:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._node_at(address)
            if self._connects:
                node.connect()
        return node

    async def _look(self, search: Search) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._next_search_s - loop.time()))
            for address in self._to_ask():
                if (spans := await search(address)) and self._take(spans):
                    if address in self._servers:  # first the next time
                        self._servers.remove(address)
                        self._servers.insert(0, address)
                    self._failed = False
                    break
            else:
                self._failed = True
            self._searched(not self._failed)
        finally:
            self._next_search_s = loop.time() + GAP_S
            self._searching = None

    def _to_ask(self) -> list[Address]:
        """Return whom to ask, in an order that leaves those that do not answer to the end."""
        found = random.sample(self._found, len(self._found)) if self._asks_found else []
        addresses = list(dict.fromkeys([*found, *self._servers]))
        return sorted(addresses, key=self._is_unwell)[:MOST_ASKED]

    def _is_unwell(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return node is not None and node.state is not BreakerState.CLOSED

    def _take(self, spans: Sequence[Span]) -> bool:
        """Believe what was found; return whether that may be."""
        found = dict.fromkeys(at for span in spans for at in (span.master, *span.replicas))
        if len(found) > MOST_SERVERS:
            return False
        shards: list[Shard | None] = [None] * SLOTS
        of_master: dict[Address, Shard] = {}
        used = set(found) if self._reads_replicas else {span.master for span in spans}
        for first, last, master, replicas in spans:
            if (shard := of_master.get(master)) is None:
                copies = [self._node(at) for at in replicas] if self._reads_replicas else []
                shard = of_master[master] = Shard(self._node(master), copies)
            shards[first : last + 1] = [shard] * (last + 1 - first)
        self._shards = shards
        self._found = list(found)
        for address in self._nodes.keys() - used:
            task = asyncio.ensure_future(self._nodes.pop(address).retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return True
