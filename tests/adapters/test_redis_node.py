"""A server is given its time, however busy the process is that asks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from ext_proc.adapters.redis_node import LATE, RedisNode
from tests.fakes import FakeClock

LIMIT_S: Final = 0.01


class Held:
    """A connection whose process is held up, between question and answer, beyond the limit."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        self.ours, self.theirs = socket.socketpair()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self.ours)

    async def can_read(self) -> bool:
        return False

    @property
    def is_connected(self) -> bool:
        return self._reader is not None

    async def send_packed_command(self, command: bytes, check_health: bool) -> None:
        if self.answers:
            self.theirs.send(b"x")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 2 * LIMIT_S
        while loop.time() < until_s:
            pass

    async def read_response(self) -> bytes:
        assert self._reader is not None
        return await self._reader.read(1)

    async def disconnect(self, **_: Any) -> None:
        self._writer = None


async def asked(connection: Any) -> Any:
    node = RedisNode(("one", 1), lambda _: connection, FakeClock(), budget_s=LIMIT_S)
    outcome = await node.ask([("GET", "key")], LIMIT_S)
    await node.close()
    connection.theirs.close()
    return outcome


async def test_an_answer_that_is_here_when_its_time_ends_is_taken() -> None:
    """It was the process that came late to both."""
    assert [b"x"] == await asked(Held(answers=True))


async def test_no_answer_by_then_is_late() -> None:
    """However late it is that anybody looks."""
    assert LATE is await asked(Held(answers=False))
