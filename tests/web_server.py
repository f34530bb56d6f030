"""How a test ends an HTTP server of aiohttp."""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import web

from ext_proc.transport.address import close


async def end(runner: web.BaseRunner) -> None:
    """Listen no more, and end every connection.

    `cleanup` alone may leave one open that was accepted as it was called, and the garbage collector
    warns of it in another test.
    """
    for site in runner.sites:
        await close(cast("asyncio.Server", site._server))  # aiohttp gives it to nobody
    await runner.cleanup()
