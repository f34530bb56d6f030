"""Long conversations through the chat profile: what the model is sent of them."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.calls import Ask, Caller
from tests.conversations import DIALECTS, Round, conversation, messages_of
from tests.e2e.shown import shown_of
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PADDING: Final = "The valley has hills, rivers, two mills and an old road nobody uses." * 12
OLD: Final = [
    Round(f"Badge {i} is {4_000 + i}. {PADDING}", f"Noted {i}.", calls=i % 2) for i in range(12)
]
LATER: Final = [Round("And the weather?", "Fine."), Round("And the wind?", "Weak.")]


def asking(dialect: str, question: str, rounds: list[Round]) -> Ask:
    exchange = conversation(dialect, [*rounds, Round(question)], system="Be brief.")
    return Ask(exchange.head.path, exchange.prompt.document.raw, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_model_gets_the_last_rounds_and_a_summary(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """What is asked for is in it, in front of the question: the rounds before stay as they are."""
    asked = asking(dialect, f"What is badge 1? {question}", OLD + LATER)
    with gateway.watch() as seen:
        reply = await call(asked, "chat")
    (received,) = seen.received
    before = messages_of(dialect, json.loads(asked.body))
    after = messages_of(dialect, json.loads(received.body))
    assert 200 == reply.status
    assert before[-5:-1] == after[-5:-1]
    assert len(received.body) < len(asked.body) / 2
    text = json.dumps(after[-1])
    assert f"[Summary of prior {len(before) - len(after)} turns]: " in text
    assert "Badge 1 is 4001." in text
    assert len(before) - len(after) == seen.lines[0]["notes"]["shape.turns"]


async def test_the_rounds_that_went_are_in_the_metrics_and_in_the_span(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """Their tokens and those of the summary, the same in both."""
    asked = asking("openai.chat", f"What is badge 1? {question}", OLD + LATER)
    shown = await shown_of(asked, "chat", call=call, gateway=gateway, receiver=receiver)
    before, after = shown.span["forebay.cut.shape.rounds"]
    assert before > 4 * after > 0
    assert [before, after] == shown.cut("shape.rounds")
    assert shown.span["forebay.shape.turns"] > 0


async def test_other_profiles_send_the_whole_conversation(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Shaping is the chat profile's."""
    asked = asking("openai.chat", question, OLD)
    with gateway.watch() as seen:
        await call(asked)
    assert asked.body == seen.received[0].body


async def test_a_short_conversation_is_sent_as_it_came(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Byte for byte."""
    asked = asking("openai.chat", question, LATER * 4)
    with gateway.watch() as seen:
        await call(asked, "chat")
    assert asked.body == seen.received[0].body


async def test_a_transcript_is_shaped_in_its_text(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """A completion's prompt, for a model that knows no messages."""
    lines = [f"[User]: {one.question}\n[Model]: {one.answer}\n" for one in OLD]
    prompt = "".join((*lines, f"[User]: What is badge 1? {question}\n[Model]:"))
    body: dict[str, Any] = {"model": "m", "prompt": prompt, "max_tokens": 50}
    asked = Ask("/v1/completions", json.dumps(body).encode(), "openai.completions")
    with gateway.watch() as seen:
        await call(asked, "chat")
    sent = json.loads(seen.received[0].body)["prompt"]
    summary = sent[sent.index("[Summary of prior ") : sent.rindex("[User]")]
    assert sent == "".join((*lines[-4:], summary, prompt[prompt.rindex("[User]") :]))
    assert "Badge 1 is 4001." in summary
