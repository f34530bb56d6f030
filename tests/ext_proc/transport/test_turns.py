"""Handlers in place and as tasks: order, waits, ends, and what asyncio expects of a task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from ext_proc.transport import Handler, turns
from ext_proc.transport.http2 import End, Event
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.turns import Turn, Turns, TurnStream
from tests.http2_peer import PATH, SMALL, Peer, data, headers, message, say, summary

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="outside")


class Served:
    """A connection whose streams are handed over in turn; waits go on as the loop says."""

    def __init__(self, handler: Handler) -> None:
        self.broken: list[BaseException] = []
        self.turns = Turns(asyncio.get_running_loop(), self._turn, self.broken.append)
        self.streams: list[TurnStream] = []
        self.sent: list[tuple[Any, ...]] = []
        self.peer = Peer(routes={PATH: handler}, react=self._take, make=self._make, done=False)

    def _make(self, *what: Any) -> TurnStream:
        stream = TurnStream(self.turns, *what)
        self.streams.append(stream)
        return stream

    def _take(self, stream: Any, what: bytes | End) -> None:
        self.turns.take(stream, what)

    def _turn(self, work: Callable[[], Iterable[Event[TurnStream]]]) -> None:
        self.peer.connection.attended = True
        for stream, what in work():
            self.turns.take(stream, what)
        self.turns.settle(self.peer.connection.left)  # type: ignore[arg-type] # it made them
        self.sent += summary(self.peer.turn(()))

    def send(self, *parts: bytes) -> None:
        """Let the peer send, in a turn."""
        self.sent += summary(self.peer.send(*parts))
        self._turn(tuple)

    @property
    def idle(self) -> bool:
        """Whether no handler is at work."""
        return self.peer.connection.working == 0


class Calls:
    """Keeps what it is called with; what a message asks for is done."""

    def __init__(self, **doing: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self.doing = doing
        self.calls: list[tuple[int, bytes | None]] = []

    async def __call__(self, stream: Any, message: bytes | None) -> None:
        self.calls.append((stream.id, message))
        do = self.doing.get((message or b"").decode())
        if do is not None:
            await do(stream)


async def settle() -> None:
    """Let the loop run all that is ready, and what that makes ready."""
    for _ in range(20):
        await asyncio.sleep(0)


def tasks() -> set[Any]:
    """Return the tasks of this loop but for the test's own."""
    return {*asyncio.all_tasks()} - {asyncio.current_task()}


# --- In place ------------------------------------------------------------------------------------


async def test_a_handler_that_does_not_wait_runs_in_place() -> None:
    """Before the next frame is read, and no task is made."""
    calls = Calls()
    served = Served(calls)
    served.send(headers(1), say(1, b"a"), say(1, b"b", end=True))
    assert [(1, b"a"), (1, b"b"), (1, None)] == calls.calls
    assert set() == tasks()
    assert served.idle


async def test_the_first_steps_of_a_handler_are_in_a_task_already() -> None:
    """Code that asks for the current task finds one, before its first wait and after."""
    found: list[Any] = []

    async def look(_: Any) -> None:
        found.append(asyncio.current_task())
        await asyncio.sleep(0)
        found.append(asyncio.current_task())

    outside = asyncio.current_task()
    served = Served(Calls(look=look))
    served.send(headers(1), say(1, b"look"))
    assert outside is asyncio.current_task()
    await settle()
    first, second = found
    assert isinstance(first, Turn)
    assert first is second
    assert outside is asyncio.current_task()


async def test_what_a_handler_sets_in_its_context_stays_there() -> None:
    """Over its waits, and out of its neighbours' and the loop's."""
    found: list[str] = []

    async def keep(stream: Any) -> None:
        found.append(VARIABLE.get())
        VARIABLE.set(f"stream {stream.id}")
        await asyncio.sleep(0)
        found.append(VARIABLE.get())

    served = Served(Calls(keep=keep))
    served.send(headers(1), headers(3), say(1, b"keep"), say(3, b"keep"))
    await settle()
    assert ["outside", "outside", "stream 1", "stream 3"] == found
    assert "outside" == VARIABLE.get()


# --- Waits ---------------------------------------------------------------------------------------


async def test_messages_wait_for_the_one_before() -> None:
    """In order, and then the end; the neighbour does not wait."""
    gate = asyncio.Event()

    async def wait(_: Any) -> None:
        await gate.wait()

    calls = Calls(wait=wait)
    served = Served(calls)
    served.send(headers(1), headers(3), say(1, b"wait"), say(1, b"a"), say(1, b"b", end=True))
    served.send(say(3, b"x"))
    assert [(1, b"wait"), (3, b"x")] == calls.calls
    assert 1 == len(tasks())
    gate.set()
    await settle()
    assert [(1, b"a"), (1, b"b"), (1, None)] == calls.calls[2:]
    assert set() == tasks()


async def test_a_stream_whose_messages_wait_gets_room_when_none_does() -> None:
    """So that what waits is bounded by the window."""
    gate = asyncio.Event()

    async def wait(_: Any) -> None:
        await gate.wait()

    served = Served(Calls(wait=wait))
    served.send(headers(1), say(1, b"wait"), *(say(1, bytes(15_000)) for _ in range(4)))
    assert [] == served.sent
    gate.set()
    await settle()
    used = 4 * 15_005 + len(b"wait") + 5
    assert [("window", 1, used)] == served.sent


async def test_a_sender_waits_while_the_peer_does_not_read() -> None:
    """And goes on when it does, or gives up with the stream."""
    done: list[int] = []

    async def flood(stream: Any) -> None:
        for number in range(10):
            await stream.send(bytes(SMALL.stream_queue_bytes // 2))
            done.append(number)

    served = Served(Calls(flood=flood))
    served.send(wire.settings({wire.Setting.INITIAL_WINDOW_SIZE: 0}), headers(1), say(1, b"flood"))
    assert [0] == done
    await settle()
    assert [0] == done
    served.send(wire.window_update(1, 1_000_000))
    await settle()
    assert [*range(10)] == done
    served.send(headers(3), say(3, b"flood"), wire.reset(3, wire.Code.CANCEL))
    await settle()
    assert [*range(10), 0] == done
    assert [] == served.turns._wanting
    assert set() == tasks()


async def test_what_queues_behind_a_call_holds_the_window_every_time() -> None:
    """Not the first time only."""
    loop = asyncio.get_running_loop()
    told = [loop.create_future() for _ in range(4)]
    left, streams = iter(told), list[Any]()

    async def wait(stream: Any) -> None:
        streams.append(stream)
        await next(left)

    served = Served(Calls(wait=wait))
    served.send(headers(1), say(1, b"wait"), say(1, b"wait"))
    held = [streams[0].held]
    for one in told[:2]:
        one.set_result(None)
        await settle()
    held.append(streams[0].held)
    served.send(say(1, b"wait"), say(1, b"wait"))
    held.append(streams[0].held)
    assert [True, False, True] == held
    for one in told[2:]:
        one.set_result(None)
        await settle()


# --- Ends ----------------------------------------------------------------------------------------


async def test_a_peer_that_leaves_cancels_what_waits() -> None:
    """What came meanwhile is dropped, and the handler hears of the end once."""
    seen: list[str] = []

    async def wait(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    calls = Calls(wait=wait)
    served = Served(calls)
    served.send(headers(1), say(1, b"wait"), say(1, b"never"), wire.reset(1, wire.Code.CANCEL))
    assert [(1, b"wait")] == calls.calls
    await settle()
    assert ["cancelled"] == seen
    assert [(1, b"wait"), (1, None)] == calls.calls
    assert set() == tasks()
    assert served.idle


async def test_the_call_for_the_end_is_not_cancelled() -> None:
    """It may wait, for it has to let go of what is held."""
    done: list[int] = []

    async def handler(stream: Any, message: bytes | None) -> None:
        if message is None:
            await asyncio.sleep(0)
            done.append(stream.id)

    served = Served(handler)
    served.send(headers(1), headers(3, end=True), wire.reset(1, wire.Code.CANCEL))
    served.send(wire.reset(3, wire.Code.CANCEL))
    await settle()
    assert [1, 3] == sorted(done)
    assert served.idle


async def test_a_handler_that_ends_its_stream_gets_no_more_messages() -> None:
    """Those that wait included; and then None, once."""
    gate = asyncio.Event()

    async def close(stream: Any) -> None:
        await gate.wait()
        stream.close()

    calls = Calls(close=close)
    served = Served(calls)
    served.send(headers(1), say(1, b"close"), say(1, b"never"))
    gate.set()
    await settle()
    served.send(say(1, b"nor this"))
    assert [(1, b"close"), (1, None)] == calls.calls
    assert [("headers", 1), ("reset", 1, wire.Code.NO_ERROR)] == served.sent


async def test_a_stream_that_others_end_tells_its_handler_once() -> None:
    """A task that the handler left behind may do so, after the handler went."""
    calls = Calls()
    served = Served(calls)
    served.send(headers(1), say(1, b"x"))
    served.streams[0].close()
    served._turn(tuple)
    assert [(1, b"x"), (1, None)] == calls.calls
    assert served.idle


async def test_a_connection_that_is_lost_ends_all_streams() -> None:
    """Those that wait, those that do not, those that are ending."""

    async def wait(_: Any) -> None:
        await asyncio.Event().wait()

    calls = Calls(wait=wait)
    served = Served(calls)
    served.send(headers(1), headers(3), headers(5), say(3, b"wait"), say(5, b"x"))
    served._turn(served.peer.connection.lost)  # type: ignore[arg-type] # it made the streams
    await settle()
    assert [1, 3, 5] == sorted(number for number, message in calls.calls if message is None)
    assert set() == tasks()
    assert served.idle


async def test_a_handler_that_raises_fails_its_stream_only() -> None:
    """In place or after a wait; whoever serves is told, the peer no more than that."""

    async def at_once(_: Any) -> None:
        raise ZeroDivisionError

    async def later(_: Any) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    calls = Calls(at_once=at_once, later=later)
    served = Served(calls)
    served.send(headers(1), headers(3), headers(5), say(1, b"at_once"), say(3, b"later"))
    await settle()
    assert [ZeroDivisionError, ZeroDivisionError] == [type(error) for error in served.broken]
    assert [1, 3] == [number for number, message in calls.calls if message is None]
    assert [
        *[("headers", 1), ("reset", 1, wire.Code.NO_ERROR)],
        *[("headers", 3), ("reset", 3, wire.Code.NO_ERROR)],
    ] == served.sent
    served.send(say(5, b"on"))
    assert (5, b"on") == calls.calls[-1]


# --- What asyncio expects of a task --------------------------------------------------------------


async def outcome(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine as a handler; return its value, or the error that it raised."""
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handler(_: Any, message: bytes | None) -> None:
        if message is None:
            return
        try:
            found.set_result(await work())
        except BaseException as error:
            found.set_result(error)
            raise

    served = Served(handler)
    served.send(headers(1), say(1, b"x"))
    return await asyncio.wait_for(found, 60)


async def test_a_timeout_before_the_first_wait_works() -> None:
    """`asyncio.timeout` asks for the current task, cancels it, and takes that back."""

    async def late() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    async def in_time() -> str:
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return f"cancelling: {task.cancelling()}"

    assert isinstance(await outcome(late), TimeoutError)
    assert "cancelling: 0" == await outcome(in_time)


async def test_timeouts_may_be_nested_and_caught() -> None:
    """The inner one is over, the outer one is not."""

    async def nested() -> str:
        async with asyncio.timeout(60):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            await asyncio.sleep(0)
        return "went on"

    assert "went on" == await outcome(nested)


async def test_task_groups_gather_and_wait_for_work() -> None:
    """They make tasks of their own, and cancel ours when one of theirs fails."""

    async def number(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def good() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(number(value)) for value in (1, 2)]
        waited = await asyncio.wait_for(number(3), 60)
        return [*(task.result() for task in tasks), waited, *await asyncio.gather(number(4))]

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def bad() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()

    assert [1, 2, 3, 4] == await outcome(good)
    error = await outcome(bad)
    assert isinstance(error, ExceptionGroup)
    assert [ZeroDivisionError] == [type(one) for one in error.exceptions]


async def test_futures_tasks_and_threads_may_be_awaited() -> None:
    """With their values and their errors."""

    async def work() -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, "future")
        done = loop.create_future()
        done.set_result("done before")
        failed = loop.create_future()
        loop.call_soon(failed.set_exception, KeyError("x"))
        values = [await future, await done, await asyncio.to_thread(lambda: "thread")]
        with contextlib.suppress(KeyError):
            await failed
        values.append("error")
        values.append(await asyncio.shield(asyncio.sleep(0, "shield")))
        return tuple(values)

    assert ("future", "done before", "thread", "error", "shield") == await outcome(work)


async def test_a_cancellation_may_be_caught() -> None:
    """The handler goes on, and what it does then counts."""
    seen: list[str] = []

    async def stubborn(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("caught")
            await asyncio.sleep(0)
            seen.append("went on")

    calls = Calls(stubborn=stubborn)
    served = Served(calls)
    served.send(headers(1), say(1, b"stubborn"), wire.reset(1, wire.Code.CANCEL))
    await settle()
    assert ["caught", "went on"] == seen
    assert [(1, b"stubborn"), (1, None)] == calls.calls


async def test_a_cancellation_before_a_wait_comes_at_the_wait() -> None:
    """As with a task: asked for while it runs, raised where it waits."""

    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return f"cancelled, {task.uncancel()} left"
        return "not cancelled"

    async def cancels_itself_before_a_bare_yield() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "cancelled"
        return "not cancelled"

    assert "cancelled, 0 left" == await outcome(cancels_itself)
    assert "cancelled" == await outcome(cancels_itself_before_a_bare_yield)


async def test_a_cancellation_of_a_call_that_ended_reaches_no_other() -> None:
    """Neither the next one of its stream nor one of another."""
    done: list[tuple[int, bytes | None]] = []

    async def handler(stream: Any, message: bytes | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if message == b"cancel":
            task.cancel()
            asyncio.get_running_loop().call_soon(task.cancel)
            return
        await asyncio.sleep(0)
        done.append((stream.id, message))

    served = Served(handler)
    served.send(headers(1), headers(3), say(1, b"cancel"), say(1, b"a"), say(3, b"b"))
    served.send(data(1, message(b"cancel") + message(b"c")), say(1, b"d", end=True))
    await settle()
    assert [(1, b"a"), (1, b"c"), (1, b"d"), (1, None)] == [one for one in done if one[0] == 1]
    assert [(3, b"b")] == [one for one in done if one[0] == 3]


async def test_an_await_of_what_is_no_future_is_an_error() -> None:
    """Raised where it stands; a future of another loop likewise."""

    class Odd:
        def __await__(self) -> Any:
            yield "odd"

    async def odd() -> None:
        await Odd()

    async def foreign() -> None:
        other = asyncio.new_event_loop()
        try:
            await other.create_future()
        finally:
            other.close()

    for work in (odd, foreign):
        error = await outcome(work)
        assert isinstance(error, RuntimeError)
        assert "expected an await of a future of this loop" in str(error)


async def test_a_turn_that_waits_is_among_all_tasks() -> None:
    """So that a loop that is closed cancels it, and a debugger shows it."""

    async def wait(_: Any) -> None:
        await asyncio.Event().wait()

    served = Served(Calls(wait=wait))
    served.send(headers(1), say(1, b"wait"))
    (turn,) = tasks()
    assert "wait" in repr(turn.get_coro()) or "__call__" in repr(turn.get_coro())
    assert "turn" == turn.get_name()
    assert turn.cancel()
    await asyncio.wait((turn,), timeout=60)
    assert turn.done()
    assert not turn.cancel()


async def test_what_waits_for_something_that_nobody_holds_is_kept() -> None:
    """Only the turn knows of the future; it is not collected."""
    alive: list[weakref.ref[Any]] = []

    async def wait(_: Any) -> None:
        future = asyncio.get_running_loop().create_future()
        alive.append(weakref.ref(future))
        await future

    served = Served(Calls(wait=wait))
    served.send(headers(1), say(1, b"wait"))
    served.streams.clear()
    gc.collect()
    future = alive[0]()
    assert future is not None
    future.set_result(None)
    del future
    await settle()
    assert set() == tasks()
    assert alive[0]() is None


@pytest.mark.slow
async def test_ten_thousand_aborted_streams_leave_nothing() -> None:
    """Neither a stream nor a turn nor memory of them."""

    async def wait(_: Any) -> None:
        await asyncio.Event().wait()

    calls = Calls(wait=wait)
    served = Served(calls)
    for number in range(1, 20_001, 2):
        served.send(headers(number), say(number, b"wait"), wire.reset(number, wire.Code.CANCEL))
        served.streams.clear()
        if not served.peer.connection.working % 8:
            await asyncio.sleep(0)
    await settle()
    assert 10_000 == sum(message is None for _, message in calls.calls)
    assert set() == tasks()
    assert served.idle
    assert served.peer.clean
    assert not served.turns._waiting
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is TurnStream]


@pytest.fixture(autouse=True)
def _no_exception_is_lost(caplog: pytest.LogCaptureFixture) -> Any:
    """See that asyncio had nothing to complain of."""
    yield
    assert [] == [record for record in caplog.records if record.name == "asyncio"]


# --- In lockstep ---------------------------------------------------------------------------------


class Steps:
    """A handler's work in some stages, with a pause before each."""

    def __init__(self, stages: int = 3) -> None:
        self.done: list[tuple[int, int]] = []
        """Which stream went through which stage, in order."""
        self.cancelled: list[int] = []
        self._stages = stages

    async def go(self, stream: Any) -> None:
        try:
            for stage in range(self._stages):
                if stream.lockstep.several:
                    await stream.lockstep
                self.done.append((stream.id, stage))
        except asyncio.CancelledError:
            self.cancelled.append(stream.id)
            raise


async def test_calls_of_one_read_go_through_their_stages_together() -> None:
    """Before the read's turn is over, and without a task."""
    steps = Steps()
    served = Served(Calls(go=steps.go))
    served.send(*(part for number in (1, 3, 5) for part in (headers(number), say(number, b"go"))))
    assert [(number, stage) for stage in range(3) for number in (1, 3, 5)] == steps.done
    assert set() == tasks()


async def test_a_call_without_others_pauses_but_once() -> None:
    """That there is nothing behind it in its read is known at the end of that."""
    pauses = []

    async def count(stream: Any) -> None:
        for _ in range(3):
            if stream.lockstep.several:
                pauses.append(stream.id)
                await stream.lockstep

    served = Served(Calls(count=count))
    served.send(headers(1), say(1, b"count"))
    assert [1] == pauses
    assert not served.turns.lockstep.several


async def test_what_comes_behind_a_call_that_pauses_comes_after_it() -> None:
    """As behind one that waits; the stream's end as well."""
    steps = Steps()
    calls = Calls(go=steps.go)
    served = Served(calls)
    served.send(headers(1), say(1, b"go"), say(1, b"go", end=True), headers(3), say(3, b"go"))
    assert [(1, b"go"), (3, b"go"), (1, b"go"), (1, None)] == calls.calls
    first = [stage for number, stage in steps.done if number == 1]
    assert [0, 1, 2, 0, 1, 2] == first
    served.send(wire.reset(3, wire.Code.CANCEL))
    assert served.idle


async def test_a_call_that_pauses_is_cancelled_when_its_client_leaves() -> None:
    """Its neighbour goes on."""
    steps = Steps()
    calls = Calls(go=steps.go)
    served = Served(calls)
    reset = wire.reset(1, wire.Code.CANCEL)
    served.send(headers(1), say(1, b"go"), headers(3), say(3, b"go"), reset)
    assert [1] == steps.cancelled
    assert [(3, stage) for stage in range(3)] == steps.done
    assert (1, None) in calls.calls
    assert [] == served.broken


async def test_a_call_may_wait_after_a_pause() -> None:
    """It becomes a task then, and does not pause any more: its neighbours are gone."""
    steps, told = Steps(), asyncio.get_running_loop().create_future()
    found: list[Any] = []

    async def wait(stream: Any) -> None:
        await stream.lockstep
        found.append(asyncio.current_task())
        await told
        found.append(asyncio.current_task())
        await steps.go(stream)

    served = Served(Calls(wait=wait, go=steps.go))
    served.send(headers(1), say(1, b"wait"), headers(3), say(3, b"go"))
    assert [(3, stage) for stage in range(3)] == steps.done
    assert 1 == len(tasks())
    told.set_result(None)
    await settle()
    assert [(1, stage) for stage in range(3)] == steps.done[3:]
    first, second = found
    assert isinstance(first, Turn)
    assert first is second
    assert set() == tasks()


async def test_what_a_call_raises_after_a_pause_ends_its_own_stream() -> None:
    """The others of its read go on."""
    steps = Steps()

    async def fail(stream: Any) -> None:
        await stream.lockstep
        raise ValueError(stream.id)

    served = Served(Calls(fail=fail, go=steps.go))
    served.send(headers(1), say(1, b"fail"), headers(3), say(3, b"go"))
    assert ["1"] == [str(error) for error in served.broken]
    assert [(3, stage) for stage in range(3)] == steps.done


async def test_the_context_of_a_call_outlasts_its_pauses() -> None:
    """And is nobody else's."""
    found: list[str] = []

    async def keep(stream: Any) -> None:
        VARIABLE.set(f"stream {stream.id}")
        await stream.lockstep
        found.append(VARIABLE.get())

    served = Served(Calls(keep=keep))
    served.send(headers(1), say(1, b"keep"), headers(3), say(3, b"keep"))
    assert ["stream 1", "stream 3"] == found
    assert "outside" == VARIABLE.get()


async def test_only_so_many_calls_pause_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds its place and its body meanwhile."""
    monkeypatch.setattr(turns, "MOST_TOGETHER", 3)
    steps = Steps()
    served = Served(Calls(go=steps.go))
    numbers = range(1, 11, 2)
    served.send(*(part for number in numbers for part in (headers(number), say(number, b"go"))))
    together, rest = numbers[:3], numbers[3:]
    expected = [(one, stage) for some in (together, rest) for stage in range(3) for one in some]
    assert expected == steps.done


async def test_a_call_that_was_cancelled_before_it_pauses_is_cancelled_there() -> None:
    """As in a task, and nobody else is."""
    steps = Steps()

    async def give_up(stream: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await steps.go(stream)

    served = Served(Calls(give_up=give_up, go=steps.go))
    served.send(headers(1), say(1, b"give_up"), headers(3), say(3, b"go"))
    assert [1] == steps.cancelled
    assert [(3, stage) for stage in range(3)] == steps.done


async def test_who_is_left_when_a_turn_fails_goes_on_in_the_next_one() -> None:
    """A bug of ours in telling of a failure: no stream is forgotten."""
    steps = Steps()

    async def fail(stream: Any) -> None:
        await stream.lockstep
        raise ValueError

    def broke(error: BaseException) -> None:
        raise RuntimeError from error

    served = Served(Calls(fail=fail, go=steps.go))
    served.turns._broke = broke  # type: ignore[misc] # it fails
    with pytest.raises(RuntimeError):
        served.send(headers(1), say(1, b"fail"), headers(3), say(3, b"go"))
    served.turns.rest()
    assert not served.turns.lockstep.several
    served.turns.settle([])
    assert [(3, stage) for stage in range(3)] == steps.done
