"""How long a reply may take and what is tried again, by the routes of the shipped file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.failing_upstream import TEXT, FailingUpstream, Failure, Fate, ports_of
from tests.gateway import Gateway, dead_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT: Final = "openai.chat"
QUESTION: Final = "Why is the basin calm?"
RETRIES: Final = "cluster.full.upstream_rq_retry"
LIMITED: Final = "cluster.full.upstream_rq_retry_backoff_ratelimited"


def routes(tree: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what routes do, by name."""
    listeners = tree["static_resources"]["listeners"]
    (ingress,) = (one for one in listeners if one["name"] == "ingress")
    config = ingress["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    found: dict[str, list[dict[str, Any]]] = {}
    for route in config["virtual_hosts"][0]["routes"]:
        found.setdefault(route["name"], []).append(route.get("route", {}))
    return found


def impatient(tree: dict[str, Any]) -> None:
    """Have conversations wait for a fifth of a second; only for upstreams that never answer."""
    for some in routes(tree).values():
        for route in some:
            policy = route.get("retry_policy", {})
            if "per_try_idle_timeout" in policy:
                policy["per_try_idle_timeout"] = "0.2s"


def restless(tree: dict[str, Any]) -> None:
    """Have tries follow each other at once."""
    for some in routes(tree).values():
        for route in some:
            policy = route.get("retry_policy", {})
            if "retry_back_off" in policy:
                policy["retry_back_off"] = {"base_interval": "0.01s"}


@pytest.fixture
async def failing() -> AsyncIterator[FailingUpstream]:
    async with FailingUpstream(headers={"x-failing": "1"}) as failing:
        yield failing


@pytest.fixture
def hasty(gateways: Gateways, failing: FailingUpstream) -> Iterator[Gateway]:
    """Run a gateway before it that does not wait for it for long."""
    pools = ports_of(full=failing, best_effort=failing)
    with gateways.open(pools=pools, edit=impatient) as gateway:
        yield gateway


@pytest.fixture
def trying(gateways: Gateways, failing: FailingUpstream) -> Iterator[Gateway]:
    """Run a gateway before it that tries again at once."""
    pools = ports_of(full=failing, best_effort=failing)
    with gateways.open(pools=pools, edit=restless) as gateway:
        yield gateway


# --- Time ----------------------------------------------------------------------------------------


def test_somebody_who_reads_along_waits_eight_seconds(gateways: Gateways) -> None:
    """From byte to byte; there is no limit on all of it, which would cut long answers."""
    with gateways.open(server=False, envoy=False, pools={}) as gateway:
        shipped = routes(gateway.tree)
    policy = {"per_try_idle_timeout": "8s", "num_retries": 0}
    for name in ("chat", "chat.chosen"):
        assert [("0s", policy)] == [(one["timeout"], one["retry_policy"]) for one in shipped[name]]


def test_a_whole_answer_has_half_again_its_longest_time(gateways: Gateways) -> None:
    """Ten minutes is the longest; no silence ends it before."""
    with gateways.open(server=False, envoy=False, pools={}) as gateway:
        shipped = routes(gateway.tree)
    for name in ("batch", "batch.chosen", "documents", "documents.chosen"):
        (route,) = shipped[name]
        assert ("900s", "900s") == (route["timeout"], route["idle_timeout"])


SHAPES: Final[dict[str, dict[str, object]]] = {
    "openai.chat": {"type": "server_error", "param": None, "code": None},
    "anthropic.messages": {"type": "timeout_error"},
    "gemini.generate": {"code": 504, "status": "DEADLINE_EXCEEDED"},
}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("dialect", SHAPES)
async def test_a_conversation_with_a_silent_upstream_ends_in_the_providers_shape(
    hasty: Gateway,
    failing: FailingUpstream,
    http: aiohttp.ClientSession,
    dialect: str,
    stream: bool,
) -> None:
    """Asked once: it may still be at work on the prompt."""
    failing.next(Failure.SILENT)
    reply = await Caller(http, hasty.url)(ask_for(dialect, QUESTION, stream=stream), "chat")
    error = SHAPES[dialect] | {"message": "no answer came in time"}
    assert (504, error) == (reply.status, reply.json["error"])
    assert (1, 0) == (failing.requests, hasty.envoy_counter(RETRIES))


async def test_a_stream_that_falls_silent_breaks_off(
    hasty: Gateway, failing: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """A server that sends its head at once has not answered by that."""
    failing.next(Failure.SILENT_STREAM)
    reply = await Caller(http, hasty.url)(ask_for(CHAT, QUESTION, stream=True), "chat")
    assert (200, True, b"") == (reply.status, reply.cut, reply.body)


# --- What is tried again -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2_000_000], ids=["small", "large"])
async def test_a_batch_is_tried_three_times_where_the_server_is_not_ready(
    trying: Gateway, failing: FailingUpstream, http: aiohttp.ClientSession, size: int
) -> None:
    """With the same body each time, whatever its size."""
    failing.next(503, 503)
    asked = ask_for(CHAT, QUESTION, more={"user": "u" * size})
    reply = await Caller(http, trying.url)(asked, "batch")
    assert (200, TEXT) == (reply.status, reply.json["choices"][0]["message"]["content"])
    assert (3, 1) == (failing.requests, len(set(failing.bodies)))


async def test_the_last_try_of_a_batch_tells_what_the_server_said(
    trying: Gateway, failing: FailingUpstream, http: aiohttp.ClientSession
) -> None:
    """Its own words, not Envoy's."""
    failing.always = 503
    reply = await Caller(http, trying.url)(ask_for(CHAT, QUESTION), "batch")
    assert (503, {"error": 503}) == (reply.status, reply.json)
    assert 3 == failing.requests


@pytest.mark.parametrize("fate", [400, 429, 500, 502, 504, Failure.RESET])
async def test_what_may_have_been_worked_on_is_not_tried_again(
    trying: Gateway, failing: FailingUpstream, http: aiohttp.ClientSession, fate: Fate
) -> None:
    """Not even of a batch: the next one would be asked to pay for it twice."""
    failing.next(fate)
    reply = await Caller(http, trying.url)(ask_for(CHAT, QUESTION), "batch")
    assert (503 if fate is Failure.RESET else fate) == reply.status
    assert (1, 0) == (failing.requests, trying.envoy_counter(RETRIES))


@pytest.mark.parametrize("profile", ["", "faq", "chat", "medical", "raw"])
async def test_nobody_else_is_tried_again(
    trying: Gateway, failing: FailingUpstream, http: aiohttp.ClientSession, profile: str
) -> None:
    """Who reads along is told at once."""
    failing.next(503)
    reply = await Caller(http, trying.url)(ask_for(CHAT, QUESTION), profile)
    assert (503, 1) == (reply.status, failing.requests)


async def test_a_server_that_says_when_is_asked_then(
    gateways: Gateways, http: aiohttp.ClientSession
) -> None:
    """`Retry-After` takes the place of the back-off."""
    async with FailingUpstream(headers={"retry-after": "1"}) as failing:
        failing.next(503)
        pools = ports_of(full=failing, best_effort=failing)
        with gateways.open(pools=pools, edit=restless) as gateway:
            reply = await Caller(http, gateway.url)(ask_for(CHAT, QUESTION), "batch")
            assert (200, 1) == (reply.status, gateway.envoy_counter(LIMITED))


async def test_a_batch_tries_to_connect_three_times(
    gateways: Gateways, http: aiohttp.ClientSession
) -> None:
    """Nothing was sent by then; in the end the error has the provider's shape."""
    with dead_port() as dead:
        pools = {"full": [dead.getsockname()[1]], "best_effort": [dead.getsockname()[1]]}
        with gateways.open(pools=pools, edit=restless) as gateway:
            call, asked = Caller(http, gateway.url), ask_for(CHAT, QUESTION)
            once = await call(asked, "chat")
            assert 0 == gateway.envoy_counter(RETRIES)
            thrice = await call(asked, "batch")
            assert 2 == gateway.envoy_counter(RETRIES)
    assert [503, 503] == [once.status, thrice.status]
    assert ["server_error"] * 2 == [one.json["error"]["type"] for one in (once, thrice)]
