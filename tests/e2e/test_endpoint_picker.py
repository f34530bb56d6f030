"""Forebay picks for an Envoy that is set up as a gateway of the Inference Extension would be."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.replica_life import INSTANT, Model
from ext_proc.tools.simulator import Received, Simulator
from tests.calls import Ask, Caller, Reply, ask_for, streamed_text, text_of
from tests.e2e.conftest import Gateways
from tests.gateway import PATIENCE_S, SHIPPED, Edit, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLE: Final = SHIPPED.parent / "examples" / "endpoint-picker.yaml"
CHAT: Final = "openai.chat"
FULL: Final = "full"
KEY: Final = "key-of-the-test"  # Forebay's own requests have none
KNOWN: Final = 'forebay_replica_known{pool="full"}'
DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
MEGABYTE: Final = 1024 * 1024


@pytest.fixture
def arrived() -> asyncio.Event:
    """Tell that a replica has got a request."""
    return asyncio.Event()


@pytest.fixture
async def replicas(arrived: asyncio.Event) -> AsyncIterator[list[Simulator]]:
    """Run two replicas, each of which can be ended alone."""

    def make(number: int) -> Simulator:
        def take(received: Received) -> None:
            replica.requests.append(received)
            arrived.set()

        replica = Simulator(names=[f"replica-{number}"], model=Model(INSTANT), on_request=take)
        return replica

    replicas = [make(number) for number in range(2)]
    for replica in replicas:
        await replica.__aenter__()
    yield replicas
    for replica in replicas:
        await replica.__aexit__(None, None, None)


@pytest.fixture
def picker(gateways: Gateways, transport: Edit, replicas: list[Simulator]) -> Iterator[Gateway]:
    """Run the example before the two."""
    with opened(gateways, transport, replicas) as gateway:
        know_all(gateway)
        yield gateway


def opened(gateways: Gateways, edit: Edit, replicas: Sequence[Simulator], **more: Any) -> Any:
    def edited(tree: dict[str, Any]) -> None:
        edit(tree)
        pool(tree)["replicas"]["explore"] = 0

    ports = {FULL: [replica.port for replica in replicas]}
    return gateways.open(pools=ports, edit=edited, file=EXAMPLE, **more)


def pool(tree: dict[str, Any]) -> Any:
    return tree["node"]["metadata"]["forebay"]["pools"][FULL]


def know_all(gateway: Gateway) -> None:
    """Wait until Forebay knows the two."""
    until = time.monotonic() + PATIENCE_S
    while (count := gateway.metrics().get(KNOWN)) != 2:
        assert time.monotonic() < until, f"{count} are known"


def received(replicas: Sequence[Simulator]) -> list[Received]:
    """Return the test's requests."""
    return [
        one
        for replica in replicas
        for one in replica.requests
        if one.headers.get("authorization") == f"Bearer {KEY}"
    ]


def ports(reply: Reply, replicas: Sequence[Simulator]) -> int:
    """Return the port of the replica that answered."""
    name = reply.headers["x-simulated-replica"]
    (port,) = (one.port for one in replicas if one.replicas[0].name == name)
    return port


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_what_begins_alike_goes_to_the_same_replica(
    picker: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession, *, stream: bool
) -> None:
    """No replica is told that it was chosen, and the answer is whole."""
    caller = Caller(http, picker.url, KEY)
    homes: dict[str, set[int]] = {}
    for turn in range(2):
        for subject in ("rivers", "valleys", "deserts"):
            document = f"{subject} " * 2_000
            ask = ask_for(CHAT, f"{document}\n\nQuestion {turn}?", stream=stream)
            reply = await caller(ask)
            assert 200 == reply.status
            said = streamed_text(CHAT, ask, reply) if stream else text_of(CHAT, reply.body)
            assert said.startswith("This is a simulated answer from m to")
            homes.setdefault(subject, set()).add(ports(reply, replicas))
    assert [1, 1, 1] == [len(ports_) for ports_ in homes.values()], homes
    told = {name for one in received(replicas) for name in one.headers}
    assert not any(name.startswith(("x-gateway", "x-forebay")) for name in told)


async def test_the_log_says_who_was_picked_and_that_it_ended(
    picker: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Under the profile of those who name none."""
    caller = Caller(http, picker.url, KEY)
    with picker.watch() as seen:
        reply = await caller(ask_for(CHAT, "Why is the river calm?", stream=True))
    (line,) = seen.lines
    assert f"127.0.0.1:{ports(reply, replicas)}" == line["notes"]["pick.replica"]
    assert ("default", "complete") == (line["profile"], line["outcome"])


@pytest.mark.parametrize("size", [0, 61_999, 62_000, 62_001, MEGABYTE, 8 * MEGABYTE])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
async def test_a_body_of_any_length_reaches_the_replica_as_it_was(
    picker: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession, size: int, path: str
) -> None:
    """A prompt, and what is none; a rewritten one is whole as well."""
    caller = Caller(http, picker.url, KEY)
    rng = random.Random(size)
    text = rng.randbytes(size // 2).hex()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    if size == 0:
        body = b""
    reply = await caller(Ask(path, body, CHAT), echo="1")
    assert reply.status in (200, 400, 404)
    (one,) = received(replicas)
    assert body == one.body


async def test_a_request_without_a_body_is_sent_to_a_replica(
    picker: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Such as for the list of models."""
    caller = Caller(http, picker.url, KEY)
    with picker.watch() as seen:
        reply = await caller.send("GET", "/v1/models")
    assert 200 == reply.status
    assert json.loads(reply.body)["data"]
    assert f"127.0.0.1:{ports(reply, replicas)}" == seen.notes["pick.replica"]


async def test_a_prompt_that_is_compressed_is_sent_on_as_it_is(
    picker: Gateway, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    caller = Caller(http, picker.url, KEY)
    body = gzip.compress(ask_for(CHAT, "Why?").body)
    await caller(Ask("/v1/chat/completions", body), headers={"content-encoding": "gzip"})
    (one,) = received(replicas)
    assert body == one.body


def hinted(value: Any) -> Edit:
    """Have a filter before ext_proc say who may be picked."""

    def edit(tree: dict[str, Any]) -> None:
        listeners = tree["static_resources"]["listeners"]
        manager = listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]
        config = {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": {SUBSET: value}}],
        }
        hint = {"name": "envoy.filters.http.set_metadata", "typed_config": config}
        manager["http_filters"].insert(0, hint)

    return edit


@pytest.mark.parametrize("form", ["list", "text"])
async def test_nobody_is_picked_outside_of_a_hint(
    gateways: Gateways, replicas: list[Simulator], http: aiohttp.ClientSession, form: str
) -> None:
    """A list of addresses, or one text."""
    name = f"127.0.0.1:{replicas[1].port}"
    hint = hinted([name, "10.0.0.1:80"] if form == "list" else f"{name},10.0.0.1:80")
    with opened(gateways, hint, replicas) as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        for number in range(8):
            reply = await caller(ask_for(CHAT, f"{number} is a number, why?", stream=number < 4))
            assert ("replica-1", 200) == (reply.headers["x-simulated-replica"], reply.status)


@pytest.mark.parametrize("hint", [[], ["10.0.0.1:80"], ""], ids=["empty", "unknown", "no text"])
async def test_without_anybody_to_pick_the_client_gets_503(
    gateways: Gateways, replicas: list[Simulator], http: aiohttp.ClientSession, hint: Any
) -> None:
    """In its provider's shape; requests that nobody reads get it too."""
    with opened(gateways, hinted(hint), replicas) as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        reply = await caller(ask_for(CHAT, "Why?"))
        assert 503 == reply.status
        assert "no model server is ready" in reply.json["error"]["message"]
        assert 503 == (await caller.send("GET", "/v1/models")).status
        assert [] == received(replicas)


async def test_the_second_replica_serves_where_the_first_is_gone(
    gateways: Gateways, transport: Edit, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Once both are gone, nobody is ready."""
    with opened(gateways, transport, replicas) as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        first = await caller(ask_for(CHAT, "river " * 1_000, stream=True))
        gone = next(one for one in replicas if one.port == ports(first, replicas))
        await gone.__aexit__(None, None, None)
        second = await caller(ask_for(CHAT, "river " * 1_000, stream=True))
        assert 200 == second.status
        assert gone.port != ports(second, replicas)
        for replica in replicas:
            if replica is not gone:
                await replica.__aexit__(None, None, None)
        until = time.monotonic() + PATIENCE_S
        while (reply := await caller(ask_for(CHAT, "Why?"))).status != 503 or (
            b"no model server is ready" not in reply.body
        ):
            assert time.monotonic() < until, reply


async def test_a_full_pool_asks_to_be_asked_again(
    gateways: Gateways,
    transport: Edit,
    replicas: list[Simulator],
    http: aiohttp.ClientSession,
    arrived: asyncio.Event,
) -> None:
    """With 429 and when; what nobody reads is served all the same."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        # One request that has not begun is too much for the two.
        pool(tree)["replicas"]["full"] = {"queue": 0.4, "retry_after": "1500ms"}

    with opened(gateways, edit, replicas) as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        held = asyncio.create_task(caller(ask_for(CHAT, "Why?"), delay="600"))
        async with asyncio.timeout(PATIENCE_S):
            await arrived.wait()
        reply = await caller(ask_for(CHAT, "And why not?"))
        assert (429, "2") == (reply.status, reply.headers["retry-after"])
        assert "ask again in 2 s" in reply.json["error"]["message"]
        assert 200 == (await caller.send("GET", "/v1/models")).status
        held.cancel()
        until = time.monotonic() + PATIENCE_S
        while 200 != (await caller(ask_for(CHAT, "And why not?"))).status:
            assert time.monotonic() < until


async def test_a_client_cannot_choose(
    gateways: Gateways, transport: Edit, replicas: list[Simulator], http: aiohttp.ClientSession
) -> None:
    """Also where the gateway goes by the header, and takes none of them off."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        resources = tree["static_resources"]
        manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        del manager["early_header_mutation_extensions"]
        (host,) = manager["route_config"]["virtual_hosts"]
        del host["request_headers_to_remove"]
        (cluster,) = (one for one in resources["clusters"] if one["name"] == FULL)
        (policy,) = cluster["load_balancing_policy"]["policies"]
        config = policy["typed_extension_config"]["typed_config"]
        config["override_host_sources"] = [{"header": DESTINATION}]

    with opened(gateways, edit, replicas) as gateway:
        know_all(gateway)
        caller = Caller(http, gateway.url, KEY)
        for number in range(6):
            forged = {DESTINATION: f"127.0.0.1:{replicas[number % 2].port}"}
            with gateway.watch() as seen:
                ask = ask_for(CHAT, f"river {number % 3} " * 500 + f"number {number}?")
                reply = await caller(ask, headers=forged)
            assert f"127.0.0.1:{ports(reply, replicas)}" == seen.notes["pick.replica"]
            asked = f"number {number}?".encode()
            (one,) = (one for one in received(replicas) if asked in one.body)
            told = one.headers[DESTINATION]
            assert seen.notes["pick.replica"] == told.partition(",")[0]
