"""The transport over an HTTP/2 server of our own, as light as the work. Its rules: `http2`."""

from __future__ import annotations

import asyncio
import traceback
from functools import partial
from typing import Any, Final, Protocol

from ext_proc.transport import ENVELOPE_BYTES, Handler
from ext_proc.transport.address import EXT_PROC, HEALTH_NAMES, Bound, bind, close
from ext_proc.transport.health import Health
from ext_proc.transport.http2 import Connection, Limits, Reason
from ext_proc.transport.identity import Identity
from ext_proc.transport.link import Link

CUT_S: Final = 5.0  # for handlers to end after their streams were cut


class TransportWatch(Protocol):
    """Who is told of what should not happen."""

    def protocol_error(self, reason: Reason) -> None:
        """Count a stream or a connection that was given up."""


class NativeServer:
    """Listens on a Unix socket (`unix:/path`, `unix:@name`) or a TCP address (`host:port`)."""

    def __init__(
        self,
        handler: Handler,
        listen: str,
        *,
        most_message_bytes: int,
        watch: TransportWatch | None = None,
        service: str = EXT_PROC,
        method: str = "Process",
        identity: Identity | None = None,
    ) -> None:
        self.limits = Limits(most_message_bytes + ENVELOPE_BYTES)
        self._health: Final = Health(HEALTH_NAMES)
        self.routes: Final[dict[str, Handler]] = {
            f"/{service}/{method}": handler,
            **self._health.routes,
        }
        self.draining = False
        self.links: Final[set[Link]] = set()
        self._listen: Final = listen
        self._watch: Final = watch
        self._identity: Final = identity
        self._bound: Bound | None = None
        self._server: asyncio.Server | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def streams(self) -> int:
        """How many streams are open."""
        # The metrics are read in another thread: a set that grows meanwhile cannot be walked.
        return sum(len(link.core.streams) for link in (*self.links,))

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.links)

    async def start(self) -> None:
        """Bind and listen; a stale socket file is replaced, a live one is an `OSError`."""
        loop = asyncio.get_running_loop()
        context = self._identity and self._identity.context()
        self._bound = bind(self._listen)
        unix = self._listen.startswith("unix:")
        create: Any = loop.create_unix_server if unix else loop.create_server
        self._server = await create(lambda: Link(self), sock=self._bound.socket, ssl=context)
        self._health.report(serving=True)

    async def drain(self, bound_s: float) -> None:
        """Take no more streams and wait for the open ones.

        The socket file goes at once, so that a successor may take its place meanwhile.
        """
        self.draining = True
        if self._server is None or self._bound is None:
            return
        self._bound.leave()
        await close(self._server)
        self._health.report(serving=False)
        self._end(Connection.drain)
        if not await self._ended(bound_s):
            self._end(Connection.cut)
            if not await self._ended(CUT_S):
                for link in (*self.links,):
                    link.abort()

    def _end(self, how: Any) -> None:
        for link in (*self.links,):
            link.turn(partial(how, link.core))

    async def _ended(self, bound_s: float) -> bool:
        """Wait until no connection is left; return whether that came to be."""
        if self.links:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._empty,), timeout=bound_s)
        return not self.links

    # --- What connections tell -------------------------------------------------------------------

    def count(self, reason: Reason) -> None:
        """Count what was given up."""
        if self._watch is not None:
            self._watch.protocol_error(reason)

    def broke(self, error: BaseException) -> None:
        """Count and tell of a bug of ours; the error's own text may quote a prompt."""
        self.count(Reason.BUG)
        where = traceback.extract_tb(error.__traceback__)[-1:]
        place = "".join(f" at {frame.filename}:{frame.lineno}" for frame in where)
        message = f"{type(error).__name__}{place}"
        asyncio.get_running_loop().call_exception_handler({"message": message})

    def leave(self, link: Link) -> None:
        """Forget a connection that is over, once its handlers are as well."""
        if link.core.working == 0:
            self.links.discard(link)
        if not self.links and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)
