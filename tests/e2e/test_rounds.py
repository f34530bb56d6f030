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

from tests.calls import Ask, Caller, ask_for, streamed_text
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
LEAVE: Final = STREAMS * 3 // 10
FATES: Final = {"leaves": LEAVE, "broken": BROKEN, "stays": STREAMS - LEAVE - BROKEN}
TOKENS: Final = "20"  # of an answer
LATEST_S: Final = 2.0  # by then who leaves at some time has left, mostly the queue
# The upstream says all at once, in one chunk, of which nothing would wait as long as it is whole.
PACE: Final = {"rate": 5.0, "adapt": False, "every": "200ms", "chunks": "cut"}
HELD: Final = 'forebay_pace_held_seconds_count{profile="chat"}'
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


def asking(number: int) -> Ask:
    """Return what one of the clients asks."""
    return ask_for(CHAT, f"Why is basin {number} calm?", stream=True, temperature=1.0)


async def unpaced(http: aiohttp.ClientSession, upstream: Upstream) -> list[str]:
    """Return what the upstream says to each of them without a gateway: always the same."""
    call = Caller(http, upstream.url)
    asked = [asking(number) for number in range(STREAMS)]
    replies = await asyncio.gather(*(call(one, tokens=TOKENS) for one in asked))
    return [streamed_text(CHAT, one, reply) for one, reply in zip(asked, replies, strict=True)]


class Round:
    """One of them: three of ten clients leave at some time, one of twenty upstreams resets."""

    def __init__(
        self, gateway: Gateway, http: aiohttp.ClientSession, texts: Sequence[str], seed: int
    ) -> None:
        self._call: Final = Caller(http, gateway.url)
        self._texts: Final = texts
        self._rng: Final = random.Random(seed)
        self.ended: Final[Counter[str]] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*map(self._one, range(STREAMS)))

    async def _one(self, number: int) -> None:
        rng = self._rng
        fate = "leaves" if number % 10 < 3 else "broken" if number % 20 == 9 else "stays"
        question = asking(number)
        commands = {"delay": f"{rng.random() / 5:.3f}", "tokens": TOKENS}
        if fate == "broken":
            commands["close"] = "300"
        try:
            if fate == "leaves":
                # Never behind its reply, however fast that is; one of three when it has begun.
                some = int(rng.random() * len(self._texts[number]))
                wait_s = rng.random() * LATEST_S
                async with asyncio.timeout(wait_s if number % 10 else None):
                    await self._begin(question, commands, some)
                self.ended[fate] += 1
                return
            reply = await self._call(question, PROFILE, None, **commands)
        except (TimeoutError, aiohttp.ClientError):
            if fate == "stays":
                raise
            self.ended[fate] += 1
            return
        if fate == "stays":
            assert (200, False) == (reply.status, reply.cut)
            assert self._texts[number] == streamed_text(CHAT, question, reply)
        self.ended[fate] += 1

    async def _begin(self, question: Ask, commands: Mapping[str, str], some: int) -> None:
        """Read so many bytes of a reply, which are some of its events, and leave."""
        headers = {f"x-test-{name}": value for name, value in commands.items()}
        headers["content-type"] = "application/json"
        path = f"{self._call.url}/p/{PROFILE}{question.path}"
        async with self._call.http.post(path, data=question.body, headers=headers) as reply:
            assert 200 == reply.status
            await reply.content.readexactly(some)
            reply.close()


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
        forebay["profiles"][PROFILE]["pace"] = PACE
        forebay["server"]["most_exchanges"] = 2 * STREAMS

    told = []
    texts = await unpaced(http, upstream)
    with gateways.open(upstream=upstream, edit=edit, program=SERVER) as gateway:
        for number in range(ROUNDS):
            one = Round(gateway, http, texts, number)
            await one.run()
            assert FATES == one.ended
            await asyncio.to_thread(until, "rest", lambda: not open_ones(gateway))
            gateway.settle()
            told.append(held(gateway))
        assert ROUNDS * FATES["stays"] <= gateway.metrics()[HELD]
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
