"""Keep answers in this process; the least recently used go when there is no room."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Final

from ext_proc.adapters.sightings import Sightings
from filters.api import Clock

ENTRY_BYTES: Final = 290  # beside key and value: objects and table slots, measured by tracemalloc
SIGHTINGS_SHARE: Final = 8  # an eighth of the size counts sightings
SWEPT: Final = 4  # answers looked at in each put: more than come in, so that all get their turn


class Lost(enum.StrEnum):
    """What was not kept, or not for as long as it was to be."""

    TIME = "time"
    """An answer whose time was over."""
    ROOM = "room"
    """An answer that gave its room to another."""
    SIZE = "size"
    """An answer for which all the room would not have been enough."""
    SIGHTINGS = "sightings"
    """An eighth of a window's sightings: more patterns came than there is room to count."""


class _Entry:
    __slots__ = ("ends_ns", "place", "value")

    def __init__(self, ends_ns: int, value: bytes, place: int) -> None:
        self.ends_ns = ends_ns
        self.value = value
        self.place = place
        """Of its key among all keys."""


class MemoryStore:
    """A `Store` of at most `size` bytes. Nothing here waits, so no caller is suspended."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock: Final = clock
        self._room: Final = size - size // SIGHTINGS_SHARE
        self._sightings: Final = Sightings(size // SIGHTINGS_SHARE)
        self._entries: Final[OrderedDict[bytes, _Entry]] = OrderedDict()
        """The least recently used first."""
        self._keys: Final[list[bytes]] = []
        """Every key once, in no order: the way round for whoever looks for what has ended."""
        self._swept = 0
        self._bytes = 0
        self._lost: Final = {Lost.TIME: 0, Lost.ROOM: 0, Lost.SIZE: 0}

    def __len__(self) -> int:
        """Return how many answers are kept, those whose time is over included until found."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes in use, overhead included."""
        return self._bytes + self._sightings.size

    @property
    def lost(self) -> dict[Lost, int]:
        """How much was lost of each kind since the start."""
        return self._lost | {Lost.SIGHTINGS: self._sightings.shortened}

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.ends_ns <= self._clock.monotonic_ns():
            self._lose(key, Lost.TIME)
            return None
        self._entries.move_to_end(key)
        return entry.value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds; one that alone has no room is not kept."""
        now_ns = self._clock.monotonic_ns()
        self._sweep(now_ns)
        if key in self._entries:
            self._drop(key)
        if ttl_s <= 0:
            return
        cost = len(key) + len(value) + ENTRY_BYTES
        if cost > self._room:
            self._lost[Lost.SIZE] += 1
            return
        self._entries[key] = _Entry(now_ns + round(ttl_s * 1e9), value, len(self._keys))
        self._keys.append(key)
        self._bytes += cost
        while self._bytes > self._room:
            self._lose(next(iter(self._entries)), Lost.ROOM)

    # --- For who looks after it ------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Bytes that answers may take at most, overhead included."""
        return self._room

    def keys(self) -> list[bytes]:
        """Return the keys that are there, those whose time is over included."""
        return list(self._keys)

    def peek(self, key: bytes) -> tuple[bytes, float] | None:
        """Return a value and the seconds it has left, which does not count as use."""
        entry = self._entries.get(key)
        left_ns = entry.ends_ns - self._clock.monotonic_ns() if entry else 0
        return (entry.value, left_ns / 1e9) if entry and left_ns > 0 else None

    def remove(self, key: bytes) -> bool:
        """Let go of a value; return whether there was one."""
        if key not in self._entries:
            return False
        self._drop(key)
        return True

    # --- The port, further -----------------------------------------------------------------------

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; return how many fell in the last `window_s` seconds."""
        return min(self._sightings.count(key, window_s, self._clock.monotonic_ns()), most)

    async def close(self) -> None:
        """Let go of everything."""
        self._entries.clear()
        self._keys.clear()
        self._sightings.forget()
        self._bytes = 0

    def _sweep(self, now_ns: int) -> None:
        """Let go of some answers that have ended: nobody may ask for them again."""
        for _ in range(SWEPT):
            if not self._keys:
                return
            self._swept = (self._swept + 1) % len(self._keys)
            key = self._keys[self._swept]
            if self._entries[key].ends_ns <= now_ns:
                self._lose(key, Lost.TIME)

    def _lose(self, key: bytes, why: Lost) -> None:
        self._drop(key)
        self._lost[why] += 1

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self._bytes -= len(key) + len(entry.value) + ENTRY_BYTES
        last = self._keys.pop()
        if last != key:
            self._keys[entry.place] = last
            self._entries[last].place = entry.place
