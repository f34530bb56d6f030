"""Measure what a pick takes of the CPU, on the picker that the gateway uses."""

from __future__ import annotations

import random
import statistics
import time
from typing import Final, NamedTuple

from filters.picking import Picker, ask_of
from filters.prefill_cost import PrefillCost
from filters.prefix_blocks import TOKEN_BYTES
from filters.replica import Signals
from filters.strategies import STRATEGIES

CASES: Final = ((8, 2_000, 60.0), (64, 100_000, 400.0))
"""Replicas, tokens of the prompt, and the most microseconds that are promised."""
ROUNDS: Final = 51
PICKS: Final = 20  # of a round: together they are long enough for the clock
EXPLORE: Final = 0.02
ROOM: Final = 500_000  # tokens of each replica's cache
FAMILIES: Final = 6


class Cost(NamedTuple):
    """What a pick takes: to name the prompt's blocks, look them up, weigh, choose and note why."""

    replicas: int
    tokens: int
    us: float
    """Microseconds of CPU, the median of the rounds."""
    bound_us: float


def cost_of(strategy: str, replicas: int, tokens: int, bound_us: float) -> Cost:
    """Measure prompts that begin like others, of which every replica holds some."""
    rng = random.Random(1)  # noqa: S311 - repeatable
    costs = PrefillCost()
    picker = Picker(STRATEGIES[strategy](costs), costs, explore=EXPLORE)
    addresses = [f"10.0.{one}.1:8000" for one in range(replicas)]
    for address in addresses:
        picker.add(address, ROOM)
    families = [rng.randbytes(tokens * TOKEN_BYTES // 2).hex().encode() for _ in range(FAMILIES)]
    now_s = 0.0
    for number in range(3 * replicas):
        text = rng.choice(families)
        begun = text[: rng.randint(len(text) // 2, len(text))]
        address = addresses[number % replicas]
        pick = picker.pick(ask_of(begun, "m"), now_s, {address})
        picker.started(pick, now_s)
        picker.ended(pick, now_s)
        picker.heard(address, Signals(now_s, number % 3, number % 7, 0.3))
    taken: list[float] = []
    for _ in range(ROUNDS):
        prompts = [_like(rng, rng.choice(families)) for _ in range(PICKS)]
        picks = []
        started_ns = time.thread_time_ns()
        for prompt in prompts:
            pick = picker.pick(ask_of(prompt, "m"), now_s)
            _ = pick.why
            picks.append(pick)
        taken.append((time.thread_time_ns() - started_ns) / PICKS / 1e3)
        for pick in picks:
            now_s += 0.01
            picker.started(pick, now_s)
            picker.ended(pick, now_s)
    return Cost(replicas, tokens, statistics.median(taken), bound_us)


def _like(rng: random.Random, text: bytes) -> bytes:
    """Return a prompt that is like another one up to somewhere in its second half."""
    at = rng.randint(len(text) // 2, len(text))
    return text[:at] + rng.randbytes((len(text) - at) // 2).hex().encode()
