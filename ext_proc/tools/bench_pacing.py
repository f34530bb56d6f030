"""Show how steadily paced streams flow, and what that costs, with hundreds of them at once.

A real Envoy, an upstream that speaks in fits, and clients that read by the kernel's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools import pacing_run
from ext_proc.tools.arguments import add_report, at_least, output_file
from ext_proc.tools.machine import machine
from ext_proc.tools.pacing_goals import Figures, Round, figures_of, goals
from ext_proc.tools.pacing_run import CASES, EVEN, LEAST_SECONDS, SECONDS, STREAMS
from ext_proc.tools.pages import page_console
from ext_proc.tools.queue_goals import Goal, missed
from ext_proc.tools.routing_plot import STYLE, tails

OUTPUT: Final = "bench-pacing.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay bench pacing`."""
    add = parser.add_argument
    add("--streams", type=at_least(1), default=STREAMS, metavar="N", help=f"at once ({STREAMS})")
    add(
        "--seconds",
        type=at_least(LEAST_SECONDS),
        default=SECONDS,
        metavar="S",
        help=f"for which each stream is spoken ({SECONDS}; at least {LEAST_SECONDS})",
    )
    add(
        "--rounds",
        type=at_least(1),
        default=1,
        metavar="N",
        help="each figure is the median of so many (1); 3 where the machine does other things",
    )
    names = ",".join(CASES)
    add("--cases", type=_names, default=list(CASES), metavar="A,B", help=f"only these ({names})")
    add_report(parser, OUTPUT)


def _names(text: str) -> list[str]:
    wanted = text.split(",")
    if unknown := set(wanted) - set(CASES):
        message = f'expected some of {", ".join(CASES)}, got "{min(unknown)}"'
        raise argparse.ArgumentTypeError(message)
    return [name for name in CASES if name in wanted]


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay bench pacing`; return 1 when a goal is missed."""
    output = output_file(arguments.output)
    console, progress = page_console(), Console(stderr=True, highlight=False)
    busy = os.getloadavg()[0]
    with progress.status("starting") as status:

        def say(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                progress.print(text, style="dim", markup=False)

        streams, seconds, count = arguments.streams, arguments.seconds, arguments.rounds
        rounds = asyncio.run(pacing_run.run(arguments.cases, streams, seconds, count, say))
    figures = figures_of(rounds)
    held = goals(figures)
    report = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": busy},
        "streams": streams,
        "seconds": seconds,
        "cases": figures,
        "goals": [{**goal._asdict(), "met": goal.met} for goal in held],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    output.write_text(text, encoding="utf-8")
    plots = output.with_suffix(".html")
    plots.write_text(page(rounds), encoding="utf-8")
    if arguments.json:
        print(text, end="")
    else:
        about = f"{streams} streams at once; rounds: {count}; load before {busy:.1f}"
        show(console, figures, held, about)
        where = f"every figure: {output}; plots: {plots}"
        console.print(where, style="dim", soft_wrap=True, markup=False)
    return 1 if missed(held) else 0


# --- What it says --------------------------------------------------------------------------------


def show(
    console: Console, figures: Mapping[str, Figures], held: Sequence[Goal], about: str
) -> None:
    """Print a table, what its figures are, and what was promised."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("ms, µs of CPU", style="bold")
    columns = (
        *("gap p50", "p99", "max", "first p50", "p99", "end p50", "p99"),
        *("late: up", "forebay", "client"),
        *("µs/frame", "adds", "Envoy", "busy", "errors"),
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, one in figures.items():
        table.add_row(name, *_cells(one))
    console.print(table)
    for name in figures:
        case = CASES[name]
        said = Text.assemble(
            (f"{name:11}", "bold cyan"), f"{case.about}: ", (case.spoken.about, "dim")
        )
        console.print(said, soft_wrap=True)
    for text in (_ABOUT, about):
        console.print(text, style="dim", soft_wrap=True, markup=False)
    for name, one in figures.items():
        for kind, number in one["errors"].items():
            console.print(Text(f"{name}: {number} x {kind}", style="red"))
    for goal in held:
        console.print(goal.line, soft_wrap=True)
    count = missed(held)
    text = f"{len(held) - count} of {len(held)} goals met"
    console.print(Text(text, "bold yellow" if count else "bold green"))


_ABOUT: Final = f"""\
Gaps are between frames as the client's kernel received them, with whatever Envoy, the upstream and
the machine add; `{EVEN}` shows that alone. First: from the upstream's sending to that. End: from
the upstream's sending of its last event to the client's last byte.
Late, 99th percentile: events that the upstream sent later than it was to; by how much the latest
frame of a stream left Forebay after it was due; pieces that the client read later than its kernel
had them, which is in no other figure. CPU of Forebay's for a frame, how much of it is not for
reading events, and Envoy's. Busy is the whole machine, with all that ran on it."""


def _cells(one: Figures) -> list[str]:
    shown = (
        *(("gap_ms", at) for at in ("p50", "p99", "max")),
        *(("first_token_ms", at) for at in ("p50", "p99")),
        *(("end_ms", at) for at in ("p50", "p99")),
        ("sent_late_by_upstream_ms", "p99"),
        ("latest_frame_of_a_stream_sent_late_by_forebay_ms", "p99"),
        ("read_late_by_client_ms", "p99"),
    )
    added = one["added_us_a_frame"]
    return [
        *("" if one[name] is None else f"{one[name][at]:.1f}" for name, at in shown),
        f"{one['forebay_us_a_frame']:.1f}",
        "" if added is None else f"{added:.1f}",
        f"{one['envoy_us_a_frame']:.1f}",
        f"{one['machine_busy']:.0%}",
        str(sum(one["errors"].values())),
    ]


def page(rounds: Sequence[Round]) -> str:
    """Return an HTML page: gaps and first tokens of what was run, of all rounds together."""
    parts = [
        "<!doctype html><meta charset=utf-8><title>Paced streams</title>",
        f"<style>{STYLE}</style><h1>Paced streams</h1>",
    ]
    gaps: dict[str, list[float]] = {}
    firsts: dict[str, list[float]] = {}
    for name in rounds[0]:
        heard = [seen[name].heard for seen in rounds]
        firsts[name] = sorted(us / 1e6 for one in heard for us in one.firsts_us)
        if CASES[name].reads or name == EVEN:
            gaps[name] = sorted(us / 1e6 for one in heard for us in one.gaps_us)
    for lines, what, axis in (
        (gaps, "share of gaps that were longer", "gap between two frames"),
        (firsts, "share of first tokens that took longer", "from the upstream to the client"),
    ):
        if told := {name: seconds for name, seconds in lines.items() if seconds}:
            parts.append(tails(told, what, axis))
    return "\n".join(parts) + "\n"
