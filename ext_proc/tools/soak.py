"""Run a gateway for long, clients that leave too early among the rest, and see whether it leaks.

Every way through the gateway is asked at once, at full speed. Meanwhile the server's memory and all
that it holds open are read once a second. When the last client has gone, nothing may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ext_proc.config import Transport
from ext_proc.tools.arguments import at_least, output_file
from ext_proc.tools.bench import SCENARIOS, Scenario, failed_open, request_of
from ext_proc.tools.bench_setup import Setup, set_up
from ext_proc.tools.machine import machine
from ext_proc.tools.pages import page_console
from ext_proc.tools.place import LOOPBACK, run_folder
from ext_proc.tools.soak_load import Exit, Mix, SoakLoad, State, Way
from ext_proc.tools.soak_plot import plot
from ext_proc.tools.supervisor import Supervisor
from filters.errors import ConfigError

OUTPUT: Final = "soak.json"
REQUESTS: Final = 1_000_000
A_LEAVER_IN: Final = 100  # requests: 10,000 of a million
CONNECTIONS: Final = {"raw": 4, "miss": 12, "hit": 8, "stream": 8}
"""By scenario; of ten requests two are raw, four misses, three hits, and one is a stream."""
STORE_SIZE: Final = "1MiB"
"""Full after 9,000 requests; the 64 MiB as shipped fill for half a million, like a leak."""
TOUCHES: Final = 1_000  # requests that come before: all that opens once is open, caches are filled
SAMPLES: Final = 50  # at least, also of a short run
FAST_PER_S: Final = 4_000  # more requests than two cores answer
WARM_UP_SHARE: Final = 0.1
ENDS_SHARE: Final = 0.1  # of the samples after that: both ends' medians are compared
MOST_GROWTH_BYTES: Final = 4 * 1024 * 1024
"""Samples scatter by half a MiB; over a million requests this is less than a reference for each."""
LEAST_SEEN_SHARE: Final = 0.2  # of those who leave: who leaves amid a stream is always seen
QUIET_S: Final = 20.0
PAUSE_S: Final = 0.1
LOOKS: Final = 5  # at what is open at rest: who looks is a task and a descriptor itself
MIB: Final = 1024 * 1024
_BAD: Final = (
    *("forebay_stream_failures_total", "forebay_protocol_errors_total"),
    *("forebay_filter_errors_total", "forebay_store_errors_total", "forebay_log_lines_lost"),
)
"""Counters that stay at zero in a run without faults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay soak`."""
    add = parser.add_argument
    least = sum(CONNECTIONS.values())
    add("requests", type=at_least(least), nargs="?", default=REQUESTS, metavar="REQUESTS",
        help=f"how many are answered in all ({REQUESTS:,}; at least {least})")  # fmt: skip
    add("--leaving", type=at_least(0), metavar="N",
        help=f"how many more leave too early (one for {A_LEAVER_IN} requests)")  # fmt: skip
    transports = [str(transport) for transport in Transport]
    add("--transport", choices=transports, help="of Forebay (as shipped)")
    add("--output", metavar="FILE", default=OUTPUT,
        help=f"keep every sample there, and a plot beside it ({OUTPUT})")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay soak`; return 1 when something failed, grew or was left."""
    output = output_file(arguments.output)
    leaving = arguments.leaving
    plan = Plan(
        arguments.requests,
        arguments.requests // A_LEAVER_IN if leaving is None else leaving,
        Transport(arguments.transport) if arguments.transport else None,
    )
    console = page_console()
    with SoakProgress(plan) as progress:
        soaked = asyncio.run(_soak(plan, progress))
    verdict = judge(plan, soaked)
    _show(console, plan, soaked, verdict)
    report = _report(plan, soaked, verdict)
    output.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    picture = output.with_suffix(".svg")
    picture.write_text(_picture(soaked, verdict))
    console.print(f"every sample: {output}, {picture}", style="dim", soft_wrap=True, markup=False)
    return 1 if verdict.faults else 0


# --- Measuring -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is asked."""

    requests: int
    leaving: int
    transport: Transport | None = None
    """Forebay's, if another than the shipped one."""


class Sample(NamedTuple):
    """What the server held at one moment."""

    seconds: float
    requests: int
    rss: int
    """Bytes of memory that is resident, of files such as libraries too."""
    anonymous: int
    """Bytes of it that the process itself wrote: what a leak makes grow."""
    in_flight: int
    """Exchanges that are open."""
    streams: int
    """Streams that Envoy has open to it."""
    tasks: int
    descriptors: int
    connections: int
    """Of Envoy to it."""
    gone: int
    """Exchanges so far whose client left before their end."""


@dataclass(slots=True)
class Soaked:
    """What a run showed."""

    transport: Transport
    before: Sample
    """After each way was gone once, with nothing under way."""
    samples: list[Sample] = field(default_factory=list)
    state: State | None = None
    """The last one of the load."""
    after: Sample | None = None
    """When nothing was under way any more, or would not end."""
    errors: Counter[str] = field(default_factory=Counter)


async def _soak(plan: Plan, progress: SoakProgress) -> Soaked:
    fallen: list[str] = []
    with run_folder() as folder, set_up(folder, plan.transport) as setup:
        _settle_settings(folder / "gateway.json")
        supervisor = Supervisor(list(setup.children.values()), fallen.append)
        load = await SoakLoad.start()
        try:
            await supervisor.start(progress.started)
            async for _ in load.run(_mix(setup, Plan(TOUCHES, 0), touch=True)):
                pass
            server = Server(setup)
            soaked = Soaked(setup.transport, await server.at_rest())
            async for state in load.run(_mix(setup, plan)):
                answered = sum(state.answered.values())
                sample = await server.sample(answered)
                soaked.samples.append(sample)
                soaked.state = state
                progress.at(sample, state)
                setup.empty_logs()
                if fallen:
                    raise ConfigError("", fallen[0])
            soaked.after = await server.quiet(soaked.before)
            soaked.errors.update(await server.errors())
            if soaked.state:
                soaked.errors.update(soaked.state.errors)
        finally:
            await load.stop()
            await supervisor.stop()
        return soaked


def _settle_settings(path: Path) -> None:
    """Let nothing but a fault look like one.

    The store fills early, and the answer that is always asked for outlasts the run.
    """
    tree = json.loads(path.read_text())
    forebay = tree["node"]["metadata"]["forebay"]
    forebay["store"] = {"memory": {"size": STORE_SIZE}}
    forebay["profiles"]["faq"]["cache"]["ttl"] = "24h"
    path.write_text(json.dumps(tree))


def _mix(setup: Setup, plan: Plan, *, touch: bool = False) -> Mix:
    """Return what the load is to do; to `touch` is to go every way once, whatever comes."""
    port = setup.places.gateway
    ways = []
    for name, connections in CONNECTIONS.items():
        scenario = SCENARIOS[name]
        before, after = request_of(scenario, port)
        expect = "" if touch else f"\r\n{scenario.expect}\r\n"
        ways.append(Way(name, before, after, scenario.unique, expect.encode(), connections))
    first = 0 if touch else 1_000_000_000
    state_s = min(1.0, plan.requests / SAMPLES / FAST_PER_S)
    return Mix(port, tuple(ways), plan.requests, _exits(port), plan.leaving, first, state_s)


def _exits(port: int) -> tuple[Exit, ...]:
    """Return the moments at which clients leave, each from the way that shows it best."""
    before, after = request_of(SCENARIOS["miss"], port)
    head = before[: before.index(b"\r\n\r\n") + 4]
    held = request_of(Scenario("", "/bench/held", None, stream=True), port)
    long = request_of(SCENARIOS["long"], port)
    return (
        Exit("before the body", head, None, 0.01),
        Exit("amid the body", before, None, 0.01),
        Exit("as it is asked", before, after, 0.001),
        Exit("before the reply", *held, 0.03),
        Exit("amid a stream", *long, None),
    )


class Server:
    """The server that is watched, from outside."""

    def __init__(self, setup: Setup) -> None:
        self._places: Final = setup.places
        self._proc: Final = Path(f"/proc/{setup.pid('server')}")
        self._began: Final = time.monotonic()

    async def sample(self, requests: int) -> Sample:
        """Look at everything once."""
        metrics = await self._metrics()
        proxy = await _fetch(self._places.envoy_admin, "/stats?filter=cluster.forebay.upstream_")
        stats = dict(line.split(": ", 1) for line in proxy.splitlines() if ": " in line)
        memory = _memory(self._proc)
        return Sample(
            seconds=time.monotonic() - self._began,
            requests=requests,
            rss=memory["Rss"],
            anonymous=memory["Anonymous"],
            in_flight=int(metrics["forebay_in_flight"]),
            streams=max(
                int(stats["cluster.forebay.upstream_rq_active"]),
                int(metrics.get("forebay_streams", 0)),  # grpc.aio does not say
            ),
            tasks=int(metrics["forebay_loop_tasks"]),
            descriptors=sum(1 for _ in (self._proc / "fd").iterdir()),
            connections=int(stats["cluster.forebay.upstream_cx_active"]),
            gone=sum(
                int(value)
                for name, value in metrics.items()
                if name.startswith("forebay_requests_total{") and 'outcome="gone"' in name
            ),
        )

    async def at_rest(self) -> Sample:
        """Look until nothing is under way; of what is open for good, return the least seen."""
        nothing = (await self.sample(0))._replace(in_flight=0, streams=0)
        sample = await self.quiet(nothing._replace(tasks=sys.maxsize, descriptors=sys.maxsize))
        looks = [await self.sample(0) for _ in range(LOOKS)]
        return sample._replace(
            tasks=min(look.tasks for look in looks),
            descriptors=min(look.descriptors for look in looks),
        )

    async def quiet(self, before: Sample) -> Sample:
        """Look until nothing is left that was not `before`, within a bound."""
        until = time.monotonic() + QUIET_S
        while any(left(before, sample := await self.sample(0)).values()):
            if time.monotonic() > until:
                break
            await asyncio.sleep(PAUSE_S)
        return sample

    async def errors(self) -> dict[str, int]:
        """Return what must not be and was."""
        found = {
            name: int(value)
            for name, value in (await self._metrics()).items()
            if value and name.startswith(_BAD)
        }
        if alone := await failed_open(self._places.envoy_admin):
            found["went on without the server"] = alone
        return found

    async def _metrics(self) -> dict[str, float]:
        text = await _fetch(self._places.metrics, "/metrics")
        samples = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, _, value in samples}


async def _fetch(port: int, path: str) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=QUIET_S) as reply:
            body: bytes = reply.read()
            return body.decode()

    return await asyncio.to_thread(fetch)


def _memory(proc: Path) -> dict[str, int]:
    """Return what the kernel says of a process's memory, in bytes."""
    lines = (line.split() for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, *_ in lines}


# --- What it means -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says about the server."""

    memory_start: float
    """Bytes that the process wrote, after the warm-up."""
    memory_end: float
    slope: float
    """Bytes a request, after the warm-up: the median of the slopes between all pairs of samples."""
    left: Mapping[str, int]
    """What is open at the end that was not before."""
    faults: Sequence[str]
    """What is wrong; none in a good run."""

    @property
    def growth(self) -> float:
        """Bytes that came to be after the warm-up and stayed."""
        return self.memory_end - self.memory_start


def judge(plan: Plan, soaked: Soaked) -> Verdict:
    """Say what is wrong with what a run showed."""
    warm = warmed_up(soaked.samples, plan.requests)
    ends = max(1, int(len(warm) * ENDS_SHARE))
    start = statistics.median(sample.anonymous for sample in warm[:ends])
    end = statistics.median(sample.anonymous for sample in warm[-ends:])
    after = soaked.after or soaked.samples[-1]
    remains = left(soaked.before, after)
    faults = [f"{number} x {what}" for what, number in soaked.errors.items()]
    faults += [f"{number} {what} left" for what, number in remains.items() if number]
    if (grown := end - start) > MOST_GROWTH_BYTES:
        most = MOST_GROWTH_BYTES / MIB
        faults.append(f"memory grew by {grown / MIB:.1f} MiB, more than {most:.0f} MiB")
    answered = soaked.samples[-1].requests
    if answered < plan.requests:
        faults.append(f"{answered:,} of {plan.requests:,} requests were answered")
    # Whoever leaves at once may be gone before Forebay begins, or after it let go. The rest show
    # that it was told.
    if (seen := after.gone - soaked.before.gone) < plan.leaving * LEAST_SEEN_SHARE:
        faults.append(f"only {seen:,} of {plan.leaving:,} clients were seen to leave")
    return Verdict(start, end, slope_of(warm), remains, faults)


def warmed_up(samples: Sequence[Sample], requests: int) -> Sequence[Sample]:
    """Return the samples after the warm-up; the last one at least."""
    warm = [sample for sample in samples if sample.requests >= requests * WARM_UP_SHARE]
    return warm or samples[-1:]


def slope_of(samples: Sequence[Sample]) -> float:
    """Return by how much memory grows with each request, whatever single samples say.

    It is the estimator of Theil and Sen: up to 29 % of the samples may be anything.
    """
    slopes = [
        (one.anonymous - other.anonymous) / (one.requests - other.requests)
        for number, one in enumerate(samples)
        for other in samples[:number]
        if one.requests != other.requests
    ]
    return statistics.median(slopes) if slopes else 0.0


def left(before: Sample, after: Sample) -> dict[str, int]:
    """Return what is open `after` and was not `before`; a connection has a descriptor."""
    more = {
        "exchanges": after.in_flight - before.in_flight,
        "streams": after.streams - before.streams,
        "tasks": after.tasks - before.tasks,
        "descriptors": (after.descriptors - after.connections)
        - (before.descriptors - before.connections),
    }
    return {what: max(0, number) for what, number in more.items()}


# --- What it says --------------------------------------------------------------------------------


class SoakProgress:
    """Tells on stderr how far it is: a bar on a terminal, else a line now and then."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Final = plan
        self._console: Final = Console(stderr=True, highlight=False)
        self._bar: Final = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: Final = self._bar.add_task("starting", total=plan.requests)
        self._told = 0

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def started(self, name: str) -> None:
        """Say that a program is ready."""
        self._bar.update(self._task, description=f"starting: {name} is ready")

    def at(self, sample: Sample, state: State) -> None:
        """Say how far it is and what the server holds."""
        text = f"{sample.anonymous / MIB:.1f} MiB, {sample.streams} streams, {sample.tasks} tasks"
        self._bar.update(self._task, completed=sample.requests, description=text)
        if self._console.is_terminal:
            return
        tenths = 10 * sample.requests // self._plan.requests
        if tenths > self._told or state.done:
            self._told = tenths
            gone = sum(state.left.values())
            self._console.print(f"{sample.requests:,} answered, {gone:,} left early: {text}")


def _show(console: Console, plan: Plan, soaked: Soaked, verdict: Verdict) -> None:
    state, after = soaked.state, soaked.after
    assert state is not None
    assert after is not None
    seconds = soaked.samples[-1].seconds - soaked.samples[0].seconds
    answered = soaked.samples[-1].requests
    ways = ", ".join(f"{name} {number:,}" for name, number in state.answered.items())
    gone = after.gone - soaked.before.gone
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("answered", f"{answered:,} in {seconds:,.0f} s ({ways})")
    table.add_row("left early", f"{sum(state.left.values()):,}, {gone:,} of them seen to leave")
    table.add_row("errors", f"{sum(soaked.errors.values()):,}")
    table.add_row(
        "memory",
        f"{verdict.memory_start / MIB:.1f} MiB after the warm-up, {verdict.memory_end / MIB:.1f} "
        f"at the end ({verdict.growth / MIB:+.2f}; at most {MOST_GROWTH_BYTES / MIB:.0f}), "
        f"{verdict.slope * 100_000 / MIB:+.3f} for 100,000 requests",
    )
    table.add_row(
        "left open", ", ".join(f"{number} {what}" for what, number in verdict.left.items())
    )
    console.print(table)
    console.print(Text(_conditions(plan, soaked), style="dim"))
    for fault in verdict.faults:
        console.print(Text(fault, style="red"))


def _conditions(plan: Plan, soaked: Soaked) -> str:
    most = max(soaked.samples, key=lambda sample: sample.streams)
    resident = soaked.samples[-1].rss / MIB
    return (
        f"transport {soaked.transport}; {sum(CONNECTIONS.values())} connections; store of "
        f"{STORE_SIZE}; warm-up {WARM_UP_SHARE:.0%} of {plan.requests:,}; at most "
        f"{most.streams} streams at once; {resident:.1f} MiB resident at the end"
    )


def _report(plan: Plan, soaked: Soaked, verdict: Verdict) -> dict[str, Any]:
    state = soaked.state
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {
            "requests": plan.requests,
            "leaving": plan.leaving,
            "connections": CONNECTIONS,
            "transport": str(soaked.transport),
            "store": STORE_SIZE,
            "most_growth": MOST_GROWTH_BYTES,
        },
        "verdict": {**asdict(verdict), "growth": verdict.growth},
        "answered": state.answered if state else {},
        "left_early": state.left if state else {},
        "errors": dict(soaked.errors),
        "before": soaked.before._asdict(),
        "after": soaked.after._asdict() if soaked.after else None,
        "samples": [sample._asdict() for sample in soaked.samples],
    }


def _picture(soaked: Soaked, verdict: Verdict) -> str:
    warm = warmed_up(soaked.samples, soaked.samples[-1].requests)
    first, last = warm[0].requests, warm[-1].requests
    middle = statistics.median(
        sample.anonymous - verdict.slope * sample.requests for sample in warm
    )
    return plot(
        f"Forebay, transport {soaked.transport}: "
        f"{verdict.slope * 100_000 / MIB:+.3f} MiB for 100,000 requests",
        [(sample.requests, sample.anonymous / MIB) for sample in soaked.samples],
        fit=(
            (first, (middle + verdict.slope * first) / MIB),
            (last, (middle + verdict.slope * last) / MIB),
        ),
        x_name="requests",
        y_name="MiB",
    )
