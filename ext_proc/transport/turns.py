"""Hand messages to handlers in place, each stream's in turn; only who really waits becomes a task.

Those that came in one read go in lockstep, where their handlers pause for each other.

A coroutine that has not waited yet runs inside `data_received`, where no task is current, and code
in it may ask for one (`asyncio.timeout`, `TaskGroup` and others do). asyncio starts tasks in place
only from Python 3.12 on, and makes one for every call. So a `Turn` is a task of our own, as
https://docs.python.org/3/library/asyncio-extending.html foresees: a future that is entered as the
current task at each step, with a context of its own, the same from the first step to the last.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import tasks
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from ext_proc.transport import Handler
from ext_proc.transport.http2 import Call, Connection, End, Event, Status, Stream
from filters.lockstep import Lockstep

_enter: Final[Any] = tasks._enter_task  # noqa: SLF001 - documented for tasks of one's own
_leave: Final[Any] = tasks._leave_task  # noqa: SLF001 - documented likewise
_register: Final[Any] = tasks._register_task  # noqa: SLF001 - documented likewise
_unregister: Final[Any] = tasks._unregister_task  # noqa: SLF001 - documented likewise
Work: TypeAlias = Coroutine[Any, Any, None]
Resume: TypeAlias = "Callable[[Turn, BaseException | None], None]"
MOST_TOGETHER: Final = 32
"""Calls that pause for each other: more gain nothing, and hold places and bodies meanwhile."""
_BARE: Final = contextvars.Context()  # the turn's own is entered by the turn


class Turn(asyncio.Future[None]):
    """The task of one call of a handler; asyncio knows of it only if the call waits."""

    stream: TurnStream
    _work: Work
    _context: contextvars.Context
    _resume: Resume
    _waited_for: Any = None
    _cancelling = 0
    _must_cancel = False

    @property
    def is_fresh(self) -> bool:
        """Whether nobody asked to cancel it."""
        return not (self._must_cancel or self._cancelling)

    def hold(
        self, stream: TurnStream, work: Work, context: contextvars.Context, resume: Resume
    ) -> None:
        """Become visible as a task: `work` waits, and `resume` is to let it `go_on`."""
        self.stream = stream
        self._work = work
        self._context = context
        self._resume = resume
        _register(self)

    def go_on(self, error: BaseException | None) -> Any:
        """Go on with the outcome of what was waited for; return what is waited for next."""
        if error is None:
            return self._context.run(self._work.send, None)
        return self._context.run(self._work.throw, error)

    def let_go(self) -> None:
        """Be over."""
        _unregister(self)
        self.set_result(None)

    def wait_for(self, waited: Any) -> None:
        """Go on when `waited` is done, as `asyncio.Task` does."""
        loop = self.get_loop()
        if waited is None:  # a bare yield, as of `asyncio.sleep(0)`
            loop.call_soon(self._wake, None, context=_BARE)
        elif not getattr(waited, "_asyncio_future_blocking", None) or waited.get_loop() is not loop:
            wrong = RuntimeError(f"expected an await of a future of this loop, got {waited!r}")
            loop.call_soon(self._resume, self, wrong, context=_BARE)
        else:
            waited._asyncio_future_blocking = False  # noqa: SLF001 - how a future is told
            waited.add_done_callback(self._wake, context=_BARE)
            self._waited_for = waited
            if self._must_cancel and waited.cancel():
                self._must_cancel = False

    def _wake(self, waited: asyncio.Future[Any] | None) -> None:
        self._waited_for = None
        error: BaseException | None = None
        if self._must_cancel:
            self._must_cancel = False
            error = asyncio.CancelledError()
        elif waited is not None:
            try:
                waited.result()
            except BaseException as raised:  # noqa: BLE001 - it belongs into the coroutine
                error = raised
        self._resume(self, error)

    # --- What asyncio asks of a task -------------------------------------------------------------

    def cancel(self, msg: Any | None = None) -> bool:
        """Raise `CancelledError` where the coroutine waits."""
        if self.done():
            return False
        self._cancelling += 1
        if self._waited_for is None or not self._waited_for.cancel(msg):
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """Return how many asked to cancel it and did not take that back."""
        return self._cancelling

    def uncancel(self) -> int:
        """Take one cancellation back."""
        self._cancelling = max(0, self._cancelling - 1)
        return self._cancelling

    def get_coro(self) -> Work:
        """Return what runs."""
        return self._work

    def get_name(self) -> str:
        """Return a name for debuggers."""
        return "turn"


class PausedCall:
    """A call that lets others go as far: no task, for it goes on in the same turn of the loop."""

    __slots__ = ("context", "error", "stream", "work")

    def __init__(self, stream: TurnStream, work: Work, context: contextvars.Context) -> None:
        self.stream: Final = stream
        self.work: Final = work
        self.context: Final = context
        self.error: asyncio.CancelledError | None = None

    def cancel(self) -> None:
        """Raise `CancelledError` where it pauses."""
        self.error = asyncio.CancelledError()


class TurnStream(Stream):
    """A stream whose messages are handed over in turn."""

    __slots__ = ("lockstep", "over", "turn", "turns", "waiting")

    def __init__(self, turns: Turns, connection: Connection[Any], number: int, call: Call) -> None:
        super().__init__(connection, number, call)
        self.turns: Final = turns
        self.lockstep: Final = turns.lockstep
        self.turn: Turn | PausedCall | None = None
        """The call that waits or pauses."""
        self.waiting: deque[bytes | End] | None = None
        """What came meanwhile; bounded by the room that the peer has."""
        self.over = False
        """The handler heard of the end."""

    async def send(self, message: bytes) -> None:
        """Send a message; waits only when the peer does not read. Nothing is sent once it left."""
        if not self.write(message):
            await self.turns.room(self)

    post = Stream.write


class Turns:
    """Takes what comes for the streams of a connection to their handlers.

    A route of the connection is a `Handler`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        go_on: Callable[[Callable[[], Iterable[Event[TurnStream]]]], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        """Call `go_on` with what goes on after a wait, `broke` with what a handler raised."""
        self._loop: Final = loop
        self._go_on: Final = go_on
        self._broke: Final = broke
        self.lockstep: Final = Lockstep()
        self._paused: Final[deque[PausedCall]] = deque()
        self._waiting: Final[set[Turn]] = set()  # asyncio itself holds tasks but weakly
        self._spare = Turn(loop=loop)
        """The task of calls that did not wait so far: the first that does takes it."""
        self._current: Turn | None = None
        self._outer: Any = None
        self._wanting: list[tuple[TurnStream, asyncio.Future[None]]] = []

    def take(self, stream: TurnStream, what: bytes | End) -> None:
        """Take an event of the connection; calls that pause go on at `settle`."""
        self.lockstep.several = True  # for all that is known
        if stream.turn is None:
            if not stream.over:
                self._run(stream, what)
        elif not stream.waiting or what is End.GONE:
            stream.waiting = deque((what,))
            if what is End.GONE:
                if not stream.over:
                    stream.turn.cancel()
            else:
                stream.held = True
        else:
            stream.waiting.append(what)
        if len(self._paused) >= MOST_TOGETHER:
            self._go_together()

    def _run(self, stream: TurnStream, what: bytes | End | None) -> None:
        """Call the handler with this, and with what waits behind it, until one waits or pauses."""
        handler: Handler = stream.request.route
        while what is not None:
            if type(what) is bytes and not stream.ended:
                work = handler(stream, what)
            else:
                stream.over = True
                work = handler(stream, None)
            self._advance(stream, work, contextvars.copy_context())
            if stream.turn is not None:
                return
            what = self._next(stream)

    def _advance(
        self,
        stream: TurnStream,
        work: Work,
        context: contextvars.Context,
        error: asyncio.CancelledError | None = None,
    ) -> None:
        """Let a call begin, or go on behind a pause, until it pauses, waits or is over."""
        spare = self._spare
        if self._current is not spare:
            self._enter(spare)
        try:
            if error is None:
                waited = context.run(work.send, None)
            else:
                waited = context.run(work.throw, error)
        except (StopIteration, asyncio.CancelledError):
            pass
        except Exception as raised:  # noqa: BLE001 - whatever it is, its stream ends
            self._fail(stream, raised)
        else:
            if waited is not self.lockstep:
                stream.turn = spare
                self._waiting.add(spare)
                spare.hold(stream, work, context, self._resume)
                self._spare = Turn(loop=self._loop)
                spare.wait_for(waited)
                return
            stream.turn = pause = PausedCall(stream, work, context)
            self._paused.append(pause)
            if not spare.is_fresh:
                pause.cancel()
        if not spare.is_fresh:
            spare.set_result(None)
            self._spare = Turn(loop=self._loop)

    def _enter(self, turn: Turn) -> None:
        """Make a turn the current task until another is, or until `rest`."""
        if self._current is not None:
            _leave(self._loop, self._current)
        else:
            self._outer = tasks.current_task(self._loop)
            if self._outer is not None:  # a task called what called us, as a test does
                _leave(self._loop, self._outer)
        _enter(self._loop, turn)
        self._current = turn

    def rest(self) -> None:
        """Leave the current turn; to be called when nothing more is handed over for now."""
        self.lockstep.several = False
        if self._current is not None:
            _leave(self._loop, self._current)
            self._current = None
            if self._outer is not None:
                _enter(self._loop, self._outer)

    def _fail(self, stream: TurnStream, error: Exception) -> None:
        self._broke(error)
        stream.end(Status.INTERNAL, "internal error")

    def _next(self, stream: TurnStream) -> bytes | End | None:
        """Return what comes next for a stream after a call."""
        if stream.over:
            stream.connection.working -= 1
            stream.close()
            return None
        if stream.ended:
            return End.GONE
        if stream.waiting:
            return stream.waiting.popleft()
        if stream.held:
            stream.unhold()
        return None

    def _resume(self, turn: Turn, error: BaseException | None) -> None:
        """Go on with a turn that waited."""
        self._go_on(partial(self._step, turn, error))

    def _step(self, turn: Turn, error: BaseException | None) -> Iterable[Event[TurnStream]]:
        self._enter(turn)
        self._call_on(turn, error)
        if turn.done():
            stream = turn.stream
            stream.turn = None
            self._waiting.discard(turn)
            self._run(stream, self._next(stream))
        return ()

    def _call_on(self, turn: Turn, error: BaseException | None) -> None:
        try:
            waited = turn.go_on(error)
        except (StopIteration, asyncio.CancelledError):
            turn.let_go()
        except Exception as raised:  # noqa: BLE001 - whatever it is, its stream ends
            turn.let_go()
            self._fail(turn.stream, raised)
        else:
            turn.wait_for(waited)

    async def room(self, stream: TurnStream) -> None:
        """Wait until a stream has room to send."""
        while not stream.has_room():
            told: asyncio.Future[None] = self._loop.create_future()
            self._wanting.append((stream, told))
            await told

    def _go_together(self) -> None:
        """Let all that pause go on until they pause again, and so on until nobody does."""
        paused = self._paused
        while paused:
            self.lockstep.several = len(paused) > 1
            for _ in range(len(paused)):
                pause = paused.popleft()
                stream = pause.stream
                stream.turn = None
                self._advance(stream, pause.work, pause.context, pause.error)
                if stream.turn is None:
                    self._run(stream, self._next(stream))

    def settle(self, left: list[TurnStream]) -> None:
        """Let who pauses go on.

        Then tell handlers of streams that closed, and those who waited for room and have it.
        """
        self._go_together()
        self.lockstep.several = False
        while left:
            stream = left.pop()
            if stream.turn is None and not stream.over:
                self._run(stream, End.GONE)
        if self._wanting:
            wanting, self._wanting = self._wanting, []
            for stream, told in wanting:
                if stream.has_room():
                    if not told.done():
                        told.set_result(None)
                elif not told.done():
                    self._wanting.append((stream, told))
        if self._current is not None:
            self.rest()
