"""Requests wait for a pool until it takes them, and every way out gives place and slot back.

The model server answers when the test says so: how many it has is how many slots are held.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.simulator import Simulator
from filters.live_slots import FIRST
from tests.calls import Ask, Caller, Reply, ask_for, streamed_text
from tests.e2e.by_hand import Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.exchanges import answer
from tests.failing_upstream import FailingUpstream
from tests.gateway import POOLS, SHIPPED, Edit, Gateway, Upstream, waiting
from tests.held_upstream import HeldUpstream
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
LONG: Final = " ".join(f"Basin {number} lies at {number * 7} m." for number in range(1_500))
DEPTH: Final = 'forebay_queue_depth{class="%s",pool="full",queue="%s",tenant="%s"}'
IN_USE: Final = 'forebay_queue_in_use{pool="full",queue="%s"}'
SHED: Final = (
    'forebay_queue_shed_total{class="normal",pool="full",queue="fast",reason="%s",tenant="%s"}'
)
SLOTS: Final = 'forebay_queue_slots{pool="full"}'
EXAMPLE: Final = SHIPPED.parent / "examples" / "replicas.yaml"
CLASS: Final = "x-mesh-class"
CLASSES: Final = {"batch": "low", "faq": "normal", "chat": "high", "raw": "urgent"}
"""By profiles that Envoy's file has routes for."""
Asking = asyncio.Task[Reply]


def queued(
    queue: Mapping[str, Any],
    admit: Mapping[str, Any] | None = None,
    also: Edit | None = None,
    **server: Any,
) -> Edit:
    """Have work wait for the pool `full`, by other settings than the shipped ones."""

    def edit(tree: dict[str, Any]) -> None:
        if also is not None:
            also(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["pools"]["full"]["queue"] = dict(queue)
        forebay["profiles"]["default"]["admit"] = dict(admit or {})
        forebay["profiles"]["faq"] = {"base": "default", "admit": {"wait": "1s"}}
        forebay["server"].update(server)

    return edit


def short(number: int, *, stream: bool = False) -> Ask:
    return ask_for(CHAT, f"Why is basin {number} calm?", stream=stream)


def ask(call: Caller, asks: Sequence[Ask], profile: str = "") -> list[Asking]:
    return [asyncio.ensure_future(call(one, profile)) for one in asks]


def depth(metrics: Mapping[str, float], queue: str = "fast", name: str = "normal") -> float:
    return sum(metrics[DEPTH % (name, queue, tenant)] for tenant in ("named", "anonymous"))


async def until_waiting(gateway: Gateway, count: int, queue: str = "fast") -> None:
    """Wait until so many wait."""
    await asyncio.to_thread(
        until, f"{count} in the queue", lambda: count == depth(gateway.metrics(), queue)
    )


async def until_free(gateway: Gateway) -> None:
    """Wait until nobody waits and no slot is held."""

    def is_free() -> bool:
        metrics = gateway.metrics()
        names = [name for name in metrics if name.startswith(("forebay_queue_depth", IN_USE[:20]))]
        return bool(names) and not any(metrics[name] for name in names)

    await asyncio.to_thread(until, "free slots and empty queues", is_free)


async def served(gateway: Gateway, held: HeldUpstream, asking: Sequence[Asking]) -> None:
    """Let the model server answer: all get their answers, and no place or slot is held then."""
    held.release()
    replies = await asyncio.gather(*asking)
    assert [200] * len(asking) == [reply.status for reply in replies]
    await until_free(gateway)


async def test_short_requests_pass_long_ones(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """Long ones have a tenth of ten slots; short ones that came later have all that come free."""
    edit = queued({"slots": 10}, also=transport)
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        quick = ask(call, [short(number) for number in range(9)])
        await held.arrived(9)
        long = ask(call, [ask_for(CHAT, f"{LONG} Why, {number}?") for number in range(5)])
        await held.arrived(10)
        await until_waiting(gateway, 4, "bulk")
        later = ask(call, [short(number) for number in range(10, 13)])
        await until_waiting(gateway, 3)
        for task in quick[:3]:
            task.cancel()
        await held.arrived(13)
        metrics = gateway.metrics()
        assert (9, 1, 4) == (
            metrics[IN_USE % "fast"],
            metrics[IN_USE % "bulk"],
            depth(metrics, "bulk"),
        )
        await served(gateway, held, [*long, *quick[3:], *later])


async def test_long_requests_are_lent_what_short_ones_leave(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """One after the other, though nothing else happens meanwhile; a short one is served at once."""
    edit = queued({"slots": 10}, also=transport)
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        asking = ask(call, [short(0)])
        await held.arrived(1)
        asking += ask(call, [ask_for(CHAT, f"{LONG} Why, {number}?") for number in range(4)])
        await held.arrived(5)
        asking += ask(call, [short(1)])
        await held.arrived(6)
        assert 4 == gateway.metrics()[IN_USE % "bulk"]
        await served(gateway, held, asking)


async def test_who_finds_the_queue_full_is_told_when_to_ask_again(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream
) -> None:
    """429 in the provider's shape; one tenant cannot fill the queue, and another one still can."""
    edit = queued({"slots": 1, "length": 4, "share": 0.5})
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        one, two = (Caller(http, gateway.url, key=key) for key in ("one", "two"))
        asking = ask(one, [short(0)])
        await held.arrived(1)
        asking += ask(one, [short(1), short(2)])
        await until_waiting(gateway, 2)
        refused = await one(short(3))
        assert 429 == refused.status
        assert int(refused.headers["retry-after"]) >= 1
        assert "too many of your requests" in json.loads(refused.body)["error"]["message"]
        asking += ask(two, [short(4), short(5)])
        await until_waiting(gateway, 4)
        assert 1 == gateway.metrics()[SHED % ("share", "named")]
        # A third tenant takes the place of the last one of a tenant with two.
        asking += ask(Caller(http, gateway.url), [ask_for("anthropic.messages", "Why?")])
        (displaced,), _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert 429 == displaced.result().status
        held.release()
        replies = await asyncio.gather(*asking)
        assert [200] * 5 + [429] == sorted(reply.status for reply in replies)
        await until_free(gateway)


async def test_who_waited_as_long_as_it_may_is_told_when_to_ask_again(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """Also where that is longer than Envoy waits by itself: it is told before the wait begins."""

    def impatient(tree: dict[str, Any]) -> None:
        transport(tree)
        waiting(tree, "0.3s")

    edit = queued({"slots": 1}, also=impatient)
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        first = ask(call, [short(0)])
        await held.arrived(1)
        patient = ask(call, [short(1)])
        await until_waiting(gateway, 1)
        late = await call(short(2), "faq")  # takes a second: by then Envoy would have gone on
        assert 429 == late.status
        assert int(late.headers["retry-after"]) >= 1
        assert "no model server was free" in json.loads(late.body)["error"]["message"]
        assert (1, False) == (held.requests, patient[0].done())
        await served(gateway, held, [*first, *patient])


async def test_four_classes_of_profiles_are_served_by_their_urgency(
    gateways: Gateways, http: aiohttp.ClientSession, by_hand: ByHand, listening: socket.socket
) -> None:
    """Whoever came first; within a class, who came first."""

    def edit(tree: dict[str, Any]) -> None:
        queued({"slots": 1})(tree)
        profiles = tree["node"]["metadata"]["forebay"]["profiles"]
        for name, word in CLASSES.items():
            profiles[name] = {"admit": {"priority": word}}

    low, normal, high, urgent = CLASSES
    names = (low, low, normal, high, urgent, urgent, normal)
    with gateways.open(pools=pools_at(listening), edit=edit) as gateway:
        assert [0, 4, 5, 3, 2, 6, 1] == await in_turn(
            gateway, http, by_hand, [(name, {}) for name in names]
        )


async def test_who_has_the_class_that_the_mesh_names_comes_next(
    gateways: Gateways,
    http: aiohttp.ClientSession,
    by_hand: ByHand,
    listening: socket.socket,
    transport: Edit,
) -> None:
    """Past those of the profile's class, which came before it."""
    edit = queued({"slots": 1}, {"priority": "low", "header": CLASS}, also=transport)
    asked = [*[("", {})] * 4, ("", {CLASS: "urgent"})]
    with gateways.open(pools=pools_at(listening), edit=edit) as gateway:
        assert [0, 4, 1, 2, 3] == await in_turn(gateway, http, by_hand, asked)


async def test_a_class_claimed_in_another_way_changes_nothing(
    gateways: Gateways, http: aiohttp.ClientSession, by_hand: ByHand, listening: socket.socket
) -> None:
    """A header that is not the mesh's, a word that is no class, a name that Envoy takes off."""
    edit = queued({"slots": 1}, {"priority": "low", "header": CLASS})
    claims = [{"x-priority": "urgent"}, {CLASS: "first"}, {"x-forebay-class": "urgent"}]
    asked = [("", given) for given in ({}, {}, *claims)]
    with gateways.open(pools=pools_at(listening), edit=edit) as gateway:
        assert [0, 1, 2, 3, 4] == await in_turn(gateway, http, by_hand, asked)


async def test_where_no_header_is_trusted_none_names_a_class(
    gateways: Gateways, http: aiohttp.ClientSession, by_hand: ByHand, listening: socket.socket
) -> None:
    """As it is shipped."""
    asked = [("", {}), ("", {}), ("", {CLASS: "urgent"})]
    with gateways.open(pools=pools_at(listening), edit=queued({"slots": 1})) as gateway:
        assert [0, 1, 2] == await in_turn(gateway, http, by_hand, asked)


def pools_at(listening: socket.socket) -> dict[str, list[int]]:
    return {name: [listening.getsockname()[1]] for name in POOLS}


async def in_turn(
    gateway: Gateway,
    http: aiohttp.ClientSession,
    by_hand: ByHand,
    asked: Sequence[tuple[str, Mapping[str, str]]],
) -> list[int]:
    """Have all wait behind the first, each by its profile and headers; return who came when.

    One at a time is at the model server, and the next one comes when that is answered.
    """
    call = Caller(http, gateway.url)

    def ask_as(number: int) -> Asking:
        profile, given = asked[number]
        headers = {**given, "x-number": str(number)}
        return asyncio.ensure_future(call(short(number), profile, headers))

    asking = [ask_as(0)]
    at_model = await by_hand.asked()
    for number in range(1, len(asked)):
        asking.append(ask_as(number))
        await until_all_wait(gateway, number)
    order = [number_of(at_model)]
    while len(order) < len(asked):
        await at_model.whole("application/json", answer(CHAT, "It is."))
        at_model = await by_hand.asked()
        order.append(number_of(at_model))
    await at_model.whole("application/json", answer(CHAT, "It is."))
    assert [200] * len(asked) == [reply.status for reply in await asyncio.gather(*asking)]
    return order


def number_of(asked: Asked) -> int:
    return int(asked.request.lower().partition(b"\r\nx-number: ")[2].partition(b"\r\n")[0])


async def until_all_wait(gateway: Gateway, count: int) -> None:
    """Wait until so many wait, of whatever class."""

    def waits() -> bool:
        metrics = gateway.metrics()
        names = (name for name in metrics if name.startswith("forebay_queue_depth"))
        return count == sum(metrics[name] for name in names)

    await asyncio.to_thread(until, f"{count} that wait", waits)


async def test_clients_that_leave_the_queue_free_their_places(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """At once, though nobody is served meanwhile; who holds a slot frees that."""
    edit = queued({"slots": 2}, also=transport)
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        holding = ask(call, [short(0), short(1, stream=True)])
        await held.arrived(2)
        asking = ask(call, [short(number, stream=number % 2 == 1) for number in range(2, 12)])
        await until_waiting(gateway, 10)
        for task in asking[:7]:
            task.cancel()
        await until_waiting(gateway, 3)
        assert 2 == gateway.metrics()[IN_USE % "fast"]
        for task in holding:
            task.cancel()
        await held.arrived(4)
        await until_waiting(gateway, 1)
        await served(gateway, held, asking[7:])


async def test_an_instance_takes_only_so_many_at_once(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream, transport: Edit
) -> None:
    """What is over is told 503 by its head, in the provider's shape, and counted."""
    edit = queued({"slots": 10}, also=transport, most_exchanges=2)
    with gateways.open(pools=held.pools, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        holding = ask(call, [short(0), short(1)])
        await held.arrived(2)
        refused = await call(short(2))
        assert (503, "1") == (refused.status, refused.headers["retry-after"])
        assert "too many requests" in json.loads(refused.body)["error"]["message"]
        held.release()
        assert [200] * 2 == [reply.status for reply in await asyncio.gather(*holding)]
        gateway.settle()
        assert 1 == gateway.metrics()['forebay_crowded_total{profile="default"}']
        assert 200 == (await call(short(3))).status


async def test_who_sends_only_heads_keeps_nobody_out(
    gateways: Gateways, http: aiohttp.ClientSession, upstream: Upstream, transport: Edit
) -> None:
    """More of them than there are places; and Envoy ends them if no body comes in time."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        tree["node"]["metadata"]["forebay"]["server"]["most_exchanges"] = 2
        for manager in managers(tree):
            manager["request_timeout"] = request_timeout

    asked = short(0)
    head = (
        f"POST /p/faq{asked.path} HTTP/1.1\r\nhost: gateway\r\n"
        f"content-type: application/json\r\ncontent-length: {len(asked.body)}\r\n\r\n"
    ).encode()
    request_timeout = "300s"
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        waiting = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(7)]
        for _, writer in waiting:
            writer.write(head)
        await asyncio.to_thread(
            until, "seven heads", lambda: 7 == gateway.metrics()["forebay_awaited"]
        )
        call = Caller(http, gateway.url)
        assert [200] * 5 == [(await call(short(number), "faq")).status for number in range(5)]
        for _, writer in waiting:
            writer.close()
            await writer.wait_closed()
        gateway.settle()
        assert 0 == gateway.metrics()["forebay_awaited"]
    request_timeout = "0.2s"
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head + asked.body[:20])
        assert b"408" == (await reader.readuntil(b"\r\n")).split()[1]
        writer.close()
        gateway.settle()
        assert 0 == gateway.metrics()["forebay_awaited"]


def managers(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of what takes clients' connections."""
    listeners = tree["static_resources"]["listeners"]
    (ingress,) = (one for one in listeners if one["name"] == "ingress")
    return [chain["filters"][0]["typed_config"] for chain in ingress["filter_chains"]]


async def test_a_changed_file_gives_those_who_wait_more_slots(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream
) -> None:
    """And lets all pass when the pool has no queue any more."""
    with gateways.open(pools=held.pools, edit=queued({"slots": 1})) as gateway:
        call = Caller(http, gateway.url)
        asking = ask(call, [short(number) for number in range(6)])
        await held.arrived(1)
        await until_waiting(gateway, 5)
        pool = gateway.tree["node"]["metadata"]["forebay"]["pools"]["full"]
        pool["queue"]["slots"] = 3
        gateway.write()
        await held.arrived(3)
        del pool["queue"]
        gateway.write()
        await held.arrived(6)
        held.release()
        assert [200] * 6 == [reply.status for reply in await asyncio.gather(*asking)]


async def test_whatever_becomes_of_a_thousand_nothing_is_left_over(
    gateways: Gateways, http: aiohttp.ClientSession, upstream: Upstream
) -> None:
    """Three of ten leave at some time, one of twenty is broken off; all others are complete."""
    rng = random.Random(7)
    edit = queued(
        {"slots": 100, "length": 1_000, "share": 1}, {"wait": "100s"}, most_exchanges=5_000
    )
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        call = Caller(http, gateway.url)
        ended: Counter[str] = Counter()

        async def one(number: int) -> None:
            fate = "leaves" if number % 10 < 3 else "broken" if number % 20 == 9 else "stays"
            question = short(number, stream=number % 2 == 0)
            commands = {"delay": f"{rng.random() / 5:.3f}", "tokens": "20"}
            if fate == "broken":
                commands["close"] = "30"
            asking = asyncio.ensure_future(call(question, "", None, **commands))
            if fate == "leaves":
                await asyncio.wait([asking], timeout=rng.random())
                if not asking.cancel():
                    fate = "stays"
            try:
                reply = await asking
            except (asyncio.CancelledError, aiohttp.ClientError):
                if fate == "stays":
                    raise
                ended[fate] += 1
                return
            if fate == "stays":
                assert (200, False) == (reply.status, reply.cut)
                if number % 2 == 0:
                    assert streamed_text(CHAT, question, reply)
            ended[fate] += 1

        await asyncio.gather(*map(one, range(1_000)))
        assert 1_000 == ended.total()
        assert 50 == ended["broken"]
        assert ended["leaves"] > 0
        await until_free(gateway)
        gateway.settle()
        assert 0 == gateway.metrics()["forebay_in_flight"]


async def test_slots_follow_how_many_replicas_there_are(
    gateways: Gateways, http: aiohttp.ClientSession, transport: Edit
) -> None:
    """Not the constant: each that speaks adds what it takes, one that is gone takes it away."""

    def edit(tree: dict[str, Any]) -> None:
        queued({"slots": 3}, also=transport)(tree)

    stays, goes = (Simulator(names=[f"replica-{number}"]) for number in range(2))
    async with stays, contextlib.AsyncExitStack() as running:
        await running.enter_async_context(goes)
        ports = {"full": [stays.port, goes.port]}
        with gateways.open(pools=ports, edit=edit, file=EXAMPLE) as gateway:
            await until_slots(gateway, 2 * FIRST)
            call = Caller(http, gateway.url)
            replies = await asyncio.gather(*(call(short(number)) for number in range(50)))
            assert [200] * 50 == [reply.status for reply in replies]
            await until_free(gateway)
            before = gateway.metrics()[SLOTS]
            await running.aclose()
            await asyncio.to_thread(until, "fewer", lambda: gateway.metrics()[SLOTS] < before)


async def until_slots(gateway: Gateway, count: int) -> None:
    await asyncio.to_thread(until, "slots", lambda: count == gateway.metrics()[SLOTS])


async def test_upstreams_that_fail_give_their_slots_back(
    gateways: Gateways, http: aiohttp.ClientSession
) -> None:
    """An error's status, or a connection that is reset."""
    async with FailingUpstream(always=500) as failing:
        ports = {"full": [failing.port], "best_effort": [failing.port]}
        with gateways.open(pools=ports, edit=queued({"slots": 2})) as gateway:
            call = Caller(http, gateway.url)
            replies = await asyncio.gather(*(call(short(number)) for number in range(9)))
            assert [500] * 9 == [reply.status for reply in replies]
            await until_free(gateway)
