"""Let only so many exchanges into a pool, counted over all gateways that share a Redis.

A place in a pool is a lease that ends by itself after `LEASE_MS`: an entry in the sorted set
`forebay:leases:{POOL}`, by the time at which it ends, as the server's clock has it. As long as its
exchange lives, its gateway renews it, all of its leases together; a gateway that dies frees what
it held. The token bucket is one number beside it (`forebay:bucket:{POOL}`: when it would be full
again), and `forebay:gateways:{POOL}` has who is there to share. All of a pool lies in one slot of a
cluster. Without Redis each gateway goes by its share of the limits.

To look, count and take must be one step: a batch of commands would have to take first and then give
back what was too much, and meanwhile refuse others for it. So it is a script.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
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
_RENEW: Final = b"""
local time=redis.call('TIME')
local ms=time[1]*1000+math.floor(time[2]/1000)
local ttl=tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE',KEYS[2],'-inf',ms)
redis.call('ZREMRANGEBYSCORE',KEYS[2],ms+2*ttl,'+inf')
redis.call('ZADD',KEYS[2],ms+ttl,ARGV[1])
redis.call('PEXPIRE',KEYS[2],ttl)
local lost={}
for i=3,#ARGV do
if redis.call('ZADD',KEYS[1],ms+ttl,ARGV[i])==1 then lost[#lost+1]=i-3 end
end
if #ARGV>2 then redis.call('PEXPIRE',KEYS[1],ttl) end
redis.call('ZREMRANGEBYSCORE',KEYS[1],'-inf',ms)
return {redis.call('ZCARD',KEYS[2]),lost}
"""
_REFUSALS: Final = {1: Refusal.CONCURRENT, 2: Refusal.RATE}


class Asks(Protocol):
    """Redis, as far as it is needed here: `RedisClient`."""

    async def ask(self, operation: str, key: bytes, *commands: Command) -> list[Any]:
        """Return the reply to each command; raise `PortError` when it fails or is late."""


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
        try:
            *_, code = await self._redis.ask("limit", pool.encode(), *commands)
        except PortError:
            gate.unshared += 1
            entered = self.enter(lease, limits.share(gate.gateways))
            if entered is None:
                self.left(lease)  # it may yet be taken there
            return entered
        except BaseException:
            self.left(lease)
            raise
        if refusal := _REFUSALS.get(code):
            gate.refused[refusal] += 1
            return None
        lease.shared = True
        gate.held.add(lease)
        return lease

    def left(self, lease: HeldLease) -> None:
        """Have Redis told that a lease was given back."""
        if self._closed:
            return
        self._given_back.setdefault(lease.gate, []).append(lease)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.ensure_future(self._tell())

    async def close(self) -> None:
        """Give back what is held and go: the others have more to share."""
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
        tasks = [task for task in (self._renewing, self._telling) if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        for name, gate in self.gates.items():
            self._given_back.setdefault(gate, []).extend(gate.held)
            gone = ("ZREM", name_of(b"gateways", name.encode()), self._name)
            await self._ask_or_not(gate, [*self._giving_back(gate), gone])

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
            held = tuple(gate.held)
            for first in range(0, max(len(held), 1), AT_ONCE):
                await self._renew(gate, held[first : first + AT_ONCE])

    async def _renew(self, gate: Gate, leases: Sequence[HeldLease]) -> None:
        """Renew leases; those that Redis does not know are taken there, for they are in use."""
        key = gate.name.encode()
        names = name_of(b"leases", key), name_of(b"gateways", key)
        called = map(self._called, leases)
        renew: Command = ("EVAL", _RENEW, 2, *names, self._name, self._lease_ms, *called)
        try:
            ((gateways, lost),) = await self._redis.ask("renew", key, renew)
        except PortError:
            return
        gate.gateways = gateways
        gate.lost += sum(leases[index].shared for index in lost)
        for lease in leases:
            lease.shared = True
            if lease not in gate.held:  # given back meanwhile, and maybe before it was renewed
                self.left(lease)
