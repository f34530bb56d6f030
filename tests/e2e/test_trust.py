"""What a client cannot say, whose answers it never sees, and what is written down nowhere."""

from __future__ import annotations

import json
from typing import Final
from uuid import uuid4

import aiohttp
import httpx
import pytest

from tests.calls import Ask, Caller, ask_for, streamed_text, text_of
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
PROVIDERS: Final = [CHAT, "gemini.generate", "anthropic.messages"]
FORGED: Final = {
    "x-forebay-cluster": "best_effort",
    "x-forebay-profile": "forged",
    "x-forebay-anything": "forged",
    "x-model-quality": "forged",
    "x-cache": "forged",
    "x-gateway-destination-endpoint": "127.0.0.1:1",
    "x-gateway-destination-endpoint-subset": "127.0.0.1:1",
}
every_provider = pytest.mark.parametrize("dialect", PROVIDERS)

# --- Internal headers ----------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["", "faq", "raw"], ids=["default", "faq", "raw"])
@pytest.mark.parametrize("write", [str, str.upper, str.title], ids=["lower", "upper", "title"])
async def test_a_forged_header_neither_routes_nor_reaches_anybody(
    gateway: Gateway, call: Caller, question: str, profile: str, write: type[str]
) -> None:
    """The upstream sees Forebay's own values or none, the client hears nothing of it."""
    forged = {write(name): value for name, value in FORGED.items()}
    with gateway.watch() as seen:
        reply = await call(ask_for(CHAT, question, temperature=0), profile, forged)
    (received,) = seen.received
    ours = {} if profile == "raw" else {"x-cache": "MISS", "x-model-quality": "FULL"}
    assert "full" == received.replica
    assert ours == {name: value for name, value in received.headers.items() if name in FORGED}
    assert profile or "default" == reply.headers["x-forebay-profile"]
    told = ours | {"x-forebay-profile": profile or "default"}
    assert told == {
        name.lower(): value for name, value in reply.headers.items() if name.lower() in FORGED
    }


async def test_a_forged_header_picks_no_route_over_http2(gateway: Gateway, question: str) -> None:
    """The same over the other protocol."""
    asked = ask_for(CHAT, question, temperature=0)
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        with gateway.watch() as seen:
            reply = await client.post(gateway.url + asked.path, content=asked.body, headers=FORGED)
    assert ("HTTP/2", "full") == (reply.http_version, seen.received[0].replica)
    assert ("MISS", "FULL") == (reply.headers["x-cache"], reply.headers["x-model-quality"])


async def test_other_paths_carry_no_forged_header_either(gateway: Gateway, call: Caller) -> None:
    """They pass Envoy alone, which takes the headers off all the same."""
    mark = gateway.upstream.mark()
    await call.send("GET", "/files/1", headers=FORGED)
    (received,) = gateway.upstream.wait_for(1, mark=mark)
    assert ("full", set()) == (received.replica, set(FORGED) & set(received.headers))


async def test_an_upstream_cannot_speak_for_forebay(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Its own X-Cache or X-Model-Quality is not what the client is told; other headers stay."""
    words = {name: "forged" for name in FORGED if "endpoint" not in name}
    words |= {"etag": '"1"', "x-forebay-pool": "forged"}
    asked = ask_for(CHAT, question, temperature=0)
    reply = await call(asked, "", {"x-test-headers": json.dumps(words)})
    told = ("x-cache", "x-model-quality", "x-forebay-profile", "x-forebay-pool", "etag")
    assert ["MISS", "FULL", "default", "full", '"1"'] == [reply.headers[name] for name in told]


# --- Tenants -------------------------------------------------------------------------------------


@every_provider
async def test_two_keys_never_share_an_answer(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """Each asks the model for itself, and then has an answer of its own."""
    asked = ask_for(dialect, question)
    tenants = [call.with_key(uuid4().hex) for _ in range(2)]
    with gateway.watch(exchanges=2) as first:
        assert ["MISS", "MISS"] == [(await tenant(asked, "faq")).cache for tenant in tenants]
    with gateway.watch(exchanges=2) as second:
        assert ["HIT", "HIT"] == [(await tenant(asked, "faq")).cache for tenant in tenants]
    assert (2, 0) == (len(first.received), len(second.received))


@every_provider
async def test_a_request_without_a_key_shares_with_none_that_has_one(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """Nor the other way round; those without one are one tenant."""
    asked, nobody = ask_for(dialect, question), call.with_key("")
    with gateway.watch(exchanges=2):
        assert ["MISS", "MISS"] == [(await who(asked, "faq")).cache for who in (nobody, call)]
    assert ["HIT", "HIT"] == [(await who(asked, "faq")).cache for who in (nobody, call)]


async def test_geminis_key_in_the_query_is_a_tenant(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """It reaches the upstream as it came, and no other key's holder sees the answer."""
    asked, nobody = ask_for("gemini.generate", question), call.with_key("")
    asks = [Ask(f"{asked.path}?key={key}", asked.body) for key in (uuid4().hex, uuid4().hex)]
    with gateway.watch(exchanges=2) as seen:
        assert ["MISS", "MISS"] == [(await nobody(each, "faq")).cache for each in asks]
    assert ["HIT", "HIT"] == [(await nobody(each, "faq")).cache for each in asks]
    assert [each.path for each in asks] == [received.path for received in seen.received]


async def test_geminis_key_in_a_header_is_a_tenant_apart_from_the_query(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Whoever sends both is neither of the two alone: which one counts is the upstream's matter."""
    asked = ask_for("gemini.generate", question)
    in_query = Ask(f"{asked.path}?key={call.key}", asked.body)
    ways = [(call, asked), (call.with_key(""), in_query), (call, in_query)]
    with gateway.watch(exchanges=3):
        assert ["MISS"] * 3 == [(await caller(ask, "faq")).cache for caller, ask in ways]


async def test_two_organisations_of_one_key_share_nothing(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """The provider bills and limits them apart, and may give them other models."""
    asked = ask_for(CHAT, question)
    headers = [{"openai-organization": name} for name in ("a", "b")]
    with gateway.watch(exchanges=2):
        assert ["MISS"] * 2 == [(await call(asked, "faq", each)).cache for each in headers]


# --- Secrets -------------------------------------------------------------------------------------


@every_provider
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_neither_prompt_nor_answer_nor_key_is_written_down(
    gateway: Gateway,
    receiver: OtlpReceiver,
    http: aiohttp.ClientSession,
    dialect: str,
    stream: bool,
) -> None:
    """Not in Forebay's log or metrics, Envoy's log or counters, nor in any span."""
    names = ("prompt", "system", "key", "query", "cookie", "organization")
    secrets = {name: f"{name}{uuid4().hex}" for name in names}
    system = secrets["system"]
    asked = ask_for(dialect, f"Why is {secrets['prompt']} so?", system=system, stream=stream)
    mark = "&" if "?" in asked.path else "?"
    asked = Ask(f"{asked.path}{mark}key={secrets['query']}", asked.body)
    broken = Ask(asked.path, asked.body[:-1])
    trace_id = uuid4().hex
    headers = {
        "cookie": secrets["cookie"],
        "openai-organization": secrets["organization"],
        "traceparent": f"00-{trace_id}-b7ad6b7169203331-01",
    }
    caller = Caller(http, gateway.url, secrets["key"])
    marks = [log.mark() for log in gateway.logs]
    with gateway.watch():
        first = await caller(asked, "faq", headers)
    with gateway.watch():
        second = await caller(asked, "faq", headers)
    with gateway.watch(exchanges=3):
        await caller(asked, "faq", headers, status="500")
        await caller(broken, "faq", headers)
        await caller(asked, "medical", headers, close="50")
    assert ("MISS", "HIT") == (first.cache, second.cache)
    text = streamed_text(dialect, asked, first) if stream else text_of(dialect, first.body)
    assert secrets["prompt"] in text
    gateway.access_log.wait_for(lambda line: trace_id in line, count=5)
    # Each call: Envoy's span of the request, its span of the call to Forebay, and Forebay's.
    spans = receiver.trace(trace_id, 5 * 3)
    written = {
        **{log.name: str(log.since(mark)) for log, mark in zip(gateway.logs, marks, strict=True)},
        "spans": str(spans),
        "metrics": str(gateway.metrics()),
        "counters": gateway.envoy_stats(),
    }
    assert all(trace_id in written[log.name] for log in gateway.logs[:2])
    secrets["answer"] = "a simulated answer"
    found = [
        (what, where)
        for what, secret in secrets.items()
        for where, text in written.items()
        if secret in text
    ]
    assert [] == found
