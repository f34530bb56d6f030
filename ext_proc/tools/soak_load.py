"""Ask a gateway a great many things at once, some of them as clients that leave too early.

A child reads one `Mix`, works it off, and writes a `State` a line now and then, and a last one when
the last client has gone.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count
from typing import Final, Self, cast

import msgspec

from ext_proc.tools.load import DIGITS, END_S, Client, Tally
from ext_proc.tools.place import LOOPBACK

TICK_S: Final = 0.02
STALLED_S: Final = 30.0  # a gateway that answers nobody for so long will not any more
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: the connection is reset, not closed


class Way(msgspec.Struct, frozen=True):
    """Connections that ask the same way, each again as soon as it was answered."""

    name: str
    before: bytes
    """The request up to a number of `DIGITS` digits."""
    after: bytes
    """The rest of it."""
    unique: bool
    """Every request has a number of its own; else all have the same."""
    expect: bytes
    """A line of the reply's head without which it is an error; empty: none."""
    connections: int


class Exit(msgspec.Struct, frozen=True):
    """How a client leaves too early."""

    name: str
    before: bytes
    """What it sends up to a number of `DIGITS` digits."""
    after: bytes | None
    """The rest of what it sends; None: not even the number."""
    pause_s: float | None
    """When it leaves after that; None: with the first bytes of the reply."""


class Mix(msgspec.Struct, frozen=True):
    """What is asked in all."""

    port: int
    ways: tuple[Way, ...]
    requests: int
    """Over all ways; not fewer than connections."""
    exits: tuple[Exit, ...] = ()
    leaving: int = 0
    """How many leave too early, spread evenly over the requests and the exits."""
    first: int = 0
    """The first number of a unique request."""
    state_s: float = 1.0
    """How often it is told how far it is."""


class State(msgspec.Struct, frozen=True):
    """How far it is."""

    answered: dict[str, int]
    """By way."""
    left: dict[str, int]
    """By exit."""
    errors: dict[str, int]
    done: bool


class Leaver(asyncio.Protocol):
    """A client that goes away; every other one resets its connection."""

    def __init__(self, way: Exit, number: int) -> None:
        self._way: Final = way
        self._number: Final = number
        self._loop: Final = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.ended: Final = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        way = self._way
        if way.after is None:
            self._transport.write(way.before)
        else:
            self._transport.write(b"%b%0*d%b" % (way.before, DIGITS, self._number, way.after))
        if way.pause_s is not None:
            self._loop.call_later(way.pause_s, self._leave)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._way.pause_s is None:
            self._leave()

    def connection_lost(self, _: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _leave(self) -> None:
        assert self._transport is not None
        if self._number % 2:
            reset: socket.socket = self._transport.get_extra_info("socket")
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()


class Load:
    """Works a mix off."""

    def __init__(self, mix: Mix) -> None:
        self._mix: Final = mix
        self._numbers: Final = count(mix.first)
        self._asked = 0
        self._clients: Final[list[Client]] = []
        self._transports: Final[list[asyncio.Transport]] = []
        self._tallies: Final = {way.name: Tally() for way in mix.ways}
        self._answered: Final[Counter[str]] = Counter()
        self._left: Final[Counter[str]] = Counter()
        self._errors: Final[Counter[str]] = Counter()
        self._leaving: Final[set[asyncio.Task[None]]] = set()
        self._began_to_leave = 0

    async def run(self) -> AsyncIterator[State]:
        """Ask everything; yield how far it is."""
        mix, loop = self._mix, asyncio.get_running_loop()
        for way in mix.ways:
            self._tallies[way.name].open = True
            for _ in range(way.connections):
                transport, client = await loop.create_connection(
                    partial(self._client, way), LOOPBACK, mix.port
                )
                self._transports.append(transport)
                self._clients.append(client)
        open_clients = {client.ended for client in self._clients}
        still, told = 0, loop.time()
        while open_clients and still * TICK_S < STALLED_S:
            _, open_clients = await asyncio.wait(open_clients, timeout=TICK_S)
            before = self._answered.total()
            answered = self._count()
            still = 0 if answered > before else still + 1
            self._send_leavers(mix.leaving * min(answered, mix.requests) // mix.requests)
            if loop.time() - told >= mix.state_s:
                told = loop.time()
                yield self._state()
        if open_clients:
            self._errors["no reply"] += len(open_clients)
        if self._leaving:
            await asyncio.wait(self._leaving)
        self._count()
        for transport in self._transports:
            transport.abort()
        yield self._state(done=True)

    def _client(self, way: Way) -> Client:
        return Client(self._requests(way), way.expect, self._tallies[way.name])

    def _requests(self, way: Way) -> Iterator[bytes]:
        while True:
            self._asked += 1
            if self._asked >= self._mix.requests:
                for client in self._clients:
                    client.stopping = True
            number = next(self._numbers) if way.unique else 0
            yield b"%b%0*d%b" % (way.before, DIGITS, number, way.after)

    def _count(self) -> int:
        """Take what the tallies hold; return how many were answered in all."""
        for name, tally in self._tallies.items():
            self._answered[name] += len(tally.latencies_ns)
            tally.latencies_ns.clear()
            for what, number in tally.errors.items():
                self._errors[f"{name}: {what}"] += number
            tally.errors.clear()
        return self._answered.total()

    def _send_leavers(self, due: int) -> None:
        while self._began_to_leave < due:
            number, self._began_to_leave = self._began_to_leave, self._began_to_leave + 1
            exits = self._mix.exits
            task = asyncio.create_task(self._leave(exits[number % len(exits)]))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, way: Exit) -> None:
        loop, number = asyncio.get_running_loop(), next(self._numbers)
        try:
            async with asyncio.timeout(END_S):
                transport, leaver = await loop.create_connection(
                    lambda: Leaver(way, number), LOOPBACK, self._mix.port
                )
                try:
                    await leaver.ended
                finally:
                    transport.abort()
        except TimeoutError:
            self._errors[f"{way.name}: nothing came to leave from"] += 1
        except OSError as error:
            self._errors[f"{way.name}: {type(error).__name__}"] += 1
        else:
            self._left[way.name] += 1

    def _state(self, *, done: bool = False) -> State:
        return State(dict(self._answered), dict(self._left), dict(self._errors), done)


class SoakLoad:
    """The child, seen from who measures."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process: Final = process

    @classmethod
    async def start(cls) -> Self:
        """Start the child."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ext_proc.tools.soak_load"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def run(self, mix: Mix) -> AsyncIterator[State]:
        """Have a mix worked off; raise `RuntimeError` when the child ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(mix) + b"\n")
        while line := await self._process.stdout.readline():
            state = msgspec.json.decode(line, type=State)
            yield state
            if state.done:
                return
        raise RuntimeError("the load generator ended")

    async def stop(self) -> None:
        """End the child."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def work_off(mix: Mix) -> None:
    """Run a mix and write its states."""
    async for state in Load(mix).run():
        sys.stdout.buffer.write(msgspec.json.encode(state) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Work off mixes until the input ends."""
    import uvloop

    gc.disable()  # a client's circles are few and small: a pause would cost more
    for line in sys.stdin.buffer:
        uvloop.run(work_off(msgspec.json.decode(line, type=Mix)))
        gc.collect()


if __name__ == "__main__":
    main()
