"""Keep answers in memory before a store that replicas share, and go on without that one."""

from __future__ import annotations

import contextlib
from typing import Final, Protocol

from ext_proc.adapters.memory_store import MemoryStore
from filters.api import Store
from filters.errors import PortError


class SharedStore(Store, Protocol):
    """A store that knows for how long it will keep what it has."""

    async def find(self, key: bytes) -> tuple[bytes, float] | None:
        """Return the value under `key` and the seconds it has left; None when there is none."""

    async def close(self) -> None:
        """Let go of what is held."""


class LayeredStore:
    """A `Store` of two levels.

    What is taken away or replaced in the shared store is found in memory for `longest_s` at most,
    and never after its own time. While the shared store is down, memory serves alone, and
    sightings are those of this process: fewer, so that answers are admitted later.
    """

    def __init__(self, near: MemoryStore, far: SharedStore, longest_s: float) -> None:
        """Take over both stores: closing this one closes them."""
        self.near: Final = near
        self._far: Final = far
        self._longest_s: Final = longest_s

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when neither has one whose time is not over."""
        value = await self.near.get(key)
        if value is not None:
            return value
        try:
            found = await self._far.find(key)
        except PortError:
            return None
        if found is None:
            return None
        value, left_s = found
        await self.near.put(key, value, min(left_s, self._longest_s))
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds in the shared store, less in memory.

        Memory comes first: the caller may be cancelled while it waits for the other.
        """
        await self.near.put(key, value, min(ttl_s, self._longest_s))
        with contextlib.suppress(PortError):
            await self._far.put(key, value, ttl_s)

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; return how many fell in the last `window_s` seconds."""
        try:
            return await self._far.sighted(key, window_s, most)
        except PortError:
            return await self.near.sighted(key, window_s, most)

    async def close(self) -> None:
        """Let go of everything."""
        await self.near.close()
        await self._far.close()
