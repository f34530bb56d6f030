"""Measure a cache hit against LiteLLM's proxy: the same request, load, upstream and machine.

Both sides run at once and are asked in turn, round after round; who is not asked rests. What
counts is the CPU time of every process of a side, for requests/s of a closed loop on a machine that
is full say nothing of how many cores they took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.cli import Parser, complain
from ext_proc.tools.arguments import at_least
from ext_proc.tools.bench import SCENARIOS, Goal, Plan, Progress, request_of
from ext_proc.tools.bench_setup import Setup, set_up
from ext_proc.tools.envoy_counters import counted
from ext_proc.tools.load import LoadProcess, Result, Slice, cpu_clock_ns
from ext_proc.tools.machine import machine
from ext_proc.tools.pages import page_console
from ext_proc.tools.place import LOOPBACK, run_folder
from ext_proc.tools.supervisor import Child, Supervisor, answers
from filters.errors import ConfigError

OUTPUT: Final = "bench-peers.json"
SECONDS: Final = 75
SLICE_S: Final = 5.0  # about: the slower side answers some hundred requests a second
LEAST_ROUNDS: Final = 3
WARM_UP_SHARE: Final = 0.2
CONNECTIONS: Final = 32
FILLING: Final = 64  # connections of the first round, so that each worker has some of them
START_S: Final = 180.0  # it imports for half a minute where its files were never read
SETTLED_S: Final = 1.0
SETTLED_SHARE: Final = 0.05  # of a core: a worker that still imports takes all of one
MOST_SETTLING: Final = 60  # of these seconds
LEAST_GAIN: Final = 15.0
"""The goal: requests/s a core of a hit, against LiteLLM's."""
ASKED: Final = "http.upstream.downstream_rq_total"
UNUSABLE: Final = 2
# The request's own credential: it is the key of both sides.
KEY: Final = "sk-0123456789abcdef0123456789abcdef0123456789abcdef"
# What its documentation asks of a production: no debug logs, no .env, no spend logs; and nothing
# that would reach beyond this machine.
LITELLM_ENV: Final = {
    "LITELLM_MASTER_KEY": KEY,
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
    "LITELLM_DISABLE_LATEST_RELEASE_CHECK": "true",
}
_STRANGE: Final = ("LITELLM", "OPENAI", "DATABASE", "REDIS", "OTEL", "PYTHON", "NUM_WORKERS")


class Side(NamedTuple):
    """Who is asked, and for what."""

    what: str
    expect: bytes
    """What is in the head of a reply that went the way it should."""
    unique: bool = False


LITELLM: Final = "litellm-hit"
HIT: Final = "hit"
MISS: Final = "miss"
SIDES: Final = {
    LITELLM: Side("LiteLLM's proxy, seen before", b"\r\nx-litellm-cache-key: "),
    HIT: Side("Envoy and Forebay, seen before", b"\r\nx-cache: HIT\r\n"),
    MISS: Side("the same, never seen before", b"\r\nx-cache: MISS\r\n", unique=True),
}


class Figures(NamedTuple):
    """What one slice showed; CPU of all processes of a side."""

    requests: int
    requests_per_s: float
    requests_per_core_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Row:
    """A side's slices so far."""

    slices: list[Figures] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--litellm", metavar="PATH", required=True, help="the program `litellm`")
    cores = os.cpu_count() or 1
    add("--workers", type=at_least(1), default=cores, metavar="N", help=f"of LiteLLM ({cores})")
    add("--seconds", type=at_least(1), default=SECONDS, metavar="S", help=f"in all ({SECONDS})")
    add("--connections", type=at_least(1), default=CONNECTIONS, metavar="N", help="at once (32)")
    add("--output", metavar="FILE", default=OUTPUT, help=f"keep every figure there ({OUTPUT})")


def run(arguments: argparse.Namespace) -> int:
    """Measure, and show what was seen; return 1 when a request failed."""
    if shutil.which(arguments.litellm) is None:
        found = f"got {arguments.litellm}; make bench-peers installs it"
        raise ConfigError("--litellm", f"expected a program, {found}")
    rounds = max(LEAST_ROUNDS, int(arguments.seconds / (len(SIDES) * SLICE_S)) | 1)
    slice_s = arguments.seconds / (rounds * len(SIDES))
    plan = Plan(list(SIDES), arguments.connections, rounds, slice_s)
    busy = os.getloadavg()[0]
    rows = asyncio.run(measure(plan, Progress(plan), arguments.litellm, arguments.workers))
    report = report_of(plan, rows, busy, arguments.workers)
    console = page_console()
    show(console, report)
    Path(arguments.output).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    console.print(f"every figure: {arguments.output}", style="dim", soft_wrap=True, markup=False)
    return 1 if any(row.errors for row in rows.values()) else 0


# --- Measuring -----------------------------------------------------------------------------------


async def measure(plan: Plan, progress: Progress, program: str, workers: int) -> dict[str, Row]:
    """Start both sides and ask each in turn."""
    rows = {name: Row() for name in plan.names}
    fallen: list[str] = []
    with run_folder() as folder, set_up(folder, None) as setup:
        litellm = litellm_child(program, workers, folder, setup)
        supervisor = Supervisor([*setup.children.values(), litellm], fallen.append)
        load = await LoadProcess.start()
        try:
            await supervisor.start(progress.started)
            assert litellm.process is not None
            peers = await settled(litellm.process.pid)
            first = 0
            filling = replace(plan, connections=max(FILLING, plan.connections))
            for number in range(plan.rounds + 1):
                for name in plan.names:
                    progress.measuring(max(number, 1), name)
                    pids = peers if name == LITELLM else forebay_pids(setup)
                    now = plan if number else filling
                    result = await _slice(now, setup, load, name, pids, first)
                    first = result.last
                    if number:
                        rows[name].slices.append(figures_of(result))
                        rows[name].errors.update(result.errors)
                    setup.empty_logs()
                    if fallen:
                        raise ConfigError("", fallen[0])
        finally:
            progress.done()
            await load.stop()
            await supervisor.stop()
    return rows


def forebay_pids(setup: Setup) -> tuple[int, ...]:
    """Return every process that a request of ours passes."""
    return (*tree_of(setup.pid("envoy")), *tree_of(setup.pid("server")))


def litellm_child(program: str, workers: int, folder: Path, setup: Setup) -> Child:
    """Write LiteLLM's configuration; return how to run it."""
    places = setup.places
    model = {
        "model": "openai/demo",
        "api_base": f"http://{LOOPBACK}:{places.upstream}/v1",
        "api_key": "none",
    }
    config = {
        "model_list": [{"model_name": "demo", "litellm_params": model}],
        "litellm_settings": {
            "cache": True,
            "cache_params": {"type": "local", "ttl": 3600},
            "request_timeout": 600,
            "set_verbose": False,
        },
        "general_settings": {"disable_spend_logs": True, "disable_error_logs": True},
    }
    path = folder / "litellm.json"
    path.write_text(json.dumps(config))
    # What the user's shell says is for other LiteLLMs; an empty value takes it out.
    strange = {name: "" for name in os.environ if name.upper().startswith(_STRANGE)}
    strange |= {name: "" for name in os.environ if name.upper().endswith("_PROXY")}
    return Child(
        "litellm",
        [
            *(program, "--config", str(path), "--host", LOOPBACK, "--port", str(places.peer)),
            *("--num_workers", str(workers), "--telemetry", "False"),
        ],
        lambda: answers(places.peer, "/health/liveliness"),
        env={**strange, **LITELLM_ENV, "HOME": str(folder)},
        start_s=START_S,
    )


async def settled(pid: int) -> tuple[int, ...]:
    """Return a process and all below it, once they rest: the last worker may still be starting."""
    for _ in range(MOST_SETTLING):
        pids = tree_of(pid)
        before_ns = sum(map(cpu_clock_ns, pids))
        await asyncio.sleep(SETTLED_S)
        spent_ns = sum(map(cpu_clock_ns, pids)) - before_ns
        if pids == tree_of(pid) and spent_ns < SETTLED_SHARE * SETTLED_S * 1e9:
            return pids
    raise ConfigError("litellm", f"was still busy {MOST_SETTLING} s after it was ready")


def tree_of(pid: int) -> tuple[int, ...]:
    """Return a process and all below it."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += [int(child) for child in children.read_text().split()]
    return tuple(pids)


async def _slice(
    plan: Plan, setup: Setup, load: LoadProcess, name: str, pids: Sequence[int], first: int
) -> Result:
    side = SIDES[name]
    places = setup.places
    scenario, port = SCENARIOS["hit"], places.gateway
    if name == LITELLM:
        scenario, port = scenario._replace(path=""), places.peer
    before, after = request_of(scenario, port)
    warm_up_s = plan.slice_s * WARM_UP_SHARE
    what = Slice(
        port=port,
        before=before,
        after=after,
        unique=side.unique,
        expect=side.expect,
        connections=plan.connections,
        warm_up_s=warm_up_s,
        seconds=plan.slice_s - warm_up_s,
        pids=tuple(pids),
        first=first,
    )
    asked = await counted(places.upstream_admin, ASKED)
    result = await load.run(what)
    asked = await counted(places.upstream_admin, ASKED) - asked
    # A worker that did not have the answer by now gets it in the slice's warm-up.
    if not side.unique and asked > len(pids):
        result.errors["went upstream"] = asked
    return result


def figures_of(result: Result) -> Figures:
    """Return what a slice showed."""
    requests = max(result.requests, 1)
    cpu_s = sum(result.cpu_ns) / 1e9
    return Figures(
        result.requests,
        result.requests / result.seconds,
        result.requests / cpu_s,
        cpu_s / requests * 1e6,
        result.p50_ms,
        result.p99_ms,
    )


# --- What it says --------------------------------------------------------------------------------


def report_of(plan: Plan, rows: dict[str, Row], busy: float, workers: int) -> dict[str, Any]:
    """Return every figure, and how the sides compare within each round."""
    medians = {
        name: {
            key: statistics.median(getattr(figures, key) for figures in row.slices)
            for key in Figures._fields
        }
        for name, row in rows.items()
    }
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": busy},
        "settings": {
            "connections": plan.connections,
            "rounds": plan.rounds,
            "slice_s": plan.slice_s,
            "litellm_workers": workers,
        },
        "sides": {
            name: {
                "what": SIDES[name].what,
                "median": medians[name],
                "errors_by_kind": dict(row.errors),
                "rounds": [figures._asdict() for figures in row.slices],
            }
            for name, row in rows.items()
        },
        "hit_against": {
            other: {
                key: _ratio(rows[HIT], rows[other], key)
                for key in ("requests_per_s", "requests_per_core_s", "p50_ms", "p99_ms")
            }
            for other in (LITELLM, MISS)
        },
    }


def _ratio(row: Row, base: Row, key: str) -> dict[str, float]:
    """Return the median and the extremes of the ratios within rounds."""
    ratios = [
        getattr(figures, key) / (getattr(others, key) or float("inf"))
        for figures, others in zip(row.slices, base.slices, strict=True)
    ]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def goals_of(report: dict[str, Any]) -> list[Goal]:
    """Return what was promised of a hit."""
    against = report["hit_against"][LITELLM]
    gain = against["requests_per_core_s"]["median"]
    late = against["p99_ms"]["median"]
    return [
        Goal("requests/s a core of a hit", gain, LEAST_GAIN, " x LiteLLM's", least=True),
        Goal("99th percentile of a hit", late, 1.0, " x LiteLLM's"),
    ]


def show(console: Console, report: dict[str, Any]) -> None:
    """Print the table, how the sides compare, and what was promised."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("", style="bold")
    table.add_column("")
    for column in ("requests/s", "a core", "CPU µs", "p50 ms", "p99 ms", "errors"):
        table.add_column(column, justify="right")
    cells: dict[str, Callable[[float], str]] = {
        "requests_per_s": "{:,.0f}".format,
        "requests_per_core_s": "{:,.0f}".format,
        "cpu_us": "{:,.0f}".format,
        "p50_ms": "{:.1f}".format,
        "p99_ms": "{:.1f}".format,
    }
    for name, side in report["sides"].items():
        shown = [write(side["median"][key]) for key, write in cells.items()]
        table.add_row(name, side["what"], *shown, str(sum(side["errors_by_kind"].values())))
    console.print(table)
    settings, machine_ = report["settings"], report["machine"]
    console.print(
        Text(
            f"{settings['connections']} connections; {settings['rounds']} rounds of "
            f"{settings['slice_s']:.1f} s a side; LiteLLM with {settings['litellm_workers']} "
            f"workers; {machine_['cores']} cores, load before {machine_['load_before']:.1f}",
            style="dim",
        )
    )
    miss = report["hit_against"][MISS]["requests_per_core_s"]["median"]
    console.print(Text(f"requests/s a core of a hit: {miss:.2f} x those of a miss"))
    for name, side in report["sides"].items():
        for kind, number in side["errors_by_kind"].items():
            console.print(Text(f"{name}: {number} x {kind}", style="red"))
    for goal in goals_of(report):
        console.print(Text(goal.line, style="green" if goal.met else "yellow"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = Parser(prog="bench-peers", description="Measure a cache hit against LiteLLM's proxy.")
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except ConfigError as error:
        complain("bench-peers", str(error))
        return UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
