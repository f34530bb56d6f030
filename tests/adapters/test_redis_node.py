"""A server is given its time, however busy the process is that asks."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any, Final

import pytest

from ext_proc.adapters.redis_dial import Dial
from ext_proc.adapters.redis_node import LATE, RedisNode
from tests.fakes import FakeClock

LIMIT_S: Final = 1_000.0
PATIENCE_S: Final = 60.0


class OneAnswer(threading.Thread):
    """A server for one connection, who says hello and then answers a question, or does not."""

    def __init__(self, *, answers: bool) -> None:
        super().__init__(daemon=True)
        self.answers = answers
        self.was_asked = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()

    def run(self) -> None:
        """Serve until the client closes."""
        taken, _ = self._listener.accept()
        with self._listener, taken:
            while data := taken.recv(4096):
                if b"PING" in data:
                    taken.sendall(b"+PONG\r\n")
                    continue
                if self.answers:
                    taken.sendall(b"$1\r\nx\r\n")
                self.was_asked.set()


@pytest.fixture(autouse=True)
def hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give no batch up."""
    monkeypatch.setattr("ext_proc.adapters.redis_lane.HARD_LIMIT_S", 1e6)


async def asked(monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> Any:
    """Ask, and be busy until the answer must be here and its time is over."""
    server = OneAnswer(answers=answers)
    server.start()
    node = RedisNode(server.address, Dial(), FakeClock(), budget_s=LIMIT_S, lanes=1)
    node.connect()
    assert await node.connected()
    asking = asyncio.ensure_future(node.ask([("GET", "key")], LIMIT_S))
    for _ in range(3):  # it is asked in the second
        await asyncio.sleep(0)
    assert server.was_asked.wait(PATIENCE_S)  # nothing else happens in this process meanwhile
    loop = asyncio.get_running_loop()
    late_s = loop.time() + 2 * LIMIT_S
    monkeypatch.setattr(loop, "time", lambda: late_s)
    outcome = await asking
    monkeypatch.undo()
    await node.close()
    await asyncio.to_thread(server.join, PATIENCE_S)
    return outcome


async def test_an_answer_that_is_here_when_its_time_ends_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was the process that came late to both."""
    assert [b"x"] == await asked(monkeypatch, answers=True)


async def test_no_answer_by_then_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late it is that anybody looks."""
    assert LATE is await asked(monkeypatch, answers=False)
