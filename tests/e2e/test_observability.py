"""Every exchange is in the metrics, in two logs and in one trace."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import uuid4

import aiohttp
import pytest

from tests.calls import Ask, Caller, ask_for
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver, attributes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
BY_PROVIDER: Final = [
    (CHAT, "openai", "chat"),
    ("gemini.generate", "gcp.gemini", "generate_content"),
    ("anthropic.messages", "anthropic", "chat"),
]


# --- Metrics -------------------------------------------------------------------------------------


async def test_the_metrics_count_what_happened(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Outcomes of exchanges and of the cache, time in each stage, tokens, and what was saved."""
    asked = ask_for(CHAT, question)
    gateway.settle()
    before = gateway.metrics()
    for profile in ("faq", "faq", "", "raw"):
        with gateway.watch():
            await call(asked, profile)
    after = gateway.metrics()
    moved = {name: value - before.get(name, 0) for name, value in after.items()}

    def exchanges(profile: str, quality: str, outcome: str, dialect: str = CHAT) -> str:
        labels = f'dialect="{dialect}",outcome="{outcome}",profile="{profile}",quality="{quality}"'
        return f"forebay_requests_total{{{labels}}}"

    expected = {
        exchanges("faq", "FULL", "complete"): 1,
        exchanges("faq", "FULL", "answered"): 1,
        exchanges("default", "FULL", "forwarded"): 1,
        exchanges("raw", "", "passed"): 1,
        'forebay_cache_total{outcome="miss",profile="faq"}': 1,
        'forebay_cache_total{outcome="hit",profile="faq"}': 1,
        'forebay_cache_total{outcome="bypass",profile="default"}': 1,
        'forebay_cache_admissions_total{profile="faq",result="stored"}': 1,
        'forebay_stage_seconds_count{stage="clean"}': 3,
        'forebay_stage_seconds_count{stage="cache"}': 3,
        'forebay_stage_seconds_count{stage="route"}': 2,  # a hit is answered before it
        'forebay_ttft_seconds_count{profile="faq",quality="FULL"}': 1,
    }
    assert expected == {name: moved.get(name) for name in expected}
    for stage in ("clean", "cache", "classify", "route", "admit"):
        assert 0 < moved[f'forebay_stage_seconds_sum{{stage="{stage}"}}'] < 1
    tokens = {
        direction: moved[
            f'forebay_tokens_total{{direction="{direction}",profile="faq",quality="FULL"}}'
        ]
        for direction in ("in", "out", "saved")
    }
    assert tokens["saved"] == tokens["in"] + tokens["out"] > 2
    for direction in ("in", "out"):
        saved = f'forebay_cache_saved_tokens_total{{direction="{direction}",profile="faq"}}'
        assert tokens[direction] == moved[saved]
    assert 0 == after["forebay_in_flight"]


# --- Health --------------------------------------------------------------------------------------


async def test_health_is_told_by_envoy_and_by_forebay(
    gateway: Gateway, call: Caller, http: aiohttp.ClientSession
) -> None:
    """On the gateway's port, for Kubernetes, and on the server's own; no upstream is asked."""
    mark = gateway.upstream.mark()
    assert (200, b"ok\n") == ((reply := await call.send("GET", "/healthz")).status, reply.body)
    assert (200, {"status": "ready"}) == (
        (reply := await call.send("GET", "/readyz")).status,
        reply.json,
    )
    for path, status in (("healthz", "live"), ("readyz", "ready")):
        async with http.get(f"http://127.0.0.1:{gateway.admin_port}/{path}") as own:
            assert (200, {"status": status}) == (own.status, await own.json())
    assert mark == gateway.upstream.mark()


# --- Logs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [dialect for dialect, *_ in BY_PROVIDER])
async def test_forebay_writes_one_line_for_each_exchange(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """JSON, with what was decided, how long it took and what it cost; a hit says what it saved."""
    asked = ask_for(dialect, question)
    with gateway.watch() as miss:
        await call(asked, "faq")
    with gateway.watch() as hit:
        await call(asked, "faq")
    (first,), (second,) = miss.lines, hit.lines
    facts: dict[str, Any] = {
        "profile": "faq",
        "dialect": dialect,
        "model": "m",
        "stream": False,
        "quality": "FULL",
        "status": 200,
        "event": "exchange",
        "level": "info",
    }
    assert facts == {key: first[key] for key in facts} == {key: second[key] for key in facts}
    assert ("complete", "full", "stop") == (first["outcome"], first["pool"], first["finish"])
    assert "answered" == second["outcome"]
    assert ["clean", "cache", "classify", "route", "admit"] == list(first["stages_us"])
    assert ["clean", "cache"] == list(second["stages_us"])
    assert ("miss", 1) == (first["notes"]["cache"], first["notes"]["cache.sightings"])
    tokens = first["tokens"]
    assert ("hit", tokens["input"], tokens["output"]) == (
        second["notes"]["cache"],
        second["notes"]["saved.input_tokens"],
        second["notes"]["saved.output_tokens"],
    )
    assert min(first["us"], first["ttft_us"], second["us"]) > 0


async def test_envoy_writes_one_line_for_each_request(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """With Forebay's decisions and the time that Envoy waited for it in each phase."""
    asked = ask_for(CHAT, f"List the parts. {question}")
    trace_id = uuid4().hex
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    with gateway.watch():
        miss = await call(asked, "faq", headers)
    hit = await call(asked, "faq", headers)
    lines = gateway.access_log.wait_for(lambda line: trace_id in line, count=2)
    first, second = map(json.loads, lines)
    facts = {
        "method": "POST",
        "status": 200,
        "profile": "faq",
        "pool": "best_effort",
        "dialect": CHAT,
        "model": "m",
        "x_cache": "MISS",
        "x_model_quality": "BEST_EFFORT",
        "route": "faq.chosen",
        "path": asked.path,
        "upstream_cluster": "best_effort",
        "upstream_host": f"127.0.0.1:{gateway.upstream.ports['best_effort'][0]}",
        "failed_open": "0",
        "bytes_in": len(asked.body),
        "bytes_out": len(miss.body),
    }
    assert facts == {key: first[key] for key in facts}
    phases = ("request_headers", "request_body", "reply_headers", "reply_body")
    assert all(int(first[f"forebay_{phase}_us"]) > 0 for phase in phases)
    facts = {
        "status": 200,
        "route": "faq",
        "x_cache": "HIT",
        "x_model_quality": "BEST_EFFORT",
        "details": "forebay_200",
        "bytes_out": len(hit.body),
    }
    assert facts == {key: second[key] for key in facts}
    assert "upstream_host" not in second


async def test_a_reply_says_how_long_each_stage_took(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Server-Timing in milliseconds: the filters in their order, and the whole."""
    asked = ask_for(CHAT, question)
    with gateway.watch():
        miss = await call(asked, "faq")
    hit = await call(asked, "faq")
    for reply, stages in (
        (miss, ["clean", "cache", "classify", "route", "admit", "forebay"]),
        (hit, ["clean", "cache", "forebay"]),
    ):
        entries = [entry.split(";dur=") for entry in reply.headers["server-timing"].split(", ")]
        assert stages == [name for name, _ in entries]
        *parts, whole = (float(duration) for _, duration in entries)
        assert 0 < sum(parts) < whole


# --- Traces --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "provider", "operation"), BY_PROVIDER)
async def test_one_trace_holds_envoys_spans_and_forebays(
    gateway: Gateway,
    call: Caller,
    receiver: OtlpReceiver,
    question: str,
    dialect: str,
    provider: str,
    operation: str,
) -> None:
    """The caller's span, Envoy's of the request, its call to Forebay, and Forebay's below that.

    The upstream gets the same trace id; the logs name it too.
    """
    trace_id, caller = uuid4().hex, "b7ad6b7169203331"
    with gateway.watch() as seen:
        headers = {"traceparent": f"00-{trace_id}-{caller}-01"}
        await call(ask_for(dialect, question), "faq", headers)
    spans = {span.name: span for span in receiver.trace(trace_id, 4)}
    ours = spans[f"{operation} m"]
    request = spans["POST faq"]
    (to_forebay,) = (span for span in spans.values() if span.span_id == ours.parent_span_id)
    assert request.span_id == to_forebay.parent_span_id
    assert caller == request.parent_span_id.hex()
    (upstream,) = (span for span in spans.values() if span not in (ours, request, to_forebay))
    assert f"00-{trace_id}-{upstream.span_id.hex()}-01" == seen.received[0].headers["traceparent"]
    facts = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "forebay.profile": "faq",
        "forebay.dialect": dialect,
        "forebay.cache": "miss",
        "forebay.quality": "FULL",
        "http.response.status_code": 200,
    }
    told = attributes(ours)
    assert facts == {key: told.get(key) for key in facts}
    tokens = seen.lines[0]["tokens"]
    assert [tokens["input"], tokens["output"]] == [
        told["gen_ai.usage.input_tokens"],
        told["gen_ai.usage.output_tokens"],
    ]
    assert ["clean", "cache", "classify", "route", "admit"] == [event.name for event in ours.events]
    assert trace_id == seen.lines[0]["trace_id"]
    gateway.access_log.wait_for(lambda line: f'"trace_id":"{trace_id}"' in line)


async def test_a_hit_is_a_trace_without_an_upstream(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """Three spans; Forebay's says that it was one."""
    asked, trace_id = ask_for(CHAT, question), uuid4().hex
    with gateway.watch():
        await call(asked, "faq")
    with gateway.watch():
        await call(asked, "faq", {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    spans = receiver.trace(trace_id, 3)
    (ours,) = (span for span in spans if span.name == "chat m")
    assert 3 == len(spans)
    told = attributes(ours)
    assert ("hit", "answered") == (told["forebay.cache"], told["forebay.outcome"])


async def test_a_call_without_a_trace_begins_one(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """Envoy makes its id; the upstream and Forebay's log have the same."""
    with gateway.watch() as seen:
        await call(Ask("/v1/chat/completions", ask_for(CHAT, question).body))
    trace_id = seen.lines[0]["trace_id"]
    assert trace_id == seen.received[0].headers["traceparent"].split("-")[1]
    assert "chat m" in {span.name for span in receiver.trace(trace_id, 4)}


async def test_a_caller_that_wants_no_trace_gets_none(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """Its traceparent says so, and reaches the upstream as it is decided."""
    quiet, loud = uuid4().hex, uuid4().hex
    with gateway.watch(exchanges=2) as seen:
        for seed, trace_id, flag in ((0, quiet, "00"), (1, loud, "01")):
            headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-{flag}"}
            await call(ask_for(CHAT, question, seed=seed), "faq", headers)
    receiver.trace(loud, 4)
    assert not [span for span in receiver.spans if span.trace_id.hex() == quiet]
    assert seen.received[0].headers["traceparent"].endswith("-00")
