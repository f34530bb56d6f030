"""`forebay bench routing` holds what it measured against what is promised, and shows both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ext_proc import cli
from ext_proc.tools import routing_plot
from ext_proc.tools.bench_routing import COLD_LOADS, Plan
from ext_proc.tools.routing_cost import Cost, cost_of
from ext_proc.tools.routing_faults import Failed, Fault
from ext_proc.tools.routing_goals import (
    Cold,
    Faulty,
    Goal,
    Measured,
    gain,
    goals,
)
from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_possible import Possible
from ext_proc.tools.routing_run import ORACLE, Result
from filters.strategies import STRATEGIES

FAILED = Failed(Fault.KILLED, 0.4, 3, 0, 20, 1.4, 0.5, 0.4)


def result(strategy: str, p95_s: float, load: str = "shared", **changes: Any) -> Result:
    """Return what became of a load whose every request waited the same."""
    one = Result(load, strategy, 8, [p95_s] * 40, 0.8, 1.1, 0.2, 100.0)
    return replace(one, **changes)


def held(*measured: Result | Possible | Cold | Faulty | Cost) -> dict[str, Goal]:
    """Return what is held against a bound, by what it is."""
    all_of_it = Measured()
    for one in measured:
        all_of_it.add(one)
    return {goal.what: goal for goal in goals(all_of_it)}


def bench(folder: Path, *words: str) -> tuple[int, Path]:
    """Run `forebay bench routing` on few requests; return the exit code and where figures are."""
    output = folder / "figures.json"
    few = ["--loads", "unshared", "--requests", "40", "--processes", "1"]
    return cli.main(["bench", "routing", *few, "--output", str(output), *words]), output


# --- What is promised -----------------------------------------------------------------------------


def test_the_gain_is_that_over_round_robin_against_the_oracles() -> None:
    """Half way from one to the other is half of it."""
    base, oracle = result("round_robin", 3.0), result(ORACLE, 1.0)
    found = [gain(result("expected", p95_s), base, oracle) for p95_s in (3.0, 2.0, 1.0, 4.0)]
    assert [0.0, 0.5, 1.0, -0.5] == found


def test_where_the_oracle_gains_nothing_there_is_nothing_to_miss() -> None:
    """No division by zero either."""
    base = result("round_robin", 1.0)
    assert 1.0 == gain(result("expected", 1.0), base, result(ORACLE, 1.0))


def test_a_gain_that_is_noise_is_held_against_nobody() -> None:
    """Two per cent over round robin are no gain to have a share of; four are."""
    base = result("round_robin", 1.0)
    found = [
        "gain, of the oracle's" in held(result("expected", 1.0), base, result(ORACLE, p95_s))
        for p95_s in (0.98, 0.96)
    ]
    assert [False, True] == found


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ("hits, of those possible", {"hit_rate": 0.77}, {"hit_rate": 0.76}),
        ("most work of a replica, over the mean", {"spread": 1.25}, {"spread": 1.26}),
        ("TTFT P95, of the best other", {"ttft_s": [1.03]}, {"ttft_s": [1.04]}),
        ("gain, of the oracle's", {"ttft_s": [1.19]}, {"ttft_s": [1.21]}),
    ],
)
def test_a_goal_is_met_up_to_its_bound_and_missed_beyond(
    what: str, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """A figure that is missed says so."""
    others = (
        Possible("shared", 8, 0.8),
        result("affinity", 1.0),
        result("round_robin", 3.0),
        result(ORACLE, 1.0),
    )
    met = [held(result("expected", 1.0, **changes), *others)[what].met for changes in (good, bad)]
    assert [True, False] == met


def test_a_spread_is_shown_beside_that_of_who_looks_at_nothing_else() -> None:
    """It says what part of a miss is the load's, and makes no goal of a miss."""
    ours, what = result("expected", 1.0, spread=1.3), "most work of a replica, over the mean"
    goal = held(Possible("shared", 8, 0.8, even=1.28), ours)[what]
    assert not goal.met
    assert goal.line.plain.endswith("(goal: at most 1.25; whoever goes by nothing else: 1.280)")


def test_the_oracle_is_nobody_to_be_behind_of() -> None:
    """It is the yardstick, not one of the others."""
    found = held(result("expected", 1.0), result("affinity", 2.0), result(ORACLE, 0.1))
    assert 0.5 == found["TTFT P95, of the best other"].found


def test_long_prompts_are_held_against_round_robin() -> None:
    """At most 40 % of its 95th percentile."""
    ours, base = result("expected", 1.0, "long"), result("round_robin", 2.4, "long")
    assert not held(ours, base)["TTFT P95, of round robin's"].met
    assert held(ours, replace(base, ttft_s=[2.6]))["TTFT P95, of round robin's"].met


def test_what_shares_nothing_is_held_against_the_least_load() -> None:
    """To look for prefixes must cost nothing where there are none."""
    ours, least = result("expected", 1.04, "unshared"), result("least_load", 1.0, "unshared")
    assert not held(ours, least)["TTFT P95, of least_load's"].met


def test_a_cold_start_may_lose_three_points() -> None:
    """Against the hit rate of the same load, warm."""
    what = "hit rate lost a minute after a cold start"
    ours = result("expected", 1.0)
    found = [held(ours, Cold("shared", 8, rate))[what].met for rate in (0.78, 0.76)]
    assert [True, False] == found


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("noticed", {"noticed_s": 1.6}),
        ("client errors after that", {"errors_after": 1}),
        ("in use again", {"back_s": 5.1}),
    ],
)
def test_a_failure_is_to_be_noticed_survived_and_forgotten(
    what: str, changes: dict[str, Any]
) -> None:
    """Errors before it could be noticed are not held against anybody."""
    assert held(Faulty(8, FAILED))[what].met
    assert not held(Faulty(8, replace(FAILED, **changes)))[what].met


def test_without_the_default_strategy_nothing_is_promised() -> None:
    """The others are there to be compared with."""
    assert {} == held(result("affinity", 1.0), result("round_robin", 2.0))


# --- The command ----------------------------------------------------------------------------------


def test_more_replicas_are_asked_as_many_times_more() -> None:
    """So that each has as much to do and to remember."""
    plan = Plan(["shared"], ["expected"], [8, 64], requests=100)
    assert [100, 100, 800] == [plan.requests_for(replicas) for replicas in (4, 8, 64)]


def test_loads_of_cold_starts_are_loads() -> None:
    """A load that is named otherwise would be left out unseen."""
    assert set(COLD_LOADS) < set(LOADS)


@pytest.mark.slow
def test_a_run_prints_tables_and_goals_and_keeps_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whether every goal was met."""
    code, output = bench(tmp_path, "--replicas", "2,3")
    printed = capsys.readouterr().out
    figures = json.loads(output.read_text())
    assert int(not all(goal["met"] for goal in figures["goals"])) == code
    assert [2, 3] == [load["replicas"] for load in figures["loads"]]
    assert [{*STRATEGIES, ORACLE}] * 2 == [set(load["strategies"]) for load in figures["loads"]]
    assert len(figures["goals"]) == printed.count("(goal: ") > 0
    assert "unshared, 3 replicas" in output.with_suffix(".html").read_text()


@pytest.mark.slow
def test_json_goes_to_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what is kept."""
    _, output = bench(tmp_path, "--json", "--strategies", "expected,random")
    printed = capsys.readouterr().out
    assert output.read_text() == printed
    assert {"expected", "random"} == set(json.loads(printed)["loads"][0]["strategies"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loads", "shared,short"], 'some of shared, bursts, long, code, unshared, got "short"'),
        (["--strategies", "best"], 'got "best"'),
        (["--replicas", "1"], 'expected a whole number from 2 on, got "1"'),
        (["--requests", "0"], 'expected a whole number from 40 on, got "0"'),
        (["--quick"], "unrecognized arguments: --quick (see forebay bench routing --help)"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says what was expected."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "routing", *words])
    assert 2 == ended.value.code
    assert message in capsys.readouterr().err


def test_figures_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for before anything is run."""
    assert 2 == cli.main(["bench", "routing", "--output", str(tmp_path / "none" / "figures.json")])
    assert "expected a file in a folder that exists" in capsys.readouterr().err


# --- The plots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [[0.05], [0.0004, 0.2, 70.0], [1.0] * 500, [0.1, 0.1, 10.0]])
def test_plots_are_svg_whatever_the_figures(waits: list[float]) -> None:
    """Every point lies within the picture."""
    results = {"expected": result("expected", 1.0, ttft_s=waits)}
    for drawn in (routing_plot.waits(results), routing_plot.hits(results, 0.8)):
        svg = ElementTree.fromstring(drawn)
        wide, high = float(svg.attrib["width"]), float(svg.attrib["height"])
        for line in svg.iter("{http://www.w3.org/2000/svg}polyline"):
            points = [pair.split(",") for pair in line.attrib["points"].split()]
            assert all(0 <= float(x) <= wide and 0 <= float(y) <= high for x, y in points)


def test_a_page_shows_hits_only_where_there_can_be_any() -> None:
    """A load that shares nothing has one plot."""
    measured = Measured()
    for load, possible in (("shared", 0.8), ("unshared", 0.0)):
        measured.add(Possible(load, 8, possible))
        measured.add(result("expected", 1.0, load))
    assert 3 == routing_plot.page(measured).count("<svg")


def test_the_cost_of_a_pick_is_held_against_its_bound() -> None:
    """It is that of this machine's picker, and every case has a bound of its own."""
    cost = cost_of("expected", 2, 200, 60.0)
    assert 0 < cost.us
    (goal,) = held(cost).values()
    assert (2, 60.0, cost.us) == (goal.replicas, goal.bound, goal.found)
    assert not held(cost._replace(us=60.1))[goal.what].met
