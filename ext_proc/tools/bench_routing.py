"""Compare ways to pick a replica, over model replicas in virtual time.

Every strategy gets the very same requests at the very same times, through the picker that the
gateway uses. The oracle, which sees what replicas really hold and have to do, is the yardstick.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools import bench_routing_live, routing_plot
from ext_proc.tools.arguments import add_report, at_least, output_file
from ext_proc.tools.bench_routing_live import ENVIRONMENT
from ext_proc.tools.bench_routing_live import REPLICAS as LIVE_REPLICAS
from ext_proc.tools.pages import page_console
from ext_proc.tools.routing_cost import CASES, cost_of
from ext_proc.tools.routing_faults import Fault, FaultyRun
from ext_proc.tools.routing_goals import (
    BASE,
    OURS,
    Cold,
    Faulty,
    Goal,
    Measured,
    gain,
    goals,
)
from ext_proc.tools.routing_live import ROUTERS
from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_possible import Possible, possible
from ext_proc.tools.routing_run import ORACLE, Result, Run, hit_rate
from filters.errors import ConfigError
from filters.strategies import STRATEGIES

OUTPUT: Final = "bench-routing.json"
LIVE_OUTPUT: Final = "bench-routing-live.json"
REQUESTS: Final = 9_000
LEAST_REQUESTS: Final = 40  # 30 are measured then: of fewer no percentile says anything
FOR_REPLICAS: Final = 8
"""So many requests are asked of so many replicas; of more of them, as many times more."""
LEAST_REPLICAS: Final = 2  # one leaves nothing to pick
WAYS: Final = (*STRATEGIES, ORACLE)
COLD_LOADS: Final = {"shared": 60.0, "long": 900.0, "code": 120.0}
"""For how many seconds a cold start is looked at: for 600 to 1,000 requests at 8 replicas."""
FAULT_LOAD: Final = "shared"
AT_ONCE: Final = 25
COLD_S: Final = 60.0
PERCENTILES: Final = (0.50, 0.95, 0.99)
MOST_PROCESSES: Final = 2

Task = tuple[Callable[..., Any], tuple[Any, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay bench routing`."""
    add = parser.add_argument
    add(
        "--loads",
        type=_some_of(LOADS),
        default=list(LOADS),
        metavar="A,B",
        help=f"only these ({','.join(LOADS)})",
    )
    add(
        "--strategies",
        type=_some_of((*WAYS, *ROUTERS)),
        metavar="A,B",
        help=f"only these ({','.join(WAYS)}; with --live, {','.join(ROUTERS)} in its stead)",
    )
    add(
        "--replicas",
        type=_numbers,
        metavar="N,M",
        help=f"how many there are ({FOR_REPLICAS}, live {LIVE_REPLICAS}; at least "
        f"{LEAST_REPLICAS}); 64 take some ten times as long as 8",
    )
    add(
        "--requests",
        type=at_least(LEAST_REQUESTS),
        metavar="N",
        help=f"of each load, for {FOR_REPLICAS} replicas ({REQUESTS:,}; live about a minute's; "
        f"at least {LEAST_REQUESTS}); a quarter is warm-up",
    )
    add("--seed", type=at_least(0), default=1, metavar="N", help="another one asks others (1)")
    add(
        "--processes",
        type=at_least(1),
        default=min(MOST_PROCESSES, os.cpu_count() or 1),
        metavar="N",
        help=f"that run at once (as many as there are cores, at most {MOST_PROCESSES})",
    )
    add("--live", action="store_true", help="through real programs, in real time")
    add(
        "--routers",
        metavar="PYTHON",
        help=f"of the environment whose routers are compared, live ({ENVIRONMENT})",
    )
    add_report(parser, None, f"{OUTPUT}; live {LIVE_OUTPUT}")


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay bench routing`; return 1 when a goal is missed."""
    arguments.output = arguments.output or (LIVE_OUTPUT if arguments.live else OUTPUT)
    output = output_file(arguments.output)
    console = page_console()
    if arguments.live:
        return bench_routing_live.run(arguments, console)
    strategies = arguments.strategies or list(WAYS)
    if routers := [name for name in strategies if name in ROUTERS]:
        raise ConfigError("--strategies", f"{routers[0]} speaks to servers only: add --live")
    plan = Plan(
        arguments.loads,
        strategies,
        arguments.replicas or [FOR_REPLICAS],
        arguments.requests or REQUESTS,
        arguments.seed,
        arguments.processes,
    )
    measured = measure(plan)
    held = goals(measured)
    report = report_of(plan, measured, held)
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    output.write_text(text, encoding="utf-8")
    plots = output.with_suffix(".html")
    plots.write_text(routing_plot.page(measured), encoding="utf-8")
    if arguments.json:
        print(text, end="")
    else:
        show(console, measured, held)
        where = f"every figure: {output}; plots: {plots}"
        console.print(where, style="dim", soft_wrap=True, markup=False)
    return 0 if all(goal.met for goal in held) else 1


def _some_of(known: Sequence[str] | dict[str, Any]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(known):
            message = f'expected some of {", ".join(known)}, got "{min(unknown)}"'
            raise argparse.ArgumentTypeError(message)
        return [name for name in known if name in text.split(",")]

    return read


def _numbers(text: str) -> list[int]:
    read = at_least(LEAST_REPLICAS)
    return sorted({read(word) for word in text.split(",")})


# --- Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    loads: Sequence[str]
    strategies: Sequence[str]
    replicas: Sequence[int]
    requests: int = REQUESTS
    seed: int = 1
    processes: int = 1

    def requests_for(self, replicas: int) -> int:
        """Return how many requests are asked of so many replicas."""
        return self.requests * max(1, replicas // FOR_REPLICAS)


def measure(plan: Plan) -> Measured:
    """Run everything; tell on stderr how far it is."""
    tasks = list(_tasks(plan))
    measured = Measured()
    with _pool(plan) as pool:
        progress = Progress(len(tasks))
        try:
            waiting = [pool.submit(work, *given) for work, given in tasks]
            for (_, given), one in zip(tasks, waiting, strict=True):
                progress.waits_for(given[:-1])
                measured.add(one.result())
        finally:
            progress.done()
            pool.shutdown(cancel_futures=True)
    if OURS in plan.strategies:
        for case in CASES:  # when nothing else runs
            measured.add(cost_of(OURS, *case))
    return measured


def _pool(plan: Plan) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(plan.processes, mp_context=multiprocessing.get_context("forkserver"))


def _tasks(plan: Plan) -> Iterator[Task]:
    for replicas in plan.replicas:
        requests = plan.requests_for(replicas)
        for load in plan.loads:
            yield bounds, (load, replicas, requests, plan.seed)
            for strategy in plan.strategies:
                yield played, (load, strategy, replicas, requests, plan.seed)
            if load in COLD_LOADS and OURS in plan.strategies:
                yield cold_start, (load, replicas, plan.seed)
        if FAULT_LOAD in plan.loads and OURS in plan.strategies:
            for fault in Fault:
                yield failed, (FAULT_LOAD, fault, replicas, plan.seed)


def bounds(load: str, replicas: int, requests: int, seed: int) -> Possible:
    """Return what the load leaves possible."""
    return possible(LOADS[load], replicas, requests, seed=seed)


def played(load: str, strategy: str, replicas: int, requests: int, seed: int) -> Result:
    """Return what became of a load under a strategy."""
    return Run(LOADS[load], strategy, replicas, seed=seed).go(requests)


def cold_start(load: str, replicas: int, seed: int) -> Cold:
    """Return what is hit from a minute after many began at once on cold replicas."""
    run = Run(LOADS[load], OURS, replicas, seed=seed, at_once=AT_ONCE)
    run.until(COLD_S + COLD_LOADS[load])
    return Cold(
        load, replicas, hit_rate([one for one in run.answered.values() if one.asked_s >= COLD_S])
    )


def failed(load: str, fault: Fault, replicas: int, seed: int) -> Faulty:
    """Return what became of a load of which a replica failed."""
    return Faulty(replicas, FaultyRun(LOADS[load], OURS, replicas, fault, seed=seed).play())


class Progress:
    """Tells on stderr how far it is; where that is no terminal, with each `every`th task."""

    def __init__(self, tasks: int, every: int = 10) -> None:
        self._tasks: Final = tasks
        self._every: Final = every
        self._console: Final = Console(stderr=True, highlight=False)
        self._status: Final = self._console.status("starting")
        self._done = 0
        if self._console.is_terminal:
            self._status.start()

    def waits_for(self, words: Sequence[object]) -> None:
        """Say what is waited for, once everything before it is done."""
        text = f"{self._done} of {self._tasks}: {' '.join(map(str, words))}"
        self._status.update(text)
        if not self._console.is_terminal and self._done % self._every == 0:
            self._console.print(text)
        self._done += 1

    def done(self) -> None:
        """Leave the terminal as it was."""
        self._status.stop()


# --- What it says --------------------------------------------------------------------------------


def report_of(plan: Plan, measured: Measured, held: Sequence[Goal]) -> dict[str, Any]:
    """Return every figure."""
    return {
        "plan": asdict(plan),
        "loads": [
            {
                "load": load,
                "about": LOADS[load].about,
                "replicas": replicas,
                "possible": _bounds(measured.possible.get((replicas, load))),
                "cold_hit_rate": measured.cold.get((replicas, load)),
                "hardware": asdict(LOADS[load].hardware),
                "strategies": {name: _figures(one) for name, one in results.items()},
            }
            for (replicas, load), results in measured.results.items()
        ],
        "picks": [cost._asdict() for cost in measured.costs],
        "faults": [
            {"replicas": replicas, **asdict(failed)}
            for (replicas, _), failed in measured.faults.items()
        ],
        "goals": [{**goal._asdict(), "met": goal.met} for goal in held],
    }


def _bounds(one: Possible | None) -> dict[str, float] | None:
    if one is None:
        return None
    return {"hit_rate": one.hit_rate, "even_spread": one.even, "foreseen_spread": one.foreseen}


def _figures(one: Result) -> dict[str, Any]:
    return {
        "requests": len(one.ttft_s),
        "ttft_ms": {
            **{f"p{share * 100:g}": one.percentile(share) * 1e3 for share in PERCENTILES},
            "mean": one.mean_s * 1e3,
        },
        "hit_rate": one.hit_rate,
        "spread": one.spread,
        "busy": one.busy,
        "virtual_s": one.virtual_s,
    }


def show(console: Console, measured: Measured, held: Sequence[Goal]) -> None:
    """Print a table for each load, then what was promised."""
    for (replicas, load), results in measured.results.items():
        most = measured.possible.get((replicas, load))
        possible_rate = most.hit_rate if most is not None else 0.0
        title = Text.assemble((load, "bold cyan"), f" · {replicas} replicas · ", LOADS[load].about)
        if possible_rate:
            title.append(f" · {possible_rate:.1%} of it could be hits", "dim")
        if most is not None:
            title.append(f" · its spread: {most.even:.2f} by work alone", "dim")
            title.append(f", {most.foreseen:.2f} foreseen", "dim")
        console.print(title, soft_wrap=True)
        console.print(_table(console, results, possible_rate))
    if measured.faults:
        console.print(Text("a replica fails for 30 s", "bold cyan"))
        console.print(_faults(console, measured))
    for goal in held:
        console.print(goal.line, soft_wrap=True)
    missed = sum(not goal.met for goal in held)
    if held:
        text = f"{len(held) - missed} of {len(held)} goals met"
        console.print(Text(text, "bold yellow" if missed else "bold green"))


def _table(console: Console, results: dict[str, Result], possible_rate: float) -> Table:
    table = _columns(
        console, "", "p50 ms", "p95 ms", "p99 ms", "mean ms", "hits", "spread", "busy", "gain"
    )
    base, oracle = results.get(BASE), results.get(ORACLE)
    best = min(one.percentile(0.95) for name, one in results.items() if name != ORACLE)
    for name, one in results.items():
        style = "dim" if name == ORACLE else "bold" if one.percentile(0.95) == best else ""
        table.add_row(
            name,
            *(f"{one.percentile(share) * 1e3:,.0f}" for share in PERCENTILES),
            f"{one.mean_s * 1e3:,.0f}",
            f"{one.hit_rate / possible_rate:.1%}" if possible_rate else "",
            f"{one.spread:.2f}",
            f"{one.busy:.0%}",
            f"{gain(one, base, oracle):.0%}" if base and oracle else "",
            style=style,
        )
    return table


def _faults(console: Console, measured: Measured) -> Table:
    columns = ("noticed s", "errors before", "and after", "probes", "back s", "p95 ms", "well ms")
    table = _columns(console, "", *columns)
    for (replicas, fault), failed in measured.faults.items():
        table.add_row(
            f"{fault}, {replicas} replicas",
            f"{failed.noticed_s:.2f}",
            str(failed.errors_before),
            str(failed.errors_after),
            str(failed.probes),
            f"{failed.back_s:.2f}",
            f"{failed.p95_s * 1e3:,.0f}",
            f"{failed.p95_well_s * 1e3:,.0f}",
        )
    return table


def _columns(console: Console, name: str, *figures: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column(name, min_width=12)
    for figure in figures:
        table.add_column(figure, justify="right")
    return table
