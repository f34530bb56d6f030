"""How fast a stream flows, by a clock that is only told."""

from __future__ import annotations

import pytest

from filters.tempo import Tempo

MS = 1_000_000


def speak(tempo: Tempo, *, tokens: int, every_ms: int, count: int, begin_ns: int = 0) -> int:
    """Have an upstream speak, and the rate follow it; return when it ended."""
    now_ns = begin_ns
    for _ in range(count):
        now_ns += every_ms * MS
        tempo.hear(now_ns, tokens)
        tempo.follow(now_ns, 80, 0)
    return now_ns


@pytest.mark.parametrize(("tokens", "every_ms"), [(1, 25), (4, 100), (20, 500)])
def test_the_upstreams_rate_is_tokens_through_time(tokens: int, every_ms: int) -> None:
    """Forty a second, in single ones or in lumps."""
    tempo = Tempo(80)
    speak(tempo, tokens=tokens, every_ms=every_ms, count=20_000 // every_ms)
    assert tempo.upstream == pytest.approx(40, rel=0.15)
    assert tempo.rate == pytest.approx(44, rel=0.15)


def test_a_fast_upstream_flows_at_the_most_there_is() -> None:
    """It may be as fast as it likes."""
    tempo = Tempo(80)
    speak(tempo, tokens=1, every_ms=2, count=5_000)
    assert 80 == pytest.approx(tempo.rate)


def test_a_silence_is_not_taken_for_a_slow_model() -> None:
    """A tool or a thought took the time: half a second of it counts."""
    tempo = Tempo(80)
    now_ns = speak(tempo, tokens=1, every_ms=25, count=400)
    before = tempo.upstream
    assert before is not None
    tempo.hear(now_ns + 60_000 * MS, 1)
    assert tempo.upstream is not None
    assert tempo.upstream > before / 2


def test_little_says_nothing() -> None:
    """Less than eight tokens, or a quarter of a second."""
    tempo = Tempo(80)
    speak(tempo, tokens=1, every_ms=30, count=5)
    assert None is tempo.upstream
    assert 80 == tempo.rate


def test_the_rate_falls_back_smoothly() -> None:
    """No step is more than the share of a second that passed."""
    tempo = Tempo(120)
    tempo.follow(0, 120, 0)
    rates = [tempo.follow(beat * 100 * MS, 80, 0) for beat in range(1, 40)]
    steps = [before - after for before, after in zip([120.0, *rates], rates, strict=False)]
    assert all(0 <= step <= 4.01 for step in steps)
    assert 80 == pytest.approx(rates[-1], abs=1)


def test_what_waits_hurries_the_rate() -> None:
    """So that it is gone in about a second, as far as the most allows."""
    tempo = Tempo(80)
    now_ns = speak(tempo, tokens=1, every_ms=100, count=200)
    for beat in range(1, 20):
        tempo.follow(now_ns + beat * 100 * MS, 80, 60)
    assert tempo.rate > 50
