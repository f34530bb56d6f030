"""What the client gets of a stream that filters have wait: in order, when it is due, to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ext_proc.codec import CHUNK_BYTES, Body, Command, Pass, Stream, in_chunks
from ext_proc.conversation import Message
from filters.api import Alarm, Delta, Exchange, Ports
from filters.lockstep import Lockstep
from filters.pipeline import Run

AGAIN_NS: Final = 20_000_000
MOST_AGAIN_NS: Final = 320_000_000
"""How long to wait before another look at a proxy that does not read: twice as long each time, up
to this. Its reader has what was sent until then to read first."""
PATIENCE_NS: Final = 500_000_000
"""How long a chunk waits for word. Envoy gives a stream up for which neither a chunk nor an answer
to one came in `message_timeout`, 1 s as shipped."""
_LET_GO: Final = Pass(Message.RESPONSE_BODY)


class Peer(Protocol):
    """The proxy's end of the stream."""

    @property
    def lockstep(self) -> Lockstep:
        """How those that came in one read go through their stages."""

    async def send(self, command: Command) -> None:
        """Send a command; waits only when the proxy does not read."""

    def post(self, command: Command) -> None:
        """Send a command without waiting, where `has_room`."""

    def has_room(self) -> bool:
        """Tell whether the proxy reads what is sent."""

    def close(self) -> None:
        """End the stream after what was sent: the proxy goes on alone."""


class Outflow:
    """The way out of one stream.

    In full duplex pieces go as they are due. Else a chunk goes with its first event, for the proxy
    does not wait for ever; those behind it wait until it would be over at the right pace, as long
    as the proxy hears of one now and then.

    What waits is bounded by the filters; what does not wait is sent by whoever receives, and waits
    there for a proxy that does not read. Nothing is posted to such a one.
    """

    __slots__ = (
        "_again_ns", "_alarm", "_alarm_ns", "_chunks", "_clock", "_cut", "_exchange", "_last",
        "_last_at", "_over", "_peer", "_run", "_seen_before", "_sending", "_spoke_ns", "_went",
        "_wheel", "seen_bytes",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        run: Run,
        exchange: Exchange,
        ports: Ports,
        *,
        cut: bool,
        over: Callable[[], None],
    ) -> None:
        """Send pieces in full duplex if they may be `cut`, else let chunks go one by one.

        `over` is called before the last command is sent: a client that has it may be gone at once.
        """
        self._peer: Final = peer
        self._run: Final = run
        self._exchange: Final = exchange
        self._wheel: Final = ports.wheel
        self._clock: Final = ports.clock
        self._cut: Final = cut
        self._over = over
        self._alarm: Alarm | None = None
        self._alarm_ns = 0
        self._again_ns = AGAIN_NS
        self._sending = False
        self._last: Command | None = None
        """What ends the reply, once its upstream has."""
        self._chunks: Final[deque[int]] = deque()
        """Where in the stream the first event begins that each chunk that waits has the end of; -1:
        it has none, and only waits for those before."""
        self.seen_bytes = 0
        """How much of the stream, as it came, are events that filters have seen."""
        self._seen_before = 0
        self._last_at = -1
        self._went = 0
        self._spoke_ns = 0
        """When a chunk or an answer to one came last."""

    async def take(self, event: Body, deltas: Sequence[Delta], last: Command | None) -> bool:
        """Send what filters gave of a chunk, or have it wait; return whether the reply is over.

        `last` is the answer to the last chunk; to others it does not matter.
        """
        seen, self._seen_before = self._seen_before, self.seen_bytes
        self._spoke_ns = now_ns = self._clock.monotonic_ns()
        if event.last:
            self._last, self._last_at = last, seen if self.seen_bytes > seen else -1
            return await self._send(deltas)
        if not self._cut:
            self._chunks.append(seen if self.seen_bytes > seen else -1)
        if deltas or not (self._cut or self._chunks[0] >= self._went):
            return await self._send(deltas)
        if self._alarm is None or self._alarm_ns > now_ns + PATIENCE_NS:
            self._wait(self._wake_ns(self._run.wake_ns()))
        return False  # else it waits behind others, and when it is their turn we are called

    async def end(self, deltas: Sequence[Delta], last: Command) -> bool:
        """Take that trailers end the reply, to which `last` is the answer."""
        self._last = last
        return await self._send(deltas)

    async def _send(self, deltas: Sequence[Delta]) -> bool:
        over = self._is_over(deltas, self._run.wake_ns())
        if over:
            self._over()
        self._sending = True
        try:
            for command in self._commands(deltas, over=over):
                await self._peer.send(command)
        finally:
            self._sending = False
        if not over:
            self._wait(self._wake_ns(self._run.wake_ns()))
        return over

    def _wake_ns(self, wake_ns: int | None) -> int | None:
        """Return when to look again, where filters are to be asked at `wake_ns`."""
        if wake_ns is None or self._cut or not (self._chunks or self._last):
            return wake_ns
        return min(wake_ns, self._spoke_ns + PATIENCE_NS)

    def _is_over(self, deltas: Sequence[Delta], wake_ns: int | None) -> bool:
        """Tell whether the reply is, once these have gone."""
        if self._last is None:
            return False
        if wake_ns is None:
            return True
        if self._cut:
            return False
        # The last chunk goes with its first event, as the others do, and nothing comes behind it.
        went = self._went + sum([len(delta.raw) for delta in deltas])
        return self._last_at < went and (not self._chunks or self._chunks[-1] < went)

    def _commands(
        self, deltas: Sequence[Delta], *, over: bool, late: bool = False
    ) -> Sequence[Command]:
        """Return what lets the bytes of these pieces go, and what ends the reply if it is over.

        `late`: one chunk at least goes, due or not.
        """
        if self._cut:
            return self._pieces(deltas, over=over)
        chunks, commands = self._chunks, list[Command]()
        self._went += sum([len(delta.raw) for delta in deltas])
        while chunks and (over or late or chunks[0] < self._went):
            chunks.popleft()
            late = False
            commands.append(_LET_GO)
        if commands:
            self._spoke_ns = self._clock.monotonic_ns()
        if over and self._last is not None:
            commands.append(self._last)
        return commands

    def _pieces(self, deltas: Sequence[Delta], *, over: bool) -> Sequence[Command]:
        """Return the same in full duplex."""
        data = deltas[0].raw if len(deltas) == 1 else b"".join([delta.raw for delta in deltas])
        if not over and len(data) <= CHUNK_BYTES:
            return (Stream(data, last=False),) if data else ()
        last = self._last if over else None
        ends = isinstance(last, Stream)
        commands: list[Command] = []
        if data or ends:
            commands += in_chunks(data, last=ends, message=Message.RESPONSE_BODY)
        if last is not None and not ends:
            commands.append(last)
        return commands

    def _wait(self, wake_ns: int | None) -> None:
        if self._alarm is not None:
            if wake_ns is not None and self._alarm_ns <= wake_ns:
                return  # one that rings too early looks again
            self._alarm.cancel()
            self._alarm = None
        if wake_ns is not None:
            self._alarm_ns = wake_ns
            self._alarm = self._wheel.at(wake_ns, self._on_time)

    def _on_time(self) -> None:
        self._alarm = None
        run, peer = self._run, self._peer
        now_ns = self._clock.monotonic_ns()
        while True:
            if self._sending or not peer.has_room():
                self._wait(now_ns + self._again_ns)
                self._again_ns = min(2 * self._again_ns, MOST_AGAIN_NS)
                return
            deltas = run.due(self._exchange, now_ns)
            next_ns = run.wake_ns()
            late = not self._cut and now_ns >= self._spoke_ns + PATIENCE_NS
            over = self._last is not None and (
                self._is_over(deltas, next_ns) or (late and not self._chunks)
            )
            if over:
                self._over()
            for command in self._commands(deltas, over=over, late=late):
                peer.post(command)
            if over:
                peer.close()
                return
            if not self._cut:
                next_ns = self._wake_ns(next_ns)
            if next_ns is None or next_ns > now_ns:
                break
        self._again_ns = AGAIN_NS
        self._wait(next_ns)

    def close(self) -> None:
        """Let nothing more go; returns at once and may be called again."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._over = _nobody  # a cycle would keep who was told, and the request, for the collector


def _nobody() -> None:
    """Stand for who is not to be told any more."""
