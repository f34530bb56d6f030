"""`forebay bench queues` holds what it played against what is promised, and shows both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ext_proc import cli
from ext_proc.tools import queue_plot
from ext_proc.tools.bench_queues import CASES
from ext_proc.tools.queue_goals import Goal, goals
from ext_proc.tools.queue_loads import (
    CALM,
    CROWDED,
    FLOODED,
    LONG_ALONE,
    MIXED,
    ROOMY,
    SHORT_ALONE,
)
from ext_proc.tools.queue_run import Group, Played
from filters.queue_order import Lane, Priority

QUIET = {(Lane.BULK, Priority.LOW): 20.0}
SHORT_BESIDE = "TTFT P95 of short ones, of theirs alone, with queues"
SHORT_WITHOUT = "TTFT P95 of short ones, of theirs alone, without queues"
FAIR = "long ones read, of their fair share"
TURNLESS = "longest without a turn while some of a class waited, bulk"
OTHERS = "TTFT P95 of the other tenants, of that without queues"
REFUSED = "share of long ones sent away"
LOST = "share of the other tenants sent away"


def played(load: str, p95_s: float = 1.0, *, queued: bool = True, **changes: Any) -> Played:
    """Return what became of a load whose every short request waited the same."""
    short = Group(40, [p95_s] * 40, [0.0] * 40, {})
    depths = [(60.0, 0, 1), (61.0, 2, 0)]
    classes = {(Lane.BULK, Priority.LOW): short, (Lane.FAST, Priority.HIGH): short}
    one = Played(load, queued, 8, 600.0, {"short": short}, classes, QUIET, 0.1, 0.5, depths)
    return replace(one, **changes)


def held(*found: Played) -> Mapping[str, Goal]:
    return {goal.what: goal for goal in goals({(one.load, one.queued): one for one in found})}


@pytest.mark.parametrize(("p95_s", "met"), [(1.25, True), (1.26, False)])
def test_short_ones_wait_hardly_longer_beside_long_ones(p95_s: float, met: bool) -> None:
    """A quarter longer than alone, at most."""
    found = held(played(SHORT_ALONE), played(MIXED, p95_s))
    assert met is found[SHORT_BESIDE].met


@pytest.mark.parametrize(("p95_s", "met"), [(3.1, True), (2.9, False)])
def test_without_queues_they_wait_far_longer(p95_s: float, met: bool) -> None:
    """Else the load shows nothing of queues."""
    found = held(played(SHORT_ALONE), played(MIXED, p95_s, queued=False))
    assert met is found[SHORT_WITHOUT].met


@pytest.mark.parametrize(("rate", "met"), [(0.091, True), (0.089, False)])
def test_long_ones_have_their_share_of_what_the_pool_can_read(rate: float, met: bool) -> None:
    """A tenth by their weight, and nine tenths of that at least."""
    alone = played(LONG_ALONE, queued=False, bulk_rate=1.0)
    assert met is held(alone, played(MIXED, bulk_rate=rate))[FAIR].met


@pytest.mark.parametrize(("shed", "met"), [(10, True), (11, False)])
def test_long_ones_that_fit_in_are_served(shed: int, met: bool) -> None:
    """Three of four at least, and short ones wait hardly longer for it."""
    served = Group(40, [1.0] * 40, [0.0] * 40, {})
    long = Group(40, [1.0] * (40 - shed), [0.0] * (40 - shed), {"late": shed})
    found = held(played(CALM), played(ROOMY, streams={"short": served, "long": long}))
    assert (True, met) == (found[SHORT_BESIDE].met, found[REFUSED].met)


@pytest.mark.parametrize(("seconds", "met"), [(300.0, True), (301.0, False)])
def test_no_class_starves(seconds: float, met: bool) -> None:
    """The longest time counts that some of it waited and none was served."""
    found = held(played(CROWDED, turnless_s={**QUIET, (Lane.BULK, Priority.HIGH): seconds}))
    assert met is found[TURNLESS].met
    assert f"low 20 s, high {seconds:.0f} s)" in found[TURNLESS].line.plain


def test_a_tenant_that_floods_harms_itself() -> None:
    """The others are far better off than without queues, and are not sent away."""
    without = played(FLOODED, 100.0, queued=False)
    found = held(without, played(FLOODED, 10.0))
    assert (True, True) == (found[OTHERS].met, found[LOST].met)
    worse = Group(40, [10.1] * 40, [0.0] * 39, {"full": 1})
    found = held(without, played(FLOODED, streams={"short": worse}))
    assert (False, False) == (found[OTHERS].met, found[LOST].met)


def test_what_was_not_played_is_held_against_nobody() -> None:
    """A goal needs both of its figures."""
    assert {} == held(played(SHORT_ALONE))


def test_plots_are_svg_and_every_point_lies_within() -> None:
    """Waits with and without queues, who waited when, and what each class had."""
    some = {(load, queued): played(load, queued=queued) for load, queued in CASES}
    drawn = queue_plot.page(some)
    one = some[MIXED, True]
    for svg in (queue_plot.depths(one.depths), queue_plot.classes(one)):
        root = ElementTree.fromstring(svg)
        wide, high = float(root.attrib["width"]), float(root.attrib["height"])
        for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
            points = [pair.split(",") for pair in line.attrib["points"].split()]
            assert all(0 <= float(x) <= wide and 0 <= float(y) <= high for x, y in points)
        assert svg in drawn
    assert 3 + 2 * sum(queued for _, queued in CASES) == drawn.count("<svg")


@pytest.mark.slow
def test_a_run_prints_tables_and_goals_and_keeps_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whether every goal was met."""
    output = tmp_path / "figures.json"
    few = ["--replicas", "2", "--seconds", "5", "--processes", "1", "--output", str(output)]
    code = cli.main(["bench", "queues", *few])
    printed, progress = capsys.readouterr()
    said = [line.partition(":")[0] for line in progress.splitlines()]
    assert [f"{number} of {len(CASES)}" for number in range(len(CASES))] == said
    figures = json.loads(output.read_text())
    assert int(not all(goal["met"] for goal in figures["goals"])) == code
    assert list(CASES) == [(one["load"], one["queues"]) for one in figures["loads"]]
    assert len(figures["goals"]) == printed.count("(goal: ") > 0
    assert "<svg" in output.with_suffix(".html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--replicas", "1"], 'expected a whole number from 2 on, got "1"'),
        (["--quick"], "unrecognized arguments: --quick (see forebay bench queues --help)"),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says what was expected."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "queues", *words])
    assert 2 == ended.value.code
    assert message in capsys.readouterr().err


def test_figures_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for before anything is played."""
    assert 2 == cli.main(["bench", "queues", "--output", str(tmp_path / "none" / "figures.json")])
    assert "expected a file in a folder that exists" in capsys.readouterr().err
