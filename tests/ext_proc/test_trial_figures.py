"""What is said of a pool on its way in is what was counted of it."""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree

import pytest

from ext_proc.telemetry.trials import TrialMetrics
from ext_proc.tools import trial_page
from ext_proc.tools.report import passed
from ext_proc.trial_figures import figures_of
from filters.api import Ending, Finish, Heard, Step, Trial

SHADOW: Final = Trial("full", "coming", Step.SHADOW)
CANARY: Final = Trial("full", "coming", Step.CANARY)
TEXT: Final = "word " * 100
SECOND_NS: Final = 1_000_000_000


class Books:
    """Metrics to count in, and what is read out of them."""

    def __init__(self, *trials: Trial) -> None:
        self.metrics = TrialMetrics(lambda: dict.fromkeys(trials, 0.1))

    @property
    def trial(self) -> dict[str, Any]:
        (trial,) = figures_of(self.metrics.collect())
        return trial

    def pair(self, old_s: float, new_s: float, *, alike: float = 0.71, longer: int = 1) -> None:
        """Count a request that both answered."""
        old = heard(old_s)
        new = heard(new_s, text=TEXT * longer, finish=Finish.LENGTH)
        self.metrics.trial_heard(SHADOW, "full", old)
        self.metrics.trial_heard(SHADOW, "coming", new)
        self.metrics.trial_compared(SHADOW, old, new, alike)

    def failed(self, pool: str, trial: Trial = SHADOW, ending: Ending = Ending.FAILED) -> None:
        self.metrics.trial_heard(trial, pool, Heard(ending, SECOND_NS))


def heard(seconds: float, text: str = TEXT, finish: Finish = Finish.STOP) -> Heard:
    took_ns = round(seconds * SECOND_NS)
    return Heard(Ending.ANSWERED, took_ns, took_ns // 2, text, finish)


def test_nothing_is_said_where_no_pool_is_on_its_way_in() -> None:
    """Nor are there metrics of it."""
    books = Books()
    assert ([], []) == (books.metrics.collect(), figures_of(books.metrics.collect()))


def test_a_shadow_is_judged_by_pairs() -> None:
    """Each request's two times are divided before anything is averaged."""
    books = Books(SHADOW)
    for number in range(397):
        books.pair(1.0 + number % 7, 1.12 * (1.0 + number % 7))
    for _ in range(3):
        books.metrics.trial_heard(SHADOW, "full", heard(1.0))
        books.failed("coming")
    trial = books.trial
    assert ("full", "coming") == (trial["old"]["pool"], trial["new"]["pool"])
    assert (400, 3, 0.0075) == tuple(trial["new"][key] for key in ("asked", "errors", "error_rate"))
    assert 0.71 == pytest.approx(trial["pairs"]["likeness"]["mean"])
    assert (397, 0.0) == (trial["pairs"]["compared"], trial["pairs"]["same_finish"])
    assert 0.12 == pytest.approx(trial["differences"]["slower"], abs=0.01)
    first, *_, alike, errors = trial["verdict"].split(", ")
    assert ("shadow slower by 12 %", "answers 0.71 alike") == (first, alike)
    assert "3 of 400 errors (0 of 400 in full)" == errors


def test_longer_answers_are_said_to_be_longer() -> None:
    """Twice as long is a ratio of 2."""
    books = Books(SHADOW)
    for _ in range(40):
        books.pair(1.0, 1.0, longer=2)
    trial = books.trial
    assert 2.0 == pytest.approx(trial["pairs"]["length_ratio"]["mean"], abs=0.05)
    assert "longer by" in trial["verdict"]
    assert trial["verdict"].startswith("shadow as fast, ")


def test_two_pools_that_are_one_do_not_differ() -> None:
    """Each ratio is 1, and so are likeness and its tenth part."""
    books = Books(SHADOW)
    for _ in range(40):
        books.pair(1.0, 1.0, alike=1.0)
    pairs = books.trial["pairs"]
    for key in ("time_ratio", "length_ratio", "likeness"):
        assert 1.0 == pytest.approx(pairs[key]["p50"], abs=0.005)
    assert 1.0 == pytest.approx(pairs["likeness"]["p10"], abs=0.005)


def test_a_canary_is_judged_by_the_two_crowds() -> None:
    """There are no pairs, and no likeness; who left is nobody's error."""
    books = Books(CANARY)
    for _ in range(100):
        books.metrics.trial_heard(CANARY, "full", heard(2.0))
        books.metrics.trial_heard(CANARY, "coming", heard(1.0))
    books.failed("coming", CANARY)
    books.failed("coming", CANARY, Ending.LATE)
    books.failed("coming", CANARY, Ending.LEFT)
    trial = books.trial
    assert trial["pairs"] is None
    assert (102, 2, 1) == tuple(trial["new"][key] for key in ("asked", "errors", "left"))
    assert -0.5 == pytest.approx(trial["differences"]["slower"], abs=0.12)
    assert trial["verdict"].startswith("canary faster by ")
    assert trial["verdict"].endswith("2 of 102 errors (0 of 100 in full)")
    assert {"stop": 100} == trial["old"]["finishes"]


def test_of_few_answers_nothing_is_made() -> None:
    """It says how many there are."""
    books = Books(SHADOW)
    for _ in range(12):
        books.pair(1.0, 9.0)
    assert "too few to judge by: 12 of the 30 that it takes" == books.trial["verdict"]


def test_what_was_not_compared_is_told_by_reason() -> None:
    """Also where that was all."""
    books = Books()
    for why in ("full", "full", "stateful"):
        books.metrics.trial_skipped(SHADOW, why)
    trial = books.trial
    assert {"full": 2, "stateful": 1} == trial["skipped"]
    assert trial["share"] is None


def test_several_servers_are_added_up() -> None:
    """Each counted its own requests."""
    first, second = Books(SHADOW), Books(SHADOW)
    first.pair(1.0, 1.0)
    second.pair(1.0, 1.0)
    second.pair(1.0, 1.0)
    (trial,) = figures_of([*first.metrics.collect(), *second.metrics.collect()])
    assert (3, 3) == (trial["new"]["answered"], trial["pairs"]["likeness"]["count"])


@pytest.mark.parametrize(
    ("slower", "errors", "unlike", "expected"),
    [
        (None, None, None, []),
        (0.2, 0.02, 0.7, []),
        (0.1, 0.02, 0.7, ["slower"]),
        (0.2, 0.005, 0.7, ["errors"]),
        (0.2, 0.02, 0.72, ["unlike"]),
    ],
)
def test_bounds_are_passed_or_not(
    slower: float | None, errors: float | None, unlike: float | None, expected: list[str]
) -> None:
    """12 % slower, 1 % more errors, 0.71 alike."""
    books = Books(SHADOW)
    for _ in range(99):
        books.pair(1.0, 1.12)
    books.metrics.trial_heard(SHADOW, "full", heard(1.0))
    books.failed("coming")
    assert expected == passed(books.trial, slower, errors, unlike)


def test_what_is_not_known_passes_no_bound() -> None:
    """There was nothing to measure."""
    assert [] == passed(Books(SHADOW).trial, 0.0, 0.0, 1.0)


def test_the_table_names_both_pools(capsys: pytest.CaptureFixture[str]) -> None:
    """With the sentence below."""
    books = Books(SHADOW)
    for _ in range(50):
        books.pair(1.0, 1.12)
    trial_page.show([books.trial])
    shown = capsys.readouterr().out
    for part in ("shadow: coming for full", "0.1 of the requests", "mean 0.71", "alike"):
        assert part in shown
    trial_page.show([])
    assert "no pool is on its way in" in capsys.readouterr().out


def test_the_page_has_a_plot_for_each_figure() -> None:
    """Every plot is XML that browsers read."""
    books = Books(SHADOW)
    for number in range(50):
        books.pair(1.0, 1.0 + number / 50)
    page = trial_page.html([books.trial])
    plots = [line for line in page.splitlines() if line.startswith("<svg")]
    assert 3 == len(plots)
    for plot in plots:
        assert ElementTree.fromstring(plot).tag.endswith("svg")
    assert "no pool is on its way in" in trial_page.html([])
