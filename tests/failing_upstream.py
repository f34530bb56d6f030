"""A model server that fails as a test says: with a status, with silence, by breaking off."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from enum import Enum
from types import TracebackType
from typing import Final, Self, TypeAlias

from aiohttp import web

from filters.dialects import DIALECTS
from filters.document import Document
from tests.exchanges import answer
from tests.web_server import end

DIALECT: Final = "openai.chat"
HOST: Final = "127.0.0.1"
TEXT: Final = "The water has come to rest."


class Failure(Enum):
    """What becomes of a request that gets no answer."""

    SILENT = "silent"
    """Nothing comes."""
    SILENT_STREAM = "silent stream"
    """A good head, and nothing behind it."""
    UNFINISHED = "unfinished"
    """A stream that ends like any other, without what ends an answer."""
    RESET = "reset"
    """The connection ends."""


Fate: TypeAlias = int | Failure


class FailingUpstream:
    """Takes chat completions; the next fates in `fates` come first, then `always`."""

    def __init__(
        self, *, always: Fate = 200, headers: dict[str, str] | None = None, port: int = 0
    ) -> None:
        self.port = port
        self.always: Fate = always
        self.fates: Final[deque[Fate]] = deque()
        self.bodies: Final[list[bytes]] = []
        """Of all requests, in the order they came."""
        self._headers: Final = headers or {}
        self._over: Final = asyncio.Event()
        server = web.Server(self._answer, handler_cancellation=True, access_log=None)
        self._runner: Final = web.ServerRunner(server, shutdown_timeout=0.1)

    @property
    def requests(self) -> int:
        """How many requests came so far."""
        return len(self.bodies)

    def next(self, *fates: Fate) -> None:
        """Say what becomes of the requests that come next."""
        self.fates.extend(fates)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port, backlog=1024).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        await end(self._runner)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.bodies.append(await request.content.read())
        fate = self.fates.popleft() if self.fates else self.always
        match fate:
            case Failure.RESET:
                assert request.transport is not None
                request.transport.abort()
            case Failure.SILENT_STREAM:
                stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await stream.prepare(request)
                await self._over.wait()
                return stream
            case int() if fate != 200:
                return web.json_response({"error": fate}, status=fate, headers=self._headers)
        if isinstance(fate, Failure) and fate is not Failure.UNFINISHED:
            await self._over.wait()
        dialect, reply, kind = DIALECTS[DIALECT], answer(DIALECT, TEXT), "application/json"
        prompt = dialect.read(Document(self.bodies[-1]), request.path)
        if prompt.stream:
            kind, reply = dialect.replay(json.loads(reply), prompt)
        if fate is Failure.UNFINISHED:
            reply = reply[: reply.index(b"\n\n") + 2]
        return web.Response(body=reply, headers={"content-type": kind})


def ports_of(**pools: FailingUpstream | Iterable[FailingUpstream]) -> dict[str, list[int]]:
    """Return the ports by pool, as a gateway takes them."""
    return {
        name: [each.port for each in ([one] if isinstance(one, FailingUpstream) else one)]
        for name, one in pools.items()
    }
