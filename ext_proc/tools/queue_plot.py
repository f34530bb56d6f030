"""Draw what queues did to a load, as one page that any browser shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from ext_proc.tools.queue_goals import PlayedBy
from ext_proc.tools.queue_loads import CALM, FLOODED, LOADS, MIXED, ROOMY, SHORT, SHORT_ALONE
from ext_proc.tools.queue_run import Group, Played
from ext_proc.tools.routing_plot import (
    BOTTOM,
    COLOURS,
    HIGH,
    LEFT,
    RIGHT,
    STYLE,
    TOP,
    WIDE,
    head,
    key,
    tails,
    text,
)

STEPS: Final = 5
"""Lines across a plot."""


def page(played: PlayedBy) -> str:
    """Return an HTML page: waits with and without queues, and who waited when."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Fair queues</title>",
        f"<style>{STYLE}</style><h1>Fair queues</h1>",
    ]
    for load in (MIXED, ROOMY, FLOODED):
        lines = {
            name: group.ttft_s for name, group in _compared(played, load).items() if group.ttft_s
        }
        if lines:
            parts.append(f"<h2>{escape(load)}</h2><p>{escape(LOADS[load].about)}</p>")
            parts.append(tails(lines, "share of requests that waited longer for a first token"))
    for (load, queued), one in played.items():
        if queued and any(fast or bulk for _, fast, bulk in one.depths):
            parts.append(f"<h2>{escape(load)}</h2><p>{escape(LOADS[load].about)}</p>")
            parts.append(depths(one.depths))
            parts.append(classes(one))
    return "\n".join(parts) + "\n"


def _compared(played: PlayedBy, load: str) -> Mapping[str, Group]:
    named = {
        "alone": played.get((CALM if load == ROOMY else SHORT_ALONE, True)),
        "with queues": played.get((load, True)),
        "without": played.get((load, False)),
    }
    found = {
        f"short, {name}": one.streams[SHORT.name] for name, one in named.items() if one is not None
    }
    one = played.get((load, True))
    others = one.streams if one is not None else {}
    rest = {f"{name}, with queues": group for name, group in others.items() if name != SHORT.name}
    return found | rest


def depths(seen: Sequence[tuple[float, int, int]]) -> str:
    """Return an SVG: how many waited in each queue, over time."""
    begin_s, end_s = seen[0][0], max(seen[-1][0], seen[0][0] + 1)
    most = max(1, *(max(fast, bulk) for _, fast, bulk in seen))
    wide, high = WIDE - LEFT - RIGHT, HIGH - TOP - BOTTOM
    parts = [head(WIDE, HIGH), text(LEFT, TOP - 10, "requests that wait", kind="title")]
    for step in range(STEPS + 1):
        y = TOP + high * (1 - step / STEPS)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
        parts.append(text(LEFT - 6, y + 4, f"{most * step / STEPS:.0f}", "end"))
    for step in range(STEPS + 1):
        x = LEFT + wide * step / STEPS
        seconds = (end_s - begin_s) * step / STEPS
        parts.append(text(x, HIGH - BOTTOM + 16, f"{seconds:.0f} s", "middle"))
    for number, name in enumerate(("fast", "bulk")):
        points = " ".join(
            f"{LEFT + wide * (one[0] - begin_s) / (end_s - begin_s):.1f},"
            f"{TOP + high * (1 - one[1 + number] / most):.1f}"
            for one in seen
        )
        parts.append(f'<polyline stroke="{COLOURS[number]}" points="{points}"/>')
        parts.append(key(LEFT + 10, TOP + 12 + 15 * number, name, COLOURS[number]))
    return "\n".join([*parts, "</svg>"])


def classes(one: Played) -> str:
    """Return an SVG with a bar for each class: what share was served, and the longest wait."""
    bar, left = 22, 110
    wide, high = WIDE - left - 150, TOP + bar * len(one.classes) + 10
    parts = [head(WIDE, high), text(left, TOP - 10, "served, and longest wait", kind="title")]
    before = [None, *(lane for lane, _ in one.classes)]
    for number, ((lane, priority), group) in enumerate(one.classes.items()):
        y = TOP + bar * number
        share = len(group.waits_s) / group.asked
        colour = COLOURS[0 if lane == "fast" else 1]
        size = f'width="{wide * share:.1f}" height="{bar - 6}"'
        parts.append(f'<rect x="{left}" y="{y}" {size} fill="{colour}"/>')
        parts.append(text(left - 6, y + bar - 10, f"{lane}, {priority.word}", "end"))
        words = f"{len(group.waits_s):,} of {group.asked:,}, {group.longest_wait_s:.1f} s"
        parts.append(text(left + wide * share + 4, y + bar - 10, words))
        if before[number] not in (None, lane):
            parts.append(f'<path class="grid" d="M0 {y - 3}H{WIDE}"/>')
    return "\n".join([*parts, "</svg>"])
