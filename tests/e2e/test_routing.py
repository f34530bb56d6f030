"""Low-risk work goes to the quantised pool and says so; everything else to the full one."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.calls import Ask, Caller, ask_for
from tests.exchanges import CHATS
from tests.gateway import Gateway

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
LOW: Final = [
    "Summarise the minutes of the meeting.",
    "LIST THE rivers of Peru.",
    "How many legs has a spider?",
    "Is water wet, yes or no?",
    "请总结这篇文章。",
    "列出秘鲁的河流。",
    "水是否是湿的？",
    "蜘蛛有几个眼睛？",
]
HIGH: Final = [
    "Summarise your legal advice on my lease.",
    "List the symptoms of a cold and your diagnosis.",
    "How many shares should I buy? Give me financial advice.",
    "请总结一下法律意见。",
    "列出医疗诊断的要点。",
    "是否有财务建议？",
]
OTHER: Final = ["Why is the sky blue?", "天空为什么是蓝色的？", "What is an issue tracker?"]


async def _pool(
    gateway: Gateway, call: Caller, asked: Ask, profile: str = "", **options: Any
) -> tuple[str, str | None, str | None]:
    """Return which pool served, and the quality that upstream and client were told."""
    with gateway.watch() as seen:
        reply = await call(asked, profile, **options)
    (received,) = seen.received
    assert 200 == reply.status
    assert received.replica == seen.lines[0]["pool"]
    return received.replica, received.headers.get("x-model-quality"), reply.quality


@pytest.mark.parametrize("question", LOW)
async def test_low_risk_work_goes_to_the_quantised_pool(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """In English and Chinese; upstream and client are told BEST_EFFORT."""
    expected = ("best_effort", "BEST_EFFORT", "BEST_EFFORT")
    assert expected == await _pool(gateway, call, ask_for(CHAT, question))


@pytest.mark.parametrize("question", HIGH + OTHER)
async def test_high_risk_and_other_work_goes_to_the_full_pool(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """A high-risk word outweighs every low-risk one."""
    assert ("full", "FULL", "FULL") == await _pool(gateway, call, ask_for(CHAT, question))


@pytest.mark.parametrize("question", LOW)
async def test_the_medical_profile_never_leaves_the_full_pool(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Whatever the words."""
    expected = ("full", "FULL", "FULL")
    assert expected == await _pool(gateway, call, ask_for(CHAT, question), "medical")


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_every_providers_requests_are_routed(
    gateway: Gateway, call: Caller, dialect: str, stream: bool
) -> None:
    """Below a profile's prefix as well; the path that goes upstream has lost it."""
    asked = ask_for(dialect, "List the rivers of Peru.", stream=stream)
    with gateway.watch() as seen:
        reply = await call(asked, "chat")
    (received,) = seen.received
    assert ("best_effort", asked.path) == (received.replica, received.path)
    assert ("BEST_EFFORT", "chat") == (reply.quality, reply.headers["x-forebay-profile"])
    assert "x-forebay-cluster" not in received.headers


async def test_a_high_risk_word_in_a_system_prompt_does_not_count(
    gateway: Gateway, call: Caller
) -> None:
    """It says the same of every question, also where the profile's own is harmless."""
    asked = ask_for(CHAT, "List the rules.", system="You give legal advice.")
    assert "best_effort" == (await _pool(gateway, call, asked))[0]


async def test_a_best_effort_answer_stays_one_in_the_store(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """A hit is of the quality of the pool that gave the answer."""
    asked = ask_for(CHAT, f"List the parts. {question}")
    with gateway.watch():
        await call(asked, "faq")
    with gateway.watch() as seen:
        hit = await call(asked, "faq")
    assert ("HIT", "BEST_EFFORT", []) == (hit.cache, hit.quality, seen.received)


async def test_an_error_of_the_quantised_pool_keeps_its_quality(
    gateway: Gateway, call: Caller
) -> None:
    """The client is told who failed."""
    with gateway.watch():
        reply = await call(ask_for(CHAT, "List the parts."), status="503")
    assert (503, "BEST_EFFORT") == (reply.status, reply.quality)
