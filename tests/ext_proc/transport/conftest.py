"""What the tests of the native transport share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test on both loops: the one the server ships with, and Python's own."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
