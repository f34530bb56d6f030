"""What the client gets of a stream that filters have wait: in order, when it is due, to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from ext_proc.codec import Body, Command, Pass, Stream, in_chunks
from ext_proc.conversation import Message
from filters.api import Alarm, Delta, Exchange, Ports
from filters.pipeline import Run

AGAIN_NS: Final = 20_000_000
"""How long to wait before another look at a proxy that does not read."""
PATIENCE_NS: Final = 500_000_000
"""How long a chunk waits for word. Envoy gives a stream up for which neither a chunk nor an answer
to one came in `message_timeout`, 1 s as shipped."""


class Peer(Protocol):
    """The proxy's end of the stream."""

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
        self._over: Final = over
        self._alarm: Alarm | None = None
        self._alarm_ns = 0
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

    async def take(self, event: Body, deltas: Sequence[Delta], last: Command) -> bool:
        """Send what filters gave of a chunk, or have it wait; return whether the reply is over.

        `last` is the answer to the last chunk, when it comes to that.
        """
        seen, self._seen_before = self._seen_before, self.seen_bytes
        self._spoke_ns = self._clock.monotonic_ns()
        if event.last:
            self._last, self._last_at = last, seen if self.seen_bytes > seen else -1
        elif not self._cut:
            self._chunks.append(seen if self.seen_bytes > seen else -1)
        return await self._send(deltas)

    async def end(self, deltas: Sequence[Delta], last: Command) -> bool:
        """Take that trailers end the reply, to which `last` is the answer."""
        self._last = last
        return await self._send(deltas)

    async def _send(self, deltas: Sequence[Delta]) -> bool:
        wake_ns = self._run.wake_ns()
        over = self._is_over(deltas, wake_ns)
        if over:
            self._over()
        self._sending = True
        try:
            for command in self._commands(deltas, over=over):
                await self._peer.send(command)
        finally:
            self._sending = False
        if not over:
            self._wait(self._wake_ns())
        return over

    def _wake_ns(self) -> int | None:
        """Return when to look again."""
        wake_ns = self._run.wake_ns()
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
    ) -> Iterator[Command]:
        """Yield what lets the bytes of these pieces go, and what ends the reply if it is over.

        `late`: one chunk at least goes, due or not.
        """
        last = self._last
        if self._cut:
            data = b"".join([delta.raw for delta in deltas])
            ends = over and isinstance(last, Stream)
            if data or ends:
                yield from in_chunks(data, last=ends, message=Message.RESPONSE_BODY)
            if over and last is not None and not ends:
                yield last
            return
        chunks = self._chunks
        self._went += sum([len(delta.raw) for delta in deltas])
        while chunks and (over or late or chunks[0] < self._went):
            chunks.popleft()
            late = False
            self._spoke_ns = self._clock.monotonic_ns()
            yield Pass(Message.RESPONSE_BODY)
        if over and last is not None:
            yield last

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
        wake_ns = self._wake_ns()
        while wake_ns is not None and wake_ns <= now_ns:
            if self._sending or not peer.has_room():
                self._wait(now_ns + AGAIN_NS)
                return
            deltas = run.due(self._exchange, now_ns)
            late = not self._cut and now_ns >= self._spoke_ns + PATIENCE_NS
            over = self._is_over(deltas, run.wake_ns())
            over = over or (late and self._last is not None and not self._chunks)
            if over:
                self._over()
            for command in self._commands(deltas, over=over, late=late):
                peer.post(command)
            if over:
                peer.close()
                return
            wake_ns = self._wake_ns()
        self._wait(wake_ns)

    def close(self) -> None:
        """Let nothing more go; returns at once and may be called again."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
