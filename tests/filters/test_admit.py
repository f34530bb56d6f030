"""Requests wait for their pool where it has a queue; who gets no slot is told when to ask again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from filters.admit import AdmitConfig, AdmitFilter
from filters.api import CONTINUE, Answer, Exchange, Need, Outcome, SentAway, Verdict
from filters.fair_queue import Rules
from filters.queue_order import Lane, Priority, Shed, Wish
from filters.units import Duration
from tests.exchanges import CHATS, ask
from tests.fakes import FakeQueues, FakeSlot, PortWait, drive, fake_ports

BULK_FROM = 8_192
SHORT, LONG = "Why?", "Why is the basin so calm? " * 2_000


def admit(
    exchange: Exchange, queues: FakeQueues, config: AdmitConfig | None = None
) -> tuple[AdmitFilter, Verdict]:
    one = AdmitFilter(config or AdmitConfig(), None, fake_ports(queues=queues))
    return one, drive(one.on_request(exchange))


def wish_of(exchange: Exchange, config: AdmitConfig | None = None) -> Wish:
    queues = FakeQueues({"full": BULK_FROM})
    admit(exchange, queues, config)
    (wish,) = queues.wishes
    return wish


@pytest.mark.parametrize("dialect", CHATS)
def test_a_slot_is_held_until_the_exchange_is_over(dialect: str) -> None:
    """Its end has to be seen for that; the slot is given back once."""
    exchange, queues = ask(dialect, SHORT), FakeQueues({"full": BULK_FROM})
    one, verdict = admit(exchange, queues)
    assert (CONTINUE, Need.END) == (verdict, exchange.needs)
    assert {"admit.queue": "fast", "admit.class": "normal"} == exchange.notes
    assert [FakeSlot()] == queues.slots
    assert exchange.slot is queues.slots[0]
    drive(one.on_finish(exchange, Outcome.COMPLETE))
    assert 1 == queues.slots[0].released


def test_a_pool_without_a_queue_is_left_alone() -> None:
    """Nobody waits, nobody need see the end, and nothing is said."""
    exchange, queues = ask("openai.chat", LONG), FakeQueues({"other": 1})
    one, verdict = admit(exchange, queues)
    drive(one.on_finish(exchange, Outcome.FORWARDED))
    assert (CONTINUE, Need.NOTHING, {}, []) == (
        verdict,
        exchange.needs,
        exchange.notes,
        queues.wishes,
    )


def test_how_long_it_waited_is_noted() -> None:
    """In milliseconds, where it did."""
    exchange = ask("openai.chat", SHORT)
    waits: list[PortWait] = []
    queues = FakeQueues({"full": BULK_FROM}, waits_s=1.5)
    drive(AdmitFilter(AdmitConfig(), None, fake_ports(queues=queues)).on_request(exchange), waits)
    assert [PortWait("queues")] == waits
    assert 1_500 == exchange.notes["admit.waited_ms"]


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("why", Shed)
def test_who_gets_no_slot_is_told_when_to_ask_again(dialect: str, why: Shed) -> None:
    """429 in the provider's shape, in whole seconds, and nothing is held."""
    exchange = ask(dialect, SHORT)
    queues = FakeQueues({"full": BULK_FROM}, says=SentAway(why, 4.2))
    one, verdict = admit(exchange, queues)
    assert isinstance(verdict, Answer)
    assert (429, "5") == (verdict.status, verdict.headers["retry-after"])
    assert "ask again in 5 s" in json.dumps(json.loads(verdict.body))
    assert (why, Need.NOTHING) == (exchange.notes["admit.shed"], exchange.needs)
    drive(one.on_finish(exchange, Outcome.ANSWERED))


def test_nobody_is_told_to_ask_again_at_once() -> None:
    """A queue that drains fast says one second."""
    queues = FakeQueues({"full": BULK_FROM}, says=SentAway(Shed.FULL, 0.01))
    _, verdict = admit(ask("openai.chat", SHORT), queues)
    assert isinstance(verdict, Answer)
    assert "1" == verdict.headers["retry-after"]


@pytest.mark.parametrize(
    ("question", "lane"), [(SHORT, Lane.FAST), (LONG, Lane.BULK), ("水" * 9_000, Lane.FAST)]
)
def test_long_prompts_are_bulk_work(question: str, lane: Lane) -> None:
    """By about how many tokens they are: three bytes may be less than one."""
    assert lane is wish_of(ask("openai.chat", question)).lane


def test_what_route_counted_is_not_counted_again() -> None:
    """Its number counts, whatever is estimated."""
    exchange = ask("openai.chat", LONG)
    exchange.note("route.tokens", BULK_FROM - 1)
    assert Lane.FAST is wish_of(exchange).lane


def test_a_profile_may_name_the_queue() -> None:
    """Such as that of a batch, whose prompts are short."""
    assert Lane.BULK is wish_of(ask("openai.chat", SHORT), AdmitConfig(queue="bulk")).lane
    assert Lane.FAST is wish_of(ask("openai.chat", LONG), AdmitConfig(queue="fast")).lane


@pytest.mark.parametrize(
    ("headers", "priority"),
    [
        ({}, Priority.LOW),
        ({"x-mesh-class": "urgent"}, Priority.URGENT),
        ({"x-mesh-class": "normal"}, Priority.NORMAL),
        ({"x-mesh-class": "URGENT"}, Priority.LOW),
        ({"x-other-class": "urgent"}, Priority.LOW),
    ],
)
def test_a_header_of_the_mesh_names_the_class(
    headers: Mapping[str, str], priority: Priority
) -> None:
    """One of the four words; any other leaves the profile's."""
    config = AdmitConfig(priority="low", header="x-mesh-class")
    assert priority is wish_of(ask("openai.chat", SHORT, headers=headers), config).priority


@pytest.mark.parametrize(
    "name",
    ["x-forebay-class", "x-forebay-priority", "priority", "x-priority", "x-mesh-class", ""],
)
def test_a_request_that_nobody_speaks_for_is_of_the_profiles_class(name: str) -> None:
    """Whatever it says of itself: no header is read that the profile does not name."""
    claims = {name: "urgent"}
    assert Priority.NORMAL is wish_of(ask("openai.chat", SHORT, headers=claims)).priority


def test_the_defaults_are_those_of_the_table() -> None:
    """By length, `normal`, no header, no deadline, half a minute; half of 200 places for one."""
    config, rules = AdmitConfig(), Rules()
    assert ("auto", "normal", "", None, 30.0) == (
        config.queue,
        config.priority,
        config.header,
        config.deadline,
        config.wait,
    )
    assert (200, 0.5, 90, 10, 0.5) == (
        rules.length,
        rules.share,
        rules.fast,
        rules.bulk,
        rules.slice_s,
    )


def test_whose_it_is_and_how_long_it_may_wait_is_told() -> None:
    """The tenant's hash, the bound of the wait, and the deadline if there is one."""
    config = AdmitConfig(wait=Duration("9s"), deadline=Duration("2s"))
    wish = wish_of(ask("openai.chat", SHORT, tenant="mine"), config)
    assert ("mine", 9.0, 2.0) == (wish.tenant, wish.wait_s, wish.deadline_s)
    assert 0.0 == wish_of(ask("openai.chat", SHORT)).deadline_s
    assert 9.0 == AdmitFilter.longest_wait_s(config)


def test_no_setting_of_it_shapes_an_answer() -> None:
    """Stored answers stay when somebody has others wait."""
    settings: list[Any] = [
        AdmitFilter.shaping(one) for one in (AdmitConfig(), AdmitConfig(queue="bulk"))
    ]
    assert [None, None] == settings
