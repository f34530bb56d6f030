"""Ask a gateway as fast as it answers: a closed loop of HTTP/1.1 connections in its own process.

It shares the machine with what it measures and so does little: requests are bytes made before, a
reply is looked at only for its status, one header line and its end. A child reads one `Slice` a
line and writes one `Result` a line.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, cast

import msgspec

DIGITS: Final = 12  # of the number that makes a prompt like no other
END_S: Final = 10.0  # for replies that are on their way when a slice ends
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "
_CHUNKED: Final = b"\r\ntransfer-encoding: chunked"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Slice(msgspec.Struct, frozen=True):
    """One scenario for some seconds."""

    port: int
    before: bytes
    """The request up to a number of `DIGITS` digits."""
    after: bytes
    """The rest of it."""
    unique: bool
    """Every request has a number of its own; else all have the same."""
    expect: bytes
    """A line of the reply's head without which it is an error; empty: none."""
    connections: int
    warm_up_s: float
    seconds: float
    pids: tuple[int, ...]
    """Processes whose CPU time is taken along."""
    first: int = 0
    """The first number of a unique request."""


class Result(msgspec.Struct, frozen=True):
    """What was seen between the end of the warm-up and the end of the slice."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    cpu_ns: tuple[int, ...]
    """CPU time of each process of the slice."""
    errors: dict[str, int]
    last: int
    """The number of the last request."""


def cpu_clock_ns(pid: int) -> int:
    """Return the CPU time of a process, its ended threads included; raise `OSError` without it.

    The id of a process's clock is what clock_getcpuclockid(3) would return on Linux.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


class Tally:
    """Counts replies while it is open."""

    def __init__(self) -> None:
        self.open = False
        self.latencies_ns: list[int] = []
        self.errors: Counter[str] = Counter()

    def error(self, what: str) -> None:
        """Count a reply that is not what it should be."""
        if self.open:
            self.errors[what] += 1


class Client(asyncio.Protocol):
    """One connection: asks again as soon as the reply is whole, until told to stop."""

    def __init__(self, requests: Iterator[bytes], expect: bytes, tally: Tally) -> None:
        self._requests: Final = requests
        self._expect: Final = expect
        self._tally: Final = tally
        self._transport: asyncio.Transport | None = None
        self._kept = b""
        self._missing = 0
        """Bytes of the reply's body that are still to come."""
        self._chunked = False
        self._asked_ns = 0
        self.stopping = False
        self.ended: Final = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.ended.done():
            self._tally.errors["connection lost"] += 1  # whenever: one less asks from now on
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._missing:
            self._missing -= len(data)
            if self._missing <= 0:
                self._answered()
            return
        if self._chunked:
            self._read_chunks(data)
            return
        if self._kept:
            data, self._kept = self._kept + data, b""
        end = data.find(_HEAD_END)
        if end < 0:
            self._kept = data
            return
        end += 4
        if data[9:12] != b"200":
            self._tally.error(f"status {data[9:12].decode('latin-1')}")
        elif self._expect and data.find(self._expect, 0, end) < 0:
            self._tally.error(f"no {self._expect.decode('latin-1').strip()}")
        at = data.find(_LENGTH, 0, end)
        if at >= 0:
            at += len(_LENGTH)
            length = int(data[at : data.index(b"\r", at)])
            self._missing = length - (len(data) - end)
            if self._missing <= 0:
                self._answered()
        elif data.find(_CHUNKED, 0, end) >= 0:
            self._chunked = True
            self._read_chunks(data[end:])
        else:
            self._tally.error("a reply without a length")
            self._answered()

    def _read_chunks(self, data: bytes) -> None:
        # The last chunk may itself be cut: its bytes so far are kept.
        tail = (self._kept + data)[-len(_LAST_CHUNK) :]
        if tail == _LAST_CHUNK:
            self._kept, self._chunked = b"", False
            self._answered()
        else:
            self._kept = tail

    def _ask(self) -> None:
        assert self._transport is not None
        self._asked_ns = time.monotonic_ns()
        self._transport.write(next(self._requests))

    def _answered(self) -> None:
        self._missing = 0
        if self._tally.open:
            self._tally.latencies_ns.append(time.monotonic_ns() - self._asked_ns)
        if not self.stopping:
            self._ask()
        elif not self.ended.done():
            self.ended.set_result(None)
            assert self._transport is not None
            self._transport.close()


async def run_slice(what: Slice) -> Result:
    """Load the gateway for one slice and let its last replies come in."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    numbers = count(what.first)
    requests = _requests(what, numbers)
    made = [
        loop.create_connection(lambda: Client(requests, what.expect, tally), "127.0.0.1", what.port)
        for _ in range(what.connections)
    ]
    clients = [client for _, client in await asyncio.gather(*made)]
    await asyncio.sleep(what.warm_up_s)
    tally.open = True
    began_ns, cpu_before = time.monotonic_ns(), [cpu_clock_ns(pid) for pid in what.pids]
    await asyncio.sleep(what.seconds)
    cpu_after, ended_ns = [cpu_clock_ns(pid) for pid in what.pids], time.monotonic_ns()
    latencies_ns = sorted(tally.latencies_ns)
    for client in clients:
        client.stopping = True
    _, late = await asyncio.wait([client.ended for client in clients], timeout=END_S)
    if late:
        tally.errors["no reply"] += len(late)
    return Result(
        requests=len(latencies_ns),
        seconds=(ended_ns - began_ns) / 1e9,
        p50_ms=_percentile(latencies_ns, 0.50) / 1e6,
        p99_ms=_percentile(latencies_ns, 0.99) / 1e6,
        cpu_ns=tuple(after - before for before, after in zip(cpu_before, cpu_after, strict=True)),
        errors=dict(tally.errors),
        last=next(numbers),
    )


def _requests(what: Slice, numbers: Iterator[int]) -> Iterator[bytes]:
    before, after = what.before, what.after
    if not what.unique:
        same = b"%b%0*d%b" % (before, DIGITS, 0, after)
        while True:
            yield same
    for number in numbers:
        yield b"%b%0*d%b" % (before, DIGITS, number, after)


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0


class LoadProcess:
    """The child, seen from who measures."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process: Final = process

    @classmethod
    async def start(cls) -> LoadProcess:
        """Start the child."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ext_proc.tools.load"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def run(self, what: Slice) -> Result:
        """Have one slice run; raise `RuntimeError` when the child ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        return msgspec.json.decode(line, type=Result)

    async def stop(self) -> None:
        """End the child; it takes the end of its input for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def main() -> None:
    """Run slices until the input ends."""
    import uvloop

    gc.disable()  # a slice makes no cycles worth a pause
    for line in sys.stdin.buffer:
        result = uvloop.run(run_slice(msgspec.json.decode(line, type=Slice)))
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()
        gc.collect()


if __name__ == "__main__":
    main()
