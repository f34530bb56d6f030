"""Hear what the replicas of a pool say of their prefix caches, over ZeroMQ, as vLLM says it.

Each replica numbers what it says. What was missed is asked for again; a number that goes back is
that of a replica that began anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import zmq

from ext_proc.adapters.kv_settings import Heard, Place
from ext_proc.adapters.kv_wire import MOST_BATCH_BYTES, Batch, BatchReader

TICK_S: Final = 0.02
"""Between two looks; what comes in meanwhile waits in ZeroMQ's own thread."""
BUDGET_S: Final = 0.002
"""What a look takes at most, or one batch more: the rest waits for the next one."""
REST_TIMES: Final = 10
"""As many times what a look took passes until the next one: batches that take long come seldom."""
MOST_WAITING: Final = 1_000
"""Batches of a replica that wait; more are lost, and asked for again."""
MOST_REPLAYED: Final = 20_000
"""vLLM keeps 10,000 by default."""
REPLAY_S: Final = 2.0
"""How long the next batch of those asked for again is waited for."""
REST_S: Final = 5.0
"""A replica is not asked again sooner than that: who cannot keep up would only fall back more."""
MOST_SOCKETS: Final = 4_096
"""Two for each replica, of which a pool may have 1,024; ZeroMQ's own bound is 1,023."""
NUMBER_BYTES: Final = 8
_END: Final = b"\xff" * NUMBER_BYTES
_PARTS: Final = 3


class Listener(Protocol):
    """Who is told what replicas say."""

    def heard(self, address: str, batch: Batch) -> None:
        """Take what a replica says; raise `ValueError` where it makes no sense."""

    def began(self, address: str) -> None:
        """Know that a replica began anew, and holds nothing."""


def rest_after(took_s: float, tick_s: float) -> float:
    """Return how long to leave replicas alone after a look that took so long."""
    return max(tick_s, REST_TIMES * took_s)


class KvEvents:
    """Listens to each replica it is given. Needs a running event loop; `close` ends it."""

    def __init__(
        self,
        listener: Listener,
        *,
        tick_s: float = TICK_S,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Listen to nobody yet. `clock` tells seconds from any point on."""
        self.heard: Final = Heard()
        self._listener: Final = listener
        self._tick_s: Final = tick_s
        self._budget_s: Final = budget_s
        self._clock: Final = clock
        self._context: Final[zmq.Context[zmq.Socket[bytes]]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
        self._feeds: Final[dict[str, _Feed]] = {}
        self._turns: Final[deque[_Feed]] = deque()
        self._task: asyncio.Task[None] | None = None

    def follow(self, places: Mapping[str, Place]) -> None:
        """Listen to these replicas from now on, and to no others."""
        for address in list(self._feeds):
            if places.get(address) != self._feeds[address].place:
                self._feeds.pop(address).close()
        for address, place in places.items():
            if address not in self._feeds:
                self._feeds[address] = _Feed(
                    self._context, address, place, self._listener, self.heard
                )
        self._turns.clear()
        self._turns.extend(self._feeds.values())
        if self._task is None and self._feeds:
            self._task = asyncio.create_task(self._look_on())

    def close(self) -> None:
        """Listen to nobody any more."""
        self.follow({})
        if self._task is not None:
            self._task.cancel()
        self._context.destroy(linger=0)

    def look(self) -> bool:
        """Read what came in, for so long at most; tell whether that was all of it."""
        end_s = self._clock() + self._budget_s
        quiet = 0
        while quiet < len(self._turns):
            feed = self._turns[0]
            self._turns.rotate(-1)  # one batch of each in turn: nobody drowns out the others
            now_s = self._clock()
            quiet = 0 if feed.step(now_s) else quiet + 1
            if now_s >= end_s and quiet < len(self._turns):
                self.heard.behind += 1
                return False
        return True

    async def _look_on(self) -> None:
        rest_s = self._tick_s
        while True:
            await asyncio.sleep(rest_s)
            began_s = self._clock()
            with suppress(zmq.ZMQError):  # a socket that broke is made anew with its replica
                self.look()
            rest_s = rest_after(self._clock() - began_s, self._tick_s)


class _Feed:
    """What one replica says."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        place: Place,
        listener: Listener,
        heard: Heard,
    ) -> None:
        self.place: Final = place
        self._context: Final = context
        self._address: Final = address
        self._listener: Final = listener
        self._heard: Final = heard
        self._reader = BatchReader()
        self._live: Final = self._open(zmq.SUB, place.events, MOST_WAITING)
        self._live.subscribe(place.topic)
        self._replay: zmq.Socket[bytes] | None = None
        self._replay_end_s = 0.0
        self._rests_until_s = 0.0
        self._held: tuple[int, bytes] | None = None
        """What came after what was missed, until that is there."""
        self._next = 0
        """The number of the batch that is to come."""
        self._last: int | None = None
        """That of the last one that came by itself."""

    def close(self) -> None:
        """Let go of it."""
        self._live.close(linger=0)
        self._end_replay()

    def step(self, now_s: float) -> bool:
        """Read a batch; return False when there is none."""
        if self._replay is not None:
            return self._step_replay(self._replay, now_s)
        try:
            parts = self._live.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        if len(parts) != _PARTS or len(parts[1]) != NUMBER_BYTES:
            self._heard.malformed += 1
            return True
        self._take(int.from_bytes(parts[1], "big"), parts[2], now_s)
        return True

    def _take(self, number: int, payload: bytes, now_s: float) -> None:
        if self._last is not None and number <= self._last:
            self._heard.restarts += 1
            self._reader, self._next = BatchReader(), 0
            self._rests_until_s = 0.0
            self._listener.began(self._address)
        first = self._last is None
        self._last = number
        if number < self._next:
            return  # it was asked for again, and came before
        if number > self._next:
            if self.place.replay and now_s >= self._rests_until_s:
                self._held = (number, payload)
                self._ask_again(now_s)
                return
            if not first:  # else it began before us
                self._heard.lost += number - self._next
        self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        self._heard.batches += 1
        try:
            self._listener.heard(self._address, self._reader.read(payload))
        except Exception:  # noqa: BLE001 - whatever is in a batch, the next one is to be read
            self._heard.malformed += 1

    # --- What was missed --------------------------------------------------------------------------

    def _ask_again(self, now_s: float) -> None:
        self._replay = self._open(zmq.DEALER, self.place.replay, MOST_REPLAYED)
        self._replay_end_s = now_s + REPLAY_S
        self._replay.send_multipart((b"", self._next.to_bytes(NUMBER_BYTES, "big")))

    def _step_replay(self, replay: zmq.Socket[bytes], now_s: float) -> bool:
        try:
            parts = replay.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            if now_s < self._replay_end_s:
                return False
            parts = [b"", _END, b""]
        self._replay_end_s = now_s + REPLAY_S
        if len(parts) != _PARTS or len(parts[1]) != NUMBER_BYTES:
            self._heard.malformed += 1
        elif parts[1] == _END:
            self._end_replay()
            self._rests_until_s = now_s + REST_S
            if self._held is not None:
                (number, payload), self._held = self._held, None
                if number >= self._next:
                    self._heard.lost += number - self._next
                    self._apply(number, payload)
        elif (number := int.from_bytes(parts[1], "big")) >= self._next:
            self._heard.lost += number - self._next
            self._heard.replayed += 1
            self._apply(number, parts[2])
        return True

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close(linger=0)
            self._replay = None

    def _open(self, kind: int, endpoint: str, most: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, most)
        socket.set(zmq.MAXMSGSIZE, MOST_BATCH_BYTES)
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.RECONNECT_IVL, 100)
        socket.set(zmq.RECONNECT_IVL_MAX, 2_000)
        socket.set(zmq.HEARTBEAT_IVL, 5_000)  # a connection that died unnoticed is made anew
        socket.set(zmq.HEARTBEAT_TIMEOUT, 10_000)
        with suppress(zmq.ZMQError):  # a replica whose address ZeroMQ cannot use says nothing
            socket.connect(endpoint)
        return socket
