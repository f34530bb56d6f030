"""Which requests for an embedding are asked together, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec.structs import replace

from filters.api import CONTINUE, Answer, Exchange, Need, Outcome, Part, Verdict
from filters.document import encode
from filters.gather import GatherConfig, GatherFilter
from filters.units import Duration, Size
from tests import exchanges
from tests.exchanges import WORDS, exchange_of, reply_head
from tests.fakes import FakeBatches, FakeBerth, drive, fake_ports

PATH: Final = "/v1/embeddings"
ANSWER: Final = Answer(200, {"content-type": "application/json"}, b"{}", relayed=True)


def embed(text: Any = "calm", headers: Mapping[str, str] | None = None, **more: Any) -> Exchange:
    return exchange_of(
        "openai.embeddings", encode({"model": "m", "input": text, **more}), PATH, headers=headers
    )


class Stand:
    """A filter, and the port that it takes places from."""

    def __init__(self, *berths: FakeBerth, **settings: Any) -> None:
        self.batches = FakeBatches(list(berths))
        self.filter = GatherFilter(GatherConfig(**settings), None, fake_ports(batches=self.batches))

    def ask(self, exchange: Exchange) -> Verdict:
        return drive(self.filter.on_request(exchange))

    def part(self, exchange: Exchange) -> Part:
        """Return what is asked of the port."""
        self.ask(exchange)
        return self.batches.taken[-1][0]


def test_the_first_goes_by_itself_and_its_answer_is_waited_for() -> None:
    """Others gather until the head of its reply is there; the reply itself is not looked at."""
    berth = FakeBerth(leads=True)
    stand, exchange = Stand(berth), embed()
    assert CONTINUE is stand.ask(exchange)
    assert Need.END == exchange.needs
    assert {"gather": "first"} == exchange.notes
    assert 0 == berth.left
    exchange.reply_head = reply_head()
    drive(stand.filter.on_response(exchange))
    assert 1 == berth.left


def test_an_answer_from_a_batch_is_the_upstreams() -> None:
    """Filters before see it as a reply, and the note says how many were asked together."""
    stand, exchange = Stand(FakeBerth(size=3, given=ANSWER)), embed()
    assert ANSWER == stand.ask(exchange)
    assert {"gather": "batch", "gather.size": 3} == exchange.notes
    assert Need.NOTHING == exchange.needs


@pytest.mark.parametrize("why", ["refused", "failed", "late", "full"])
def test_whoever_gets_nothing_from_a_batch_goes_on_as_it_came(why: str) -> None:
    """The request is not changed, and the note says why."""
    stand, exchange = Stand(FakeBerth(why=why)), embed()
    assert CONTINUE is stand.ask(exchange)
    assert {"gather.skip": why} == exchange.notes
    assert not exchange.prompt.document.changed
    assert Need.NOTHING == exchange.needs


@pytest.mark.parametrize("outcome", Outcome)
def test_the_place_is_left_however_it_ends(outcome: Outcome) -> None:
    """A client that goes away holds nobody up."""
    berth = FakeBerth(leads=True)
    stand, exchange = Stand(berth), embed()
    stand.ask(exchange)
    drive(stand.filter.on_finish(exchange, outcome))
    assert 1 == berth.left


def test_settings_reach_the_port() -> None:
    """How many, how long to wait for others, and for the answer."""
    stand = Stand(most=4, wait=Duration("20ms"), deadline=Duration("3s"))
    stand.ask(embed())
    ((_, most, wait_s, deadline_s),) = stand.batches.taken
    assert (4, 0.02, 3.0) == (most, wait_s, deadline_s)
    assert pytest.approx(10.05) == GatherFilter.longest_wait_s(GatherConfig())


@pytest.mark.parametrize(
    ("text", "why"), [(["a", "b"], "several"), ("", "nothing"), ("x" * 40_000, "size")]
)
def test_what_is_not_gathered_says_why(text: Any, why: str) -> None:
    """A list was gathered by its client; a long text takes what it takes."""
    stand, exchange = Stand(), embed(text)
    assert CONTINUE is stand.ask(exchange)
    assert ({"gather.skip": why}, []) == (exchange.notes, stand.batches.taken)


def test_how_long_a_request_may_be_is_a_setting() -> None:
    """Up to there it is gathered."""
    stand = Stand(longest=Size("64KiB"))
    stand.ask(embed("x" * 40_000))
    assert 1 == len(stand.batches.taken)


@pytest.mark.parametrize("dialect", WORDS)
def test_questions_are_none_of_its_business(dialect: str) -> None:
    """They pass without a note."""
    stand, exchange = Stand(), exchanges.ask(dialect, "Why?")
    assert CONTINUE is stand.ask(exchange)
    assert ({}, []) == (exchange.notes, stand.batches.taken)


def test_a_gateway_that_picks_here_has_no_way_for_batches() -> None:
    """Its requests go where they are sent."""
    stand, exchange = Stand(), embed()
    exchange.must_pick = True
    assert CONTINUE is stand.ask(exchange)
    assert [] == stand.batches.taken


# --- Who is asked for with whom ------------------------------------------------------------------


def test_other_texts_are_alike() -> None:
    """Also where one came in a list, and under another trace."""
    one = Stand().part(
        embed("one", {"authorization": "Bearer k", "traceparent": "00-a", "b3": "1"})
    )
    two = Stand().part(embed(["two"], {"authorization": "Bearer k", "x-b3-traceid": "2"}))
    assert one.alike == two.alike
    assert {"authorization": "Bearer k"} == one.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer other"},
        {"authorization": "Bearer k", "openai-project": "p"},
        {"authorization": "Bearer k", "idempotency-key": "1"},
        {"authorization": "Bearer k", "cookie": "c"},
        {},
    ],
)
def test_another_header_is_another_kind(headers: dict[str, str]) -> None:
    """Nobody's text is asked for with another one's credential, or for another's project."""
    one = Stand().part(embed("one", {"authorization": "Bearer k"}))
    assert one.alike != Stand().part(embed("one", headers)).alike


@pytest.mark.parametrize("more", [{"model": "n"}, {"dimensions": 4}, {"encoding_format": "base64"}])
def test_another_setting_is_another_kind(more: dict[str, Any]) -> None:
    """A call has one model, and one form for all its vectors."""
    assert Stand().part(embed()).alike != Stand().part(embed(**more)).alike


def test_tenants_pools_and_paths_are_kept_apart() -> None:
    """A mesh may name tenants that share a credential; an Azure path names the model."""
    part = Stand().part(embed())
    for other in (
        replace(part, tenant="other"),
        replace(part, pool="other"),
        replace(part, path="/openai/deployments/other/embeddings?api-version=1"),
    ):
        assert part.alike != other.alike


def test_what_belongs_to_one_connection_does_not_go_along() -> None:
    """Nor what only the gateway may say."""
    headers = {":path": PATH, "host": "h", "connection": "x", "content-length": "9"}
    more = {"x-forebay-cluster": "c", "accept-encoding": "gzip", "api-key": "k"}
    assert {"api-key": "k"} == Stand().part(embed("one", headers | more)).headers


def test_a_text_is_weighed_by_its_tokens() -> None:
    """The weights share out what a batch used."""
    assert 3 == Stand().part(embed([5, 6, 7])).single.weight
    ports = fake_ports()
    assert ports.tokens.estimate("a b c d") == Stand().part(embed("a b c d")).single.weight
