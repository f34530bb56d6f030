"""Take out of a prompt what the model does not need: markup, images as text, repetitions, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from filters.api import CONTINUE, Config, Exchange, Filter, Prompt, Role, Text, Turn, Verdict
from filters.bounds import MOST_CHARS, MOST_TEXTS
from filters.cleaning import RULES, Edit, Passage, clean_passages, may_find
from filters.document import encode
from filters.drops import DropRule, Rule, TooMuch, compile_rule, drop_fields
from filters.errors import PortError

_USER: Final = Role.USER  # in Python 3.11 reading an enum's member costs 0.1 us
_ASSISTANT: Final = Role.ASSISTANT
_SYSTEM: Final = Role.SYSTEM
MOST_CHARS_HERE: Final = 16_384  # up to 1 us each; every other exchange waits meanwhile
DEADLINE_S: Final = 2.0  # queue and all; a prompt of 262,144 characters takes 0.03 to 0.3 s
_OF_BASE64: Final = 0.68  # tokens of o200k for a character; estimates are of prose: a third of it
# An embedding stands for a text as it is, greetings included.
_OF_TALK: Final = frozenset({"greetings", "repeats", "relevance"})


class CleanConfig(Config, frozen=True):
    """Which rules are on."""

    html: bool = True
    """Tags, comments, scripts, styles and entities, unless the text is about markup."""
    media: bool = True
    """Images written out in the text, as data URIs or Base64: their type and size stay."""
    padding: bool = True
    """Runs of padding tokens, and rows of one mark."""
    zero_width: bool = True
    """Characters that nobody sees and that say nothing."""
    white_space: bool = True
    """Runs of spaces and blank lines and trailing spaces; never in code."""
    greetings: bool = True
    """Greetings, thanks and the like after the first of each kind."""
    repeats: bool = True
    """Paragraphs that say again what one before them said."""
    relevance: bool = False
    """Paragraphs of context that share no word with the question."""
    system: bool = False
    """System prompts are cleaned as well, but for greetings and repetitions."""
    drop: tuple[DropRule, ...] = ()
    """JSONPath rules that drop fields of the request, such as "$.safetySettings"."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    rules: frozenset[str]
    of_one_text: frozenset[str]
    drops: tuple[Rule, ...]
    roles: tuple[Role, ...]
    """Whose texts are cleaned."""


class CleanFilter(Filter[CleanConfig]):
    """Edits what the user wrote; tool results and earlier answers stay."""

    name: ClassVar[str] = "clean"
    config_type: ClassVar[type[Config]] = CleanConfig

    @classmethod
    def longest_wait_s(cls, config: CleanConfig) -> float:
        """Wait for a worker to clean a long prompt."""
        return DEADLINE_S

    @classmethod
    def prepare(cls, config: CleanConfig) -> _Prepared:
        """Compile the JSONPath rules; raise `ValueError` for one that cannot be followed."""
        rules = frozenset(name for name in RULES if getattr(config, name))
        roles = (_USER, _SYSTEM) if config.system else (_USER,)
        return _Prepared(rules, rules - _OF_TALK, tuple(map(compile_rule, config.drop)), roles)

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Drop fields, then clean every user text; what would become empty stays as it was."""
        if self.prepared.drops:
            self._drop(exchange)
        if not self.prepared.rules:
            return CONTINUE
        values = self._values(exchange.prompt)
        chars = sum(map(len, values))
        if chars > MOST_CHARS or len(values) > MOST_TEXTS:
            exchange.note("clean.skip", "size")
            return CONTINUE
        talks = exchange.dialect.operation != "embeddings"
        rules = self.prepared.rules if talks else self.prepared.of_one_text
        apart = chars > MOST_CHARS_HERE
        if apart or may_find(values, rules):  # mostly they find nothing, and no more is read
            await self._clean(exchange, rules, apart=apart)
        return CONTINUE

    def _drop(self, exchange: Exchange) -> None:
        try:
            dropped = drop_fields(exchange.prompt, self.prepared.drops)
        except TooMuch:
            exchange.note("clean.skip", "fields")
            return
        for value in dropped:
            exchange.cut("clean.drop", self.ports.tokens.estimate(encode(value).decode()), 0)

    def _values(self, prompt: Prompt) -> list[str]:
        """Return what the texts to clean say."""
        roles = self.prepared.roles
        return [
            value
            for text, value in zip(prompt.texts(), prompt.said(), strict=True)
            if text.role in roles
        ]

    async def _clean(self, exchange: Exchange, rules: frozenset[str], *, apart: bool) -> None:
        texts, passages, systems = self._read(exchange.prompt.turns())
        originals = [passage.value for passage in passages]
        if not apart:
            cleaned = clean_passages(passages, rules, systems)
        else:
            run = self.ports.workers.run
            try:
                cleaned = await run(clean_passages, passages, rules, systems, deadline_s=DEADLINE_S)
            except PortError:
                exchange.note("clean.skip", "workers")
                return
        if cleaned.has_many_tags:
            exchange.note("clean.skip", "tags")
        if not cleaned.edits:
            return
        for text, value, original in zip(texts, cleaned.values, originals, strict=True):
            if value != original:
                text.value = value
        self._count(exchange, cleaned.edits)

    def _count(self, exchange: Exchange, edits: Sequence[Edit]) -> None:
        exchange.note("clean.chars", sum(len(edit.before) - len(edit.after) for edit in edits))
        estimate = self.ports.tokens.estimate
        tokens: dict[str, int] = {}  # what one rule leaves another begins with
        for edit in edits:
            for text in (edit.before, edit.after):
                if text not in tokens:
                    tokens[text] = estimate(text)
            before, after = tokens[edit.before], tokens[edit.after]
            if edit.rule == "media":
                before = after + round((len(edit.before) - len(edit.after)) * _OF_BASE64)
            exchange.cut(f"clean.{edit.rule}", before, after)

    def _read(self, turns: Sequence[Turn]) -> tuple[list[Text], list[Passage], list[str]]:
        """Return the texts to clean, the same as passages, and the system prompts."""
        texts: list[Text] = []
        passages: list[Passage] = []
        systems: list[str] = []
        answers = 0
        for index, turn in enumerate(turns):
            answers += turn.role is _ASSISTANT
            for text in turn.texts:
                is_system = text.role is _SYSTEM
                if is_system:
                    systems.append(text.value)
                if text.role in self.prepared.roles:
                    texts.append(text)
                    passages.append(Passage(text.value, index, answers, has_author=is_system))
        return texts, passages, systems
