"""Keep answers in this process; the least recently used go when there is no room."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from filters.api import Clock

ENTRY_BYTES: Final = 270  # beside key and value: objects and table slots, measured by tracemalloc
TIMES_BYTES: Final = 900  # of a key's sightings: a deque has room for 64 times at least
TIME_BYTES: Final = 32
SIGHTINGS_SHARE: Final = 8  # an eighth of the size counts sightings


class MemoryStore:
    """A `Store` of at most `size` bytes. Nothing here waits, so no caller is suspended."""

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock: Final = clock
        self._sightings_size: Final = size // SIGHTINGS_SHARE
        self._answers_size: Final = size - self._sightings_size
        self._answers: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._sightings: OrderedDict[bytes, deque[int]] = OrderedDict()
        self._answers_bytes = 0
        self._sightings_bytes = 0

    def __len__(self) -> int:
        """Return how many answers are kept, those whose time is over included until found."""
        return len(self._answers)

    @property
    def size(self) -> int:
        """Bytes in use, overhead included."""
        return self._answers_bytes + self._sightings_bytes

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""
        entry = self._answers.get(key)
        if entry is None:
            return None
        ends_ns, value = entry
        if ends_ns <= self._clock.monotonic_ns():
            self._drop(key)
            return None
        self._answers.move_to_end(key)
        return value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds; one that alone has no room is not kept."""
        if key in self._answers:
            self._drop(key)
        cost = len(key) + len(value) + ENTRY_BYTES
        if cost > self._answers_size or ttl_s <= 0:
            return
        self._answers[key] = (self._clock.monotonic_ns() + round(ttl_s * 1e9), value)
        self._answers_bytes += cost
        while self._answers_bytes > self._answers_size:
            self._drop(next(iter(self._answers)))

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; return how many fell in the last `window_s` seconds."""
        now_ns = self._clock.monotonic_ns()
        times = self._sightings.get(key)
        if times is None or times.maxlen != most:
            self._forget(key)
            times = self._sightings[key] = deque(times or (), most)
            self._sightings_bytes += len(key) + TIMES_BYTES + TIME_BYTES * most
        times.append(now_ns)
        self._sightings.move_to_end(key)
        while self._sightings_bytes > self._sightings_size:
            self._forget(next(iter(self._sightings)))
        begins_ns = now_ns - round(window_s * 1e9)
        return sum(time_ns > begins_ns for time_ns in times)

    async def close(self) -> None:
        """Let go of everything."""
        self._answers.clear()
        self._sightings.clear()
        self._answers_bytes = self._sightings_bytes = 0

    def _forget(self, key: bytes) -> None:
        if times := self._sightings.pop(key, None):
            self._sightings_bytes -= len(key) + TIMES_BYTES + TIME_BYTES * (times.maxlen or 0)

    def _drop(self, key: bytes) -> None:
        _, value = self._answers.pop(key)
        self._answers_bytes -= len(key) + len(value) + ENTRY_BYTES
