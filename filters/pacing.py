"""Say when which piece of a streamed answer is due, so that it reads as a steady flow.

Knows no clock: every call says what time it is, in nanoseconds. What goes at once goes in one
frame. The first token never waits; the others come at a steady rate, and nothing waits longer than
the bounds in `Pace` say, however slow that rate is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import regex

from filters.api import Delta

LEAST_GAP_NS: Final = 10_000_000
"""Between the frames of a stream that catches up: a tick of a wheel."""
ROUNDING_NS: Final = 1_000
# Unicode Standard Annex 29. What is apart by these classes alone is so by rule GB999, whatever
# stands around it; to look for all ends of a long text takes twenty times as long.
_GRAPHEME: Final = regex.compile(r"\X")
_APART: Final = regex.compile(r"[\p{GCB=Other}\p{GCB=LV}\p{GCB=LVT}]{2}")


Cutter: TypeAlias = Callable[[Delta, int, int], Sequence[tuple[Delta, int]]]
"""Makes of a piece and its tokens pieces of about so many each."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The bounds of a flow."""

    most: int
    """Tokens in a frame."""
    every_ns: int
    """While tokens wait, a frame comes at least this often."""
    tail_ns: int
    """No later after the end of the upstream's stream is the client's over."""
    most_bytes: int
    """What may wait; beyond that the oldest goes at once."""


class Pacer:
    """What waits of one stream, and when it is due."""

    __slots__ = (
        "_cutter", "_end_ns", "_frame_ns", "_gap_ns", "_pace", "_period_ns", "_queue", "_tat_ns",
        "_waits_since_ns", "frame_tokens", "held_bytes", "held_ns", "held_tokens",
        "late_ns",
    )  # fmt: skip

    def __init__(self, pace: Pace, rate: float, cutter: Cutter | None = None) -> None:
        """Let pieces flow at a rate; `cutter` cuts what `take_lump` takes."""
        self._pace: Final = pace
        self._cutter: Final = cutter
        self._queue: deque[tuple[Delta, int]] = deque()
        """Pieces and their tokens: those of a lump, which is still to be cut, below zero."""
        self._tat_ns = 0.0
        """When what has gone would have gone at the steady rate: generic cell rate algorithm; 0:
        no token has."""
        self._frame_ns = 0
        self._end_ns: int | None = None
        self._waits_since_ns = 0
        self.held_tokens = 0
        self.held_bytes = 0
        self.held_ns = 0
        """For how long something waited, in all."""
        self.late_ns = 0
        """How much later than it was due a frame went, at most; before the upstream's end."""
        self.frame_tokens = 1
        """How many tokens a frame has at the rate set."""
        self._period_ns = self._gap_ns = 0.0
        """Time of a token, and between two frames while tokens wait."""
        self.set_rate(rate)

    @property
    def ending(self) -> bool:
        """Tell whether nothing more comes."""
        return self._end_ns is not None

    def set_rate(self, rate: float) -> None:
        """Let tokens flow at so many a second from here on."""
        if (period_ns := 1e9 / rate) != self._period_ns:
            self._set_period(period_ns)

    def _set_period(self, period_ns: float) -> None:
        self._period_ns = period_ns
        self._gap_ns = gap_ns = min(self._pace.every_ns, self._pace.most * period_ns)
        self.frame_tokens = max(1, int(gap_ns / period_ns))

    def feed(self, now_ns: int, items: Sequence[tuple[Delta, int]]) -> list[Delta]:
        """Take pieces with their tokens; return those that are due at once, in one frame.

        What has no tokens waits behind what has, and takes no time.
        """
        queue = self._queue
        if not queue:
            self._waits_since_ns = now_ns
        waited = bool(queue)
        for item in items:
            queue.append(item)
            self.held_bytes += len(item[0].raw)
            self.held_tokens += item[1]
        due = [] if waited else self._take(now_ns)
        if self.held_bytes > self._pace.most_bytes:
            due += self._spill(now_ns)
        return due

    def take_lump(self, now_ns: int, delta: Delta, tokens: int) -> list[Delta]:
        """Take a piece that is to be cut; return what is due at once, as for a first one.

        It is cut when its turn comes: then many streams' are, one after the other, at half the
        cost of cutting one when it comes.
        """
        if not self._queue:
            self._waits_since_ns = now_ns
            if 0.0 < self._tat_ns <= now_ns:
                self._frame_ns = now_ns - int(self._gap_ns)  # so that it is due
        self._queue.append((delta, -tokens))
        self.held_bytes += len(delta.raw)
        self.held_tokens += tokens
        due = [] if self._tat_ns else self._take(now_ns)
        if self.held_bytes > self._pace.most_bytes:
            due += self._spill(now_ns)
        return due

    def end(self, now_ns: int) -> list[Delta]:
        """Take that nothing more comes; return what is due at once."""
        self._end_ns = now_ns
        self._hurry(now_ns)
        return self.due(now_ns)

    def wake_ns(self) -> int | None:
        """Return when to call `due`, or None while nothing waits."""
        if not self._queue:
            return None
        # What was not here yet was not due.
        at = max(self._frame_ns + int(self._gap_ns), self._waits_since_ns)
        if self._end_ns is not None:
            at = min(at, self._end_ns + self._pace.tail_ns)
        return at

    def due(self, now_ns: int) -> list[Delta]:
        """Return one frame if one is due; call again while `wake_ns` lies behind `now_ns`."""
        wake_ns = self.wake_ns()
        if wake_ns is None or wake_ns > now_ns:
            return []
        if self._end_ns is not None:
            if now_ns >= self._end_ns + self._pace.tail_ns - LEAST_GAP_NS:
                return self._frame(now_ns, self._pace.most)
            self._hurry(now_ns)
        elif now_ns - wake_ns > self.late_ns:
            self.late_ns = now_ns - wake_ns
        # A call that comes late does not slow the flow: the frame counts as sent when it was due.
        at_ns = max(wake_ns, now_ns - self._pace.every_ns)
        due = self._take(at_ns) or self._frame(at_ns, 1)
        if self.held_bytes > self._pace.most_bytes:  # the pieces of a lump are more than it was
            due += self._spill(now_ns)
        return due

    def let_go(self) -> list[Delta]:
        """Return everything that waits."""
        left = [delta for delta, _ in self._queue]
        self._queue.clear()
        self.held_bytes = self.held_tokens = 0
        return left

    def _hurry(self, now_ns: int) -> None:
        """Have what waits gone by the end of the tail."""
        assert self._end_ns is not None
        # What is due a moment before the end of the tail may leave as much behind it.
        left_ns = self._end_ns + self._pace.tail_ns - 2 * LEAST_GAP_NS - now_ns
        if self.held_tokens and left_ns > 0:
            self._set_period(min(self._period_ns, left_ns / self.held_tokens))

    def _take(self, at_ns: int) -> list[Delta]:
        """Take what is due until the next frame would be."""
        queue, period_ns, room = self._queue, self._period_ns, self._pace.most
        tat_ns = self._tat_ns if self._tat_ns > at_ns else float(at_ns)
        until_ns = at_ns + self._gap_ns - period_ns + ROUNDING_NS
        popped: list[Delta] = []
        taken = size = 0
        while queue:
            delta, tokens = queue[0]
            if tokens:
                if tokens < 0:
                    self._cut_lump()
                    continue
                if tokens > room - taken and popped:
                    break
                if tat_ns + (tokens - 1) * period_ns > until_ns and tat_ns > at_ns:
                    break
                taken += tokens
                tat_ns += tokens * period_ns
            size += len(delta.raw)
            popped.append(delta)
            queue.popleft()
        if taken:
            self._tat_ns = tat_ns
        if popped:
            self._popped(at_ns, taken, size)
        return popped

    def _frame(self, at_ns: int, most: int) -> list[Delta]:
        """Take tokens up to `most`, at least one piece, whether they are due or not."""
        count = 0
        if self._queue[0][1] < 0:
            self._cut_lump()
        for _, tokens in self._queue:
            if count and not 0 <= tokens <= most:
                break
            most -= tokens
            count += 1
            self._tat_ns += tokens * self._period_ns
        return self._pop(at_ns, count)

    def _cut_lump(self) -> None:
        """Cut the first piece."""
        assert self._cutter is not None  # else it would not have been taken as a lump
        lump, tokens = self._queue[0]
        pieces = self._cutter(lump, -tokens, self.frame_tokens)
        self._queue.popleft()
        self._queue.extendleft(reversed(pieces))
        self.held_tokens += tokens
        self.held_bytes -= len(lump.raw)
        for piece, its_tokens in pieces:
            self.held_tokens += its_tokens
            self.held_bytes += len(piece.raw)

    def _spill(self, now_ns: int) -> list[Delta]:
        count, size = 0, self.held_bytes
        for delta, _ in self._queue:
            if size <= self._pace.most_bytes:
                break
            size -= len(delta.raw)
            count += 1
        return self._pop(now_ns, count)

    def _pop(self, at_ns: int, count: int) -> list[Delta]:
        items = [self._queue.popleft() for _ in range(count)]
        popped = [delta for delta, _ in items]
        if popped:
            size = sum([len(delta.raw) for delta in popped])
            self._popped(at_ns, sum([abs(item[1]) for item in items]), size)
        return popped

    def _popped(self, at_ns: int, tokens: int, size: int) -> None:
        self.held_bytes -= size
        self.held_tokens -= tokens
        self._frame_ns = at_ns
        if not self._queue and at_ns > self._waits_since_ns:
            self.held_ns += at_ns - self._waits_since_ns


def cut(text: str, tokens: int, most: int) -> list[str]:
    """Cut a text of `tokens` into pieces of about `most`; joined they are the text.

    Behind words where there is one in the second half of a piece, and never in a grapheme.
    """
    size = max(1, len(text) * most // max(tokens, 1))
    if len(text) <= size:
        return [text]
    simple = text.isascii() and "\r" not in text
    whole: set[int] | None = None
    pieces: list[str] = []
    start = 0
    while len(text) - start > size:
        end = start + size
        at = text.rfind(" ", start + size // 2, end + 1)
        if at > start:
            end = at
        if not simple and _APART.match(text, end - 1) is None:
            if whole is None:
                whole = {found.end() for found in _GRAPHEME.finditer(text)}
            while end not in whole:
                end += 1
        pieces.append(text[start:end])
        start = end
    if start < len(text):
        pieces.append(text[start:])
    return pieces
