"""The medical profile: what the model is asked, and what the client is told of its answer."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from filters.api import Parameter
from filters.dialects import DIALECTS
from filters.document import Document
from tests.calls import Caller, ask_for
from tests.e2e.shown import shown_of
from tests.exchanges import CHATS
from tests.gateway import Gateway
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
REVIEW: Final = "x-forebay-review"


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(("asked", "sent"), [(None, 0.3), (1.0, 0.3), (0.0, 0.0)])
async def test_the_medical_profile_holds_the_temperature(
    gateway: Gateway, call: Caller, question: str, dialect: str, asked: float | None, sent: float
) -> None:
    """In every provider's words."""
    with gateway.watch() as seen:
        await call(ask_for(dialect, question, temperature=asked), "medical")
    (received,) = seen.received
    prompt = DIALECTS[dialect].read(Document(received.body), received.path)
    assert sent == prompt.parameter(Parameter.TEMPERATURE)


async def test_the_medical_profile_explains_the_terms_of_a_prompt(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Behind the client's own instructions."""
    asked = ask_for(
        "anthropic.messages", f"What does an INR of 3 say? {question}", system="Be kind."
    )
    with gateway.watch() as seen:
        await call(asked, "medical")
    system = json.loads(seen.received[0].body)["system"]
    assert system.startswith("Be kind.\n\nGlossary:\n- INR: ")


async def test_what_the_profile_set_is_in_the_metrics_and_in_the_span(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """The temperature, the terms explained and the review that is asked for; nothing else."""
    asked = ask_for("openai.chat", f"What does an INR of 3 say? {question}", temperature=1.0)
    shown = await shown_of(asked, "medical", call=call, gateway=gateway, receiver=receiver)
    counted = {
        name: value for name, value in shown.moved.items() if name.startswith("forebay_params")
    }
    assert {
        'forebay_params_total{change="temperature"}': 1,
        'forebay_params_total{change="glossary"}': 1,
        'forebay_params_total{change="review"}': 1,
    } == counted
    told = [shown.span[f"forebay.params.{name}"] for name in ("temperature", "terms", "review")]
    assert [0.3, 1, "required"] == told


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_every_medical_answer_is_marked_for_review(
    gateway: Gateway, call: Caller, question: str, stream: bool
) -> None:
    """The model's, the store's, and an error."""
    asked = ask_for("openai.chat", question, stream=stream, temperature=0)
    told: list[tuple[Any, Any]] = []
    for _ in range(6):
        with gateway.watch():
            reply = await call(asked, "medical")
        told.append((reply.cache, reply.headers.get(REVIEW)))
    with gateway.watch():
        failed = await call(ask_for("openai.chat", f"{question}?"), "medical", status="503")
    assert [("MISS", "required")] * 5 + [("HIT", "required")] == told
    assert (503, "required") == (failed.status, failed.headers.get(REVIEW))


async def test_no_other_answer_is_marked(gateway: Gateway, call: Caller, question: str) -> None:
    """An upstream may not say so either."""
    with gateway.watch():
        reply = await call(ask_for("openai.chat", question))
    assert REVIEW not in reply.headers
