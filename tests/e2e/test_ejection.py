"""Envoy leaves a replica alone that fails, where Forebay does not pick."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.failing_upstream import FailingUpstream, ports_of
from tests.gateway import SHIPPED, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLE: Final = SHIPPED.parent / "examples" / "replicas.yaml"
CHAT: Final = "openai.chat"
DETECTION: Final = "cluster.full.outlier_detection"


def soon(tree: dict[str, Any]) -> None:
    """Have a replica that was left alone asked again within a moment."""
    (full,) = (one for one in tree["static_resources"]["clusters"] if one["name"] == "full")
    full["outlier_detection"] |= {"interval": "0.05s", "base_ejection_time": "0.05s"}


@pytest.fixture
async def replicas() -> AsyncIterator[list[FailingUpstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FailingUpstream()) for _ in range(4)]


@pytest.fixture
def alone(gateways: Gateways, replicas: list[FailingUpstream]) -> Iterator[Gateway]:
    """Run Envoy before the four, without Forebay."""
    pools = ports_of(full=replicas)
    with gateways.open(pools=pools, server=False, file=EXAMPLE) as gateway:
        yield gateway


async def status(gateway: Gateway, http: aiohttp.ClientSession) -> int:
    """Ask once."""
    return (await Caller(http, gateway.url)(ask_for(CHAT, "Why is the basin calm?"))).status


async def test_a_replica_that_dies_is_left_alone_and_no_client_notices(
    alone: Gateway, replicas: list[FailingUpstream], http: aiohttp.ClientSession
) -> None:
    """Whoever finds it gone is served by another one; after three of these nobody is sent there."""
    await replicas[0].__aexit__(None, None, None)
    statuses = set()
    while not alone.envoy_counter(f"{DETECTION}.ejections_active"):
        statuses.add(await status(alone, http))
    assert {200} == statuses
    assert 1 == alone.envoy_counter(
        f"{DETECTION}.ejections_enforced_consecutive_local_origin_failure"
    )


async def test_a_replica_that_comes_back_is_asked_again(
    gateways: Gateways, replicas: list[FailingUpstream], http: aiohttp.ClientSession
) -> None:
    """At the address of before."""
    pools = ports_of(full=replicas)
    with gateways.open(pools=pools, server=False, file=EXAMPLE, edit=soon) as gateway:
        await replicas[0].__aexit__(None, None, None)
        while not gateway.envoy_counter(f"{DETECTION}.ejections_enforced_total"):
            assert 200 == await status(gateway, http)
        async with FailingUpstream(port=replicas[0].port) as back:
            while not back.requests:
                assert 200 == await status(gateway, http)


async def test_a_replica_that_says_it_is_not_ready_is_left_alone(
    alone: Gateway, replicas: list[FailingUpstream], http: aiohttp.ClientSession
) -> None:
    """Five times in a row; its clients are told, for it may have begun to answer."""
    replicas[0].always = 503
    statuses = []
    while not alone.envoy_counter(f"{DETECTION}.ejections_active"):
        statuses.append(await status(alone, http))
    assert 5 == statuses.count(503) == replicas[0].requests


async def test_errors_that_may_speak_of_prompts_are_borne(
    alone: Gateway, replicas: list[FailingUpstream], http: aiohttp.ClientSession
) -> None:
    """A prompt that breaks a server would otherwise take one after the other out of service."""
    replicas[0].always = 500
    while replicas[0].requests < 20:
        await status(alone, http)
    assert 0 == alone.envoy_counter(f"{DETECTION}.ejections_enforced_total")
