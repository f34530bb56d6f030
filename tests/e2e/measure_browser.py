"""Print how long a page waits between two pieces of a paced answer, and how its model spoke.

    FOREBAY_TEST_CHROMIUM=$(.ci/browser .browser) python -m tests.e2e.measure_browser

The model says a lump of words, is silent, and says the next: what the page shows is to flow.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from itertools import pairwise
from typing import Any, Final

from playwright.async_api import async_playwright

from tests.calls import ask_for
from tests.e2e.by_hand import ByHand
from tests.e2e.conftest import Gateways
from tests.e2e.test_browser import PAGE, SHOW, event
from tests.gateway import POOLS

PASSES, PACES = "raw", "chat"
LUMPS: Final = 12
LUMP_WORDS: Final = 40
SILENCE_S: Final = 0.5
TIMES: Final = """
() => {
  window.times = [];
  Object.defineProperty(window, "pieces", {
    value: {length: 0, push() { this.length++; window.times.push(performance.now()); }},
    writable: false,
  });
}
"""
END: Final = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


async def measure(profile: str) -> None:
    """Show one answer on a page, and print what was measured there."""

    def edit(tree: dict[str, Any]) -> None:
        tree["node"]["metadata"]["forebay"]["profiles"] |= {PASSES: {}, PACES: {"pace": {}}}

    with socket.create_server(("127.0.0.1", 0)) as listening:
        pools = {name: [listening.getsockname()[1]] for name in POOLS}
        with Gateways([]).open(pools=pools, edit=edit) as gateway:
            async with ByHand(listening) as by_hand, async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=os.environ["FOREBAY_TEST_CHROMIUM"], args=["--no-sandbox"]
                )
                page = await browser.new_page()
                address = f"{gateway.url}/page"
                await page.route(
                    address, lambda route: route.fulfill(body=PAGE, content_type="text/html")
                )
                await page.goto(address)
                await page.unroute(address)
                await page.evaluate(TIMES)
                ask = ask_for("openai.chat", "Why is it so?", stream=True)
                show = SHOW.replace("window.pieces = [];", "")
                shown = asyncio.ensure_future(
                    page.evaluate(show, [f"/p/{profile}{ask.path}", ask.body.decode()])
                )
                asked = await by_hand.asked()
                await asked.head("text/event-stream")
                said: list[float] = []
                for lump in range(LUMPS):
                    for word in range(LUMP_WORDS):
                        await asked.chunk(event(f" word{lump * LUMP_WORDS + word}"))
                        await asyncio.sleep(0.001)
                        said.append(time.perf_counter())
                    await asyncio.sleep(SILENCE_S)
                await shown
                await asked.chunk(END)
                await asked.end()
                await page.wait_for_function("ended", timeout=60_000)
                times = await page.evaluate("times")
                await browser.close()
    print(
        f"{profile:5} the model: {gaps(said)}\n      the page:  {gaps([at / 1e3 for at in times])}"
    )


def gaps(times: list[float]) -> str:
    """Describe the time between one piece and the next."""
    waits = sorted(after - before for before, after in pairwise(times))
    middle, late = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    return f"median {middle * 1e3:.0f} ms, P99 {late * 1e3:.0f}, longest {waits[-1] * 1e3:.0f}"


if __name__ == "__main__":
    for each in (PASSES, PACES):
        asyncio.run(measure(each))
