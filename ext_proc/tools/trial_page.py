"""Show how pools on their way in do, as tables for people and as a page with plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools.pages import page_console

NOTHING: Final = (
    "no pool is on its way in: give one a `stage` in the file, as docs/stages.md explains"
)
_SIDES: Final = ("old", "new")


def show(trials: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each trial and what it means."""
    # Nothing is folded where a program reads it.
    console = page_console()
    if not trials:
        console.print(Text(NOTHING, "yellow"))
    for trial in trials:
        console.print(Text.assemble((title(trial), "bold"), f", {_share(trial)}"))
        console.print(_table(console, trial))
        for name, said in lines(trial):
            console.print(Text.assemble((f"{name:<12}", "cyan"), said), soft_wrap=True)
        style = "bold red" if trial.get("passed") else "bold green"
        console.print(Text(trial["verdict"], style), soft_wrap=True)
        if trial is not trials[-1]:
            console.print()


def title(trial: Mapping[str, Any]) -> str:
    """Name a trial."""
    return f"{trial['step']}: {trial['new']['pool']} for {trial['old']['pool']}"


def _share(trial: Mapping[str, Any]) -> str:
    if trial["share"] is None:
        return "over"
    return f"{trial['share']:.4g} of the {'requests' if trial['step'] == 'shadow' else 'tenants'}"


def _table(console: Console, trial: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("pool", style="bold")
    columns = ("answered", "refused", "failed", "late", "left", "P50", "P95", "first P50")
    for column in (*columns, "first P95", "tokens"):
        table.add_column(column, justify="right")
    for side in _SIDES:
        figures = trial[side]
        times, firsts, tokens = (
            figures[key] or {} for key in ("seconds", "first_token_seconds", "tokens")
        )
        table.add_row(
            trial[side]["pool"],
            *(f"{figures[key]:,}" for key in ("answered", "refused", "failed", "late", "left")),
            *(_time(of.get(key)) for of in (times, firsts) for key in ("p50", "p95")),
            f"{tokens['mean']:,.0f}" if tokens else "",
        )
    return table


def lines(trial: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what else is known, each under its name."""
    said: list[tuple[str, str]] = []
    pairs = trial["pairs"]
    if pairs and (alike := pairs["likeness"]):
        text = f"mean {alike['mean']:.2f}, P10 {alike['p10']:.2f}"
        said.append(("alike", f"{text} ({alike['count']:,} pairs)"))
    if pairs and (ratio := pairs["time_ratio"]):
        said.append(("time", f"median x {ratio['p50']:.2f}, P95 x {ratio['p95']:.2f}"))
    if pairs and (ratio := pairs["length_ratio"]):
        said.append(("length", f"median x {ratio['p50']:.2f}, mean x {ratio['mean']:.2f}"))
    if pairs and pairs["same_finish"] is not None:
        said.append(("same finish", f"{pairs['same_finish']:.1%} of {pairs['compared']:,}"))
    for side in _SIDES:
        finishes = trial[side]["finishes"]
        if finishes:
            name = trial[side]["pool"]
            ended = ", ".join(f"{finish} {number:,}" for finish, number in finishes.items())
            said.append(("finish", f"{name}: {ended}"))
    if trial["skipped"]:
        reasons = ", ".join(f"{why} {number:,}" for why, number in trial["skipped"].items())
        said.append(("left out", reasons))
    return said


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


# --- The page ------------------------------------------------------------------------------------

WIDE, HIGH = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 30, 34
_COLOURS: Final = {"old": "#888", "new": "#15c"}
_STYLE: Final = (
    "body{font:14px sans-serif;color:#222;background:#fff;margin:24px}h2{margin:28px 0 4px}"
    "p{margin:0 0 8px;color:#333}svg{margin-right:24px}text{font:12px sans-serif;fill:#444}"
    ".title{font-weight:bold;fill:#111}.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.7}"
)


def html(trials: Sequence[Mapping[str, Any]]) -> str:
    """Return a page: for each trial its sentence, its times, and how alike the answers are."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Pools on their way in</title>",
        f"<style>{_STYLE}</style><h1>Pools on their way in</h1>",
    ]
    if not trials:
        parts.append(f"<p>{escape(NOTHING)}</p>")
    for trial in trials:
        parts.append(f"<h2>{escape(title(trial))}</h2><p>{escape(trial['verdict'])}</p>")
        for key, name in (
            ("seconds", "time to the end"),
            ("first_token_seconds", "time to the first token"),
        ):
            parts.append(_waits(trial, key, name))
        if trial["pairs"] and (alike := trial["pairs"]["likeness"]):
            parts.append(_bars(alike["buckets"]))
    return "\n".join(filter(None, parts)) + "\n"


def _waits(trial: Mapping[str, Any], key: str, name: str) -> str:
    """Return an SVG: what share of the answers took no longer than so long."""
    sides = {side: trial[side][key]["buckets"] for side in _SIDES if trial[side][key]}
    bounds = [bound for buckets in sides.values() for bound, _ in buckets]
    if not bounds:
        return ""
    least, most = min(bounds) / 1.25, max(bounds)
    wide, high = WIDE - LEFT - RIGHT, HIGH - TOP - BOTTOM

    def across(seconds: float) -> float:
        return LEFT + wide * math.log(seconds / least) / math.log(most / least)

    parts = [_head(), _text(LEFT, 16, f"share of answers by {name}", "title")]
    for share in (0.0, 0.5, 1.0):
        y = TOP + high * (1 - share)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDE - RIGHT}"/>')
        parts.append(_text(4, y + 4, f"{share:.0%}"))
    parts += [
        _text(across(at) - 16, HIGH - 12, _time(at))
        for at in (least, math.sqrt(least * most), most)
    ]
    for at, (side, buckets) in enumerate(sides.items()):
        total = sum(number for _, number in buckets)
        so_far, points = 0, [f"{LEFT},{TOP + high:.1f}"]
        for bound, number in buckets:
            so_far += number
            points.append(f"{across(bound):.1f},{TOP + high * (1 - so_far / total):.1f}")
        points.append(f"{WIDE - RIGHT},{TOP:.1f}")
        parts.append(f'<polyline stroke="{_COLOURS[side]}" points="{" ".join(points)}"/>')
        pool = trial[side]["pool"]
        y = TOP + high - 24 + 16 * at
        parts.append(f'<rect x="{WIDE - 150}" y="{y - 9}" width="10" height="10" '
                     f'fill="{_COLOURS[side]}"/>')  # fmt: skip
        parts.append(_text(WIDE - 134, y, pool))
    return "".join([*parts, "</svg>"])


def _bars(buckets: Sequence[tuple[float, int]]) -> str:
    """Return an SVG: how many pairs of answers are how much alike."""
    wide, high = WIDE - LEFT - RIGHT, HIGH - TOP - BOTTOM
    most = max(number for _, number in buckets)
    step = wide / 20
    parts = [_head(), _text(LEFT, 16, f"pairs by likeness; the highest bar is {most:,}", "title")]
    for bound, number in buckets:
        tall = high * number / most
        x = LEFT + wide * bound - step
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{TOP + high - tall:.1f}" width="{step - 2:.1f}" '
            f'height="{tall:.1f}" fill="{_COLOURS["new"]}"/>'
        )
    parts += [_text(LEFT + wide * alike - 8, HIGH - 12, f"{alike:g}") for alike in (0.0, 0.5, 1.0)]
    return "".join([*parts, "</svg>"])


def _head() -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{HIGH}" '
        f'viewBox="0 0 {WIDE} {HIGH}" role="img">'
    )


def _text(x: float, y: float, said: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}">{escape(said)}</text>'
