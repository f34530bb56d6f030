"""Ask a running Forebay of the cache in its process, by its admin port."""

from __future__ import annotations

from typing import Any, Final

import aiohttp
import msgspec

from ext_proc.cache_entry import Entry, Which
from ext_proc.config import parse_host_port
from filters.errors import ConfigError

PATIENCE_S: Final = 10.0  # a large store is gone through in pieces
PLACE: Final = "forebay.server.admin"
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it listens, not we


class NotRunning(ConfigError):
    """Nobody answers at the admin address."""


class CacheServer:
    """The server at an admin address; `place` is where that was said, if not in the file."""

    def __init__(self, address: str, place: str = "") -> None:
        """Raise `ConfigError` for an address that is none."""
        self._place: Final = place or PLACE
        try:
            host, port = parse_host_port(address)
        except ValueError as error:
            raise ConfigError(self._place, str(error)) from None
        host = _ANY.get(host, host)
        self.address: Final = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stats(self) -> dict[str, Any]:
        """Return what the process counted since it started."""
        _, answer = await self._ask("GET", "/cache/stats")
        found: dict[str, Any] = answer
        return found

    async def entry(self, key: str, *, with_body: bool = False) -> list[Entry]:
        """Return the entry under a key in the process's memory, if there is one."""
        query = "?body=1" if with_body else ""
        status, answer = await self._ask("GET", f"/cache/entries/{key}{query}")
        return [] if status == 404 else [msgspec.convert(answer, Entry)]

    async def purge(self, which: Which, *, dry_run: bool) -> int | None:
        """Let go of what is named; return how much that was, None when it keeps nothing."""
        what = {"profile": which.profile, "tenant": which.tenant, "dry_run": dry_run}
        _, answer = await self._ask("POST", "/cache/purge", msgspec.json.encode(what))
        return answer["entries"] if answer["memory"] else None

    async def _ask(self, method: str, path: str, data: bytes | None = None) -> tuple[int, Any]:
        url = f"http://{self.address}{path}"
        headers = {"content-type": "application/json"} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as client,
                client.request(method, url, data=data, headers=headers) as response,
            ):
                status, body = response.status, await response.read()
        except (aiohttp.ClientConnectionError, TimeoutError):
            raise NotRunning(
                self._place,
                f"nobody answers at {self.address}, and memory is the server's own: start it "
                "(forebay serve, forebay up), or name its address with --admin",
            ) from None
        try:
            answer = msgspec.json.decode(body)
        except msgspec.MsgspecError:
            answer = None
        if not isinstance(answer, dict) or (status == 404 and "error" not in answer):
            raise ConfigError(
                self._place, f"expected Forebay's admin port at {self.address}, got another server"
            )
        if status not in (200, 404):
            raise ConfigError(self._place, f"{self.address} refused: {answer.get('error', status)}")
        return status, answer
