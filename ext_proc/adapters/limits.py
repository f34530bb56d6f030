"""Let only so many exchanges into a pool: at once, and in a second."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from filters.api import UNLIMITED, Clock, Lease


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much a pool takes."""

    concurrent: int = 32
    """Exchanges at once."""
    rate: float = 0.0
    """Exchanges in a second, in the long run; 0: as many as come."""
    burst: int = 1
    """Exchanges that may come at the same moment after a pause; means nothing without `rate`."""

    @property
    def gap_ns(self) -> int:
        """The time between two exchanges at `rate`."""
        return round(1e9 / self.rate) if self.rate else 0

    def share(self, gateways: int) -> PoolLimits:
        """Return the part of one among so many gateways: all of them together stay within."""
        if gateways <= 1:
            return self
        return PoolLimits(
            max(1, self.concurrent // gateways),
            self.rate / gateways,
            max(1, self.burst // gateways),
        )


class Refusal(enum.StrEnum):
    """Why an exchange was not let in."""

    CONCURRENT = "concurrent"
    """As many as may are in the pool."""
    RATE = "rate"
    """Too many came within a short time."""


class Bucket:
    """A token bucket, as one number: when it would be full again."""

    __slots__ = ("_full_at_ns",)

    def __init__(self) -> None:
        self._full_at_ns = 0

    def take(self, now_ns: int, gap_ns: int, burst: int) -> bool:
        """Take a token, of which one comes in `gap_ns`; return whether there was one."""
        # No later than an empty one would be: the rate may have been another.
        full_at_ns = min(max(self._full_at_ns, now_ns), now_ns + burst * gap_ns)
        has_one = full_at_ns - now_ns <= (burst - 1) * gap_ns
        self._full_at_ns = full_at_ns + gap_ns if has_one else full_at_ns
        return has_one


class Gate:
    """The way into one pool, and who went through it."""

    __slots__ = ("bucket", "gateways", "held", "limits", "lost", "name", "refused", "unshared")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.limits: PoolLimits | None = None
        """None: the pool has no limits any more, but some that it gave are held."""
        self.held: Final[set[HeldLease]] = set()
        self.bucket: Final = Bucket()
        self.gateways = 1
        """How many gateways share the limits, this one among them."""
        self.refused: Final[dict[str, int]] = dict.fromkeys(Refusal, 0)
        self.lost = 0
        """Leases that were forgotten where they are shared, while they were held here."""
        self.unshared = 0
        """Exchanges that this gateway judged by itself, for the others could not be asked."""

    def refusal(self, limits: PoolLimits, now_ns: int) -> Refusal | None:
        """Return why one more may not enter; None: it may, and a token is taken."""
        if len(self.held) >= limits.concurrent:
            return Refusal.CONCURRENT
        gap_ns = limits.gap_ns
        if gap_ns and not self.bucket.take(now_ns, gap_ns, limits.burst):
            return Refusal.RATE
        return None


class HeldLease:
    """A `filters.api.Lease` on a place in a limited pool."""

    __slots__ = ("_leave", "gate", "number", "shared")

    def __init__(self, gate: Gate, number: int, leave: Callable[[HeldLease], None]) -> None:
        self.gate: Final = gate
        self.number: Final = number
        """It is this process's only one of that number."""
        self.shared = False
        """The other gateways know of it."""
        self._leave: Final = leave

    def release(self) -> None:
        """See `filters.api.Lease`."""
        if self in self.gate.held:
            self.gate.held.discard(self)
            self._leave(self)


@dataclass(frozen=True, slots=True)
class Figures:
    """A limited pool at one moment, as this gateway sees it."""

    in_use: int
    capacity: int
    gateways: int
    refused: Mapping[str, int]
    """By `Refusal`."""
    lost: int
    unshared: int


class LocalLimits:
    """`Limits` of one process."""

    def __init__(self, clock: Clock) -> None:
        """Limit nothing yet."""
        self.gates: Final[dict[str, Gate]] = {}
        self.numbers: Final = itertools.count()
        self._clock: Final = clock

    def follow(self, limits: Mapping[str, PoolLimits]) -> None:
        """Go by these limits, by the names of pools; who is in stays in and counts."""
        for name in limits.keys() - self.gates.keys():
            self.gates[name] = Gate(name)
        for name, gate in tuple(self.gates.items()):
            gate.limits = limits.get(name)
            if gate.limits is None and not gate.held:
                del self.gates[name]

    def figures(self) -> dict[str, Figures]:
        """Return how the pools are that have limits."""
        return {
            name: Figures(
                len(gate.held),
                gate.limits.concurrent,
                gate.gateways,
                gate.refused,
                gate.lost,
                gate.unshared,
            )
            for name, gate in tuple(self.gates.items())
            if gate.limits is not None
        }

    async def take(self, pool: str) -> Lease | None:
        """See `filters.api.Limits`."""
        gate = self.gates.get(pool)
        if gate is None or gate.limits is None:
            return UNLIMITED
        return self.enter(HeldLease(gate, next(self.numbers), self.left), gate.limits)

    async def close(self) -> None:
        """Let go of everything."""

    def enter(self, lease: HeldLease, limits: PoolLimits) -> HeldLease | None:
        """Let one in if there is room in this process."""
        refusal = lease.gate.refusal(limits, self._clock.monotonic_ns())
        if refusal is not None:
            lease.gate.refused[refusal] += 1
            return None
        lease.gate.held.add(lease)
        return lease

    def left(self, lease: HeldLease) -> None:
        """Hear that a lease was given back."""
