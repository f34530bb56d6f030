"""Who moves to a pool on its way in, and what becomes of the shadows."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pytest
from aiohttp import web

from ext_proc.adapters import stages as module
from ext_proc.adapters.stages import PoolStages, Shape, Stage, StagesOfAFile
from filters.api import Ending, Finish, Heard, Question, Staged, Step, Trial
from filters.errors import PortError
from tests.calls import Ask, ask_for
from tests.exchanges import WORDS, answer, exchange_of
from tests.fakes import FakeClock
from tests.web_server import end

T = TypeVar("T")
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

LONG_S: Final = 60.0  # a deadline that no test reaches
TENANTS: Final = [f"{number:032x}" for number in range(4_000)]
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OLD: Final = Heard(Ending.ANSWERED, 1_000, 0, "one two three four", Finish.STOP)


class Watch:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, Heard]] = []
        self.pairs: list[float | None] = []
        self.skips: list[str] = []
        self.told = asyncio.Event()

    def trial_heard(self, trial: Trial, pool: str, heard: Heard) -> None:
        self.answers.append((pool, heard))

    def trial_compared(self, trial: Trial, old: Heard, new: Heard, alike: float | None) -> None:
        self.pairs.append(alike)

    def trial_skipped(self, trial: Trial, why: str) -> None:
        self.skips.append(why)

    @property
    def new(self) -> Heard:
        """What was heard of the only shadow."""
        (heard,) = (heard for pool, heard in self.answers if pool == "coming")
        return heard


class Here:
    """Workers that work where they are called; `failing` makes them raise."""

    failing = False

    async def run(self, work: Callable[..., T], *arguments: Any, deadline_s: float) -> T:
        if self.failing:
            raise PortError("told to fail")
        return work(*arguments)


def stage(step: Step = Step.SHADOW, share: float = 1.0, **more: Any) -> Stage:
    return Stage(
        step, "coming", "cluster-of-coming", share, **{"deadline_s": LONG_S, "at_once": 2} | more
    )


@dataclass(slots=True)
class Table:
    """Stages with loaded dice, and what they tell."""

    path: str = "/nowhere"
    dice: Iterator[float] = field(default_factory=lambda: iter(()))
    watch: Watch = field(default_factory=Watch)
    workers: Here = field(default_factory=Here)
    stages: PoolStages = field(init=False)
    newest: StagesOfAFile = field(init=False)

    def __post_init__(self) -> None:
        self.stages = PoolStages(
            self.path,
            FakeClock(),
            self.workers,
            self.watch,
            nobody="nobody",
            dice=lambda: next(self.dice),
        )

        self.follow({})

    def follow(self, stages: Mapping[str, Stage], shape: Shape = lambda profile, moved: "") -> None:
        self.newest = self.stages.follow(stages, shape)

    def moved(self, tenants: list[str] = TENANTS, pool: str = "full") -> set[str]:
        self.dice = iter(lambda: 1.0, None)
        return {one for one in tenants if self.newest.choose(pool, one).pool != pool}


# --- Who moves -----------------------------------------------------------------------------------


def test_a_pool_without_a_stage_serves_by_itself() -> None:
    """Nobody looks, and nothing is made anew for the second exchange."""
    table = Table()
    table.follow({"other": stage(Step.FULL)})
    first = table.newest.choose("full", "tenant")
    assert Staged("full") == first
    assert first is table.newest.choose("full", "another")


def test_a_pool_that_is_in_serves_all() -> None:
    """And nobody compares any more."""
    table = Table()
    table.follow({"full": stage(Step.FULL, share=0.0)})
    assert Staged("coming") == table.newest.choose("full", "tenant")


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_a_canary_serves_its_share_of_the_tenants(share: float) -> None:
    """Within four deviations of what throwing a coin for each of them gives."""
    table = Table()
    table.follow({"full": stage(Step.CANARY, share)})
    deviation = math.sqrt(len(TENANTS) * share * (1 - share))
    assert abs(len(table.moved()) - len(TENANTS) * share) < 4 * deviation


def test_a_tenant_stays_and_a_greater_share_adds_others() -> None:
    """From none to all."""
    table = Table()
    before: set[str] = set()
    for share in (0.0, 0.05, 0.05, 0.2, 0.7, 1.0):
        table.follow({"full": stage(Step.CANARY, share)})
        moved = table.moved()
        assert before <= moved, share
        before = moved
    assert set(TENANTS) == before


def test_the_first_to_move_are_not_the_same_for_every_pool() -> None:
    """About a tenth of a tenth is in both tenths."""
    table = Table()
    table.follow({name: stage(Step.CANARY, 0.1) for name in ("full", "cheap")})
    both = table.moved() & table.moved(pool="cheap")
    assert 0 < len(both) < len(TENANTS) * 0.03


def test_requests_of_nobody_move_one_by_one() -> None:
    """All requests without a credential are one tenant, which must not move as one."""
    table = Table(dice=iter((0.19, 0.21, 0.99, 0.05)))
    table.follow({"full": stage(Step.CANARY, 0.2)})
    pools = [table.newest.choose("full", "nobody").pool for _ in range(3)]
    assert ["coming", "full", "coming"] == pools


def test_of_the_old_pool_as_much_is_heard_as_of_the_canary() -> None:
    """To look at every reply of all the others would cost more than it tells."""
    table = Table()
    table.follow({"full": stage(Step.CANARY, 0.2)})
    tenant = min(set(TENANTS) - table.moved())
    table.dice = iter((0.24, 0.26))
    heard = [table.newest.choose("full", tenant).trial for _ in range(2)]
    assert [Trial("full", "coming", Step.CANARY), None] == heard


def test_a_shadow_is_drawn_by_lot() -> None:
    """The client is answered by the old pool whichever way it falls."""
    table = Table(dice=iter((0.09, 0.11)))
    table.follow({"full": stage(Step.SHADOW, 0.1)})
    trial = Trial("full", "coming", Step.SHADOW)
    expected = [Staged("full", "coming", trial), Staged("full")]
    assert expected == [table.newest.choose("full", "tenant") for _ in range(2)]


def test_answers_are_shaped_by_who_moved() -> None:
    """For each combination of pools they are asked once; nobody's are as they were."""
    asked: list[tuple[str, frozenset[str]]] = []

    def shape(profile: str, moved: frozenset[str]) -> str:
        asked.append((profile, moved))
        return "+".join(sorted(moved))

    table = Table()
    everybody = {"full": stage(Step.CANARY), "cheap": stage(Step.CANARY, 0.5)}
    table.follow({**everybody, "large": stage(Step.SHADOW)}, shape)
    shapes = {tenant: table.newest.shaped_by("default", tenant) for tenant in TENANTS}
    moved = table.moved(pool="cheap")
    assert {one: "cheap+full" if one in moved else "full" for one in TENANTS} == shapes
    assert 2 == len(asked)
    assert "" == table.newest.shaped_by("default", "nobody")
    table.follow({})
    assert "" == table.newest.shaped_by("default", TENANTS[0])


def test_who_began_before_the_file_changed_goes_by_what_it_said() -> None:
    """Else a tenant whom a greater share moves would put the canary's answer where others look."""
    table = Table()
    kept: list[tuple[str, str]] = []
    for share in (0.0, 0.4, 0.9):
        table.follow({"full": stage(Step.CANARY, share)}, lambda profile, moved: "coming")
        before = table.newest
        table.follow({"full": stage(Step.FULL)})
        table.dice = iter(lambda: 1.0, None)
        kept += [(before.shaped_by("p", one), before.choose("full", one).pool) for one in TENANTS]
    assert {("", "full"), ("coming", "coming")} == set(kept)
    assert Staged("coming") == table.newest.choose("full", TENANTS[0])


def test_what_a_canary_said_is_passed_on() -> None:
    """Of either pool; no shadow is asked."""
    table = Table()
    staged = Staged("coming", trial=Trial("full", "coming", Step.CANARY))
    table.newest.heard(staged, OLD)
    assert [("coming", OLD)] == table.watch.answers
    table.stages.heard(Staged("full"), OLD)
    table.stages.skipped(Staged("full"), "unreadable")
    assert ([("coming", OLD)], []) == (table.watch.answers, table.watch.skips)


# --- The shadow ----------------------------------------------------------------------------------


class Shadow:
    """A server in the stead of Envoy's egress listener."""

    def __init__(self) -> None:
        self.received: list[tuple[web.BaseRequest, bytes]] = []
        self.reply: Handle = says(answer("openai.chat", "one two three five"))
        self.came = asyncio.Event()

    async def take(self, request: web.BaseRequest) -> web.StreamResponse:
        self.received.append((request, await request.read()))
        self.came.set()
        return await self.reply(request)


def says(body: bytes, status: int = 200, kind: str = "application/json") -> Handle:
    async def reply(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, status=status, content_type=kind)

    return reply


async def hang(_: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def breaks(request: web.BaseRequest) -> web.StreamResponse:
    """Send half an event, and drop the connection."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b'data: {"choices":[{"delta":{"content":"one"}}]}\n\ndata: {')
    assert request.transport is not None
    request.transport.close()
    return response


@pytest.fixture
async def shadow() -> AsyncIterator[tuple[Table, Shadow]]:
    """Run the server at a socket, and stages that ask there."""
    with tempfile.TemporaryDirectory(prefix="forebay-test-") as folder:
        shadow, table = Shadow(), Table(f"{folder}/e")
        server = web.Server(shadow.take, handler_cancellation=True, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, table.path).start()
        table.follow({"full": stage()})
        try:
            yield table, shadow
        finally:
            await table.stages.close()
            await end(runner)


def question(ask: Ask | None = None, headers: dict[str, str] | None = None) -> Question:
    ask = ask or ask_for("openai.chat", "Why?")
    exchange = exchange_of(ask.dialect, ask.body, ask.path)
    return Question(
        exchange.dialect, exchange.prompt, ask.path, headers or {}, ask.body, traceparent=TRACE
    )


SHADOWED: Final = Staged("full", "coming", Trial("full", "coming", Step.SHADOW))


async def over(table: Table) -> None:
    """Wait until no shadow is under way."""
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "shadow"))
    await asyncio.sleep(0)  # who is told of their ends is called then
    assert 0 == table.stages.under_way


@pytest.mark.parametrize("before", ["//elsewhere", "///elsewhere:80", "http://elsewhere"])
async def test_no_path_leads_past_the_proxy(shadow: tuple[Table, Shadow], before: str) -> None:
    """A client's path with a host in it would take the credentials there."""
    table, server = shadow
    asked = ask_for("openai.chat", "Why?")
    table.stages.heard(SHADOWED, OLD, question(replace(asked, path=before + asked.path)))
    await over(table)
    ((request, _),) = server.received
    path = f"/{before.lstrip('/')}/v1/chat/completions"
    assert ("forebay", path) == (request.host, request.raw_path)


async def test_a_shadow_is_asked_by_way_of_the_proxy(shadow: tuple[Table, Shadow]) -> None:
    """The same request, to the other pool's cluster, under the same trace."""
    table, server = shadow
    asked = question(headers={"authorization": "Bearer key", "content-type": "application/json"})
    table.stages.heard(SHADOWED, OLD, asked)
    assert len(asked.body) == table.stages.held_bytes
    await over(table)
    ((request, body),) = server.received
    assert ("POST", "/v1/chat/completions", asked.body) == (request.method, request.raw_path, body)
    expected = {
        "authorization": "Bearer key",
        "content-type": "application/json",
        "traceparent": TRACE,
        "x-forebay-cluster": "cluster-of-coming",
    }
    got = {name.lower(): value for name, value in request.headers.items()}
    assert expected == {name: got[name] for name in expected}
    assert not {"user-agent", "accept-encoding"} & got.keys()
    assert 0 == table.stages.held_bytes


async def test_two_answers_are_compared(shadow: tuple[Table, Shadow]) -> None:
    """Three of four words are the same, in the same order."""
    table, _ = shadow
    table.stages.heard(SHADOWED, OLD, question())
    await over(table)
    new = Heard(Ending.ANSWERED, 0, 0, "one two three five", Finish.STOP)
    assert [("full", OLD), ("coming", new)] == table.watch.answers
    assert ([0.75], []) == (table.watch.pairs, table.watch.skips)


@pytest.mark.parametrize("dialect", [name for name in WORDS if name != "openai.embeddings"])
async def test_a_shadow_speaks_every_dialect(shadow: tuple[Table, Shadow], dialect: str) -> None:
    """The query of the path goes along as it is written."""
    table, server = shadow
    server.reply = says(answer(dialect, "one two"))
    ask = ask_for(dialect, "Why?")
    path = f"{ask.path}?key=a%2Fb"
    table.stages.heard(SHADOWED, OLD, question(Ask(path, ask.body, dialect)))
    await over(table)
    assert [path] == [request.raw_path for request, _ in server.received]
    assert ("one two", Finish.STOP) == (table.watch.new.text, table.watch.new.finish)


async def test_a_stream_is_heard_to_its_end(shadow: tuple[Table, Shadow]) -> None:
    """Events, whichever way they come."""
    table, server = shadow
    events = (
        b'data: {"choices":[{"index":0,"delta":{"content":"one "}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"stop"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    server.reply = says(events, kind="text/event-stream")
    table.stages.heard(SHADOWED, OLD, question(ask_for("openai.chat", "Why?", stream=True)))
    await over(table)
    assert Ending.ANSWERED is table.watch.new.ending
    assert ("one two", Finish.STOP) == (table.watch.new.text, table.watch.new.finish)


@pytest.mark.parametrize(
    ("reply", "stream", "ending"),
    [
        (says(b"{}", status=500), False, Ending.FAILED),
        (says(b"{}", status=503), True, Ending.FAILED),
        (says(b"{}", status=429), False, Ending.FAILED),
        (says(b"{}", status=400), False, Ending.REFUSED),
        (says(b"", status=302), False, Ending.FAILED),
        (says(b"no JSON"), False, Ending.FAILED),
        (says(b"[" * 100_000), False, Ending.FAILED),
        (says(b'{"choices":[]}'), False, Ending.FAILED),
        (breaks, True, Ending.FAILED),
    ],
)
async def test_a_shadow_may_answer_anything(
    shadow: tuple[Table, Shadow], reply: Handle, stream: bool, ending: Ending
) -> None:
    """It is counted, and compared with nothing."""
    table, server = shadow
    server.reply = reply
    table.stages.heard(SHADOWED, OLD, question(ask_for("openai.chat", "Why?", stream=stream)))
    await over(table)
    assert ending is table.watch.new.ending
    assert [] == table.watch.pairs


async def test_a_shadow_that_hangs_is_given_up(shadow: tuple[Table, Shadow]) -> None:
    """At its deadline."""
    table, server = shadow
    server.reply = hang
    table.follow({"full": stage(deadline_s=0.02)})
    table.stages.heard(SHADOWED, OLD, question())
    await over(table)
    assert Ending.LATE is table.watch.new.ending
    assert ([], []) == (table.watch.pairs, table.watch.skips)


async def test_a_shadow_that_nobody_listens_for_has_failed() -> None:
    """The way to it may be missing."""
    table = Table("/nowhere/at/all")
    table.follow({"full": stage()})
    table.stages.heard(SHADOWED, OLD, question())
    await over(table)
    await table.stages.close()
    assert Ending.FAILED is table.watch.new.ending


async def test_there_is_room_for_some_shadows_only(shadow: tuple[Table, Shadow]) -> None:
    """What finds none is not asked later either."""
    table, server = shadow
    server.reply = hang
    for _ in range(3):
        table.stages.heard(SHADOWED, OLD, question())
    assert (2, ["full"]) == (table.stages.under_way, table.watch.skips)
    await table.stages.close()
    assert Counter({"closed": 2, "full": 1}) == Counter(table.watch.skips)
    assert (0, 0) == (table.stages.under_way, table.stages.held_bytes)


async def test_memory_for_shadows_has_a_bound(
    shadow: tuple[Table, Shadow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one body, and for all that are held."""
    table, server = shadow
    server.reply = hang
    asked = question()
    monkeypatch.setattr(module, "MOST_HELD_BYTES", len(asked.body) * 2 - 1)
    table.stages.heard(SHADOWED, OLD, asked)
    table.stages.heard(SHADOWED, OLD, asked)
    monkeypatch.setattr(module, "MOST_BODY_BYTES", len(asked.body) - 1)
    table.stages.heard(SHADOWED, OLD, asked)
    assert (1, ["full", "size"]) == (table.stages.under_way, table.watch.skips)


async def test_an_answer_that_is_too_long_is_not_compared(
    shadow: tuple[Table, Shadow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor counted as a failure."""
    table, _ = shadow
    monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 10)
    table.stages.heard(SHADOWED, OLD, question())
    await over(table)
    assert ([], [], ["size"]) == (table.watch.answers, table.watch.pairs, table.watch.skips)


async def test_a_stage_that_is_over_asks_nobody(shadow: tuple[Table, Shadow]) -> None:
    """The file changed while the client was being answered."""
    table, server = shadow
    for changed in ({}, {"full": stage(Step.CANARY)}):
        table.follow(changed)
        table.stages.heard(SHADOWED, OLD, question())
    assert (0, ["over", "over"]) == (table.stages.under_way, table.watch.skips)
    assert [] == server.received


async def test_workers_without_room_cost_the_likeness_alone(
    shadow: tuple[Table, Shadow],
) -> None:
    """Times and lengths are compared all the same."""
    table, _ = shadow
    table.workers.failing = True
    table.stages.heard(SHADOWED, OLD, question())
    await over(table)
    assert ([None], ["likeness"]) == (table.watch.pairs, table.watch.skips)


async def test_answers_without_texts_have_no_likeness(shadow: tuple[Table, Shadow]) -> None:
    """Two calls of a tool, or two embeddings."""
    table, server = shadow
    server.reply = says(answer("openai.chat", ""))
    old = Heard(Ending.ANSWERED, 1_000, 0, "", Finish.TOOL)
    table.stages.heard(SHADOWED, old, question())
    await over(table)
    assert [None] == table.watch.pairs


async def test_a_failure_of_the_old_pool_is_counted_beside_the_shadow(
    shadow: tuple[Table, Shadow],
) -> None:
    """There is nothing to compare."""
    table, _ = shadow
    failed = Heard(Ending.FAILED, 1_000)
    table.stages.heard(SHADOWED, failed, question())
    await over(table)
    assert ["full", "coming"] == [pool for pool, _ in table.watch.answers]
    assert [] == table.watch.pairs
