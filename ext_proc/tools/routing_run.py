"""Replay a load over model replicas in virtual time, with the picker that the gateway uses."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from ext_proc.tools.replica_model import BLOCK_TOKENS, Engine, Work
from ext_proc.tools.routing_loads import Load, Session
from ext_proc.tools.routing_oracle import Oracle
from filters.picking import Picker
from filters.prefill_cost import PrefillCost
from filters.prefix_blocks import block_ends, block_sizes
from filters.replica import Ask, Pick, Signals
from filters.strategies import STRATEGIES

SCRAPE_S: Final = 0.05
WARM_UP: Final = 0.25
"""The share of requests that are not measured: caches fill."""
EXPLORE: Final = 0.02
"""How often `expected` tries another replica, as the gateway comes with it."""
ORACLE: Final = "oracle"

SLOWER: Final = 3.0
"""The picker begins with the constants of a machine so many times slower, and has to learn."""


@dataclass(slots=True)
class Asked:
    """A request, from when it was asked."""

    number: int
    session: Session
    work: Work
    asked_s: float
    pick: Pick
    at: int
    """The number of the replica where it is: not that of the pick once it was tried elsewhere."""

    @property
    def ttft_s(self) -> float:
        """What it waited for its first token, all in all."""
        return self.work.first_s - self.asked_s


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
        return percentile(self.ttft_s, share)

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
        self._name = strategy
        self._sessions = load.sessions(random.Random(seed), replicas)  # noqa: S311 - repeatable
        self._at_once: Final = at_once
        hardware = load.hardware
        self.engines: Final = [Engine(hardware) for _ in range(replicas)]
        self.ends_s: Final = [0.0] * replicas
        """When the plan of each engine is done; 0 when it has none."""
        self._starts_s: Final = [0.0] * replicas
        self._plans: Final = [0] * replicas
        self._oracle: Final = Oracle(self.engines, self.ends_s) if strategy == ORACLE else None
        cost = PrefillCost(hardware.prefill_s * SLOWER, hardware.prefill_doubles / SLOWER)
        self.picker = Picker(
            STRATEGIES[strategy](cost) if self._oracle is None else self._oracle,
            cost,
            explore=EXPLORE if strategy == "expected" else 0.0,
            rng=random.Random(seed + 1).random,  # noqa: S311 - repeatable
        )
        self._addresses: Final = [f"replica-{number}" for number in range(replicas)]
        for address in self._addresses:
            self.picker.add(address, hardware.cache_tokens)
        self._scraped_s: Final = [-SCRAPE_S] * replicas
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
        self._begin_all()
        now_s = 0.0
        while self._left:
            now_s = self._happen()
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
            sorted(one.ttft_s for one in measured),
            hit_rate(measured),
            max(worked) / mean_s,
            mean_s / (now_s - self._warm_s),
            now_s,
        )

    def _at(self, at_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        # What is to happen at one time happens in the order it was said.
        heapq.heappush(self._events, (at_s, next(self._events_so_far), happen, arguments))

    def until(self, end_s: float) -> None:
        """Play until so many seconds have passed."""
        self._begin_all()
        while self._events[0][0] < end_s:
            self._happen()

    def _begin_all(self) -> None:
        for _ in range(self._at_once):
            self._at(0.0, self._ask, next(self._sessions)[1])
        self._next_session()

    def _happen(self) -> float:
        """Let the next thing happen; return when it does."""
        now_s, _, happen, arguments = heapq.heappop(self._events)
        happen(now_s, *arguments)
        return now_s

    def _next_session(self) -> None:
        at_s, session = next(self._sessions)
        self._at(at_s, self._begin, session)

    def _begin(self, now_s: float, session: Session) -> None:
        self._next_session()
        self._ask(now_s, session)

    def _ask(self, now_s: float, session: Session) -> None:
        chain, prompt, answer = session.ask()
        work = Work(chain, prompt, answer)
        number = next(self._numbers)
        if number == int(self._requests * WARM_UP):
            self._warm_s, self._worked_s = now_s, [engine.worked_s for engine in self.engines]
        self._send(now_s, number, session, work, now_s)

    def _send(
        self, now_s: float, number: int, session: Session, work: Work, asked_s: float
    ) -> Asked:
        """Pick a replica for a request that came at `asked_s`, and have it go there."""
        for at in range(len(self.engines)):
            self._scrape(now_s, at)
        if self._oracle is not None:
            self._oracle.work = work
        pick = self.picker.pick(self._wish(work.chain, work.prompt_tokens), now_s)
        asked = Asked(number, session, work, asked_s, pick, pick.replica.number)
        self._asked[id(work)] = asked
        self._arrive(now_s, asked)
        return asked

    def _wish(self, chain: Sequence[int], prompt: int) -> Ask:
        """Return what the picker is shown of a prompt of so many tokens."""
        ends = block_ends(prompt)
        names = [chain[end // BLOCK_TOKENS - 1] for end in ends]
        return Ask(names, ends, block_sizes(prompt), prompt)

    def _arrive(self, now_s: float, asked: Asked) -> None:
        """Take a request in where it was sent."""
        at, engine = asked.at, self.engines[asked.at]
        engine.arrive(asked.work, now_s)
        if not self.ends_s[at]:
            self._plan(at, now_s)
        elif not engine.prefilling:
            self._end_plan_at(at, self._starts_s[at] + engine.cut(now_s - self._starts_s[at]))

    def _scrape(self, now_s: float, at: int) -> None:
        """Read what a replica says of itself, if it is time to."""
        if now_s >= self._scraped_s[at] + SCRAPE_S:
            self._scraped_s[at] = now_s
            self.picker.heard(self._addresses[at], self._signals(now_s, at))

    def _signals(self, now_s: float, at: int) -> Signals:
        engine = self.engines[at]
        return Signals(now_s, len(engine.waiting), len(engine.running), engine.cache.usage)

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
            self._started(now_s, self._asked[id(work)])
        for work in finished:
            self._finish(now_s, self._asked.pop(id(work)))
        self._plan(at, now_s)

    def _stop(self, at: int) -> None:
        """Leave a replica's plan undone."""
        self.ends_s[at] = 0.0
        self._plans[at] += 1

    def _started(self, now_s: float, asked: Asked) -> None:
        self.picker.started(asked.pick, now_s)

    def _finish(self, now_s: float, asked: Asked) -> None:
        self.picker.ended(asked.pick, now_s)
        self.answered[asked.number] = asked
        self._left -= asked.number < self._requests
        if (pause_s := asked.session.pause_s) is not None:
            self._at(now_s + pause_s, self._ask, asked.session)


def percentile(ascending: Sequence[float], share: float) -> float:
    """Return the value that this share of values stays below; 0 when there are none."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


def hit_rate(asked: Sequence[Asked]) -> float:
    """Return the share of the tokens of prompts that needed no prefill."""
    tokens = sum(one.work.prompt_tokens for one in asked)
    return sum(one.work.cached for one in asked) / tokens if tokens else 0.0
