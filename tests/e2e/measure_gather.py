"""Print how many texts a second are embedded one by one, and how many gathered.

    python -m tests.e2e.measure_gather

The model server, a process of its own, takes 8 ms for a call and 0.5 ms for each text in it, one
call at a time. Clients ask again as soon as they are answered, each time for another text.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, Final

import aiohttp
from aiohttp import web

from ext_proc.tools import simulated_apis as apis
from tests.e2e.conftest import Gateways
from tests.gateway import POOLS, Gateway

CALL_S: Final = 0.008
TEXT_S: Final = 0.0005
CLIENTS: Final = (1, 16, 64, 200)
WARM_S: Final = 1.0
MEASURED_S: Final = 8.0
SAVED: Final = "forebay_batch_saved_calls_total"


def serve(told: Connection) -> None:
    """Run the model server; tell the port."""
    asyncio.run(embed(told))


async def embed(told: Connection) -> None:
    """Embed what comes, for as long as the process lives."""
    alone = asyncio.Lock()

    async def answer(request: web.BaseRequest) -> web.Response:
        body = json.loads(await request.read())
        count = len(body["input"]) if isinstance(body["input"], list) else 1
        _, reply = apis.openai_embeddings(body)
        async with alone:
            await asyncio.sleep(CALL_S + TEXT_S * count)
        return web.json_response(reply)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port=0, backlog=1_024).start()
    told.send(runner.addresses[0][1])
    await asyncio.Event().wait()


async def measure(gateway: Gateway, clients: int) -> tuple[float, float]:
    """Return how many texts a second so many clients had embedded, and how many in each call."""
    url = f"{gateway.url}/p/embeddings/v1/embeddings"
    embedded = 0

    async def client(number: int, http: aiohttp.ClientSession) -> None:
        nonlocal embedded
        turn = 0
        while True:
            turn += 1
            text = f"basin {number} of {clients} at turn {turn}"
            async with http.post(url, json={"model": "m", "input": text}) as reply:
                assert 200 == reply.status, await reply.text()
                await reply.read()
            embedded += 1

    async def seen() -> tuple[float, int, float]:
        metrics = await asyncio.to_thread(gateway.metrics)
        return time.perf_counter(), embedded, metrics.get(SAVED, 0)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        asking = [asyncio.create_task(client(number, http)) for number in range(clients)]
        await asyncio.sleep(WARM_S)
        began_s, before, saved_before = await seen()
        await asyncio.sleep(MEASURED_S)
        ended_s, after, saved = await seen()
        for one in asking:
            one.cancel()
        for end in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(end, asyncio.CancelledError), end
    texts = after - before
    return texts / (ended_s - began_s), texts / (texts - (saved - saved_before))


async def compare(port: int) -> None:
    """Measure both ways, and print them beside each other."""
    found: dict[int, list[tuple[float, float]]] = {clients: [] for clients in CLIENTS}
    ways: tuple[bool | dict[str, Any], ...] = (False, {})
    for gather in ways:

        def edit(tree: dict[str, Any], gather: Any = gather) -> None:
            profiles = tree["node"]["metadata"]["forebay"]["profiles"]
            profiles["embeddings"]["gather"] = gather

        with Gateways([]).open(pools={name: [port] for name in POOLS}, edit=edit) as gateway:
            for clients, both in found.items():
                both.append(await measure(gateway, clients))
    print("clients at once: texts a second one by one, gathered; texts in each call")
    for clients, ((alone, _), (gathered, each)) in found.items():
        print(f"{clients:3}: {alone:4.0f}, {gathered:4.0f}; {each:4.1f}")


def main() -> None:
    """Start the model server, and measure."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    model = context.Process(target=serve, args=(its,), daemon=True)
    model.start()
    try:
        asyncio.run(compare(ours.recv()))
    finally:
        model.kill()
        model.join()


if __name__ == "__main__":
    main()
