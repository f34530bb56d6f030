"""Embeddings asked for together by way of a socket: who waits for whom, what each is given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from ext_proc.adapters import batches as batches_module
from ext_proc.adapters.batches import EgressBatches, EgressBerth
from ext_proc.tools.simulated_apis import openai_embeddings
from filters.api import Answer, Part
from filters.document import Document, encode
from filters.gathering import OPENAI_WAY, Single
from tests.fakes import FakeClock
from tests.web_server import end

PATH: Final = "/v1/embeddings"
PATIENCE_S: Final = 60.0
LONG_S: Final = 600.0  # a time that no test reaches
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Watch:
    """Keeps how every batch went."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    def batch_asked(self, outcome: str, size: int) -> None:
        self.told.append((outcome, size))
        self.changed.set()


class Egress:
    """A server on a socket in the listener's stead, and the port that asks there.

    It answers embeddings, when it is let; or what `reply` returns.
    """

    def __init__(self, path: str, **bounds: int) -> None:
        self.received: list[web.BaseRequest] = []
        self.inputs: list[list[Any]] = []
        self.came = asyncio.Event()
        self.left = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.reply: Callable[[], web.Response] | None = None
        self.clock = FakeClock()
        self.watch = Watch()
        self.batches = EgressBatches(path, self.clock, self.watch, **bounds)
        self.batches.follow({"full": "servers"})

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.received.append(request)
        self.inputs.append(body["input"])
        self.came.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        if self.reply is not None:
            return self.reply()
        return web.json_response(openai_embeddings(body)[1], headers={"x-request-id": "r"})

    def berth(
        self,
        text: str = "one",
        *,
        most: int = 16,
        wait_s: float = LONG_S,
        deadline_s: float = LONG_S,
        **more: Any,
    ) -> EgressBerth:
        return self.batches.take(
            part(text, **more), most=most, wait_s=wait_s, deadline_s=deadline_s
        )

    def idle(self) -> bool:
        """Tell whether nothing is held."""
        batches = self.batches
        return (0, 0, 0, 0) == (len(batches), batches.waiting, batches.held_bytes, batches.calls)

    async def outcome(self) -> tuple[str, int]:
        """Wait until a batch is over."""
        async with asyncio.timeout(PATIENCE_S):
            await self.watch.changed.wait()
        self.watch.changed.clear()
        return self.watch.told[-1]


def part(text: str, **more: Any) -> Part:
    body = encode({"model": "m", "input": text})
    single = OPENAI_WAY.take_apart(PATH, Document(body), len)
    assert isinstance(single, Single)
    settings: dict[str, Any] = {
        "way": OPENAI_WAY,
        "single": single,
        "pool": "full",
        "path": PATH,
        "headers": {"authorization": "Bearer k", "content-type": "application/json"},
        "tenant": "t",
    }
    return Part(**settings | more)


def said(answer: Answer | None) -> Any:
    """Return the vector that an answer holds."""
    assert answer is not None
    assert answer.relayed
    return json.loads(answer.body)["data"][0]["embedding"]


def vector(text: str) -> Any:
    return openai_embeddings({"model": "m", "input": text})[1]["data"][0]["embedding"]


async def given(*berths: EgressBerth) -> list[Answer | None]:
    async with asyncio.timeout(PATIENCE_S):
        return list(await asyncio.gather(*(berth.answer() for berth in berths)))


@contextlib.asynccontextmanager
async def serving(**bounds: int) -> AsyncIterator[Egress]:
    with tempfile.TemporaryDirectory(prefix="forebay-test-") as folder:
        egress = Egress(f"{folder}/e", **bounds)
        server = web.Server(egress.take, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, f"{folder}/e").start()
        try:
            yield egress
        finally:
            egress.open.set()
            await egress.batches.close()
            await end(runner)


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    async with serving() as egress:
        yield egress


# --- Who waits -----------------------------------------------------------------------------------


async def test_nobody_waits_where_nothing_is_under_way(egress: Egress) -> None:
    """One after the other, each goes by itself; nothing is asked here and nothing is left."""
    for _ in range(3):
        berth = egress.berth()
        assert [None] == await given(berth)
        assert berth.leads
        berth.leave()
    assert egress.idle()
    assert [] == egress.received


async def test_those_who_come_meanwhile_go_as_one_when_the_first_is_answered(
    egress: Egress,
) -> None:
    """Each is given its own, in whatever order they came."""
    first = egress.berth("first")
    texts = [f"text {number}" for number in range(5)]
    others = [egress.berth(text) for text in texts]
    assert 5 == egress.batches.waiting
    first.leave()
    answers = await given(*others)
    assert [vector(text) for text in texts] == [said(answer) for answer in answers]
    assert [texts] == egress.inputs
    assert [5] * 5 == [berth.size for berth in others]
    assert ("answered", 5) == await egress.outcome()
    assert egress.idle()


async def test_a_full_batch_does_not_wait(egress: Egress) -> None:
    """200 at once are the first, twelve full batches and what is left."""
    first = egress.berth("first")
    others = [egress.berth(f"{number}") for number in range(199)]
    assert (12, 199) == (egress.batches.calls, egress.batches.waiting)
    first.leave()
    answers = await given(*others)
    assert [vector(f"{number}") for number in range(199)] == [said(one) for one in answers]
    assert [7, *[16] * 12] == sorted(map(len, egress.inputs))


async def test_a_batch_goes_when_its_first_has_waited(egress: Egress) -> None:
    """However few there are, and though the one before is not answered."""
    egress.berth("first")
    others = [egress.berth("one", wait_s=0.01), egress.berth("two", wait_s=LONG_S)]
    assert [vector("one"), vector("two")] == [said(one) for one in await given(*others)]


async def test_whoever_gathered_nobody_goes_by_itself(egress: Egress) -> None:
    """A batch of one would be a way round for nothing; the next one waits for it."""
    first, second = egress.berth("first"), egress.berth("second")
    first.leave()
    assert [None] == await given(second)
    assert second.leads
    third = egress.berth("third")
    assert not third.leads
    second.leave()
    assert [None] == await given(third)
    third.leave()
    assert egress.idle()


async def test_kinds_do_not_wait_for_each_other(egress: Egress) -> None:
    """Another tenant, another credential, another path."""
    others: tuple[dict[str, Any], ...] = (
        {},
        {"tenant": "other"},
        {"headers": {"authorization": "Bearer other"}},
        {"path": "/v2/embeddings"},
    )
    assert all(egress.berth(**more).leads for more in others)
    assert 4 == len(egress.batches)


async def test_a_pool_that_nobody_knows_is_not_asked_here(egress: Egress) -> None:
    """Its requests go on, and no one waits for them."""
    berth = egress.berth(pool="other")
    assert ([None], False) == (await given(berth), berth.leads)


# --- What is sent and given ----------------------------------------------------------------------


async def test_a_call_has_the_headers_of_its_requests(egress: Egress) -> None:
    """And the pool's cluster, and the first one's trace."""
    first = egress.berth("first")
    others = [egress.berth("one", traceparent=TRACE), egress.berth("two")]
    first.leave()
    await given(*others)
    (request,) = egress.received
    expected = {"host", "content-length", "content-type", "authorization", "x-forebay-cluster"}
    assert expected | {"traceparent"} == {name.lower() for name in request.headers}
    assert ("POST", PATH) == (request.method, request.path)
    assert "servers" == request.headers["x-forebay-cluster"]
    assert "Bearer k" == request.headers["authorization"]
    assert TRACE == request.headers["traceparent"]


async def test_a_call_says_that_it_is_json_where_its_requests_said_nothing(egress: Egress) -> None:
    """Servers may refuse what is of another type."""
    first, *others = (egress.berth(text, headers={}) for text in ("0", "1", "2"))
    first.leave()
    await given(*others)
    assert "application/json" == egress.received[0].headers["content-type"]


async def test_a_reply_that_is_too_long_is_not_read(
    egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, whatever a server says."""
    monkeypatch.setattr(batches_module, "MOST_ANSWER_BYTES", 100)
    first, *others = (egress.berth(text) for text in ("0", "1", "2"))
    first.leave()
    assert [None, None] == await given(*others)
    assert ("unreadable", 2) == await egress.outcome()


@pytest.mark.parametrize("before", ["//elsewhere", "///elsewhere:80", "http://elsewhere"])
async def test_no_path_leads_past_the_proxy(egress: Egress, before: str) -> None:
    """A client's path with a host in it would take the credentials there."""
    path = before + PATH
    first, *others = (egress.berth(text, path=path) for text in ("0", "1", "2"))
    first.leave()
    await given(*others)
    (request,) = egress.received
    assert ("forebay", f"/{before.lstrip('/')}{PATH}") == (request.host, request.raw_path)


async def test_what_a_reply_says_of_itself_is_given_to_all(egress: Egress) -> None:
    """But not what belongs to one connection, or what only the gateway may say."""
    body = encode(openai_embeddings({"model": "m", "input": ["one", "two"]})[1])
    headers = {"x-request-id": "r", "set-cookie": "c=1", "x-forebay-pool": "p", "x-cache": "HIT"}
    egress.reply = lambda: web.Response(body=body, content_type="application/json", headers=headers)
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    for answer in await given(*others):
        assert answer is not None
        assert {"content-type", "server", "x-request-id"} == set(answer.headers)


def reply(status: int = 200, body: bytes = b"{}", **headers: str) -> Callable[[], web.Response]:
    return lambda: web.Response(
        status=status, body=body, content_type="application/json", headers=headers
    )


BAD: Final = {
    "one input is bad": ("refused", reply(400)),
    "too long together": ("refused", reply(413)),
    "cannot be read": ("refused", reply(422)),
    "not allowed": ("denied", reply(401)),
    "not known": ("denied", reply(404)),
    "sent elsewhere": ("denied", reply(307, location="/x")),
    "too many": ("throttled", reply(429)),
    "broken": ("failed", reply(500)),
    "down": ("failed", reply(503)),
    "another shape": ("unreadable", reply(200)),
    "too few": ("unreadable", reply(200, encode(openai_embeddings({"input": ["one"]})[1]))),
}


@pytest.mark.parametrize("case", BAD)
async def test_of_any_other_reply_all_go_by_themselves(egress: Egress, case: str) -> None:
    """As they came: what one text was the cause of is told to that one alone."""
    outcome, egress.reply = BAD[case]
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    assert [None, None] == await given(*others)
    assert [(outcome, False)] * 2 == [(berth.why, berth.leads) for berth in others]
    assert (outcome, 2) == await egress.outcome()
    assert egress.idle()


async def test_a_broken_connection_is_no_answer(tmp_path: Path) -> None:
    """No listener, no batch: it costs the requests nothing more than the attempt."""
    watch = Watch()
    batches = EgressBatches(str(tmp_path / "e"), FakeClock(), watch)
    batches.follow({"full": "servers"})
    first, *others = (
        batches.take(part(text), most=16, wait_s=LONG_S, deadline_s=LONG_S) for text in "abc"
    )
    first.leave()
    assert [None, None] == await given(*others)
    await batches.close()
    assert [("broken", 2)] == watch.told


async def test_a_late_call_is_given_up(egress: Egress) -> None:
    """The server learns that nobody waits, and the requests go by themselves."""
    egress.open.clear()
    first = egress.berth("first")
    others = [egress.berth(text, deadline_s=0.1) for text in ("one", "two")]
    first.leave()
    assert [None, None] == await given(*others)
    async with asyncio.timeout(PATIENCE_S):
        await egress.left.wait()
    assert ("late", 2) == await egress.outcome()


async def test_after_a_failure_a_kind_rests(egress: Egress) -> None:
    """All go by themselves for a while; other kinds do not."""
    egress.reply = reply(500)
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    await given(*others)
    await egress.outcome()
    resting = [egress.berth(), egress.berth()]
    assert ([None, None], [False, False]) == (
        await given(*resting),
        [berth.leads for berth in resting],
    )
    assert egress.berth(tenant="other").leads
    egress.clock.advance(batches_module.REST_S)
    assert egress.berth().leads


async def test_after_a_bad_text_a_kind_does_not_rest(egress: Egress) -> None:
    """The next ones need not be bad."""
    egress.reply = reply(400)
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    await given(*others)
    await egress.outcome()
    assert egress.berth().leads


async def test_few_kinds_are_remembered_as_resting(
    egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten, and asked together again."""
    monkeypatch.setattr(batches_module, "MOST_RESTING", 2)
    egress.reply = reply(500)
    for tenant in "abc":
        first, *others = (egress.berth(text, tenant=tenant) for text in ("0", "1", "2"))
        first.leave()
        await given(*others)
        await egress.outcome()
    assert [True, False, False] == [egress.berth(tenant=tenant).leads for tenant in "abc"]


# --- Who leaves ----------------------------------------------------------------------------------


async def test_who_leaves_while_others_gather_is_not_asked_for(egress: Egress) -> None:
    """The others are given their own."""
    first = egress.berth("first")
    others = [egress.berth(text) for text in ("one", "two", "three")]
    waiting = [asyncio.create_task(berth.answer()) for berth in others]
    await asyncio.sleep(0)
    waiting[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    others[1].leave()
    first.leave()
    async with asyncio.timeout(PATIENCE_S):
        assert [vector("one"), vector("three")] == [
            said(await waiting[0]),
            said(await waiting[2]),
        ]
    assert [["one", "three"]] == egress.inputs


async def test_who_leaves_a_call_leaves_the_others_theirs(egress: Egress) -> None:
    """Its answer is nobody's."""
    egress.open.clear()
    first = egress.berth("first")
    others = [egress.berth(text) for text in ("one", "two", "three")]
    waiting = [asyncio.create_task(berth.answer()) for berth in others]
    first.leave()
    async with asyncio.timeout(PATIENCE_S):
        await egress.came.wait()
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        egress.open.set()
        assert vector("two") == said(await waiting[1])
        assert vector("three") == said(await waiting[2])
    assert ("answered", 3) == await egress.outcome()
    assert egress.idle()


async def test_a_call_that_nobody_waits_for_is_given_up(egress: Egress) -> None:
    """The server learns of it."""
    egress.open.clear()
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    async with asyncio.timeout(PATIENCE_S):
        await egress.came.wait()
        for berth in others:
            berth.leave()
        await egress.left.wait()
    assert ("left", 2) == await egress.outcome()
    assert egress.idle()


async def test_a_call_that_all_leave_before_it_begins_holds_nothing(egress: Egress) -> None:
    """It never reaches the server, and the kind is free."""
    first, others = egress.berth("first"), [egress.berth("one"), egress.berth("two")]
    first.leave()
    for berth in others:
        berth.leave()
    assert ("left", 2) == await egress.outcome()
    assert egress.idle()
    assert [] == egress.received


async def test_a_batch_that_all_leave_never_goes(egress: Egress) -> None:
    """Its timer finds nothing."""
    first, second = egress.berth("first"), egress.berth("second", wait_s=0.01)
    second.leave()
    second.leave()
    third = egress.berth("third")
    first.leave()
    assert [None] == await given(third)
    third.leave()
    assert egress.idle()


async def test_a_leader_may_leave_again(egress: Egress) -> None:
    """At the reply's head, and at the end of the exchange."""
    first, second = egress.berth("first"), egress.berth("second")
    first.leave()
    first.leave()
    await given(second)
    assert 1 == len(egress.batches)


# --- Bounds --------------------------------------------------------------------------------------


async def test_who_finds_no_room_to_wait_goes_by_itself() -> None:
    """Neither in number nor in bytes is there more than may be."""
    for bounds in ({"most_waiting": 1}, {"most_bytes": len(b'"one"')}):
        async with serving(**bounds) as egress:
            egress.berth("first")
            egress.berth("one")
            last = egress.berth("two")
            assert ([None], "full") == (await given(last), last.why)


async def test_a_batch_too_many_is_dispersed() -> None:
    """One call may be open here: the second batch's requests go by themselves."""
    async with serving(most_calls=1) as egress:
        egress.open.clear()
        egress.berth("first")
        one = [egress.berth(text, most=2) for text in ("a", "b")]
        two = [egress.berth(text, most=2) for text in ("c", "d")]
        assert [None, None] == await given(*two)
        assert ["full", "full"] == [berth.why for berth in two]
        egress.open.set()
        assert [vector("a"), vector("b")] == [said(answer) for answer in await given(*one)]


async def test_closing_lets_all_go_by_themselves(egress: Egress) -> None:
    """Those who gather and those whose call is under way."""
    egress.open.clear()
    egress.berth("first")
    sent = [egress.berth(text, most=2) for text in ("a", "b")]
    gathering = [egress.berth(text) for text in ("c", "d")]
    waiting = [asyncio.create_task(berth.answer()) for berth in (*sent, *gathering)]
    async with asyncio.timeout(PATIENCE_S):
        await egress.came.wait()
        await egress.batches.close()
        assert [None] * 4 == await asyncio.gather(*waiting)
    assert (0, 0) == (egress.batches.waiting, egress.batches.calls)
