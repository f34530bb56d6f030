"""Envoy and Forebay know the same replicas, wherever their addresses come from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.simulator import Simulator
from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.test_pick import EXAMPLE, FULL, KEY, KNOWN, MODEL, counted, ports, served_by
from tests.gateway import Gateway, get

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ASSIGNMENT: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@pytest.fixture
async def replicas() -> AsyncIterator[list[Simulator]]:
    """Run three replicas, each a simulator of its own."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(Simulator(names=[f"replica-{number}"], model=MODEL))
            for number in range(3)
        ]


def full_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster of the replicas."""
    cluster: dict[str, Any]
    (cluster,) = (one for one in tree["static_resources"]["clusters"] if one["name"] == FULL)
    return cluster


def addresses(replicas: Sequence[Simulator]) -> set[str]:
    return {f"127.0.0.1:{replica.port}" for replica in replicas}


def in_envoy(gateway: Gateway) -> set[str]:
    """Return the addresses in Envoy's cluster."""
    clusters = json.loads(get(f"{gateway.envoy_admin}/clusters?format=json"))["cluster_statuses"]
    (cluster,) = (one for one in clusters if one["name"] == FULL)
    places = (host["address"]["socket_address"] for host in cluster.get("host_statuses", ()))
    return {f"{place['address']}:{place['port_value']}" for place in places}


def in_forebay(gateway: Gateway) -> set[str]:
    """Return the addresses among which Forebay picks."""
    metrics = gateway.metrics()
    found = {
        name.partition('replica="')[2].partition('"')[0]
        for name in metrics
        if name.startswith(f'forebay_replica_state{{figure="requests",pool="{FULL}"')
    }
    assert metrics.get(KNOWN, 0) == len(found)
    return found


async def both_know(gateway: Gateway, replicas: Sequence[Simulator]) -> None:
    """Wait until Envoy and Forebay know these and no others."""
    for known in (in_envoy, in_forebay):
        while addresses(replicas) != await asyncio.to_thread(known, gateway):
            pass


def asker(gateway: Gateway, http: aiohttp.ClientSession) -> Callable[[str], Awaitable[str]]:
    """Return what asks a question and says which replica answered: the one that Forebay picked."""
    call = Caller(http, gateway.url, KEY)

    async def ask(question: str) -> str:
        with gateway.watch() as seen:
            reply = await call(ask_for("openai.chat", question, stream=True))
        assert "pick.served" not in seen.notes
        return f"{served_by(reply)} at {seen.notes['pick.replica']}"

    return ask


def listed(path: Path, replicas: Sequence[Simulator]) -> None:
    """Write the file that Envoy and Forebay watch, whole or not at all."""
    endpoints = [
        {
            "endpoint": {
                "address": {"socket_address": {"address": "127.0.0.1", "port_value": one.port}}
            }
        }
        for one in replicas
    ]
    assignment = {
        "@type": ASSIGNMENT,
        "cluster_name": FULL,
        "endpoints": [{"lb_endpoints": endpoints}],
    }
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"resources": [assignment]}))
    draft.replace(path)


async def test_a_replica_that_is_listed_is_used_and_one_that_is_not_is_left_alone(
    gateways: Gateways, replicas: list[Simulator], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Neither is started again as the file changes, and no client notices."""
    path = tmp_path / "full.json"
    listed(path, replicas[:2])

    def edit(tree: dict[str, Any]) -> None:
        cluster = full_of(tree)
        del cluster["load_assignment"]
        source = {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}
        cluster |= {"type": "EDS", "eds_cluster_config": {"eds_config": source}}

    with gateways.open(pools=ports(replicas), edit=edit, file=EXAMPLE) as gateway:
        await both_know(gateway, replicas[:2])
        ask = asker(gateway, http)
        for number in range(8):
            await ask(f"What happened on day {number}?")
        assert 0 == counted(replicas)["replica-2"]

        listed(path, replicas)
        await both_know(gateway, replicas)
        number = 8
        while f"replica-2 at 127.0.0.1:{replicas[2].port}" != await ask(f"And on day {number}?"):
            number += 1

        listed(path, replicas[1:])
        await both_know(gateway, replicas[1:])
        before = counted(replicas)
        for day in range(number + 1, number + 13):
            await ask(f"And on day {day}?")
        after = counted(replicas)
        assert before["replica-0"] == after["replica-0"]
        assert before.total() + 12 == after.total()


async def test_a_name_stands_for_all_that_it_resolves_to(
    gateways: Gateways, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Envoy and Forebay look it up each for itself, and Envoy goes where Forebay picked."""

    def edit(tree: dict[str, Any]) -> None:
        cluster = full_of(tree)
        # The replicas listen at 127.0.0.1 alone.
        cluster |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_ONLY"}
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            endpoint["endpoint"]["address"]["socket_address"]["address"] = "localhost"

    with gateways.open(pools=ports(replicas), edit=edit, file=EXAMPLE) as gateway:
        await both_know(gateway, replicas)
        ask = asker(gateway, http)
        wanted = {f"{one.replicas[0].name} at 127.0.0.1:{one.port}" for one in replicas}
        seen: set[str] = set()
        number = 0
        while seen < wanted:
            seen.add(await ask(f"What happened on day {number}?"))
            number += 1
        assert wanted == seen
