"""Keep requests from replicas that have just begun, then let them have more and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEAST_SHARE: Final = 0.1
"""Of its share a replica has so much at the least once it takes requests: it warms up by them."""


class Warmth:
    """The replicas of a pool that do not have their whole share of requests yet."""

    __slots__ = ("ramps",)

    def __init__(self) -> None:
        self.ramps: Final[dict[str, tuple[float, float] | None]] = {}
        """When a replica began to take requests, and how long its share grows; None: it is held."""

    def __len__(self) -> int:
        return len(self.ramps)

    def holds(self, address: str) -> bool:
        """Tell whether a replica is to have no requests at all."""
        return address in self.ramps and self.ramps[address] is None

    def hold(self, address: str) -> None:
        """Let a replica have no requests until `ease`."""
        self.ramps[address] = None

    def ease(self, address: str, now_s: float, over_s: float) -> None:
        """Let a replica have its share little by little, all of it after `over_s`."""
        if over_s > 0:
            self.ramps[address] = (now_s, over_s)
        else:
            self.forget(address)

    def forget(self, address: str) -> None:
        """Let a replica have its share, or be gone."""
        self.ramps.pop(address, None)

    def takes(self, address: str, now_s: float, among: int, rng: Callable[[], float]) -> bool:
        """Tell whether a replica of so many may have the next request.

        Who is idle gets every request that it may have where load counts: so it may have as many
        as its share is.
        """
        if address not in self.ramps:
            return True
        ramp = self.ramps[address]
        if ramp is None:
            return False
        began_s, over_s = ramp
        share = max(LEAST_SHARE, (now_s - began_s) / over_s)
        if share >= 1:
            self.forget(address)
            return True
        return rng() * among < share
