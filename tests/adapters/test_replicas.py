"""Real servers are found, listened to, picked, avoided and taken back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ext_proc.adapters.membership import Fixed, Listed
from ext_proc.adapters.replica_signals import Said
from ext_proc.adapters.replica_warm_up import WarmUp
from ext_proc.adapters.replicas import Bound, FollowedReplicas, ReplicaSettings, load
from ext_proc.tools.simulator import Simulator
from filters.api import Clock
from filters.picking import Picker, ask_of
from filters.prefill_cost import PrefillCost
from filters.replica import STALE_S, Signals
from filters.strategies import STRATEGIES
from tests.fakes import FakeClock
from tests.model_server import ModelServer

PATIENCE_S = 60.0
PROMPT = b"x" * 8_192
POOL = "full"


class Lines:
    """A log that is read."""

    def __init__(self) -> None:
        self.lines: list[dict[str, object]] = []
        self.written = asyncio.Event()

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})
        self.written.set()


class Passing(FakeClock):
    """A clock by which a second passes between any two looks."""

    def monotonic_ns(self) -> int:
        self.advance(1.0)
        return super().monotonic_ns()


class Followed(FollowedReplicas):
    """Wakes who waits for something to be told."""

    def __init__(self, clock: Clock, log: Lines) -> None:
        super().__init__(
            clock, log, period_s=0.001, probing_s=0.001, probe_deadline_s=0.1, rng=lambda: 0.01
        )
        self._told = asyncio.Event()
        self._said: Counter[str] = Counter()

    def said(self, address: str, said: Said) -> None:
        super().said(address, said)
        self._said[address] += 1
        self._told.set()

    def refused(self, address: str) -> None:
        super().refused(address)
        self._told.set()

    def silent(self, address: str, why: str) -> None:
        super().silent(address, why)
        self._told.set()

    async def until(self, avoided: int = 0, replicas: int = 0) -> None:
        """Wait until so many replicas are avoided, and so many are there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                figures = self.figures()[POOL]
                if figures.avoided == avoided and figures.replicas >= replicas:
                    return
                self._told.clear()
                await self._told.wait()

    async def heard(self, *addresses: str, times: int = 2) -> None:
        """Wait until each of them said something so often from now on."""
        wanted = {address: self._said[address] + times for address in addresses}
        async with asyncio.timeout(PATIENCE_S):
            while any(self._said[address] < often for address, often in wanted.items()):
                self._told.clear()
                await self._told.wait()

    def address(self, prompt: bytes = PROMPT) -> str:
        """Pick, let go, and return where."""
        picked = self.pick(POOL, prompt, "m")
        assert picked is not None
        picked.ended()
        return picked.addresses[0]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
async def replicas(clock: FakeClock, log: Lines) -> AsyncIterator[Followed]:
    made = Followed(clock, log)
    yield made
    await made.close()


@pytest.fixture
async def one() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


@pytest.fixture
async def other() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


def fixed(
    *servers: ModelServer, strategy: str = "expected", explore: float = 0.0
) -> ReplicaSettings:
    members = Fixed(tuple(server.address for server in servers))
    return ReplicaSettings(members, strategy, explore=explore)


async def test_a_pool_that_nobody_set_up_has_nobody(replicas: Followed) -> None:
    """The proxy chooses."""
    assert (False, None) == (replicas.has(POOL), replicas.pick(POOL, PROMPT, "m"))


async def test_a_pool_may_have_lost_all(replicas: Followed) -> None:
    """It is known, and empty."""
    replicas.follow({POOL: ReplicaSettings()})
    assert (True, None) == (replicas.has(POOL), replicas.pick(POOL, PROMPT, "m"))


async def test_a_replica_is_picked_and_let_go(replicas: Followed, one: ModelServer) -> None:
    """What is under way is counted."""
    replicas.follow({POOL: fixed(one)})
    await replicas.until(replicas=1)
    picked = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    during = replicas.figures()[POOL].under_way
    picked.started()
    picked.ended()
    picked.ended()
    assert ((one.address,), 1, 0) == (picked.addresses, during, replicas.figures()[POOL].under_way)


async def test_a_pick_is_not_hurried_by_others_who_have_the_cpu(
    log: Lines, one: ModelServer, other: ModelServer
) -> None:
    """A second goes by whenever anybody looks at the clock."""
    replicas = Followed(Passing(), log)
    replicas.follow({POOL: fixed(one, other)})
    await replicas.until(replicas=2)
    for _ in range(20):
        picked = replicas.pick(POOL, PROMPT, "m")
        assert picked is not None
        picked.ended()
    hurried = replicas.figures()[POOL].hurried
    await replicas.close()
    assert hurried < 20  # it may take long indeed, once


async def test_a_subset_of_strangers_is_nobody(replicas: Followed, one: ModelServer) -> None:
    """Another replica than those allowed is no answer."""
    replicas.follow({POOL: fixed(one)})
    await replicas.until(replicas=1)
    assert replicas.pick(POOL, PROMPT, "m", subset=("10.9.9.9:1",)) is None


@pytest.mark.parametrize("form", ["{}", "{}, 10.9.9.9:80", "127.0.0.1"])
async def test_a_subset_names_addresses_or_hosts(
    replicas: Followed, one: ModelServer, other: ModelServer, form: str
) -> None:
    """Who may be asked is picked, whoever would be better."""
    replicas.follow({POOL: replace(fixed(one, other), strategy="least_load")})
    await replicas.heard(one.address, other.address)
    subset = form.format(other.address).split(", ")
    picked = [replicas.pick(POOL, PROMPT, "m", subset=subset) for _ in range(8)]
    asked = {each.addresses[0] for each in picked if each is not None}
    assert ({one.address, other.address} if form == "127.0.0.1" else {other.address}) == asked


async def test_nobody_is_picked_where_nobody_listens(replicas: Followed) -> None:
    """Neither of all nor of a subset; one that listens is enough."""
    async with ModelServer() as last:
        async with ModelServer() as first:
            replicas.follow({POOL: fixed(first, last)})
            await replicas.heard(first.address, last.address)
        await replicas.until(avoided=1)
        assert replicas.pick(POOL, PROMPT, "m") is not None
        assert replicas.pick(POOL, PROMPT, "m", subset=[first.address]) is None
    await replicas.until(avoided=2)
    assert replicas.pick(POOL, PROMPT, "m") is None


async def test_a_pool_without_a_bound_is_never_full(replicas: Followed, one: ModelServer) -> None:
    """Nor is one that nobody set up."""
    replicas.follow({POOL: fixed(one)})
    await replicas.heard(one.address)
    for _ in range(100):
        replicas.pick(POOL, PROMPT, "m")
    assert (0.0, 0.0) == (replicas.full_s(POOL), replicas.full_s("other"))


async def test_a_pool_is_full_when_too_much_waits_there(
    replicas: Followed, one: ModelServer, other: ModelServer
) -> None:
    """On the average; a subset may be full while the pool is not, and an end makes room."""
    settings = replace(fixed(one, other), full=Bound(queue=2.0, retry_s=7.0))
    replicas.follow({POOL: settings})
    await replicas.heard(one.address, other.address)
    picked = [replicas.pick(POOL, PROMPT, "m", subset=[one.address]) for _ in range(3)]
    assert (0.0, 7.0) == (replicas.full_s(POOL), replicas.full_s(POOL, [one.address]))
    last = replicas.pick(POOL, PROMPT, "m", subset=[one.address])
    assert (7.0, 0.0) == (replicas.full_s(POOL), replicas.full_s(POOL, [other.address]))
    assert last is not None
    last.ended()
    assert 0.0 == replicas.full_s(POOL)
    assert None not in picked


@pytest.mark.parametrize(
    ("said", "picks", "expected"),
    [
        (None, 0, 0.0),
        (None, 5, 1.0),
        (Signals(0.0, waiting=5), 0, 1.0),
        (Signals(0.0, waiting=1, running=2), 3, 0.2),
        (Signals(0.0, waiting=1, running=0), 3, 0.6),
        (Signals(0.0, kv_usage=0.4), 0, 0.5),
        (Signals(0.0, waiting=2, kv_usage=0.8), 0, 1.0),
        (Signals(-3.0, waiting=99, kv_usage=1.0), 1, 0.2),
    ],
    ids=["silent", "silent, ours", "queue", "known", "not yet said", "memory", "both", "stale"],
)
def test_the_load_of_a_replica_is_what_is_scarcer(
    said: Signals | None, picks: int, expected: float
) -> None:
    """What it does not know of yet counts as waiting."""
    cost = PrefillCost()
    picker = Picker(STRATEGIES["least_load"](cost), cost, explore=0)
    replica = picker.add("10.0.0.1:80", 1_000)
    for _ in range(picks):
        picker.pick(ask_of(b"", ""), 0.0)
    if said is not None:
        replica.hear(said)
    assert pytest.approx(expected) == load([replica], Bound(), 0.0)
    idle = picker.add("10.0.0.2:80", 1_000)
    assert pytest.approx(expected / 2) == load([replica, idle], Bound(), 0.0)


async def test_what_replicas_say_counts(
    replicas: Followed, one: ModelServer, other: ModelServer
) -> None:
    """Another gateway keeps one of them busy."""
    one.running = 9
    replicas.follow({POOL: fixed(one, other, strategy="least_load")})
    await replicas.until(replicas=2)
    await replicas.heard(one.address, other.address)
    assert {other.address} == {replicas.address() for _ in range(8)}


async def test_what_is_known_of_each_replica_is_shown(
    replicas: Followed, one: ModelServer, clock: FakeClock
) -> None:
    """What it says goes when it is old; what was sent there stays."""
    replicas.follow({POOL: fixed(one)})
    await replicas.heard(one.address)
    assert replicas.pick(POOL, PROMPT, "m") is not None
    replicas.said(one.address, Said(3, 9, 0.5, gpu_usage=0.75))
    recent = dict(replicas.figures()[POOL].each[one.address])
    assert recent.pop("owed_seconds") > 0
    clock.advance(STALE_S + 0.1)
    old = replicas.figures()[POOL].each[one.address]
    theirs = {"waiting": 3, "running": 9, "memory": 0.5, "gpu": 0.75}
    assert {"requests": 1, "avoided": False, **theirs} == recent
    assert {"requests", "avoided", "owed_seconds"} == old.keys()


async def test_a_replica_says_how_much_it_holds(replicas: Followed, one: ModelServer) -> None:
    """No more is remembered of it."""
    one.blocks = 16
    replicas.follow({POOL: fixed(one)})
    await replicas.heard(one.address)
    replicas.address()
    picked = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    assert 256 == picked.held


async def test_a_replica_that_began_anew_holds_nothing(
    replicas: Followed, one: ModelServer, clock: FakeClock
) -> None:
    """It says when it began."""
    replicas.follow({POOL: fixed(one)})
    await replicas.heard(one.address)
    replicas.address()
    replicas.said(one.address, Said(0, 0, 0.0, began_s=99.0))
    picked = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    assert 0 == picked.held


@pytest.mark.parametrize(("counted", "held"), [(6_000.0, 2_048), (5_000.0, 2_048), (12.0, 0)])
async def test_a_replica_whose_counter_goes_back_began_anew(
    replicas: Followed, one: ModelServer, counted: float, held: int
) -> None:
    """Not every server says when it began."""
    replicas.follow({POOL: fixed(one)})
    await replicas.heard(one.address)
    replicas.address()
    replicas.said(one.address, Said(0, 0, 0.0, counted=5_000.0))
    replicas.address()
    replicas.said(one.address, Said(0, 0, 0.0))
    replicas.said(one.address, Said(0, 0, 0.0, counted=counted))
    picked = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    assert held == picked.held


async def test_a_replica_that_is_gone_is_avoided_until_it_is_back(
    replicas: Followed, one: ModelServer
) -> None:
    """Nobody listens there, then somebody does."""
    async with ModelServer() as gone:
        replicas.follow({POOL: fixed(one, gone)})
        await replicas.heard(one.address, gone.address)
    await replicas.until(avoided=1)
    during = {replicas.address() for _ in range(8)}
    async with ModelServer(gone.port):
        await replicas.until(avoided=0)
    assert {one.address} == during


async def test_a_request_that_went_elsewhere_is_counted_there(
    replicas: Followed, one: ModelServer, other: ModelServer
) -> None:
    """Envoy found nobody at the first address and tried the second."""
    replicas.follow({POOL: fixed(one, other)})
    await replicas.until(replicas=2)
    picked = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    first, second = picked.addresses
    picked.served(second)
    avoided = replicas.figures()[POOL].avoided
    picked.ended()
    assert (1, 0) == (avoided, replicas.figures()[POOL].under_way)
    assert second == replicas.address()
    assert first != second


async def test_a_silent_replica_is_asked_for_a_token_until_it_gives_one(
    replicas: Followed, one: ModelServer, other: ModelServer, clock: FakeClock
) -> None:
    """No client's request has to find out."""
    one.answers.clear()
    replicas.follow({POOL: fixed(one, other)})
    await replicas.until(replicas=2)
    waiting = replicas.pick(POOL, PROMPT, "m", subset=(one.address,))
    assert waiting is not None
    clock.advance(10.0)
    await replicas.until(avoided=1)
    during = {replicas.address() for _ in range(8)}
    one.answers.set()
    await replicas.until(avoided=0)
    assert ({other.address}, 1) == (during, min(1, one.asked["/v1/completions"]))


async def test_a_replica_that_answers_a_probe_may_be_another_process(
    replicas: Followed, one: ModelServer, other: ModelServer, clock: FakeClock
) -> None:
    """So its page decides: what began anew is asked its prompts before it is picked."""
    prompt = {"messages": [{"role": "user", "content": "Why is the basin calm?"}]}
    warm_up = WarmUp((prompt,))
    replicas.follow({POOL: replace(fixed(one, other), warm_up=warm_up)})
    async with asyncio.timeout(PATIENCE_S):
        while replicas.figures()[POOL].warm_ups.get("warm") != 2:
            await replicas.heard(one.address, other.address)
    one.answers.clear()
    assert replicas.pick(POOL, PROMPT, "m", subset=(one.address,)) is not None
    clock.advance(10.0)
    await replicas.until(avoided=1)
    one.began_s = 2.0
    one.answers.set()
    await replicas.until(avoided=0)
    assert 1 == replicas.figures()[POOL].cold


async def test_a_replica_whose_page_is_gone_is_back_when_it_answers(
    replicas: Followed, one: ModelServer, other: ModelServer, clock: FakeClock
) -> None:
    """Whether it is the same process nobody knows, so it is taken to hold nothing."""
    replicas.follow({POOL: fixed(one, other)})
    await replicas.heard(one.address, other.address)
    one.answers.clear()
    assert replicas.pick(POOL, PROMPT, "m", subset=(one.address,)) is not None
    clock.advance(10.0)
    await replicas.until(avoided=1)
    one.page = b"busy"
    one.answers.set()
    await replicas.until(avoided=0)
    picked = replicas.pick(POOL, PROMPT, "m", subset=(one.address,))
    assert picked is not None
    assert 0 == picked.held


async def test_a_replica_that_only_gives_whole_answers_is_asked_whether_it_is_well(
    replicas: Followed, one: ModelServer, other: ModelServer, clock: FakeClock
) -> None:
    """Nobody sees when their first token should come."""
    one.answers.clear()
    replicas.follow({POOL: fixed(one, other)})
    await replicas.until(replicas=2)
    assert replicas.pick(POOL, PROMPT, "m", watched=False, subset=(one.address,)) is not None
    clock.advance(10.0)
    await replicas.until(avoided=1)
    one.answers.set()
    await replicas.until(avoided=0)
    assert 0 < one.asked["/v1/completions"]


async def test_a_silent_replica_that_cannot_be_asked_is_tried_by_clients(
    replicas: Followed, one: ModelServer, other: ModelServer, clock: FakeClock
) -> None:
    """It has no list of models, or wants a key for it."""
    one.has_models = False
    replicas.follow({POOL: fixed(one, other, strategy="least_load")})
    await replicas.until(replicas=2)
    assert replicas.pick(POOL, PROMPT, "m", subset=(one.address,)) is not None
    clock.advance(10.0)
    assert other.address == replicas.address()
    clock.advance(10.0)
    async with asyncio.timeout(PATIENCE_S):
        while replicas.address() != one.address:
            await replicas.heard(other.address)


async def test_settings_change_while_requests_are_under_way(
    replicas: Followed, one: ModelServer, other: ModelServer
) -> None:
    """What is known stays known."""
    replicas.follow({POOL: fixed(one, other)})
    await replicas.until(replicas=2)
    picked = replicas.pick(POOL, PROMPT, "m")
    replicas.follow({POOL: fixed(one, other, strategy="round_robin")})
    again = replicas.pick(POOL, PROMPT, "m")
    assert picked is not None
    assert again is not None
    assert (2, True) == (replicas.figures()[POOL].under_way, again.why.startswith("round_robin"))


async def test_a_pool_that_is_gone_is_followed_no_more(
    replicas: Followed, one: ModelServer
) -> None:
    """What was sent there may still end."""
    replicas.follow({POOL: fixed(one)})
    await replicas.until(replicas=1)
    picked = replicas.pick(POOL, PROMPT, "m")
    replicas.follow({})
    assert picked is not None
    picked.ended(good=False)
    assert (False, {}) == (replicas.has(POOL), replicas.figures())


async def test_members_that_cannot_be_found_are_said(replicas: Followed, log: Lines) -> None:
    """In the log: nobody is picked."""
    replicas.follow({POOL: ReplicaSettings(Listed("/nowhere/full.yaml", POOL))})
    async with asyncio.timeout(PATIENCE_S):
        await log.written.wait()
    why = "/nowhere/full.yaml: FileNotFoundError"
    assert {"event": "replicas_unknown", "pool": POOL, "why": why} == log.lines[0]


async def test_simulated_replicas_are_followed_and_probed(
    replicas: Followed, clock: FakeClock
) -> None:
    """They speak as vLLM does."""
    async with Simulator(replicas=2) as simulator:
        addresses = [f"127.0.0.1:{port}" for port in simulator.ports]
        replicas.follow({POOL: ReplicaSettings(Fixed(tuple(addresses)))})
        await replicas.heard(*addresses)
        assert replicas.pick(POOL, PROMPT, "m", subset=addresses[:1]) is not None
        clock.advance(10.0)
        late = replicas.figures()[POOL].avoided
        await replicas.until(avoided=0)
    assert 1 == late
