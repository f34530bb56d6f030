"""The client asks what the load says, when it says so, and tells what came of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

import pytest

from ext_proc.tools.routing_client import Client, errors_of, text_of
from ext_proc.tools.routing_live import Counts, counts_of, work_s
from ext_proc.tools.routing_loads import LOADS, Load, Session, Sessions, Tokens, Turn, hastened
from ext_proc.tools.simulator import Simulator

PREFIX = ("prefix", 1)


def sessions(turns: Sequence[Turn], many: int = 3) -> Sessions:
    """Begin some sessions at once, behind the same prefix."""
    for number in range(many):
        yield 0.0, Session(number, Tokens().add(PREFIX, 20), turns)


async def nothing() -> None:
    """Do what is to be done once all is warm."""


def test_equal_labels_begin_alike() -> None:
    """So that what is shared in the model is shared as text."""
    long, short = text_of(PREFIX, 50), text_of(PREFIX, 20)
    assert (200, short) == (len(long), long[: len(short)])
    assert short != text_of(("prefix", 2), 20)


def test_a_faster_world_is_the_same_in_less_time() -> None:
    """The same prompts, in the same order."""
    load = LOADS["code"]
    slow, fast = (one.sessions(random.Random(1), 2) for one in (load, hastened(load, 4)))
    for _ in range(5):
        (slow_s, before), (fast_s, after) = next(slow), next(fast)
        assert slow_s / 4 == fast_s
        assert [turn.pause_s / 4 for turn in before.turns] == [t.pause_s for t in after.turns]
        assert before.ask() == after.ask()
    assert load.hardware.prefill(0, 400) / 4 == hastened(load, 4).hardware.prefill(0, 400)


async def test_each_question_has_all_before_it_and_the_answers() -> None:
    """As a chat has: what the replica said is sent back to it."""
    turns = [Turn(5, 7), Turn(6, 8)]
    async with Simulator() as simulator:
        client = Client(simulator.url, "m", sessions(turns, 1), 2)
        told = await client.play(0, nothing)
        first, second = (json.loads(one.body) for one in simulator.requests)
    assert [0, 1] == [one.number for one in told]
    assert {} == errors_of(told)
    assert ["system", "user"] == [message["role"] for message in first["messages"]]
    assert text_of(PREFIX, 20) == first["messages"][0]["content"]
    assert first["messages"] == second["messages"][:2]
    assert ["assistant", "user"] == [message["role"] for message in second["messages"][2:]]
    assert second["messages"][2]["content"].startswith("This is a simulated answer")
    assert [(7, True), (8, True)] == [(b["max_tokens"], b["stream"]) for b in (first, second)]


async def test_what_is_warm_up_is_asked_and_not_told() -> None:
    """Something is done between the two, once."""
    called: list[int] = []
    async with Simulator() as simulator:

        async def begin() -> None:
            called.append(len(simulator.requests))

        client = Client(simulator.url, "m", LOADS["shared"].sessions(random.Random(1), 400), 8)
        told = await client.play(2, begin)
    assert (list(range(2, 8)), 1) == ([one.number for one in told], len(called))
    assert all(one.due_s <= one.sent_s <= one.first_s for one in told)


async def test_errors_are_counted_by_their_kind() -> None:
    """Nobody there is one; a session ends with it."""
    async with Simulator() as simulator:
        url = simulator.url
    told = await Client(url, "m", sessions([Turn(5, 7)]), 3).play(0, nothing)
    assert {"ClientConnectorError": 3} == errors_of(told)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
async def test_replicas_count_what_they_were_asked(load: Load) -> None:
    """Their counters are what hits and spread are measured by."""
    async with Simulator(replicas=2) as simulator:
        before = await counts_of(simulator.ports)
        asked = Session(0, Tokens().add(PREFIX, 640), [Turn(64, 5), Turn(64, 5)])
        await Client(simulator.url, "m", iter([(0.0, asked)]), 2).play(0, nothing)
        after = await counts_of(simulator.ports)
    served, idle = (new.since(old) for new, old in zip(after, before, strict=True))
    assert (2.0, 10.0) == (served.requests, served.generated)
    assert 0 < served.hits < served.prompt
    assert Counts() == idle
    assert 0.0 == work_s(load, idle) < work_s(load, served)


async def test_a_load_that_fails_leaves_no_task() -> None:
    """What `on_warm` raises is raised."""

    async def fail() -> None:
        raise RuntimeError("no metrics")

    async with Simulator() as simulator:
        client = Client(simulator.url, "m", sessions([Turn(5, 7)]), 3)
        with pytest.raises(RuntimeError, match="no metrics"):
            await client.play(0, fail)
    assert 1 == len(asyncio.all_tasks())
