"""Say which pools an exchange may go to, the best first, and what speaks for each."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from filters.api import Parameter, Prompt, Task
from filters.document import encode
from filters.pools import BUCKETS, Offer, Pools

DOUBT: Final = 1.15  # the estimate's, and what other makers' tokens differ from those counted
BUCKET_NAMES: Final = ("512", "2K", "8K", "32K", "128K", "over")
MOST_NAMED: Final = 8  # alternatives
MOST_ROOM: Final = 1_000_000_000  # no answer is longer; a number may have thousands of digits
MOST_PLANS: Final = 4_096  # about 1 KB each; four pools for as many tasks have some hundred
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

    @property
    def bucket(self) -> str:
        """The name of the length bucket."""
        return BUCKET_NAMES[bisect_left(BUCKETS, self.tokens)]


class Plan(NamedTuple):
    """Which pools take an exchange, the best first, and what else there is."""

    line: Sequence[Choice]
    """Empty where no context suffices."""
    choices: Sequence[Choice]
    """All that it is for."""
    alternatives: str
    """All but the first, for people."""


def plan(
    pools: Pools, own: Choice, low: str, task: Task | None, size: Size, *, careful: bool
) -> Plan:
    """Say where an exchange goes that stands at `own`; `low` is the pool for low risk, if it is.

    A lesser pool serves no other work, unless the profile's own is one; or as another's fallback,
    but for what wants to be treated with care. What is decided is kept: it is the same for all
    requests of such a length and task.
    """
    key = (
        own.pool,
        own.rule is Rule.EXPERT,
        low,
        careful,
        (task.intent, task.domain) if task is not None and pools.by_task else None,
        bisect_left(pools.edges, size.tokens),
        bisect_left(pools.contexts, size.tokens + size.room),
    )
    kept: Plan | None = pools.plans.get(key)
    if kept is None:
        if len(pools.plans) >= MOST_PLANS:
            pools.plans.clear()
        kept = pools.plans[key] = _plan(pools, own, low, task, size, careful=careful)
    return kept


def _plan(
    pools: Pools, own: Choice, low: str, task: Task | None, size: Size, *, careful: bool
) -> Plan:
    choices = _ranked(pools, own, low, task, size, careful=careful)
    fit = [choice for choice in choices if pools[choice.pool].holds(*size)]
    # A bucket is a wish: where none serves its length, those with room for it do.
    line = [choice for choice in fit if pools[choice.pool].spans(size.tokens)] or fit
    if line:
        ways = {choice.pool: choice for choice in line}
        first = line[0]
        behind = [ways[offer.name] for offer in pools.fallbacks(first.pool) if offer.name in ways]
        line = list(dict.fromkeys((first, *behind, *line[1:])))
    others = [choice for choice in choices if choice not in line[:1]]
    named = [
        f"{choice.pool} ({choice.rule if choice in line else 'length does not fit'})"
        for choice in others[:MOST_NAMED]
    ]
    return Plan(tuple(line), tuple(choices), ", ".join(named))


def _ranked(
    pools: Pools, own: Choice, low: str, task: Task | None, size: Size, *, careful: bool
) -> list[Choice]:
    """Return the pools that an exchange is for, each once, whether or not they take it."""
    lesser_too = bool(low) or pools[own.pool].best_effort
    serving = [offer for offer in pools.serving if lesser_too or not offer.best_effort]
    choices: dict[str, Choice] = {}
    for choice in _by_preference(pools, own, low, task, size, serving):
        choices.setdefault(choice.pool, choice)
    for choice in tuple(choices.values()):
        for offer in pools.fallbacks(choice.pool):
            if lesser_too or not offer.best_effort or not careful:
                why = f"instead of {choice.pool}"
                choices.setdefault(offer.name, Choice(offer.name, Rule.FALLBACK, why))
    for offer in serving:  # better than to refuse what is too long for all others
        if not offer.by_task:
            why = "length: no pool serves it"
            choices.setdefault(offer.name, Choice(offer.name, Rule.LENGTH, why))
    return list(choices.values())


def _by_preference(
    pools: Pools, own: Choice, low: str, task: Task | None, size: Size, serving: Sequence[Offer]
) -> Iterator[Choice]:
    most = [*pools.edges, size.tokens][bisect_left(pools.edges, size.tokens)]
    # The shorter of two buckets fits better; of equal ones the pool that is cheaper for the longest
    # of such prompts.
    by_length = sorted(serving, key=lambda one: (one.up_to or _NO_END, one.cost(most)))
    if own.rule is Rule.EXPERT:
        yield own
    if task is not None:
        fit = [offer for offer in by_length if offer.by_task and _serves(offer, task)]
        # Who serves both intent and domain is more of an expert than who serves one.
        for offer in sorted(fit, key=lambda one: not (one.intents and one.domains)):
            yield Choice(offer.name, Rule.TASK, f"task: {task.intent} in {task.domain}")
    if low:
        yield Choice(low, Rule.LOW_RISK)
    if pools[own.pool].has_range and pools[own.pool].spans(size.tokens):
        yield own
    for offer in by_length:
        if not offer.by_task and offer.spans(size.tokens):
            yield Choice(offer.name, Rule.LENGTH, f"length: {size.bucket}")
    yield own


def _serves(offer: Offer, task: Task) -> bool:
    return (not offer.intents or task.intent in offer.intents) and (
        not offer.domains or task.domain in offer.domains
    )


# --- How long it is ------------------------------------------------------------------------------


def room_of(prompt: Prompt) -> int:
    """Return how many tokens the client lets the answer have; 0 where it does not say."""
    value = prompt.parameter(Parameter.MAX_TOKENS)
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return min(max(value, 0), MOST_ROOM)


def counted_texts(prompt: Prompt, *, apart: bool) -> Sequence[str]:
    """Return the texts whose tokens count together; `apart`: each is a prompt of its own."""
    said = prompt.said()
    if apart:
        return [max(said, key=len, default="")]
    tools = prompt.tools()
    return [*said, encode(tools).decode()] if tools else said


def is_near(size: Size, contexts: Iterable[int]) -> bool:
    """Tell whether an estimate might put a prompt into the wrong pool."""
    tokens, room = size
    for context in contexts:
        left = context - room
        if tokens < left * DOUBT and left < tokens * DOUBT:
            return True
    return False


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
