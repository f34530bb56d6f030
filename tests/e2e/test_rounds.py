"""A thousand queued and paced streams at once, ten times over: nothing is left, nothing grows."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, ask_for, streamed_text
from tests.e2e.conftest import Gateways
from tests.e2e.counting_server import EVENT
from tests.gateway import Edit, Gateway, Upstream
from tests.redis_server import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
SERVER: Final = (str(Path(__file__).with_name("counting_server.py")),)
STREAMS: Final = 1_000
ROUNDS: Final = 10
WARM: Final = 3  # rounds: by then all is loaded, and all bounded memory has what it will have
PROFILE: Final = "chat"
BROKEN: Final = STREAMS // 20
# Streams of the rounds after the warm-up: one thing left of each is seen, and one of ours that is
# left of those that broke off. As a rule not one is, and of Python's memory some fifty blocks.
MORE: Final = (ROUNDS - WARM) * STREAMS
MOST_OURS: Final = (ROUNDS - WARM) * BROKEN // 4
MOST_MORE: Final = {
    "objects": (ROUNDS - WARM) * BROKEN,  # a connection of the proxy's has some fifty
    "blocks": MORE // 7,  # of Python's memory, also what is no object to the collector
    # Bytes that C code has, without those between them that are free: with grpc.aio 150 of each
    # stream are left (grpc/grpc#43360 is a report that fits), with our own transport 6.
    "taken": MORE * 512,
    # Bytes of the process, also free ones that cannot be given back. With grpc.aio that is up to
    # 1,300 for each stream at first, and a third of that later.
    "anonymous": MORE * 4_096,
}
ACTIVE: Final = "cluster.forebay.upstream_rq_active"
REST: Final = (
    *("forebay_in_flight", "forebay_awaited", "forebay_pace_streams"),
    *("forebay_queue_depth", "forebay_queue_in_use"),
)


class Round:
    """One of them: three of ten clients leave at some time, one of twenty upstreams resets."""

    def __init__(self, gateway: Gateway, http: aiohttp.ClientSession, seed: int) -> None:
        self._call: Final = Caller(http, gateway.url)
        self._rng: Final = random.Random(seed)
        self.ended: Final[Counter[str]] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*map(self._one, range(STREAMS)))

    async def _one(self, number: int) -> None:
        rng = self._rng
        fate = "leaves" if number % 10 < 3 else "broken" if number % 20 == 9 else "stays"
        question = ask_for(CHAT, f"Why is basin {number} calm?", stream=True, temperature=1.0)
        commands = {"delay": f"{rng.random() / 5:.3f}", "tokens": "20"}
        if fate == "broken":
            commands["close"] = "300"
        asking = asyncio.ensure_future(self._call(question, PROFILE, None, **commands))
        if fate == "leaves":
            await asyncio.wait([asking], timeout=rng.random() * 2)
            if not asking.cancel():
                fate = "stays"
        try:
            reply = await asking
        except (asyncio.CancelledError, aiohttp.ClientError):
            if fate == "stays":
                raise
            self.ended[fate] += 1
            return
        if fate == "stays":
            assert (200, False) == (reply.status, reply.cut)
            assert streamed_text(CHAT, question, reply)
        self.ended[fate] += 1


def held(gateway: Gateway) -> dict[str, Any]:
    """Have the server say what it holds."""
    assert gateway.server is not None
    mark = gateway.server_log.mark()
    gateway.server.signal(signal.SIGUSR1)
    (line,) = gateway.server_log.wait_for(lambda line: EVENT in line, mark=mark)
    found: dict[str, Any] = json.loads(line)
    return found


def open_ones(gateway: Gateway) -> dict[str, float]:
    """Return what is not at rest."""
    return {
        name: value for name, value in gateway.metrics().items() if value and name.startswith(REST)
    }


async def test_ten_rounds_leave_nothing_behind(
    gateways: Gateways, http: aiohttp.ClientSession, upstream: Upstream, transport: Edit
) -> None:
    """Of whoever stayed, the stream is whole; counts return to zero; memory stays where it was."""

    def edit(tree: dict[str, Any]) -> None:
        transport(tree)
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["pools"]["full"]["queue"] = {"slots": 400, "length": STREAMS, "share": 1}
        forebay["profiles"]["default"]["admit"] = {"wait": "100s"}
        forebay["server"]["most_exchanges"] = 2 * STREAMS

    told = []
    with gateways.open(upstream=upstream, edit=edit, program=SERVER) as gateway:
        for number in range(ROUNDS):
            one = Round(gateway, http, number)
            await one.run()
            assert (STREAMS, BROKEN) == (one.ended.total(), one.ended["broken"])
            assert one.ended["leaves"] > 0
            await asyncio.to_thread(until, "rest", lambda: not open_ones(gateway))
            gateway.settle()
            told.append(held(gateway))
        # Forebay has closed its books before the proxy reads that a stream is over.
        await asyncio.to_thread(until, "no open stream", lambda: not gateway.envoy_counter(ACTIVE))
    assert {} == grown(told)


def grown(told: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return what the server holds more of than after the warm-up, where that says something.

    Of the last rounds the one with the least counts: another may have a connection more.
    """
    before, after = told[WARM - 1], told[-WARM:]
    more = {
        name: min(one["ours"].get(name, 0) for one in after) - before["ours"].get(name, 0)
        for name in {name for one in after for name in one["ours"]}
    }
    more |= {name: min(one[name] for one in after) - before[name] for name in MOST_MORE}
    return {name: count for name, count in more.items() if count >= MOST_MORE.get(name, MOST_OURS)}
