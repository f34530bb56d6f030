"""Read out of metrics how pools on their way in do, and say it in a sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client.metrics_core import Metric

from ext_proc.cache_figures import quantile

Key: TypeAlias = tuple[str, str, str]
"""The pool whose place is taken, the one that takes it, and the step."""
Cumulative: TypeAlias = list[tuple[float, float]]

FEW: Final = 30
"""Of fewer answers than these no sentence is made: a slow one among them would be the news."""
# A shadow goes a longer way, by the egress listener: some milliseconds of a short answer.
ALIKE_WITHIN: Final = 0.05
LONGER_BY: Final = 0.10
ENDINGS: Final = ("answered", "refused", "failed", "late", "left")
_PREFIX: Final = "forebay_trial_"


def figures_of(families: Iterable[Metric]) -> list[dict[str, Any]]:
    """Return what the metrics of one process or several say of each trial.

    Shares are of 1, times in seconds; what nothing is known of is None. Those of several processes
    are added up.
    """
    sums: dict[tuple[str, Labels], float] = defaultdict(float)
    shares: dict[Key, float] = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.startswith(_PREFIX):
                continue
            name = sample.name.removeprefix(_PREFIX)
            if name == "share":
                shares[_key(sample.labels)] = sample.value
            else:
                sums[name, tuple(sorted(sample.labels.items()))] += sample.value
    samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for (name, labels), value in sums.items():
        samples[name].append((dict(labels), value))
    keys = {
        _key(labels) for name in ("answers_total", "skipped_total") for labels, _ in samples[name]
    }
    return [_trial(key, shares, samples) for key in sorted(keys | shares.keys())]


Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = Mapping[str, list[tuple[dict[str, str], float]]]


def _key(labels: Mapping[str, str]) -> Key:
    return labels["pool"], labels["new"], labels["step"]


def _trial(key: Key, shares: Mapping[Key, float], samples: Samples) -> dict[str, Any]:
    pool, new, step = key
    here = {"pool": pool, "new": new, "step": step}
    trial: dict[str, Any] = {
        "step": step,
        "share": shares.get(key),
        "old": {"pool": pool, **_side({**here, "side": "old"}, samples)},
        "new": {"pool": new, **_side({**here, "side": "new"}, samples)},
        "pairs": _pairs({"pool": pool, "new": new}, samples) if step == "shadow" else None,
        "skipped": _by("skipped_total", "reason", here, samples),
    }
    trial["differences"] = differences(trial)
    trial["verdict"] = verdict(trial)
    return trial


def _side(here: Mapping[str, str], samples: Samples) -> dict[str, Any]:
    endings = _by("answers_total", "ending", here, samples)
    asked = sum(endings.values()) - endings.get("left", 0)
    errors = endings.get("failed", 0) + endings.get("late", 0)
    return {
        **{ending: endings.get(ending, 0) for ending in ENDINGS},
        "asked": asked,
        "errors": errors,
        "error_rate": errors / asked if asked else None,
        "seconds": _spread("seconds", here, samples),
        "first_token_seconds": _spread("first_token_seconds", here, samples),
        "tokens": _spread("answer_tokens", here, samples),
        "finishes": _by("finishes_total", "finish", here, samples),
    }


def _pairs(here: Mapping[str, str], samples: Samples) -> dict[str, Any]:
    finishes = _by("pairs_total", "finish", here, samples)
    compared = sum(finishes.values())
    return {
        "compared": compared,
        "same_finish": finishes.get("same", 0) / compared if compared else None,
        "likeness": _spread("likeness", here, samples),
        "time_ratio": _spread("time_ratio", here, samples),
        "length_ratio": _spread("length_ratio", here, samples),
    }


def _by(name: str, label: str, here: Mapping[str, str], samples: Samples) -> dict[str, int]:
    found = {
        labels[label]: int(value)
        for labels, value in samples.get(name, ())
        if here.items() <= labels.items() and value
    }
    return dict(sorted(found.items()))


def _spread(name: str, here: Mapping[str, str], samples: Samples) -> dict[str, Any] | None:
    """Return the mean of a histogram, which is exact, and quantiles, which are near."""
    counts: Cumulative = sorted(
        (float(labels["le"]), value)
        for labels, value in samples.get(f"{name}_bucket", ())
        if here.items() <= labels.items()
    )
    totals = [value for labels, value in samples.get(f"{name}_sum", ()) if labels == here]
    if not counts or not counts[-1][1] or not totals:
        return None
    count = counts[-1][1]
    quantiles = {
        key: quantile(counts, at) for key, at in (("p10", 0.1), ("p50", 0.5), ("p95", 0.95))
    }
    below = [0.0, *(value for _, value in counts)]
    return {
        "count": int(count),
        "mean": totals[0] / count,
        **quantiles,
        "buckets": [
            [bound, int(upper - lower)]
            for (bound, upper), lower in zip(counts, below, strict=False)
            if upper > lower and bound != float("inf")
        ],
    }


# --- What it means -------------------------------------------------------------------------------


def differences(trial: Mapping[str, Any]) -> dict[str, float | None]:
    """Return how the pool on its way in differs, of 1; None where too little is known.

    Of a shadow the median of the ratios, request by request; of a canary the ratio of medians.
    """
    old, new, pairs = trial["old"], trial["new"], trial["pairs"]
    if pairs:
        slower = pairs["time_ratio"]["p50"] - 1 if pairs["time_ratio"] else None
        longer = pairs["length_ratio"]["p50"] - 1 if pairs["length_ratio"] else None
    else:
        slower = _more(old["seconds"], new["seconds"])
        longer = _more(old["tokens"], new["tokens"])
    rates = new["error_rate"], old["error_rate"]
    return {
        "slower": slower,
        "later": _more(old["first_token_seconds"], new["first_token_seconds"]),
        "longer": longer,
        "errors": None if None in rates else rates[0] - rates[1],
        "likeness": pairs["likeness"]["mean"] if pairs and pairs["likeness"] else None,
    }


def _more(old: Mapping[str, float] | None, new: Mapping[str, float] | None) -> float | None:
    return new["p50"] / old["p50"] - 1 if old and new and old["p50"] else None


def verdict(trial: Mapping[str, Any]) -> str:
    """Return in a sentence how the pool on its way in does."""
    new, old = trial["new"], trial["old"]
    name = trial["step"]
    if new["asked"] < FEW or old["asked"] < FEW:
        asked = min(new["asked"], old["asked"])
        return f"too few to judge by: {asked} of the {FEW} that it takes"
    found = trial["differences"]
    said = [f"{name} {_speed(found['slower'], 'slower', 'faster', 'as fast')}"]
    if found["later"] is not None and abs(found["later"]) >= ALIKE_WITHIN:
        said.append(f"first token {_speed(found['later'], 'later', 'sooner', '')}")
    if found["likeness"] is not None:
        said.append(f"answers {found['likeness']:.2f} alike")
    if found["longer"] is not None and abs(found["longer"]) >= LONGER_BY:
        said.append(_speed(found["longer"], "longer", "shorter", ""))
    said.append(f"{_errors(new)} ({old['errors']:,} of {old['asked']:,} in {old['pool']})")
    return ", ".join(said)


def _errors(side: Mapping[str, Any]) -> str:
    return f"{side['errors']:,} of {side['asked']:,} errors"


def _speed(more: float | None, above: str, below: str, same: str) -> str:
    if more is None:
        return "answered nothing to time"
    if same and abs(more) < ALIKE_WITHIN:
        return same
    return f"{above if more > 0 else below} by {abs(more):.0%}".replace("%", " %")
