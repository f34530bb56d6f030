"""Long documents through the documents profile: what the model is sent of them."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.calls import Caller, ask_for
from tests.e2e.shown import shown_of
from tests.exchanges import CHATS
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HALLS: Final = "".join(
    f"Hall {number} holds {100 + 7 * number} people and is heated with {fuel}. "
    f"Its floor was laid in {1900 + number} by a firm from the valley. "
    "Visitors are asked to leave by the door that they came in. "
    for number, fuel in enumerate(["gas", "oil", "wood", "peat", "coal"] * 12, 1)
).strip()
CODE: Final = "x = [1, 2, 3]  # a comment of some words\n" * 90
FACT: Final = "Hall 23 holds 261 people and is heated with wood."


def about(document: str, question: str) -> str:
    return f"Answer in one sentence.\n<document>\n{document}\n</document>\n{question}"


@pytest.mark.parametrize("dialect", CHATS)
async def test_the_model_gets_a_summary_with_what_is_asked_for(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """The question goes as it was; most of the document does not go at all."""
    asked = ask_for(dialect, about(HALLS, f"How many people does hall 23 hold? {question}"))
    with gateway.watch() as seen:
        reply = await call(asked, "documents")
    (received,) = seen.received
    body = received.body.decode()
    assert 200 == reply.status
    assert FACT in body
    assert f"How many people does hall 23 hold? {question}" in body
    assert len(body) < len(asked.body) / 4
    assert seen.lines[0]["notes"]["budget.tokens"] > 512
    assert "budget.skip" not in seen.lines[0]["notes"]


async def test_estimate_and_summary_are_in_the_metrics_and_in_the_span(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """The tokens of the prompt, and of its document before and after; the same in both."""
    asked = ask_for("openai.chat", about(HALLS, f"How many people does hall 23 hold? {question}"))
    shown = await shown_of(asked, "documents", call=call, gateway=gateway, receiver=receiver)
    before, after = shown.span["forebay.cut.budget.extractive"]
    estimate = shown.span["forebay.budget.tokens"]
    assert estimate > before > 4 * after > 0
    assert [before, after] == shown.cut("budget.extractive")
    labels = 'direction="estimated",profile="documents",quality="FULL"'
    assert estimate == shown.moved[f"forebay_tokens_total{{{labels}}}"]


async def test_why_a_document_stays_is_in_the_metrics_and_in_the_span(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """The metric has the phrase without the word that decided."""
    asked = ask_for("openai.chat", about(HALLS, f"Translate it into French. {question}"))
    shown = await shown_of(asked, "documents", call=call, gateway=gateway, receiver=receiver)
    assert shown.span["forebay.budget.skip"].startswith("every word counts")
    counted = 'forebay_skips_total{filter="budget",reason="every word counts"}'
    assert 1 == shown.moved[counted]


async def test_a_processed_request_says_how_long_it_took(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """The stage is in Server-Timing, and the processes that do the work in the metrics."""
    asked = ask_for("openai.chat", about(HALLS, question))
    with gateway.watch():
        reply = await call(asked, "documents")
    assert "budget;dur=" in reply.headers["server-timing"]
    metrics = gateway.metrics()
    assert 0 == metrics["forebay_workers_died"]
    assert 0 == metrics["forebay_workers_rejected"]


@pytest.mark.parametrize("profile", ["", "faq", "raw"])
async def test_other_profiles_send_the_whole_document(
    gateway: Gateway, call: Caller, question: str, profile: str
) -> None:
    """Byte for byte."""
    asked = ask_for("openai.chat", about(HALLS, question))
    with gateway.watch() as seen:
        await call(asked, profile)
    assert asked.body == seen.received[0].body


@pytest.mark.parametrize(
    "text",
    [
        about(HALLS[:900].strip(), "Where?"),
        about(HALLS, "Translate it into French."),
        f"Fix this.\n```python\n{CODE}```\nThank you.",
    ],
    ids=["short", "translate", "code"],
)
async def test_what_needs_all_of_its_words_keeps_them(
    gateway: Gateway, call: Caller, question: str, text: str
) -> None:
    """Short prompts, tasks on every word, and code."""
    asked = ask_for("openai.chat", f"{question}\n\n{text}")
    with gateway.watch() as seen:
        await call(asked, "documents")
    assert asked.body == seen.received[0].body


async def test_a_streamed_answer_comes_as_ever(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Only the request is shortened."""
    asked = ask_for("openai.chat", about(HALLS, question), stream=True)
    with gateway.watch() as seen:
        reply = await call(asked, "documents")
    assert 200 == reply.status
    content: Any = json.loads(seen.received[0].body)["messages"][0]["content"]
    assert len(content) < len(HALLS) / 4
    assert b"data: [DONE]" in reply.body
