"""Serve what an operator asks of the cache in this process, to this machine alone.

A page in a browser on this machine must not do the same: it can send a request to any address, and
read the reply where a name of its own leads here. So the reply is for those who connect from this
machine, name it by its address, and send what a page of another origin cannot without asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.cache_entry import Which, check_key, check_profile, check_tenant, describe
from ext_proc.cache_figures import figures_of
from ext_proc.config import is_loopback, parse_host_port
from filters.api import Clock

AT_ONCE: Final = 2_000  # entries looked at before others have their turn: about a millisecond
JSON: Final = "application/json"


class Purge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to let go of; nothing said is everything."""

    profile: str | None = None
    tenant: str | None = None
    dry_run: bool = False

    @property
    def which(self) -> Which:
        """Return which entries that are; raise `ValueError` for a part that can be none."""
        return Which(
            None if self.profile is None else check_profile(self.profile),
            None if self.tenant is None else check_tenant(self.tenant),
        )


class CacheDesk:
    """`GET /cache/stats`, `GET /cache/entries/KEY` and `POST /cache/purge`.

    `memory` is the store in this process or its memory before a shared one, None for neither.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        memory: MemoryStore | None,
        clock: Clock,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Read figures from `registry`, in which `settle` puts what is still to be counted."""
        self._registry: Final = registry
        self._memory: Final = memory
        self._clock: Final = clock
        self._settle: Final = settle

    def add_to(self, application: web.Application) -> None:
        """Serve the paths as part of `application`."""
        add = application.router
        add.add_get("/cache/stats", self._only_here(self._stats))
        add.add_get("/cache/entries/{key}", self._only_here(self._entry))
        add.add_post("/cache/purge", self._only_here(self._purge))

    def _only_here(self, serve: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def check(request: web.Request) -> web.Response:
            if why := _why_not(request):
                return _refused(403, why)
            response: web.Response = await serve(request)
            return response

        return check

    async def _stats(self, _: web.Request) -> web.Response:
        self._settle()
        # Thousands of series take tens of milliseconds, which no request should wait for.
        figures = await asyncio.to_thread(lambda: figures_of(self._registry.collect()))
        return _answer({"memory": await self._in_memory(), **figures})

    async def _in_memory(self) -> dict[str, Any] | None:
        memory = self._memory
        if memory is None:
            return None
        profiles: dict[str, dict[str, int]] = {}
        keys = memory.keys()
        for number, key in enumerate(keys):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            found = memory.peek(key)
            if found is not None:
                name = key.decode("utf-8", "replace").partition(":")[0]
                profile = profiles.setdefault(name, {"entries": 0, "bytes": 0})
                profile["entries"] += 1
                profile["bytes"] += len(found[0])
        return {
            "entries": sum(profile["entries"] for profile in profiles.values()),
            "bytes": memory.size,
            "room": memory.room,
            "profiles": dict(sorted(profiles.items())),
        }

    async def _entry(self, request: web.Request) -> web.Response:
        try:
            key = check_key(request.match_info["key"])
        except ValueError as error:
            return _refused(400, str(error))
        found = self._memory.peek(key.encode()) if self._memory is not None else None
        if found is None:
            return _refused(404, "no such entry in memory")
        value, left_s = found
        with_body = request.query.get("body") == "1"
        now_s = self._clock.now()
        return _answer(
            describe(key, value, place="memory", ttl_s=left_s, now_s=now_s, with_body=with_body)
        )

    async def _purge(self, request: web.Request) -> web.Response:
        # A form of another origin can send three content types, none of them this one.
        if request.content_type != JSON:
            return _refused(415, f"expected content-type {JSON}, got {request.content_type}")
        try:
            purge = msgspec.json.decode(await request.read(), type=Purge)
            which = purge.which
        except (msgspec.MsgspecError, ValueError) as error:
            return _refused(400, str(error))
        memory = self._memory
        if memory is None:
            return _answer({"memory": False, "entries": 0})
        entries = 0
        for number, key in enumerate(memory.keys()):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            if which.has(key):
                entries += memory.peek(key) is not None  # what has ended is nobody's loss
                if not purge.dry_run:
                    memory.remove(key)
        return _answer({"memory": True, "entries": entries})


def _why_not(request: web.Request) -> str:
    """Return why a request is not answered, empty when it is."""
    if not is_loopback(request.remote or ""):
        return "only this machine is answered here"
    host = request.headers.get("host", "")
    try:
        name, _ = parse_host_port(host if ":" in host.rpartition("]")[2] else f"{host}:80")
    except ValueError:
        name = ""
    if not is_loopback(name):  # else any name could be made to lead here
        return "expected the address of this machine as the host"
    return ""


def _answer(what: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(what), content_type=JSON)


def _refused(status: int, why: str) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode({"error": why}), content_type=JSON)
