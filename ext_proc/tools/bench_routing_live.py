"""Compare ways to pick a replica through real programs, beside the same in virtual time.

A load is asked of simulated replicas in real time: through Envoy and Forebay with each strategy,
and through each router that is installed. Long documents are played faster than in the model, so
that there are enough of them in a minute; the run in virtual time is of the same faster world.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools import routing_plot
from ext_proc.tools.machine import machine
from ext_proc.tools.routing_goals import OURS, Goal, Measured, goals
from ext_proc.tools.routing_live import ROUTERS, Live, installed, play
from ext_proc.tools.routing_loads import LOADS, hastened
from ext_proc.tools.routing_order import APART, Order, order_of
from ext_proc.tools.routing_possible import possible
from ext_proc.tools.routing_run import ORACLE, Run
from filters.errors import ConfigError
from filters.strategies import STRATEGIES

REPLICAS: Final = 4
ENVIRONMENT: Final = Path(".venv-routers/bin/python")
"""Where `make bench-routers` installs them."""


class Pace(NamedTuple):
    """How a load is played in real time."""

    speed: float
    """So many times faster than the model."""
    requests: int
    """For `REPLICAS`; of more of them, as many times more."""


PACES: Final = {
    "shared": Pace(1, 500),
    "bursts": Pace(1, 450),
    "long": Pace(8, 220),
    "code": Pace(1, 360),
    "unshared": Pace(1, 500),
}
"""Of each, 45 to 100 s. Programs take a few milliseconds a request, and those are no faster: so
only the load whose first tokens take seconds is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    loads: Sequence[str]
    ways: Sequence[str]
    replicas: Sequence[int]
    requests: int | None = None
    """None: as `PACES` has it."""
    seed: int = 1
    python: str | None = None
    """Of the environment with the routers."""

    def pace(self, load: str, replicas: int) -> Pace:
        """Return how a load is played with so many replicas."""
        pace = PACES[load]
        return pace._replace(requests=self.requests or pace.requests * replicas // REPLICAS)


@dataclass(slots=True)
class Seen:
    """What both runs showed, by the number of replicas and the load, then by the way."""

    live: dict[tuple[int, str], dict[str, Live]] = field(default_factory=dict)
    virtual: Measured = field(default_factory=Measured)

    @property
    def measured(self) -> Measured:
        """What the live run showed, to be held against the same goals."""
        return Measured(
            {key: {n: one.result for n, one in ways.items()} for key, ways in self.live.items()},
            self.virtual.possible,
        )

    def order(self, key: tuple[int, str]) -> Order:
        """Return how the live order agrees with that in virtual time."""
        return order_of(
            {name: one.result.percentile(0.95) for name, one in self.live[key].items()},
            {
                name: one.percentile(0.95)
                for name, one in self.virtual.results[key].items()
                if name != ORACLE
            },
        )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run `forebay bench routing --live`; return 1 when a goal is missed."""
    python, versions = _routers(arguments.routers)
    ways = arguments.strategies or [*STRATEGIES, *versions]
    if missing := [way for way in ways if way in ROUTERS and way not in versions]:
        where = python or "no environment with routers"
        text = f"expected one that is installed, got {missing[0]} ({where}); make bench-routers"
        raise ConfigError("--strategies", text)
    plan = Plan(
        arguments.loads,
        [way for way in ways if way != ORACLE],
        arguments.replicas or [REPLICAS],
        arguments.requests,
        arguments.seed,
        python,
    )
    busy = os.getloadavg()[0]
    output = Path(arguments.output)
    plots = output.with_suffix(".html")
    seen = Seen()

    def keep() -> str:
        report = report_of(plan, seen, goals_of(seen), versions, busy)
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        output.write_text(text, encoding="utf-8")
        plots.write_text(routing_plot.page(seen.measured), encoding="utf-8")
        return text

    asyncio.run(measure(plan, seen, keep))
    held = goals_of(seen)
    text = keep()
    if arguments.json:
        print(text, end="")
    else:
        show(console, seen, held, versions)
        where = f"every figure: {output}; plots: {plots}"
        console.print(where, style="dim", soft_wrap=True, markup=False)
    return 0 if all(goal.met for goal in held) else 1


def _routers(given: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the Python of the environment with the routers, and the versions of these."""
    if given is None and not ENVIRONMENT.is_file():
        return None, {}
    python = given or str(ENVIRONMENT)
    if shutil.which(python) is None:
        raise ConfigError("--routers", f"expected a program, got {python}; make bench-routers")
    return python, asyncio.run(installed(python))


# --- Measuring -----------------------------------------------------------------------------------


async def measure(plan: Plan, seen: Seen, keep: Callable[[], object]) -> None:
    """Run everything; tell on stderr how far it is, and `keep` what was seen so far."""
    console = Console(stderr=True, highlight=False)
    tasks = [(n, load, way) for n in plan.replicas for load in plan.loads for way in plan.ways]
    for done, (replicas, load, way) in enumerate(tasks):
        pace = plan.pace(load, replicas)
        if (replicas, load) not in seen.live:
            console.print(f"{load}, {replicas} replicas, in virtual time", style="dim")
            await asyncio.to_thread(_in_virtual_time, plan, load, replicas, seen.virtual)
        text = f"{done} of {len(tasks)}: {load}, {way}, {replicas} replicas"
        console.print(text, style="dim", markup=False)
        live = await play(
            hastened(LOADS[load], pace.speed),
            way,
            replicas,
            pace.requests,
            seed=plan.seed,
            speed=pace.speed,
            python=plan.python,
            say=lambda text: None,
        )
        seen.live.setdefault((replicas, load), {})[way] = live
        keep()  # an hour's figures must not be lost with the last of them


def _in_virtual_time(plan: Plan, load: str, replicas: int, measured: Measured) -> None:
    pace = plan.pace(load, replicas)
    measured.add(possible(LOADS[load], replicas, pace.requests, seed=plan.seed))
    fast = hastened(LOADS[load], pace.speed)
    for strategy in (*(way for way in plan.ways if way in STRATEGIES), ORACLE):
        measured.add(Run(fast, strategy, replicas, seed=plan.seed).go(pace.requests))


def goals_of(seen: Seen) -> list[Goal]:
    """Return what is promised of a run in real time: as in virtual time, and in the same order."""
    held = goals(seen.measured)
    for key in seen.live:
        replicas, load = key
        order = seen.order(key)
        if order.told:
            what = "pairs in the order of virtual time"
            held.append(Goal(replicas, load, what, order.agrees, 1.0, least=True))
        errors = sum(sum(one.errors.values()) for one in _of_ours(seen, key))
        held.append(Goal(replicas, load, "client errors", errors, 0))
    return held


def _of_ours(seen: Seen, key: tuple[int, str]) -> list[Live]:
    return [one for name, one in seen.live[key].items() if name == OURS]


# --- What it says --------------------------------------------------------------------------------


def report_of(
    plan: Plan, seen: Seen, held: Sequence[Goal], versions: Mapping[str, str], busy: float
) -> dict[str, Any]:
    """Return every figure."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": busy},
        "plan": asdict(plan),
        "routers": {name: {"version": one} for name, one in versions.items()},
        "loads": [
            {
                "load": load,
                "about": LOADS[load].about,
                "replicas": replicas,
                **plan.pace(load, replicas)._asdict(),
                "possible_hit_rate": seen.virtual.possible[replicas, load].hit_rate,
                "ways": {name: _figures(one) for name, one in ways.items()},
                "virtual_p95_ms": {
                    name: one.percentile(0.95) * 1e3
                    for name, one in seen.virtual.results[replicas, load].items()
                },
                "order": seen.order((replicas, load))._asdict(),
            }
            for (replicas, load), ways in seen.live.items()
        ],
        "goals": [{**goal._asdict(), "met": goal.met} for goal in held],
    }


def _figures(live: Live) -> dict[str, Any]:
    one = live.result
    return {
        "requests": len(one.ttft_s),
        "ttft_ms": {
            **{f"p{share * 100:g}": one.percentile(share) * 1e3 for share in (0.5, 0.95, 0.99)},
            "mean": one.mean_s * 1e3,
        },
        "hit_rate": one.hit_rate,
        "spread": one.spread,
        "busy": one.busy,
        "seconds": one.virtual_s,
        "errors": dict(live.errors),
        "sent_late_p95_ms": live.late_s * 1e3,
        "machine_busy": live.machine,
        "cores": dict(live.cores),
    }


def show(console: Console, seen: Seen, held: Sequence[Goal], versions: Mapping[str, str]) -> None:
    """Print a table for each load, then what was promised."""
    for key, ways in seen.live.items():
        replicas, load = key
        console.print(
            Text.assemble(
                (load, "bold cyan"), f" · {replicas} replicas, live · ", LOADS[load].about
            ),
            soft_wrap=True,
        )
        console.print(_table(console, seen, key))
        order = seen.order(key)
        console.print(
            f"{order.told} pairs are a factor of {APART:g} apart in virtual time, "
            f"{order.told - len(order.turned) - len(order.closer)} in the same order here",
            style="dim",
        )
        for words, pairs in (("turned", order.turned), ("within it", order.closer)):
            for first, last in pairs:
                console.print(f"  {words}: {last} before {first}", style="yellow")
        for name, live in ways.items():
            for kind, number in live.errors.items():
                console.print(Text(f"{name}: {number} x {kind}", style="red"))
    if versions:
        text = ", ".join(f"{name} {version}" for name, version in versions.items())
        console.print(f"routers: {text}", style="dim")
    for goal in held:
        console.print(goal.line, soft_wrap=True)


def _table(console: Console, seen: Seen, key: tuple[int, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("", min_width=13)
    figures = ("p50 ms", "p95 ms", "hits", "spread", "errors", "busy", "late ms", "cores")
    for column in (*figures, "virtual p95", "hits", "spread"):
        table.add_column(column, justify="right")
    most = seen.virtual.possible[key].hit_rate
    ways, virtual = seen.live[key], seen.virtual.results[key]
    best = min(one.result.percentile(0.95) for one in ways.values())

    def hits(rate: float) -> str:
        return f"{rate / most:.1%}" if most else ""

    for name, live in ways.items():
        one, beside = live.result, virtual.get(name)
        table.add_row(
            name,
            f"{one.percentile(0.5) * 1e3:,.0f}",
            f"{one.percentile(0.95) * 1e3:,.0f}",
            hits(one.hit_rate),
            f"{one.spread:.2f}",
            str(sum(live.errors.values())),
            f"{one.busy:.0%}",
            f"{live.late_s * 1e3:,.0f}",
            f"{sum(live.cores.values()):.2f}",
            *(
                (
                    f"{beside.percentile(0.95) * 1e3:,.0f}",
                    hits(beside.hit_rate),
                    f"{beside.spread:.2f}",
                )
                if beside
                else ("", "", "")
            ),
            style="bold" if one.percentile(0.95) == best else "",
        )
    return table
