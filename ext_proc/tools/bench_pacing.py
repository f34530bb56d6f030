"""Show how steadily paced streams flow, and what that costs, with hundreds of them at once.

A real Envoy, an upstream that speaks in fits, and clients that read by the kernel's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools import pacing_run
from ext_proc.tools.arguments import at_least
from ext_proc.tools.machine import machine
from ext_proc.tools.pacing_goals import SeenBy, added_us, frame_us, goals, percentile
from ext_proc.tools.pacing_run import CASES, EVEN, LEAST_SECONDS, SECONDS, STREAMS, Seen
from ext_proc.tools.pages import page_console
from ext_proc.tools.queue_goals import Goal, missed
from ext_proc.tools.routing_plot import STYLE, tails
from filters.errors import ConfigError

OUTPUT: Final = "bench-pacing.json"
SHARES: Final = (0.5, 0.9, 0.99, 0.999, 1.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay bench pacing`."""
    add = parser.add_argument
    add("--streams", type=at_least(1), default=STREAMS, metavar="N", help=f"at once ({STREAMS})")
    add(
        "--seconds",
        type=at_least(LEAST_SECONDS),
        default=SECONDS,
        metavar="S",
        help=f"for which each stream is spoken ({SECONDS})",
    )
    names = ",".join(CASES)
    add("--cases", type=_names, default=list(CASES), metavar="A,B", help=f"only these ({names})")
    add("--json", action="store_true", help="print every figure as JSON, and no table")
    add(
        "--output",
        metavar="FILE",
        default=OUTPUT,
        help=f"keep every figure there, and plots beside it ({OUTPUT})",
    )


def _names(text: str) -> list[str]:
    wanted = text.split(",")
    if unknown := set(wanted) - set(CASES):
        message = f'expected some of {", ".join(CASES)}, got "{min(unknown)}"'
        raise argparse.ArgumentTypeError(message)
    return [name for name in CASES if name in wanted]


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay bench pacing`; return 1 when a goal is missed."""
    output = Path(arguments.output)
    if not output.parent.is_dir():
        raise ConfigError("--output", f"expected a file in a folder that exists, got {output}")
    console, progress = page_console(), Console(stderr=True, highlight=False)
    busy = os.getloadavg()[0]
    with progress.status("starting") as status:

        def say(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                progress.print(text, style="dim", markup=False)

        streams, seconds = arguments.streams, arguments.seconds
        seen = asyncio.run(pacing_run.run(arguments.cases, streams, seconds, say))
    held = goals(seen)
    report = report_of(streams, seconds, seen, held, busy)
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    output.write_text(text, encoding="utf-8")
    plots = output.with_suffix(".html")
    plots.write_text(page(seen), encoding="utf-8")
    if arguments.json:
        print(text, end="")
    else:
        show(console, streams, seen, held, busy)
        where = f"every figure: {output}; plots: {plots}"
        console.print(where, style="dim", soft_wrap=True, markup=False)
    return 1 if missed(held) else 0


# --- What it says --------------------------------------------------------------------------------


def report_of(
    streams: int, seconds: int, seen: SeenBy, held: Sequence[Goal], busy: float
) -> dict[str, Any]:
    """Return every figure."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": busy},
        "streams": streams,
        "seconds": seconds,
        "cases": {name: _figures(seen, name) for name in seen},
        "goals": [{**goal._asdict(), "met": goal.met} for goal in held],
    }


def _figures(seen: SeenBy, name: str) -> dict[str, Any]:
    case, one = CASES[name], seen[name]
    heard = one.heard
    return {
        "about": case.about,
        "speech": case.spoken.about,
        "window_s": heard.seconds,
        "frames": heard.frames,
        "events": one.events,
        "gap_ms": _ms(heard.gaps_us),
        "first_token_ms": _ms(heard.firsts_us),
        "sent_late_by_upstream_ms": _ms(heard.sent_late_us),
        "latest_frame_of_a_stream_sent_late_by_forebay_ms": _ms(one.left_late_us),
        "read_late_by_client_ms": _ms(heard.read_late_us),
        "forebay_us": {"frame": frame_us(one), "frame_added": added_us(seen, name)},
        "envoy_us_a_frame": one.envoy_us / max(1, heard.frames),
        "machine_busy": one.machine,
        "errors": heard.errors,
    }


def _ms(values_us: Sequence[int]) -> dict[str, float]:
    return {
        "max" if share == 1 else f"p{share * 100:g}": percentile(values_us, share) / 1e3
        for share in SHARES
    }


def show(console: Console, streams: int, seen: SeenBy, held: Sequence[Goal], busy: float) -> None:
    """Print a table, what its figures are, and what was promised."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("ms, µs of CPU", style="bold")
    columns = (
        *("gap p50", "p99", "max", "first p50", "p99", "late: up", "forebay", "client"),
        *("µs/frame", "adds", "Envoy", "busy", "errors"),
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, one in seen.items():
        table.add_row(name, *_cells(seen, name, one))
    console.print(table)
    for name in seen:
        case = CASES[name]
        said = Text.assemble(
            (f"{name:11}", "bold cyan"), f"{case.about}: ", (case.spoken.about, "dim")
        )
        console.print(said, soft_wrap=True)
    for text in (_ABOUT, f"{streams} streams at once; load before {busy:.1f}"):
        console.print(text, style="dim", soft_wrap=True, markup=False)
    for name, one in seen.items():
        for kind, number in one.heard.errors.items():
            console.print(Text(f"{name}: {number} x {kind}", style="red"))
    for goal in held:
        console.print(goal.line, soft_wrap=True)
    count = missed(held)
    text = f"{len(held) - count} of {len(held)} goals met"
    console.print(Text(text, "bold yellow" if count else "bold green"))


_ABOUT: Final = f"""\
Gaps are between frames as the client's kernel received them, with whatever Envoy, the upstream and
the machine add; `{EVEN}` shows that alone. First: from the upstream's sending to that.
Late, 99th percentile: events that the upstream sent later than it was to; by how much the latest
frame of a stream left Forebay after it was due; pieces that the client read later than its kernel
had them, which is in no other figure. CPU of Forebay's for a frame, how much of it is not for
reading events, and Envoy's. Busy is the whole machine, with all that ran on it."""


def _cells(seen: SeenBy, name: str, one: Seen) -> list[str]:
    heard, added = one.heard, added_us(seen, name)

    def ms(values_us: Sequence[int], share: float) -> str:
        return f"{percentile(values_us, share) / 1e3:.1f}" if values_us else ""

    return [
        *(ms(heard.gaps_us, share) for share in (0.5, 0.99, 1.0)),
        *(ms(heard.firsts_us, share) for share in (0.5, 0.99)),
        *(ms(late, 0.99) for late in (heard.sent_late_us, one.left_late_us, heard.read_late_us)),
        f"{frame_us(one):.1f}",
        f"{added:.1f}" if added is not None else "",
        f"{one.envoy_us / max(1, heard.frames):.1f}",
        f"{one.machine:.0%}",
        str(sum(heard.errors.values())),
    ]


def page(seen: SeenBy) -> str:
    """Return an HTML page: gaps and first tokens of what was run."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Paced streams</title>",
        f"<style>{STYLE}</style><h1>Paced streams</h1>",
    ]
    flowing = {name: one for name, one in seen.items() if CASES[name].reads or name == EVEN}
    gaps = {name: [us / 1e6 for us in one.heard.gaps_us] for name, one in flowing.items()}
    firsts = {name: [us / 1e6 for us in one.heard.firsts_us] for name, one in seen.items()}
    for lines, what, axis in (
        (gaps, "share of gaps that were longer", "gap between two frames"),
        (firsts, "share of first tokens that took longer", "from the upstream to the client"),
    ):
        if told := {name: seconds for name, seconds in lines.items() if seconds}:
            parts.append(tails(told, what, axis))
    return "\n".join(parts) + "\n"
