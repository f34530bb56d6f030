"""What is heard of an exchange whose pool is on its way in, and what a shadow is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from filters.api import (
    CONTINUE,
    Delta,
    Ending,
    Exchange,
    Finish,
    Heard,
    Need,
    Outcome,
    Question,
    Staged,
    Step,
    Trial,
)
from filters.hearing import MOST_CHARS
from filters.pipeline import Pipeline, Run
from filters.stage import StageConfig, StageFilter
from tests import exchanges
from tests.exchanges import WORDS, reply_head
from tests.fakes import FakeClock, FakeStages, drive, fake_ports

DIALECTS: Final = pytest.mark.parametrize("dialect", WORDS)
SHADOW: Final = Staged("full", "coming", Trial("full", "coming", Step.SHADOW))
CANARY: Final = Staged("coming", trial=Trial("full", "coming", Step.CANARY))
WHOLE: Final = Delta(b"{}", "It is.", Finish.STOP, done=True)
SECOND_NS: Final = 1_000_000_000


def ask(dialect: str, question: str = "Why?", **more: Any) -> Exchange:
    return exchanges.ask(dialect, question, **more)


@dataclass(slots=True)
class Stand:
    """A filter, and the port that it tells what it heard."""

    staged: Staged
    clock: FakeClock = field(default_factory=FakeClock)
    stages: FakeStages = field(init=False)
    filter: StageFilter = field(init=False)

    def __post_init__(self) -> None:
        self.stages = FakeStages({"full": self.staged})
        self.filter = StageFilter(StageConfig(), None, fake_ports(self.clock, stages=self.stages))

    def run(
        self,
        exchange: Exchange,
        *deltas: Delta,
        status: int = 200,
        outcome: Outcome = Outcome.COMPLETE,
    ) -> None:
        """Take the exchange through; each delta, and the end, comes a second after the other."""
        assert CONTINUE is drive(self.filter.on_request(exchange))
        if status:
            exchange.reply_head = reply_head(status=status)
        for delta in deltas:
            self.clock.advance(1)
            assert (delta,) == tuple(self.filter.on_delta(exchange, delta))
        self.clock.advance(1)
        drive(self.filter.on_finish(exchange, outcome))

    @property
    def heard(self) -> Heard:
        ((_, heard, _),) = self.stages.told
        return heard

    @property
    def question(self) -> Question:
        ((_, _, question),) = self.stages.told
        assert question is not None
        return question


@DIALECTS
def test_the_filter_chooses_the_pool_where_no_other_did(dialect: str) -> None:
    """In a profile without `route`."""
    stand, exchange = Stand(CANARY), ask(dialect)
    stand.run(exchange, WHOLE)
    assert ("coming", [("full", "tenant")]) == (exchange.pool, stand.stages.asked)


def test_the_filter_goes_by_what_route_was_told() -> None:
    """It does not ask again: shadows are drawn by lot."""
    stand, exchange = Stand(CANARY), ask("openai.chat")
    exchange.staged = SHADOW
    stand.run(exchange, WHOLE)
    assert [] == stand.stages.asked
    assert [SHADOW] == [staged for staged, _, _ in stand.stages.told]


@DIALECTS
def test_an_exchange_that_nobody_compares_is_left_alone(dialect: str) -> None:
    """Neither its reply nor its end is asked for."""
    stand, exchange = Stand(Staged("full")), ask(dialect)
    stand.run(exchange)
    assert Need.NOTHING == exchange.needs
    assert ([], []) == (stand.stages.told, stand.stages.skips)


def test_an_exchange_that_was_sent_elsewhere_is_no_evidence() -> None:
    """The pool that should have served it was full, or broken."""
    stand, exchange = Stand(CANARY), ask("openai.chat")
    exchange.staged = CANARY
    exchange.pool = "spare"
    stand.run(exchange, WHOLE)
    assert Need.NOTHING == exchange.needs
    assert [] == stand.stages.told


@DIALECTS
def test_what_a_canary_answers_is_heard(dialect: str) -> None:
    """Its time to the end, its text and why it stopped; nobody else is asked."""
    stand, exchange = Stand(CANARY), ask(dialect)
    stand.run(exchange, WHOLE)
    assert Need.REPLY == exchange.needs
    assert Heard(Ending.ANSWERED, 2 * SECOND_NS, 0, "It is.", Finish.STOP) == stand.heard
    assert [None] == [question for _, _, question in stand.stages.told]


def test_of_a_stream_the_first_token_is_heard_too() -> None:
    """The event before it, which has no text, is not the first."""
    stand, exchange = Stand(CANARY), ask("openai.chat", stream=True)
    stand.run(
        exchange, Delta(b"role"), Delta(b"1", "It "), Delta(b"2", "is.", Finish.STOP),
        Delta(b"done", done=True),
    )  # fmt: skip
    expected = Heard(Ending.ANSWERED, 5 * SECOND_NS, 2 * SECOND_NS, "It is.", Finish.STOP)
    assert expected == stand.heard


@pytest.mark.parametrize(
    ("status", "deltas", "outcome", "ending"),
    [
        (200, (WHOLE,), Outcome.COMPLETE, Ending.ANSWERED),
        (200, (Delta(b"1", "It "),), Outcome.COMPLETE, Ending.FAILED),
        (200, (Delta(b"1", "It "),), Outcome.GONE, Ending.LEFT),
        (0, (), Outcome.GONE, Ending.LEFT),
        (400, (Delta(b"{}"),), Outcome.COMPLETE, Ending.REFUSED),
        (404, (), Outcome.FORWARDED, Ending.REFUSED),
        (429, (Delta(b"{}"),), Outcome.COMPLETE, Ending.FAILED),
        (503, (), Outcome.FORWARDED, Ending.FAILED),
    ],
)
def test_how_an_exchange_ended_is_told(
    status: int, deltas: tuple[Delta, ...], outcome: Outcome, ending: Ending
) -> None:
    """A request's own faults are no failures; half an answer is."""
    stand = Stand(CANARY)
    stand.run(ask("openai.chat"), *deltas, status=status, outcome=outcome)
    assert ending is stand.heard.ending


def test_a_reply_that_cannot_be_read_is_no_evidence() -> None:
    """It was compressed, for instance, and nobody knows what it says."""
    stand = Stand(CANARY)
    stand.run(ask("openai.chat"), outcome=Outcome.FORWARDED)
    assert ([], ["unreadable"]) == (stand.stages.told, stand.stages.skips)


def test_a_long_answer_is_heard_up_to_a_length() -> None:
    """What is held of it has a bound."""
    stand = Stand(CANARY)
    stand.run(ask("openai.chat"), Delta(b"1", "x" * MOST_CHARS), Delta(b"2", "yy"), WHOLE)
    assert "x" * MOST_CHARS == stand.heard.text


# --- The shadow ----------------------------------------------------------------------------------


@DIALECTS
def test_a_shadow_is_asked_what_went_upstream(dialect: str) -> None:
    """The body as filters left it, at the same path; and not before the client has its answer."""
    stand, exchange = Stand(SHADOW), ask(dialect, "An old question?")
    exchange.traceparent = "trace"
    text = exchange.prompt.turns()[-1].texts[-1]
    text.value = "A better question?"
    assert CONTINUE is drive(stand.filter.on_request(exchange))
    assert [] == stand.stages.told
    exchange.reply_head = reply_head()
    tuple(stand.filter.on_delta(exchange, WHOLE))
    assert [] == stand.stages.told
    drive(stand.filter.on_finish(exchange, Outcome.COMPLETE))
    question = stand.question
    assert exchange.prompt.document.render() == question.body
    assert b"A better question?" in question.body
    assert (exchange.head.path, "trace") == (question.path, question.traceparent)
    assert exchange.dialect is question.dialect


OF_THE_CONNECTION: Final = (
    *(":method", ":path", ":authority", "host", "connection", "te", "content-length"),
    *("accept-encoding", "x-request-id", "traceparent", "x-forebay-cluster", "x-model-quality"),
    *("x-envoy-attempt-count", "x-forwarded-for"),
)


def test_a_shadow_is_asked_by_whoever_asked_the_other() -> None:
    """Credentials and what filters added go along; what belongs to the one connection does not."""
    headers = dict.fromkeys(OF_THE_CONNECTION, "x")
    headers |= {"authorization": "Bearer key", "openai-organization": "org"}
    stand, exchange = Stand(SHADOW), ask("openai.chat", headers=headers)
    exchange.upstream_headers |= {"x-forebay-cluster": "full", "x-review": "required"}
    stand.run(exchange, WHOLE)
    expected = {
        "authorization": "Bearer key",
        "openai-organization": "org",
        "x-review": "required",
    }
    assert expected == stand.question.headers


def test_a_shadow_is_asked_also_where_the_other_failed() -> None:
    """It may do better."""
    stand, exchange = Stand(SHADOW), ask("openai.chat")
    stand.run(exchange, Delta(b"{}"), status=500)
    assert Ending.FAILED is stand.heard.ending
    assert exchange.prompt.document.raw == stand.question.body


RESPONSES: Final = {"previous_response_id": "resp_1"}
SERVER_TOOLS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("openai.responses", {"tools": [{"type": "web_search"}]}),
    ("openai.responses", {"tools": [{"type": "mcp", "server_url": "https://tools.example"}]}),
    ("anthropic.messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("anthropic.messages", {"mcp_servers": [{"type": "url", "url": "https://tools.example"}]}),
    ("gemini.generate", {"tools": [{"googleSearch": {}}]}),
    ("gemini.generate", {"tools": [{"functionDeclarations": [], "codeExecution": {}}]}),
)
CLIENT_TOOLS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("openai.chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("openai.responses", {"tools": [{"type": "function", "name": "f", "parameters": {}}]}),
    ("openai.responses", {"tools": [{"type": "custom", "name": "f"}]}),
    ("anthropic.messages", {"tools": [{"name": "f", "input_schema": {}}]}),
    ("gemini.generate", {"tools": [{"functionDeclarations": [{"name": "f"}]}]}),
)


@pytest.mark.parametrize(("dialect", "more"), SERVER_TOOLS)
def test_what_a_provider_does_by_itself_is_not_done_twice(
    dialect: str, more: dict[str, Any]
) -> None:
    """A search, code, a call of a server: it may cost, or change something."""
    stand, exchange = Stand(SHADOW), ask(dialect, more=more)
    stand.run(exchange, WHOLE)
    assert ([], ["stateful"]) == (stand.stages.told, stand.stages.skips)
    assert "stateful" == exchange.notes["stage.skip"]


@pytest.mark.parametrize(("dialect", "more"), CLIENT_TOOLS)
def test_tools_that_the_client_calls_are_no_reason(dialect: str, more: dict[str, Any]) -> None:
    """Nobody calls what a shadow asks for."""
    stand, exchange = Stand(SHADOW), ask(dialect, more=more)
    stand.run(exchange, WHOLE)
    assert [] == stand.stages.skips
    assert exchange.prompt.document.raw == stand.question.body


@pytest.mark.parametrize(
    ("more", "status", "outcome", "why"),
    [
        (RESPONSES, 200, Outcome.COMPLETE, "stateful"),
        ({}, 400, Outcome.COMPLETE, "refused"),
        ({}, 200, Outcome.GONE, "left"),
        ({}, 200, Outcome.FAILED, "failed"),
    ],
)
def test_a_shadow_is_not_asked_in_vain(
    more: dict[str, Any], status: int, outcome: Outcome, why: str
) -> None:
    """Where it cannot know what the other knows, or there is nothing to compare."""
    stand = Stand(SHADOW)
    stand.run(ask("openai.responses", more=more), WHOLE, status=status, outcome=outcome)
    assert ([], [why]) == (stand.stages.told, stand.stages.skips)


def test_an_answer_of_another_filter_is_none_of_a_pool() -> None:
    """Nothing was asked, so there is nothing to hear: the pipeline says that it was answered."""
    stand, exchange = Stand(SHADOW), ask("openai.chat")
    stand.run(exchange, status=0, outcome=Outcome.ANSWERED)
    assert ([], []) == (stand.stages.told, stand.stages.skips)


def test_in_a_pipeline_it_listens_and_changes_nothing() -> None:
    """The client gets every byte as it came."""
    stages = FakeStages({"full": CANARY})
    pipeline = Pipeline([(StageFilter, StageConfig())], fake_ports(stages=stages))
    run, exchange = Run(pipeline), ask("openai.chat")
    assert drive(run.request(exchange)) is None
    exchange.reply_head = reply_head()
    assert [WHOLE] == list(run.delta(exchange, WHOLE))
    drive(run.finish(exchange, Outcome.COMPLETE))
    assert not pipeline.edits_stream
    assert [Ending.ANSWERED] == [heard.ending for _, heard, _ in stages.told]
