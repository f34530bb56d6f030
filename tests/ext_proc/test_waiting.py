"""Work that may wait, and what is said before it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from ext_proc.waiting import told_before_waiting
from filters.lockstep import Lockstep
from tests.fakes import PortWait, drive

T = TypeVar("T")


class Told:
    """Keeps whether it was told, and waits or fails meanwhile when it shall."""

    def __init__(self, *, waits: bool = False, error: BaseException | None = None) -> None:
        self.times = 0
        self._waits = waits
        self._error = error

    async def tell(self) -> None:
        self.times += 1
        if self._waits:
            await PortWait("peer")
        if self._error is not None:
            raise self._error


async def ready() -> str:
    return "done"


async def waiting(times: int) -> str:
    for number in range(times):
        await PortWait(f"work {number}")
    return "done"


def test_work_that_does_not_wait_says_nothing() -> None:
    """Most requests to a profile that may wait are short."""
    told = Told()
    assert "done" == drive(_as_coroutine(told_before_waiting(ready(), told.tell)))
    assert 0 == told.times


@pytest.mark.parametrize("waits", [False, True])
def test_work_that_waits_says_so_once_and_first(waits: bool) -> None:
    """However often it waits, and also when saying so takes a while."""
    told, seen = Told(waits=waits), list[PortWait]()
    assert "done" == drive(_as_coroutine(told_before_waiting(waiting(2), told.tell)), seen)
    assert 1 == told.times
    expected = ["peer"] * waits + ["work 0", "work 1"]
    assert expected == [wait.port for wait in seen]


async def pausing(lockstep: Lockstep, *, waits: bool) -> str:
    await lockstep
    if waits:
        await PortWait("work")
        await lockstep
    return "done"


@pytest.mark.parametrize("waits", [False, True])
def test_a_pause_for_others_is_no_wait(waits: bool) -> None:
    """It is over within the same turn; a wait behind it is told as ever."""
    told, lockstep = Told(), Lockstep()
    work = _as_coroutine(told_before_waiting(pausing(lockstep, waits=waits), told.tell))
    steps: list[Any] = [lockstep, PortWait("work"), lockstep] if waits else [lockstep]
    for number, step in enumerate(steps):
        assert (step, min(number, 1)) == (work.send(None), told.times)
    with pytest.raises(StopIteration, match="done"):
        work.send(None)


def test_who_is_cancelled_in_a_pause_is_told_nothing() -> None:
    """The error is raised in the work, where it pauses."""
    told, let_go = Told(), []

    async def holding() -> None:
        try:
            await Lockstep()
        finally:
            let_go.append(True)

    work = _as_coroutine(told_before_waiting(holding(), told.tell))
    work.send(None)
    with pytest.raises(asyncio.CancelledError):
        work.throw(asyncio.CancelledError())
    assert ([True], 0) == (let_go, told.times)


def test_what_fails_in_telling_fails_the_work() -> None:
    """The work lets go of what it holds."""
    let_go = []

    async def holding() -> None:
        try:
            await PortWait("work")
        finally:
            let_go.append(True)

    told = Told(error=RuntimeError("the peer is gone"))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        drive(_as_coroutine(told_before_waiting(holding(), told.tell)))
    assert [True] == let_go


def test_an_error_of_the_work_comes_out() -> None:
    """Before a wait and after one."""

    async def failing(times: int) -> None:
        await waiting(times)
        raise ValueError(str(times))

    for times in (0, 1):
        with pytest.raises(ValueError, match=str(times)):
            drive(_as_coroutine(told_before_waiting(failing(times), Told().tell)))


async def test_futures_may_be_awaited_and_cancelled() -> None:
    """Under a real loop the work is as if it were awaited itself."""
    told = Told()
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    caught = []

    async def work() -> str:
        first = ""
        try:
            first = await answer
            await loop.create_future()
        except asyncio.CancelledError:
            caught.append(first)
            return "cancelled"
        return "never"

    task = asyncio.ensure_future(_as_coroutine(told_before_waiting(work(), told.tell)))
    loop.call_soon(answer.set_result, "answer")
    loop.call_later(0.01, task.cancel)
    assert "cancelled" == await task
    assert (["answer"], 1) == (caught, told.times)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
