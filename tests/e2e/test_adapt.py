"""A paced answer flows faster to a near client while its GPU has time, as Envoy and replicas tell.

The rate is read from the log line; no clock is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from tests.calls import ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import POOLS, Edit
from tests.model_server import ModelServer
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
# More tokens than a frame may have: each lump is a frame by itself, a tenth of a second at least
# behind the one before, and with each the rate moves a tenth of its way or more.
LUMP: Final = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b" word" * 80)
SOME, ENOUGH = 10, 80
END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


class SpeakingServer(ModelServer):
    """Streams what it is told to, and says how busy its GPU is."""

    def __init__(self, gpu_percent: int | None) -> None:
        super().__init__()
        told = b"" if gpu_percent is None else b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} %d\n' % gpu_percent
        self.page = self._figures() + told
        self.says: Final[asyncio.Queue[bytes]] = asyncio.Queue()
        """Chunks of the answer; the empty one ends it."""
        self.heads: Final[list[Mapping[str, str]]] = []

    async def _take(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/v1/chat/completions":
            return await super()._take(request)
        await request.read()
        self.heads.append(request.headers)
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        while piece := await self.says.get():
            await stream.write(piece)
        return stream


@pytest.mark.parametrize(
    ("gpu_percent", "lumps", "rate"), [(49, ENOUGH, 120.0), (50, SOME, 80.0), (None, SOME, 80.0)]
)
async def test_the_rate_is_what_gpu_and_distance_allow(
    gateways: Gateways,
    http: aiohttp.ClientSession,
    transport: Edit,
    gpu_percent: int | None,
    lumps: int,
    rate: float,
) -> None:
    """Faster by and by. Envoy's word on the distance counts, not the client's."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["pools"]["full"]["replicas"] = {}
        forebay["profiles"]["chat"]["pick"] = {}  # else nobody asks replicas how they are

    async with SpeakingServer(gpu_percent) as server:
        ports = {name: [server.port] for name in POOLS}
        with gateways.open(pools=ports, edit=edit) as gateway:
            known = 'forebay_replica_known{pool="full"}'
            await asyncio.to_thread(until, "a replica", lambda: 1 == gateway.metrics().get(known))
            ask = ask_for(CHAT, "Why is the basin calm?", stream=True, temperature=1.0)
            headers = {"content-type": "application/json", "x-forebay-rtt": "5000"}
            got = b""
            with gateway.watch() as seen:
                server.says.put_nowait(LUMP)
                url = f"{gateway.url}/p/chat{ask.path}"
                async with http.post(url, data=ask.body, headers=headers) as reply:
                    for number in range(1, lumps + 1):
                        while len(got) < number * len(LUMP):
                            got += await reply.content.readany()
                        server.says.put_nowait(LUMP if number < lumps else END)
                    server.says.put_nowait(b"")
                    got += await reply.read()
        assert LUMP * lumps + END == got
        assert rate == seen.notes["pace.rate"]
        assert not [name for name in server.heads[0] if name.lower().startswith("x-forebay")]
