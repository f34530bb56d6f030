"""Many at once, and those who leave before the end: nothing of ours fails, nothing is left over."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Ask, Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import Edit, Gateway
from tests.held_upstream import HeldUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
QUESTION: Final = "Why is the basin calm?"
CROWD: Final = 1_500
ENVOYS_LIMIT: Final = 1_024  # of requests at once to a cluster, where none is set
WAVE: Final = 100
FILES: Final = 4 * CROWD  # each has a connection to Envoy and one from it, both ends here


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files, for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _all_may_come(tree: dict[str, Any]) -> None:
    tree["node"]["metadata"]["forebay"]["server"]["most_exchanges"] = 2 * CROWD


# --- A crowd -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("many_files")
async def test_fifteen_hundred_slow_requests_at_once_all_get_their_answers(
    gateways: Gateways, http: aiohttp.ClientSession, held: HeldUpstream
) -> None:
    """All are open at the upstream before the first is answered, and nearly all at Forebay.

    On the faq profile every one holds its stream to Forebay until its reply has ended. They come
    in waves, for what a burst keeps waiting for over a second passes without Forebay, on a busy
    machine some of a wave as well; then they come at once, and get their answers all the same.
    """
    with gateways.open(pools=held.pools, edit=_all_may_come) as gateway:
        call = Caller(http, gateway.url)
        asks = [ask_for(CHAT, QUESTION, seed=number) for number in range(CROWD)]
        tasks = []
        for number in range(0, CROWD, WAVE):
            wave = asks[number : number + WAVE]
            tasks += [asyncio.create_task(call(asked, "faq")) for asked in wave]
            await held.arrived(len(tasks))
        open_at_forebay = gateway.metrics()["forebay_in_flight"]
        held.release()
        replies = await asyncio.gather(*tasks)
        burst = await asyncio.gather(*(call(asked) for asked in asks))
        assert {200} == {reply.status for reply in replies + burst}
        assert ENVOYS_LIMIT < open_at_forebay <= sum(reply.cache == "MISS" for reply in replies)
        assert 0 == gateway.envoy_counter("cluster.forebay.upstream_rq_pending_overflow")
        gateway.settle()


# --- Those who leave -----------------------------------------------------------------------------


@pytest.fixture
def slow(gateways: Gateways, held: HeldUpstream, transport: Edit) -> Iterator[Gateway]:
    """Run a gateway whose upstream waits to be told to answer."""
    with gateways.open(pools=held.pools, edit=transport) as gateway:
        yield gateway


def _request(asked: Ask, profile: str, *, body: bytes | None = None) -> bytes:
    """Write a request whose body may be only the beginning of it."""
    head = (
        f"POST /p/{profile}{asked.path} HTTP/1.1\r\nhost: gateway\r\n"
        f"content-type: application/json\r\ncontent-length: {len(asked.body)}\r\n\r\n"
    )
    return head.encode() + (asked.body if body is None else body)


@pytest.mark.parametrize("stream", [False, True], ids=["before the reply", "amid a stream"])
async def test_a_client_that_leaves_takes_its_request_with_it(
    slow: Gateway, http: aiohttp.ClientSession, held: HeldUpstream, stream: bool
) -> None:
    """Fifty of them: the upstream is left as well, nothing stays in flight, nothing is stored."""
    asks = [ask_for(CHAT, QUESTION, seed=number, stream=stream) for number in range(50)]
    with slow.watch(exchanges=50) as seen:
        writers = []
        for asked in asks:
            reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
            writer.write(_request(asked, "faq"))
            writers.append(writer)
            if stream:
                await reader.readuntil(b"data: ")
        await held.arrived(50)
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        await held.left(50)
    assert {("gone", "miss")} == {(line["outcome"], line["notes"]["cache"]) for line in seen.lines}
    assert 0 == slow.metrics()["forebay_in_flight"]
    held.release()
    assert "MISS" == (await Caller(http, slow.url)(asks[0], "faq")).cache


async def test_a_client_that_leaves_amid_its_own_request_leaves_nothing(
    slow: Gateway, http: aiohttp.ClientSession, held: HeldUpstream
) -> None:
    """Headers came and half of the body; the exchange that they opened is closed."""
    asked = ask_for(CHAT, QUESTION)
    with slow.watch() as seen:
        _, writer = await asyncio.open_connection("127.0.0.1", slow.port)
        writer.write(_request(asked, "faq", body=asked.body[:20]))
        async with asyncio.timeout(60):
            while slow.metrics()["forebay_in_flight"] != 1:
                await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert "gone" == seen.lines[0]["outcome"]
    assert 0 == slow.metrics()["forebay_in_flight"]
    held.release()
    assert "MISS" == (await Caller(http, slow.url)(asked, "faq")).cache


async def test_a_client_that_leaves_where_nobody_reads_the_reply_is_no_matter(
    slow: Gateway, held: HeldUpstream
) -> None:
    """Forebay let go of the exchange when the request was whole."""
    asked = ask_for(CHAT, QUESTION, temperature=0, stream=True)
    with slow.watch() as seen:
        reader, writer = await asyncio.open_connection("127.0.0.1", slow.port)
        writer.write(_request(asked, "batch"))
        await reader.readuntil(b"data: ")
        writer.close()
        await writer.wait_closed()
        await held.left(1)
    assert "forwarded" == seen.lines[0]["outcome"]
    assert 0 == slow.metrics()["forebay_in_flight"]
