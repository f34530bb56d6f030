"""Hold requests to a profile: temperature, length, thinking, the words of a trade, review."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec

from filters.api import (
    CONTINUE,
    Config,
    Effort,
    Exchange,
    Filter,
    Parameter,
    Prompt,
    Role,
    Thinking,
    Verdict,
)
from filters.bounds import is_too_much
from filters.document import Json
from filters.glossary import Glossary, bundled

Degrees: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=2)]
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
UNASKED_TEMPERATURE: Final = 1.0  # what OpenAI, Anthropic, Gemini and vLLM take for none
REVIEW_HEADER: Final = "x-forebay-review"
# From low to high as Gemini's OpenAI endpoint maps them: https://ai.google.dev/gemini-api/docs/openai
BUDGETS: Final = {
    Effort.NONE: 0,
    Effort.MINIMAL: 1_024,
    Effort.LOW: 1_024,
    Effort.MEDIUM: 8_192,
    Effort.HIGH: 24_576,
    Effort.XHIGH: 32_768,
    Effort.MAX: sys.maxsize,
}
_TOOL: Final = Role.TOOL  # in Python 3.11 reading an enum's member costs 0.1 us
_MAX_TOKENS: Final = Parameter.MAX_TOKENS
_TEMPERATURE: Final = Parameter.TEMPERATURE
_UNBOUNDED: Final = Thinking(Effort.MAX, sys.maxsize)


class Range(Config, frozen=True):
    """Bounds of the temperature; both the same set it."""

    min: Degrees = 0.0
    max: Degrees = 2.0

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"expected min to be at most max, got {self.min:g} and {self.max:g}")


class ThinkingConfig(Config, frozen=True):
    """How much the model may think."""

    effort: Effort = Effort.LOW
    """For models that are told in words; `none` switches thinking off where that can be."""
    budget: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Tokens, for models that are told in numbers; by default what suits the effort."""
    always: bool = False
    """Also where the client left it to the provider; only models known to think are told."""


class ParamsConfig(Config, frozen=True):
    """What is set, lowered, added."""

    temperature: Range | None = Range(max=0.0)
    """Null leaves it to client and provider; models that refuse one are never sent one."""
    max_tokens: Tokens | None = None
    """No answer is longer; a request that asks for less keeps it."""
    always_cap: bool = False
    """Also requests that leave the length to the provider get `max_tokens`."""
    thinking: ThinkingConfig | None = None
    """Null leaves thinking to client and provider."""
    glossary: tuple[Literal["finance", "legal", "medical"], ...] = ()
    """Domains whose terms, where a prompt uses them, are explained behind its instructions."""
    terms: dict[str, str] = msgspec.field(default_factory=dict)
    """Terms of your own and their meanings; they go before those of the domains."""
    most_terms: Annotated[int, msgspec.Meta(ge=1, le=100)] = 12
    """No more are explained."""
    review: bool = False
    """Answers say that a person has to look at them: `X-Forebay-Review: required`."""

    def __post_init__(self) -> None:
        if not all(map(str.strip, self.terms)):
            raise ValueError("expected terms of at least one character")


class _Prepared(NamedTuple):
    thinking: Thinking | None
    glossary: Glossary | None


class ParamsFilter(Filter[ParamsConfig]):
    """Works before `cache`, so that what it sets is part of the key."""

    name: ClassVar[str] = "params"
    config_type: ClassVar[type[Config]] = ParamsConfig
    bundled: ClassVar[Sequence[str]] = ("glossary",)

    @classmethod
    def prepare(cls, config: ParamsConfig) -> _Prepared:
        """Decide how much the model may think, and build the finder of terms."""
        terms: dict[str, str] = {}
        for domain in config.glossary:
            terms |= bundled(domain)
        terms |= config.terms
        return _Prepared(_most_thinking(config), Glossary(terms) if terms else None)

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Set what the profile says."""
        if self.config.review:
            exchange.client_headers[REVIEW_HEADER] = "required"
            exchange.note("params.review", "required")
        if exchange.dialect.operation == "embeddings":
            return CONTINUE
        config, prepared = self.config, self.prepared
        if config.max_tokens is not None:
            self._limit_tokens(exchange, config.max_tokens)
        if prepared.thinking is not None:
            self._limit_thinking(exchange, prepared.thinking)
        if config.temperature is not None:
            self._set_temperature(exchange, config.temperature)  # a model that thinks may take none
        if prepared.glossary is not None:
            self._explain_terms(exchange, prepared.glossary)
        return CONTINUE

    def _limit_tokens(self, exchange: Exchange, most: int) -> None:
        prompt = exchange.prompt
        asked = prompt.parameter(_MAX_TOKENS)
        if asked is None:
            too_many = self.config.always_cap
        else:
            too_many = _is_number(asked) and asked > most
        if too_many:
            prompt.set_parameter(_MAX_TOKENS, most)
            exchange.note("params.max_tokens", most)

    def _limit_thinking(self, exchange: Exchange, most: Thinking) -> None:
        if exchange.prompt.limit_thinking(most):
            exchange.note("params.thinking", most.effort.value)

    def _set_temperature(self, exchange: Exchange, told: Range) -> None:
        prompt = exchange.prompt
        asked = prompt.parameter(_TEMPERATURE)
        if asked is None:
            asked = UNASKED_TEMPERATURE
        if not _is_number(asked) or told.min <= asked <= told.max:
            return  # what is no number the provider refuses in its own words
        wanted = told.max if asked > told.max else told.min
        if not prompt.takes_temperature() or (wanted == 0 and _wants_choices(prompt)):
            exchange.note("params.skip", "temperature")
            return
        prompt.set_parameter(_TEMPERATURE, wanted)
        exchange.note("params.temperature", wanted)

    def _explain_terms(self, exchange: Exchange, glossary: Glossary) -> None:
        prompt = exchange.prompt
        said = prompt.said()
        if not (is_too_much(said) or glossary.may_be_used_in(said)):
            return
        said = [text.value for text in prompt.texts() if text.role is not _TOOL]
        if is_too_much(said):
            exchange.note("params.skip", "size")
            return
        used = glossary.used_in(said, self.config.most_terms)
        if used and prompt.instruct(glossary.write(used)):
            exchange.note("params.terms", len(used))


def _most_thinking(config: ParamsConfig) -> Thinking | None:
    """Return how much the model may think at most, None where nothing is to be looked at."""
    told = config.thinking
    if told is not None:
        budget = BUDGETS[told.effort] if told.budget is None else told.budget
        return Thinking(told.effort, budget, told.always)
    # A budget has to stay below a `max_tokens` that was lowered.
    return None if config.max_tokens is None else _UNBOUNDED


def _is_number(asked: Json) -> bool:
    return asked.__class__ is int or asked.__class__ is float


def _wants_choices(prompt: Prompt) -> bool:
    """Several choices of the same; vLLM refuses them: "n must be 1 when using greedy sampling"."""
    choices = prompt.parameter(Parameter.CHOICES)
    return isinstance(choices, int) and choices > 1
