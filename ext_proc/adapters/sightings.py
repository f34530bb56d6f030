"""Count how often patterns were seen lately, in memory of a fixed size.

A count-min sketch for each stretch of the window: `ROWS` rows of counters, of which a pattern has
one in each; the smallest of them is its count, or more where others share all of its counters. With
conservative update only the smallest are raised. A stretch that began before
the window is dropped whole, so that no count rests on anything older.

How often others share them all rests on how many counters are in use, not on what patterns come:
with a share `f` of a stretch in use it is at most `f ** ROWS`. `MOST_USED` bounds that; a stretch
that reaches it ends early, and the oldest gives its place. Too many patterns for the memory make
counts forget sooner, not count too much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

ROWS: Final = 4
STRETCHES: Final = 8  # counts reach back 7 eighths of the window at least, the whole at most
# 8 stretches, each wrong for one pattern in 6 ** 4: 0.6 % of patterns may be counted too often at
# the end of a stretch that is full, fewer before it.
MOST_USED: Final = 1 / 6
HIGHEST: Final = 255  # of a counter, which is one byte; nobody asks for more than 100
# Two of the patterns in use, 1.5 for each counter of a row, have all counters in common by chance:
# one in `1.5 / width`, which is to be little against the 0.6 %.
LEAST_WIDTH: Final = 1024


class Sketch:
    """Counts sightings in one window, in `size` bytes, or 32 KiB where that is less."""

    __slots__ = (
        "_began_ns",
        "_most_used",
        "_stretch_ns",
        "_stretches",
        "_used",
        "_width",
        "last_ns",
        "shortened",
        "window_ns",
    )

    def __init__(self, window_ns: int, size: int) -> None:
        self.window_ns: Final = window_ns
        self._stretch_ns: Final = -(-window_ns // STRETCHES)
        self._width: Final = max(LEAST_WIDTH, size // (STRETCHES * ROWS))
        self._most_used: Final = int(self._width * ROWS * MOST_USED)
        self._stretches: list[bytearray] = []
        """The latest first."""
        self._began_ns: list[int] = []
        self._used = 0
        self.last_ns = 0
        """When something was counted last."""
        self.shortened = 0
        """Stretches that ended early for want of room."""

    @property
    def size(self) -> int:
        """Bytes in use."""
        return len(self._stretches) * self._width * ROWS

    def count(self, number: int, now_ns: int) -> int:
        """Count a sighting of the pattern with the hash `number`; return how many there were."""
        began_ns = self._began_ns
        full = self._used >= self._most_used
        if not began_ns or full or now_ns - began_ns[0] >= self._stretch_ns:
            self._turn(now_ns, full=full)
        while began_ns[-1] <= now_ns - self.window_ns:
            began_ns.pop()
            self._stretches.pop()
        self.last_ns = now_ns
        # Two halves of a good hash make as many as are needed (Kirsch and Mitzenmacher, 2006).
        width = self._width
        a = number % width
        step = (number >> 32) % width
        b = (a + step) % width + width
        c = (b + step) % width + width * 2
        d = (c + step) % width + width * 3
        latest, *earlier = self._stretches
        at_a, at_b, at_c, at_d = latest[a], latest[b], latest[c], latest[d]
        if not (at_a and at_b and at_c and at_d):
            count = 1
            self._used += (not at_a) + (not at_b) + (not at_c) + (not at_d)
            latest[a], latest[b] = at_a or 1, at_b or 1
            latest[c], latest[d] = at_c or 1, at_d or 1
        elif (count := min(at_a, at_b, at_c, at_d)) < HIGHEST:
            for place in (a, b, c, d):
                if latest[place] == count:
                    latest[place] += 1
            count += 1
        for cells in earlier:  # most have nothing of a pattern: one look tells
            if (at_a := cells[a]) and (at_b := cells[b]) and (at_c := cells[c]):
                count += min(at_a, at_b, at_c, cells[d])
        return count

    def _turn(self, now_ns: int, *, full: bool) -> None:
        """Begin another stretch."""
        if len(self._stretches) == STRETCHES:
            self._stretches.pop()
            self._began_ns.pop()
        if full:
            self.shortened += 1
        self._stretches.insert(0, bytearray(self._width * ROWS))
        self._began_ns.insert(0, now_ns)
        self._used = 0


class Sightings:
    """Counts sightings in as many windows as profiles have, in `size` bytes for all together."""

    def __init__(self, size: int, number_of: Callable[[bytes], int] = hash) -> None:
        """Take a hash of 64 bits of a key from `number_of`.

        Python's own has a seed of the process, so that nobody can choose keys that collide.
        """
        self._size: Final = size
        self._number_of: Final = number_of
        self._sketches: dict[float, Sketch] = {}
        """By the window in seconds."""
        self._shortened = 0

    @property
    def size(self) -> int:
        """Bytes in use."""
        return sum(sketch.size for sketch in tuple(self._sketches.values()))

    @property
    def shortened(self) -> int:
        """How often something was forgotten before its time, for want of room."""
        sketches = tuple(self._sketches.values())
        return self._shortened + sum(sketch.shortened for sketch in sketches)

    def count(self, key: bytes, window_s: float, now_ns: int) -> int:
        """Count one more sighting of `key`; return how many fell in the last `window_s` seconds.

        Fewer where one was long ago in the window, or there was no room; hardly ever more.
        """
        sketch = self._sketches.get(window_s) or self._share_with(window_s, now_ns)
        return sketch.count(self._number_of(key), now_ns)

    def forget(self) -> None:
        """Let go of everything."""
        self._sketches.clear()

    def _share_with(self, window_s: float, now_ns: int) -> Sketch:
        """Part the memory anew, for one more window; what was counted so far is forgotten.

        Windows are those of profiles: there are few, and they change when settings do. One that
        was not asked for as long as it reaches is no profile's any more.
        """
        self._shortened = self.shortened
        windows_s = [
            asked_s
            for asked_s, sketch in self._sketches.items()
            if now_ns - sketch.last_ns < sketch.window_ns
        ]
        windows_s.append(window_s)
        share = self._size // len(windows_s)
        self._sketches = {
            asked_s: Sketch(max(1, round(asked_s * 1e9)), share) for asked_s in windows_s
        }
        return self._sketches[window_s]
