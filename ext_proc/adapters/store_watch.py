"""Who is told of what goes wrong with a store."""

from __future__ import annotations

from typing import Protocol


class StoreWatch(Protocol):
    """Counts what went wrong, and what was done about it."""

    def store_failed(self, store: str, operation: str) -> None:
        """Count that a store broke or was late in `operation`: `get`, `put` or `sighted`."""

    def store_bypassed(self, store: str, operation: str) -> None:
        """Count that `operation` was not tried: it failed moments ago, or too many wait."""

    def store_unreadable(self, store: str, reason: str) -> None:
        """Count that what lay in a store was no value, and why."""

    def store_took(self, store: str, operation: str, elapsed_ns: int) -> None:
        """Count how long a store took to answer `operation`, or to fail; not if it was bypassed.

        Memory is not timed: 0.5 us for a look-up of 0.6 us.
        """

    def store_searched(self, store: str, *, found: bool) -> None:
        """Count that the servers of a store were looked for, and whether any were found."""
