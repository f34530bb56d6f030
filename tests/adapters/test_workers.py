"""Work done in other processes, and what becomes of those that do not end."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ext_proc.adapters import worker_process
from ext_proc.adapters.workers import WorkerPool
from ext_proc.app import open_workers
from filters.errors import PortError
from tests.ext_proc.test_telemetry import Books
from tests.fakes import FakeWorkers, drive

PATIENCE_S = 60.0
SCRIPT = Path(worker_process.__file__)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    """Open one process, in which late work gets no grace, and a queue of one."""
    pool = WorkerPool(1, most_waiting=1, grace_s=0)
    yield pool
    await pool.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what this waits for tells nobody
            await asyncio.sleep(0)


async def pid_of(pool: WorkerPool) -> int:
    return await pool.run(os.getpid, deadline_s=PATIENCE_S)


async def test_work_is_done_in_a_process_that_stays(pool: WorkerPool) -> None:
    """The second piece finds it started."""
    first = await pid_of(pool)
    assert os.getpid() != first
    assert first == await pid_of(pool)


async def test_nothing_is_started_before_there_is_work(pool: WorkerPool) -> None:
    """A server whose profiles need no process has none."""
    assert [None] == [worker._process for worker in pool._workers]


async def test_arguments_and_results_travel(pool: WorkerPool) -> None:
    """What can be pickled can be worked on, a megabyte included."""
    assert "x" * 1_000_000 == await pool.run("".join, ["x" * 1_000_000], deadline_s=PATIENCE_S)


async def test_an_error_of_the_work_is_named_and_not_quoted(pool: WorkerPool) -> None:
    """Its text may hold a prompt."""
    with pytest.raises(PortError) as failed:
        await pool.run(int, "a secret", deadline_s=PATIENCE_S)
    assert "workers: ValueError" == str(failed.value)


def test_the_fake_names_errors_as_well() -> None:
    """Filters meet the same in their tests."""
    with pytest.raises(PortError) as failed:
        drive(FakeWorkers().run(int, "a secret", deadline_s=1))
    assert "fake workers: ValueError" == str(failed.value)


async def test_what_the_work_prints_does_not_get_between_the_answers(pool: WorkerPool) -> None:
    """It goes where the server's own errors go."""
    assert 5 == await pool.run(os.write, 1, b"stray", deadline_s=PATIENCE_S)
    assert 3 == await pool.run(len, "abc", deadline_s=PATIENCE_S)


async def test_late_work_is_given_up_and_its_process_replaced(pool: WorkerPool) -> None:
    """The caller hears of it at the deadline; the next one gets a process that is free."""
    first = await pid_of(pool)
    with pytest.raises(PortError, match="workers: late"):
        await pool.run(signal.pause, deadline_s=0.01)
    assert first != await pid_of(pool)
    assert 1 == pool.late
    assert not is_alive(first)


async def test_late_work_that_ends_soon_keeps_its_process() -> None:
    """To start another costs more than to wait for this one."""
    pool = WorkerPool(1, grace_s=PATIENCE_S)
    first = await pid_of(pool)
    with pytest.raises(PortError, match="workers: late"):
        await pool.run(time.sleep, 0.05, deadline_s=0.001)
    assert first == await pid_of(pool)
    await pool.close()


async def test_a_process_that_dies_costs_one_piece_of_work(pool: WorkerPool) -> None:
    """The next one gets another process."""
    with pytest.raises(PortError, match="ended before its work"):
        await pool.run(os._exit, 3, deadline_s=PATIENCE_S)
    assert os.getpid() != await pid_of(pool)
    assert 1 == pool.died


async def test_a_process_killed_between_two_pieces_is_replaced(pool: WorkerPool) -> None:
    """At most the next piece is lost."""
    first = await pid_of(pool)
    os.kill(first, signal.SIGKILL)
    try:
        second = await pid_of(pool)
    except PortError:
        second = await pid_of(pool)
    assert first != second


async def test_a_full_queue_refuses_at_once(pool: WorkerPool) -> None:
    """Neither the loop nor the memory fills with work that would be late."""
    busy = asyncio.create_task(pool.run(signal.pause, deadline_s=PATIENCE_S))
    await until(lambda: pool.busy == 1)
    waiting = asyncio.create_task(pool.run(len, "abc", deadline_s=PATIENCE_S))
    await until(lambda: pool.waiting == 1)
    with pytest.raises(PortError, match="the queue is full"):
        await pool.run(len, "abc", deadline_s=PATIENCE_S)
    assert (1, 1, 1) == (pool.busy, pool.waiting, pool.rejected)
    busy.cancel()
    assert 3 == await waiting


async def test_the_deadline_counts_in_the_queue(pool: WorkerPool) -> None:
    """Work that was never begun is late as well."""
    busy = asyncio.create_task(pool.run(signal.pause, deadline_s=PATIENCE_S))
    await until(lambda: pool.busy == 1)
    with pytest.raises(PortError, match="late in the queue"):
        await pool.run(len, "abc", deadline_s=0.01)
    assert 0 == pool.waiting
    busy.cancel()


async def test_whoever_leaves_lets_go_of_the_process(pool: WorkerPool) -> None:
    """A client that is gone keeps nobody busy."""
    gone = asyncio.create_task(pool.run(signal.pause, deadline_s=PATIENCE_S))
    await until(lambda: pool.busy == 1)
    gone.cancel()
    assert 3 == await pool.run(len, "abc", deadline_s=PATIENCE_S)


async def test_closing_ends_every_process_and_every_wait() -> None:
    """Nothing is left behind, and nothing is taken up any more."""
    pool = WorkerPool(1, grace_s=PATIENCE_S)
    pid = await pid_of(pool)
    running = asyncio.create_task(pool.run(signal.pause, deadline_s=PATIENCE_S))
    await until(lambda: pool.busy == 1)
    await pool.close()
    with pytest.raises(PortError, match="workers: closed"):
        await running
    with pytest.raises(PortError, match="workers: closed"):
        await pool.run(len, "abc", deadline_s=PATIENCE_S)
    assert not is_alive(pid)


async def test_ctrl_c_ends_no_process(pool: WorkerPool) -> None:
    """It reaches the whole group; the server itself decides when its processes end."""
    pid = await pid_of(pool)
    os.kill(pid, signal.SIGINT)
    assert pid == await pid_of(pool)


async def test_a_second_process_starts_only_for_a_second_piece_at_once() -> None:
    """Each takes 20 MB."""
    pool = WorkerPool(2, grace_s=0)
    for _ in range(3):
        await pid_of(pool)
    assert [True, False] == [worker._process is not None for worker in pool._workers]
    one, other = await asyncio.gather(pid_of(pool), pid_of(pool))
    assert one != other
    await pool.close()


def test_a_process_ends_with_its_server() -> None:
    """Its input ends; there is nobody to tell."""
    ended = run_script(b"")
    assert (0, b"", b"") == (ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.slow
def test_work_that_never_ends_is_ended_without_its_server() -> None:
    """The kernel's alarm reaches what no deadline of the loop can."""
    frames = (pickle.dumps(sys.path), pickle.dumps((1, signal.pause, ())))
    sent = b"".join(worker_process.HEADER.pack(len(frame)) + frame for frame in frames)
    ended = run_script(sent)
    assert (-signal.SIGALRM, b"") == (ended.returncode, ended.stdout)


async def test_its_state_can_be_read() -> None:
    """How much is done and waits, and what became of the rest."""
    books = Books()
    pool = open_workers(books.telemetry)
    for name in ("busy", "waiting", "late", "rejected", "died"):
        assert 0 == books.value(f"workers_{name}")
    with pytest.raises(PortError):
        await pool.run(os._exit, 3, deadline_s=PATIENCE_S)
    assert 1 == books.value("workers_died")
    await pool.close()


def run_script(sent: bytes) -> subprocess.CompletedProcess[bytes]:
    words = (sys.executable, "-P", SCRIPT)
    return subprocess.run(words, input=sent, capture_output=True, check=False)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
