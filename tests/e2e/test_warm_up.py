"""A replica that has restarted is asked its prompts before a client's request goes there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.simulator import Simulator
from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.test_pick import EXAMPLE, KEY, MODEL, kill, know_all, ports
from tests.gateway import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT: Final = "openai.chat"
PROMPTS: Final = ["Why is the basin calm?", "Where does the water go?", "Who opens the gates?"]
WARM: Final = 'forebay_replica_warm_ups_total{outcome="warm",pool="full"}'


def warming(tree: dict[str, Any]) -> None:
    """Have replicas that have begun asked the prompts, and their share grow for ever."""
    pool = tree["node"]["metadata"]["forebay"]["pools"]["full"]
    pool["warm_up"] = {"prompts": PROMPTS, "slow_start": "1h"}
    pool["replicas"] = {"strategy": "least_load"}


@pytest.fixture
async def replicas() -> AsyncIterator[list[Simulator]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Simulator(names=[f"replica-{number}"], model=MODEL))
            for number in range(4)
        ]


@pytest.fixture
def gateway(gateways: Gateways, replicas: list[Simulator]) -> Iterator[Gateway]:
    with gateways.open(pools=ports(replicas), edit=warming, file=EXAMPLE) as gateway:
        know_all(gateway)
        yield gateway


def asked(replica: Simulator) -> list[str]:
    """Return what a replica was asked to say something about, in order; `client` for a client's."""
    found = []
    for one in replica.requests:
        if one.path == "/v1/chat/completions":
            own = one.headers.get("authorization") != f"Bearer {KEY}"
            found.append(json.loads(one.body)["messages"][0]["content"] if own else "client")
    return found


def count(gateway: Gateway, wanted: int) -> bool:
    return gateway.metrics().get(WARM, 0) >= wanted


async def test_a_replica_that_restarts_is_warm_before_it_serves(
    gateway: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """No client's request fails meanwhile, and of those behind it gets less than its share."""
    call = Caller(http, gateway.url, KEY)
    number = 0

    async def ask() -> None:
        nonlocal number
        number += 1
        reply = await call(ask_for(CHAT, f"Question {number}?", stream=True))
        assert 200 == reply.status

    while not count(gateway, 4):
        await ask()
    for replica in replicas:
        assert set(PROMPTS) <= set(asked(replica))
    gone = replicas[1]
    await kill(gone)
    avoided = 'forebay_replica_avoided{pool="full"}'
    while not gateway.metrics()[avoided]:
        await ask()
    async with Simulator(names=["replica-1"], model=MODEL, port=gone.port) as back:
        while not count(gateway, 5):
            await ask()
        assert sorted(PROMPTS) == sorted(asked(back)[: len(PROMPTS)])
        assert 1 == gateway.metrics()['forebay_replica_cold{pool="full"}']
        while "client" not in asked(back):
            await ask()
        mine = asked(back).count("client")
        for _ in range(40):
            await ask()
        assert asked(back).count("client") - mine < 10
