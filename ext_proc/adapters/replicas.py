"""Know the replicas of every pool, what they say, and what was sent there; pick among them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import thread_time
from typing import Final, Protocol

from ext_proc.adapters.kv_settings import READ_S, EventFigures, EventSettings, SaidBlocks
from ext_proc.adapters.membership import Fixed, Follower, Members
from ext_proc.adapters.replica_probe import DEADLINE_S, Prober
from ext_proc.adapters.replica_scrape import PERIOD_S, Scraper
from ext_proc.adapters.replica_signals import Said
from ext_proc.adapters.replica_warm_up import WARM, Warmer, WarmUp
from filters.api import Clock, Prompt
from filters.block_book import Chain
from filters.picking import Picker, ask_of
from filters.prefill_cost import PrefillCost
from filters.replica import Pick, Replica, Signals
from filters.strategies import STRATEGIES, Blend

ROOM_TOKENS: Final = 200_000
"""What a replica is taken to hold until it says so: 24 GB of keys and values of an 8B model."""
PROBING_S: Final = 0.5
"""Between two looks at which replicas are to be probed."""
EXPLORE: Final = 0.02
BY_PREFIX: Final = ("expected", "blend", "affinity")
"""Strategies that look at what replicas hold."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How much replicas may have to do, on the average, before clients are told to ask again."""

    queue: float = 5.0
    """Requests that wait at a replica."""
    kv: float = 0.8
    """The part of its memory for keys and values that is in use."""
    retry_s: float = 1.0
    """When clients are told to."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How the replicas of a pool are found, and how one is picked."""

    members: Members = field(default_factory=lambda: Fixed(()))
    strategy: str = "expected"
    """One of `filters.strategies.STRATEGIES`."""
    prefix: float = 3.0
    """The weights of `blend`."""
    queue: float = 3.0
    kv: float = 2.0
    explore: float = EXPLORE
    """The share of picks that try another replica; where prefixes do not count, none does."""
    full: Bound | None = None
    """When clients are told to ask again; None: never."""
    warm_up: WarmUp | None = None
    """What a replica that has begun is asked before it gets requests; None: nothing."""
    events: EventSettings | None = None
    """Where replicas say what they hold; None: they do not."""
    tokenizer: str = ""
    """The folder with the model's tokenizer; empty: what they say is not understood in full."""


class Log(Protocol):
    """Where it is said that a pool's replicas are not known."""

    def warning(self, event: str, **fields: object) -> object:
        """Write a line."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A pool at one moment, for metrics and explanations."""

    replicas: int
    avoided: int
    under_way: int
    index_bytes: int
    strategy_failures: int
    constants: Mapping[str, float]
    """What was learned of the cost of a prefill."""
    events: EventFigures | None = None
    """What replicas said of their caches, where they do."""
    cold: int = 0
    """How many have begun and do not have their whole share of requests yet."""
    warm_ups: Mapping[str, int] = field(default_factory=dict)
    """How many warm-ups ended how."""
    hurried: int = 0
    """How often there was no time for the strategy, and the least loaded replica was picked."""
    each: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By address: what a replica says of itself if that is recent, and what was sent there."""


class HeldPick:
    """A `Picked` of one picker."""

    __slots__ = ("_clock", "_pick", "_picker")

    def __init__(self, picker: Picker, pick: Pick, clock: Clock) -> None:
        self._picker: Final = picker
        self._pick = pick
        self._clock: Final = clock

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `filters.api.Picked`."""
        return self._pick.addresses

    @property
    def why(self) -> str:
        """See `filters.api.Picked`."""
        return self._pick.why

    @property
    def held(self) -> int:
        """See `filters.api.Picked`."""
        return self._pick.held

    @property
    def expected_s(self) -> float:
        """See `filters.api.Picked`."""
        return self._pick.expected_s

    def served(self, address: str) -> None:
        """See `filters.api.Picked`."""
        self._pick = self._picker.moved(self._pick, address, _seconds(self._clock))

    def started(self) -> None:
        """See `filters.api.Picked`."""
        self._picker.started(self._pick, _seconds(self._clock))

    def ended(self, *, good: bool = True, ill: bool = False) -> None:
        """See `filters.api.Picked`."""
        self._picker.ended(self._pick, _seconds(self._clock), good=good, ill=ill)


@dataclass(slots=True)
class _Pool:
    settings: ReplicaSettings
    picker: Picker
    task: asyncio.Task[None] | None = None
    """Follows who belongs to it."""
    said: SaidBlocks | None = None
    """What its replicas say of their caches."""
    listed: bool = False
    """Who belongs to it was known at some time: who comes then has begun."""
    warm_ups: Counter[str] = field(default_factory=Counter)


class FollowedReplicas:
    """A `filters.api.Replicas`. `follow` needs a running event loop; `close` ends what it began."""

    def __init__(
        self,
        clock: Clock,
        log: Log,
        *,
        period_s: float = PERIOD_S,
        probing_s: float = PROBING_S,
        probe_deadline_s: float = DEADLINE_S,
        read_s: float = READ_S,
        rng: Callable[[], float] = random.random,
    ) -> None:
        """Know no pool yet."""
        self._probing_s: Final = probing_s
        self._read_s: Final = read_s
        self._clock: Final = clock
        self._log: Final = log
        self._rng: Final = rng
        self._pools: Final[dict[str, _Pool]] = {}
        self._scraper: Final = Scraper(self, period_s=period_s, rng=rng)
        self._prober: Final = Prober(deadline_s=probe_deadline_s)
        self._warmer: Final = Warmer(rng=rng)
        self._probing: asyncio.Task[None] | None = None
        self._refusing: Final[set[str]] = set()
        """Addresses where nobody listened when they were last asked."""
        self._began_s: Final[dict[str, float]] = {}
        self._counted: Final[dict[str, float]] = {}
        self._answering: Final[set[str]] = set()
        """Addresses that answered a probe, where a page has yet to say whether they began anew."""

        self.on_said: Callable[[str, str], object] = lambda pool, address: None
        """Told of each replica that spoke or cannot be reached, for each pool that it is in."""

    def follow(self, pools: Mapping[str, ReplicaSettings]) -> None:
        """Follow these pools from now on; what is known of those that stay is kept."""
        for name in self._pools.keys() - pools.keys():
            gone = self._pools.pop(name)
            if gone.task is not None:
                gone.task.cancel()
            self._hear(name, gone, ReplicaSettings())
            self._cool(name, gone)
        for name, settings in pools.items():
            pool = self._pools.get(name)
            if pool is None:
                cost = PrefillCost()
                picker = Picker(
                    STRATEGIES["expected"](cost),
                    cost,
                    rng=self._rng,
                    probes=False,
                    stopwatch=thread_time,
                )
                pool = self._pools[name] = _Pool(settings, picker)
                self._weigh(pool, settings)
                self._hear(name, pool, settings)
                self._follow_members(name, pool, settings.members)
                continue
            before, pool.settings = pool.settings, settings
            if replace(before, members=settings.members) != settings:
                self._weigh(pool, settings)
            if (before.events, before.tokenizer) != (settings.events, settings.tokenizer):
                self._hear(name, pool, settings)
            if settings.warm_up is None:
                self._cool(name, pool)
            if before.members != settings.members:
                self._follow_members(name, pool, settings.members)
        self._ask_all()
        if self._probing is None and self._pools:
            self._probing = asyncio.create_task(self._probe_on())

    async def close(self) -> None:
        """Follow nobody any more."""
        tasks = [pool.task for pool in self._pools.values() if pool.task is not None]
        if self._probing is not None:
            tasks.append(self._probing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in self._pools.values():
            if pool.said is not None:
                pool.said.close()
        self._pools.clear()
        await self._scraper.close()
        await self._prober.close()
        await self._warmer.close()

    def has(self, pool: str) -> bool:
        """See `filters.api.Replicas`."""
        return pool in self._pools

    def reads(self, pool: str) -> bool:
        """See `filters.api.Replicas`."""
        known = self._pools.get(pool)
        if known is None or known.said is None or known.settings.strategy not in BY_PREFIX:
            return False
        return known.said.reads

    async def read(self, pool: str, prompt: Prompt, *, shared: bool) -> Chain | None:
        """See `filters.api.Replicas`."""
        known = self._pools.get(pool)
        if known is None or known.said is None:
            return None
        return await known.said.read(prompt.document.root, prompt.model, shared=shared)

    def pick(
        self,
        pool: str,
        prompt: bytes,
        seed: str,
        *,
        tokens: int = 0,
        watched: bool = True,
        subset: Collection[str] | None = None,
        chain: Chain | None = None,
    ) -> HeldPick | None:
        """See `filters.api.Replicas`."""
        known = self._pools.get(pool)
        if known is None or not known.picker.replicas:
            return None
        if subset is not None:
            subset = _named(known.picker.replicas, subset)
        if self._refusing and self._refusing.issuperset(
            known.picker.replicas if subset is None else subset
        ):
            return None
        ask = ask_of(prompt, seed, tokens=tokens, watched=watched, chain=chain)
        try:
            pick = known.picker.pick(ask, _seconds(self._clock), subset)
        except LookupError:
            return None
        return HeldPick(known.picker, pick, self._clock)

    def full_s(self, pool: str, subset: Collection[str] | None = None) -> float:
        """See `filters.api.Replicas`."""
        known = self._pools.get(pool)
        bound = known.settings.full if known is not None else None
        if known is None or bound is None:
            return 0.0
        replicas = known.picker.replicas
        names = replicas.keys() if subset is None else _named(replicas, subset)
        now_s = _seconds(self._clock)
        asked = [replicas[name] for name in names if name not in self._refusing]
        return bound.retry_s if asked and load(asked, bound, now_s) >= 1 else 0.0

    def gpu_usage(self, pool: str, address: str) -> float | None:
        """See `filters.api.Replicas`."""
        known = self._pools.get(pool)
        if known is None:
            return None
        replicas, now_s = known.picker.replicas, _seconds(self._clock)
        asked = [replicas[address]] if address in replicas else replicas.values()
        told = [said.gpu_usage for one in asked if (said := one.fresh(now_s)) is not None]
        shares = [share for share in told if share is not None]
        return sum(shares) / len(shares) if shares else None

    def replicas_of(self, pool: str) -> Mapping[str, Replica]:
        """Return the replicas of a pool that may be asked, by address."""
        known = self._pools.get(pool)
        if known is None:
            return {}
        there = known.picker.replicas
        return {name: one for name, one in there.items() if name not in self._refusing}

    def figures(self) -> Mapping[str, Figures]:
        """Return how each pool is.

        Called in a thread, while the loop changes what is walked; so it changes nothing itself.
        """
        now_s = _seconds(self._clock)
        return {
            name: _pool_figures(pool, tuple(pool.picker.replicas.values()), now_s)
            for name, pool in tuple(self._pools.items())
        }

    def _now_s(self) -> float:
        return _seconds(self._clock)

    # --- What replicas say ------------------------------------------------------------------------

    def said(self, address: str, said: Said) -> None:
        """See `replica_scrape.Listener`."""
        now_s = _seconds(self._clock)
        signals = Signals(now_s, said.waiting, said.running, said.kv_usage, said.gpu_usage)
        anew = address in self._refusing
        if said.began_s is not None:
            anew |= self._began_s.setdefault(address, said.began_s) != said.began_s
            self._began_s[address] = said.began_s
        if said.counted is not None:  # SGLang and llama.cpp do not say when they began
            anew |= said.counted < self._counted.get(address, 0.0)
            self._counted[address] = said.counted
        answers = anew or (said.whole and address in self._answering)
        if answers:
            self._answering.discard(address)
        for pool in self._pools.values():
            if said.room_tokens is not None and address in pool.picker.replicas:
                room = said.room_tokens
                if pool.said is not None:
                    room = pool.said.room(address, room)
                pool.picker.add(address, room)
        for picker in self._with(address):
            if anew:
                picker.restarted(address)
            if answers:
                picker.back(address, now_s)
            picker.heard(address, signals)
        if anew:
            self._began(address)
        self._refusing.discard(address)
        self._tell(address)

    def refused(self, address: str) -> None:
        """See `replica_scrape.Listener`."""
        self._refusing.add(address)
        self._answering.discard(address)
        now_s = _seconds(self._clock)
        for picker in self._with(address):
            picker.refused(address, now_s)
        self._tell(address)

    def silent(self, address: str, why: str) -> None:
        """See `replica_scrape.Listener`: a page that fails says nothing of the model.

        But of one that took no connection before, that it does so again. And whoever answered a
        probe and does not say whether it is the same process is taken for another one.
        """
        refused, answers = address in self._refusing, address in self._answering
        if refused or answers:
            self._refusing.discard(address)  # whether it answers, a probe finds out
            self._answering.discard(address)
            for picker in self._with(address):
                picker.restarted(address)
            if answers:
                self._back(address)
            self._began(address)

    # --- Who there is -----------------------------------------------------------------------------

    def _weigh(self, pool: _Pool, settings: ReplicaSettings) -> None:
        picker = pool.picker
        strategy = STRATEGIES[settings.strategy](picker.cost)
        if isinstance(strategy, Blend):
            strategy.prefix, strategy.queue, strategy.kv = (
                settings.prefix,
                settings.queue,
                settings.kv,
            )
        picker.strategy, picker.name = strategy, settings.strategy
        picker.explore = settings.explore if settings.strategy in BY_PREFIX else 0.0

    def _follow_members(self, name: str, pool: _Pool, members: Members) -> None:
        if pool.task is not None:
            pool.task.cancel()

        def changed(addresses: Sequence[str]) -> None:
            self._changed(name, pool, addresses)

        def failed(why: str) -> None:
            self._log.warning("replicas_unknown", pool=name, why=why)

        pool.task = asyncio.create_task(Follower(members, changed, failed).run())

    def _hear(self, name: str, pool: _Pool, settings: ReplicaSettings) -> None:
        """Listen to what a pool's replicas say of their caches, as its settings have it."""
        if pool.said is not None:
            pool.said.close()
            pool.said = None
        if settings.events is None:
            return
        from ext_proc.adapters.kv_pool import PoolEvents  # an optional package is in there

        pool.said = PoolEvents(
            name,
            pool.picker,
            settings.events,
            settings.tokenizer,
            self._clock,
            self._log,
            read_s=self._read_s,
        )
        pool.said.follow(pool.picker.replicas)

    def _changed(self, name: str, pool: _Pool, addresses: Sequence[str]) -> None:
        picker = pool.picker
        for address in picker.replicas.keys() - set(addresses):
            picker.remove(address)
            self._warmer.forget(name, address)
        for address in addresses:
            if address not in picker.replicas:
                picker.add(address, ROOM_TOKENS)
                self._warm(name, pool, address, hold=pool.listed)
        pool.listed |= bool(addresses)
        if pool.said is not None:
            pool.said.follow(addresses)
        self._ask_all()

    def _ask_all(self) -> None:
        known = {one for pool in self._pools.values() for one in pool.picker.replicas}
        self._scraper.follow(known)
        self._refusing.intersection_update(known)
        self._answering.intersection_update(known)
        for told in (self._began_s, self._counted):
            for address in told.keys() - known:
                del told[address]

    def _tell(self, address: str) -> None:
        for name, pool in self._pools.items():
            if address in pool.picker.replicas:
                self.on_said(name, address)

    def _with(self, address: str) -> Iterator[Picker]:
        for pool in self._pools.values():
            if address in pool.picker.replicas:
                yield pool.picker

    # --- Replicas that have begun -----------------------------------------------------------------

    def _began(self, address: str) -> None:
        for name, pool in self._pools.items():
            if address in pool.picker.replicas:
                self._warm(name, pool, address, hold=True)

    def _warm(self, name: str, pool: _Pool, address: str, *, hold: bool) -> None:
        """Warm a replica up, and let it have no requests meanwhile if it is to be held.

        One that was there before this gateway is not: it may have been serving others for long.
        """
        how = pool.settings.warm_up
        if how is None:
            return
        slow_start_s, warmth = how.slow_start_s, pool.picker.warmth
        if hold:
            warmth.hold(address)

        def warmed(said: str) -> None:
            if warmth.holds(address):
                warmth.ease(address, _seconds(self._clock), slow_start_s)
            pool.warm_ups["warm" if said == WARM else said.partition(":")[0]] += 1
            if said != WARM:
                self._log.warning("replica_not_warm", pool=name, replica=address, why=said)

        self._warmer.warm(name, address, how, warmed)

    def _cool(self, name: str, pool: _Pool) -> None:
        """Warm no replica of a pool up any more, and hold none."""
        for address in pool.picker.replicas:
            self._warmer.forget(name, address)
            pool.picker.warmth.forget(address)

    # --- Replicas that do not answer --------------------------------------------------------------

    async def _probe_on(self) -> None:
        """Ask replicas that are avoided for a token, so that no client's request has to try."""
        while True:
            await asyncio.sleep(self._probing_s)
            now_s = _seconds(self._clock)
            for pool in list(self._pools.values()):
                for replica in (*pool.picker.avoided(now_s), *pool.picker.suspects(now_s)):
                    if replica.address not in self._refusing:  # the scraper sees when it is back
                        self._prober.probe(replica.address, self._probed)

    def _probed(self, address: str, answered: bool | None) -> None:
        if answered and (address in self._began_s or address in self._counted):
            # It may be another process, which is to be warm first: its page says so in a moment.
            self._answering.add(address)
            self._scraper.look(address)
            return
        if answered:
            self._back(address)
            return
        self._answering.discard(address)
        now_s = _seconds(self._clock)
        for picker in self._with(address):
            if answered is None:
                picker.probes = True  # it cannot be asked but by clients
            else:
                picker.refused(address, now_s)

    def _back(self, address: str) -> None:
        now_s = _seconds(self._clock)
        for picker in self._with(address):
            picker.back(address, now_s)


def _pool_figures(pool: _Pool, replicas: Sequence[Replica], now_s: float) -> Figures:
    picker, said = pool.picker, pool.said
    return Figures(
        len(replicas),
        sum(one.looks_avoided(now_s) for one in replicas),
        sum(len(one.picks) for one in replicas),
        picker.index.size,
        picker.failed,
        picker.cost.constants(),
        None if said is None else said.figures(),
        len(picker.warmth),
        dict(pool.warm_ups),
        picker.hurried,
        {one.address: _figures(one, now_s) for one in replicas},
    )


def _figures(replica: Replica, now_s: float) -> Mapping[str, float]:
    """Return what is known of a replica, by words for a metric's label."""
    found: dict[str, float] = {
        "requests": len(replica.picks),
        "owed_seconds": replica.owed(now_s),
        "avoided": replica.looks_avoided(now_s),
    }
    said = replica.fresh(now_s)
    if said is not None:
        found |= {"waiting": said.waiting, "running": said.running, "memory": said.kv_usage}
        if said.gpu_usage is not None:
            found["gpu"] = said.gpu_usage
    return found


def load(replicas: Collection[Replica], bound: Bound, now_s: float) -> float:
    """Return how near replicas are to a bound on the average, 1 being there.

    Of each, what is scarcer counts: requests that wait, or memory. What was sent since it last
    spoke counts as waiting; of one that does not speak, all that has not begun.
    """
    total = 0.0
    for replica in replicas:
        said = replica.fresh(now_s)
        if said is None:
            total += len(replica.unstarted) / bound.queue
            continue
        unsaid = max(0, len(replica.picks) - said.waiting - said.running)
        total += max((said.waiting + unsaid) / bound.queue, said.kv_usage / bound.kv)
    return total / len(replicas)


def _named(replicas: Collection[str], subset: Collection[str]) -> set[str]:
    """Return the addresses that are in a subset, which may name hosts without a port as well."""
    names = frozenset(subset)
    return {one for one in replicas if one in names or one.rpartition(":")[0] in names}


def _seconds(clock: Clock) -> float:
    return clock.monotonic_ns() / 1e9
