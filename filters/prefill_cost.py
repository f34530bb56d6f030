"""What a prompt costs a replica before the first token of its answer, learned from what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FIRST_STEP: Final = 0.7
"""What share of an error (as a logarithm) the first observation corrects."""
LAST_STEP: Final = 0.02
"""What share one of many corrects: some hundred of the same kind unlearn what came before."""
SLOWER_AFTER: Final = 100.0
"""So many observations halve the step."""
MOST_ERROR: Final = 1.0
"""A greater error, as a logarithm, counts for so much: one replica that hung is one vote."""
TOKEN_S: Final = (1e-6, 0.1)
DOUBLES: Final = (512.0, 1e8)
DECODE_S: Final = (1e-7, 0.1)
BASE_S: Final = (1e-5, 2.0)
"""Between what a constant stays, whatever is seen."""


class Prefill(NamedTuple):
    """A prompt that a replica prefilled."""

    held: int
    """Tokens of it that were there already."""
    tokens: int
    queue: int
    """Requests at the replica when it came."""


@dataclass(slots=True)
class PrefillCost:
    """Seconds of prefill, and of what goes on beside it, for the replicas of one pool."""

    token_s: float = 1 / 10_000
    """A token at the beginning of a prompt."""
    doubles: float = 32_768.0
    """At this position a token costs twice as much."""
    decode_s: float = 0.000_5
    """What each answer being written adds to the wait of a prompt."""
    base_s: float = 0.01
    """What any prompt waits for its first token: the way there, and a step of the model."""
    typical_s: float = 0.0
    """What prefills were expected to take of late, on the average."""
    seen: int = 0
    """How many times it learned."""

    def seconds(self, held: int, tokens: int) -> float:
        """Return the seconds that the prompt's tokens from `held` on take."""
        left = tokens - held
        return self.token_s * left * (1 + (held + left / 2) / self.doubles)

    def learn(self, prefills: Sequence[Prefill], took_s: float) -> None:
        """Learn that a replica took so long for `prefills`, one behind the other.

        Each constant is corrected by its share of the expectation, which is that of all of them:
        constants stay above zero, and what had no part in it learns nothing. An error counts by
        its logarithm, and a great one no more than `MOST_ERROR`, so that the middle of what is
        seen decides, not its mean.
        """
        linear_s = square_s = decode_s = 0.0
        for held, tokens, queue in prefills:
            left = tokens - held
            linear_s += self.token_s * left
            square_s += self.token_s * left * (held + left / 2) / self.doubles
            decode_s += self.decode_s * queue
        base_s = self.base_s  # a batch has it in common
        expected_s = linear_s + square_s + decode_s + base_s
        if not (math.isfinite(took_s) and took_s > 0 and expected_s > 0):
            return
        error = max(-MOST_ERROR, min(MOST_ERROR, math.log(took_s / expected_s)))
        step = max(LAST_STEP, FIRST_STEP / (1 + self.seen / SLOWER_AFTER))
        self.seen += 1
        self.typical_s += max(LAST_STEP, 1 / self.seen) * (expected_s - self.typical_s)
        # What is wrong by much in seconds matters, and many short ones must not outvote a long one:
        # of a short one it is often not known how much of it the replica holds.
        step *= min(1.0, expected_s / self.typical_s) ** 2
        change = step * error / expected_s

        token_s = self.token_s * math.exp(change * linear_s)
        square = self.token_s / self.doubles * math.exp(change * square_s)
        self.token_s = _within(token_s, TOKEN_S)
        self.doubles = _within(self.token_s / square, DOUBLES)
        self.decode_s = _within(self.decode_s * math.exp(change * decode_s), DECODE_S)
        self.base_s = _within(base_s * math.exp(change * base_s), BASE_S)

    def constants(self) -> Mapping[str, float]:
        """Return what was learned, for metrics and explanations."""
        return {
            "token_s": self.token_s,
            "doubles": self.doubles,
            "decode_s": self.decode_s,
            "base_s": self.base_s,
        }


def _within(value: float, bounds: tuple[float, float]) -> float:
    least, most = bounds
    return max(least, min(most, value))
