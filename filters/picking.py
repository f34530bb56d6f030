"""Choose the replica of a pool that will start answering soonest.

One `Picker` for each pool. It knows what it sent where, what the replicas say of themselves, and
which beginnings of prompts each should have in its cache; the strategies only weigh that.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from blake3 import blake3

from filters.block_book import BlockBook, Chain
from filters.prefill_cost import Prefill, PrefillCost
from filters.prefix_blocks import (
    BLOCK_TOKENS,
    MOST_NAMED_BYTES,
    TOKEN_BYTES,
    first_blocks,
    names_of,
)
from filters.prefix_index import PrefixIndex
from filters.replica import LATE_S, Ask, Pick, Replica, Signals
from filters.strategies import LeastLoad, Strategy
from filters.warmth import Warmth

EXPLORE_S: Final = 0.02
"""More prefill than that is too much to pay for a look at another replica."""
EXPLORE_WAIT_S: Final = 1.0
"""So is a longer wait: one that reads a long prompt is no place for a look."""
MOST_SHOWN: Final = 3
"""The best replicas of a pick that are kept for its explanation."""
SAID_ROOM: Final = 1.25
"""The book has room for more than a replica holds: what leaves it is said, not guessed."""
LOOK_UP_S: Final = 0.001
"""Where finding out who holds what takes longer, the least loaded replica is picked. Of CPU time:
what passes while others have the CPU, giving up does not bring back."""
PROBE_S: Final = 1.0
"""A replica is left alone for so long after it was late or refused, or failed a probe."""
MOST_REFUSALS: Final = 3
"""A replica that so often in a row says that it cannot serve is avoided: as it says so at once, it
would have less to do than all others, and be asked the more."""
BATCH: Final = 8
"""So many prefills without a pause are learned from as one."""
ANSWER_SHARE: Final = 0.02
"""What share of a replica's work an answer is while it is written: steps are shared by many."""
HEARD_SHARE: Final = 0.002
"""The weight of what a replica says in the average: of eight, some three seconds count."""
MOST_COUNTED_S: Final = 4.0
"""What a prompt counts at the most in how much a replica works: one that takes half a minute says
nothing of what is to come, and its replica would be left idle for minutes after it."""
SENT_SHARE: Final = 0.01
"""The weight of a pick in the average of what picks found and took."""
LEAST_HOPE: Final = 0.02
"""Less is not worth looking for a home."""
HOME_BYTES: Final = 1_024
"""Prompts that begin alike so far have the same home: a system prompt is mostly longer."""
HOME_BLOCKS: Final = HOME_BYTES // TOKEN_BYTES // BLOCK_TOKENS
_LEAST_LOAD: Final = LeastLoad()


def ask_of(
    prompt: bytes,
    seed: str,
    *,
    tokens: int = 0,
    watched: bool = True,
    chain: Chain | None = None,
) -> Ask:
    """Return what `prompt` asks for; `seed` tells apart what shares no cache.

    No more than `MOST_NAMED_BYTES` are looked at; `tokens` says how many it has when these are not
    all of it. `chain` is the same prompt in tokens.
    """
    names = names_of(prompt[:MOST_NAMED_BYTES], seed)
    ends, sizes = first_blocks(len(names))
    place = number_of(seed.encode() + b"\n" + prompt[:HOME_BYTES])
    return Ask(
        names, ends, sizes, tokens or len(prompt) // TOKEN_BYTES, watched, place, chain=chain
    )


def number_of(text: bytes) -> int:
    """Return 64 bits of a hash that is the same in every process, unlike Python's own."""
    return int.from_bytes(blake3(text).digest(8), "little")


class Picker:
    """The replicas of one pool, and the picks among them."""

    def __init__(
        self,
        strategy: Strategy,
        cost: PrefillCost,
        *,
        explore: float = 0.02,
        rng: Callable[[], float] = random.random,
        index: PrefixIndex | None = None,
        learns: bool = True,
        name: str = "",
        probes: bool = True,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        """Make a picker without replicas.

        `explore` is the share of picks that try another replica; `rng` returns numbers from 0 to 1.
        `probes` lets requests find out whether an avoided replica is back; without, somebody else
        has to, and say so by `back`. `stopwatch` tells seconds that it has worked; without,
        it takes as long as it takes.
        """
        self.strategy = strategy
        """May be changed at any time, as its own numbers may."""
        self.cost: Final = cost
        self.index: Final = index or PrefixIndex()
        self.book: BlockBook | None = None
        """What replicas say they hold, where they do; set by `listen`."""
        self.replicas: Final[dict[str, Replica]] = {}
        self.warmth: Final = Warmth()
        self.explore = explore
        self.learns = learns
        self.probes = probes
        self.name = name or type(strategy).__name__
        """What explanations call the strategy."""
        self.failed = 0
        """How often the strategy failed, so that the least loaded replica was picked."""
        self.hurried = 0
        """How often there was no time left for it."""
        self._rng: Final = rng
        self._stopwatch: Final = stopwatch
        self._numbers = 0
        self._picks = 0
        self._ours = self._theirs = 0.0
        """Requests at a replica on the average, from here and from elsewhere."""
        self._prefill_s = 0.0
        """What a prefill takes, on the average."""
        self._held_share = 0.0
        """What part of a prompt was held where it was sent, on the average."""

    def add(self, address: str, room_tokens: int) -> Replica:
        """Take a replica in, which holds so many tokens; one that is there gets so much room."""
        replica = self.replicas.get(address)
        if replica is None:
            number = (~self._numbers & self._numbers + 1).bit_length() - 1  # the least that is free
            self._numbers |= 1 << number
            key = number_of(address.encode())
            replica = self.replicas[address] = Replica(number, address, key)
        self.index.add(replica.number, room_tokens)
        if self.book is not None:
            self.book.add(replica.number, int(room_tokens * SAID_ROOM))
        return replica

    def listen(self, book: BlockBook | None) -> None:
        """Go by what replicas say they hold, as it stands in `book`; by nothing of that with None.

        What was sent where counts as before, and says whose prompt it was. Of a prompt in tokens,
        a replica holds no more than its blocks in the book, and with `Chain.shared` no less.
        """
        self.book = book
        if book is not None:
            for replica in self.replicas.values():
                room = self.index.room(replica.number)
                book.add(replica.number, int(room * SAID_ROOM))

    def remove(self, address: str) -> None:
        """Forget a replica; what is under way there may end later."""
        replica = self.replicas.pop(address, None)
        if replica is not None:
            self._numbers &= ~(1 << replica.number)
            self.warmth.forget(address)
            self.index.remove(replica.number)
            if self.book is not None:
                self.book.remove(replica.number)

    def restarted(self, address: str) -> None:
        """Say that a replica has begun anew: its cache is empty, and it owes nothing."""
        replica = self.replicas.get(address)
        if replica is not None:
            self.cleared(address)
            replica.owed_s = 0.0

    def cleared(self, address: str) -> None:
        """Say that a replica has thrown away what it held."""
        replica = self.replicas.get(address)
        if replica is not None:
            self.index.clear(replica.number)
            if self.book is not None:
                self.book.clear(replica.number)

    def heard(self, address: str, signals: Signals) -> None:
        """Say what a replica says of itself."""
        replica = self.replicas.get(address)
        if replica is not None:
            replica.hear(signals)
            ours, theirs = len(replica.picks), replica.others_waiting + replica.others_running
            self._ours += HEARD_SHARE * (ours - self._ours)
            self._theirs += HEARD_SHARE * (theirs - self._theirs)

    def refused(self, address: str, now_s: float) -> None:
        """Say that a replica took no connection: it is avoided until something starts there."""
        replica = self.replicas.get(address)
        if replica is not None:
            replica.avoided_s = now_s

    def back(self, address: str, now_s: float) -> None:
        """Say that a replica answers again, though nothing of what was picked started there."""
        replica = self.replicas.get(address)
        if replica is not None:
            replica.avoided_s = replica.probe = None
            replica.started_s = now_s
            replica.refusals = 0

    def avoided(self, now_s: float) -> list[Replica]:
        """Return the replicas that do not answer, as far as is known."""
        return [one for one in self.replicas.values() if self._is_avoided(one, now_s)]

    def suspects(self, now_s: float) -> list[Replica]:
        """Return the replicas of which nobody can tell whether they answer, unless they are asked.

        Those with prefill to do are none: they would answer late for that.
        """
        return [
            one
            for one in self.replicas.values()
            if one.avoided_s is None and one.is_suspect(now_s) and not one.owed(now_s)
        ]

    def pick(self, ask: Ask, now_s: float, subset: Collection[str] | None = None) -> Pick:
        """Choose a replica and count on it; raise `LookupError` when there is none in `subset`."""
        every: Sequence[Replica] = (
            list(self.replicas.values())
            if subset is None
            else [one for address, one in self.replicas.items() if address in subset]
        )
        if not every:
            raise LookupError("no replica to pick from")
        if self.warmth.ramps:
            every = self._warm(every, now_s)
        # Most are idle, or something has just started there: they are not looked at any closer.
        avoided = [
            one
            for one in every
            if one.avoided_s is not None
            or (one.unstarted and now_s - one.started_s > LATE_S and self._is_avoided(one, now_s))
        ]
        replicas = every
        probe: Replica | None = None
        if avoided and len(avoided) < len(every):
            replicas = [one for one in every if one.avoided_s is None]
            probe = next((one for one in avoided if self._may_probe(one, now_s)), None)
        if replicas[0].most is not None:  # then all have a bound, as soon as they speak
            replicas = [one for one in replicas if one.has_room(now_s)] or replicas
        began_s = self._stopwatch() if self._stopwatch is not None else 0.0
        held = self._held(ask, replicas)
        self._hope(ask)
        if self._stopwatch is not None and self._stopwatch() - began_s > LOOK_UP_S:
            self.hurried += 1
            weights, name = _LEAST_LOAD.weigh(ask, replicas, held, now_s), "least_load, hurried"
        else:
            weights, name = self._weigh(ask, replicas, held, now_s)
        best = min(weights)
        order = sorted(range(len(replicas)), key=weights.__getitem__)
        ties = weights.count(best)
        if ties > 1:
            at = int(self._rng() * ties)
            order[0], order[at] = order[at], order[0]
        chosen = order[0]
        drawn = self._rng() if self.explore else 1.0
        if drawn < self.explore and drawn < self._exploring(replicas, now_s):
            other = self._other(ask, replicas, held, chosen, now_s)
            if other != chosen:
                chosen, name = other, f"{name}, exploring"
        shown = [(weights[at], held[at], replicas[at]) for at in order[:MOST_SHOWN]]
        if probe is not None:
            pick = self._send(ask, probe, self._held(ask, (probe,))[0], now_s)
            probe.probe, name = pick, f"{name}, probing"
        else:
            pick = self._send(ask, replicas[chosen], held[chosen], now_s)
        pick.best, pick.strategy = shown, name
        return pick

    def moved(self, pick: Pick, address: str, now_s: float) -> Pick:
        """Say that another replica serves a request, since the first one refused it.

        Return the pick that is to be ended in the place of `pick`.
        """
        if address == pick.replica.address:
            return pick
        self.ended(pick, now_s, good=False)
        self.refused(pick.replica.address, now_s)
        replica = self.replicas.get(address)
        if replica is None:
            return pick
        moved = self._send(pick.ask, replica, self._held(pick.ask, (replica,))[0], now_s)
        moved.best, moved.strategy = pick.best, pick.strategy
        return moved

    def started(self, pick: Pick, now_s: float) -> None:
        """Say that the first token came: what was asked there before it is prefilled as well.

        Of a request whose first token nobody watches, say it once anything came.
        """
        if pick.started:
            return
        replica = pick.replica
        replica.started_s = now_s
        replica.avoided_s = replica.probe = None
        replica.refusals = 0
        ahead_s = 0.0
        through: list[Pick] = []
        for other in replica.unstarted.values():
            if other.number <= pick.number:
                other.started, other.started_s = True, now_s
                through.append(other)
            else:
                ahead_s += other.prefill_s
        there = self.book is not None and self.replicas.get(replica.address) is replica
        for other in through:
            del replica.unstarted[other.number]
            if there and self.book is not None and other.ask.chain is not None:
                self._read_after_all(self.book, other, other.ask.chain)
        if not pick.ask.watched:
            ahead_s = min(ahead_s, replica.owed(now_s))
            replica.busy_s = math.nan
        replica.owed_s, replica.owed_at_s = ahead_s, now_s
        if self.learns:
            self._learn(replica, through, now_s)

    def ended(self, pick: Pick, now_s: float, *, good: bool = True, ill: bool = False) -> None:
        """Say that the request is over; `ill`: the replica said that it cannot serve."""
        replica = pick.replica
        if pick.number not in replica.picks:
            return
        self._is_avoided(replica, now_s)  # the last chance to see that this one was late
        del replica.picks[pick.number]
        replica.tokens -= pick.ask.tokens
        replica.moved_s = now_s
        if replica.probe is pick:
            replica.probe, replica.avoided_s = None, now_s
        if ill:
            replica.refusals += 1
            if replica.refusals >= MOST_REFUSALS:
                replica.avoided_s = now_s
        if pick.started:
            replica.add_work(ANSWER_SHARE * (now_s - pick.started_s), now_s)
        else:
            del replica.unstarted[pick.number]
            replica.owed_s = max(0.0, replica.owed(now_s) - pick.prefill_s)
            replica.owed_at_s = now_s
            replica.busy_s = math.nan
        if not good and self.replicas.get(replica.address) is replica:
            kept = sum(1 for end in pick.ask.ends if end <= pick.held)
            self.index.forget(replica.number, pick.ask.names[kept:])
            if self.book is not None and pick.ask.chain is not None:
                held = pick.held * pick.ask.chain.tokens // max(1, pick.ask.tokens)
                self.book.withdraw(replica.number, pick.ask.chain, held)

    def _warm(self, every: Sequence[Replica], now_s: float) -> Sequence[Replica]:
        """Leave out who is not warm yet, as long as somebody else answers."""
        warm: list[Replica] = []
        cold: list[Replica] = []
        for one in every:
            takes = self.warmth.takes(one.address, now_s, len(every), self._rng)
            (warm if takes else cold).append(one)
        if any(not self._is_avoided(one, now_s) for one in warm):
            return warm
        return [one for one in cold if not self._is_avoided(one, now_s)] or every

    def _weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> tuple[list[float], str]:
        """Return weights, and who weighed: whatever a strategy does, there are some."""
        try:
            weights = self.strategy.weigh(ask, replicas, held, now_s)
        except Exception:  # noqa: BLE001 - a strategy must not cost a request its replica
            weights = []
        if len(weights) == len(replicas) and not math.isnan(sum(weights)):
            return weights, self.name
        self.failed += 1
        return _LEAST_LOAD.weigh(ask, replicas, held, now_s), "least_load"

    def _hope(self, ask: Ask) -> None:
        """Reckon what this picker cannot know: what others sent where, who pick by the same rule.

        Gateways before the same replicas do not know of each other's picks. Each would put a
        beginning that it sees for the first time somewhere else, and each replica would prefill
        it; so it has a home that all agree on, which draws it the more, the more requests come
        from elsewhere.
        """
        elsewhere = self._theirs / (self._theirs + self._ours + 0.1)
        hope = elsewhere * self._held_share
        ask.hope = hope if hope > LEAST_HOPE else 0.0
        ask.another_s = self._prefill_s
        if not ask.place and ask.names:  # as good in one process, for who has no text
            ask.place = ask.names[min(HOME_BLOCKS, len(ask.names)) - 1]

    def _held(self, ask: Ask, replicas: Sequence[Replica]) -> list[int]:
        """Return how many tokens of the prompt each replica should hold."""
        found = self.index.match(ask.names, self._numbers)
        tokens = self._by_number([(ask.ends[blocks - 1], owners) for blocks, owners in found])
        if self.book is not None and ask.chain is not None:
            said = self._said(self.book, ask.chain, ask)
            tokens = said if ask.chain.shared else list(map(min, said, tokens))
        return [tokens[replica.number] for replica in replicas]

    def _said(self, book: BlockBook, chain: Chain, ask: Ask) -> list[int]:
        """Return by number how many tokens each replica holds, by what it says.

        Our tokens are guessed from bytes, theirs are true: what agrees are parts of the prompt.
        """
        scale = ask.tokens / max(1, chain.tokens)
        found = book.held(chain, self._numbers)
        return self._by_number([(min(ask.tokens, round(end * scale)), who) for end, who in found])

    def _by_number(self, found: Sequence[tuple[int, int]]) -> list[int]:
        """Return what is found of sets of replicas as a list, 0 for those in none."""
        values = [0] * self._numbers.bit_length()
        for value, owners in found:
            while owners:
                number = owners.bit_length() - 1
                values[number] = value
                owners ^= 1 << number  # noqa: PLW2901 - what is left of them
        return values

    def _exploring(self, replicas: Sequence[Replica], now_s: float) -> float:
        """Return the share of picks that explore, `explore` at most.

        The busier all are, the dearer is a wrong one.
        """
        queued = sum(replica.queue(now_s) for replica in replicas)
        return self.explore / (1 + queued / len(replicas))

    def _other(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], chosen: int, now_s: float
    ) -> int:
        """Return another replica, the less likely the more it has to do.

        One that would have to compute much that the chosen one holds is none of them: the copy
        would also take the place of something else in its cache.
        """
        most_s = self.cost.seconds(held[chosen], ask.tokens) + EXPLORE_S
        most_owed_s = replicas[chosen].owed(now_s) + EXPLORE_WAIT_S
        idle = [
            1 / (1 + replica.queue(now_s))
            if at != chosen
            and self.cost.seconds(held[at], ask.tokens) <= most_s
            and replica.owed(now_s) <= most_owed_s
            else 0.0
            for at, replica in enumerate(replicas)
        ]
        total = sum(idle) + 1 / (1 + replicas[chosen].queue(now_s))
        point = self._rng() * total
        for at, weight in enumerate(idle):
            point -= weight
            if point < 0:
                return at
        return chosen

    def _is_avoided(self, replica: Replica, now_s: float) -> bool:
        if replica.avoided_s is None and replica.unstarted and replica.is_late(now_s):
            replica.avoided_s = now_s
        return replica.avoided_s is not None

    def _may_probe(self, replica: Replica, now_s: float) -> bool:
        """Tell whether a request may go to a replica that is avoided: one at a time."""
        avoided_s = replica.avoided_s
        return (
            self.probes
            and replica.probe is None
            and avoided_s is not None
            and now_s - avoided_s >= PROBE_S
        )

    def _send(self, ask: Ask, replica: Replica, held: int, now_s: float) -> Pick:
        self._picks += 1
        cost = self.cost
        seconds = cost.seconds(held, ask.tokens)
        weight = max(SENT_SHARE, 1 / self._picks)
        self._prefill_s += weight * (seconds - self._prefill_s)
        self._held_share += weight * (held / max(1, ask.tokens) - self._held_share)
        owed = replica.owed(now_s)
        queue = replica.queue(now_s)
        expected_s = owed + seconds + cost.decode_s * queue + cost.base_s
        pick = Pick(self._picks, replica, ask, now_s, held, seconds, expected_s, queue)
        replica.owed_s, replica.owed_at_s = owed + seconds, now_s
        replica.add_work(min(seconds, MOST_COUNTED_S), now_s)
        if not replica.unstarted:
            replica.busy_s = now_s
            replica.done.clear()
        replica.picks[pick.number] = replica.unstarted[pick.number] = pick
        replica.tokens += ask.tokens
        replica.moved_s = now_s
        self.index.record(replica.number, ask.names, ask.sizes)
        if self.book is not None and ask.chain is not None:
            self.book.expect(replica.number, ask.chain)
            pick.losses = self.book.losses(replica.number)
        return pick

    def _read_after_all(self, book: BlockBook, pick: Pick, chain: Chain) -> None:
        """Say that a prompt is there, whatever was thrown away while it waited."""
        number = pick.replica.number
        if book.losses(number) != pick.losses:
            self.index.record(number, pick.ask.names, pick.ask.sizes)
            book.expect(number, chain)

    def _learn(self, replica: Replica, through: Sequence[Pick], now_s: float) -> None:
        """Learn from what was prefilled since the replica was idle, or since it was last learned.

        One by one they would teach nonsense: those of one step are through at the same time.
        """
        done = replica.done
        done += through
        if replica.unstarted and len(done) < BATCH:
            return
        if not replica.others_waiting:
            prefills = [Prefill(one.held, one.ask.tokens, one.queue) for one in done]
            self.cost.learn(prefills, now_s - replica.busy_s)
        done.clear()
        if replica.unstarted and not math.isnan(replica.busy_s):
            replica.busy_s = now_s
