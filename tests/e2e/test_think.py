"""A light model's draft goes along with the question, by way of Envoy's egress; or none does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import aiohttp
import pytest

from ext_proc.tools.replica_life import Model
from ext_proc.tools.simulator import Received, Simulator
from filters.dialects import DIALECTS
from filters.document import Document
from tests.calls import Ask, Caller, ask_for, text_of
from tests.e2e.conftest import Gateways
from tests.exchanges import CHATS
from tests.gateway import Edit, Gateway, Upstream, dead_port, seconds, waiting
from tests.held_upstream import HeldUpstream
from tests.otlp import OtlpReceiver, attributes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
QUESTION: Final = "Why is the basin calm?"
MARK: Final = "[Draft of the reasoning, may be wrong]:\n"
SLOW_S: Final = 2.2  # over the message_timeout of a second
COUNTED: Final = 'forebay_upstream_requests_total{{cluster="light",outcome="{}"}}'
TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"


def drafting(port: int, *more: Edit, **settings: Any) -> Edit:
    """Have the profile `batch` draft by a cluster `light`, which is at a port."""

    def edit(tree: dict[str, Any]) -> None:
        profiles = tree["node"]["metadata"]["forebay"]["profiles"]
        profiles["batch"] = {"think": {"cluster": "light", "model": "small", **settings}}
        clusters = tree["static_resources"]["clusters"]
        (full,) = (one for one in clusters if one["name"] == "full")
        light = json.loads(json.dumps(full).replace('"full"', '"light"'))
        endpoint = light["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"]["socket_address"]["port_value"] = port
        clusters.append(light)
        for each in more:
            each(tree)

    return edit


def asked_in(received: Received, asked: Ask) -> str:
    """Return what the upstream was asked last."""
    prompt = DIALECTS[asked.dialect].read(Document(received.body), asked.path)
    return prompt.turns()[-1].texts[-1].value


@pytest.fixture(scope="module")
def light() -> Iterator[Upstream]:
    """Run the simulated light model."""
    upstream = Upstream()
    upstream.start()
    yield upstream
    upstream.stop()


@pytest.fixture(scope="module")
def thinking(
    gateways: Gateways, upstream: Upstream, light: Upstream, receiver: OtlpReceiver
) -> Iterator[Gateway]:
    """Run a gateway that drafts, with a deadline that a busy machine keeps."""
    edit = drafting(light.ports["full"][0], deadline="10s")
    with gateways.open(upstream=upstream, otlp=receiver.endpoint, edit=edit) as gateway:
        yield gateway


# --- The draft -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", CHATS)
async def test_the_upstream_sees_the_question_and_the_draft(
    thinking: Gateway, light: Upstream, http: aiohttp.ClientSession, dialect: str
) -> None:
    """In every provider's words; the client's reply is the big model's own."""
    asked = ask_for(dialect, QUESTION)
    mark = light.mark()
    with thinking.watch() as seen:
        reply = await Caller(http, thinking.url, key="secret")(asked, "batch")
    (drafted,) = light.since(mark)
    draft = text_of(CHAT, (await _answer_to(http, light, drafted)))
    (received,) = seen.received
    expected = f"{QUESTION}\n\n{MARK}{draft}\n[End of the draft; answer the question above]"
    assert (200, expected) == (reply.status, asked_in(received, asked))
    assert seen.notes["think.tokens"] > 0
    assert "think" in reply.headers["server-timing"]


async def _answer_to(http: aiohttp.ClientSession, light: Upstream, drafted: Received) -> bytes:
    """Ask the light model the same again: it always says the same."""
    url = f"{light.url}{drafted.path}"
    async with http.post(url, data=drafted.body) as reply:
        return await reply.read()


async def test_the_light_model_gets_nothing_of_the_clients_but_the_question(
    thinking: Gateway, light: Upstream, http: aiohttp.ClientSession
) -> None:
    """No credential, which is another provider's, and no header of Forebay's."""
    mark = light.mark()
    call = Caller(http, thinking.url, key="secret")
    with thinking.watch():
        await call(ask_for(CHAT, QUESTION), "batch", {"x-api-key": "secret", "cookie": "secret"})
    (drafted,) = light.since(mark)
    body = json.loads(drafted.body)
    assert ("small", 0, 200, False) == (
        body["model"],
        body["temperature"],
        body["max_tokens"],
        body["stream"],
    )
    sent = {name for name in drafted.headers if name not in ("x-request-id", "traceparent")}
    assert {"host", "content-type", "content-length", "x-forwarded-proto"} == sent - {"tracestate"}
    assert "secret" not in str(drafted)


async def test_the_draft_is_part_of_the_requests_trace(
    thinking: Gateway, light: Upstream, http: aiohttp.ClientSession, receiver: OtlpReceiver
) -> None:
    """One trace holds the client's request, Forebay's work, the draft and both upstreams."""
    mark = light.mark()
    header = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    answered = thinking.metrics().get(COUNTED.format("answered"), 0)
    with thinking.watch():
        await Caller(http, thinking.url)(ask_for(CHAT, QUESTION), "batch", header)
    (drafted,) = light.since(mark)
    assert TRACE == drafted.headers["traceparent"].split("-")[1]
    # Ingress, its calls to Forebay and upstream, Forebay's own, egress, its call upstream.
    spans = receiver.trace(TRACE, spans=6)
    assert "POST egress" in [span.name for span in spans]
    (ours,) = (told for told in map(attributes, spans) if "forebay.profile" in told)
    assert ours["forebay.think.tokens"] > 0
    assert ours["forebay.think.off"] in (True, False)
    assert answered + 1 == thinking.metrics()[COUNTED.format("answered")]


async def test_a_stored_answer_needs_no_draft(
    gateways: Gateways, upstream: Upstream, light: Upstream, http: aiohttp.ClientSession
) -> None:
    """A question that has its answer is not thought about again."""

    def caching(tree: dict[str, Any]) -> None:
        batch = tree["node"]["metadata"]["forebay"]["profiles"]["batch"]
        batch["cache"] = {"any_temperature": True, "admit_after": 1}

    edit = drafting(light.ports["full"][0], caching, deadline="10s")
    mark = light.mark()
    with gateways.open(upstream=upstream, edit=edit) as gateway:
        call, asked = Caller(http, gateway.url), ask_for(CHAT, QUESTION)
        with gateway.watch():
            first = await call(asked, "batch")
        second = await call(asked, "batch")
    assert ("MISS", "HIT") == (first.cache, second.cache)
    assert text_of(CHAT, first.body) == text_of(CHAT, second.body)
    assert 1 == len(light.since(mark))


async def test_envoy_adds_the_light_models_credential(
    gateways: Gateways, upstream: Upstream, light: Upstream, http: aiohttp.ClientSession
) -> None:
    """From its environment, as the comment in the shipped file says."""

    def credit(tree: dict[str, Any]) -> None:
        listeners = tree["static_resources"]["listeners"]
        (egress,) = (one for one in listeners if one["name"] == "egress")
        manager = egress["filter_chains"][0]["filters"][0]["typed_config"]
        header = {"key": "authorization", "value": "Bearer %ENVIRONMENT(LIGHT_API_KEY)%"}
        (host,) = manager["route_config"]["virtual_hosts"]
        host["request_headers_to_add"] = [{"header": header}]

    edit = drafting(light.ports["full"][0], credit, deadline="10s")
    mark = light.mark()
    environ = {"LIGHT_API_KEY": "light-key"}
    with gateways.open(upstream=upstream, edit=edit, environ=environ) as gateway, gateway.watch():
        await Caller(http, gateway.url, key="secret")(ask_for(CHAT, QUESTION), "batch")
    (drafted,) = light.since(mark)
    assert "Bearer light-key" == drafted.headers["authorization"]


# --- Time ----------------------------------------------------------------------------------------


async def test_a_draft_may_take_longer_than_envoys_message_timeout(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession, transport: Edit
) -> None:
    """Envoy waits a second by itself, and as long as the deadline when it is asked to."""
    async with Simulator(model=Model(door_s=SLOW_S)) as slow:
        edit = drafting(slow.port, transport, partial(waiting, timeout="1s"), deadline="20s")
        with gateways.open(upstream=upstream, edit=edit) as gateway:
            asked, started = ask_for(CHAT, QUESTION), time.monotonic()
            with gateway.watch() as seen:
                reply = await Caller(http, gateway.url)(asked, "batch")
            took = seconds(started)
            (line,) = gateway.access_log.wait_for(lambda line: '"profile"' in line)
    assert took > SLOW_S
    assert MARK in asked_in(seen.received[0], asked)
    assert "batch" == reply.headers["x-forebay-profile"]
    assert "1" != json.loads(line).get("failed_open")


async def test_a_late_draft_is_not_waited_for(
    gateways: Gateways,
    upstream: Upstream,
    http: aiohttp.ClientSession,
    held: HeldUpstream,
    transport: Edit,
) -> None:
    """The request goes on as it came, its thinking included; the call to the light model ends."""
    asked = ask_for(CHAT, QUESTION, more={"reasoning_effort": "high"})
    with gateways.open(
        upstream=upstream, edit=drafting(held.port, transport, deadline="300ms")
    ) as gateway:
        with gateway.watch() as seen:
            reply = await Caller(http, gateway.url)(asked, "batch")
        await held.left(1)
        metrics = gateway.metrics()
    assert (200, [asked.body]) == (reply.status, [one.body for one in seen.received])
    assert "light: no answer in 0.3 s" == seen.notes["think.skip"]
    assert (1, 0) == (metrics[COUNTED.format("late")], metrics["forebay_upstream_calls"])


async def test_without_the_light_model_the_request_goes_on_at_once(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession, transport: Edit
) -> None:
    """Envoy answers for a cluster that is down; nobody waits for the deadline."""
    asked = ask_for(CHAT, QUESTION)
    with dead_port() as nobody:
        edit = drafting(nobody.getsockname()[1], transport, deadline="20s")
        with gateways.open(upstream=upstream, edit=edit) as gateway, gateway.watch() as seen:
            reply = await Caller(http, gateway.url)(asked, "batch")
    assert (200, [asked.body]) == (reply.status, [one.body for one in seen.received])
    assert "light: status 503" == seen.notes["think.skip"]


async def test_a_client_that_leaves_takes_its_draft_along(
    gateways: Gateways,
    upstream: Upstream,
    http: aiohttp.ClientSession,
    held: HeldUpstream,
    transport: Edit,
) -> None:
    """The light model's slot is free again, and so is Forebay's."""
    with gateways.open(
        upstream=upstream, edit=drafting(held.port, transport, deadline="60s")
    ) as gateway:
        with gateway.watch() as seen:
            task = asyncio.create_task(Caller(http, gateway.url)(ask_for(CHAT, QUESTION), "batch"))
            await held.arrived(1)
            assert 1 == gateway.metrics()["forebay_upstream_calls"]
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await held.left(1)
        metrics = gateway.metrics()
        assert (1, 0) == (metrics[COUNTED.format("left")], metrics["forebay_upstream_calls"])
        assert ("gone", []) == (seen.lines[0]["outcome"], seen.received)
        held.release()
        with gateway.watch() as after:
            await Caller(http, gateway.url)(ask_for(CHAT, QUESTION), "batch")
    assert held.text in str(json.loads(after.received[0].body))


# --- Envoy ---------------------------------------------------------------------------------------


async def test_an_envoy_that_was_killed_takes_its_socket_over(
    gateways: Gateways, upstream: Upstream, light: Upstream, http: aiohttp.ClientSession
) -> None:
    """The file that it left is no obstacle, and Forebay connects again."""
    asked = ask_for(CHAT, QUESTION)
    with gateways.open(
        upstream=upstream, edit=drafting(light.ports["full"][0], deadline="10s")
    ) as gateway:
        for _ in range(2):
            with gateway.watch() as seen:
                await Caller(http, gateway.url)(asked, "batch")
            assert MARK in asked_in(seen.received[0], asked)
            assert gateway.envoy is not None
            assert (gateway.folder / "e").is_socket()
            gateway.envoy.kill()
            gateway.start_envoy()
