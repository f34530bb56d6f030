"""A page in a browser shows each token as it comes: Debian's Chromium, `fetch()` and a stream.

No clock is asked: each token is released when the page has shown the one before. Only
`make test-browser` runs this, for a browser is 300 MB.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page, async_playwright

from tests.calls import ask_for
from tests.e2e.by_hand import ByHand
from tests.e2e.conftest import Gateways
from tests.gateway import POOLS, Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SERVER: Final = (str(Path(__file__).with_name("editing_server.py")),)
PASSES, WATCHES, EDITS, PACES = "raw", "faq", "medical", "chat"
WORDS: Final = 40
PATIENCE_MS: Final = 60_000
PAGE: Final = "<!doctype html><title>chat</title><p id=answer></p>"
SHOW: Final = """
async ([path, body]) => {
  window.pieces = [];
  window.ended = false;
  const headers = {"content-type": "application/json"};
  const reply = await fetch(path, {method: "POST", headers, body});
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  const show = async () => {
    for (let held = "", read; !(read = await reader.read()).done; ) {
      const events = (held + read.value).split("\\n\\n");
      held = events.pop();
      for (const event of events.filter((one) => one !== "data: [DONE]")) {
        const piece = JSON.parse(event.slice(6)).choices[0].delta.content ?? "";
        document.getElementById("answer").textContent += piece;
        window.pieces.push(piece);
      }
    }
    window.ended = true;
  };
  show();
  return reply.status;
}
"""


@pytest.fixture(scope="module")
def gateway(gateways: Gateways, listening: socket.socket) -> Iterator[Gateway]:
    """Run a gateway that lets pass, watches and edits."""

    def edit(tree: dict[str, Any]) -> None:
        cache = {"any_temperature": True, "admit_after": 1}
        tree["node"]["metadata"]["forebay"]["profiles"] |= {
            PASSES: {},
            WATCHES: {"cache": cache},
            EDITS: {"edit": {}},
            PACES: {"pace": {}},
        }

    pools = {name: [listening.getsockname()[1]] for name in POOLS}
    with gateways.open(pools=pools, edit=edit, program=SERVER) as gateway:
        yield gateway


@pytest.fixture
async def page(gateway: Gateway) -> AsyncIterator[Page]:
    """Open a page of the gateway's own origin, so that it may call it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=os.environ["FOREBAY_TEST_CHROMIUM"],
            args=["--no-sandbox"],  # which needs rights that containers rarely have
        )
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        address = f"{gateway.url}/page"
        await page.route(address, lambda route: route.fulfill(body=PAGE, content_type="text/html"))
        await page.goto(address)
        await page.unroute(address)
        yield page
        await browser.close()


def event(text: str) -> bytes:
    """Return an event of a chat completion's stream."""
    return (
        b"data: %b\n\n"
        % json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()
    )


@pytest.mark.parametrize("profile", [PASSES, WATCHES, EDITS, PACES])
async def test_a_page_shows_each_token_before_the_next_is_sent(
    gateway: Gateway, page: Page, listening: socket.socket, profile: str
) -> None:
    """The first with nothing behind it, and every other one: nothing is held to be sent along."""
    ask = ask_for("openai.chat", f"Why {uuid.uuid4().hex}?", stream=True)
    async with ByHand(listening) as by_hand:
        status = page.evaluate(SHOW, [f"/p/{profile}{ask.path}", ask.body.decode()])
        asking = asyncio.ensure_future(status)
        asked = await by_hand.asked()
        await asked.head("text/event-stream")
        for number in range(WORDS):
            await asked.chunk(event(f"word{number} "))
            if not number:
                assert 200 == await asking
            await page.wait_for_function("count => pieces.length === count", arg=number + 1)
        assert not await page.evaluate("ended")
        await asked.chunk(
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        )
        await asked.end()
        await page.wait_for_function("ended")
        shown = await page.text_content("#answer")
    assert "".join(f"word{number} " for number in range(WORDS)) == shown
