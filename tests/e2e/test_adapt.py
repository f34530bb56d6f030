"""A paced answer flows faster to a near client while its GPU has time, as Envoy and replicas tell.

The rate is read from the log line; no clock is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from tests.calls import ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import POOLS, Edit, Gateway
from tests.model_server import ModelServer
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
KNOWN: Final = 'forebay_replica_known{pool="full"}'
# More tokens than a frame may have: each lump is a frame by itself, a tenth of a second at least
# behind the one before, and with each the rate moves a tenth of its way or more.
LUMP: Final = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b" word" * 80)
SOME, ENOUGH = 10, 80
LOOK: Final = 10  # lumps, which take a second: within that the GPU is looked at
END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


class SpeakingServer(ModelServer):
    """Streams what it is told to, and says how busy its GPU is."""

    def __init__(self, gpu_percent: int | None) -> None:
        super().__init__()
        self.tell(gpu_percent)
        self.says: Final[asyncio.Queue[bytes]] = asyncio.Queue()
        """Chunks of the answer; the empty one ends it."""
        self.heads: Final[list[Mapping[str, str]]] = []

    def tell(self, gpu_percent: int | None) -> None:
        """Say from here on that the GPU is so busy, or nothing of it."""
        told = b"" if gpu_percent is None else b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} %d\n' % gpu_percent
        self.page = self._figures() + told

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


def with_replicas(transport: Edit) -> Edit:
    """Have replicas asked how they are, which is done where some profile picks among them."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["pools"]["full"]["replicas"] = {}
        forebay["profiles"]["chat"]["pick"] = {}

    return edit


@contextlib.asynccontextmanager
async def speaking(
    gateways: Gateways, transport: Edit, gpu_percent: int | None
) -> AsyncIterator[tuple[SpeakingServer, Gateway]]:
    """Have a server behind a gateway that asks it how it is."""
    async with SpeakingServer(gpu_percent) as server:
        ports = {name: [server.port] for name in POOLS}
        with gateways.open(pools=ports, edit=with_replicas(transport)) as gateway:
            yield server, gateway


async def known(gateway: Gateway, name: str, value: float) -> None:
    """Wait until Forebay has a figure of its replica."""

    def there() -> bool:
        return value == gateway.metrics().get(name)

    await asyncio.to_thread(until, f"{name} is {value}", there)


@contextlib.asynccontextmanager
async def asked(http: aiohttp.ClientSession, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """Ask for a stream, and say that one is far away."""
    ask = ask_for(CHAT, "Why is the basin calm?", stream=True, temperature=1.0)
    headers = {"content-type": "application/json", "x-forebay-rtt": "5000"}
    async with http.post(f"{url}/p/chat{ask.path}", data=ask.body, headers=headers) as reply:
        yield reply


async def say(server: SpeakingServer, reply: aiohttp.ClientResponse, lumps: int) -> bytes:
    """Have lumps said, each when the client has the one before; return what it has."""
    got = b""
    for number in range(1, lumps + 1):
        server.says.put_nowait(LUMP)
        while len(got) < number * len(LUMP):
            got += await reply.content.readany()
    return got


async def end(server: SpeakingServer, reply: aiohttp.ClientResponse) -> bytes:
    """Have the answer end; return what the client gets of that."""
    server.says.put_nowait(END)
    server.says.put_nowait(b"")
    return await reply.read()


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
    async with speaking(gateways, transport, gpu_percent) as (server, gateway):
        await known(gateway, KNOWN, 1)
        with gateway.watch() as seen:
            async with asked(http, gateway.url) as reply:
                got = await say(server, reply, lumps) + await end(server, reply)
    assert LUMP * lumps + END == got
    assert rate == seen.notes["pace.rate"]
    assert not [name for name in server.heads[0] if name.lower().startswith("x-forebay")]


@pytest.mark.parametrize(("before", "after", "rate"), [(49, 90, 80.0), (90, 49, 120.0)])
async def test_a_gpu_that_gets_busy_in_the_midst_of_an_answer_slows_it(
    gateways: Gateways,
    http: aiohttp.ClientSession,
    transport: Edit,
    before: int,
    after: int,
    rate: float,
) -> None:
    """And one that rests lets it go faster, without another request."""
    async with speaking(gateways, transport, before) as (server, gateway):
        figure = f'forebay_replica_state{{figure="gpu",pool="full",replica="{server.address}"}}'
        await known(gateway, figure, before / 100)
        with gateway.watch() as seen:
            async with asked(http, gateway.url) as reply:
                got = await say(server, reply, SOME)
                server.tell(after)
                await known(gateway, figure, after / 100)
                got += await say(server, reply, LOOK + ENOUGH) + await end(server, reply)
    assert LUMP * (SOME + LOOK + ENOUGH) + END == got
    assert rate == seen.notes["pace.rate"]
