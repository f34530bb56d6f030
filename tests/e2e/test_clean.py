"""What the model is sent of a prompt that is not clean, and what the operator is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
import pytest

from tests.calls import Caller, ask_for
from tests.e2e.conftest import Gateways
from tests.e2e.shown import shown_of
from tests.exchanges import CHATS, ask
from tests.gateway import Gateway, Upstream
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
PARAGRAPH: Final = "The ferry leaves at six in the morning and at four in the afternoon."
DIRTY: Final = (
    f"Hello! Hello!\n\n<p>{PARAGRAPH}</p>\n\n\n\n{PARAGRAPH}\n\n"
    f"data:image/png;base64,{'A' * 400}   <context>harbour</context>\n\n"
)
CLEAN: Final = f"Hello!\n\n{PARAGRAPH}\n\n[image/png, 300 B] <context>harbour</context>\n\n"


@pytest.mark.parametrize("dialect", CHATS)
async def test_the_model_is_sent_a_clean_prompt(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """In every provider's words; each rule's part of it is counted."""
    with gateway.watch() as seen:
        reply = await call(ask_for(dialect, DIRTY + question))
    (received,) = seen.received
    assert 200 == reply.status
    assert ask_for(dialect, CLEAN + question).body == received.body
    assert len(DIRTY) - len(CLEAN) == seen.notes["clean.chars"]
    cut = gateway.metrics()
    for rule in ("html", "media", "white_space", "greetings", "repeats"):
        counted = [
            value
            for name, value in cut.items()
            if name.startswith("forebay_") and f'rule="clean.{rule}"' in name
        ]
        assert counted, f"clean.{rule} is not among the metrics"
        assert max(counted) > 0


async def test_what_was_cleaned_is_in_the_metrics_and_in_the_span(
    gateway: Gateway, call: Caller, receiver: OtlpReceiver, question: str
) -> None:
    """Each rule with its tokens before and after, the same in both; tags alone may cost none."""
    asked = ask_for("openai.chat", DIRTY + question)
    shown = await shown_of(asked, "", call=call, gateway=gateway, receiver=receiver)
    cuts = {
        rule: shown.span[f"forebay.cut.{rule}"]
        for rule in ("clean.html", "clean.media", "clean.white_space", "clean.repeats")
    }
    assert cuts == {rule: shown.cut(rule) for rule in cuts}
    assert sum(before for before, _ in cuts.values()) > sum(after for _, after in cuts.values()) > 0
    assert len(DIRTY) - len(CLEAN) == shown.span["forebay.clean.chars"]


async def test_a_long_prompt_is_cleaned_as_well(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """By a worker."""
    filler = " ".join(f"Buoy {index} lies north of buoy {index + 1}." for index in range(3_000))
    with gateway.watch() as seen:
        await call(ask_for("openai.chat", f"{DIRTY}{filler}\n\n{question}"))
    assert ask_for("openai.chat", f"{CLEAN}{filler}\n\n{question}").body == seen.received[0].body


async def test_the_raw_profile_sends_what_came(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """For comparison."""
    asked = ask_for("openai.chat", DIRTY + question)
    with gateway.watch() as seen:
        await call(asked, "raw")
    assert asked.body == seen.received[0].body


def _drop(tree: dict[str, Any]) -> None:
    default = tree["node"]["metadata"]["forebay"]["profiles"]["default"]
    default["clean"] = {"drop": ["$.safetySettings", "$.tools[?(@.type == 'web_search')]"]}


@pytest.fixture
def dropping(gateways: Gateways, upstream: Upstream) -> Iterator[Gateway]:
    with gateways.open(upstream=upstream, edit=_drop) as gateway:
        yield gateway


async def test_fields_that_a_rule_names_do_not_reach_the_model(
    dropping: Gateway, http: aiohttp.ClientSession, question: str
) -> None:
    """All others do, in their order."""
    kept = {"type": "function", "function": {"name": "look"}}
    more = {"safetySettings": [], "tools": [{"type": "web_search"}, kept], "user": "u"}
    call = Caller(http, dropping.url, key="key")
    with dropping.watch() as seen:
        await call(ask_for("openai.chat", question, more=more))
    expected = ask("openai.chat", question, more={"tools": [kept], "user": "u"})
    assert json.loads(expected.prompt.document.raw) == json.loads(seen.received[0].body)
