"""A client that reads slowly keeps neither its neighbours waiting nor Envoy's memory.

Two streams of 50,000 tokens on one HTTP/2 connection, of which one does not read on. No clock is
asked: the other one's end comes while the first stands where its own window left it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.calls import Ask, ask_for
from tests.e2e.by_hand import Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.e2e.http2_client import STREAM_WINDOW_BYTES, Http2Client
from tests.gateway import POOLS, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SERVER: Final = (str(Path(__file__).with_name("editing_server.py")),)
PASSES, WATCHES, EDITS, PACES = "raw", "faq", "chat", "documents"
FASTEST: Final = 10_000  # tokens a second, so that a paced stream of this length takes five seconds
TOKENS: Final = 50_000
PIECE_TOKENS: Final = 50
END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
# What Envoy may have taken from the upstream of a stream that nobody reads, as the file has it: the
# listener's stream window (1 MiB), above which the upstream waits; a buffer of the upstream's
# connection (256 KiB); and where Forebay reads along, what is on its way there and back by then:
# windows, a queue and the buffers of both sockets. Two to three megabytes as a rule; nine on a busy
# machine with grpc.aio, whose windows grow. Without the windows it is more than 16.
_GROWS: Final = os.environ.get("FOREBAY_TEST_TRANSPORT") == "grpc"
MOST_HELD_BYTES: Final = (12 if _GROWS else 8) * 1024 * 1024
PADDING: Final = b"p" * 240  # so that a stream is longer than any window


def tokens(first: int) -> bytes:
    """Return the events of some tokens."""
    return b"".join(
        b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"system_fingerprint":"%b","choices":'
        b'[{"index":0,"delta":{"content":" word%d"},"finish_reason":null}]}\n\n' % (PADDING, number)
        for number in range(first, first + PIECE_TOKENS)
    )


async def stream(asked: Asked) -> None:
    """Send the whole stream, as fast as it is taken."""
    await asked.head("text/event-stream")
    for first in range(0, TOKENS, PIECE_TOKENS):
        await asked.chunk(tokens(first))
    await asked.chunk(END)
    await asked.end()


WHOLE: Final = b"".join(tokens(first) for first in range(0, TOKENS, PIECE_TOKENS)) + END


@pytest.fixture(scope="module")
def gateway(gateways: Gateways, listening: socket.socket) -> Iterator[Gateway]:
    """Run a gateway in front of an upstream that streams as fast as it can."""

    def edit(tree: dict[str, Any]) -> None:
        cache = {"any_temperature": True, "admit_after": 1}
        tree["node"]["metadata"]["forebay"]["profiles"] |= {
            PASSES: {},
            WATCHES: {"cache": cache},
            EDITS: {"edit": {}},
            PACES: {"pace": {"rate": FASTEST, "fast": FASTEST, "adapt": False, "most": 1_000}},
        }

    pools = {name: [listening.getsockname()[1]] for name in POOLS}
    with gateways.open(pools=pools, edit=edit, program=SERVER) as gateway:
        yield gateway


@pytest.mark.parametrize("profile", [PASSES, WATCHES, EDITS, PACES])
async def test_a_stream_that_nobody_reads_holds_up_no_other(
    gateway: Gateway, by_hand: ByHand, profile: str
) -> None:
    """The fast one comes whole while the slow one stands; read on, that one comes whole too.

    Of the slow one Envoy has taken no more from the upstream than it may hold: the rest waits
    there, and the upstream waits with it.
    """
    taken = "cluster.full.upstream_cx_rx_bytes_total"
    paused = "cluster.full.upstream_flow_control_paused_reading_total"
    before = gateway.envoy_counter(taken), gateway.envoy_counter(paused)
    async with Http2Client(gateway.port) as client, asyncio.TaskGroup() as upstream:
        slow = await client.ask(asking("slow"), profile, reads=False)
        upstream.create_task(stream(await by_hand.asked()))
        await client.until(lambda: STREAM_WINDOW_BYTES == len(slow.body))
        fast = await client.ask(asking("fast"), profile, reads=True)
        upstream.create_task(stream(await by_hand.asked()))
        await client.until(lambda: fast.ended)
        assert (WHOLE, 200) == (bytes(fast.body), fast.status)
        assert (STREAM_WINDOW_BYTES, False) == (len(slow.body), slow.ended)
        of_both = gateway.envoy_counter(taken) - before[0]
        held = of_both - len(WHOLE) - STREAM_WINDOW_BYTES
        assert held < MOST_HELD_BYTES
        assert before[1] < gateway.envoy_counter(paused)
        await client.go_on(slow)
        await client.until(lambda: slow.ended)
        assert WHOLE == bytes(slow.body)


def asking(name: str) -> Ask:
    return ask_for("openai.chat", f"Why is it {name}?", stream=True, temperature=1.0)
