"""Apply the rules of `clean` to the texts of a prompt until they find nothing more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from filters.greetings import drop_repeated_greetings, has_kind_words, kinds_in
from filters.markup import is_about_markup, strip_markup
from filters.media import is_about_encoding, shorten_media
from filters.padding import drop_padding, is_template
from filters.relevance import drop_unrelated, question_of
from filters.repeats import drop_repeats, may_repeat
from filters.spacing import drop_invisible, tidy_spacing
from filters.traces import WITH_TRACES, rules_traced
from filters.wording import is_about_gaps, is_about_padding, is_about_wording

MOST_TAGS: Final = 8_000  # a page has some thousands; 3 us each
MOST_PASSES: Final = 8  # one pass may uncover work for the next; text built to go on for ever stays

RULES: Final = (
    "zero_width", "media", "padding", "html", "white_space", "greetings", "repeats", "relevance"
)  # fmt: skip
"""The rules in their order."""
SAFE: Final = frozenset(RULES) - {"relevance"}
"""Those that are on unless a profile says otherwise."""

_OF_ONE_TEXT: Final[tuple[tuple[str, Callable[[str], str]], ...]] = (
    ("zero_width", drop_invisible),
    ("media", shorten_media),
    ("padding", drop_padding),
    ("html", strip_markup),
    ("white_space", tidy_spacing),
    ("greetings", drop_repeated_greetings),
    ("repeats", drop_repeats),
)
_NAMES: Final = frozenset(name for name, _ in _OF_ONE_TEXT)


class Passage(msgspec.Struct):  # every text makes one: 0.1 us, a dataclass 0.4 us
    """A text of the prompt as it becomes."""

    value: str
    turn: int = 0
    """The number of the message that it belongs to."""
    answers: int = 0
    """How many answers of the model stand before it."""
    has_author: bool = False
    """It is a system prompt, whose author repeats nothing by chance."""


class Edit(NamedTuple):
    """What a rule made of a text."""

    passage: int
    rule: str
    before: str
    after: str


class Cleaned(NamedTuple):
    """What became of the passages of a prompt."""

    values: list[str]
    edits: list[Edit]
    has_many_tags: bool
    """Tags were left because there are very many."""


def may_find(texts: Iterable[str], rules: AbstractSet[str]) -> bool:
    """Tell whether `rules` may find anything in texts of one prompt; costs 5 us for 1 KB of prose.

    Where they do not, cleaning would change nothing.
    """
    for text in texts:
        traced = rules_traced(text)
        if (
            not rules.isdisjoint(traced)
            or ("greetings" in rules and has_kind_words(text))
            or ("repeats" in rules and may_repeat(text, is_tidy="white_space" not in traced))
        ):
            return True
    return "relevance" in rules


def clean_passages(
    passages: Sequence[Passage], rules: Collection[str], systems: Sequence[str]
) -> Cleaned:
    """Clean the passages of one prompt; `systems`, its system prompts, say what the task is."""
    cleaning = Cleaning(passages, rules, systems)
    edits = cleaning.run()
    return Cleaned([passage.value for passage in passages], edits, cleaning.has_many_tags)


class Cleaning:
    """The passages of one prompt and the rules that are on."""

    def __init__(
        self,
        passages: Sequence[Passage],
        rules: Collection[str],
        systems: Sequence[str] = (),
    ) -> None:
        """Take passages to edit in place, and system prompts that say what the task is."""
        self._passages: Final = passages
        self._off: Final = _NAMES.difference(rules)
        self._relevance: Final = "relevance" in rules
        self._systems: Final = systems
        self.has_many_tags = False
        """Tags were left because there are very many."""

    def run(self) -> list[Edit]:
        """Edit the passages and return what was done; cleaning once more would change nothing.

        Where the rules come to no end, nothing is done.
        """
        originals = values = [passage.value for passage in self._passages]
        edits: list[Edit] = []
        for _ in range(MOST_PASSES):
            found = self._pass(values)
            if not found:
                return edits
            edits += found
            values = [passage.value for passage in self._passages]
        for passage, original in zip(self._passages, originals, strict=True):
            passage.value = original
        return []

    def _pass(self, values: Sequence[str]) -> list[Edit]:
        guards = _Guards(values, self._systems)
        quiet = self._off | WITH_TRACES
        talked = self._passages[-1].answers > 0 if self._passages else False
        said: set[str] = set()  # kind words of the rounds before
        saying: set[str] = set()  # and of this one
        answers = 0
        edits: list[Edit] = []
        for index, passage in enumerate(self._passages):
            if passage.answers > answers:
                said |= saying
                answers = passage.answers
            before = passage.value
            traced = rules_traced(before)
            idle = self._off | (WITH_TRACES - traced) if traced else quiet
            for name, rule in _OF_ONE_TEXT:
                if name in idle:
                    continue
                if name == "html" and "<" in before and guards.has_many_tags:
                    self.has_many_tags = True
                    continue
                after = (
                    drop_repeated_greetings(before, said) if name == "greetings" else rule(before)
                )
                if after != before and self._may(name, passage, after, guards):
                    passage.value = after
                    edits.append(Edit(index, name, before, after))
                    before = after
                    idle = self._off  # what a rule leaves may be something for another
            if talked and not passage.has_author:
                saying |= kinds_in(passage.value)
        return edits or self._drop_unrelated()

    def _drop_unrelated(self) -> list[Edit]:
        edits: list[Edit] = []
        if not self._relevance:
            return edits
        said = [one for one in enumerate(self._passages) if not one[1].has_author]
        asked = [one for one in said if one[1].turn == said[-1][1].turn]
        question = question_of(asked[-1][1].value) if asked else ""
        for index, passage in asked:
            before = passage.value
            after = drop_unrelated(before, question)
            if after != before:
                passage.value = after
                edits.append(Edit(index, "relevance", before, after))
        return edits

    def _may(self, name: str, passage: Passage, after: str, guards: _Guards) -> bool:
        """Tell whether a rule may do what it found."""
        if not after.strip() or is_template(passage.value):
            return False
        match name:
            case "html":
                return not guards.is_about_markup
            case "media":
                return not guards.is_about_encoding
            case "padding":
                return not guards.is_about_padding
            case "zero_width" | "white_space":
                return not guards.is_about_gaps
            case "greetings" | "repeats":
                return not (passage.has_author or guards.is_about_wording)
            case _:
                return True


class _Guards:
    """What the prompt is about, found out once and only where a rule found something to do."""

    def __init__(self, texts: Sequence[str], systems: Sequence[str]) -> None:
        self._texts: Final = texts
        self._systems: Final = systems

    @functools.cached_property
    def has_many_tags(self) -> bool:
        return sum(text.count("<") for text in self._texts) > MOST_TAGS

    @functools.cached_property
    def is_about_markup(self) -> bool:
        return is_about_markup(self._texts, self._systems)

    @functools.cached_property
    def is_about_encoding(self) -> bool:
        return is_about_encoding(self._texts)

    @functools.cached_property
    def is_about_padding(self) -> bool:
        return is_about_padding(self._texts)

    @functools.cached_property
    def is_about_gaps(self) -> bool:
        return is_about_gaps(self._texts)

    @functools.cached_property
    def is_about_wording(self) -> bool:
        return is_about_wording((*self._texts, *self._systems))


def clean(text: str, rules: Collection[str] = SAFE) -> str:
    """Return `text`, as a whole prompt, cleaned by `rules`."""
    passage = Passage(text)
    Cleaning([passage], rules).run()
    return passage.value
