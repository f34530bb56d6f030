"""Take out of a prompt what the model does not need: markup and runaway white space."""

from __future__ import annotations

from typing import ClassVar, Final

from filters.api import CONTINUE, Config, Exchange, Filter, Role, Verdict
from filters.bounds import is_too_much
from filters.markup import is_about_markup, strip_markup
from filters.spacing import tidy_spacing

MOST_TAGS: Final = 8_000  # a page has some thousands; 3 us each
MOST_PASSES: Final = 8  # one pass may uncover work for the next; text built to go on for ever stays


class CleanConfig(Config, frozen=True):
    """Which rules are on."""

    html: bool = True
    """Tags, comments, scripts and styles, unless the text is about markup."""
    white_space: bool = True
    """Runs of spaces and blank lines, trailing and zero-width characters; never in code."""


class CleanFilter(Filter[CleanConfig]):
    """Edits what the user wrote; system prompts, tool results and earlier answers stay."""

    name: ClassVar[str] = "clean"
    config_type: ClassVar[type[Config]] = CleanConfig

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Clean every user text; a text that would become empty stays as it was."""
        texts = [
            text
            for turn in exchange.prompt.turns()
            for text in turn.texts
            if text.role is Role.USER
        ]
        originals = [text.value for text in texts]
        if is_too_much(originals):
            exchange.note("clean.skip", "size")
            return CONTINUE
        html = False
        if self.config.html and any("<" in original for original in originals):
            if sum(original.count("<") for original in originals) > MOST_TAGS:
                exchange.note("clean.skip", "tags")
            else:
                html = not is_about_markup(map(strip_markup, originals))
        removed = 0
        for text, original in zip(texts, originals, strict=True):
            cleaned = clean(original, html=html, white_space=self.config.white_space)
            if cleaned != original:
                text.value = cleaned
                removed += len(original) - len(cleaned)
        if removed:
            exchange.note("clean.chars", removed)
        return CONTINUE


def clean(text: str, *, html: bool, white_space: bool) -> str:
    """Apply the rules until they find nothing more; keep the text where they leave nothing.

    Cleaning a cleaned text changes nothing.
    """
    before = text
    for _ in range(MOST_PASSES):
        after = tidy_spacing(before) if white_space else before
        after = strip_markup(after) if html else after
        if after == before:
            return after if after.strip() else text
        before = after
    return text
