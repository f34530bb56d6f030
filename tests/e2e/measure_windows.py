"""Print how a stream runs beside one that nobody reads, with Envoy's default windows and with ours.

    python -m tests.e2e.measure_windows

A stream of 80 events a second beside one of 50,000 tokens at full speed whose client stands still,
on one HTTP/2 connection: the gaps of the first, and what Envoy took in of the second.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, Final

from tests.e2e.by_hand import Asked, ByHand
from tests.e2e.conftest import Gateways
from tests.e2e.http2_client import STREAM_WINDOW_BYTES, Http2Client
from tests.e2e.test_windows import (
    EDITS,
    END,
    FASTEST,
    PACES,
    PASSES,
    SERVER,
    WATCHES,
    WHOLE,
    asking,
    stream,
    tokens,
)
from tests.gateway import POOLS

EVENTS: Final = 400
RATE: Final = 80
TAKEN: Final = "cluster.full.upstream_cx_rx_bytes_total"


async def paced(asked: Asked) -> None:
    """Send an event at a time, as a model does."""
    await asked.head("text/event-stream")
    for number in range(EVENTS):
        await asked.chunk(tokens(number).partition(b"\n\n")[0] + b"\n\n")
        await asyncio.sleep(1 / RATE)
    await asked.chunk(END)
    await asked.end()


async def measure(profile: str, *, defaults: bool) -> None:
    """Run the two streams and print what came of them."""

    def edit(tree: dict[str, Any]) -> None:
        cache = {"any_temperature": True, "admit_after": 1}
        profiles = tree["node"]["metadata"]["forebay"]["profiles"]
        profiles |= {
            PASSES: {},
            WATCHES: {"cache": cache},
            EDITS: {"edit": {}},
            PACES: {"pace": {"rate": FASTEST, "fast": FASTEST, "adapt": False, "most": 1_000}},
        }
        for cluster in tree["static_resources"]["clusters"] if defaults else ():
            cluster.pop("per_connection_buffer_limit_bytes", None)
            if cluster["name"] == "forebay":
                (options,) = cluster["typed_extension_protocol_options"].values()
                options["explicit_http_config"] = {"http2_protocol_options": {}}

    with socket.create_server(("127.0.0.1", 0)) as listening:
        pools = {name: [listening.getsockname()[1]] for name in POOLS}
        with Gateways([]).open(pools=pools, edit=edit, program=SERVER) as gateway:
            async with ByHand(listening) as by_hand, Http2Client(gateway.port) as client:
                slow = await client.ask(asking("slow"), profile, reads=False)
                upstream = [asyncio.create_task(stream(await by_hand.asked()))]
                await client.until(lambda: STREAM_WINDOW_BYTES == len(slow.body))
                fast = await client.ask(asking("fast"), profile, reads=True)
                upstream.append(asyncio.create_task(paced(await by_hand.asked())))
                gaps: list[float] = []
                size, last = 0, 0.0
                while not fast.ended:
                    seen = size
                    await client.until(lambda: len(fast.body) > seen or fast.ended)  # noqa: B023
                    at = time.perf_counter()
                    gaps += [at - last] if last else []
                    size, last = len(fast.body), at
                taken = gateway.envoy_counter(TAKEN) - len(fast.body)
                for task in upstream:
                    task.cancel()
    gaps.sort()
    print(
        f"{profile:9} {'default windows' if defaults else 'as shipped':16}",
        f"median {gaps[len(gaps) // 2] * 1e3:5.1f} ms",
        f"P99 {gaps[len(gaps) * 99 // 100] * 1e3:5.1f} ms, longest {gaps[-1] * 1e3:5.1f} ms;",
        f"{taken / 1e6:.2f} of {len(WHOLE) / 1e6:.2f} MB taken in",
    )


if __name__ == "__main__":
    for each in (PASSES, WATCHES, EDITS, PACES):
        for defaults in (True, False):
            asyncio.run(measure(each, defaults=defaults))
