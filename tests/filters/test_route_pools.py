"""Which pool a request goes to by what pools serve, take and cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import CONTINUE, Exchange, Task
from filters.bounds import MOST_CHARS_APART
from filters.errors import FilterError
from filters.pools import Offer, Pools
from filters.route import RouteConfig, RouteFilter
from filters.routing import MOST_PLANS, Choice, Rule, Size, plan
from filters.token_samples import COUNT_S
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import FakeTokens, PortWait, drive, fake_ports

SHORT = Offer(name="full", up_to=512)
LONG = Offer(name="long", above=512, context=4096)
LESSER = Offer(name="best_effort", best_effort=True)


def routed(exchange: Exchange, *offers: Offer, **config: Any) -> Exchange:
    """Route an exchange whose profile has the pool `full`; a token is four bytes."""
    ports = fake_ports(pools=Pools(offers))
    verdict = drive(RouteFilter(RouteConfig(**config), None, ports).on_request(exchange))
    assert CONTINUE == verdict
    return exchange


def words(tokens: int) -> str:
    return "why " * tokens


def asked(tokens: int = 1, **options: Any) -> Exchange:
    return ask("openai.chat", words(tokens), **options)


def of(task: Task, question: str = "why?") -> Exchange:
    exchange = ask("openai.chat", question)
    exchange.task = task
    return exchange


# --- By length -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(("tokens", "pool"), [(10, "full"), (512, "full"), (513, "long")])
def test_a_prompt_goes_to_the_pool_of_its_length(dialect: str, tokens: int, pool: str) -> None:
    """In every provider's words; the bounds are `above` and `up_to`."""
    exchange = routed(ask(dialect, words(tokens)), SHORT, LONG)
    assert pool == exchange.pool
    assert tokens == exchange.notes["route.tokens"]


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(1, "512"), (513, "2K"), (2049, "8K"), (8193, "32K"), (32769, "128K"), (131073, "over")],
)
def test_the_bucket_is_noted(tokens: int, bucket: str) -> None:
    """Six of them, by their upper ends."""
    assert bucket == routed(asked(tokens), Offer(name="full", up_to=8192)).notes["route.bucket"]


def test_the_shortest_bucket_that_takes_it_is_the_best() -> None:
    """Requests of one size share a batch, in whatever order the settings name their pools."""
    wide, narrow = Offer(name="wide", up_to=32768), Offer(name="narrow", up_to=2048)
    exchange = routed(asked(1000), Offer(name="full"), wide, narrow)
    assert ("narrow", "length", "length: 2K") == (
        exchange.pool,
        exchange.notes["route.rule"],
        exchange.notes["route.why"],
    )
    assert "wide (length), full (own)" == exchange.notes["route.alternatives"]


def test_the_cheapest_of_equal_pools_is_chosen() -> None:
    """One without a price comes last."""
    dear = Offer(name="dear", up_to=2048, input_price=3.0, output_price=15.0)
    cheap = Offer(name="cheap", up_to=2048, input_price=0.3, output_price=1.5)
    unknown = Offer(name="unknown", up_to=2048)
    exchange = routed(asked(), Offer(name="full"), unknown, dear, cheap)
    assert "cheap" == exchange.pool
    assert "dear (length), unknown (length), full (own)" == exchange.notes["route.alternatives"]


def test_what_is_cheapest_depends_on_the_prompt() -> None:
    """A long one costs by its own price, a short one by that of a typical answer."""
    reads = Offer(name="reads", up_to=9000, input_price=0.1, output_price=9.0)
    writes = Offer(name="writes", up_to=9000, input_price=2.0, output_price=1.0)
    offers = (Offer(name="full"), reads, writes)
    assert "reads" == routed(asked(8000), *offers).pool
    assert "writes" == routed(asked(10), *offers).pool


def test_what_was_decided_for_one_request_holds_for_those_like_it_alone() -> None:
    """Plans are kept by length, task, room and pool."""
    coder = Offer(name="coder", domains=frozenset({"code"}))
    pools = Pools((SHORT, LONG, LESSER, coder))
    ports = fake_ports(pools=pools)

    def went(exchange: Exchange) -> str:
        drive(RouteFilter(RouteConfig(), None, ports).on_request(exchange))
        return exchange.pool

    for _ in range(2):
        assert "full" == went(asked(500))
        assert "long" == went(asked(600))
        assert "coder" == went(of(Task("open", "code", 0.9)))
        assert "full" == went(of(Task("open", "general", 0.9)))
        assert "best_effort" == went(of(Task("list", "general", 0.9)))
        assert "full" == went(asked(600, more={"max_tokens": 4000}))
    assert 6 == len(pools.plans)


def test_kept_plans_are_bounded() -> None:
    """Settings with very many pools, tasks and lengths start again."""
    pools = Pools((SHORT, LONG))
    for number in range(MOST_PLANS + 1):
        own = Choice(f"p{number}", Rule.OWN)
        assert "full" == plan(pools, own, "", None, Size(1), careful=False).line[0].pool
    assert 1 == len(pools.plans)


def test_the_profiles_own_pool_comes_before_others_of_the_same_length() -> None:
    """It need not be the cheapest: the profile named it."""
    own = Offer(name="full", up_to=512, input_price=9.0, output_price=9.0)
    cheap = Offer(name="cheap", up_to=512, input_price=0.1, output_price=0.1)
    assert "full" == routed(asked(), own, cheap).pool


def test_a_length_that_no_pool_serves_stays_where_it_is() -> None:
    """A bucket is a wish, a context is a bound."""
    exchange = routed(asked(600), SHORT, Offer(name="long", above=8192))
    assert ("full", "own") == (exchange.pool, exchange.notes["route.rule"])


def test_tools_count_and_system_prompts_too() -> None:
    """The model reads them as well."""
    tool = {"type": "function", "function": {"name": "f", "description": words(500)}}
    assert "long" == routed(asked(20, more={"tools": [tool]}), SHORT, LONG).pool
    assert "long" == routed(asked(20, system=words(500)), SHORT, LONG).pool


def test_of_texts_to_embed_the_longest_counts() -> None:
    """Each is a prompt of its own."""

    def embedded(*texts: str) -> Exchange:
        body = json.dumps({"model": "e", "input": texts}).encode()
        return exchange_of("openai.embeddings", body, "/v1/embeddings")

    assert "full" == routed(embedded(*[words(300)] * 9), SHORT, LONG).pool
    assert "long" == routed(embedded(words(1), words(513)), SHORT, LONG).pool


def test_nothing_is_counted_where_no_pool_minds() -> None:
    """Prices and fallbacks say nothing of lengths."""
    offers = (Offer(name="full", input_price=1.0, output_price=1.0, fallback="other"),)
    assert "route.tokens" not in routed(asked(600), *offers, Offer(name="other")).notes


# --- By context ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "shape"),
    [
        ("openai.chat", lambda text: {"error": {"message": text, "type": "invalid_request_error"}}),
        ("anthropic.messages", lambda text: {"type": "error", "error": {"message": text}}),
        ("gemini.generate", lambda text: {"error": {"code": 400, "message": text}}),
    ],
)
def test_what_no_context_takes_is_refused_in_the_providers_words(dialect: str, shape: Any) -> None:
    """Limit and length are named."""
    exchange = ask(dialect, words(5000))
    room = ", and room for 100 of the answer" if dialect == "anthropic.messages" else ""
    with pytest.raises(FilterError) as caught:
        routed(exchange, Offer(name="full", context=2048), LONG)
    expected = (
        f"the prompt is too long: it has about 5,000 tokens{room}, where the longest context here "
        "is 4,096 tokens"
    )
    assert (400, expected) == (caught.value.status, caught.value.text)
    body = json.loads(exchange.dialect.error(caught.value.status, caught.value.text))

    def holds(given: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict):
            return all(holds(given[key], value) for key, value in wanted.items())
        return bool(given == wanted)

    assert holds(body, shape(expected))


def test_a_prompt_goes_where_its_context_suffices() -> None:
    """To the fallback of a pool that is too small, and on to that one's."""
    small = Offer(name="full", context=1000, fallback="middle")
    middle = Offer(name="middle", context=2000, fallback="large")
    large = Offer(name="large", context=8000)
    line = (small, middle, large)
    assert ["full", "middle", "large"] == [
        routed(asked(tokens), *line).pool for tokens in (900, 1500, 5000)
    ]
    exchange = routed(asked(5000), *line)
    assert "instead of full" == exchange.notes["route.why"]
    expected = "full (length does not fit), middle (length does not fit)"
    assert expected == exchange.notes["route.alternatives"]


def test_room_is_left_for_the_answer() -> None:
    """As much as the client lets it have."""
    offers = (Offer(name="full", context=1000, fallback="large"), Offer(name="large"))
    assert "full" == routed(asked(700), *offers).pool
    assert "full" == routed(asked(700, more={"max_tokens": 300}), *offers).pool
    assert "large" == routed(asked(700, more={"max_tokens": 301}), *offers).pool


def test_room_without_measure_is_too_much_and_nothing_else() -> None:
    """JSON sets no bound to a number; a filter that breaks on one would let it past every limit."""
    offers = Offer(name="full", context=1000, fallback="large"), Offer(name="large", context=2000)
    with pytest.raises(FilterError, match="where the longest context here is 2,000 tokens"):
        routed(asked(700, more={"max_tokens": 10**400}), *offers)


@pytest.mark.parametrize("value", [True, -5, "9", 1.5, None])
def test_a_limit_that_is_no_number_of_tokens_takes_no_room(value: Any) -> None:
    """The upstream will say what it thinks of it."""
    offers = (Offer(name="full", context=1000, fallback="large"), Offer(name="large"))
    assert "full" == routed(asked(999, more={"max_tokens": value}), *offers).pool


def test_a_pool_that_does_not_say_its_context_takes_everything() -> None:
    """Its own server knows."""
    offers = (Offer(name="full", context=1000, fallback="other"), Offer(name="other"))
    assert "other" == routed(asked(200_000), *offers).pool


def test_a_pool_to_which_nothing_leads_is_not_asked() -> None:
    """It may have a model for something else."""
    with pytest.raises(FilterError):
        routed(asked(2000), Offer(name="full", context=1000), Offer(name="other", context=9000))


def test_a_pool_for_other_lengths_is_better_than_a_refusal() -> None:
    """It is its context that bounds it."""
    long = Offer(name="long", above=2000, up_to=3000, context=9000)
    exchange = routed(asked(5000), Offer(name="full", context=1000), long)
    assert ("long", "length: no pool serves it") == (exchange.pool, exchange.notes["route.why"])


def test_nobody_is_refused_by_a_count_that_may_be_wrong() -> None:
    """Another maker's model may have a seventh fewer tokens; the roomiest pool is asked."""
    offers = (Offer(name="full", context=1000, fallback="large"), Offer(name="large", context=2000))
    assert "large" == routed(asked(2290), *offers).pool
    with pytest.raises(FilterError):
        routed(asked(2310), *offers)


class Rough(FakeTokens):
    """`Tokens` whose estimate is a tenth too low."""

    def __init__(self) -> None:
        self.counts = 0

    def estimate(self, text: str) -> int:
        return len(text) // 4 * 9 // 10

    def count(self, text: str, model: str = "") -> int:
        self.counts += 1
        return len(text) // 4


@pytest.mark.parametrize(("context", "waits"), [(600, []), (6_000, [PortWait("tokens")])])
def test_others_are_served_while_a_long_prompt_is_counted(
    context: int, waits: list[PortWait]
) -> None:
    """To hand over a short one costs more than to count it."""
    tokens, waited = Rough(), list[PortWait]()
    pools = Pools((Offer(name="full", context=context, fallback="large"), Offer(name="large")))
    exchange = asked(context + 1)
    route = RouteFilter(RouteConfig(), None, fake_ports(pools=pools, tokens=tokens))
    drive(route.on_request(exchange), waited)
    assert ("large", 1, waits) == (exchange.pool, tokens.counts, waited)
    assert tokens.deadline_s == (COUNT_S if waits else 0.0)
    assert COUNT_S == RouteFilter.longest_wait_s(RouteConfig())


def test_a_prompt_is_counted_once_before_it_is_refused() -> None:
    """What was counted to choose a pool is what the refusal names."""
    tokens = Rough()
    pools = Pools((Offer(name="full", context=6_000),))
    route = RouteFilter(RouteConfig(), None, fake_ports(pools=pools, tokens=tokens))
    with pytest.raises(FilterError, match="it has about 7,000 tokens"):
        drive(route.on_request(asked(7_000)))
    assert 1 == tokens.counts


def test_a_prompt_of_millions_of_characters_is_not_counted() -> None:
    """That takes too long; it is refused by what was estimated."""
    tokens = Rough()
    pools = Pools((Offer(name="full", context=200_000),))
    route = RouteFilter(RouteConfig(), None, fake_ports(pools=pools, tokens=tokens))
    with pytest.raises(FilterError, match="the prompt is too long"):
        drive(route.on_request(asked(MOST_CHARS_APART // 4 + 8)))
    assert 0 == tokens.counts


def test_near_a_context_tokens_are_counted() -> None:
    """An estimate is too rough there, and good enough anywhere else."""
    offers = (Offer(name="full", context=1000, fallback="large"), Offer(name="large"))
    tokens = Rough()
    ports = fake_ports(pools=Pools(offers), tokens=tokens)
    for size, pool, counts in ((700, "full", 0), (1050, "large", 1), (2000, "large", 1)):
        exchange = asked(size)
        drive(RouteFilter(RouteConfig(), None, ports).on_request(exchange))
        assert (pool, counts) == (exchange.pool, tokens.counts)


# --- By task -------------------------------------------------------------------------------------


def test_intents_and_domains_choose_a_pool() -> None:
    """Whoever serves both knows more of it than who serves one; of both all must be right."""
    coder = Offer(name="coder", domains=frozenset({"code"}))
    writer = Offer(name="writer", intents=frozenset({"write", "rewrite"}))
    both = Offer(name="both", intents=frozenset({"write"}), domains=frozenset({"code"}))
    offers = (Offer(name="full"), coder, writer, both)
    found = {
        (intent, domain): routed(of(Task(intent, domain, 0.9)), *offers).pool
        for intent in ("write", "rewrite", "open")
        for domain in ("code", "general")
    }
    assert {
        ("write", "code"): "both",
        ("write", "general"): "writer",
        ("rewrite", "code"): "coder",
        ("rewrite", "general"): "writer",
        ("open", "code"): "coder",
        ("open", "general"): "full",
    } == found
    notes = routed(of(Task("write", "code", 0.9)), *offers).notes
    assert ("task", "task: write in code") == (notes["route.rule"], notes["route.why"])


def test_a_pool_for_a_task_of_some_length_serves_both_alone() -> None:
    """All that a pool says must be true of a request."""
    coder = Offer(name="coder", domains=frozenset({"code"}), above=512)
    offers = (Offer(name="full"), coder)
    assert "coder" == routed(of(Task("open", "code", 0.9), words(600)), *offers).pool
    assert "full" == routed(of(Task("open", "code", 0.9)), *offers).pool
    assert "full" == routed(of(Task("open", "general", 0.9), words(600)), *offers).pool


def test_without_a_task_nobody_is_an_expert() -> None:
    """Intents and domains are the classifier's words."""
    coder = Offer(name="coder", domains=frozenset({"general", "code"}))
    assert "full" == routed(asked(), Offer(name="full"), coder).pool


def test_the_expert_that_the_profile_named_comes_first() -> None:
    """`classify.experts` is said for one profile, `serves` for all."""
    exchange = of(Task("open", "code", 0.9, expert=True))
    exchange.pool = "coders"
    exchange.note("classify.pool", "coders")
    other = Offer(name="other", domains=frozenset({"code"}))
    routed(exchange, Offer(name="coders"), other, Offer(name="full"))
    assert ("coders", "expert") == (exchange.pool, exchange.notes["route.rule"])


def test_texts_to_embed_are_no_task() -> None:
    """Whatever their words."""
    body = b'{"model": "e", "input": "def f(): pass"}'
    exchange = exchange_of("openai.embeddings", body, "/v1/embeddings")
    exchange.task = Task("code", "code", 0.9)
    coder = Offer(name="coder", domains=frozenset({"code"}))
    assert "full" == routed(exchange, Offer(name="full"), coder).pool


# --- By risk -------------------------------------------------------------------------------------


def test_low_risk_work_goes_to_the_lesser_pool_that_it_fits() -> None:
    """A longer one stays with the others."""
    lesser = Offer(name="best_effort", best_effort=True, context=1000)
    offers = (SHORT, LONG, lesser)
    assert "best_effort" == routed(ask("openai.chat", "list the " + words(600)), *offers).pool
    assert "long" == routed(ask("openai.chat", "list the " + words(2000)), *offers).pool


def test_a_lesser_pool_serves_low_risk_work_alone() -> None:
    """Unless the profile's own is one already."""
    lesser = Offer(name="tiny", best_effort=True, up_to=512)
    offers = (Offer(name="full"), LESSER, lesser)
    assert "full" == routed(asked(), *offers).pool
    assert "best_effort" == routed(ask("openai.chat", "list the rivers"), *offers).pool
    exchange = asked()
    exchange.pool = "best_effort"
    assert "tiny" == routed(exchange, *offers).pool


def test_what_is_risky_falls_back_to_no_lesser_pool() -> None:
    """Other work may, for the settings name the pool."""
    offers = (Offer(name="full", context=1000, fallback="best_effort"), LESSER)
    assert "best_effort" == routed(asked(2000), *offers).pool
    with pytest.raises(FilterError):
        routed(ask("openai.chat", "the diagnosis " + words(2000)), *offers)
    with pytest.raises(FilterError):
        routed(of(Task("open", "medical", 0.9, expert=True), words(2000)), *offers)


# --- Any settings --------------------------------------------------------------------------------

NAMES = ("full", "best_effort", "a", "b", "c")
LENGTHS = st.sampled_from((0, 1, 100, 512, 2000, 8192, 9000))
OFFERS = st.lists(
    st.builds(
        Offer,
        name=st.sampled_from(NAMES),
        best_effort=st.booleans(),
        context=LENGTHS,
        input_price=st.sampled_from((None, 0.1, 3.0)),
        output_price=st.sampled_from((None, 0.1, 3.0)),
        intents=st.frozensets(st.sampled_from(("list", "code"))),
        domains=st.frozensets(st.sampled_from(("code", "legal"))),
        above=LENGTHS,
        up_to=LENGTHS,
        fallback=st.sampled_from(("", *NAMES)),
    ),
    unique_by=lambda offer: offer.name,
)
REQUESTS = st.tuples(
    st.builds(
        Choice, st.sampled_from(NAMES), st.sampled_from((Rule.OWN, Rule.EXPERT)), st.just("")
    ),
    st.sampled_from(("", "best_effort")),
    st.none() | st.builds(Task, st.sampled_from(("list", "open")), st.just("code"), st.just(0.9)),
    st.builds(Size, st.integers(0, 10_000), st.sampled_from((0, 50, 4000))),
    st.booleans(),
)


@pytest.mark.slow
@given(offers=OFFERS, requests=st.lists(REQUESTS, min_size=1, max_size=12))
def test_a_kept_plan_is_the_one_that_would_be_made(
    offers: list[Offer], requests: list[tuple[Choice, str, Task | None, Size, bool]]
) -> None:
    """Whatever the pools are and who asked before; and only pools with room are in it."""
    pools = Pools(offers)
    for own, low, task, size, careful in requests:
        kept = plan(pools, own, low, task, size, careful=careful)
        assert plan(Pools(offers), own, low, task, size, careful=careful) == kept
        assert all(pools[choice.pool].holds(*size) for choice in kept.line)
        assert own.pool in {choice.pool for choice in kept.choices}
        assert len(kept.choices) == len({choice.pool for choice in kept.choices})
        lesser = {choice.pool for choice in kept.choices if pools[choice.pool].best_effort}
        if careful and not low and not pools[own.pool].best_effort:
            assert set() == lesser
