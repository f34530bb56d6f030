"""What a load leaves possible: how much can be hits, and how evenly its work can be spread.

Both come from one cache as large as all replicas' together, in which nothing is ever computed
twice. No picker is held to know what these know; they say what part of a miss is the load's.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ext_proc.tools.replica_model import BLOCK_TOKENS, BlockCache
from ext_proc.tools.routing_loads import Load
from ext_proc.tools.routing_run import WARM_UP
from filters.replica import RECENT_S

BEFORE_S: Final = 1.0
TOKEN_S: Final = 0.012
"""Each answer is there a second after its question and so long for each of its tokens."""


class Done(NamedTuple):
    """A request, were nothing computed twice."""

    at_s: float
    session: int
    prompt: int
    hits: int
    """What of it was held."""
    work_s: float
    """What the rest and the answer take a replica."""


@dataclass(frozen=True, slots=True)
class Possible:
    """What a load leaves possible, after the warm-up."""

    load: str
    replicas: int
    hit_rate: float
    even: float = 1.0
    """Most work of a replica over the mean, of who puts each session where least was done of late
    and does nothing else: it knows what a session will take as little as anybody."""
    foreseen: float = 1.0
    """The same where all sessions are known beforehand, and each stays on one replica."""


def possible(load: Load, replicas: int, requests: int, *, seed: int = 1) -> Possible:
    """Return what is possible of so many requests."""
    every = list(_done(load, replicas, requests, seed))
    warm = int(requests * WARM_UP)
    measured = every[warm:]
    return Possible(
        load.name,
        replicas,
        sum(one.hits for one in measured) / sum(one.prompt for one in measured),
        evenly(every, warm, replicas),
        foreseen(measured, replicas),
    )


def evenly(every: Sequence[Done], warm: int, replicas: int) -> float:
    """Return the spread, but for the first so many requests, when nothing but work is looked at.

    Work fades as it does for the picker; nothing is learned of a session before it is asked.
    """
    recent, total = [0.0] * replicas, [0.0] * replicas
    homes: dict[int, int] = {}
    last_s = 0.0
    for number, one in enumerate(every):
        fade, last_s = math.exp((last_s - one.at_s) / RECENT_S), one.at_s
        recent = [work_s * fade for work_s in recent]
        home = homes.get(one.session)
        if home is None:
            home = homes[one.session] = recent.index(min(recent))
        recent[home] += one.work_s
        if number >= warm:
            total[home] += one.work_s
    return _spread(total)


def foreseen(measured: Sequence[Done], replicas: int) -> float:
    """Return the spread when the sessions with most work are placed first: close to the best."""
    sessions: dict[int, float] = {}
    for one in measured:
        sessions[one.session] = sessions.get(one.session, 0.0) + one.work_s
    total = [0.0] * replicas
    for work_s in sorted(sessions.values(), reverse=True):
        heapq.heapreplace(total, total[0] + work_s)
    return _spread(total)


def _spread(work_s: Sequence[float]) -> float:
    mean_s = sum(work_s) / len(work_s)
    return max(work_s) / mean_s if mean_s else 1.0


def _done(load: Load, replicas: int, requests: int, seed: int) -> Iterator[Done]:
    hardware = load.hardware
    sessions = load.sessions(random.Random(seed), replicas)  # noqa: S311 - repeatable
    cache = BlockCache(hardware.cache_tokens // BLOCK_TOKENS * replicas)
    at_s, session = next(sessions)
    events = [(at_s, 0, session, True)]
    for number in range(1, requests + 1):
        now_s, _, session, begins = heapq.heappop(events)
        if begins:
            at_s, following = next(sessions)
            heapq.heappush(events, (at_s, 2 * number, following, True))
        chain, prompt, answer = session.ask()
        blocks = chain[: prompt // BLOCK_TOKENS]
        held = min(cache.held(blocks), (prompt - 1) // BLOCK_TOKENS)
        hits = held * BLOCK_TOKENS
        written_s = answer * (hardware.decode_s + prompt * hardware.context_s)
        work_s = hardware.prefill(hits, prompt - hits) + written_s
        yield Done(now_s, session.number, prompt, hits, work_s)
        cache.reserve(blocks[:held], len(chain) - held)
        cache.name(chain[held:])
        cache.release(chain, 0)
        if (pause_s := session.pause_s) is not None:
            back_s = now_s + BEFORE_S + TOKEN_S * answer + pause_s
            heapq.heappush(events, (back_s, 2 * number + 1, session, False))
