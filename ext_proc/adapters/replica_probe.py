"""Ask a replica that fell silent for one token, in place of a client who would wait in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import aiohttp
import msgspec

DEADLINE_S: Final = 2.0
"""For all of a probe: a token takes milliseconds, and who is back later is asked again."""
MOST_BYTES: Final = 256 * 1024
Probed: TypeAlias = Callable[[str, bool | None], None]
"""Told the address, and whether it answered; None: it cannot be asked that way."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)


class Prober:
    """Asks as the OpenAI API has it, which all model servers speak: one probe at a time each."""

    def __init__(self, *, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s: Final = deadline_s
        self._http: aiohttp.ClientSession | None = None
        self._tasks: Final[dict[str, asyncio.Task[None]]] = {}

    def probe(self, address: str, probed: Probed) -> None:
        """Begin to ask, unless that is still going on."""
        if address not in self._tasks:
            self._tasks[address] = asyncio.create_task(self._run(address, probed))

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def _run(self, address: str, probed: Probed) -> None:
        answered: bool | None = False
        try:
            async with asyncio.timeout(self._deadline_s):
                answered = await self._ask(f"http://{address}")
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass
        finally:
            del self._tasks[address]
        probed(address, answered)

    async def _ask(self, base: str) -> bool | None:
        """Return whether a token came; None where the server has no such place or wants a key."""
        status, body = await self._read("GET", f"{base}/v1/models", None)
        if status != 200:
            return None if status < 500 else False
        try:
            model = _MODELS.decode(body).data[0].id
        except (msgspec.DecodeError, IndexError):
            return None
        asked = msgspec.json.encode({"model": model, "prompt": "1", "max_tokens": 1})
        status, _ = await self._read("POST", f"{base}/v1/completions", asked)
        if status == 200:
            return True
        return False if status >= 500 or status == 429 else None

    async def _read(self, method: str, url: str, body: bytes | None) -> tuple[int, bytes]:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        headers = {"content-type": "application/json"}
        async with self._http.request(
            method, url, data=body, headers=headers, allow_redirects=False
        ) as reply:
            read = bytearray()
            async for piece in reply.content.iter_any():
                read += piece
                if len(read) > MOST_BYTES:
                    break
            return reply.status, bytes(read)
