"""Reckon how much a replica takes at once from what it says, as a sender does of a network path.

It may have twice as many each time that it has all it may and nobody waits there, until it was seen
to have too much; from then on a few more at a time. One request waits there: it never idles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from filters.replica import Replica

FIRST: Final = 16
"""Requests that a replica may have at once before it said how it does with them."""
MOST_WAITING: Final = 1
FULL_KV: Final = 0.9
"""With more of its memory for keys and values in use, a model server soon throws work out again."""
STEP: Final = 8
"""Past what was once too much, it grows by an eighth of itself, one at least."""


class LiveSlots:
    """How many requests one replica may have at once, those of others included."""

    __slots__ = ("_settled", "most", "size")

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = min(FIRST, most)
        self._settled = False
        """It had too much at some time: what is too much is about known."""

    def heard(self, replica: Replica) -> None:
        """Take what it says by now."""
        said = replica.signals
        if said is None:
            return
        others = replica.others_waiting + replica.others_running
        if said.waiting > MOST_WAITING or said.kv_usage >= FULL_KV:
            spare = 0 if said.kv_usage >= FULL_KV else MOST_WAITING
            self.size = min(self.most, max(1, said.running + spare))
            self._settled = True
        elif len(replica.picks) + others >= self.size:
            grown = self.size + max(1, self.size // STEP) if self._settled else 2 * self.size
            self.size = min(self.most, grown)

    def ours(self, replica: Replica) -> int:
        """Return how many of them are left for this gateway."""
        return max(0, self.size - replica.others_waiting - replica.others_running)


class PoolSlots:
    """How many requests a pool may have at once, as far as its replicas say how they are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._live: Final[dict[str, LiveSlots]] = {}
        """By the addresses of those that spoke."""

    def bound(self, most: int) -> None:
        """Let no replica have more than so many."""
        self._most = most
        for slots in self._live.values():
            slots.most = most

    def heard(self, address: str, replica: Replica) -> None:
        """Take what a replica says by now."""
        if replica.signals is None:
            return
        slots = self._live.get(address)
        if slots is None:
            slots = self._live[address] = LiveSlots(self._most)
        slots.heard(replica)
        replica.most = slots.size

    def ours(self, replicas: Mapping[str, Replica]) -> int | None:
        """Return how many are left for this gateway, one at least; None where no replica speaks."""
        for gone in self._live.keys() - replicas.keys():
            del self._live[gone]
        if not self._live:
            return None
        return max(1, sum(slots.ours(replicas[at]) for at, slots in self._live.items()))
