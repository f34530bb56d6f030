"""Read out of the metrics how the cache does: hits by profile, what they save, and the store."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client.metrics_core import Metric

Labels: TypeAlias = Mapping[str, str]
Samples: TypeAlias = dict[str, list[tuple[Labels, float]]]

QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99}
BREAKER: Final = {0: "closed", 1: "probing", 2: "open"}


def figures_of(families: Iterable[Metric]) -> dict[str, Any]:
    """Return what the metrics of one process say of its cache, since it started.

    Shares are of 1, times in the unit of their name; a share of nothing is None.
    """
    samples: Samples = defaultdict(list)
    for family in families:
        for sample in family.samples:
            samples[sample.name].append((sample.labels, sample.value))
    breaker = samples.get("forebay_store_breaker")
    return {
        "started_at": _only(samples, "process_start_time_seconds"),
        "profiles": _profiles(samples),
        "coalesced": _by(samples, "forebay_coalesced_total", "outcome"),
        "evictions": _by(samples, "forebay_store_evictions_total", "reason"),
        "unreadable": {
            **_by(samples, "forebay_cache_unreadable_total", "reason"),
            **_by(samples, "forebay_store_unreadable_total", "reason"),
        },
        "dropped_writes": _by(samples, "forebay_store_dropped_writes_total", "store"),
        "errors": _by(samples, "forebay_store_errors_total", "op"),
        "bypassed": _by(samples, "forebay_store_bypassed_total", "op"),
        "latency": _latency(samples),
        "breaker": BREAKER.get(int(breaker[0][1])) if breaker else None,
    }


def _only(samples: Samples, name: str) -> float | None:
    found = samples.get(name)
    return found[0][1] if found else None


def _by(samples: Samples, name: str, label: str) -> dict[str, int]:
    """Return a counter by one of its labels; series that never counted are left out."""
    sums: dict[str, int] = defaultdict(int)
    for labels, value in samples.get(name, ()):
        if value:
            sums[labels[label]] += int(value)
    return dict(sorted(sums.items()))


def _profiles(samples: Samples) -> dict[str, dict[str, Any]]:
    profiles: dict[str, dict[str, Any]] = {}
    for labels, value in samples.get("forebay_cache_total", ()):
        profile = profiles.setdefault(labels["profile"], _nothing())
        profile[labels["outcome"]] = int(value)
    for labels, value in samples.get("forebay_cache_saved_tokens_total", ()):
        profile = profiles.setdefault(labels["profile"], _nothing())
        profile["saved_input_tokens" if labels["direction"] == "in" else "saved_output_tokens"] = (
            int(value)
        )
    for labels, value in samples.get("forebay_cache_saved_seconds_total", ()):
        profiles.setdefault(labels["profile"], _nothing())["saved_s"] = value
    for labels, value in samples.get("forebay_cache_admissions_total", ()):
        if value:
            profile = profiles.setdefault(labels["profile"], _nothing())
            profile["admissions"][labels["result"]] = int(value)
    for profile in profiles.values():
        # A bypass was not looked for: it says nothing of what is kept.
        asked = profile["hit"] + profile["miss"]
        profile["hit_rate"] = profile["hit"] / asked if asked else None
    return dict(sorted(profiles.items()))


def _nothing() -> dict[str, Any]:
    return {
        **dict.fromkeys(("hit", "miss", "bypass", "saved_input_tokens", "saved_output_tokens"), 0),
        "saved_s": 0.0,
        "admissions": {},
    }


def _latency(samples: Samples) -> dict[str, dict[str, Any]]:
    """Return how often each operation was asked of a store, and the quantiles of its time."""
    buckets: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in samples.get("forebay_store_seconds_bucket", ()):
        buckets[f"{labels['store']} {labels['op']}"].append((float(labels["le"]), value))
    found: dict[str, dict[str, Any]] = {}
    for name, cumulative in sorted(buckets.items()):
        cumulative.sort()
        if count := int(cumulative[-1][1]):
            quantiles = {key: quantile(cumulative, at) * 1000 for key, at in QUANTILES.items()}
            found[name] = {"count": count, **quantiles}
    return found


def quantile(cumulative: list[tuple[float, float]], share: float) -> float:
    """Return the quantile of a histogram, its bounds and how many are below each, in order.

    Within a bucket values are taken for spread evenly, and those above the last bound for it, as
    Prometheus's `histogram_quantile` does.
    """
    wanted = share * cumulative[-1][1]
    at = bisect_left([below for _, below in cumulative], wanted)
    bound, below = cumulative[at]
    lower, before = cumulative[at - 1] if at else (0.0, 0.0)
    if bound == float("inf"):
        return lower
    return lower + (bound - lower) * (wanted - before) / ((below - before) or 1.0)
