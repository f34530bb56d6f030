"""Counts in little memory come late at times, and hardly ever early."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.adapters.sightings import HIGHEST, LEAST_WIDTH, ROWS, STRETCHES, Sightings, Sketch

HOUR_NS = 3600 * 10**9
PATTERNS = 30_000


def number_of(key: bytes) -> int:
    """Return the same 64 bits in every process, for which Python's own hash is not made."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)


def early_among(patterns: Sequence[int], size: int, hours: float, most: int = 5) -> float:
    """Return which share of patterns counts `most` in an hour at some time, but was seen less."""
    sightings = Sightings(size, number_of)
    seen: dict[int, deque[int]] = {}
    early = set()
    for place, pattern in enumerate(patterns):
        now_ns = round(place * hours * HOUR_NS / len(patterns))
        times = seen.setdefault(pattern, deque(maxlen=most))
        times.append(now_ns)
        counted = sightings.count(b"%d" % pattern, 3600, now_ns)
        if counted >= most > sum(time_ns > now_ns - HOUR_NS for time_ns in times):
            early.add(pattern)
    return len(early) / len(seen)


def evenly(each: int) -> list[int]:
    """Return every pattern `each` times, in any order."""
    patterns = [pattern for pattern in range(PATTERNS) for _ in range(each)]
    random.Random(1).shuffle(patterns)
    return patterns


def unevenly(exponent: float) -> list[int]:
    """Return patterns as the words of a text are: few often, many once (Zipf)."""
    weights = accumulate((rank + 1) ** -exponent for rank in range(PATTERNS))
    return random.Random(1).choices(range(PATTERNS), cum_weights=list(weights), k=4 * PATTERNS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2**20, 2**17], ids=["1 MiB", "128 KiB"])
@pytest.mark.parametrize("load", ["all 4 times", "zipf 1.1", "zipf 0.8"])
def test_hardly_any_pattern_is_counted_too_often(load: str, size: int) -> None:
    """Below 1 % in any load and any size: even where each was seen just one time too few."""
    loads = {
        "all 4 times": lambda: evenly(4),
        "zipf 1.1": lambda: unevenly(1.1),
        "zipf 0.8": lambda: unevenly(0.8),
    }
    assert early_among(loads[load](), size, hours=1.5) < 0.01


@pytest.mark.slow
def test_most_patterns_are_counted_right_where_there_is_room() -> None:
    """Of patterns seen 5 times in half an hour more than 99 % are counted 5 times or more."""
    sightings = Sightings(2**22, number_of)
    patterns = evenly(5)
    last = {}
    for place, pattern in enumerate(patterns):
        now_ns = round(place * 0.5 * HOUR_NS / len(patterns))
        last[pattern] = sightings.count(b"%d" % pattern, 3600, now_ns)
    assert [] == [count for count in last.values() if count < 5]
    assert len([count for count in last.values() if count > 5]) < 0.01 * PATTERNS


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_no_count_rests_on_what_is_older_than_the_window(pauses_s: list[int]) -> None:
    """However sightings of one pattern are spread, it has no more than the window holds."""
    sketch = Sketch(60 * 10**9, 2**16)
    times: list[int] = []
    now_ns = 0
    for pause_s in pauses_s:
        now_ns += pause_s * 10**9
        times.append(now_ns)
        counted = sketch.count(7, now_ns)
        assert counted <= sum(time_ns > now_ns - 60 * 10**9 for time_ns in times)
        assert counted >= sum(time_ns > now_ns - 52 * 10**9 for time_ns in times)


def test_a_stretch_that_is_full_ends_early() -> None:
    """More patterns than the memory holds are forgotten sooner, not counted wrong."""
    sketch = Sketch(HOUR_NS, 0)
    counts = [sketch.count(number_of(b"%d" % pattern), 0) for pattern in range(20_000)]
    assert len([count for count in counts if count > 1]) < 200
    assert sketch.shortened > 50
    assert ROWS * STRETCHES * LEAST_WIDTH == sketch.size


def test_a_counter_does_not_begin_again_from_nothing() -> None:
    """A byte holds 255; a pattern seen more often stays at that."""
    sketch = Sketch(HOUR_NS, 2**16)
    counts = [sketch.count(7, 0) for _ in range(HIGHEST + 10)]
    assert [*range(1, HIGHEST + 1), *[HIGHEST] * 10] == counts


def test_windows_of_different_length_are_counted_apart() -> None:
    """Two profiles with two windows share the memory, not the counts."""
    sightings = Sightings(2**16, number_of)
    counts = [
        [sightings.count(b"key", window_s, now_s * 10**9) for now_s in (100, 140, 180)]
        for window_s in (60, 600)
    ]
    assert [[1, 2, 2], [1, 2, 3]] == counts
    assert sightings.size <= 2**16


def test_one_more_window_begins_all_anew() -> None:
    """The memory is parted again, which only makes counts come late."""
    sightings = Sightings(2**16, number_of)
    sightings.count(b"key", 60, 0)
    sightings.count(b"key", 600, 0)
    assert 1 == sightings.count(b"key", 60, 0)
    assert 2 == sightings.count(b"key", 60, 0)


def test_a_window_that_no_profile_has_any_more_gives_its_memory_back() -> None:
    """Settings may change as often as they like."""
    sightings = Sightings(2**16, number_of)
    for change in range(100):
        sightings.count(b"key", 60 + change, change * 1000 * 10**9)
    assert 0 == sightings.shortened
    for number in range(8):
        sightings.count(b"key", 159, (99_000 + number * 20) * 10**9)
    assert 2**16 == sightings.size
