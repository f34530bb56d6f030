"""Make figures of what paced streams did, and hold them against what pacing promises."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ext_proc.tools.pacing_run import CASES, EVEN, TARGET_S, Seen
from ext_proc.tools.queue_goals import Goal

MOST_GAP: Final = 1.25
MOST_FIRST_MS: Final = 5.0
MOST_END_MS: Final = 300.0
MOST_FRAME_US: Final = 25.0
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

Round: TypeAlias = Mapping[str, Seen]
"""By the name of the case."""
Figures: TypeAlias = dict[str, Any]
"""Of one case: names to numbers, or to figures of which each is a number."""


def figures_of(rounds: Sequence[Round]) -> dict[str, Figures]:
    """Return the figures of each case: of every one the median of its rounds, and those."""
    found: dict[str, Figures] = {}
    for name in rounds[0]:
        case = CASES[name]
        each = [_figures(seen, name) for seen in rounds]
        errors: dict[str, int] = {}
        for seen in rounds:
            for kind, number in seen[name].heard.errors.items():
                errors[kind] = errors.get(kind, 0) + number
        found[name] = {
            "about": case.about,
            "speech": case.spoken.about,
            **median(each),
            "errors": errors,
            "rounds": each,
        }
    return found


def _figures(seen: Round, name: str) -> Figures:
    one, heard = seen[name], seen[name].heard
    frames = max(1, heard.frames)
    return {
        "window_s": heard.seconds,
        "frames": heard.frames,
        "events": one.events,
        "gap_ms": _ms(heard.gaps_us),
        "first_token_ms": _ms(heard.firsts_us),
        "end_ms": _ms(heard.ends_us),
        "sent_late_by_upstream_ms": _ms(heard.sent_late_us),
        "latest_frame_of_a_stream_sent_late_by_forebay_ms": _ms(one.left_late_us),
        "read_late_by_client_ms": _ms(heard.read_late_us),
        "forebay_us_a_frame": one.server_us / frames,
        "added_us_a_frame": added_us(one, seen.get(CASES[name].reads)),
        "envoy_us_a_frame": one.envoy_us / frames,
        "machine_busy": one.machine,
    }


def added_us(one: Seen, base: Seen | None) -> float | None:
    """Return what of Forebay's CPU for a frame was not for reading events.

    `base` says what it costs only to read as many.
    """
    if base is None or not base.events or not one.heard.frames:
        return None
    return (one.server_us - base.server_us / base.events * one.events) / one.heard.frames


def _ms(values_us: Sequence[int]) -> dict[str, float] | None:
    if not values_us:
        return None
    return {name: percentile(values_us, share) / 1e3 for name, share in SHARES.items()}


def percentile(ascending: Sequence[int], share: float) -> int:
    """Return the value that this share is not above."""
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


def median(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure; None where a round has none."""
    found: Figures = {}
    for name in rounds[0]:
        values = [one[name] for one in rounds]
        if any(value is None for value in values):
            found[name] = None
        elif isinstance(values[0], dict):
            found[name] = median(values)
        else:
            found[name] = statistics.median(values)
    return found


def goals(figures: Mapping[str, Figures]) -> list[Goal]:
    """Return what can be held against a bound, of that which was run."""
    held: list[Goal] = []
    for name, one in figures.items():
        if CASES[name].reads and one["gap_ms"] and one["first_token_ms"]:
            held += _of(name, one, figures.get(EVEN))
    errors = sum(sum(one["errors"].values()) for one in figures.values())
    return [*held, Goal("all", "streams that did not come whole", errors, 0)]


def _of(name: str, one: Figures, even: Figures | None) -> Iterator[Goal]:
    gap_ms, target_ms = one["gap_ms"]["p99"], TARGET_S * 1e3
    beside = f"{gap_ms:.1f} ms against {target_ms:.0f}"
    if even is not None and even["gap_ms"]:
        beside += f"; {even['gap_ms']['p99']:.1f} where nobody paces"
    what = "gap between frames P99, of the target"
    yield Goal(name, what, gap_ms / target_ms, MOST_GAP, beside=beside)
    first = one["first_token_ms"]
    unread_ms = even["first_token_ms"]["p99"] if even and even["first_token_ms"] else 0.0
    beside = f"{first['p99']:.1f} ms against {unread_ms:.1f}; P50 {first['p50']:.1f}"
    what = "first token P99, beyond that of streams nobody reads"
    late_ms = max(0.0, first["p99"] - unread_ms)
    yield Goal(name, what, late_ms, MOST_FIRST_MS, unit=" ms", beside=beside)
    if end := one["end_ms"]:
        unread_ms = even["end_ms"]["p99"] if even and even["end_ms"] else 0.0
        beside = f"{end['p99']:.1f} ms against {unread_ms:.1f}; P50 {end['p50']:.1f}"
        what = "end of the stream P99, beyond that of streams nobody reads"
        late_ms = max(0.0, end["p99"] - unread_ms)
        yield Goal(name, what, late_ms, MOST_END_MS, unit=" ms", beside=beside)
    if (added := one["added_us_a_frame"]) is not None:
        beside = f"{one['forebay_us_a_frame']:.1f} in all, its events read"
        what = "CPU that pace adds to a frame"
        yield Goal(name, what, added, MOST_FRAME_US, unit=" us", beside=beside)
