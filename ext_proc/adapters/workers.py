"""Do what takes milliseconds in processes of their own, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from ext_proc.adapters.worker_process import HEADER
from filters.errors import PortError

T = TypeVar("T")

MOST_WORKERS: Final = 2  # each holds 20 MB and more; what does not fit goes on as it was
MOST_WAITING: Final = 32  # at 20 ms each the last one waits for a third of a second
# Work that is late may be almost done, and a process costs 0.2 s to start.
GRACE_S: Final = 2.0
_SCRIPT: Final = Path(__file__).with_name("worker_process.py")


class WorkerPool:
    """The `Workers` of a server: a few processes, started when they are first needed.

    The deadline of a piece of work counts from the call, its time in the queue included. Late work
    has `grace_s` more to end, unheard; then its process is killed, and another one started for the
    next piece.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        most_waiting: int = MOST_WAITING,
        grace_s: float = GRACE_S,
    ) -> None:
        """Take `size` processes, by default one for each spare core up to `MOST_WORKERS`."""
        self.size: Final = size or max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) - 1))
        self.waiting = 0
        """Pieces of work that no process took up yet."""
        self.late = 0
        """Pieces that were not done at their deadline."""
        self.rejected = 0
        """Pieces that found the queue full."""
        self.died = 0
        """Processes that ended before their work did."""
        self._most_waiting: Final = most_waiting
        self._grace_s: Final = grace_s
        self._workers: Final = [_Worker() for _ in range(self.size)]
        # The last one to be free is the first to be taken: a second process starts only when one
        # is not enough.
        self._free: Final[asyncio.LifoQueue[_Worker]] = asyncio.LifoQueue()
        for worker in reversed(self._workers):
            self._free.put_nowait(worker)
        self._jobs: Final[set[asyncio.Task[bytes]]] = set()
        self._closed = False

    @property
    def busy(self) -> int:
        """How many processes work."""
        return len(self._jobs)

    async def run(self, work: Callable[..., T], *arguments: Any, deadline_s: float) -> T:
        """Return `work(*arguments)`, done in another process; see `filters.api.Workers`."""
        if self._closed:
            raise PortError("workers: closed")
        if self.waiting >= self._most_waiting:
            self.rejected += 1
            raise PortError("workers: the queue is full")
        ends = asyncio.get_running_loop().time() + deadline_s
        frame = pickle.dumps(
            (math.ceil(deadline_s + self._grace_s), work, arguments), pickle.HIGHEST_PROTOCOL
        )
        worker = await self._next_free(ends)
        job = asyncio.create_task(self._do(worker, frame))
        self._jobs.add(job)
        job.add_done_callback(self._job_ended)
        try:
            await asyncio.wait((job,), timeout=ends - asyncio.get_running_loop().time())
        finally:
            if not job.done():  # late, or whoever asked is gone
                asyncio.get_running_loop().call_later(self._grace_s, job.cancel)
        if not job.done():
            self.late += 1
            raise PortError("workers: late")
        if job.cancelled():
            raise PortError("workers: closed")
        good, result = pickle.loads(job.result())  # noqa: S301 - from our own child
        if not good:
            raise PortError(f"workers: {result}")
        value: T = result
        return value

    async def close(self) -> None:
        """End every process, whatever it does."""
        self._closed = True
        for job in tuple(self._jobs):
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for worker in self._workers:
            await worker.stop()

    async def _next_free(self, ends: float) -> _Worker:
        self.waiting += 1
        try:
            async with asyncio.timeout_at(ends):
                return await self._free.get()
        except TimeoutError:
            self.late += 1
            raise PortError("workers: late in the queue") from None
        finally:
            self.waiting -= 1

    async def _do(self, worker: _Worker, frame: bytes) -> bytes:
        """Have `worker` answer `frame`, and give it back whatever happens."""
        try:
            return await worker.answer(frame)
        except (OSError, asyncio.IncompleteReadError):
            self.died += 1
            await worker.stop()
            raise PortError("workers: a process ended before its work") from None
        except BaseException:
            await worker.stop()
            raise
        finally:
            self._free.put_nowait(worker)

    def _job_ended(self, job: asyncio.Task[bytes]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            job.exception()  # nobody may be left to hear it


class _Worker:
    """One process, or the place of one."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def answer(self, frame: bytes) -> bytes:
        """Send `frame` and return what comes back; start the process when there is none."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(_SCRIPT), stdin=PIPE, stdout=PIPE
            )
            self._send(pickle.dumps(sys.path))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._send(frame)
        await self._process.stdin.drain()
        (size,) = HEADER.unpack(await self._process.stdout.readexactly(HEADER.size))
        return await self._process.stdout.readexactly(size)

    def _send(self, frame: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(HEADER.pack(len(frame)))
        self._process.stdin.write(frame)

    async def stop(self) -> None:
        """Kill the process and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
