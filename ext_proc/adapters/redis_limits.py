"""Let only so many exchanges into a pool, counted over all gateways that share a Redis.

A place in a pool is a lease that ends by itself after `LEASE_MS`: an entry in the sorted set
`forebay:leases:{POOL}`, by the time at which it ends, as the server's clock has it. As long as its
exchange lives, its gateway renews it, all of its leases together; a gateway that dies frees what
it held. The token bucket is one number beside it (`forebay:bucket:{POOL}`: when it would be full
again), and `forebay:gateways:{POOL}` has who is there to share. All of a pool lies in one slot of a
cluster. Without Redis each gateway goes by its share of the limits.

Commands go by several connections, and those of one may overtake those of another. So a renewal
takes no lease that is not there: it may have been given back. And what a cancelled `take` may yet
take is given back after that.

To look, count and take must be one step: a batch of commands would have to take first and then give
back what was too much, and meanwhile refuse others for it. So it is a script.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from ext_proc.adapters.limits import Gate, HeldLease, LocalLimits, PoolLimits, Refusal
from ext_proc.adapters.redis_client import name_of
from ext_proc.adapters.redis_lane import Command
from filters.api import UNLIMITED, Clock, Lease
from filters.errors import PortError

LEASE_MS: Final = 6_000  # how long places of a gateway that was killed are missing
BEAT_S: Final = 2.0  # between two renewals: one may fail
AT_ONCE: Final = 500  # leases renewed together: a server is held up for less than a millisecond
# A lease that ends later than any does was given before the server's clock was set back, and a
# bucket that would be full later than an empty one is was filled before that, or at another rate.
_TAKE: Final = b"""
local time=redis.call('TIME')
local us=time[1]*1000000+time[2]
local ms=math.floor(us/1000)
local ttl,most,gap=tonumber(ARGV[2]),tonumber(ARGV[3]),tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE',KEYS[1],'-inf',ms)
redis.call('ZREMRANGEBYSCORE',KEYS[1],ms+2*ttl,'+inf')
if redis.call('ZCARD',KEYS[1])>=most then return 1 end
if gap>0 then
local burst=tonumber(ARGV[5])
local full=math.min(math.max(tonumber(redis.call('GET',KEYS[2]) or us),us),us+burst*gap)
local empty=full-us>(burst-1)*gap
if not empty then full=full+gap end
redis.call('SET',KEYS[2],string.format('%.0f',full),'PX',math.ceil((full-us)/1000)+1)
if empty then return 2 end
end
redis.call('ZADD',KEYS[1],ms+ttl,ARGV[1])
redis.call('PEXPIRE',KEYS[1],ttl)
return 0
"""
# By `XX` only leases that are there. `CH` counts none that ended at the same time before.
_RENEW: Final = b"""
local time=redis.call('TIME')
local ms=time[1]*1000+math.floor(time[2]/1000)
local ttl=tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE',KEYS[2],'-inf',ms)
redis.call('ZREMRANGEBYSCORE',KEYS[2],ms+2*ttl,'+inf')
redis.call('ZADD',KEYS[2],ms+ttl,ARGV[1])
redis.call('PEXPIRE',KEYS[2],ttl)
local lost={}
for i=4,#ARGV do
if redis.call('ZADD',KEYS[1],ARGV[3],'CH',ms+ttl,ARGV[i])==0
and not redis.call('ZADD',KEYS[1],'XX','INCR',0,ARGV[i]) then lost[#lost+1]=i-4 end
end
if #ARGV>3 then redis.call('PEXPIRE',KEYS[1],ttl) end
redis.call('ZREMRANGEBYSCORE',KEYS[1],'-inf',ms)
return {redis.call('ZCARD',KEYS[2]),lost}
"""
_IF_THERE: Final = "XX"
_IN_ANY_CASE: Final = "CH"  # it stands there anyway: an argument that says nothing
_REFUSALS: Final = {1: Refusal.CONCURRENT, 2: Refusal.RATE}


class Asks(Protocol):
    """Redis, as far as it is needed here: `RedisClient`."""

    async def ask(
        self,
        operation: str,
        key: bytes,
        *commands: Command,
        over: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Return the reply to each command; raise `PortError` when it fails or is late.

        If the caller is cancelled, `over` is called once they were answered or given up.
        """


class RedisLimits(LocalLimits):
    """`Limits` over all processes that share a Redis."""

    def __init__(
        self,
        redis: Asks,
        clock: Clock,
        *,
        name: bytes,
        lease_ms: int = LEASE_MS,
        beat_s: float = BEAT_S,
    ) -> None:
        """Ask `redis`; `name` is this process's alone, also after a restart."""
        super().__init__(clock)
        self._redis: Final = redis
        self._name: Final = name
        self._lease_ms: Final = lease_ms
        self._beat_s: Final = beat_s
        self._given_back: Final[dict[Gate, list[HeldLease]]] = {}
        """Leases that Redis is still to be told of."""
        self._asked: Final[set[HeldLease]] = set()
        """Leases of which Redis is being asked whether they may be had."""
        self._none_asked: asyncio.Future[None] | None = None
        """Done when there are none any more, for who waits to close."""
        self._telling: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._closed = False

    def follow(self, limits: Mapping[str, PoolLimits]) -> None:
        """Go by these limits, by the names of pools; who is in stays in and counts."""
        super().follow(limits)
        if self.gates and self._beating is None and not self._closed:
            self._beat()

    async def take(self, pool: str) -> Lease | None:
        """See `filters.api.Limits`."""
        gate = self.gates.get(pool)
        if gate is None or (limits := gate.limits) is None:
            return UNLIMITED
        if len(gate.held) >= limits.concurrent:
            gate.refused[Refusal.CONCURRENT] += 1
            return None
        lease = HeldLease(gate, next(self.numbers), self.left)
        # What was given back a moment ago has gone when this is looked at.
        commands = [*self._giving_back(gate), self._taking(lease, limits)]
        self._asked.add(lease)
        over = partial(self._unheard, lease)
        try:
            *_, code = await self._redis.ask("limit", pool.encode(), *commands, over=over)
        except PortError:
            self._answered(lease)
            gate.unshared += 1
            entered = self.enter(lease, limits.share(gate.gateways))
            if entered is None:
                self.left(lease)  # it may yet be taken there
            return entered
        except Exception:  # a bug; that of a cancelled one is told `over`
            self._unheard(lease)
            raise
        self._answered(lease)
        if refusal := _REFUSALS.get(code):
            gate.refused[refusal] += 1
            return None
        lease.shared = True
        gate.held.add(lease)
        return lease

    def left(self, lease: HeldLease) -> None:
        """Have Redis told that a lease was given back."""
        self._given_back.setdefault(lease.gate, []).append(lease)
        if not self._closed and (self._telling is None or self._telling.done()):
            self._telling = asyncio.ensure_future(self._tell())

    async def close(self) -> None:
        """Give back what is held and go: the others have more to share."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
        tasks = [task for task in (self._renewing, self._telling) if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        if self._asked:
            self._none_asked = asyncio.get_running_loop().create_future()
            await self._none_asked
        for gate in dict.fromkeys((*self.gates.values(), *self._given_back)):
            self._given_back.setdefault(gate, []).extend(gate.held)
            gone = ("ZREM", name_of(b"gateways", gate.name.encode()), self._name)
            await self._ask_or_not(gate, [*self._giving_back(gate), gone])

    def _unheard(self, lease: HeldLease) -> None:
        """Give back what nobody waited for: it may have been taken."""
        self.left(lease)
        self._answered(lease)

    def _answered(self, lease: HeldLease) -> None:
        self._asked.discard(lease)
        if self._none_asked is not None and not self._asked and not self._none_asked.done():
            self._none_asked.set_result(None)

    # --- What Redis is told ----------------------------------------------------------------------

    def _taking(self, lease: HeldLease, limits: PoolLimits) -> Command:
        key = lease.gate.name.encode()
        names = name_of(b"leases", key), name_of(b"bucket", key)
        gap_us = limits.gap_ns // 1000
        own = self._called(lease), self._lease_ms
        return ("EVAL", _TAKE, 2, *names, *own, limits.concurrent, gap_us, limits.burst)

    def _called(self, lease: HeldLease) -> bytes:
        return b"%b-%d" % (self._name, lease.number)

    def _giving_back(self, gate: Gate) -> list[Command]:
        leases = self._given_back.pop(gate, ())
        if not leases:
            return []
        return [("ZREM", name_of(b"leases", gate.name.encode()), *map(self._called, leases))]

    async def _tell(self) -> None:
        """Tell of what was given back, until all is told: what comes meanwhile goes together."""
        while self._given_back:
            gate = next(iter(self._given_back))
            await self._ask_or_not(gate, self._giving_back(gate))

    async def _ask_or_not(self, gate: Gate, commands: Sequence[Command]) -> None:
        """Ask what makes places free sooner than they end by themselves."""
        with contextlib.suppress(PortError):
            await self._redis.ask("limit", gate.name.encode(), *commands)

    def _beat(self) -> None:
        """Renew what is held, and see who else is there."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.ensure_future(self._renew_all())
        self._beating = asyncio.get_running_loop().call_later(self._beat_s, self._beat)

    async def _renew_all(self) -> None:
        for gate in tuple(self.gates.values()):
            known = [lease for lease in gate.held if lease.shared]
            for first in range(0, max(len(known), 1), AT_ONCE):
                await self._renew(gate, known[first : first + AT_ONCE])
            unknown = [lease for lease in gate.held if not lease.shared]
            for first in range(0, len(unknown), AT_ONCE):
                await self._make_known(gate, unknown[first : first + AT_ONCE])

    async def _renew(self, gate: Gate, leases: Sequence[HeldLease]) -> None:
        """Renew leases that Redis knows, and find out which it does not know any more."""
        try:
            gate.gateways, lost = await self._ask_to_renew(gate, leases, _IF_THERE)
        except PortError:
            return
        for lease in map(leases.__getitem__, lost):
            if lease in gate.held:  # else it was given back meanwhile, and not lost
                lease.shared = False
                gate.lost += 1

    async def _make_known(self, gate: Gate, leases: Sequence[HeldLease]) -> None:
        """Take leases that Redis does not know, full or not: they are in use."""
        try:
            await self._ask_to_renew(gate, leases, _IN_ANY_CASE)
        except PortError:
            pass  # they may have been taken all the same
        else:
            for lease in leases:
                lease.shared = True
        for lease in leases:
            if lease not in gate.held:  # given back meanwhile, and maybe before it was taken
                self.left(lease)

    async def _ask_to_renew(
        self, gate: Gate, leases: Sequence[HeldLease], which: str
    ) -> tuple[int, Sequence[int]]:
        """Return how many gateways there are, and which of `leases` Redis does not know."""
        key = gate.name.encode()
        names = name_of(b"leases", key), name_of(b"gateways", key)
        own = self._name, self._lease_ms
        renew: Command = ("EVAL", _RENEW, 2, *names, *own, which, *map(self._called, leases))
        ((gateways, lost),) = await self._redis.ask("renew", key, renew)
        return gateways, lost
