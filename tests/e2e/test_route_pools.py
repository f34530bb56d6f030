"""Requests go to the pool for their length, and what no pool takes ends at the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from tests.calls import Ask, Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.gateway import Gateway, Upstream

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
POOLS: Final = {
    "full": {"cluster": "full", "context": 4096},
    # The second of the two model servers stands for one with a long context.
    "long": {
        "cluster": "best_effort",
        "context": 8192,
        "serves": {"tokens": {"above": 2048}},
        "price": {"input": 3, "output": 15},
    },
    "best_effort": {"cluster": "best_effort", "quality": "BEST_EFFORT", "context": 1024},
}


def words(tokens: int) -> str:
    """Return a text of about so many tokens in which nothing can be left out."""
    return "Why? " + " ".join(f"w{number}" for number in range(tokens // 2))


def _with_pools(tree: dict[str, Any]) -> None:
    block = tree["node"]["metadata"]["forebay"]
    block["pools"] = POOLS
    block["profiles"]["default"].pop("clean")  # it is the length that counts here


@pytest.fixture(scope="module")
def gateway(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    """Run the shipped gateway with three pools on its two model servers."""
    with gateways.open(upstream=upstream, edit=_with_pools) as opened:
        yield opened


@pytest.mark.parametrize("dialect", [CHAT, "anthropic.messages", "gemini.generate"])
async def test_a_long_prompt_goes_to_the_pool_with_the_long_context(
    gateway: Gateway, call: Caller, dialect: str
) -> None:
    """A short one stays; the client, the log and the counter are told where it went."""
    before = gateway.metrics()
    for tokens, server, pool, rule, bucket in (
        (600, "full", "full", "own", "2K"),
        (3000, "best_effort", "long", "length", "8K"),
    ):
        with gateway.watch() as seen:
            reply = await call(ask_for(dialect, words(tokens)))
        (received,) = seen.received
        assert (200, server, "FULL") == (reply.status, received.replica, reply.quality)
        assert (pool, pool) == (seen.lines[0]["pool"], reply.headers["x-forebay-pool"])
        assert (rule, bucket) == (seen.notes["route.rule"], seen.notes["route.bucket"])
        name = f'forebay_routes_total{{bucket="{bucket}",pool="{pool}",rule="{rule}"}}'
        assert 1 == gateway.metrics()[name] - before.get(name, 0)


@pytest.mark.parametrize(
    ("dialect", "shape"),
    [
        (CHAT, lambda body: (body["error"]["type"], body["error"]["message"])),
        ("anthropic.messages", lambda body: (body["error"]["type"], body["error"]["message"])),
        ("gemini.generate", lambda body: (body["error"]["status"], body["error"]["message"])),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_what_is_too_long_for_all_is_refused_before_any_server_sees_it(
    gateway: Gateway,
    call: Caller,
    dialect: str,
    shape: Callable[[Any], tuple[str, str]],
    stream: bool,
) -> None:
    """With 400, in the provider's own shape, naming the limit and the length."""
    with gateway.watch() as seen:
        reply = await call(ask_for(dialect, words(30_000), stream=stream))
    assert (400, []) == (reply.status, seen.received)
    kind, message = shape(json.loads(reply.body))
    expected = "INVALID_ARGUMENT" if dialect == "gemini.generate" else "invalid_request_error"
    assert expected == kind
    assert message.startswith("the prompt is too long: it has about ")
    assert message.endswith("where the longest context here is 8,192 tokens")
    assert f"about {seen.notes['route.tokens']:,} tokens" in message


async def test_room_is_left_for_the_answer_that_the_client_wants(
    gateway: Gateway, call: Caller
) -> None:
    """The prompt alone would have fitted."""

    def asked(most: int) -> Ask:
        return ask_for(CHAT, words(1500), more={"max_tokens": most})

    assert "full" == (await call(asked(100))).headers["x-forebay-pool"]
    assert "long" == (await call(asked(4000))).headers["x-forebay-pool"]
    with gateway.watch() as seen:
        reply = await call(asked(9000))
    assert (400, []) == (reply.status, seen.received)
    assert "and room for 9,000 of the answer" in reply.json["error"]["message"]


async def test_low_risk_work_that_is_too_long_for_the_lesser_pool_keeps_full_quality(
    gateway: Gateway, call: Caller
) -> None:
    """A short one is served there."""
    reply = await call(ask_for(CHAT, "List the rivers of Peru."))
    assert ("BEST_EFFORT", "best_effort") == (reply.quality, reply.headers["x-forebay-pool"])
    reply = await call(ask_for(CHAT, "List the words in: " + words(3000)))
    assert ("FULL", "long") == (reply.quality, reply.headers["x-forebay-pool"])


async def test_pools_change_without_a_restart(
    gateways: Gateways, upstream: Upstream, http: Any
) -> None:
    """The next request goes by the settings of the moment."""
    with gateways.open(upstream=upstream, edit=_with_pools) as opened:
        call = Caller(http, opened.url)
        assert "long" == (await call(ask_for(CHAT, words(3000)))).headers["x-forebay-pool"]
        mark = opened.server_log.mark()
        tokens = {"tokens": {"above": 6000}}
        pools = {**POOLS, "long": {**POOLS["long"], "serves": tokens}}
        opened.tree["node"]["metadata"]["forebay"]["pools"] = pools
        opened.write()
        opened.server_log.wait_for(lambda line: "settings applied" in line, mark=mark)
        assert "full" == (await call(ask_for(CHAT, words(3000)))).headers["x-forebay-pool"]
