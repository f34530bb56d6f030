"""Four replicas behind Envoy, on the example's file: who gets what, and what if one dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.replica_life import INSTANT, Model
from ext_proc.tools.simulator import Simulator
from filters.prefill_cost import PrefillCost
from tests.calls import Caller, Reply, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import PATIENCE_S, SHIPPED, Edit, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLE: Final = SHIPPED.parent / "examples" / "replicas.yaml"
UNASKING: Final = (str(Path(__file__).with_name("unasking_server.py")),)
CHAT: Final = "openai.chat"
FULL: Final = "full"
KEY: Final = "key-of-the-test"  # Forebay's own requests have none
MODEL: Final = Model(replace(INSTANT, prefill_s=1 / 50_000))
WORDS: Final = ("river", "valley", "meadow", "harbour", "mountain", "forest", "island", "desert")


def document(number: int) -> str:
    """Return some thousand words like no other document's."""
    rng = random.Random(number)
    sentences = (" ".join(rng.choices(WORDS, k=8)) + f" {rng.random():.6f}." for _ in range(160))
    return f"Document {number}. " + " ".join(sentences)


@pytest.fixture
async def replicas() -> AsyncIterator[list[Simulator]]:
    """Run four replicas, each of which can be ended alone."""
    replicas = [Simulator(names=[f"replica-{number}"], model=MODEL) for number in range(4)]
    for replica in replicas:
        await replica.__aenter__()
    yield replicas
    for replica in replicas:
        await kill(replica)


async def kill(replica: Simulator) -> None:
    """End a replica; its port refuses connections from then on."""
    await replica.__aexit__(None, None, None)


@pytest.fixture
def edit(transport: Edit) -> Edit:
    """Have no pick try another replica than the best."""

    def edited(tree: dict[str, Any]) -> None:
        transport(tree)
        tree["node"]["metadata"]["forebay"]["pools"][FULL]["replicas"]["explore"] = 0

    return edited


def ports(replicas: Sequence[Simulator]) -> dict[str, list[int]]:
    return {FULL: [replica.port for replica in replicas]}


@pytest.fixture
def picking(gateways: Gateways, edit: Edit, replicas: list[Simulator]) -> Iterator[Gateway]:
    """Run a gateway before the four."""
    with gateways.open(pools=ports(replicas), edit=edit, file=EXAMPLE) as gateway:
        yield gateway


def know_all(gateway: Gateway) -> None:
    """Wait until Forebay knows the four."""
    until = time.monotonic() + PATIENCE_S
    while (count := gateway.metrics().get(KNOWN)) != 4:
        assert time.monotonic() < until, f"{count} are known"


KNOWN: Final = 'forebay_replica_known{pool="full"}'


async def asked(caller: Caller, text: str, question: str = "Why?") -> Reply:
    """Ask about a text, whose answer comes as a stream."""
    return await caller(ask_for(CHAT, f"{text}\n\n{question}", stream=True))


def served_by(reply: Reply) -> str:
    assert 200 == reply.status
    return reply.headers["x-simulated-replica"]


def counted(replicas: Sequence[Simulator]) -> Counter[str]:
    """Return how many of the test's requests came to each replica."""
    return Counter(
        one.replica
        for replica in replicas
        for one in replica.requests
        if one.headers.get("authorization") == f"Bearer {KEY}"
    )


async def test_what_begins_alike_goes_to_the_same_replica(
    picking: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Others go to others, so that all have something to do; no upstream is told of the choice."""
    know_all(picking)
    caller = Caller(http, picking.url, KEY)
    homes: dict[int, list[str]] = {}
    for turn in range(3):
        for number in range(8):
            reply = await asked(caller, document(number), f"Question {turn}?")
            homes.setdefault(number, []).append(served_by(reply))
    assert [1] * 8 == [len(set(served)) for served in homes.values()], homes
    came = counted(replicas)
    assert {f"replica-{number}" for number in range(4)} == set(came)
    assert came == Counter(name for served in homes.values() for name in served)
    told = {name for replica in replicas for one in replica.requests for name in one.headers}
    assert not any(name.startswith(("x-gateway", "x-forebay")) for name in told)


async def test_the_log_says_who_was_picked_and_why(
    picking: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """The address is that of who served; the second request finds its beginning there."""
    know_all(picking)
    caller = Caller(http, picking.url, KEY)
    await asked(caller, document(0), "First?")
    with picking.watch() as seen:
        served = served_by(await asked(caller, document(0), "Second?"))
    (port,) = (replica.port for replica in replicas if replica.replicas[0].name == served)
    assert f"127.0.0.1:{port}" == seen.notes["pick.replica"]
    assert seen.notes["pick.why"].startswith(f"expected: 127.0.0.1:{port} ")
    assert seen.notes["pick.held"] > 1_000


def costs(gateway: Gateway) -> dict[str, float]:
    """Return what the metrics say that Forebay learned of the cost of a prefill."""
    return {
        name.partition('constant="')[2].partition('"')[0]: value
        for name, value in gateway.metrics().items()
        if name.startswith("forebay_replica_cost{") and f'pool="{FULL}"' in name
    }


async def test_what_a_prefill_costs_is_learned_and_shown(
    picking: Gateway, http: aiohttp.ClientSession
) -> None:
    """At first the constants are where they begin; first tokens move those that had a part."""
    know_all(picking)
    begin = dict(PrefillCost().constants())
    assert begin == costs(picking)
    caller = Caller(http, picking.url, KEY)
    for number in range(4):
        served_by(await asked(caller, document(number)))
    learned = costs(picking)
    assert begin.keys() == learned.keys()
    moved = {constant for constant, value in learned.items() if value != begin[constant]}
    assert moved >= {"token_s", "base_s"}


async def test_a_replica_that_is_gone_costs_no_request(
    gateways: Gateways, edit: Edit, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """The connection is refused, the second of the pick serves, and from then on is the first."""
    opened = gateways.open(pools=ports(replicas), edit=edit, file=EXAMPLE, program=UNASKING)
    with opened as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        first = served_by(await asked(caller, document(0), "First?"))
        (gone,) = (replica for replica in replicas if replica.replicas[0].name == first)
        await kill(gone)
        gone.requests.clear()
        with gateway.watch() as seen:
            second = served_by(await asked(caller, document(0), "Second?"))
        assert first != second
        assert f"127.0.0.1:{gone.port}" == seen.notes["pick.replica"]
        (port,) = (one.port for one in replicas if one.replicas[0].name == second)
        assert f"127.0.0.1:{port}" == seen.notes["pick.served"]
        assert second == served_by(await asked(caller, document(0), "Third?"))
        assert 1 == gateway.envoy_counter("cluster.full.upstream_rq_retry")
        assert Counter() == counted([gone])


async def test_no_request_fails_as_a_replica_dies(
    picking: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Of many at once, all are served by the three others."""
    know_all(picking)
    caller = Caller(http, picking.url, KEY)
    for number in range(8):
        served_by(await asked(caller, document(number), "Before?"))
    gone = replicas[0]
    await kill(gone)
    gone.requests.clear()
    replies = await asyncio.gather(
        *(asked(caller, document(number % 8), f"After {number}?") for number in range(40))
    )
    assert {f"replica-{number}" for number in (1, 2, 3)} == {served_by(reply) for reply in replies}
    assert Counter() == counted([gone])


async def test_without_forebay_envoy_chooses(
    picking: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """By the cluster's fallback policy: requests pass, and reach all."""
    know_all(picking)
    assert picking.server is not None
    picking.server.kill()
    caller = Caller(http, picking.url, KEY)
    replies = await asyncio.gather(
        *(asked(caller, document(0), f"Alone {number}?") for number in range(64))
    )
    assert {f"replica-{number}" for number in range(4)} == {served_by(reply) for reply in replies}
    assert {None} == {reply.headers.get("x-forebay-profile") for reply in replies}


async def test_a_changed_file_changes_who_is_picked(
    picking: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Forebay goes by what it says, without a restart; Envoy reads its part at its start only."""
    know_all(picking)
    caller = Caller(http, picking.url, KEY)
    (cluster,) = (
        one for one in picking.tree["static_resources"]["clusters"] if one["name"] == FULL
    )
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    del endpoints[:3]
    change(picking)
    for number in range(6):
        assert "replica-3" == served_by(await asked(caller, document(number)))

    del picking.tree["node"]["metadata"]["forebay"]["pools"][FULL]["replicas"]
    change(picking)
    with picking.watch() as seen:
        served_by(await asked(caller, document(7)))
    assert not any(note.startswith("pick") for note in seen.notes)
    assert KNOWN not in picking.metrics()


def change(gateway: Gateway) -> None:
    """Write the file anew and wait until it counts."""
    mark = gateway.server_log.mark()
    gateway.write()
    gateway.server_log.wait_for(lambda line: '"event":"settings applied"' in line, mark=mark)
