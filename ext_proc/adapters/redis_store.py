"""Keep answers in Redis, where every replica of Forebay finds them, and never wait long for it."""

from __future__ import annotations

import math
from typing import Final

from ext_proc.adapters.breaker import BreakerState
from ext_proc.adapters.redis_client import RedisClient, name_of
from ext_proc.adapters.redis_values import Unreadable, pack, unpack
from filters.api import Clock
from filters.errors import PortError


class RedisStore:
    """A `Store` in Redis."""

    def __init__(self, client: RedisClient, clock: Clock) -> None:
        """Ask `client`, which others may ask as well until this closes it."""
        self._client: Final = client
        self._clock: Final = clock

    @property
    def state(self) -> BreakerState:
        """Whether Redis is asked at all."""
        return self._client.state

    async def get(self, key: bytes) -> bytes | None:
        """Return the value under `key`, or None when there is none or its time is over."""
        get = ("GET", name_of(b"answer", key))
        (written,) = await self._client.ask("get", key, get, reads=True)
        return self._read(written)

    async def find(self, key: bytes) -> tuple[bytes, float] | None:
        """Return the value under `key` and the seconds it has left; None when there is none."""
        name = name_of(b"answer", key)
        written, left_ms = await self._client.ask(
            "get", key, ("GET", name), ("PTTL", name), reads=True
        )
        if (value := self._read(written)) is None:
            return None
        return value, math.inf if left_ms == -1 else left_ms / 1000  # -1: it has no end

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` under `key` for `ttl_s` seconds, even if the caller is cancelled.

        An answer is stored when its exchange ends, and the end of the proxy's stream cancels.
        """
        name = name_of(b"answer", key)
        if ttl_ms := max(0, int(ttl_s * 1000)):
            await self._client.ask("put", key, ("SET", name, pack(value), "PX", ttl_ms))
        else:
            await self._client.ask("put", key, ("DEL", name))  # Redis refuses a time of zero

    async def sighted(self, key: bytes, window_s: float, most: int) -> int:
        """Count one more sighting of `key`; return how many of the last `most` are that young.

        A list keeps the times of the last `most`, the latest first, by the clocks of those who
        saw them.
        """
        name = name_of(b"seen", key)
        now_ms = int(self._clock.now() * 1000)
        window_ms = max(1, int(window_s * 1000))
        *_, times = await self._client.ask(
            "sighted",
            key,
            ("LPUSH", name, now_ms),
            ("PEXPIRE", name, window_ms),
            ("LTRIM", name, 0, most - 1),
            ("LRANGE", name, 0, most - 1),
        )
        try:
            return sum(int(time) > now_ms - window_ms for time in times)
        except ValueError:
            raise PortError("redis sighted: no times") from None

    def _read(self, written: bytes | None) -> bytes | None:
        """Return the value; what cannot be read is none, and counted."""
        if written is None:
            return None
        value = unpack(written)
        if isinstance(value, Unreadable):
            self._client.watch.store_unreadable("redis", value)
            return None
        return value

    async def close(self) -> None:
        """Give up what runs and close every connection."""
        await self._client.close()
