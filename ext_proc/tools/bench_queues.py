"""Show what fair queues do to short and long prompts, classes and tenants, in virtual time.

Loads are played through the queues, the rule for slots and the picker that the gateway uses, over
model replicas; and once more without queues.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.adapters.queues import QueueLimits
from ext_proc.tools import queue_plot
from ext_proc.tools.arguments import add_report, at_least, output_file
from ext_proc.tools.bench_routing import LEAST_REPLICAS, Progress
from ext_proc.tools.pages import page_console
from ext_proc.tools.queue_goals import Goal, PlayedBy, goals, missed
from ext_proc.tools.queue_loads import (
    CALM,
    CROWDED,
    FLOODED,
    HARDWARE,
    LOADS,
    LONG_ALONE,
    MIXED,
    ROOMY,
    SHORT_ALONE,
)
from ext_proc.tools.queue_run import MEASURED_S, WARM_S, Group, Played, QueueRun
from filters.fair_queue import Rules

OUTPUT: Final = "bench-queues.json"
REPLICAS: Final = 8
MOST_PROCESSES: Final = 2
PERCENTILES: Final = (0.50, 0.95, 0.99)
CASES: Final = (
    (SHORT_ALONE, True),
    (LONG_ALONE, True),
    (LONG_ALONE, False),
    (MIXED, True),
    (MIXED, False),
    (CALM, True),
    (ROOMY, True),
    (CROWDED, True),
    (FLOODED, True),
    (FLOODED, False),
)
"""Which load is played, and whether with queues."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay bench queues`."""
    add = parser.add_argument
    add(
        "--replicas",
        type=at_least(LEAST_REPLICAS),
        default=REPLICAS,
        metavar="N",
        help=f"how many there are ({REPLICAS}; at least {LEAST_REPLICAS})",
    )
    add(
        "--seconds",
        type=at_least(1),
        default=int(MEASURED_S),
        metavar="S",
        help=f"of virtual time, for each load, after {WARM_S:.0f} of warm-up ({MEASURED_S:.0f})",
    )
    add("--seed", type=at_least(0), default=1, metavar="N", help="another one asks others (1)")
    add(
        "--processes",
        type=at_least(1),
        default=min(MOST_PROCESSES, os.cpu_count() or 1),
        metavar="N",
        help=f"that run at once (as many as there are cores, at most {MOST_PROCESSES})",
    )
    add_report(parser, OUTPUT)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    replicas: int = REPLICAS
    seconds: int = int(MEASURED_S)
    seed: int = 1
    processes: int = 1


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay bench queues`; return 1 when a goal is missed."""
    output = output_file(arguments.output)
    console = page_console()
    plan = Plan(arguments.replicas, arguments.seconds, arguments.seed, arguments.processes)
    played = play_all(plan)
    held = goals(played)
    text = json.dumps(report_of(plan, played, held), indent=1, ensure_ascii=False) + "\n"
    output.write_text(text, encoding="utf-8")
    plots = output.with_suffix(".html")
    plots.write_text(queue_plot.page(played), encoding="utf-8")
    if arguments.json:
        print(text, end="")
    else:
        show(console, played, held)
        where = f"every figure: {output}; plots: {plots}"
        console.print(where, style="dim", soft_wrap=True, markup=False)
    return 1 if missed(held) else 0


def play_all(plan: Plan) -> PlayedBy:
    """Play every load; tell on stderr how far it is."""
    played: dict[tuple[str, bool], Played] = {}
    with ProcessPoolExecutor(plan.processes, mp_context=get_context("forkserver")) as pool:
        progress = Progress(len(CASES), every=1)
        try:
            waiting = [pool.submit(play, plan, load, queued=queued) for load, queued in CASES]
            for (load, queued), one in zip(CASES, waiting, strict=True):
                progress.waits_for((load, f"with{'' if queued else 'out'} queues"))
                played[load, queued] = one.result()
        finally:
            progress.done()
            pool.shutdown(cancel_futures=True)
    return played


def play(plan: Plan, load: str, *, queued: bool) -> Played:
    """Play one load."""
    limits = QueueLimits(Rules()) if queued else None
    return QueueRun(LOADS[load], limits, plan.replicas, seed=plan.seed).play(plan.seconds)


# --- What it says --------------------------------------------------------------------------------


def report_of(plan: Plan, played: PlayedBy, held: Sequence[Goal]) -> dict[str, Any]:
    """Return every figure."""
    return {
        "plan": asdict(plan),
        "hardware": asdict(HARDWARE),
        "loads": [_of_load(one) for one in played.values()],
        "goals": [{**goal._asdict(), "met": goal.met} for goal in held],
    }


def _of_load(one: Played) -> dict[str, Any]:
    return {
        "load": one.load,
        "about": LOADS[one.load].about,
        "queues": one.queued,
        "long_a_minute": 60 * one.bulk_rate,
        "busy": one.busy,
        "streams": {name: _figures(group) for name, group in one.streams.items()},
        "classes": [
            {
                "queue": lane,
                "class": priority.word,
                **_figures(group),
                "longest_without_a_turn_s": one.turnless_s.get((lane, priority), 0.0),
            }
            for (lane, priority), group in one.classes.items()
        ],
    }


def _figures(group: Group) -> dict[str, Any]:
    return {
        "asked": group.asked,
        "served": len(group.waits_s),
        "shed": dict(group.shed),
        "shed_share": group.shed_share,
        "ttft_s": {f"p{share * 100:g}": group.percentile(share) for share in PERCENTILES},
        "longest_wait_s": group.longest_wait_s,
    }


def show(console: Console, played: PlayedBy, held: Sequence[Goal]) -> None:
    """Print a table for each load, then what was promised."""
    for one in played.values():
        how = "with queues" if one.queued else "without queues"
        title = Text.assemble((one.load, "bold cyan"), f" · {one.replicas} replicas · {how} · ")
        title.append(LOADS[one.load].about)
        title.append(f" · replicas work {one.busy:.0%} of the time", "dim")
        if one.bulk_rate:
            title.append(f", read {60 * one.bulk_rate:.1f} long ones a minute", "dim")
        console.print(title, soft_wrap=True)
        console.print(_table(console, one))
    for goal in held:
        console.print(goal.line, soft_wrap=True)
    count = missed(held)
    text = f"{len(held) - count} of {len(held)} goals met"
    console.print(Text(text, "bold yellow" if count else "bold green"))


def _table(console: Console, one: Played) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("", min_width=14)
    columns = ("asked", "served", "shed", "p50 s", "p95 s", "p99 s", "longest wait", "no turn for")
    for column in columns:
        table.add_column(column, justify="right")
    rows: Mapping[str, tuple[Group, float | None]] = {
        **{name: (group, None) for name, group in one.streams.items()},
        **(
            {
                f"  {lane}, {priority.word}": (group, one.turnless_s.get((lane, priority), 0.0))
                for (lane, priority), group in one.classes.items()
            }
            if one.queued
            else {}
        ),
    }
    for name, (group, turnless_s) in rows.items():
        table.add_row(
            name,
            f"{group.asked:,}",
            f"{len(group.waits_s):,}",
            f"{group.shed_share:.0%}",
            *(f"{group.percentile(share):,.2f}" for share in PERCENTILES),
            f"{group.longest_wait_s:.1f} s",
            "" if turnless_s is None else f"{turnless_s:.0f} s",
            style="bold" if turnless_s is None else "",
        )
    return table
