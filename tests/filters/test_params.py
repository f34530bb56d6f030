"""Bounds on temperature, length and thinking, terms that are explained, and the mark for review."""

from __future__ import annotations

from typing import Any

import pytest

from filters.api import CONTINUE, Effort, Exchange, Parameter, Role
from filters.bounds import MOST_CHARS
from filters.cache_key import cache_key
from filters.params import ParamsConfig, ParamsFilter, Range, ThinkingConfig
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import drive, fake_ports

LEFT = ParamsConfig(temperature=None)
TALKS = [name for name in CHATS if name != "openai.completions"]
"""Dialects whose requests have instructions."""


def bounded(exchange: Exchange, config: ParamsConfig) -> bytes:
    params = ParamsFilter(config, ParamsFilter.prepare(config), fake_ports())
    assert CONTINUE is drive(params.on_request(exchange))
    return exchange.prompt.document.render()


def held(low: float, high: float) -> ParamsConfig:
    return ParamsConfig(temperature=Range(min=low, max=high))


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("asked", "config", "expected"),
    [
        (0.9, ParamsConfig(), 0),
        (None, ParamsConfig(), 0),
        (0.9, held(0, 0.3), 0.3),
        (0.1, held(0, 0.3), 0.1),
        (0.1, held(0.2, 0.3), 0.2),
        (None, held(0, 0.3), 0.3),
        (None, held(0, 1.5), None),
        (1.9, LEFT, 1.9),
    ],
)
def test_the_temperature_is_held_within_bounds(
    dialect: str, asked: float | None, config: ParamsConfig, expected: float | None
) -> None:
    """Where none is asked for the provider would take 1, so that counts; 0 by default."""
    exchange = ask(dialect, "Why?", temperature=asked)
    bounded(exchange, config)
    assert expected == exchange.prompt.parameter(Parameter.TEMPERATURE)


@pytest.mark.parametrize("dialect", CHATS)
def test_what_is_within_bounds_keeps_its_bytes(dialect: str) -> None:
    """Nothing to do is nothing done."""
    exchange = ask(dialect, "Why?", temperature=0)
    assert exchange.prompt.document.raw is bounded(exchange, ParamsConfig(max_tokens=4_096))
    assert {} == exchange.notes


@pytest.mark.parametrize("asked", ["hot", True, [0.7]])
def test_a_temperature_that_is_no_number_is_left_to_the_provider(asked: Any) -> None:
    """It refuses it in its own words."""
    exchange = ask("openai.chat", "Why?", more={"temperature": asked})
    assert exchange.prompt.document.raw is bounded(exchange, ParamsConfig())


@pytest.mark.parametrize(
    ("model", "more"), [("gpt-5-mini", {}), ("m", {"n": 2}), ("o3", {"temperature": 1})]
)
def test_a_temperature_that_would_be_refused_is_not_set(model: str, more: dict[str, Any]) -> None:
    """A model that has its own, or several choices at 0; the note says so."""
    exchange = ask("openai.chat", "Why?", more={"model": model, **more})
    assert exchange.prompt.document.raw is bounded(exchange, ParamsConfig())
    assert "temperature" == exchange.notes["params.skip"]


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("asked", "always", "expected"),
    [(900, False, 256), (100, True, 100), (None, False, None), (None, True, 256)],
)
def test_the_length_is_capped_and_never_raised(
    dialect: str, asked: int | None, always: bool, expected: int | None
) -> None:
    """Set where nothing is asked for only if the profile says so."""
    exchange = ask(dialect, "Why?")
    document = exchange.prompt.document
    document.remove(("max_tokens",))
    if asked is not None:
        exchange.prompt.set_parameter(Parameter.MAX_TOKENS, asked)
    bounded(exchange, ParamsConfig(temperature=None, max_tokens=256, always_cap=always))
    assert expected == exchange.prompt.parameter(Parameter.MAX_TOKENS)


def test_the_budget_for_thinking_stays_below_a_capped_length() -> None:
    """Anthropic refuses it otherwise."""
    thinking = {"type": "enabled", "budget_tokens": 8_000}
    exchange = ask("anthropic.messages", "Why?", more={"max_tokens": 9_000, "thinking": thinking})
    bounded(exchange, ParamsConfig(max_tokens=4_000))
    root = exchange.prompt.document.root
    assert (4_000, 3_999) == (root["max_tokens"], root["thinking"]["budget_tokens"])
    assert "temperature" not in root


def test_thinking_is_lowered() -> None:
    """By its effort, and by the tokens that suit it."""
    exchange = ask("openai.chat", "Why?", more={"reasoning_effort": "high"})
    bounded(exchange, ParamsConfig(temperature=None, thinking=ThinkingConfig()))
    assert "low" == exchange.prompt.document.root["reasoning_effort"]
    assert "low" == exchange.notes["params.thinking"]
    more = {"generationConfig": {"thinkingConfig": {"thinkingBudget": 20_000}}}
    for config, budget in (
        (ThinkingConfig(effort=Effort.MEDIUM), 8_192),
        (ThinkingConfig(effort=Effort.MEDIUM, budget=5), 5),
    ):
        exchange = ask("gemini.generate", "Why?", more=more)
        bounded(exchange, ParamsConfig(thinking=config))
        assert budget == exchange.prompt.document.get(
            ("generationConfig", "thinkingConfig", "thinkingBudget")
        )


@pytest.mark.parametrize("dialect", TALKS)
def test_terms_that_a_prompt_uses_are_explained(dialect: str) -> None:
    """Behind the instructions, and those alone."""
    config = ParamsConfig(temperature=None, terms={"FooBar": "a thing", "Baz": "another"})
    exchange = ask(dialect, "What does foobar do?", system="Be brief.")
    bounded(exchange, config)
    turns = exchange.prompt.turns()
    said = [text.value for turn in turns for text in turn.texts if turn.role is Role.SYSTEM]
    assert "Be brief.\n\nGlossary:\n- FooBar: a thing" == "\n\n".join(said)
    assert 1 == exchange.notes["params.terms"]


@pytest.mark.parametrize("dialect", CHATS)
def test_a_prompt_without_terms_keeps_its_bytes(dialect: str) -> None:
    """Nothing is said of what nobody mentions."""
    config = ParamsConfig(temperature=None, glossary=("medical", "legal", "finance"))
    exchange = ask(dialect, "Why is the sky blue?", system="Be brief.")
    assert exchange.prompt.document.raw is bounded(exchange, config)


def test_no_more_terms_are_explained_than_allowed() -> None:
    """The first of them."""
    config = ParamsConfig(terms={"aa": "1", "bb": "2", "cc": "3"}, most_terms=2)
    exchange = ask("openai.responses", "cc bb aa")
    bounded(exchange, config)
    assert "Glossary:\n- cc: 3\n- bb: 2" == exchange.prompt.document.root["instructions"]


@pytest.mark.parametrize("word", ["foobar ", "nothing "])
def test_a_prompt_of_very_many_characters_is_not_searched_for_terms(word: str) -> None:
    """Whether it has any or not; that is noted."""
    config = ParamsConfig(temperature=None, terms={"FooBar": "a thing"})
    exchange = ask("openai.chat", word * (MOST_CHARS // len(word) + 1))
    assert exchange.prompt.document.raw is bounded(exchange, config)
    assert {"params.skip": "size"} == exchange.notes


def test_what_a_tool_found_is_not_searched_for_terms() -> None:
    """It would be explained what the user never said."""
    body = (
        b'{"model":"m","messages":[{"role":"tool","tool_call_id":"1","content":"INR"},'
        b'{"role":"user","content":"Why?"}]}'
    )
    config = ParamsConfig(temperature=None, glossary=("medical",))
    assert body is bounded(exchange_of("openai.chat", body, "/v1/chat/completions"), config)


@pytest.mark.parametrize("dialect", CHATS)
def test_answers_may_be_marked_for_review(dialect: str) -> None:
    """In a header for the client; the request stays as it is."""
    exchange = ask(dialect, "Why?")
    assert exchange.prompt.document.raw is bounded(
        exchange, ParamsConfig(temperature=None, review=True)
    )
    assert {"x-forebay-review": "required"} == exchange.client_headers


@pytest.mark.parametrize("dialect", CHATS)
def test_what_is_set_is_part_of_the_caches_key(dialect: str) -> None:
    """Two profiles' answers would differ."""
    plain, cool = ask(dialect, "Why?", temperature=0.9), ask(dialect, "Why?", temperature=0.9)
    bounded(cool, held(0, 0.3))
    assert cache_key(plain) != cache_key(cool)


def test_inputs_to_embed_have_no_parameters() -> None:
    """They pass as they are, but for the mark."""
    body = b'{"model":"m","input":"INR"}'
    exchange = exchange_of("openai.embeddings", body, "/v1/embeddings")
    config = ParamsConfig(max_tokens=5, always_cap=True, glossary=("medical",), review=True)
    assert body is bounded(exchange, config)
    assert {"x-forebay-review": "required"} == exchange.client_headers


def test_a_term_without_a_character_is_refused() -> None:
    """It would stand everywhere."""
    with pytest.raises(ValueError, match="at least one character"):
        ParamsConfig(terms={" ": "nothing"})


def test_bounds_in_the_wrong_order_are_refused() -> None:
    """Before any request comes."""
    with pytest.raises(ValueError, match="min to be at most max"):
        Range(min=0.5, max=0.3)
