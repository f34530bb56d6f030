"""Where a request goes while pools are broken, full or on their way in, and who is told."""

from __future__ import annotations

import json

import pytest

from filters.api import (
    Answer,
    Config,
    Exchange,
    Filter,
    Need,
    Outcome,
    Ports,
    Staged,
    Verdict,
)
from filters.pipeline import Pipeline, Run
from filters.pools import Offer, Pools
from filters.route import RouteConfig, RouteFilter
from tests.exchanges import CHATS, ask, reply_head
from tests.fakes import (
    FakeBreakers,
    FakeLimits,
    FakeStages,
    PortWait,
    drive,
    fake_ports,
)

LOW = "List the rivers."
POOLS = Pools(
    (
        Offer(name="full", fallback="spare"),
        Offer(name="spare", fallback="last"),
        Offer(name="last"),
        Offer(name="best_effort", best_effort=True),
    )
)


class Pool:
    """A route filter with fakes of its ports, and what it made of an exchange."""

    def __init__(
        self,
        *,
        free: dict[str, int] | None = None,
        closed: dict[str, bool] | None = None,
        staged: dict[str, Staged] | None = None,
        pools: Pools = POOLS,
        question: str = "why?",
        dialect: str = "openai.chat",
    ) -> None:
        self.limits = FakeLimits(free or {})
        self.breakers = FakeBreakers(closed or {})
        self.stages = FakeStages(staged or {})
        self.ports: Ports = fake_ports(
            limits=self.limits, breakers=self.breakers, stages=self.stages, pools=pools
        )
        self.exchange: Exchange = ask(dialect, question)
        self.waits: list[PortWait] = []
        self.filter = RouteFilter(RouteConfig(), None, self.ports)
        self.verdict = drive(self.filter.on_request(self.exchange), self.waits)

    @property
    def went(self) -> tuple[str, object, object]:
        """The pool, the rule and the reason."""
        notes = self.exchange.notes
        return self.exchange.pool, notes.get("route.rule"), notes.get("route.why")

    def end(self, outcome: Outcome = Outcome.COMPLETE, status: int = 200) -> None:
        if status:
            self.exchange.reply_head = reply_head(status=status)
        drive(self.filter.on_finish(self.exchange, outcome))


# --- Nothing is set ------------------------------------------------------------------------------


def test_pools_without_settings_cost_the_proxy_nothing() -> None:
    """Nobody needs the end of such an exchange, and nothing is waited for."""
    pool = Pool(pools=Pools())
    assert (Need.NOTHING, [], {}) == (pool.exchange.needs, pool.waits, pool.exchange.notes)
    pool.end()
    assert [] == pool.breakers.ends


# --- Breakers ------------------------------------------------------------------------------------


def test_a_broken_pool_is_left_for_its_fallback() -> None:
    """And that one for its own."""
    assert ("full", "own", None) == Pool(closed={"full": True}).went
    expected = ("spare", "breaker", "full is broken")
    assert expected == Pool(closed={"full": False, "spare": True}).went
    expected = ("last", "breaker", "full is broken")
    assert expected == Pool(closed={"full": False, "spare": False}).went


def test_a_broken_lesser_pool_is_left_for_the_profiles_own() -> None:
    """With no fallback of its own, and no word in the settings."""
    for pools in (POOLS, Pools()):
        pool = Pool(closed={"best_effort": False}, question=LOW, pools=pools)
        assert ("full", "breaker", "best_effort is broken") == pool.went


def test_where_all_are_broken_the_first_is_asked() -> None:
    """Some of its answers are errors; one of ours would be one for certain."""
    pool = Pool(closed=dict.fromkeys(("full", "spare", "last"), False))
    assert ("full", "own", "full is broken, and so are all others") == pool.went
    pool.end()
    assert [] == pool.breakers.ends


@pytest.mark.parametrize(
    ("status", "good"),
    [(200, True), (404, None), (429, None), (500, False), (503, False), (504, False), (0, None)],
)
def test_the_breaker_hears_how_its_pool_did(status: int, good: bool | None) -> None:
    """What the client did wrong says nothing of the pool; without a head nobody knows."""
    pool = Pool(closed={"full": True})
    assert Need.HEAD in pool.exchange.needs
    pool.end(status=status)
    pool.end(status=status)
    assert [("full", good)] == pool.breakers.ends


def test_the_breaker_hears_of_the_head_not_of_the_end() -> None:
    """A stream may last minutes."""
    pool = Pool(closed={"full": True})
    pool.exchange.reply_head = reply_head(status=200)
    drive(pool.filter.on_response(pool.exchange))
    assert [("full", True)] == pool.breakers.ends
    pool.end(Outcome.GONE)
    assert [("full", True)] == pool.breakers.ends


def test_the_breaker_hears_of_a_stream_that_came_to_nothing() -> None:
    """Once, and only of what began well: of what did not it has heard."""
    for status, breaks in ((200, ["full"]), (500, []), (404, [])):
        pool = Pool(closed={"full": True})
        pool.exchange.reply_head = reply_head(status=status)
        drive(pool.filter.on_response(pool.exchange))
        pool.exchange.broke_off = True
        pool.end(status=status)
        pool.end(status=status)
        assert breaks == pool.breakers.breaks
    pool = Pool(closed={"full": True})
    pool.end(Outcome.GONE)
    assert [] == pool.breakers.breaks


def test_only_a_pool_with_a_breaker_needs_to_be_watched() -> None:
    """`spare` has none."""
    pool = Pool(closed={"full": False})
    assert ("spare", Need.NOTHING) == (pool.exchange.pool, pool.exchange.needs)


# --- Limits --------------------------------------------------------------------------------------


def test_what_is_over_a_limit_goes_to_the_fallback() -> None:
    """The client sees nothing of it."""
    pool = Pool(free={"full": 0, "spare": 1})
    assert ("spare", "limit", "full is full") == pool.went
    assert Need.END == pool.exchange.needs
    assert {"full": 0, "spare": 0} == pool.limits.free
    pool.end()
    assert {"full": 0, "spare": 1} == pool.limits.free


def test_what_is_over_the_lesser_pools_limit_goes_to_the_full_one() -> None:
    """Never into a storm of errors; no setting says so."""
    pool = Pool(free={"best_effort": 0}, question=LOW, pools=Pools())
    assert ("full", "limit", "best_effort is full") == pool.went


@pytest.mark.parametrize("dialect", CHATS)
def test_where_all_are_full_the_client_is_told_to_come_again(dialect: str) -> None:
    """In its provider's words."""
    pool = Pool(free={"full": 0, "spare": 0, "last": 0}, dialect=dialect)
    assert isinstance(pool.verdict, Answer)
    assert (429, "1") == (pool.verdict.status, pool.verdict.headers["retry-after"])
    assert "are busy; try again" in json.dumps(json.loads(pool.verdict.body))
    pool.end(Outcome.ANSWERED, status=0)
    assert 0 == sum(pool.limits.free.values())


def test_a_breaker_hears_of_one_that_found_its_pool_full() -> None:
    """It held a place among the probes of a breaker that is half open."""
    pool = Pool(closed={"full": True}, free={"full": 0})
    assert ("spare", [("full", None)]) == (pool.exchange.pool, pool.breakers.ends)
    pool.end()
    assert [("full", None)] == pool.breakers.ends


def test_a_broken_pool_with_room_is_better_than_none() -> None:
    """The working ones are full."""
    pool = Pool(closed={"full": False}, free={"full": 1, "spare": 0, "last": 0})
    assert ("full", {"full": 0, "spare": 0, "last": 0}) == (pool.exchange.pool, pool.limits.free)


def test_a_fallback_needs_the_room_for_the_prompt() -> None:
    """A pool that would refuse it is no help."""
    pools = Pools((Offer(name="full", context=99, fallback="tiny"), Offer(name="tiny", context=1)))
    pool = Pool(free={"full": 0}, pools=pools, question="why? " * 40)
    assert isinstance(pool.verdict, Answer)
    assert "tiny (length does not fit)" == pool.exchange.notes["route.alternatives"]


# --- Stages --------------------------------------------------------------------------------------


def test_a_pool_on_its_way_in_serves_in_the_others_place() -> None:
    """As far as it is for this tenant."""
    staged = Staged("coming", shadow="")
    pool = Pool(staged={"full": staged})
    assert ("coming", "stage", "stage: in the place of full") == pool.went
    assert pool.exchange.staged is staged
    assert [("full", "tenant")] == pool.stages.asked


def test_a_shadow_changes_nothing_for_the_client() -> None:
    """Who is to be asked beside is for others to read."""
    pool = Pool(staged={"full": Staged("full", shadow="coming")})
    assert ("full", "own", None) == pool.went
    assert pool.exchange.staged is not None
    assert "coming" == pool.exchange.staged.shadow


def test_the_old_pool_serves_where_the_one_that_comes_is_broken() -> None:
    """It is still there; what it answers is no evidence for the other."""
    pool = Pool(staged={"full": Staged("coming")}, closed={"coming": False})
    assert ("full", "breaker", "coming is broken") == pool.went
    assert pool.exchange.staged is not None
    assert pool.exchange.pool != pool.exchange.staged.pool


def test_a_pool_that_is_too_small_does_not_take_anothers_place() -> None:
    """For a prompt that the other one has the context for."""
    pools = Pools((Offer(name="full", context=99), Offer(name="coming", context=9)))
    staged = {"full": Staged("coming")}
    assert "coming" == Pool(staged=staged, pools=pools).exchange.pool
    assert "full" == Pool(staged=staged, pools=pools, question="why? " * 20).exchange.pool


# --- Every way out -------------------------------------------------------------------------------


class Nothing(Config, frozen=True):
    pass


class Breaks(Filter[Nothing]):
    name = "breaks"
    config_type = Nothing

    async def on_request(self, exchange: Exchange) -> Verdict:
        raise ValueError("broken")


class Answers(Filter[Nothing]):
    name = "answers"
    config_type = Nothing

    async def on_request(self, exchange: Exchange) -> Verdict:
        return Answer(200, {}, b"{}")


@pytest.mark.parametrize("after", [None, Breaks, Answers])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_lease_is_given_back_once(
    after: type[Filter[Nothing]] | None, outcome: Outcome
) -> None:
    """Whoever left, answered or broke, and before or after which filter."""
    limits, breakers = FakeLimits({"full": 1}), FakeBreakers({"full": True})
    filters: list[tuple[type[Filter[Nothing]], Config]] = [(RouteFilter, RouteConfig())]  # type: ignore[list-item] # another config
    if after is not None:
        filters.append((after, Nothing()))
    run = Run(Pipeline(filters, fake_ports(limits=limits, breakers=breakers)))
    exchange = ask("openai.chat", "why?")
    drive(run.request(exchange))
    assert {"full": 0} == limits.free
    drive(run.finish(exchange, outcome))
    drive(run.finish(exchange, outcome))
    (lease,) = limits.leases
    assert ({"full": 1}, 1, [("full", None)]) == (limits.free, lease.released, breakers.ends)


def test_one_that_leaves_while_it_waits_for_a_place_holds_nothing() -> None:
    """The breaker that admitted it hears that it left."""
    limits, breakers = FakeLimits({"full": 1}), FakeBreakers({"full": True})
    run = Run(
        Pipeline([(RouteFilter, RouteConfig())], fake_ports(limits=limits, breakers=breakers))
    )
    exchange = ask("openai.chat", "why?")
    request = run.request(exchange)
    assert PortWait("limits") == request.send(None)
    request.close()
    drive(run.finish(exchange, Outcome.GONE))
    assert ({"full": 1}, [("full", None)]) == (limits.free, breakers.ends)
