"""A pool on its way in, behind real Envoy: who is served where, and what nobody may notice."""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from filters.document import encode
from tests.calls import Caller, Reply, ask_for, streamed_text, text_of
from tests.e2e.conftest import Gateways
from tests.e2e.test_pick import change
from tests.exchanges import answer
from tests.gateway import PATIENCE_S, SHIPPED, Edit, Gateway, Upstream, dead_port
from tests.web_server import end

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EXAMPLE: Final = SHIPPED.parent / "examples" / "stages.yaml"
CHAT: Final = "openai.chat"
OLD_SAYS: Final = "one two three four"
NEW_SAYS: Final = "one two three four umbrella bicycle"
TENANTS: Final = [f"key-{number}" for number in range(80)]


class Model:
    """A model server that always says the same; `status` and `hangs` may be changed."""

    def __init__(self, text: str, finish: str = "stop") -> None:
        self.text = text
        self.finish = finish
        self.status = 200
        self.hangs = False
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0
        self._runner: Final = web.ServerRunner(
            web.Server(self._take, access_log=None), shutdown_timeout=0.1
        )

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await end(self._runner)

    async def _take(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append((request.raw_path, headers, body))
        if self.hangs:
            await asyncio.Event().wait()
        if json.loads(body).get("stream"):
            return web.Response(body=self._events(), content_type="text/event-stream")
        whole = json.loads(answer(CHAT, self.text))
        whole["choices"][0]["finish_reason"] = self.finish
        return web.Response(body=encode(whole), status=self.status, content_type="application/json")

    def _events(self) -> bytes:
        pieces = [{"delta": {"role": "assistant", "content": self.text}}]
        pieces.append({"delta": {}, "finish_reason": self.finish})  # type: ignore[dict-item]
        chunks = [
            {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, **piece}]}
            for piece in pieces
        ]
        events = [b"data: " + encode(chunk) + b"\n\n" for chunk in chunks]
        return b"".join(events) + b"data: [DONE]\n\n"


@pytest.fixture
async def old() -> AsyncIterator[Model]:
    """Run the pool whose place is taken."""
    model = Model(OLD_SAYS)
    await model.start()
    yield model
    await model.stop()


@pytest.fixture
async def new() -> AsyncIterator[Model]:
    """Run the pool on its way in."""
    model = Model(NEW_SAYS, finish="length")
    await model.start()
    yield model
    await model.stop()


def staged(step: str, share: float, **more: Any) -> Edit:
    """Have the example's stage say something else."""

    def edit(tree: dict[str, Any]) -> None:
        stage = {"step": step, "pool": "coming", "share": share, **more}
        tree["node"]["metadata"]["forebay"]["pools"]["full"]["stage"] = stage

    return edit


@pytest.fixture
def opened(gateways: Gateways, old: Model, new: Model) -> Any:
    """Return what runs the example before the two pools."""

    def open_with(edit: Edit, **ports: list[int]) -> Any:
        pools = {"full": [old.port], "coming": [new.port]} | ports
        return gateways.open(pools=pools, edit=edit, file=EXAMPLE)

    return open_with


async def counted(gateway: Gateway, name: str, least: float) -> dict[str, float]:
    """Return the metrics once a sample has come to a value."""
    until = time.monotonic() + PATIENCE_S
    while True:
        metrics = await asyncio.to_thread(gateway.metrics)
        if metrics.get(name, 0) >= least:
            return metrics
        assert time.monotonic() < until, f"{name} is {metrics.get(name)}"


def trial(name: str, step: str | None = None, **labels: str) -> str:
    pairs = {"pool": "full", "new": "coming", **({"step": step} if step else {}), **labels}
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
    return f"forebay_trial_{name}{{{inside}}}"


PAIRS: Final = trial("pairs_total", finish="different")


def said(reply: Reply) -> str:
    assert 200 == reply.status, reply.body
    return text_of(CHAT, reply.body)


# --- The shadow ----------------------------------------------------------------------------------


async def test_a_shadow_is_asked_the_same_and_nobody_gets_its_answer(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """Neither the client nor, from the cache, anybody after him."""
    with opened(staged("shadow", 1.0)) as gateway:
        caller = Caller(http, gateway.url, "key")
        ask = ask_for(CHAT, "Why is the sea calm?", temperature=0)
        replies = [await caller(ask) for _ in range(7)]
        assert [OLD_SAYS] * 7 == [said(reply) for reply in replies]
        assert replies[-1].cache == "HIT"
        asked = len(old.received)
        metrics = await counted(gateway, PAIRS, asked)
        assert asked == metrics[PAIRS] == len(new.received)
        for (path, headers, body), (to_path, to_headers, to_body) in zip(
            old.received, new.received, strict=True
        ):
            assert (path, body) == (to_path, to_body)
            for name in ("authorization", "content-type"):
                assert headers[name] == to_headers[name]
            assert not any(name.startswith("x-forebay") for name in to_headers)
        assert not any("umbrella" in line for log in gateway.logs for line in log.since())


async def test_the_figures_are_those_of_the_two_answers(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """Four of six words in order are the same: an F1 of 2 x 4 / 10; they end differently."""
    with opened(staged("shadow", 1.0)) as gateway:
        caller = Caller(http, gateway.url, "key")
        for number in range(5):
            assert OLD_SAYS == said(await caller(ask_for(CHAT, f"Question {number}?")))
        streamed = ask_for(CHAT, "Question 5?", stream=True)
        assert OLD_SAYS == streamed_text(CHAT, streamed, await caller(streamed))
        metrics = await counted(gateway, PAIRS, 6)
        assert 6 == metrics[trial("likeness_count")]
        assert 6 * 0.8 == pytest.approx(metrics[trial("likeness_sum")])
        for side, finish in (("old", "stop"), ("new", "length")):
            of_side = {"step": "shadow", "side": side}
            assert 6 == metrics[trial("answers_total", **of_side, ending="answered")]
            assert 6 == metrics[trial("finishes_total", **of_side, finish=finish)]
            assert 6 == metrics[trial("seconds_count", **of_side)]
            assert 1 == metrics[trial("first_token_seconds_count", **of_side)]
        assert 6 == metrics[trial("length_ratio_count")]
        assert metrics[trial("length_ratio_sum")] > 6


async def test_the_report_says_what_the_answers_were(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Read from the server's admin port, with a page beside it; a bound ends it with 1."""
    with opened(staged("shadow", 1.0, at_once=64)) as gateway:
        caller = Caller(http, gateway.url, "key")
        asked = trial("answers_total", "shadow", side="old", ending="answered")
        for number in range(40):
            new.status = 503 if number % 10 == 9 else 200
            assert OLD_SAYS == said(await caller(ask_for(CHAT, f"Question {number}?")))
            await counted(gateway, asked, number + 1)
        await counted(gateway, PAIRS, 36)
        page = tmp_path / "page.html"
        words = ("--admin", f"127.0.0.1:{gateway.admin_port}", "--json", "--html", str(page))
        code, report = await reported(*words)
        (one,) = report["trials"]
        assert (0, "shadow") == (code, one["step"])
        assert (36, 4) == (one["new"]["answered"], one["new"]["errors"])
        assert 0.8 == pytest.approx(one["pairs"]["likeness"]["mean"])
        assert (36, 0.0) == (one["pairs"]["compared"], one["pairs"]["same_finish"])
        assert "answers 0.80 alike" in one["verdict"]
        assert one["verdict"].endswith("4 of 40 errors (0 of 40 in full)")
        assert "<svg" in page.read_text()
        code, report = await reported(*words, "--errors", "0.05", "--unlike", "0.7")
        assert (1, ["errors"]) == (code, report["trials"][0]["passed"])


async def reported(*words: str) -> tuple[int | None, dict[str, Any]]:
    """Run the report as an operator does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ext_proc", "report", "stages", *words, stdout=PIPE
    )
    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out)
    return process.returncode, found


async def test_a_shadow_that_is_dead_costs_no_client_anything(
    opened: Any, old: Model, http: aiohttp.ClientSession
) -> None:
    """Its failures are counted."""
    with dead_port() as dead:
        port = dead.getsockname()[1]
        with opened(staged("shadow", 1.0), coming=[port]) as gateway:
            caller = Caller(http, gateway.url, "key")
            for number in range(6):
                assert OLD_SAYS == said(await caller(ask_for(CHAT, f"Question {number}?")))
            failed = trial("answers_total", "shadow", side="new", ending="failed")
            metrics = await counted(gateway, failed, 6)
            assert 6 == metrics[failed]
            assert 6 == metrics[trial("answers_total", "shadow", side="old", ending="answered")]


async def test_shadows_that_hang_hold_up_nobody(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """As many as may be under way are; the others are not asked, and counted."""
    new.hangs = True
    with opened(staged("shadow", 1.0, at_once=2)) as gateway:
        caller = Caller(http, gateway.url, "key")
        replies = await asyncio.gather(
            *(caller(ask_for(CHAT, f"Question {number}?")) for number in range(12))
        )
        assert {OLD_SAYS} == {said(reply) for reply in replies}
        full = trial("skipped_total", "shadow", reason="full")
        metrics = await counted(gateway, full, 10)
        assert (10, 2) == (metrics[full], metrics["forebay_trial_shadows"])


async def test_a_shadow_that_is_late_is_given_up(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """And Envoy lets go of it, too."""
    new.hangs = True
    with opened(staged("shadow", 1.0, deadline="50ms")) as gateway:
        assert OLD_SAYS == said(await Caller(http, gateway.url)(ask_for(CHAT, "Why?")))
        late = trial("answers_total", "shadow", side="new", ending="late")
        assert 1 == (await counted(gateway, late, 1))[late]


@pytest.mark.parametrize("dialect", ["openai.chat", "anthropic.messages", "gemini.generate"])
async def test_a_shadow_is_asked_at_the_path_that_the_other_pool_saw(
    gateways: Gateways, upstream: Upstream, http: aiohttp.ClientSession, dialect: str
) -> None:
    """On the shipped file, where the name of a profile is taken off, with any way to send a key."""

    def edit(tree: dict[str, Any]) -> None:
        stage = {"step": "shadow", "pool": "best_effort", "share": 1}
        tree["node"]["metadata"]["forebay"]["pools"]["full"]["stage"] = stage

    with gateways.open(upstream=upstream, edit=edit) as gateway:
        mark = upstream.mark()
        ask = ask_for(dialect, "Why is the sea calm?")
        assert 200 == (await Caller(http, gateway.url, "key")(ask, "faq")).status
        received = await asyncio.to_thread(upstream.wait_for, 2, mark=mark)
        assert {"full", "best_effort"} == {one.replica for one in received}
        assert [ask.path] * 2 == [one.path for one in received]
        assert received[0].body == received[1].body
        keys = ("authorization", "x-api-key", "x-goog-api-key")
        first, second = ({key: one.headers.get(key) for key in keys} for one in received)
        assert first == second
        assert any(first.values())


# --- The canary ----------------------------------------------------------------------------------


async def served_new(gateway: Gateway, http: aiohttp.ClientSession, mark: str) -> set[str]:
    """Ask as every tenant; return whom the pool on its way in served."""
    moved = set()
    for tenant in TENANTS:
        reply = await Caller(http, gateway.url, tenant)(ask_for(CHAT, f"Question {mark}?"))
        if said(reply) == NEW_SAYS:
            moved.add(tenant)
    return moved


async def test_tenants_move_by_the_share_and_stay_without_a_restart(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """A greater share adds others; the last step takes all, and none is the way back."""
    share = 0.3
    with opened(staged("canary", share)) as gateway:
        moved = await served_new(gateway, http, "first")
        deviation = math.sqrt(len(TENANTS) * share * (1 - share))
        assert abs(len(moved) - len(TENANTS) * share) < 4 * deviation
        assert moved == await served_new(gateway, http, "second")

        staged("canary", 0.6)(gateway.tree)
        change(gateway)
        more = await served_new(gateway, http, "third")
        assert moved < more

        staged("full", 0.0)(gateway.tree)
        change(gateway)
        assert set(TENANTS) == await served_new(gateway, http, "fourth")

        del gateway.tree["node"]["metadata"]["forebay"]["pools"]["full"]["stage"]
        change(gateway)
        assert set() == await served_new(gateway, http, "fifth")


async def test_a_canarys_answers_are_kept_for_those_whom_it_serves(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """Back from it, a tenant finds the old pool's again; for the last step they are the same."""
    ask = ask_for(CHAT, "Why is the sea calm?", temperature=0)

    async def asked(times: int) -> tuple[set[str], str | None]:
        replies = [await Caller(http, gateway.url, "key")(ask) for _ in range(times)]
        return {said(reply) for reply in replies}, replies[-1].cache

    def whole(tree: dict[str, Any]) -> None:
        del tree["node"]["metadata"]["forebay"]["pools"]["full"]["stage"]

    new.finish = "stop"  # an answer that was cut is not kept
    with opened(whole) as gateway:
        assert ({OLD_SAYS}, "HIT") == await asked(7)
        for edit, text, times in (
            (staged("shadow", 0.0), OLD_SAYS, 1),
            (staged("canary", 1.0), NEW_SAYS, 7),
            (staged("full", 1.0), NEW_SAYS, 1),
            (whole, OLD_SAYS, 1),
        ):
            edit(gateway.tree)
            change(gateway)
            assert ({text}, "HIT") == await asked(times)


async def test_a_canary_is_compared_with_those_that_stayed(
    opened: Any, old: Model, new: Model, http: aiohttp.ClientSession
) -> None:
    """Every exchange of either pool, at a half; what fails there is the client's.

    So it is where a route chooses the pool.
    """
    new.status = 500

    def routed(tree: dict[str, Any]) -> None:
        staged("canary", 0.5)(tree)
        route = {"downgrade": False, "pool": "full"}
        tree["node"]["metadata"]["forebay"]["profiles"]["default"]["route"] = route

    with opened(routed) as gateway:
        statuses = [
            (await Caller(http, gateway.url, tenant)(ask_for(CHAT, "Why?"))).status
            for tenant in TENANTS
        ]
        failed = trial("answers_total", "canary", side="new", ending="failed")
        answered = trial("answers_total", "canary", side="old", ending="answered")
        metrics = await counted(gateway, failed, statuses.count(500))
        assert (statuses.count(200), statuses.count(500)) == (metrics[answered], metrics[failed])
        assert 0 < statuses.count(500) < len(TENANTS)
