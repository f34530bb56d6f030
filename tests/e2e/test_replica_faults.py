"""Two replicas go on serving while a third one hangs, says nothing, or says only what it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import Final

import aiohttp
import pytest

from ext_proc.tools.replica_faults import Kind
from ext_proc.tools.replica_life import INSTANT, Model
from ext_proc.tools.simulator import Simulator
from tests.calls import Caller, Reply, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.test_pick import EXAMPLE, KEY, KNOWN, ports
from tests.gateway import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REPLICAS: Final = 3
ILL: Final = 0
"""The number of the one that fails."""
TOKENS: Final = "10"
MODEL: Final = Model(replace(INSTANT, step_s=0.01))
"""An answer takes so long that its replica is seen to run it."""
ASKED: Final = 40


@pytest.fixture
async def replicas() -> AsyncIterator[list[Simulator]]:
    """Run three replicas, each a simulator of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Simulator(names=[f"replica-{number}"], model=MODEL))
            for number in range(REPLICAS)
        ]


@pytest.fixture
def gateway(gateways: Gateways, replicas: list[Simulator]) -> Iterator[Gateway]:
    with gateways.open(pools=ports(replicas), file=EXAMPLE) as gateway:
        yield gateway


class Client:
    """Asks one question after the other, each another one; every answer has to be whole."""

    def __init__(self, call: Caller) -> None:
        self._call: Final = call
        self._numbers: Final = count()

    async def send(self) -> Reply:
        """Ask once, whatever comes of it."""
        question = f"What happened on day {next(self._numbers)}?"
        return await self._call(ask_for("openai.chat", question, stream=True), tokens=TOKENS)

    async def ask(self) -> str:
        """Ask once; return which replica answered."""
        reply = await self.send()
        assert 200 == reply.status
        assert not reply.cut
        assert reply.body.rstrip().endswith(b"data: [DONE]")
        return reply.headers["x-simulated-replica"]

    async def ask_until(self, name: str) -> None:
        """Ask until a replica answers."""
        while name != await self.ask():
            pass


async def commanded(http: aiohttp.ClientSession, method: str, ill: Simulator, kind: Kind) -> None:
    """Have a replica fail (POST), or do so no longer (DELETE)."""
    async with http.request(method, f"{ill.url}/simulator/faults/{kind}") as reply:
        assert 200 == reply.status


async def shown(gateway: Gateway, wanted: Callable[[dict[str, float]], bool]) -> bool:
    """Read the metrics once, while replicas of this process go on answering."""
    return wanted(await asyncio.to_thread(gateway.metrics))


def state(ill: Simulator, figure: str) -> str:
    """Return the name of what is known of a replica."""
    labels = f'figure="{figure}",pool="full",replica="127.0.0.1:{ill.port}"'
    return f"forebay_replica_state{{{labels}}}"


async def begun(gateway: Gateway, http: aiohttp.ClientSession) -> Client:
    """Wait until each replica is known, and has answered."""
    while not await shown(gateway, lambda metrics: REPLICAS == metrics.get(KNOWN)):
        pass
    client = Client(Caller(http, gateway.url, KEY))
    for number in range(REPLICAS):
        await client.ask_until(f"replica-{number}")
    return client


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.SILENT])
async def test_a_replica_that_answers_nobody_gets_no_more_clients_until_it_does(
    gateway: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession, kind: Kind
) -> None:
    """Only who waits there when the first token is late gets an error."""
    client = await begun(gateway, http)
    ill = replicas[ILL]
    await commanded(http, "POST", ill, kind)
    waiting = asyncio.create_task(client.send())
    while not await shown(gateway, lambda metrics: bool(metrics[state(ill, "avoided")])):
        if waiting.done():
            assert 200 == waiting.result().status
            waiting = asyncio.create_task(client.send())
    served = {await client.ask() for _ in range(ASKED)}
    assert served <= {"replica-1", "replica-2"}
    assert not waiting.done()

    await commanded(http, "DELETE", ill, kind)
    await client.ask_until("replica-0")
    lost = await waiting
    assert lost.cut or lost.status >= 500
    assert await shown(gateway, lambda metrics: not metrics[state(ill, "avoided")])


async def test_a_replica_with_frozen_metrics_goes_on_serving(
    gateway: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """What it says counts no more until it says something else; no client notices."""
    client = await begun(gateway, http)
    ill = replicas[ILL]
    says = state(ill, "running")
    await commanded(http, "POST", ill, Kind.FROZEN)
    while await shown(gateway, lambda metrics: says in metrics):
        await client.ask_until("replica-0")
    for _ in range(5):
        await client.ask_until("replica-0")
    assert await shown(gateway, lambda metrics: not metrics[state(ill, "avoided")])

    await commanded(http, "DELETE", ill, Kind.FROZEN)
    while not await shown(gateway, lambda metrics: says in metrics):
        await client.ask_until("replica-0")
