"""What pacing promises, and whether the figures of a run keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ext_proc.tools.pacing_run import CASES, EVEN, TARGET_S, Seen
from ext_proc.tools.queue_goals import Goal

MOST_GAP: Final = 1.25
MOST_FIRST_MS: Final = 5.0
MOST_FRAME_US: Final = 25.0

SeenBy = Mapping[str, Seen]
"""By the name of the case."""


def goals(seen: SeenBy) -> list[Goal]:
    """Return what can be held against a bound, of that which was run."""
    held = [goal for name, one in seen.items() if _is_paced(name) for goal in _of(seen, name, one)]
    errors = sum(sum(one.heard.errors.values()) for one in seen.values())
    return [*held, Goal("all", "streams that did not come whole", errors, 0)]


def _is_paced(name: str) -> bool:
    return bool(CASES[name].reads)


def _of(seen: SeenBy, name: str, one: Seen) -> Iterator[Goal]:
    heard, even = one.heard, seen.get(EVEN)
    gap_ms = percentile(heard.gaps_us, 0.99) / 1e3
    beside = f"{gap_ms:.1f} ms against {TARGET_S * 1e3:.0f}"
    if even is not None:
        beside += f"; {percentile(even.heard.gaps_us, 0.99) / 1e3:.1f} where nobody paces"
    what = "gap between frames P99, of the target"
    yield Goal(name, what, gap_ms / (TARGET_S * 1e3), MOST_GAP, beside=beside)
    first_ms, half_ms = (percentile(heard.firsts_us, share) / 1e3 for share in (0.99, 0.5))
    unread_ms = percentile(even.heard.firsts_us, 0.99) / 1e3 if even is not None else 0.0
    beside = f"{first_ms:.1f} ms against {unread_ms:.1f}; P50 {half_ms:.1f}"
    what = "first token P99, beyond that of streams nobody reads"
    yield Goal(name, what, max(0.0, first_ms - unread_ms), MOST_FIRST_MS, unit=" ms", beside=beside)
    added = added_us(seen, name)
    if added is not None:
        beside = f"{frame_us(one):.1f} in all, its events read"
        what = "CPU that pace adds to a frame"
        yield Goal(name, what, added, MOST_FRAME_US, unit=" us", beside=beside)


def frame_us(one: Seen) -> float:
    """Return Forebay's CPU for a frame, whatever it is spent on."""
    return one.server_us / one.heard.frames if one.heard.frames else 0.0


def added_us(seen: SeenBy, name: str) -> float | None:
    """Return how much of it was not for reading events, by what it costs only to read as many."""
    one, base = seen[name], seen.get(CASES[name].reads)
    if base is None or not base.events or not one.heard.frames:
        return None
    return (one.server_us - base.server_us / base.events * one.events) / one.heard.frames


def percentile(ascending: Sequence[int], share: float) -> int:
    """Return the value that this share is not above; 0 of none."""
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)] if ascending else 0
