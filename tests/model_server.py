"""A model server that says what it is told to say, as far as a gateway asks one."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.web_server import end

PATIENCE_S = 60.0
PAGE = """\
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0"}} {kv_usage}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0
process_start_time_seconds {began_s}
"""


class ModelServer:
    """`async with ModelServer() as server:` listens at `server.address`."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.blocks = 1_000
        self.began_s = 1.0
        self.page: bytes | None = None
        """In the place of figures."""
        self.metrics_path = "/metrics"
        self.has_models = True
        self.answers = asyncio.Event()
        """Until it is set, nothing is answered but pages and the list of models."""
        self.answers.set()
        self.pages = asyncio.Event()
        """Likewise for pages."""
        self.pages.set()
        self.chats: list[dict[str, Any]] = []
        """What was asked of `/v1/chat/completions`."""
        self.statuses: deque[int] = deque()
        """Those of the next replies there; 200 behind them."""
        self.asked: Counter[str] = Counter()
        """How often each path was asked for."""
        self._chatted = asyncio.Event()
        self._runner: web.ServerRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(
            web.Server(self._take, handler_cancellation=True), shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await end(self._runner)

    async def chatted(self, count: int) -> None:
        """Wait until so much was asked of `/v1/chat/completions`."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.chats) < count:
                self._chatted.clear()
                await self._chatted.wait()

    async def _take(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked[request.path] += 1
        if request.path == self.metrics_path:
            await self.pages.wait()
            return web.Response(body=self.page or self._figures())
        if request.path == "/v1/models" and self.has_models:
            return web.json_response({"object": "list", "data": [{"id": "m"}]})
        if request.path == "/v1/completions":
            await self.answers.wait()
            return web.json_response({"choices": [{"text": "x", "finish_reason": "length"}]})
        if request.path == "/v1/chat/completions":
            self.chats.append(await request.json())
            self._chatted.set()
            await self.answers.wait()
            status = self.statuses.popleft() if self.statuses else 200
            return web.json_response({"choices": [{"message": {"content": "x"}}]}, status=status)
        return web.Response(status=404)

    def _figures(self) -> bytes:
        return PAGE.format(
            running=self.running,
            waiting=self.waiting,
            kv_usage=self.kv_usage,
            blocks=self.blocks,
            began_s=self.began_s,
        ).encode()
