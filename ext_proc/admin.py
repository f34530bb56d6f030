"""Tell Prometheus and Kubernetes how this process is, and its operator what is in its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ext_proc.cache_desk import CacheDesk
from ext_proc.transport.address import close

MOST_BODY_BYTES: Final = 4096  # the longest question is a name and sixteen digits


class Admin:
    """Serves `/metrics`, `/healthz` and `/readyz` over HTTP, and `/cache/` to this machine.

    `why_not_ready` returns why no requests should come, empty when they should.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        why_not_ready: Callable[[], str],
        settle: Callable[[], None] = lambda: None,
        cache: CacheDesk | None = None,
    ) -> None:
        """Serve `registry`, in which `settle` puts what is still to be counted."""
        self._host: Final = host
        self._port: Final = port
        self._registry: Final = registry
        self._why_not_ready: Final = why_not_ready
        self._settle: Final = settle
        application = web.Application(client_max_size=MOST_BODY_BYTES)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._live)
        application.router.add_get("/readyz", self._ready)
        if cache is not None:
            cache.add_to(application)
        self._runner: Final = web.AppRunner(application, access_log=None, handle_signals=False)
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen; raise `OSError` when the address cannot be had."""
        await self._runner.setup()
        assert self._runner.server is not None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._runner.server, self._host, self._port
            )
        except OSError:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Close the listener and what is open."""
        if self._server is not None:
            await close(self._server)
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(",".join(request.headers.getall("accept", [])))
        self._settle()
        # Thousands of series take tens of milliseconds, which no request should wait for.
        body = await asyncio.to_thread(encode, self._registry)
        return web.Response(body=body, headers={"content-type": content_type})

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, _: web.Request) -> web.Response:
        if reason := self._why_not_ready():
            return web.json_response({"status": "not ready", "reason": reason}, status=503)
        return web.json_response({"status": "ready"})
