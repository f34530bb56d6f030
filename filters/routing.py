"""Say which pools an exchange may go to, the best first, and what speaks for each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from filters.api import Parameter, Prompt, Task
from filters.bounds import MOST_CHARS_APART
from filters.document import encode
from filters.pools import Offer, Pools
from filters.token_samples import about_tokens, exact_tokens

DOUBT: Final = 1.15  # the estimate's, and what other makers' tokens differ from those counted
BUCKETS: Final = ((512, "512"), (2_048, "2K"), (8_192, "8K"), (32_768, "32K"), (131_072, "128K"))
OVER: Final = "over"
"""The bucket of what is longer."""
_NO_END: Final = float("inf")


class Rule(enum.StrEnum):
    """What decided for a pool: a metric's label."""

    OWN = "own"
    """The profile's own pool."""
    EXPERT = "expert"
    """`classify` named the trade's."""
    TASK = "task"
    """It serves such an intent or domain."""
    LOW_RISK = "low_risk"
    LENGTH = "length"
    """It serves prompts of such a length."""
    FALLBACK = "fallback"
    """It stands in for one that is too small."""
    STAGE = "stage"
    """It is on its way into another one's place."""
    BREAKER = "breaker"
    """The one before it is broken."""
    LIMIT = "limit"
    """The one before it is full."""


class Choice(NamedTuple):
    """A pool, and why it may be the one."""

    pool: str
    rule: Rule
    why: str = ""


class Size(NamedTuple):
    """About how many tokens a prompt has, and how many its answer may have as far as it is said."""

    tokens: int = 0
    room: int = 0


def bucket_of(tokens: int) -> str:
    """Return the name of the length bucket."""
    return next((name for most, name in BUCKETS if tokens <= most), OVER)


def ranked(
    pools: Pools,
    own: Choice,
    low: Choice | None,
    task: Task | None,
    size: Size,
    *,
    risky: Callable[[], bool],
) -> list[Choice]:
    """Return the pools that an exchange is for, each once, whether or not they take it.

    A lesser pool serves no other work than that of low risk, unless the profile's own is one; or
    as another's fallback, but for what is `risky`.
    """
    lesser_too = low is not None or pools[own.pool].best_effort
    serving = [offer for offer in pools.serving if lesser_too or not offer.best_effort]
    choices: dict[str, Choice] = {}
    for choice in _by_preference(pools, own, low, task, size, serving):
        choices.setdefault(choice.pool, choice)
    for choice in tuple(choices.values()):
        for offer in pools.fallbacks(choice.pool):
            if offer.name not in choices and (lesser_too or not offer.best_effort or not risky()):
                why = f"instead of {choice.pool}"
                choices[offer.name] = Choice(offer.name, Rule.FALLBACK, why)
    for offer in serving:  # better than to refuse what is too long for all others
        if not offer.intents and not offer.domains and offer.name not in choices:
            choices[offer.name] = Choice(offer.name, Rule.LENGTH, "length: no pool serves it")
    return list(choices.values())


def _by_preference(
    pools: Pools,
    own: Choice,
    low: Choice | None,
    task: Task | None,
    size: Size,
    serving: Sequence[Offer],
) -> Iterator[Choice]:
    if own.rule is Rule.EXPERT:
        yield own
    if task is not None:
        fit = [offer for offer in serving if _serves(offer, task)]
        # Who serves both intent and domain is more of an expert than who serves one.
        fit.sort(key=lambda one: (not (one.intents and one.domains), *_order(one, size)))
        for offer in fit:
            yield Choice(offer.name, Rule.TASK, f"task: {task.intent} in {task.domain}")
    if low is not None:
        yield low
    offer = pools[own.pool]
    if offer.has_range and offer.spans(size.tokens):
        yield own
    by_length = [offer for offer in serving if not offer.intents and not offer.domains]
    for offer in sorted(by_length, key=lambda offer: _order(offer, size)):
        if offer.spans(size.tokens):
            yield Choice(offer.name, Rule.LENGTH, f"length: {bucket_of(size.tokens)}")
    yield own


def _serves(offer: Offer, task: Task) -> bool:
    if not offer.intents and not offer.domains:
        return False
    return (not offer.intents or task.intent in offer.intents) and (
        not offer.domains or task.domain in offer.domains
    )


def _order(offer: Offer, size: Size) -> tuple[float, float]:
    """Return what to sort by: the shorter of two buckets fits better, the cheaper of equal ones."""
    return offer.up_to or _NO_END, offer.cost(*size)


def line_up(pools: Pools, choices: Sequence[Choice], size: Size) -> list[Choice]:
    """Return those of the choices that take such a prompt, with a pool's fallbacks behind it.

    Where none serves its length, those are returned that have room for it: a bucket is a wish.
    """
    fit = [choice for choice in choices if pools[choice.pool].holds(*size)]
    line = [choice for choice in fit if pools[choice.pool].spans(size.tokens)] or fit
    if len(line) < 2:
        return line
    ways = {choice.pool: choice for choice in line}
    first = line[0]
    behind = [ways[offer.name] for offer in pools.fallbacks(first.pool) if offer.name in ways]
    return list(dict.fromkeys((first, *behind, *line[1:])))


# --- How long it is ------------------------------------------------------------------------------


def room_of(prompt: Prompt) -> int:
    """Return how many tokens the client lets the answer have; 0 where it does not say."""
    value = prompt.parameter(Parameter.MAX_TOKENS)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def counted_texts(prompt: Prompt, *, apart: bool) -> Sequence[str]:
    """Return the texts whose tokens count together; `apart`: each is a prompt of its own."""
    said = [text.value for turn in prompt.turns() for text in turn.texts]
    if apart:
        return [max(said, key=len, default="")]
    tools = prompt.tools()
    return [*said, encode(tools).decode()] if tools else said


def size_of(
    texts: Sequence[str],
    room: int,
    contexts: Iterable[int],
    estimate: Callable[[str], int],
    count: Callable[[str], int],
) -> Size:
    """Return the size of a prompt; exactly where an estimate might put it into the wrong pool."""
    tokens = about_tokens(texts, estimate)
    for context in contexts:
        if tokens < (context - room) * DOUBT and (context - room) < tokens * DOUBT:
            return Size(counted(texts, tokens, count), room)
    return Size(tokens, room)


def counted(texts: Sequence[str], tokens: int, count: Callable[[str], int]) -> int:
    """Return how many tokens texts are; what was estimated, where to count them takes too long."""
    if sum(map(len, texts)) > MOST_CHARS_APART:
        return tokens
    return exact_tokens(texts, count)


def longest(pools: Pools, choices: Iterable[Choice]) -> int:
    """Return the greatest context among pools that all say theirs."""
    return max(pools[choice.pool].context for choice in choices)


def roomiest(pools: Pools, choices: Sequence[Choice], size: Size) -> list[Choice]:
    """Return the pools that take a prompt if it is a little shorter than it was counted."""
    least = int(size.tokens / DOUBT)
    fit = [choice for choice in choices if pools[choice.pool].holds(least, size.room)]
    return sorted(fit, key=lambda choice: -pools[choice.pool].context)


def too_long(size: Size, limit: int) -> str:
    """Tell a client that no pool takes its prompt."""
    needs = f"about {size.tokens:,} tokens"
    if size.room:
        needs = f"{needs}, and room for {size.room:,} of the answer"
    return (
        f"the prompt is too long: it has {needs}, where the longest context here is "
        f"{limit:,} tokens"
    )
