"""Keep exchanges from a pool that answers with errors, and let some find out when that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.error_breaker import ErrorBreaker, Limits
from filters.api import Clock


class Log(Protocol):
    """Where it is said that a breaker opened, and that it closed."""

    def warning(self, event: str, **fields: object) -> object:
        """Write a line."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A breaker at one moment, for metrics."""

    state: BreakerState
    opened: int
    total: int
    """Answers of the last minute, or whatever its window is."""
    bad: int


class PoolBreakers:
    """A `filters.api.Breakers`, of this process alone: gateways find out for themselves."""

    def __init__(self, clock: Clock, log: Log) -> None:
        """Know no pool yet."""
        self._clock: Final = clock
        self._log: Final = log
        self._breakers: Final[dict[str, ErrorBreaker]] = {}

    def follow(self, pools: Mapping[str, Limits]) -> None:
        """Watch these pools from now on; a breaker whose limits stay the same stays as it is."""
        for name in self._breakers.keys() - pools.keys():
            del self._breakers[name]
        for name, limits in pools.items():
            breaker = self._breakers.get(name)
            if breaker is None or breaker.limits != limits:
                self._breakers[name] = ErrorBreaker(limits)

    def watches(self, pool: str) -> bool:
        """See `filters.api.Breakers`."""
        return pool in self._breakers

    def admits(self, pool: str) -> bool:
        """See `filters.api.Breakers`."""
        breaker = self._breakers.get(pool)
        return breaker is None or breaker.admits(self._clock.monotonic_ns())

    def ended(self, pool: str, began_ns: int, *, good: bool | None) -> None:
        """See `filters.api.Breakers`."""
        breaker = self._breakers.get(pool)
        if breaker is None:
            return
        opened, before = breaker.opened, breaker.state
        breaker.ended(began_ns, self._clock.monotonic_ns(), good=good)
        self._tell(pool, breaker, opened)
        if breaker.state is BreakerState.CLOSED and before is BreakerState.PROBING:
            self._log.warning("breaker closed", pool=pool)

    def broke(self, pool: str, began_ns: int, well_ns: int) -> None:
        """See `filters.api.Breakers`."""
        breaker = self._breakers.get(pool)
        if breaker is None:
            return
        opened = breaker.opened
        breaker.broke(began_ns, well_ns, self._clock.monotonic_ns())
        self._tell(pool, breaker, opened)

    def _tell(self, pool: str, breaker: ErrorBreaker, before: int) -> None:
        if breaker.opened != before:
            window = breaker.window
            self._log.warning("breaker opened", pool=pool, answers=window.total, errors=window.bad)

    def figures(self) -> Mapping[str, Figures]:
        """Return how each pool's breaker is. Called in a thread, so it changes nothing."""
        now_ns = self._clock.monotonic_ns()
        return {
            name: Figures(breaker.state, breaker.opened, *breaker.window.counted(now_ns))
            for name, breaker in tuple(self._breakers.items())
        }
