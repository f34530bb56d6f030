"""Count how pools on their way in do, beside those whose place they are to take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ext_proc.telemetry.metrics import Histogram, Labels, Tally
from filters.api import Ending, Heard, Step, Trial
from filters.token_estimate import estimate_tokens

# Each a quarter more than the one before: medians of two pools that differ by a tenth differ here.
TIME_BOUNDS_S: Final = tuple(round(0.005 * 1.25**step, 4) for step in range(45))  # to 92 s
LIKENESS_BOUNDS: Final = (*(step / 20 for step in range(1, 20)), 0.999, 1.0)
# One in a hundred apart round 1, and 1 itself in the middle of its bucket.
RATIO_BOUNDS: Final = (
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    *(round(0.695 + step / 100, 3) for step in range(62)),
    *(1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 5.0, 10.0),
)
TOKEN_BOUNDS: Final = tuple(float(2**step) for step in range(17))
ONE: Final = 1_000_000_000
"""`Histogram` counts in billionths."""
_PAIR: Final = ("pool", "new")
_SIDE: Final = ("pool", "new", "step", "side")


class TrialMetrics(Collector):
    """The `StageWatch` of a server, and what Prometheus is told of it.

    `side` is `old` or `new`. Of a shadow both are counted for the same requests, and times only of
    those that both answered.
    """

    def __init__(self, shares: Callable[[], Mapping[Trial, float]]) -> None:
        """Show what is set, too: `shares` is called when metrics are read."""
        self._shares: Final = shares
        self._answers: Final = Tally(
            "forebay_trial_answers",
            "Requests that one of two pools dealt with, and how",
            (*_SIDE, "ending"),
        )
        self._finishes: Final = Tally(
            "forebay_trial_finishes", "Answers by why the model stopped", (*_SIDE, "finish")
        )
        self._seconds: Final = Histogram(
            "forebay_trial_seconds", "Until the end of an answer", _SIDE, TIME_BOUNDS_S
        )
        self._firsts: Final = Histogram(
            "forebay_trial_first_token_seconds",
            "Until the first piece of a streamed answer",
            _SIDE,
            TIME_BOUNDS_S,
        )
        self._tokens: Final = Histogram(
            "forebay_trial_answer_tokens", "Length of an answer, estimated", _SIDE, TOKEN_BOUNDS
        )
        self._likeness: Final = Histogram(
            "forebay_trial_likeness",
            "ROUGE-L of the two answers to one request",
            _PAIR,
            LIKENESS_BOUNDS,
        )
        self._time_ratio: Final = Histogram(
            "forebay_trial_time_ratio",
            "Time of the shadow's answer by that of the other",
            _PAIR,
            RATIO_BOUNDS,
        )
        self._length_ratio: Final = Histogram(
            "forebay_trial_length_ratio",
            "Length of the shadow's answer by that of the other",
            _PAIR,
            RATIO_BOUNDS,
        )
        self._pairs: Final = Tally(
            "forebay_trial_pairs",
            "Requests that both answered, and whether they stopped for the same reason",
            (*_PAIR, "finish"),
        )
        self._skipped: Final = Tally(
            "forebay_trial_skipped",
            "Requests that could not be compared, and why",
            ("pool", "new", "step", "reason"),
        )

    def collect(self) -> Iterable[Metric]:
        """Return what was counted, nothing as long as no pool was on its way in."""
        shares = GaugeMetricFamily(
            "forebay_trial_share",
            "Share of requests asked twice, or of tenants moved, as it is set",
            labels=("pool", "new", "step"),
        )
        for trial, share in self._shares().items():
            shares.add_metric((trial.old, trial.new, trial.step), share)
        families = chain.from_iterable(
            one.collect()
            for one in (
                *(self._answers, self._finishes, self._seconds, self._firsts, self._tokens),
                *(self._likeness, self._time_ratio, self._length_ratio, self._pairs),
                self._skipped,
            )
        )
        return [family for family in (shares, *families) if family.samples]

    def trial_heard(self, trial: Trial, pool: str, heard: Heard) -> None:
        """Count an answer of `pool`, which is one of the two."""
        labels = _side(trial, pool)
        self._answers.add((*labels, heard.ending))
        if heard.ending is not Ending.ANSWERED:
            return
        self._finishes.add((*labels, heard.finish or "none"))
        if trial.step is not Step.SHADOW:
            self._took(labels, heard)

    def trial_compared(self, trial: Trial, old: Heard, new: Heard, alike: float | None) -> None:
        """Count two answers to the same request; `alike` is None where neither has a text."""
        pair = (trial.old, trial.new)
        self._took(_side(trial, trial.old), old)
        self._took(_side(trial, trial.new), new)
        self._pairs.add((*pair, "same" if old.finish is new.finish else "different"))
        self._time_ratio.observe(pair, ONE * new.took_ns // max(old.took_ns, 1))
        if alike is not None:
            self._likeness.observe(pair, round(ONE * alike))
        if length := estimate_tokens(old.text):
            self._length_ratio.observe(pair, ONE * estimate_tokens(new.text) // length)

    def trial_skipped(self, trial: Trial, why: str) -> None:
        """Count an exchange that could not be compared."""
        self._skipped.add((trial.old, trial.new, trial.step, why))

    def _took(self, labels: Labels, heard: Heard) -> None:
        self._seconds.observe(labels, heard.took_ns)
        if heard.first_ns:
            self._firsts.observe(labels, heard.first_ns)
        if heard.text:
            self._tokens.observe(labels, ONE * estimate_tokens(heard.text))


def _side(trial: Trial, pool: str) -> Labels:
    return trial.old, trial.new, trial.step, "new" if pool == trial.new else "old"
