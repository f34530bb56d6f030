"""How each provider is told to think less, and which of its models take no temperature."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from filters.api import Effort, Prompt, Thinking
from filters.dialects import DIALECTS
from filters.document import Document, encode
from tests.exchanges import CHATS, WORDS

CHAT, RESPONSES = "openai.chat", "openai.responses"
ANTHROPIC, GEMINI = "anthropic.messages", "gemini.generate"

NONE = Thinking(Effort.NONE, 0)
LOW = Thinking(Effort.LOW, 1_024)
MEDIUM = Thinking(Effort.MEDIUM, 8_192)
UNBOUNDED = Thinking(Effort.MAX, sys.maxsize)


def always(most: Thinking) -> Thinking:
    return Thinking(most.effort, most.budget, always=True)


def read(dialect: str, model: str, **members: Any) -> Prompt:
    """Return a request to `model` with more members."""
    body = {**WORDS[dialect].ask("Why?"), **members}
    path = WORDS[dialect].path
    if dialect == GEMINI:
        path = f"/v1beta/models/{model}:generateContent"
    else:
        body["model"] = model
    return DIALECTS[dialect].read(Document(encode(body)), path)


def thinking(**config: Any) -> dict[str, Any]:
    """Return Gemini's members for thinking."""
    return {"generationConfig": {"thinkingConfig": config}}


def enabled(budget: int) -> dict[str, Any]:
    """Return Anthropic's member for thinking within a budget."""
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


OFF = {"thinking": {"type": "disabled"}}
ADAPTIVE = {"thinking": {"type": "adaptive"}}


@pytest.mark.parametrize(
    ("dialect", "model", "most", "asked", "expected"),
    [
        # What is asked for is lowered
        (CHAT, "o3", LOW, {"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
        (CHAT, "gpt-oss-120b", LOW, {"reasoning_effort": "medium"}, {"reasoning_effort": "low"}),
        (RESPONSES, "gpt-5.2", MEDIUM, {"reasoning": {"effort": "xhigh", "summary": "auto"}},
            {"reasoning": {"effort": "medium", "summary": "auto"}}),
        (ANTHROPIC, "claude-sonnet-4-5", LOW, {"max_tokens": 9000, **enabled(8000)},
            {"max_tokens": 9000, **enabled(1024)}),
        (ANTHROPIC, "claude-opus-4-6", LOW, {**ADAPTIVE, "output_config": {"effort": "max"}},
            {**ADAPTIVE, "output_config": {"effort": "low"}}),
        (ANTHROPIC, "claude-opus-4-8", LOW, ADAPTIVE,
            {**ADAPTIVE, "output_config": {"effort": "low"}}),
        (GEMINI, "gemini-2.5-flash", LOW, thinking(thinkingBudget=9000),
            thinking(thinkingBudget=1024)),
        (GEMINI, "gemini-2.5-flash", LOW, thinking(thinkingBudget=-1),
            thinking(thinkingBudget=1024)),
        (GEMINI, "gemini-3-pro", LOW, thinking(thinkingLevel="HIGH", includeThoughts=True),
            thinking(thinkingLevel="LOW", includeThoughts=True)),
        (GEMINI, "gemini-3-pro", LOW, thinking(thinkingLevel="high"),
            thinking(thinkingLevel="low")),
        (GEMINI, "gemini-2.5-pro", LOW,
            {"generation_config": {"thinking_config": {"thinking_budget": 2000}}},
            {"generation_config": {"thinking_config": {"thinking_budget": 1024}}}),
        # Or switched off, as far as the model can do without
        (CHAT, "gpt-5.1", NONE, {"reasoning_effort": "low"}, {"reasoning_effort": "none"}),
        (CHAT, "openai/gpt-5-mini", Thinking(Effort.MINIMAL, 0), {"reasoning_effort": "high"},
            {"reasoning_effort": "minimal"}),
        (CHAT, "o4-mini", NONE, {"reasoning_effort": "high"}, {"reasoning_effort": "low"}),
        (CHAT, "Qwen3-8B", NONE, {"chat_template_kwargs": {"enable_thinking": True, "k": 1}},
            {"chat_template_kwargs": {"enable_thinking": False, "k": 1}}),
        (ANTHROPIC, "claude-sonnet-4-5", NONE, {"max_tokens": 9000, **enabled(8000)},
            {"max_tokens": 9000, **OFF}),
        (ANTHROPIC, "claude-sonnet-5", NONE, ADAPTIVE, OFF),
        (ANTHROPIC, "claude-mythos-preview", NONE, ADAPTIVE,
            {**ADAPTIVE, "output_config": {"effort": "low"}}),
        (GEMINI, "gemini-2.5-flash", NONE, thinking(thinkingBudget=-1), thinking(thinkingBudget=0)),
        (GEMINI, "gemini-2.5-pro", NONE, thinking(thinkingBudget=-1), thinking(thinkingBudget=128)),
        (GEMINI, "gemini-2.5-flash-lite", Thinking(Effort.LOW, 100), thinking(thinkingBudget=900),
            thinking(thinkingBudget=512)),
        (GEMINI, "gemini-3-flash", NONE, thinking(thinkingLevel="HIGH"),
            thinking(thinkingLevel="LOW")),
        # A budget stays below the length of the answer, and over the least there is
        (ANTHROPIC, "claude-sonnet-4-5", UNBOUNDED, {"max_tokens": 2000, **enabled(8000)},
            {"max_tokens": 2000, **enabled(1999)}),
        (ANTHROPIC, "claude-sonnet-4-5", UNBOUNDED, {"max_tokens": 1024, **enabled(8000)},
            {"max_tokens": 1024, **OFF}),
        # Where the limit holds always, models that are known to think are told
        (CHAT, "gpt-5-mini", always(LOW), {}, {"reasoning_effort": "low"}),
        (CHAT, "Qwen3-8B", always(NONE), {}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (RESPONSES, "o3", always(LOW), {}, {"reasoning": {"effort": "low"}}),
        (ANTHROPIC, "claude-opus-4-8", always(LOW), {}, {"output_config": {"effort": "low"}}),
        (ANTHROPIC, "claude-opus-5", always(NONE), {}, OFF),
        (GEMINI, "gemini-2.5-flash", always(LOW), {}, thinking(thinkingBudget=1024)),
        (GEMINI, "gemini-3-flash", always(MEDIUM), {}, thinking(thinkingLevel="medium")),
    ],
)  # fmt: skip
def test_thinking_is_lowered_in_the_providers_own_field(
    dialect: str, model: str, most: Thinking, asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Sources of the fields: the providers' own client libraries, which the tests have."""
    prompt = read(dialect, model, **asked)
    assert prompt.limit_thinking(most)
    wanted = read(dialect, model, **expected).document.root
    assert wanted == Document(prompt.document.render()).root


@pytest.mark.parametrize(
    ("dialect", "model", "most", "asked"),
    [
        # It asks for no more than that
        (CHAT, "o3", MEDIUM, {"reasoning_effort": "low"}),
        (ANTHROPIC, "claude-sonnet-4-5", LOW, {"max_tokens": 2000, **enabled(1024)}),
        (ANTHROPIC, "claude-opus-5", LOW, {**ADAPTIVE, "output_config": {"effort": "low"}}),
        (ANTHROPIC, "claude-opus-5", UNBOUNDED, ADAPTIVE),
        (ANTHROPIC, "claude-opus-5", always(NONE), OFF),
        (GEMINI, "gemini-2.5-flash", LOW, thinking(thinkingBudget=0)),
        (GEMINI, "gemini-3-flash", LOW, thinking(thinkingLevel="MINIMAL")),
        # It asks for nothing
        (CHAT, "gpt-5", LOW, {}),
        (CHAT, "gpt-5", NONE, {}),
        (ANTHROPIC, "claude-opus-5", NONE, {}),
        (GEMINI, "gemini-2.5-flash", NONE, {}),
        # The model is not known to think
        (CHAT, "gpt-4.1", always(LOW), {}),
        (CHAT, "gpt-4.1", always(NONE), {}),
        (CHAT, "Llama-3.3-70B", always(LOW), {}),
        (RESPONSES, "gpt-4.1", always(NONE), {}),
        (ANTHROPIC, "claude-3-5-haiku-latest", always(LOW), {}),
        (GEMINI, "gemini-2.0-flash", always(LOW), {}),
        ("openai.completions", "m", always(NONE), {}),
        ("openai.embeddings", "m", always(NONE), {"input": "x"}),
        # It takes no less
        (CHAT, "gpt-5-pro", LOW, {"reasoning_effort": "high"}),
        # It is no effort that is known
        (CHAT, "o3", LOW, {"reasoning_effort": "extreme"}),
        (CHAT, "o3", LOW, {"reasoning_effort": 7}),
        (GEMINI, "gemini-2.5-flash", LOW, thinking(thinkingBudget="many")),
    ],
)
def test_a_model_that_does_not_know_thinking_is_not_told(
    dialect: str, model: str, most: Thinking, asked: dict[str, Any]
) -> None:
    """Nor one that was asked for less already; the body keeps its bytes."""
    if dialect == "openai.embeddings":
        raw = encode({"model": model, **asked})
        prompt = DIALECTS[dialect].read(Document(raw), "/v1/embeddings")
    else:
        prompt = read(dialect, model, **asked)
    assert not prompt.limit_thinking(most)
    assert prompt.document.raw is prompt.document.render()


@pytest.mark.parametrize(
    ("dialect", "model", "asked", "takes"),
    [
        (CHAT, "gpt-4.1", {}, True),
        (CHAT, "gpt-oss-20b", {"reasoning_effort": "low"}, True),
        (CHAT, "gpt-5-chat-latest", {}, True),
        (CHAT, "gpt-5-mini", {}, False),
        (CHAT, "openai/o3", {}, False),
        (CHAT, "gpt-6-sol", {}, False),
        (CHAT, "olmo-2", {}, True),
        (RESPONSES, "gpt-5.2", {}, False),
        (ANTHROPIC, "claude-sonnet-4-5-20250929", {}, True),
        (ANTHROPIC, "claude-3-opus-20240229", {}, True),
        (ANTHROPIC, "claude-opus-4-20250514", {}, True),
        (ANTHROPIC, "claude-opus-4-7", {}, False),
        (ANTHROPIC, "us.anthropic.claude-sonnet-5-v1:0", {}, False),
        (ANTHROPIC, "claude-sonnet-4-5", {"max_tokens": 9000, **enabled(2000)}, False),
        (ANTHROPIC, "claude-sonnet-4-6", ADAPTIVE, False),
        (ANTHROPIC, "claude-sonnet-4-6", OFF, True),
        (ANTHROPIC, "claude-sonnet-4-5", {"top_p": 0.9}, False),
        (ANTHROPIC, "claude-3-haiku", {"top_p": 0.9, "temperature": 0.9}, True),
        (GEMINI, "gemini-2.5-pro", thinking(thinkingBudget=900), True),
        ("openai.completions", "o3", {}, True),
    ],
)
def test_some_models_take_no_temperature(
    dialect: str, model: str, asked: dict[str, Any], takes: bool
) -> None:
    """OpenAI's from o1 on and gpt-5 on, Anthropic's from Opus 4.7 on and whatever thinks there."""
    assert takes is read(dialect, model, **asked).takes_temperature()


SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
SAID = {"type": "text", "text": "CT: rays"}


@pytest.mark.parametrize(
    ("dialect", "asked", "expected"),
    [
        (CHAT, {"messages": [{"role": "system", "content": "A"}, {"role": "user", "content": "B"}]},
            {"messages": [{"role": "system", "content": "A\n\nCT: rays"},
                          {"role": "user", "content": "B"}]}),
        (CHAT, {"messages": [{"role": "developer", "content": [SYSTEM[0]]}]},
            {"messages": [{"role": "developer", "content": [SYSTEM[0], SAID]}]}),
        (CHAT, {"messages": [{"role": "user", "content": "B"}]},
            {"messages": [{"role": "user", "content": "B\n\nCT: rays"}]}),
        (RESPONSES, {}, {"instructions": "CT: rays"}),
        (RESPONSES, {"instructions": "A"}, {"instructions": "A\n\nCT: rays"}),
        (RESPONSES, {"input": [{"role": "system", "content": "A"}]},
            {"input": [{"role": "system", "content": "A\n\nCT: rays"}]}),
        (ANTHROPIC, {}, {"system": "CT: rays"}),
        (ANTHROPIC, {"system": "A"}, {"system": "A\n\nCT: rays"}),
        (ANTHROPIC, {"system": SYSTEM}, {"system": [*SYSTEM, SAID]}),
        (GEMINI, {}, {"systemInstruction": {"parts": [{"text": "CT: rays"}]}}),
        (GEMINI, {"system_instruction": {"parts": {"text": "A"}}},
            {"system_instruction": {"parts": [{"text": "A"}, {"text": "CT: rays"}]}}),
        (GEMINI, {"systemInstruction": "A"}, {"systemInstruction": "A\n\nCT: rays"}),
    ],
)  # fmt: skip
def test_instructions_are_added_behind_what_stands_there(
    dialect: str, asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A mark on the last block ends what the provider keeps: what is added stands behind it."""
    prompt = read(dialect, "m", **asked)
    assert prompt.instruct("CT: rays")
    assert read(dialect, "m", **expected).document.root == Document(prompt.document.render()).root


@pytest.mark.parametrize("body", [{"prompt": "Once"}, {"prompt": ["a", "b"]}])
def test_a_text_to_be_completed_has_no_instructions(body: dict[str, Any]) -> None:
    """It would go on from them."""
    raw = encode({"model": "m", **body})
    prompt = DIALECTS["openai.completions"].read(Document(raw), "/v1/completions")
    assert not prompt.instruct("CT: rays")
    assert raw == prompt.document.render()


def test_a_chat_without_messages_has_no_instructions() -> None:
    """There is nobody to say it to."""
    prompt = read(CHAT, "m", messages=[])
    assert not prompt.instruct("CT: rays")


def test_every_dialect_can_be_asked() -> None:
    """None raises where it has nothing to say."""
    assert [True] * len(CHATS) == [
        isinstance(read(name, "m").limit_thinking(always(NONE)), bool) for name in CHATS
    ]
