"""Draw what a comparison of routing strategies showed, as one page that any browser shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from ext_proc.tools.routing_goals import LEAST_HIT, Measured
from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_run import ORACLE, Result, percentile

WIDE, HIGH = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 34  # around each plot: room for words
POINTS: Final = 120
COLOURS: Final = ("#15c", "#2f8f4e", "#c2571a", "#8a4fb0", "#999", "#c33")
ORACLE_COLOUR: Final = "#111"
BAR: Final = 22
STYLE: Final = (
    "body{font:14px sans-serif;color:#222;background:#fff;margin:24px}h2{margin:28px 0 4px}"
    "p{margin:0 0 8px;color:#555}svg{margin-right:24px}text{font:12px sans-serif;fill:#444}"
    ".title{font-weight:bold;fill:#111}.grid{stroke:#ddd}.goal{stroke:#555;stroke-dasharray:4 3}"
    "polyline{fill:none;stroke-width:1.7}"
)


def page(measured: Measured) -> str:
    """Return an HTML page with two plots for each load: waits, and hits."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Ways to pick a replica</title>",
        f"<style>{STYLE}</style><h1>Ways to pick a replica</h1>",
    ]
    for (replicas, load), results in measured.results.items():
        possible = measured.possible.get((replicas, load))
        parts.append(f"<h2>{escape(load)}, {replicas} replicas</h2>")
        parts.append(f"<p>{escape(LOADS[load].about)}</p>")
        parts.append(waits(results))
        if possible is not None and possible.hit_rate:
            parts.append(hits(results, possible.hit_rate))
    return "\n".join(parts) + "\n"


def waits(results: Mapping[str, Result]) -> str:
    """Return an SVG: what share of requests waited longer than so long for their first token."""
    lines = {name: one.ttft_s for name, one in results.items()}
    return tails(lines, "share of requests that waited longer")


def tails(
    lines: Mapping[str, Sequence[float]], what: str, axis: str = "time to the first token"
) -> str:
    """Return an SVG: what share of each line's seconds, which ascend, are more than so many.

    Both axes are logarithmic: of a tenth, a hundredth, a thousandth of the requests one sees as
    much as of the half.
    """
    shortest = max(1e-3, min(seconds[0] for seconds in lines.values()))
    longest = max(seconds[-1] for seconds in lines.values())
    least = 10.0 ** math.floor(math.log10(shortest))
    most = max(10.0 ** math.ceil(math.log10(longest)), 10 * least)
    count = max(10, *(len(seconds) for seconds in lines.values()))
    rarest = 10.0 ** -math.ceil(math.log10(count))
    wide, high = WIDE - LEFT - RIGHT, HIGH - TOP - BOTTOM

    def across(seconds: float) -> float:
        share = math.log(max(least, seconds) / least) / math.log(most / least)
        return LEFT + wide * share

    def down(share: float) -> float:
        return TOP + high * math.log(max(rarest, share)) / math.log(rarest)

    parts = [
        head(WIDE, HIGH),
        text(LEFT, TOP - 10, what, kind="title"),
        text(WIDE - RIGHT, HIGH - 4, axis, "end"),
    ]
    for decade in _decades(least, most):
        x = across(decade)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{TOP + high}"/>')
        parts.append(text(x, HIGH - BOTTOM + 16, _duration(decade), "middle"))
    for decade in _decades(rarest, 1.0):
        y = down(decade)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
        parts.append(text(LEFT - 6, y + 4, f"{decade * 100:g}%", "end"))
    y = down(0.05)
    parts.append(f'<path class="goal" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
    parts.append(text(WIDE - RIGHT, y - 4, "P95", "end"))
    for number, (name, ascending) in enumerate(lines.items()):
        points = " ".join(
            f"{across(seconds):.1f},{down(share):.1f}" for seconds, share in _tail(ascending)
        )
        colour = _colour(name, number)
        title = f"{name}: P95 {_duration(percentile(ascending, 0.95))}"
        parts.append(
            f'<polyline stroke="{colour}" points="{points}"><title>{escape(title)}</title>'
            "</polyline>"
        )
        parts.append(key(LEFT + 10, TOP + high - 12 - 15 * number, name, colour))
    return "\n".join([*parts, "</svg>"])


def hits(results: Mapping[str, Result], possible: float) -> str:
    """Return an SVG with a bar for each strategy: its hits, of those that are possible."""
    high = TOP + BAR * len(results) + 24
    left, wide = 90, WIDE - 90 - 60
    parts = [head(WIDE, high), text(left, TOP - 10, "hits, of those possible", kind="title")]
    for number, (name, one) in enumerate(results.items()):
        share, y = one.hit_rate / possible, TOP + BAR * number
        bar = f'width="{wide * min(1.0, share):.1f}" height="{BAR - 6}"'
        parts.append(f'<rect x="{left}" y="{y}" {bar} fill="{_colour(name, number)}"/>')
        parts.append(text(left - 6, y + BAR - 10, name, "end"))
        parts.append(text(left + wide * min(1.0, share) + 4, y + BAR - 10, f"{share:.1%}"))
    x = left + wide * LEAST_HIT
    parts.append(f'<path class="goal" d="M{x:.1f} {TOP}V{high - 18}"/>')
    parts.append(text(x, high - 4, f"goal {LEAST_HIT:.0%}", "middle"))
    return "\n".join([*parts, "</svg>"])


def _tail(ascending: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Return waits with the share of requests that waited at least as long, few but telling."""
    count = len(ascending)
    last = -1
    for point in range(POINTS + 1):
        at = min(count - 1, count - round(count ** (1 - point / POINTS)))
        if at != last:
            yield ascending[at], (count - at) / count
        last = at


def _decades(least: float, most: float) -> Iterator[float]:
    first = round(math.log10(least))
    for power in range(first, round(math.log10(most)) + 1):
        yield 10.0**power


def _duration(seconds: float) -> str:
    return f"{seconds:,.3g} s" if seconds >= 1 else f"{seconds * 1e3:,.3g} ms"


def _colour(name: str, number: int) -> str:
    return ORACLE_COLOUR if name == ORACLE else COLOURS[number % len(COLOURS)]


def head(wide: int, high: int) -> str:
    """Return the beginning of an SVG."""
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">'


def key(x: float, y: float, name: str, colour: str) -> str:
    """Return a square of a line's colour, and its name."""
    return f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>' + text(
        x + 15, y, name
    )


def text(x: float, y: float, text: str, anchor: str = "start", *, kind: str = "") -> str:
    """Return words at a place."""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
