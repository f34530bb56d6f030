"""A request goes to the replica that was picked, and is let go of there however it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from filters.api import CONTINUE, Answer, Delta, Exchange, Need, Outcome, ReplyHead
from filters.errors import NO_REPLICA, FilterError
from filters.fingerprint import fingerprint
from filters.pick import PickConfig, PickFilter, beginning
from filters.pipeline import Pipeline, Run
from filters.prefix_blocks import MOST_NAMED_BYTES
from tests.exchanges import WORDS, ask, reply_head
from tests.fakes import FakePicked, FakeReplicas, FakeSlot, drive, fake_ports

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
DIALECTS = pytest.mark.parametrize("dialect", WORDS)
TOKEN = Delta(b"data: x\n\n", text="x")
STREAM = "text/event-stream"


@dataclass(slots=True)
class Table:
    """A filter and the replicas that it asks."""

    config: PickConfig = field(default_factory=PickConfig)
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"full": (A, B, C)})
    replicas: FakeReplicas = field(init=False)
    filter: PickFilter = field(init=False)

    def __post_init__(self) -> None:
        self.replicas = FakeReplicas(self.addresses)
        ports = fake_ports(replicas=self.replicas)
        self.filter = PickFilter(self.config, None, ports)

    def request(self, exchange: Exchange) -> None:
        assert CONTINUE is drive(self.filter.on_request(exchange))

    def head(self, exchange: Exchange, content_type: str = STREAM, status: int = 200) -> None:
        exchange.reply_head = reply_head(content_type, status)
        drive(self.filter.on_response(exchange))

    def token(self, exchange: Exchange) -> None:
        assert (TOKEN,) == tuple(self.filter.on_delta(exchange, TOKEN))

    def finish(self, exchange: Exchange, outcome: Outcome = Outcome.COMPLETE) -> None:
        drive(self.filter.on_finish(exchange, outcome))

    @property
    def picked(self) -> FakePicked:
        (only,) = self.replicas.picked
        return only


@DIALECTS
def test_the_replica_picked_is_told_with_the_next_best(dialect: str) -> None:
    """And the reason is noted."""
    table, exchange = Table(), ask_in(dialect, "hello")
    table.request(exchange)
    assert (A, B) == exchange.endpoints
    assert {
        "pick.replica": A,
        "pick.why": "fake",
        "pick.held": 64,
        "pick.expected_ms": 250,
    } == exchange.notes


def ask_in(dialect: str, question: str, **more: Any) -> Exchange:
    return ask(dialect, question, **more)


@pytest.mark.parametrize("status", [200, 503])
def test_one_that_answers_in_anothers_stead_is_known_to(status: int) -> None:
    """The first one took no connection."""
    table, exchange = Table(), ask("openai.chat", "hello")
    table.request(exchange)
    exchange.reply_head = ReplyHead(status, {}, served=B)
    drive(table.filter.on_response(exchange))
    assert (B, A) == table.picked.addresses
    assert (A, B) == (exchange.notes["pick.replica"], exchange.notes["pick.served"])


@pytest.mark.parametrize("served", [A, ""])
def test_the_first_one_that_answers_is_no_news(served: str) -> None:
    """Nor is a proxy that does not tell."""
    table, exchange = Table(), ask("openai.chat", "hello")
    table.request(exchange)
    exchange.reply_head = ReplyHead(200, {}, served=served)
    drive(table.filter.on_response(exchange))
    assert (A, B) == table.picked.addresses
    assert "pick.served" not in exchange.notes


@DIALECTS
def test_a_pool_without_replicas_is_the_proxys(dialect: str) -> None:
    """Nothing is asked for, noted or seen."""
    table, exchange = Table(addresses={}), ask_in(dialect, "hello")
    table.request(exchange)
    table.finish(exchange)
    assert ((), {}, Need.NOTHING, []) == (
        exchange.endpoints,
        exchange.notes,
        exchange.needs,
        table.replicas.picked,
    )


@pytest.mark.parametrize("must", [False, True])
@pytest.mark.parametrize("subset", [None, (C,), ("10.9.9.9:80",), ()])
def test_whoever_may_be_picked_is_who_the_proxy_leaves(
    subset: tuple[str, ...] | None, *, must: bool
) -> None:
    """Where it leaves nobody, to go on would be to have it choose outside."""
    table, exchange = Table(), ask("openai.chat", "hello")
    exchange.subset, exchange.must_pick = subset, must
    if subset is None or C in subset:
        table.request(exchange)
        assert ((A, B) if subset is None else (C,)) == exchange.endpoints
        return
    with pytest.raises(FilterError) as raised:
        table.request(exchange)
    assert (503, NO_REPLICA) == (raised.value.status, raised.value.text)
    assert "no replica" == exchange.notes["pick.skip"]


@pytest.mark.parametrize("must", [False, True])
def test_without_a_replica_it_is_the_proxys_to_choose_unless_it_never_does(*, must: bool) -> None:
    """A gateway that has replicas picked has no choice of its own."""
    table, exchange = Table(addresses={"full": ()}), ask("openai.chat", "hello")
    exchange.must_pick = must
    if not must:
        table.request(exchange)
        assert () == exchange.endpoints
        return
    with pytest.raises(FilterError):
        table.request(exchange)


@DIALECTS
def test_full_replicas_are_left_alone(dialect: str) -> None:
    """The client reads when to ask again, in its provider's shape."""
    table, exchange = Table(), ask_in(dialect, "hello")
    table.replicas.full = 0.5
    answer = drive(table.filter.on_request(exchange))
    assert isinstance(answer, Answer)
    assert (429, "1") == (answer.status, answer.headers["retry-after"])
    assert exchange.dialect.error(429, "all model servers are busy: ask again in 1 s") == (
        answer.body
    )
    table.finish(exchange, Outcome.ANSWERED)
    assert ([], Need.NOTHING) == (table.replicas.picked, exchange.needs)


def test_the_pool_is_the_one_chosen_for_the_exchange() -> None:
    """A filter before this one may have chosen another than the profile's own."""
    table = Table(addresses={"full": (A,), "best_effort": (B,)})
    exchange = ask("openai.chat", "hello")
    exchange.pool = "best_effort"
    table.request(exchange)
    assert (B,) == exchange.endpoints


def test_a_pool_that_lost_its_replicas_is_left_to_the_proxy() -> None:
    """It may know better, and says so to the client if not."""
    table, exchange = Table(addresses={"full": ()}), ask("openai.chat", "hello")
    table.request(exchange)
    assert ((), {"pick.skip": "no replica"}) == (exchange.endpoints, exchange.notes)


@DIALECTS
def test_what_is_said_is_compared(dialect: str) -> None:
    """Whatever the provider's JSON puts around it."""
    exchange = ask_in(dialect, "a question" * 9)
    shown, tokens = beginning(exchange.prompt)
    assert ("a question" * 9).encode() in shown
    assert len(shown) // 4 == tokens


def test_the_same_beginning_is_the_same_bytes() -> None:
    """A conversation that goes on begins with what was said before."""
    first = {"role": "user", "content": "one"}
    answer = {"role": "assistant", "content": "two"}
    short = ask("openai.chat", "", more={"messages": [first]})
    long = ask("openai.chat", "", more={"messages": [first, answer, first]})
    assert beginning(long.prompt)[0].startswith(beginning(short.prompt)[0])


def test_tools_come_first() -> None:
    """As chat templates have it: a request with other tools begins otherwise."""
    tool = {"type": "function", "function": {"name": "look"}}
    exchange = ask("openai.chat", "hello", more={"tools": [tool]})
    shown, _ = beginning(exchange.prompt)
    assert shown.startswith(b'[{"type":"function","function":{"name":"look"}}]\nuser\n')


@pytest.mark.parametrize(("char", "size", "shown"), [("x", 1, 1), ("中", 3, 1.5)])
def test_no_more_is_shown_than_is_looked_at(char: str, size: int, shown: float) -> None:
    """Its length is told all the same."""
    exchange = ask("openai.chat", char * 3 * MOST_NAMED_BYTES)
    text, tokens = beginning(exchange.prompt)
    assert MOST_NAMED_BYTES * shown == pytest.approx(len(text), abs=16)
    assert 3 * size * MOST_NAMED_BYTES // 4 == pytest.approx(tokens, rel=0.001)


def test_what_is_not_shown_is_counted_all_the_same() -> None:
    """A conversation may go on behind that."""
    said = [{"role": "user", "content": "x" * MOST_NAMED_BYTES}] * 3
    shown, tokens = beginning(ask("openai.chat", "", more={"messages": said}).prompt)
    assert (MOST_NAMED_BYTES, 3 * MOST_NAMED_BYTES // 4) == (len(shown), tokens)


def test_half_a_character_is_shown_as_well() -> None:
    """JSON can write one half of a surrogate pair."""
    exchange = ask("openai.chat", "hello")
    exchange.prompt.turns()[0].texts[0].document.root["messages"][0]["content"] = "\ud83d"
    assert (b"\nuser\n\xed\xa0\xbd", 2) == beginning(exchange.prompt)


@pytest.mark.parametrize(("across", "seeds"), [(False, {"m\none", "m\nother"}), (True, {"m\n"})])
def test_tenants_are_told_apart_unless_they_may_share(across: bool, seeds: set[str]) -> None:
    """What another tenant asked must not be told by how fast an answer begins."""
    table = Table(PickConfig(across_tenants=across))
    for tenant in ("one", "other"):
        table.request(ask("openai.chat", "hello", tenant=tenant))
    assert seeds == {picked.seed for picked in table.replicas.picked}


# --- Until it ends -------------------------------------------------------------------------------


def test_a_stream_starts_with_its_first_event() -> None:
    """Its head may have come at once."""
    table, exchange = Table(), ask("openai.chat", "hello", stream=True)
    table.request(exchange)
    table.head(exchange)
    before = table.picked.starts
    table.token(exchange)
    table.token(exchange)
    table.finish(exchange)
    assert (True, 0, 1, True) == (
        table.picked.watched,
        before,
        table.picked.starts,
        table.picked.good,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_not_watched_starts_with_its_head(stream: bool) -> None:
    """Its body need not be seen."""
    table = Table(PickConfig(watch=not stream))
    exchange = ask("openai.chat", "hello", stream=stream)
    table.request(exchange)
    table.head(exchange, "application/json")
    table.finish(exchange, Outcome.GONE)
    assert (False, 1, True) == (table.picked.watched, table.picked.starts, table.picked.good)
    assert Need.HEAD | Need.END == exchange.needs


@pytest.mark.parametrize(
    ("stream", "watch", "begins"), [(False, True, 1), (True, True, 1), (True, False, 0)]
)
def test_a_slot_is_told_when_the_answer_begins(stream: bool, watch: bool, begins: int) -> None:
    """Once; the head of a stream that is not watched tells nothing, it may come at once."""
    table, slot = Table(PickConfig(watch=watch)), FakeSlot()
    exchange = ask("openai.chat", "hello", stream=stream)
    exchange.slot = slot
    table.request(exchange)
    table.head(exchange, "text/event-stream" if stream else "application/json")
    if stream and watch:
        table.token(exchange)
        table.token(exchange)
    table.finish(exchange)
    assert begins == slot.begins


def test_a_stream_is_read_only_when_it_comes() -> None:
    """An error needs no watching."""
    table, exchange = Table(), ask("openai.chat", "hello", stream=True)
    table.request(exchange)
    asked = exchange.needs
    table.head(exchange)
    assert (Need.HEAD | Need.END, Need.HEAD | Need.END | Need.REPLY) == (asked, exchange.needs)


@pytest.mark.parametrize(
    ("status", "ill"), [(200, False), (429, False), (500, False), (502, True), (503, True)]
)
def test_a_replica_that_cannot_serve_says_so(status: int, ill: bool) -> None:
    """Not by what may be the prompt's fault, or because one client asks too much."""
    table, exchange = Table(), ask("openai.chat", "Why?")
    table.request(exchange)
    table.head(exchange, "application/json", status)
    table.finish(exchange)
    assert ill == table.picked.ill


@pytest.mark.parametrize("status", [400, 429, 500, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_no_beginning(status: int, stream: bool) -> None:
    """The prompt was not read, as far as is known."""
    table, exchange = Table(), ask("openai.chat", "hello", stream=stream)
    table.request(exchange)
    table.head(exchange, "application/json", status)
    table.finish(exchange)
    assert (0, False) == (table.picked.starts, table.picked.good)


@pytest.mark.parametrize("outcome", Outcome)
def test_every_end_lets_go(outcome: Outcome) -> None:
    """Also of a request that never got a reply."""
    table, exchange = Table(), ask("openai.chat", "hello", stream=True)
    table.request(exchange)
    table.finish(exchange, outcome)
    assert False is table.picked.good


class Breaks(FakeReplicas):
    """Picks, and cannot say why."""

    def pick(self, *arguments: Any, **named: Any) -> FakePicked | None:
        picked = super().pick(*arguments, **named)
        assert picked is not None
        picked.expected_s = float("nan")
        return picked


def test_what_breaks_lets_go_and_tells_no_replica() -> None:
    """The request goes on to where the proxy sends it."""
    replicas = Breaks({"full": (A,)})
    ports = fake_ports(replicas=replicas)
    run, exchange = Run(Pipeline([(PickFilter, PickConfig())], ports)), ask("openai.chat", "hello")
    assert drive(run.request(exchange)) is None
    drive(run.finish(exchange, Outcome.COMPLETE))
    assert ((), "ValueError", False) == (
        exchange.endpoints,
        exchange.notes["pick.failed"],
        replicas.picked[0].good,
    )


def test_no_setting_changes_an_answer() -> None:
    """What was stored under other ones may be given."""
    one, other = PickConfig(), PickConfig(across_tenants=True, watch=False)
    assert fingerprint([(PickFilter, one)], []) == fingerprint([(PickFilter, other)], [])
