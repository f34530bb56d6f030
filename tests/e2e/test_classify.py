"""What a request asks for is told to the client and chooses the pool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiohttp
import pytest

from filters.dialects import DIALECTS
from filters.document import Document
from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.shown import shown_of
from tests.exchanges import CHATS
from tests.gateway import Gateway, Upstream
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
INTENT: Final = "x-forebay-intent"


def classifying(tree: dict[str, Any]) -> None:
    """Have `batch` classify and route, with an expert for law, and `faq` use templates."""
    block = tree["node"]["metadata"]["forebay"]
    block["pools"]["lawyers"] = {"cluster": "best_effort", "quality": "FULL"}
    block["profiles"]["batch"] = {"classify": {"experts": {"legal": "lawyers"}}, "route": {}}
    block["profiles"]["faq"] = {"classify": {"templates": True}}


@pytest.fixture(scope="module")
def classifier(gateways: Gateways, upstream: Upstream, receiver: OtlpReceiver) -> Iterator[Gateway]:
    edit, endpoint = classifying, receiver.endpoint
    with gateways.open(upstream=upstream, otlp=endpoint, edit=edit) as gateway:
        yield gateway


@pytest.fixture
async def asks(classifier: Gateway) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as http:
        yield Caller(http, classifier.url)


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("question", "intent", "replica", "quality"),
    [
        ("Name five rivers of Peru.", "list", "best_effort", "BEST_EFFORT"),
        ("把这句话翻译成英文：天气很好。", "translate", "full", "FULL"),
        ("Why is the sky blue?", "open", "full", "FULL"),
        ("Which verdict did the court give in the lawsuit?", None, "best_effort", "FULL"),
        ("qwrtz plmok", "open", "full", "FULL"),
    ],
)
async def test_intent_and_trade_choose_the_pool(
    classifier: Gateway,
    asks: Caller,
    dialect: str,
    stream: bool,
    question: str,
    intent: str | None,
    replica: str,
    quality: str,
) -> None:
    """The client is told the intent and the quality; law goes to its expert at full quality."""
    with classifier.watch() as seen:
        reply = await asks(ask_for(dialect, question, stream=stream), "batch")
    (received,) = seen.received
    assert (replica, quality) == (received.replica, reply.quality)
    assert intent in (None, reply.headers[INTENT])
    assert reply.headers[INTENT] == seen.lines[0]["notes"]["classify.intent"]


async def test_the_task_is_in_the_metrics_and_in_the_span(
    classifier: Gateway, asks: Caller, receiver: OtlpReceiver
) -> None:
    """Its intent and its trade."""
    asked = ask_for(CHAT, "Name five rivers of Peru.")
    shown = await shown_of(asked, "batch", call=asks, gateway=classifier, receiver=receiver)
    assert 1 == shown.moved['forebay_tasks_total{domain="general",intent="list"}']
    assert ("list", "general") == (shown.span["forebay.intent"], shown.span["forebay.domain"])
    assert "low risk: list" == shown.span["forebay.route.why"]
    assert not [name for name in shown.moved if name.startswith("forebay_experts_total")]


async def test_the_expert_is_in_the_metrics_and_in_the_span(
    classifier: Gateway, asks: Caller, receiver: OtlpReceiver
) -> None:
    """The trade, and the pool that its requests go to."""
    asked = ask_for(CHAT, "Which verdict did the court give in the lawsuit?")
    shown = await shown_of(asked, "batch", call=asks, gateway=classifier, receiver=receiver)
    assert 1 == shown.moved['forebay_experts_total{domain="legal",pool="lawyers"}']
    told = [shown.span[f"forebay.{name}"] for name in ("domain", "classify.pool", "pool")]
    assert ["legal", "lawyers", "lawyers"] == told


async def test_the_client_cannot_tell_us_the_intent(classifier: Gateway, asks: Caller) -> None:
    """What it claims does not reach the upstream, nor comes back."""
    with classifier.watch() as seen:
        reply = await asks(ask_for(CHAT, "List the planets."), "batch", {INTENT: "code"})
    assert "list" == reply.headers[INTENT]
    assert INTENT not in seen.received[0].headers


@pytest.mark.parametrize("dialect", [name for name in CHATS if name != "openai.completions"])
async def test_a_template_reaches_the_model(
    classifier: Gateway, asks: Caller, dialect: str
) -> None:
    """Behind the user's own words."""
    asked = ask_for(dialect, "List the planets.")
    with classifier.watch() as seen:
        await asks(asked, "faq")
    (received,) = seen.received
    prompt = DIALECTS[dialect].read(Document(received.body), asked.path)
    said = prompt.turns()[-1].texts[-1].value
    assert said.startswith("List the planets.\n\nAnswer as a list in English")
    assert json.loads(received.body) != json.loads(asked.body)
