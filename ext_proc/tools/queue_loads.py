"""Loads for the queues: who sends short prompts and long ones, of which tenant and class.

A load is some streams of requests. The same stream asks the same at the same times in every load
that it is part of, for the same seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from ext_proc.tools.replica_model import Hardware
from ext_proc.tools.routing_loads import Load, Session, Sessions, Tokens, Turn
from filters.queue_order import Priority

HARDWARE: Final = Hardware(cache_tokens=524_288)
"""Room for some long prompts."""
SHORT_RATE: Final = 1.9
"""Short requests a second at each replica: with nothing else it works half of its time."""
LONG_SHARE: Final = 0.05
"""Of all requests that come when both do."""
LONG_TOKENS: Final = 100_000
FLOOD: Final = "flood"
USUAL: Final = {Priority.URGENT: 1, Priority.HIGH: 2, Priority.NORMAL: 5, Priority.LOW: 2}


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind, that come by chance."""

    name: str
    rate: float
    """How many a second come for each replica of the pool."""
    prompts: tuple[int, int]
    """The least and the most tokens of a prompt."""
    answers: tuple[int, int]
    tenants: int = 8
    classes: Mapping[Priority, float] | None = None
    """How many are of each class; without, all are `normal`."""


@dataclass(slots=True)
class Caller(Session):
    """One request, and whose it is."""

    stream: str = ""
    tenant: str = ""
    priority: Priority = Priority.NORMAL


SHORT: Final = Stream("short", SHORT_RATE, (200, 4_000), (50, 250), classes=USUAL)
LONG: Final = Stream(
    "long",
    SHORT_RATE * LONG_SHARE / (1 - LONG_SHARE),
    (LONG_TOKENS, LONG_TOKENS),
    (100, 300),
    classes=USUAL,
)
CROWD: Final = replace(SHORT, name="crowd", rate=2.5 * SHORT_RATE)
EQUAL: Final = replace(SHORT, classes=None)
FEW: Final = 0.5 / SHORT_RATE
"""So many times both: the pool can read all of it in four fifths of its time."""
FEW_SHORT: Final = replace(SHORT, rate=FEW * SHORT.rate)
FEW_LONG: Final = replace(LONG, rate=FEW * LONG.rate)
FLOODING: Final = replace(EQUAL, name=FLOOD, rate=2 * SHORT_RATE, tenants=1)


def load_of(name: str, about: str, *streams: Stream) -> Load:
    """Return a load of streams; the numbers of its sessions are those of no other stream."""

    def sessions(rng: random.Random, replicas: int) -> Sessions:
        seed = rng.random()
        return heapq.merge(
            *(_callers(stream, f"{seed} {stream.name}", replicas) for stream in streams),
            key=lambda one: one[0],
        )

    return Load(name, about, sessions, HARDWARE)


def _callers(stream: Stream, seed: str, replicas: int) -> Sessions:
    rng = random.Random(seed)  # noqa: S311 - repeatable
    classes: Mapping[Priority, float] = stream.classes or {Priority.NORMAL: 1}
    priorities: Sequence[Priority] = list(classes)
    weights = list(classes.values())
    at_s = 0.0
    for number in count():
        at_s += rng.expovariate(stream.rate * replicas)
        said = Tokens().add((stream.name, number), rng.randint(*stream.prompts))
        yield (
            at_s,
            Caller(
                number,
                said,
                [Turn(0, rng.randint(*stream.answers))],
                stream=stream.name,
                tenant=f"{stream.name} {rng.randrange(stream.tenants)}",
                priority=rng.choices(priorities, weights)[0],
            ),
        )


SHORT_ALONE: Final = "short"
LONG_ALONE: Final = "long"
MIXED: Final = "mixed"
CALM: Final = "calm"
ROOMY: Final = "roomy"
CROWDED: Final = "crowded"
FLOODED: Final = "flooded"
LOADS: Final = {
    load.name: load
    for load in (
        load_of(SHORT_ALONE, "prompts of 200 to 4,000 tokens, that use half of the pool", SHORT),
        load_of(LONG_ALONE, "prompts of 100,000 tokens, more than the pool can take", LONG),
        load_of(MIXED, "both: 95 % short and 5 % long ones", SHORT, LONG),
        load_of(CALM, "few short ones, that use an eighth of the pool", FEW_SHORT),
        load_of(ROOMY, "both, so few that long ones fit in beside", FEW_SHORT, FEW_LONG),
        load_of(CROWDED, "as `mixed`, and short ones of more than the pool can take", CROWD, LONG),
        load_of(FLOODED, "short ones, and one tenant that sends twice as many", EQUAL, FLOODING),
    )
}
