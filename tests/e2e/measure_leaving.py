"""Print how soon the places of clients that leave a queue are free.

    python -m tests.e2e.measure_leaving

200 wait, through Envoy. They leave one after the other, and then all at once: then the time counts
from the first one's leaving. A place is free when the queue of the server has taken it back.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from ext_proc.cli import main
from filters.fair_queue import FairQueue
from filters.queue_order import State, Ticket
from tests.calls import ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import Edit, Gateway
from tests.held_upstream import HeldUpstream

WAITING: Final = 200
SERVER: Final = ("-m", "tests.e2e.measure_leaving")
LEFT: Final = "left the queue at "
DEPTH: Final = 'forebay_queue_depth{class="normal",pool="full",queue="fast",tenant="anonymous"}'
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def tell_who_leaves() -> None:
    """Have each queue write when a place came free."""
    leave = FairQueue.leave

    def told(queue: FairQueue, ticket: Ticket, now_s: float) -> None:
        waited = ticket.state is State.WAITING
        leave(queue, ticket, now_s)
        if waited:
            print(f"{LEFT}{time.monotonic_ns()}", flush=True)  # the same clock in every process

    FairQueue.leave = told  # type: ignore[assignment,method-assign]


def queued(transport: str) -> Edit:
    """Have all but one wait."""

    def edit(tree: dict[str, Any]) -> None:
        forebay = tree["node"]["metadata"]["forebay"]
        forebay["server"]["transport"] = transport
        forebay["pools"]["full"]["queue"] = {"slots": 1, "length": WAITING, "share": 1}
        forebay["profiles"]["default"]["admit"] = {"wait": "10m"}

    return edit


async def connect(gateway: Gateway, number: int) -> Connection:
    """Ask, and return the connection."""
    asked = ask_for("openai.chat", f"Why is basin {number} calm?")
    lines = (
        f"POST {asked.path} HTTP/1.1",
        "host: gateway",
        "content-type: application/json",
        f"content-length: {len(asked.body)}",
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write("\r\n".join((*lines, "", "")).encode() + asked.body)
    return reader, writer


async def fill(gateway: Gateway) -> list[Connection]:
    """Return so many connections that wait."""
    connections = [await connect(gateway, number) for number in range(WAITING)]
    while WAITING != (await asyncio.to_thread(gateway.metrics)).get(DEPTH):
        pass
    return connections


async def freed(gateway: Gateway, mark: int, count: int) -> list[int]:
    """Return when so many places came free, in ns."""
    lines = await asyncio.to_thread(
        gateway.server_log.wait_for, lambda line: line.startswith(LEFT), mark=mark, count=count
    )
    return [int(line.removeprefix(LEFT)) for line in lines]


async def measure(transport: str) -> None:
    """Have them leave in both ways, and print what came of it."""
    async with HeldUpstream() as held:
        edit = queued(transport)
        with Gateways([]).open(pools=held.pools, edit=edit, program=SERVER) as gateway:
            _, holds = await connect(gateway, WAITING)
            await held.arrived(1)
            apart_ns = []
            for _, writer in await fill(gateway):
                mark, began_ns = gateway.server_log.mark(), time.monotonic_ns()
                writer.close()
                (at_ns,) = await freed(gateway, mark, 1)
                apart_ns.append(at_ns - began_ns)
            show(transport, "one after the other", apart_ns)
            connections = await fill(gateway)
            mark, began_ns = gateway.server_log.mark(), time.monotonic_ns()
            for _, writer in connections:
                writer.close()
            at_once_ns = [at_ns - began_ns for at_ns in await freed(gateway, mark, WAITING)]
            show(transport, "all at once", at_once_ns)
            holds.close()


def show(transport: str, how: str, taken_ns: Sequence[int]) -> None:
    """Print the times of one way."""
    taken = sorted(ns / 1e6 for ns in taken_ns)
    print(
        f"{transport:6} {how:19}",
        f"P50 {taken[len(taken) // 2]:.1f} ms, P99 {taken[len(taken) * 99 // 100]:.1f} ms,",
        f"most {taken[-1]:.1f} ms",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        tell_who_leaves()
        sys.exit(main())
    for each in ("native", "grpc"):
        asyncio.run(measure(each))
