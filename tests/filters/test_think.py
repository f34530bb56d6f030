"""A light model's draft is put beside the question, or nothing at all happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from filters.api import CONTINUE, Config, Effort, Exchange, Filter, Task, Thinking
from filters.dialects.base import BodyPrompt
from filters.document import encode
from filters.draft import MOST_QUESTION_CHARS
from filters.think import EASY, ThinkConfig, ThinkFilter
from filters.units import Duration
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import FakeUpstream, PortWait, drive, fake_ports

CONFIG = ThinkConfig(cluster="light", model="small")
DRAFT = "1. Water slows.\n2. It clears."
MARKED = (
    f"[Draft of the reasoning, may be wrong]:\n{DRAFT}\n"
    "[End of the draft; answer the question above]"
)
QUESTION = "Why is the basin calm?"
ANTHROPIC = "anthropic.messages"
CHAT = "openai.chat"


def thought(
    exchange: Exchange, config: ThinkConfig = CONFIG, upstream: FakeUpstream | None = None
) -> bytes:
    """Return the body after the filter; the light model has a draft unless told otherwise."""
    think = ThinkFilter(config, None, fake_ports(upstream=upstream or FakeUpstream(DRAFT)))
    assert CONTINUE is drive(think.on_request(exchange))
    return exchange.prompt.document.render()


def chat(*messages: dict[str, Any], **more: Any) -> Exchange:
    body = encode({"model": "m", "messages": list(messages), **more})
    return exchange_of(CHAT, body, "/v1/chat/completions")


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


# --- The draft -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", CHATS)
def test_the_draft_stands_behind_the_question(dialect: str) -> None:
    """In the user's own turn, in every provider's words, and marked as what it is."""
    exchange = ask(dialect, QUESTION, system="Be brief.")
    if dialect == "openai.completions":  # it has no place for a system prompt but the prompt
        exchange = ask(dialect, QUESTION)
    thought(exchange)
    assert f"{QUESTION}\n\n{MARKED}" == exchange.prompt.turns()[-1].texts[-1].value


@pytest.mark.parametrize("dialect", CHATS)
def test_the_models_own_thinking_is_turned_off(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the request says nothing of it; how, the dialect knows."""
    asked: list[Thinking] = []

    def limit(_: BodyPrompt, most: Thinking) -> bool:
        asked.append(most)
        return True

    monkeypatch.setattr(BodyPrompt, "limit_thinking", limit)
    exchange = ask(dialect, QUESTION)
    thought(exchange)
    assert [Thinking(Effort.NONE, 0, always=True)] == asked
    assert {"think.tokens": 8, "think.off": True} == exchange.notes


@pytest.mark.parametrize(
    ("dialect", "path", "more"),
    [
        (CHAT, ("reasoning_effort",), {"model": "gpt-5.1", "reasoning_effort": "high"}),
        (
            ANTHROPIC,
            ("thinking", "type"),
            {"max_tokens": 9_000, "thinking": {"type": "enabled", "budget_tokens": 4_000}},
        ),
    ],
)
def test_thinking_that_was_asked_for_is_off_with_a_draft_and_on_without(
    dialect: str, path: tuple[str, ...], more: dict[str, Any]
) -> None:
    """A draft that came to nothing must not cost the quality that thinking brings."""
    with_draft, without = (ask(dialect, QUESTION, more=more) for _ in range(2))
    thought(with_draft)
    assert with_draft.prompt.document.get(path) in ("none", "disabled")
    thought(without, upstream=FakeUpstream())
    assert without.prompt.document.get(path) in ("high", "enabled")


def test_the_light_model_is_asked_for_steps_and_no_answer() -> None:
    """At the cluster and by the name of the settings, within their tokens, under the trace."""
    upstream = FakeUpstream(DRAFT)
    exchange = ask(CHAT, QUESTION)
    exchange.traceparent = "00-1-2-01"
    thought(exchange, upstream=upstream)
    ((cluster, model, prompt, most),) = upstream.asked
    assert ("light", "small", 200, ["00-1-2-01"]) == (cluster, model, most, upstream.traces)
    assert prompt.startswith("Another assistant is going to answer the question")
    assert prompt.endswith(f"The question:\n{QUESTION}")


def test_a_chinese_question_gets_a_chinese_draft() -> None:
    """The instructions and the marks are in its language."""
    upstream = FakeUpstream("1. 水流变慢。")
    exchange = ask(CHAT, "前池的水为什么平静？用 turbine 一词。")
    thought(exchange, upstream=upstream)
    ((_, _, prompt, _),) = upstream.asked
    assert prompt.startswith("本条消息末尾的问题将由另一个助手回答")
    assert (
        exchange.prompt.turns()[-1]
        .texts[-1]
        .value.endswith("[推理草稿，可能有误]：\n1. 水流变慢。\n[草稿结束，请回答上面的问题]")
    )


def test_a_japanese_question_is_no_chinese_one() -> None:
    """It has Chinese characters, and kana among them."""
    upstream = FakeUpstream(DRAFT)
    thought(ask(CHAT, "前池の水はなぜ静かですか"), upstream=upstream)
    assert upstream.asked[0][2].startswith("Another assistant")


def test_what_was_said_before_goes_along_and_the_system_prompt_does_not() -> None:
    """The end of it, by speaker: a question such as "and why?" means nothing alone."""
    upstream = FakeUpstream(DRAFT)
    exchange = chat(
        {"role": "system", "content": "secret rules"},
        user("x" * 5_000 + "What is a forebay?"),
        {"role": "assistant", "content": "A basin."},
        user("And why {so}?"),
    )
    thought(exchange, upstream=upstream)
    prompt = upstream.asked[0][2]
    assert "xWhat is a forebay?\nAssistant: A basin.\n\nThe question:\nAnd why {so}?" in prompt
    assert "secret rules" not in prompt
    assert len(prompt) < 5_000


def test_the_draft_goes_behind_the_question_and_into_no_document() -> None:
    """A document is a block of its own, whose text may be cited; here it comes last."""
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "the facts"},
    }
    content = [{"type": "text", "text": QUESTION}, document]
    body = encode({"model": "m", "max_tokens": 9, "messages": [user(content)]})
    exchange = exchange_of(ANTHROPIC, body, "/v1/messages")
    upstream = FakeUpstream(DRAFT)
    thought(exchange, upstream=upstream)
    values = [text.value for text in exchange.prompt.turns()[-1].texts]
    assert [f"{QUESTION}\n\n{MARKED}", "the facts"] == values
    assert "the facts" in upstream.asked[0][2]


# --- No draft ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", CHATS)
def test_without_a_draft_the_request_goes_on_as_it_was(dialect: str) -> None:
    """Late, failed or refused: not a byte differs, and the note has the port's reason."""
    exchange = ask(dialect, QUESTION)
    assert exchange.prompt.document.raw is thought(exchange, upstream=FakeUpstream())
    assert {"think.skip": "fake upstream: nothing to answer"} == exchange.notes


TOOL = {"type": "function", "function": {"name": "level", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "level", "arguments": "{}"}}
RESULTS = encode(
    {
        "model": "m",
        "max_tokens": 9,
        "messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": "3 m"}])],
    }
)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
NO_DRAFT: dict[str, tuple[str, Callable[[], Exchange]]] = {
    "tools are declared": ("tools", lambda: chat(user(QUESTION), tools=[TOOL])),
    "a result is the last word": (
        "no question",
        lambda: chat(
            user(QUESTION),
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "1", "content": "3 m"},
        ),
    ),
    "a result in the user's turn": (
        "no question",
        lambda: exchange_of(ANTHROPIC, RESULTS, "/v1/messages"),
    ),
    "the answer has begun": (
        "no question",
        lambda: chat(user(QUESTION), {"role": "assistant", "content": "Because"}),
    ),
    "the last turn is empty": ("no question", lambda: chat(user(" \n"))),
    "there is no turn": ("no question", chat),
    "a picture": ("media", lambda: chat(user([{"type": "text", "text": "Why?"}, PICTURE]))),
    "an earlier picture": ("media", lambda: chat(user([PICTURE]), user("Why?"))),
    "the provider remembers": (
        "stateful",
        lambda: ask("openai.responses", QUESTION, more={"previous_response_id": "r"}),
    ),
    "several prompts": (
        "no question",
        lambda: ask("openai.completions", QUESTION, more={"prompt": ["Why?", "How?"]}),
    ),
    "a gap to fill": (
        "no question",
        lambda: ask("openai.completions", "def f(", more={"suffix": "): pass"}),
    ),
    "an echo": ("no question", lambda: ask("openai.completions", QUESTION, more={"echo": True})),
    "embeddings": (
        "no question",
        lambda: exchange_of("openai.embeddings", b'{"model":"m","input":"Why?"}', "/v1/embeddings"),
    ),
    "too long": ("size", lambda: chat(user("why " * (MOST_QUESTION_CHARS // 4 + 1)))),
}


@pytest.mark.parametrize("case", NO_DRAFT)
def test_a_prompt_that_a_draft_could_harm_gets_none(case: str) -> None:
    """The light model is not asked, nothing changes, and the note says why."""
    why, make = NO_DRAFT[case]
    exchange, upstream = make(), FakeUpstream(DRAFT)
    assert exchange.prompt.document.raw is thought(exchange, upstream=upstream)
    assert ([], {"think.skip": why}) == (upstream.asked, exchange.notes)


@pytest.mark.parametrize("intent", sorted(EASY))
def test_an_easy_task_gets_no_draft(intent: str) -> None:
    """No reasoning makes a greeting better."""
    exchange, upstream = ask(CHAT, QUESTION), FakeUpstream(DRAFT)
    exchange.task = Task(intent, "general", 0.9)
    thought(exchange, upstream=upstream)
    assert ([], {"think.skip": f"intent {intent}"}) == (upstream.asked, exchange.notes)


@pytest.mark.parametrize(
    ("only", "intent", "drafts"),
    [
        ((), "reasoning", 1),
        ((), "open", 1),
        ((), None, 1),
        (("calculate",), "calculate", 1),
        (("calculate",), "reasoning", 0),
        (("calculate",), None, 0),
        (("list",), "list", 1),
    ],
)
def test_the_settings_say_for_which_intents(
    only: tuple[str, ...], intent: str | None, drafts: int
) -> None:
    """None named: all but the easy ones, and where nobody looked; else those that are named."""
    exchange, upstream = ask(CHAT, QUESTION), FakeUpstream(DRAFT)
    exchange.task = Task(intent, "general", 0.9) if intent else None
    thought(exchange, ThinkConfig(cluster="light", model="small", only=only), upstream)
    assert drafts == len(upstream.asked)


# --- Time ----------------------------------------------------------------------------------------


def test_it_waits_as_long_as_its_deadline() -> None:
    """The proxy is told of it before."""
    kind: type[Filter[Any]] = ThinkFilter
    config: Config = ThinkConfig(cluster="light", model="small", deadline=Duration("4s"))
    assert 4.0 == kind.longest_wait_s(config)
    assert 1.5 == kind.longest_wait_s(CONFIG)


def test_it_waits_for_the_upstream_alone() -> None:
    """One call, once."""
    waits: list[PortWait] = []
    think = ThinkFilter(CONFIG, None, fake_ports(upstream=FakeUpstream(DRAFT)))
    drive(think.on_request(ask(CHAT, QUESTION)), waits)
    assert [PortWait("upstream")] == waits
