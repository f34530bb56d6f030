"""What routing promises, and whether the figures of a run keep it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.text import Text

from ext_proc.tools.routing_cost import Cost
from ext_proc.tools.routing_faults import MOST_BACK_S, MOST_NOTICE_S, Failed, Fault
from ext_proc.tools.routing_possible import Possible
from ext_proc.tools.routing_run import ORACLE, Result

OURS: Final = "expected"
BASE: Final = "round_robin"
LEAST_HIT: Final = 0.96
MOST_SPREAD: Final = 1.25
MOST_BEHIND: Final = 1.03
LEAST_GAIN: Final = 0.90
LEAST_TO_GAIN: Final = 0.03
"""Where the oracle gains less than this over the base, a share of its gain is a share of noise."""
MOST_LONG: Final = 0.40
LONG: Final = "long"
UNSHARED: Final = "unshared"
MOST_COLD: Final = 0.03


class Cold(NamedTuple):
    """The hit rate from a minute after a cold start on."""

    load: str
    replicas: int
    hit_rate: float


class Faulty(NamedTuple):
    """What became of a load of which a replica failed."""

    replicas: int
    failed: Failed


@dataclass(slots=True)
class Measured:
    """What a run showed."""

    results: dict[tuple[int, str], dict[str, Result]] = field(default_factory=dict)
    """By the number of replicas and the load, then by the strategy."""
    possible: dict[tuple[int, str], Possible] = field(default_factory=dict)
    cold: dict[tuple[int, str], float] = field(default_factory=dict)
    faults: dict[tuple[int, Fault], Failed] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)

    def add(self, one: Result | Possible | Cold | Faulty | Cost) -> None:
        """Take in what a task returned."""
        match one:
            case Result():
                self.results.setdefault((one.replicas, one.load), {})[one.strategy] = one
            case Possible():
                self.possible[one.replicas, one.load] = one
            case Cold():
                self.cold[one.replicas, one.load] = one.hit_rate
            case Faulty():
                self.faults[one.replicas, one.failed.fault] = one.failed
            case Cost():
                self.costs.append(one)


class Goal(NamedTuple):
    """A figure that is promised, and the one that was measured."""

    replicas: int
    load: str
    what: str
    found: float
    bound: float
    least: bool = False
    """The bound is the least that it may be, else the most."""
    unit: str = ""
    beside: str = ""
    """What else to judge it by; it changes nothing of the bound."""

    @property
    def met(self) -> bool:
        """Whether the figure is as promised."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    @property
    def line(self) -> Text:
        """The goal and whether it is met, in one line."""
        how = "at least" if self.least else "at most"
        place = f"{self.load}, {self.replicas} replicas"
        figure = f"{self.found:.{0 if self.found == int(self.found) else 3}f}{self.unit}"
        return Text.assemble(
            ("ok     ", "green") if self.met else ("missed ", "bold red"),
            (f"{place:22}", "dim"),
            f" {self.what}: {figure}",
            (f" (goal: {how} {self.bound:g}{self.beside and '; '}{self.beside})", "dim"),
        )


def gain(result: Result, base: Result, oracle: Result) -> float:
    """Return what part of the oracle's gain over the base, in the 95th percentile, this one has."""
    most = base.percentile(0.95) - oracle.percentile(0.95)
    return (base.percentile(0.95) - result.percentile(0.95)) / most if most > 0 else 1.0


def goals(measured: Measured) -> list[Goal]:
    """Return what can be held against a bound, of that which was measured."""
    found: list[Goal] = []
    for (replicas, load), results in measured.results.items():
        if OURS in results:
            possible = measured.possible.get((replicas, load))
            found += _of_load(replicas, load, results, possible)
            cold = measured.cold.get((replicas, load))
            if cold is not None:
                lost = results[OURS].hit_rate - cold
                what = "hit rate lost a minute after a cold start"
                found.append(Goal(replicas, load, what, lost, MOST_COLD))
    for (replicas, fault), failed in measured.faults.items():
        found += _of_fault(replicas, fault, failed)
    for cost in measured.costs:
        what = f"CPU for a prompt of {cost.tokens:,} tokens"
        found.append(Goal(cost.replicas, "a pick", what, cost.us, cost.bound_us, unit=" us"))
    return found


def _of_load(
    replicas: int, load: str, results: dict[str, Result], possible: Possible | None
) -> Iterator[Goal]:
    ours = results[OURS]
    p95_s = ours.percentile(0.95)
    if possible is not None and possible.hit_rate:
        hits = ours.hit_rate / possible.hit_rate
        yield Goal(replicas, load, "hits, of those possible", hits, LEAST_HIT, least=True)
    even = f"whoever goes by nothing else: {possible.even:.3f}" if possible is not None else ""
    what = "most work of a replica, over the mean"
    yield Goal(replicas, load, what, ours.spread, MOST_SPREAD, beside=even)
    others = [
        result.percentile(0.95) for name, result in results.items() if name not in (OURS, ORACLE)
    ]
    if others:
        behind = p95_s / min(others)
        yield Goal(replicas, load, "TTFT P95, of the best other", behind, MOST_BEHIND)
    base, oracle = results.get(BASE), results.get(ORACLE)
    if (
        base is not None
        and oracle is not None
        and oracle.percentile(0.95) < (1 - LEAST_TO_GAIN) * base.percentile(0.95)
    ):
        share = gain(ours, base, oracle)
        yield Goal(replicas, load, "gain, of the oracle's", share, LEAST_GAIN, least=True)
    if load == LONG and base is not None:
        share = p95_s / base.percentile(0.95)
        yield Goal(replicas, load, "TTFT P95, of round robin's", share, MOST_LONG)
    if load == UNSHARED and (least := results.get("least_load")) is not None:
        behind = p95_s / least.percentile(0.95)
        yield Goal(replicas, load, "TTFT P95, of least_load's", behind, MOST_BEHIND)


def _of_fault(replicas: int, fault: Fault, failed: Failed) -> Iterator[Goal]:
    yield Goal(replicas, fault, "noticed", failed.noticed_s, MOST_NOTICE_S, unit=" s")
    yield Goal(replicas, fault, "client errors after that", failed.errors_after, 0)
    yield Goal(replicas, fault, "in use again", failed.back_s, MOST_BACK_S, unit=" s")
