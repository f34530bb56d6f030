"""Say how many tokens texts are: about, from samples where they are long, or exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from filters.api import Tokens

MOST_WHOLE_CHARS: Final = 65_536  # 0.2 ms in English, 0.5 ms in Chinese
SAMPLES: Final = 64  # within 10 % of the whole on prompts mixed of prose and code, 1 % on average
SAMPLE_CHARS: Final = 1_024
MOST_INLINE_CHARS: Final = 4_096  # 1 ms; to have it done elsewhere takes 0.3 ms
COUNT_S: Final = 0.1  # half of what a proxy waits for unasked; the longest text takes 15 ms


def about_tokens(texts: Sequence[str], estimate: Callable[[str], int]) -> int:
    """Return about how many tokens `texts` are in all, for what 65,536 characters cost at most."""
    chars = sum(map(len, texts))
    if chars <= MOST_WHOLE_CHARS:
        return estimate(" ".join(texts))  # to ask for each apart costs 2 us more for two
    whole = "".join(texts)
    step = (chars - SAMPLE_CHARS) / (SAMPLES - 1)
    starts = (round(step * index) for index in range(SAMPLES))
    samples = "".join(whole[start : start + SAMPLE_CHARS] for start in starts)
    return round(estimate(samples) * chars / len(samples))


def exact_tokens(texts: Sequence[str], count: Callable[[str], int]) -> int:
    """Return how many tokens `texts` are in all as `count` has it: more, from its own samples."""
    if sum(map(len, texts)) <= MOST_WHOLE_CHARS:
        return sum(map(count, texts))
    return count("\n".join(texts))


async def tokens_of(
    texts: Sequence[str], model: str, tokens: Tokens, *, deadline_s: float = COUNT_S
) -> int:
    """Return how many tokens `texts` are in all; others are served while long ones are counted.

    What is late, or finds too many before it, is estimated.
    """
    if sum(map(len, texts)) <= MOST_INLINE_CHARS:
        return exact_tokens(texts, partial(tokens.count, model=model))
    return await tokens.count_apart(texts, model, deadline_s=deadline_s)
