"""Tell the time."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's own clocks."""

    now = staticmethod(time.time)
    monotonic_ns = staticmethod(time.monotonic_ns)
