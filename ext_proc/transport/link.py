"""Join a connection to its socket: all that a read gives rise to happens in one turn.

Messages are handed over as they are read, and at the end of the turn everything that was sent is
written at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ext_proc.transport.http2 import Connection, Event, Reason
from ext_proc.transport.turns import Turns, TurnStream

if TYPE_CHECKING:
    from ext_proc.transport.native import NativeServer


class Link(asyncio.Protocol):
    """One connection and its socket."""

    def __init__(self, server: NativeServer) -> None:
        self._server: Final = server
        self._loop: Final = asyncio.get_running_loop()
        self._turns: Final = Turns(self._loop, self.turn, server.broke)
        self.core: Final[Connection[TurnStream]] = Connection(
            server.routes,
            server.limits,
            make=partial(TurnStream, self._turns),
            clock=self._loop.time,
            count=server.count,
            attend=partial(self._loop.call_soon, self.turn, tuple),
        )
        self._transport: Any = None
        self._alarm_at = self.core.wake_at
        self._alarm = self._loop.call_at(self._alarm_at, self._wake)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = transport
        self._server.links.add(self)
        self.turn(self.core.drain if self._server.draining else tuple)

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        self.turn(partial(self.core.receive, data))

    def connection_lost(self, exc: Exception | None) -> None:
        """End what is still open."""
        self._transport = None
        self._alarm.cancel()
        self.turn(self.core.lost)

    def pause_writing(self) -> None:
        """Let messages wait: the peer does not read."""
        self.core.paused = True

    def resume_writing(self) -> None:
        """Send what waited."""
        self.core.paused = False
        self.turn(tuple)

    def abort(self) -> None:
        """Leave the peer, whatever was not sent."""
        if self._transport is not None:
            self._transport.abort()

    def turn(self, work: Callable[[], Iterable[Event[TurnStream]]]) -> None:
        """Take the events of some work and write what is to be sent after it."""
        core, turns = self.core, self._turns
        core.attended = True
        try:
            for stream, what in work():
                turns.take(stream, what)
            turns.settle(core.left)
            while (output := core.output()) and self._transport is not None:
                self._transport.write(output)
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this connection only
            turns.rest()
            self._server.broke(error)
            self.abort()
        core.attended = False
        if core.wake_at < self._alarm_at:
            self._alarm.cancel()
            self._alarm_at = core.wake_at
            self._alarm = self._loop.call_at(self._alarm_at, self._wake)
        if self._transport is None:
            self._server.leave(self)
        elif core.closing:
            self._transport.close()
        elif core.paused and self._transport.get_write_buffer_size() > core.limits.unread_bytes:
            self._server.count(Reason.UNREAD)
            self.abort()

    def _wake(self) -> None:
        self._alarm_at = float("inf")
        self.turn(self.core.wake)
