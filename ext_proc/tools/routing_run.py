"""Replay a load over model replicas in virtual time, with the picker that the gateway uses."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from ext_proc.tools.replica_model import BLOCK_TOKENS, BlockCache, Engine, Work
from ext_proc.tools.routing_loads import Load, Session
from ext_proc.tools.routing_oracle import Oracle
from filters.picking import (
    Affinity,
    Ask,
    Blend,
    Expected,
    LeastLoad,
    Pick,
    Picker,
    Random,
    RoundRobin,
    Signals,
    Strategy,
)
from filters.prefill_cost import PrefillCost
from filters.prefix_blocks import block_ends, block_sizes

SCRAPE_S: Final = 0.05
WARM_UP: Final = 0.25
"""The share of requests that are not measured: caches fill."""
EXPLORE: Final = 0.02
"""How often `expected` tries another replica, as the gateway comes with it."""
ORACLE: Final = "oracle"

STRATEGIES: Final[dict[str, Callable[[PrefillCost], Strategy]]] = {
    "expected": Expected,
    "affinity": lambda cost: Affinity(),
    "blend": lambda cost: Blend(),
    "least_load": lambda cost: LeastLoad(),
    "random": lambda cost: Random(),
    "round_robin": lambda cost: RoundRobin(),
}


@dataclass(slots=True)
class Asked:
    """A request, from when it was asked."""

    number: int
    session: Session
    work: Work
    pick: Pick


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a load under a strategy, after the warm-up."""

    load: str
    strategy: str
    replicas: int
    ttft_s: Sequence[float]
    """To the first token, of each request, sorted."""
    hit_rate: float
    """The share of tokens of prompts that needed no prefill."""
    spread: float
    """The work of the replica that had most over the mean, in seconds that went into tokens."""
    busy: float
    """The mean share of the time that went into tokens."""
    virtual_s: float

    def percentile(self, share: float) -> float:
        """Return the time to the first token that this share of requests stays below, in s."""
        return self.ttft_s[min(len(self.ttft_s) - 1, int(share * len(self.ttft_s)))]

    @property
    def mean_s(self) -> float:
        """The mean time to the first token."""
        return sum(self.ttft_s) / len(self.ttft_s)


class Run:
    """One load over replicas and a picker, in virtual time; `go` plays it."""

    def __init__(
        self,
        load: Load,
        strategy: str,
        replicas: int,
        *,
        seed: int = 1,
        at_once: int = 0,
    ) -> None:
        """Make a run in which `at_once` sessions more than usual begin at its very start."""
        self._load: Final = load
        self._name: Final = strategy
        self._sessions = load.sessions(random.Random(seed), replicas)  # noqa: S311 - repeatable
        self._at_once: Final = at_once
        hardware = load.hardware
        self.engines: Final = [Engine(hardware) for _ in range(replicas)]
        self.ends_s: Final = [0.0] * replicas
        """When the plan of each engine is done; 0 when it has none."""
        self._starts_s: Final = [0.0] * replicas
        self._plans: Final = [0] * replicas
        self._oracle: Final = Oracle(self.engines, self.ends_s) if strategy == ORACLE else None
        cost = PrefillCost(hardware.prefill_s, hardware.prefill_doubles)
        self.picker: Final = Picker(
            self._oracle or STRATEGIES[strategy](cost),
            cost,
            explore=EXPLORE if strategy == "expected" else 0.0,
            rng=random.Random(seed + 1).random,  # noqa: S311 - repeatable
        )
        self._replicas: Final = [
            self.picker.add(f"replica-{number}", hardware.cache_tokens)
            for number in range(replicas)
        ]
        self._numbers = count()
        self._events_so_far = count()
        self._events: Final[list[tuple[float, int, Callable[..., None], tuple[Any, ...]]]] = []
        self._asked: Final[dict[int, Asked]] = {}
        """The requests under way, by the `id` of their work."""
        self.answered: Final[dict[int, Asked]] = {}
        """The others, by their number in the order they were asked."""
        self._requests = 0
        """How many are measured, those of the warm-up with them."""
        self._warm_s = 0.0
        """When the warm-up was over, and what each replica had worked by then."""
        self._worked_s = [0.0] * replicas
        self._left = 0
        """How many of them are not answered."""

    def go(self, requests: int) -> Result:
        """Play until the first so many are answered; others go on asking meanwhile."""
        self._requests = self._left = requests
        for _ in range(self._at_once):
            self._at(0.0, self._ask, next(self._sessions)[1])
        self._next_session()
        now_s = 0.0
        while self._left:
            now_s, _, happen, arguments = heapq.heappop(self._events)
            happen(now_s, *arguments)
        measured = [self.answered[number] for number in range(int(requests * WARM_UP), requests)]
        worked = [
            engine.worked_s - before
            for engine, before in zip(self.engines, self._worked_s, strict=True)
        ]
        mean_s = sum(worked) / len(worked)
        return Result(
            self._load.name,
            self._name,
            len(self.engines),
            sorted(one.work.first_s - one.work.arrived_s for one in measured),
            hit_rate(measured),
            max(worked) / mean_s,
            mean_s / (now_s - self._warm_s),
            now_s,
        )

    def _at(self, at_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        # What is to happen at one time happens in the order it was said.
        heapq.heappush(self._events, (at_s, next(self._events_so_far), happen, arguments))

    def _next_session(self) -> None:
        at_s, session = next(self._sessions)
        self._at(at_s, self._begin, session)

    def _begin(self, now_s: float, session: Session) -> None:
        self._next_session()
        self._ask(now_s, session)

    def _ask(self, now_s: float, session: Session) -> None:
        chain, prompt, answer = session.ask()
        work = Work(chain, prompt, answer)
        ends = block_ends(prompt)
        names = [chain[end // BLOCK_TOKENS - 1] for end in ends]
        self._scrape(now_s)
        if self._oracle is not None:
            self._oracle.work = work
        pick = self.picker.pick(Ask(names, ends, block_sizes(prompt), prompt), now_s)
        number = next(self._numbers)
        if number == int(self._requests * WARM_UP):
            self._warm_s, self._worked_s = now_s, [engine.worked_s for engine in self.engines]
        self._asked[id(work)] = Asked(number, session, work, pick)
        at = pick.replica.number
        engine = self.engines[at]
        engine.arrive(work, now_s)
        if not self.ends_s[at]:
            self._plan(at, now_s)
        elif not engine.prefilling:
            self._end_plan_at(at, self._starts_s[at] + engine.cut(now_s - self._starts_s[at]))

    def _scrape(self, now_s: float) -> None:
        for engine, replica in zip(self.engines, self._replicas, strict=True):
            said = replica.signals
            if said is None or now_s - said.at_s >= SCRAPE_S:
                waiting, running = len(engine.waiting), len(engine.running)
                replica.signals = Signals(now_s, waiting, running, engine.cache.usage)

    def _plan(self, at: int, now_s: float) -> None:
        seconds = self.engines[at].begin()
        self._starts_s[at] = now_s
        self._end_plan_at(at, now_s + seconds if seconds else 0.0)

    def _end_plan_at(self, at: int, end_s: float) -> None:
        if end_s == self.ends_s[at]:
            return
        self.ends_s[at] = end_s
        self._plans[at] += 1
        if end_s:
            self._at(end_s, self._step, at, self._plans[at])

    def _step(self, now_s: float, at: int, plan: int) -> None:
        if plan != self._plans[at]:
            return  # it was cut short
        firsts, finished = self.engines[at].end(now_s)
        for work in firsts:
            self.picker.started(self._asked[id(work)].pick, now_s)
        for work in finished:
            self._finish(self._asked.pop(id(work)), now_s)
        self._plan(at, now_s)

    def _finish(self, asked: Asked, now_s: float) -> None:
        self.picker.ended(asked.pick, now_s)
        self.answered[asked.number] = asked
        self._left -= asked.number < self._requests
        if (pause_s := asked.session.pause_s) is not None:
            self._at(now_s + pause_s, self._ask, asked.session)


def hit_rate(asked: Sequence[Asked]) -> float:
    """Return the share of the tokens of prompts that needed no prefill."""
    tokens = sum(one.work.prompt_tokens for one in asked)
    return sum(one.work.cached for one in asked) / tokens if tokens else 0.0


def possible_hit_rate(load: Load, replicas: int, requests: int, *, seed: int = 1) -> float:
    """Return the hit rate of one cache as large as all replicas' together, for the same load.

    Each answer is there a second after its question and 12 ms for each of its tokens.
    """
    sessions = load.sessions(random.Random(seed), replicas)  # noqa: S311 - repeatable
    cache = BlockCache(load.hardware.cache_tokens // BLOCK_TOKENS * replicas)
    at_s, session = next(sessions)
    events = [(at_s, 0, session, True)]
    hits = tokens = 0
    for number in range(1, requests + 1):
        now_s, _, session, begins = heapq.heappop(events)
        if begins:
            at_s, following = next(sessions)
            heapq.heappush(events, (at_s, 2 * number, following, True))
        chain, prompt, answer = session.ask()
        blocks = chain[: prompt // BLOCK_TOKENS]
        held = min(cache.held(blocks), (prompt - 1) // BLOCK_TOKENS)
        if number > requests * WARM_UP:
            hits += held * BLOCK_TOKENS
            tokens += prompt
        cache.reserve(blocks[:held], len(chain) - held)
        cache.name(chain[held:])
        cache.release(chain, 0)
        if (pause_s := session.pause_s) is not None:
            back_s = now_s + 1 + 0.012 * answer + pause_s
            heapq.heappush(events, (back_s, 2 * number + 1, session, False))
    return hits / tokens
