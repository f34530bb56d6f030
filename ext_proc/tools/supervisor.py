"""Keep programs running: started together, started again when they fall, never left behind.

A child that ends before it was ready once is an error, as its arguments or its files are wrong.
Later it is started again: at once at first, then after ever longer pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from filters.errors import ConfigError

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
STEADY_S: Final = 10.0  # who ran for so long is forgiven what it did before
START_S: Final = 30.0  # a first import on a slow disk takes a few seconds
STOP_S: Final = 4.0  # longer than the drain that a derived configuration allows
PROBE_S: Final = 1.0
POLL_S: Final = 0.03
LINE_BYTES: Final = 1 << 20  # the longest line of a log that is read whole
KEPT_LINES: Final = 20
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


Pumps: TypeAlias = "asyncio.Future[tuple[None, None]]"
"""What reads a child's two outputs."""


@dataclass(slots=True)
class Child:
    """A program to keep running; `ready` tells whether it does its work yet."""

    name: str
    argv: Sequence[str]
    ready: Callable[[], Awaitable[bool]]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment; an empty value takes a variable out."""
    on_line: Callable[[str], None] = lambda _line: None
    """Gets each line that it writes."""
    stdout: int = asyncio.subprocess.PIPE
    """A file descriptor that takes its standard output in `on_line`'s stead."""
    start_s: float = START_S
    """How long it may take until it is ready."""
    behind: Sequence[Child] = ()
    """Those that it sends work to: it is started once they are ready. Later all fall and come back
    by themselves."""
    was_ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))


class Supervisor:
    """Runs children until told to stop; `say` gets a sentence for each thing that happens."""

    def __init__(self, children: Sequence[Child], say: Callable[[str], None]) -> None:
        self._children: Final = children
        self._say: Final = say
        self._tasks: Final[list[asyncio.Task[None]]] = []

    async def start(self, on_ready: Callable[[str], None]) -> None:
        """Start all and wait until all are ready; raise `ConfigError` for one that is not."""
        starts = [asyncio.create_task(self._start(child, on_ready)) for child in self._children]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def stop(self) -> None:
        """End all: asked at first, killed when that takes too long."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(_end(child) for child in self._children))

    async def _start(self, child: Child, on_ready: Callable[[str], None]) -> None:
        for other in child.behind:
            await other.was_ready.wait()
        pumps = await self._spawn(child)
        ended = asyncio.create_task(_process(child).wait())
        ready = asyncio.create_task(_until_ready(child))
        try:
            await asyncio.wait(
                (ended, ready), timeout=child.start_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                await _drained(pumps)
                raise ConfigError(child.name, f"ended {_how(child)}{_last_words(child)}")
            if not ready.done():
                text = f"was not ready after {child.start_s:.0f} s{_last_words(child)}"
                raise ConfigError(child.name, text)
        finally:
            ready.cancel()
            ended.cancel()
        child.was_ready.set()
        on_ready(child.name)
        self._tasks.append(asyncio.create_task(self._keep(child, pumps)))

    async def _keep(self, child: Child, pumps: Pumps) -> None:
        """Start a child again, whenever it ends."""
        pause, began = FIRST_PAUSE_S, time.monotonic()
        while True:
            await _process(child).wait()
            await _drained(pumps)
            ended = time.monotonic()
            if ended - began > STEADY_S:
                pause = FIRST_PAUSE_S
            self._say(f"{child.name} ended {_how(child)}; again in {pause:.1f} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            began = time.monotonic()
            pumps = await self._spawn(child)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(child.start_s):
                    await _until_ready_or_ended(child)
            if _process(child).returncode is None:
                self._say(f"{child.name} is back after {time.monotonic() - ended:.1f} s")

    async def _spawn(self, child: Child) -> Pumps:
        child.last_lines.clear()
        env = {**os.environ, **child.env}
        child.process = process = await asyncio.create_subprocess_exec(
            *child.argv,
            env={name: value for name, value in env.items() if value},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=child.stdout,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
            preexec_fn=_die_with(os.getpid()),
        )
        return asyncio.gather(_pump(child, process.stdout), _pump(child, process.stderr))


async def answers(port: int, path: str) -> bool:
    """Tell whether a server on this machine answers 200."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
                )
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return what has a child killed when its parent dies; only Linux can."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare


def _process(child: Child) -> asyncio.subprocess.Process:
    assert child.process is not None
    return child.process


async def _pump(child: Child, stream: asyncio.StreamReader | None) -> None:
    while stream is not None:
        try:
            raw = await stream.readline()
        except ValueError:  # a longer line; its beginning is gone
            continue
        if not raw:
            return
        line = raw.decode(errors="replace").rstrip()
        child.last_lines.append(line)
        child.on_line(line)


async def _drained(pumps: Pumps) -> None:
    """Wait for what a process wrote last; not for a grandchild that still holds its pipe."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_S):
            await pumps


async def _until_ready(child: Child) -> None:
    while not await child.ready():  # noqa: ASYNC110  # other processes cannot set our events
        await asyncio.sleep(POLL_S)


async def _until_ready_or_ended(child: Child) -> None:
    ready = asyncio.create_task(_until_ready(child))
    ended = asyncio.create_task(_process(child).wait())
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
        ended.cancel()


async def _end(child: Child) -> None:
    process = child.process
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _how(child: Child) -> str:
    code = _process(child).returncode
    assert code is not None
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _last_words(child: Child) -> str:
    """Return the line that most likely says why, after a colon."""
    telling = [line for line in child.last_lines if "critical" in line or "rror" in line]
    lines = telling or [line for line in child.last_lines if line]
    return f": {lines[-1]}" if lines else ""
