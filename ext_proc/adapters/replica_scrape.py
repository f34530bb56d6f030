"""Ask every replica of every pool how it is, twenty times a second, without waiting for any."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import aiohttp
from yarl import URL

from ext_proc.adapters.replica_signals import PageReader, Said

PERIOD_S: Final = 0.05
JITTER: Final = 0.2
"""So much more or less: replicas of several gateways must not be asked by all at once."""
DEADLINE_S: Final = 1.0
WHOLE_S: Final = 10.0
"""Between two looks at what rarely changes."""
REST_S: Final = 1.0
"""A replica that could not be asked is asked again after this: it is busy, or gone."""
MOST_PAGE_BYTES: Final = 4 << 20
PATHS: Final = ("/metrics", "/prometheus/metrics")
"""Where pages are: TensorRT-LLM has its own place."""


class Listener(Protocol):
    """Who is told what replicas say. An address may belong to several pools."""

    def said(self, address: str, said: Said) -> None:
        """Take what a replica says."""

    def refused(self, address: str) -> None:
        """Know that a replica takes no connections."""

    def silent(self, address: str, why: str) -> None:
        """Know that a replica could not be asked, or said nothing that is understood."""


class Scraper:
    """Asks each address it is given, in a task of its own: one question at a time each."""

    def __init__(
        self,
        listener: Listener,
        *,
        period_s: float = PERIOD_S,
        deadline_s: float = DEADLINE_S,
        rng: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Ask nobody yet."""
        self._listener: Final = listener
        self._period_s: Final = period_s
        self._deadline_s: Final = deadline_s
        self._rng: Final = rng
        self._sleep: Final = sleep
        self._http: aiohttp.ClientSession | None = None
        self._tasks: Final[dict[str, asyncio.Task[None]]] = {}
        self._looks: Final[set[str]] = set()
        """Whose next page is to be read whole."""

    def __len__(self) -> int:
        return len(self._tasks)

    def follow(self, addresses: Iterable[str]) -> None:
        """Ask these from now on, and no others."""
        wanted = set(addresses)
        for address in self._tasks.keys() - wanted:
            self._tasks.pop(address).cancel()
        self._looks.intersection_update(wanted)
        for address in wanted - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._ask_on(address))

    def look(self, address: str) -> None:
        """Look at what rarely changes as well, the next time that this one is asked."""
        if address in self._tasks:
            self._looks.add(address)

    async def close(self) -> None:
        """Ask nobody any more, and close every connection."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def _ask_on(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader, paths, whole_s = PageReader(), list(PATHS), 0.0
        while True:
            began_s = loop.time()
            whole = reader.server is None or began_s >= whole_s or address in self._looks
            self._looks.discard(address)
            pause_s = self._period_s * (1 + JITTER * (2 * self._rng() - 1))
            try:
                async with asyncio.timeout(self._deadline_s):
                    page = await self._page(f"http://{address}{paths[0]}")
                said = reader.read(page, whole=whole)
                if said is None:
                    raise _SaysNothing("no figures of a model server")
                if whole:
                    whole_s = began_s + WHOLE_S
                self._listener.said(address, said)
            except Exception as error:  # noqa: BLE001 - whatever a page says, it is asked for again
                if isinstance(error, _SaysNothing):
                    paths.append(paths.pop(0))
                    whole_s = 0.0
                if _is_refusal(error):
                    self._listener.refused(address)
                else:
                    self._listener.silent(address, str(error) or type(error).__name__)
                whole_s = 0.0  # it may be another process by then
                pause_s += REST_S * self._rng()
            await self._sleep(max(pause_s / 2, pause_s - (loop.time() - began_s)))

    async def _page(self, url: str) -> bytes:
        async with self._session().get(URL(url, encoded=True), allow_redirects=False) as reply:
            if reply.status != 200:
                raise _SaysNothing(f"status {reply.status}")
            page = bytearray()
            async for piece in reply.content.iter_any():
                page += piece
                if len(page) > MOST_PAGE_BYTES:
                    raise _SaysNothing(f"more than {MOST_PAGE_BYTES} bytes")
            return bytes(page)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                skip_auto_headers=("user-agent", "accept", "accept-encoding"),
                read_bufsize=1 << 18,
            )
        return self._http


class _SaysNothing(Exception):
    """A replica answered with something else than its figures."""


def _is_refusal(error: BaseException) -> bool:
    """Tell whether nobody listens where a replica should."""
    return isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno in (
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    )
