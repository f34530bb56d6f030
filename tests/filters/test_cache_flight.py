"""Those who ask the same at the same time: who asks the model, who waits, and what for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import pytest

from filters.api import CONTINUE, Answer, Boarding, Delta, Exchange, Need, Outcome
from filters.cache import CacheFilter
from filters.cache_flight import Coalesce
from filters.cache_settings import CacheConfig
from filters.units import Duration, Size
from tests.calls import text_of
from tests.exchanges import CHATS, answer, ask, reply_head
from tests.fakes import FakeClock, FakeFlights, FakeStore, PortWait, drive, fake_ports

CHAT: Final = "openai.chat"
RARE: Final = CacheConfig(any_temperature=True, coalesce=Coalesce(rare=True))
"""Nothing is kept at its first sighting."""
OFTEN: Final = CacheConfig(any_temperature=True, admit_after=1)


class Asked:
    """One exchange, asked as far as it gets."""

    def __init__(self, desk: Desk, exchange: Exchange) -> None:
        self.exchange = exchange
        self.cache = CacheFilter(desk.config, CacheFilter.prepare(desk.config), desk.ports)
        self.work: Coroutine[Any, Any, Any] = self.cache.on_request(exchange)
        self.verdict: Any = None
        self.go_on()

    def go_on(self) -> None:
        """Go on to the end, or until it waits for others."""
        try:
            waited = self.work.send(None)
        except StopIteration as stop:
            self.verdict = stop.value
        else:
            assert PortWait("flights") == waited

    @property
    def waits(self) -> bool:
        return self.verdict is None

    def head(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Have the reply begin."""
        head = reply_head(status=status)
        self.exchange.reply_head = type(head)(status, {**head.headers, **(headers or {})})
        drive(self.cache.on_response(self.exchange))

    def finish(self, outcome: Outcome = Outcome.COMPLETE, reply: bytes = b"") -> None:
        """Have the exchange end, after `reply` if there was one."""
        if reply:
            list(self.cache.on_delta(self.exchange, Delta(reply)))
        drive(self.cache.on_finish(self.exchange, outcome))


class Desk:
    """Where exchanges come in, with all that they share."""

    def __init__(self, config: CacheConfig = RARE) -> None:
        self.clock = FakeClock()
        self.store = FakeStore(self.clock)
        self.flights = FakeFlights(self.clock)
        self.ports = fake_ports(self.clock, store=self.store, flights=self.flights)
        self.config = config

    def ask(self, dialect: str = CHAT, **options: Any) -> Asked:
        return Asked(self, ask(dialect, "why?", **options))


def shared(asked: Asked) -> Answer:
    """Return what one that waited was given."""
    asked.go_on()
    assert isinstance(asked.verdict, Answer)
    return asked.verdict


def test_one_that_is_alone_needs_no_more_than_the_head_of_its_reply() -> None:
    """There it turns out that nobody waits, and the reply goes its way unread."""
    desk = Desk()
    alone = desk.ask()
    assert (CONTINUE, Need.HEAD) == (alone.verdict, alone.exchange.needs)
    assert "cache.flight" not in alone.exchange.notes
    alone.head()
    assert Need.HEAD == alone.exchange.needs
    assert {} == desk.flights.flights
    alone.finish(Outcome.FORWARDED)
    assert {} == desk.store.values


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_the_others_get_what_the_first_was_told_in_their_own_form(
    dialect: str, stream: bool
) -> None:
    """It reads as a hit, and says what it is: RFC 9211's `collapsed`, no second old."""
    desk = Desk()
    first, other = desk.ask(dialect), desk.ask(dialect, stream=stream)
    assert other.waits
    first.head()
    assert Need.HEAD | Need.REPLY == first.exchange.needs
    first.finish(reply=answer(dialect, "because"))
    given = shared(other)
    expected = ("HIT", "forebay; fwd=miss; collapsed", "0")
    assert expected == tuple(given.headers[name] for name in ("x-cache", "cache-status", "age"))
    kind = "text/event-stream" if stream else "application/json"
    assert kind == given.headers["content-type"].partition(";")[0]
    text = b"because" if stream else text_of(dialect, given.body).encode()
    assert text in given.body
    assert {"cache": "hit", "cache.flight": "shared"}.items() <= other.exchange.notes.items()
    assert Need.NOTHING is other.exchange.needs
    other.finish(Outcome.ANSWERED)
    assert {} == desk.flights.flights


def test_by_default_a_question_is_not_waited_for_before_it_is_worth_keeping() -> None:
    """What is asked once costs what it costs without others: nothing of its reply is seen."""
    desk = Desk(CacheConfig(any_temperature=True, admit_after=3))
    asked = [desk.ask() for _ in range(5)]
    expected = [Need.NOTHING, Need.NOTHING, Need.REPLY, Need.NOTHING, Need.NOTHING]
    assert expected == [one.exchange.needs for one in asked]
    assert [False, False, False, True, True] == [one.waits for one in asked]
    asked[2].head()
    asked[2].finish(reply=answer(CHAT))
    assert ["HIT"] * 2 == [shared(one).headers["x-cache"] for one in asked[3:]]


def test_what_is_shared_at_its_first_sighting_is_not_kept() -> None:
    """The note says why."""
    desk = Desk()
    first, other = desk.ask(), desk.ask()
    first.head()
    first.finish(reply=answer(CHAT))
    assert 200 == shared(other).status
    assert ({}, "sightings") == (desk.store.values, first.exchange.notes["cache.skip"])


def test_an_answer_that_is_too_long_to_be_kept_is_shared() -> None:
    """It has no place in the store, but those who wait asked for it."""
    desk = Desk(OFTEN)
    first, other = desk.ask(), desk.ask()
    first.head()
    first.finish(reply=answer(CHAT, tokens=257))
    assert 200 == shared(other).status
    assert ({}, "tokens") == (desk.store.values, first.exchange.notes["cache.skip"])


def test_what_is_kept_is_shared_and_found_afterwards() -> None:
    """It is stored before it is handed over: who comes next finds it."""
    desk = Desk(OFTEN)
    first, other = desk.ask(), desk.ask()
    first.head()
    first.finish(reply=answer(CHAT))
    shared(other)
    found = desk.ask()
    assert isinstance(found.verdict, Answer)
    assert found.verdict.headers["cache-status"].startswith("forebay; hit; ")


def test_who_leads_next_looks_first_whether_the_answer_is_there_by_now() -> None:
    """A server that hears too late that others wait has stored it, and told nobody."""
    desk = Desk(OFTEN)
    first, second, third = (desk.ask() for _ in range(3))
    there = Desk(OFTEN)
    leader = there.ask()
    leader.head()
    leader.finish(reply=answer(CHAT))
    desk.store.values.update(there.store.values)
    first.finish(Outcome.GONE)
    assert "forebay; fwd=miss; collapsed" == shared(second).headers["cache-status"]
    second.finish(Outcome.ANSWERED)
    assert 200 == shared(third).status


def test_one_that_waits_elsewhere_is_as_good_as_one_here() -> None:
    """Another process may wait for the answer."""
    desk = Desk()
    first = desk.ask()
    desk.flights.elsewhere = True
    first.head()
    assert Need.HEAD | Need.REPLY == first.exchange.needs


@pytest.mark.parametrize("status", [201, 302, 400, 429, 500, 503])
def test_when_the_first_is_refused_the_next_asks(status: int) -> None:
    """At the head of the reply, without waiting for the rest."""
    desk = Desk()
    first, second, third = (desk.ask() for _ in range(3))
    first.head(status)
    second.go_on()
    assert (CONTINUE, Need.HEAD) == (second.verdict, second.exchange.needs)
    assert ("leads", True) == (second.exchange.notes["cache.flight"], third.waits)
    first.finish(reply=b"{}")
    second.head()
    second.finish(reply=answer(CHAT))
    assert 200 == shared(third).status


@pytest.mark.parametrize(
    "outcome", [one for one in Outcome if one not in (Outcome.COMPLETE, Outcome.FORWARDED)]
)
@pytest.mark.parametrize("began", [False, True], ids=["no reply", "half a reply"])
def test_when_the_first_does_not_come_to_its_end_the_next_asks(
    outcome: Outcome, began: bool
) -> None:
    """Its client left, its reply broke off, or something else answered it."""
    desk = Desk()
    first, second = desk.ask(), desk.ask()
    if began:
        first.head()
    first.finish(outcome, answer(CHAT)[:40] if began else b"")
    second.go_on()
    assert (CONTINUE, Need.HEAD) == (second.verdict, second.exchange.needs)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        answer(CHAT)[:-1],
        answer(CHAT)[:-1] + b',"error":{"message":"overloaded"}}',
        answer(CHAT).replace(b'"stop"', b"null"),
    ],
    ids=["nothing", "half", "error", "unfinished"],
)
def test_when_the_answer_is_none_the_next_asks(reply: bytes) -> None:
    """It may get a better one."""
    desk = Desk()
    first, second = desk.ask(), desk.ask()
    first.head()
    first.finish(reply=reply)
    second.go_on()
    assert Boarding.LEADS == second.exchange.notes["cache.flight"]


@pytest.mark.parametrize(
    "reply",
    [
        answer(CHAT).replace(b'"stop"', b'"length"'),
        answer(CHAT).replace(b'"stop"', b'"content_filter"'),
        answer(CHAT).replace(b'"stop"', b'"tool_calls"'),
        answer(CHAT, "x" * 2_000),
        answer(CHAT, "x" * 200_000),
    ],
    ids=["length", "filtered", "tool", "size", "far too long"],
)
def test_when_the_answer_is_for_nobody_else_all_ask_at_once(reply: bytes) -> None:
    """The next one would be no better: nobody waits for that."""
    desk = Desk(CacheConfig(any_temperature=True, admit_after=1, max_answer=Size("1KiB")))
    first, *others = (desk.ask() for _ in range(4))
    first.head()
    first.finish(reply=reply)
    for other in others:
        other.go_on()
        assert (CONTINUE, Need.REPLY) == (other.verdict, other.exchange.needs)
        assert Boarding.ALONE == other.exchange.notes["cache.flight"]
        assert "MISS" == other.exchange.client_headers["x-cache"]


def test_an_answer_that_grows_too_long_holds_nobody_up_to_its_end() -> None:
    """The others go as soon as that is known."""
    desk = Desk(CacheConfig(any_temperature=True, admit_after=1, max_answer=Size("1KiB")))
    first, other = desk.ask(), desk.ask()
    first.head()
    list(first.cache.on_delta(first.exchange, Delta(b"x" * 10_000)))
    other.go_on()
    assert (CONTINUE, "alone") == (other.verdict, other.exchange.notes["cache.flight"])


def test_a_compressed_reply_sends_the_others_on_their_way() -> None:
    """Its bytes say nothing, and the next one's would not either."""
    desk = Desk()
    first, other = desk.ask(), desk.ask()
    first.head(headers={"content-encoding": "gzip"})
    other.go_on()
    assert Boarding.ALONE == other.exchange.notes["cache.flight"]


def test_a_reply_of_a_kind_that_is_not_read_sends_them_on_their_way_too() -> None:
    """What was asked for is not shown: the exchange is let go at its head."""
    desk = Desk()
    first, other = desk.ask(), desk.ask()
    first.head()
    first.finish(Outcome.FORWARDED)
    other.go_on()
    assert Boarding.ALONE == other.exchange.notes["cache.flight"]


def test_who_waited_long_enough_goes_alone() -> None:
    """It needs nothing of its reply: nobody waits for it."""
    desk = Desk()
    _, late = desk.ask(), desk.ask()
    late.go_on()
    assert (CONTINUE, Need.NOTHING) == (late.verdict, late.exchange.needs)
    assert ("late", "MISS") == (
        late.exchange.notes["cache.flight"],
        late.exchange.client_headers["x-cache"],
    )


def test_who_finds_no_room_goes_alone_at_once() -> None:
    """The profile says how many may wait for one answer."""
    desk = Desk(CacheConfig(any_temperature=True, coalesce=Coalesce(room=1, rare=True)))
    _, waiting, full = (desk.ask() for _ in range(3))
    assert waiting.waits
    assert (CONTINUE, "full") == (full.verdict, full.exchange.notes["cache.flight"])


@pytest.mark.parametrize("directive", ["no-cache", "no-store"])
def test_who_wants_an_answer_of_its_own_neither_waits_nor_is_waited_for(directive: str) -> None:
    """RFC 9111: it asked for the model's, not for what another one is told."""
    desk = Desk()
    fresh = desk.ask(headers={"cache-control": directive})
    first = desk.ask()
    again = desk.ask(headers={"cache-control": directive})
    assert [CONTINUE] * 3 == [one.verdict for one in (fresh, first, again)]
    assert [Need.NOTHING, Need.HEAD, Need.NOTHING] == [
        one.exchange.needs for one in (fresh, first, again)
    ]


def test_who_takes_stored_answers_only_does_not_wait() -> None:
    """RFC 9111, 5.2.1.7: there is none by now."""
    desk = Desk()
    first = desk.ask()
    with pytest.raises(Exception, match="no stored answer"):
        desk.ask(headers={"cache-control": "only-if-cached"})
    first.finish(Outcome.GONE)
    assert {} == desk.flights.flights


def test_a_profile_without_waiting_has_nobody_wait() -> None:
    """Nor does anybody need more of its reply than without it."""
    desk = Desk(CacheConfig(any_temperature=True, coalesce=Coalesce(Duration("0s"), rare=True)))
    both = [desk.ask(), desk.ask()]
    assert [(CONTINUE, Need.NOTHING)] * 2 == [(one.verdict, one.exchange.needs) for one in both]
    assert {} == desk.flights.flights


def test_a_store_that_is_down_does_not_keep_anybody_from_sharing() -> None:
    """The model is asked once, when it matters most."""
    desk = Desk(OFTEN)
    desk.store.failing = True
    first, other = desk.ask(), desk.ask()
    assert ("BYPASS", True) == (first.exchange.client_headers["x-cache"], other.waits)
    first.head()
    first.finish(reply=answer(CHAT))
    assert "HIT" == shared(other).headers["x-cache"]


def test_a_store_that_breaks_as_it_is_told_does_not_either() -> None:
    """The answer is there all the same."""
    desk = Desk(OFTEN)
    first, other = desk.ask(), desk.ask()
    first.head()
    desk.store.failing = True
    first.finish(reply=answer(CHAT))
    assert "HIT" == shared(other).headers["x-cache"]


def test_an_end_that_is_cancelled_halfway_shares_what_it_has() -> None:
    """The client has its last byte and is gone, while the store is being told."""
    desk = Desk(OFTEN)
    first, other = desk.ask(), desk.ask()
    first.head()
    list(first.cache.on_delta(first.exchange, Delta(answer(CHAT))))
    desk.store.waiting = True
    ending = first.cache.on_finish(first.exchange, Outcome.COMPLETE)
    assert PortWait("store") == ending.send(None)
    with pytest.raises(asyncio.CancelledError):
        ending.throw(asyncio.CancelledError)
    desk.store.waiting = False
    assert "HIT" == shared(other).headers["x-cache"]
    assert {} == desk.flights.flights


def test_a_client_that_leaves_while_it_waits_frees_its_place() -> None:
    """Its wait is cancelled, then its end is told."""
    desk = Desk()
    first, gone, other = (desk.ask() for _ in range(3))
    with pytest.raises(asyncio.CancelledError):
        gone.work.throw(asyncio.CancelledError)
    gone.finish(Outcome.GONE)
    assert [Boarding.LEADS, Boarding.WAITING] == [
        seat.boarding for (seats,) in [desk.flights.flights.values()] for seat in seats
    ]
    first.finish(Outcome.GONE)
    other.go_on()
    other.finish(Outcome.GONE)
    assert {} == desk.flights.flights


def test_envoy_is_asked_for_as_long_as_somebody_may_wait() -> None:
    """And for nothing where nobody may."""
    nobody = CacheConfig(coalesce=Coalesce(wait=Duration("0s")))
    waits = [CacheFilter.longest_wait_s(config) for config in (RARE, nobody)]
    assert [10.0, 0.0] == waits
