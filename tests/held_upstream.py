"""A model server that answers when a test says so, so that nothing in a test has to be timed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from filters.dialects import DIALECTS
from filters.document import Document
from tests.exchanges import answer
from tests.web_server import end

DIALECT: Final = "openai.chat"
HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 60.0


class HeldUpstream:
    """Takes chat completions and holds each until `release`; streams are held after one event.

    A request with `x-held-status` is answered with that status then.
    """

    def __init__(self) -> None:
        self.port = 0
        self.text: Final = "The water has come to rest."
        self._release: Final = asyncio.Event()
        self._changed: Final = asyncio.Condition()
        self._arrived = 0
        self._left = 0
        server = web.Server(self._answer, handler_cancellation=True, access_log=None)
        self._runner: Final = web.ServerRunner(server, shutdown_timeout=0.1)

    @property
    def pools(self) -> dict[str, list[int]]:
        """It, as every pool."""
        return {"full": [self.port], "best_effort": [self.port]}

    @property
    def requests(self) -> int:
        """How many requests came so far."""
        return self._arrived

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, backlog=4096, port=0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await end(self._runner)

    def release(self) -> None:
        """Answer what waits and what comes."""
        self._release.set()

    async def arrived(self, count: int) -> None:
        """Wait until so many requests came; streams have sent their first event by then."""
        await self._wait_for(lambda: self._arrived, count, "arrived")

    async def left(self, count: int) -> None:
        """Wait until so many were given up by whoever asked."""
        await self._wait_for(lambda: self._left, count, "left")

    async def _wait_for(self, number: Callable[[], int], count: int, what: str) -> None:
        async with self._changed:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._changed.wait_for(lambda: number() >= count)
            except TimeoutError:
                raise AssertionError(f"{number()} of {count} {what}") from None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        reply = answer(DIALECT, self.text)
        try:
            if json.loads(body).get("stream"):
                return await self._stream(request, body, reply)
            await self._count(arrived=1)
            await self._release.wait()
        except asyncio.CancelledError:
            await self._count(left=1)
            raise
        status = int(request.headers.get("x-held-status", 200))
        return web.Response(status=status, body=reply, content_type="application/json")

    async def _stream(
        self, request: web.BaseRequest, body: bytes, reply: bytes
    ) -> web.StreamResponse:
        view = DIALECTS[DIALECT]
        kind, stream = view.replay(json.loads(reply), view.read(Document(body), request.path))
        first = stream.index(b"\n\n") + 2
        response = web.StreamResponse(headers={"content-type": kind})
        await response.prepare(request)
        await response.write(stream[:first])
        await self._count(arrived=1)
        await self._release.wait()
        await response.write(stream[first:])
        return response

    async def _count(self, arrived: int = 0, left: int = 0) -> None:
        async with self._changed:
            self._arrived += arrived
            self._left += left
            self._changed.notify_all()
