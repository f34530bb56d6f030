"""Replay a load over model replicas in virtual time, with the picker that the gateway uses."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ext_proc.tools.replica_model import BLOCK_TOKENS, BlockCache, Engine, Work
from ext_proc.tools.routing_loads import Load, Session
from filters.picking import (
    Affinity,
    Ask,
    Blend,
    Expected,
    LeastLoad,
    Pick,
    Picker,
    Random,
    Replica,
    RoundRobin,
    Signals,
    Strategy,
)
from filters.prefill_cost import PrefillCost
from filters.prefix_blocks import block_ends, block_sizes

SCRAPE_S: Final = 0.05
WARM_UP: Final = 0.25
"""The share of requests that are not measured: caches fill."""


@dataclass(slots=True)
class Asked:
    """A request on its way."""

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
    possible: float
    """That of one cache as large as all of them together."""
    spread: float
    """The busiest replica's time at work over the mean."""
    virtual_s: float

    def percentile(self, share: float) -> float:
        """Return the time to the first token that this share of requests stays below, in s."""
        return self.ttft_s[min(len(self.ttft_s) - 1, int(share * len(self.ttft_s)))]

    @property
    def mean_s(self) -> float:
        """The mean time to the first token."""
        return sum(self.ttft_s) / len(self.ttft_s)


class Oracle:
    """Expects as `Expected` does, but from what the replicas really hold and have to do."""

    def __init__(self, run: Run, own_weight: float = 1.5) -> None:
        self._run: Final = run
        self._own_weight: Final = own_weight

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        return [self._weight(at, now_s) for at in range(len(replicas))]

    def _weight(self, at: int, now_s: float) -> float:
        engine, work = self._run.engines[at], self._run.asking
        assert work is not None  # set before each pick
        hardware = engine.hardware
        owed_s = max(0.0, self._run.ends_s[at] - now_s)
        for one in engine.running:
            owed_s += hardware.prefill(one.computed, one.prompt_tokens - one.computed)
        for one in engine.waiting:
            there = engine.cache.held(one.prompt_blocks) * BLOCK_TOKENS
            owed_s += hardware.prefill(there, one.prompt_tokens - there)
        there = engine.cache.held(work.prompt_blocks) * BLOCK_TOKENS
        own_s = hardware.prefill(there, work.prompt_tokens - there)
        steps = 1 + (owed_s + own_s) / hardware.prefill_s / hardware.step_tokens
        return owed_s + self._own_weight * own_s + steps * hardware.decode_s * len(engine.running)


class Run:
    """One load over replicas and a picker, in virtual time; `go` plays it."""

    def __init__(self, load: Load, strategy: str, replicas: int, *, seed: int = 1) -> None:
        self._load: Final = load
        self._name: Final = strategy
        self._sessions: Final = load.sessions(random.Random(seed), replicas)  # noqa: S311 - repeatable
        hardware = load.hardware
        self.engines: Final = [Engine(hardware) for _ in range(replicas)]
        self.ends_s: Final = [0.0] * replicas
        """When the plan of each engine is done; 0 when it has none."""
        self.asking: Work | None = None
        """The request that is being picked for."""
        self._starts_s: Final = [0.0] * replicas
        self._plans: Final = [0] * replicas
        cost = PrefillCost(hardware.prefill_s, hardware.prefill_doubles)
        explore = 0.02 if strategy == "expected" else 0.0
        chance = random.Random(seed + 1).random  # noqa: S311 - as above
        self.picker: Final = Picker(self._strategy(cost), cost, explore=explore, rng=chance)
        self._replicas: Final = [
            self.picker.add(f"replica-{number}", hardware.cache_tokens)
            for number in range(replicas)
        ]
        self._asked: Final[dict[int, Asked]] = {}
        self._events: Final[list[tuple[float, int, Callable[..., None], tuple[Any, ...]]]] = []
        self._event = 0
        self._done: Final[list[Asked]] = []

    def go(self, requests: int, possible: float) -> Result:
        """Play until so many requests are answered."""
        self._next_session()
        now_s = 0.0
        while len(self._done) < requests:
            now_s, _, happen, arguments = heapq.heappop(self._events)
            happen(now_s, *arguments)
        measured = self._done[int(requests * WARM_UP) :]
        busy = [engine.busy_s for engine in self.engines]
        return Result(
            self._load.name,
            self._name,
            len(self.engines),
            sorted(one.work.first_s - one.work.arrived_s for one in measured),
            sum(one.work.cached for one in measured)
            / sum(one.work.prompt_tokens for one in measured),
            possible,
            max(busy) / (sum(busy) / len(busy)),
            now_s,
        )

    def _strategy(self, cost: PrefillCost) -> Strategy:
        return STRATEGIES[self._name](self, cost)

    def _at(self, at_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        self._event += 1  # what is to happen at one time happens in the order it was said
        heapq.heappush(self._events, (at_s, self._event, happen, arguments))

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
        self.asking = work
        pick = self.picker.pick(Ask(names, ends, block_sizes(prompt), prompt), now_s)
        at = pick.replica.number
        self._asked[id(work)] = Asked(session, work, pick)
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
            asked = self._asked.pop(id(work))
            self.picker.ended(asked.pick, now_s)
            self._done.append(asked)
            if (pause_s := asked.session.pause_s) is not None:
                self._at(now_s + pause_s, self._ask, asked.session)
        self._plan(at, now_s)


STRATEGIES: Final[dict[str, Callable[[Run, PrefillCost], Strategy]]] = {
    "expected": lambda run, cost: Expected(cost),
    "affinity": lambda run, cost: Affinity(),
    "blend": lambda run, cost: Blend(),
    "least_load": lambda run, cost: LeastLoad(),
    "random": lambda run, cost: Random(),
    "round_robin": lambda run, cost: RoundRobin(),
    "oracle": lambda run, cost: Oracle(run),
}


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
