"""When the pieces of a stream are due, by a clock that is only told."""

from __future__ import annotations

from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Delta
from filters.pacing import Pace, Pacer, cut

MS = 1_000_000
PACE = Pace(most=16, every_ns=100 * MS, tail_ns=300 * MS, most_bytes=1 << 18)
START_NS = 10**12


def words(count: int, *, begin: int = 0, tokens: int = 1) -> list[tuple[Delta, int]]:
    return [(Delta(b"<%d>" % number), tokens) for number in range(begin, begin + count)]


def raws(deltas: list[Delta]) -> bytes:
    return b"".join(delta.raw for delta in deltas)


def flow(pacer: Pacer, until_ns: int) -> list[tuple[int, list[Delta]]]:
    """Return the frames that are due until a time, each with its own."""
    frames = []
    while (wake_ns := pacer.wake_ns()) is not None and wake_ns <= until_ns:
        if frame := pacer.due(wake_ns):
            frames.append((wake_ns, frame))
    return frames


def letters(lump: Delta, tokens: int, size: int) -> list[tuple[Delta, int]]:
    """Cut a lump of a byte for each token."""
    assert tokens == len(lump.raw)
    return [
        (Delta(lump.raw[at : at + size]), len(lump.raw[at : at + size]))
        for at in range(0, tokens, size)
    ]


def test_the_first_token_goes_at_once() -> None:
    """Nothing went before it."""
    pacer = Pacer(PACE, 80)
    assert b"<0>" == raws(pacer.feed(START_NS, words(1)))
    assert None is pacer.wake_ns()


def test_what_comes_no_faster_than_the_rate_never_waits() -> None:
    """A token every 12.5 ms is 80 a second."""
    pacer = Pacer(PACE, 80)
    for number in range(200):
        at_ns = START_NS + number * 12_500_000
        assert b"<%d>" % number == raws(pacer.feed(at_ns, words(1, begin=number)))


def test_a_burst_flows_at_the_rate() -> None:
    """Eight tokens at once and eight every 100 ms: 80 a second."""
    pacer = Pacer(PACE, 80)
    at_once = pacer.feed(START_NS, words(80))
    frames = flow(pacer, START_NS + 10**9)
    assert 8 == len(at_once)
    assert [8] * 9 == [len(frame) for _, frame in frames]
    assert [START_NS + beat * 100 * MS for beat in range(1, 10)] == [at_ns for at_ns, _ in frames]
    assert raws([delta for delta, _ in words(80)]) == raws(at_once) + b"".join(
        raws(frame) for _, frame in frames
    )


@pytest.mark.parametrize("rate", [0.5, 5, 80, 120, 1000, 10_000])
def test_no_frame_has_more_tokens_than_it_may(rate: float) -> None:
    """And while tokens wait one comes at least as often as it has to, however slow the rate."""
    pacer = Pacer(PACE, rate)
    frames = [(START_NS, pacer.feed(START_NS, words(100)))]
    frames += flow(pacer, START_NS + 10 * 10**9)
    times = [at_ns for at_ns, _ in frames]
    assert max(len(frame) for _, frame in frames) <= 16
    assert all(b - a <= 100 * MS for a, b in pairwise(times))
    assert 100 == sum(len(frame) for _, frame in frames)


@pytest.mark.parametrize("count", [1, 10, 100, 5_000])
@pytest.mark.parametrize("rate", [0.5, 80])
def test_no_stream_ends_later_than_its_tail(count: int, rate: float) -> None:
    """In frames of no more than they may have, however much waits; the last is no heap."""
    pacer = Pacer(PACE, rate)
    frames = [(START_NS, pacer.feed(START_NS, words(count)))]
    frames.append((START_NS, pacer.end(START_NS)))
    frames += flow(pacer, START_NS + 300 * MS)
    assert None is pacer.wake_ns()
    assert count == sum(len(frame) for _, frame in frames)
    assert max(len(frame) for _, frame in frames) <= 16


def test_a_call_that_comes_late_does_not_slow_the_flow() -> None:
    """What was due meanwhile comes in further frames."""
    pacer = Pacer(PACE, 80)
    pacer.feed(START_NS, words(80))
    late_ns = START_NS + 190 * MS
    assert 8 == len(pacer.due(late_ns))
    assert [] == pacer.due(late_ns)
    assert START_NS + 200 * MS == pacer.wake_ns()


def test_what_has_no_tokens_keeps_its_place() -> None:
    """It waits behind a token, goes with it, and takes no time."""
    pacer = Pacer(PACE, 80)
    pacer.feed(START_NS, words(30))
    assert [] == pacer.feed(START_NS, [(Delta(b"<finish>"), 0), (Delta(b"<done>"), 0)])
    frames = flow(pacer, START_NS + 10**9)
    assert raws(frames[-1][1]).endswith(b"<29><finish><done>")
    assert b"<x>" == raws(pacer.feed(START_NS + 10**9, [(Delta(b"<x>"), 0)]))


def test_what_is_too_much_to_keep_goes() -> None:
    """The oldest first; what is left is within the bound."""
    pacer = Pacer(Pace(16, 100 * MS, 300 * MS, most_bytes=1_000), 80)
    gone = pacer.feed(START_NS, [(Delta(b"x" * 100), 1) for _ in range(50)])
    gone += pacer.feed(START_NS, [(Delta(b"y" * 100), 1) for _ in range(50)])
    assert 1_000 == pacer.held_bytes
    assert 90 == len(gone)


def test_the_latest_frame_is_remembered() -> None:
    """By how much it went later than it was due, until the upstream has said all: then it hurries.

    What goes sooner than it was due before is not late.
    """
    pacer = Pacer(PACE, 80)
    pacer.feed(START_NS, words(50))
    late_ns = [0]
    for after_ms in (100, 207, 300):
        pacer.due(START_NS + after_ms * MS)
        late_ns.append(pacer.late_ns)
    assert [0, 0, 7 * MS, 7 * MS] == late_ns
    pacer.end(START_NS + 390 * MS)
    pacer.due(START_NS + 689 * MS)
    assert 7 * MS == pacer.late_ns


def test_what_was_not_here_yet_was_not_due() -> None:
    """What comes while the flow still makes up for a large piece is not late, and no heap."""
    pacer = Pacer(PACE, 80)
    pacer.feed(START_NS, words(1, tokens=60))
    came_ns = START_NS + 500 * MS
    assert [] == pacer.feed(came_ns, words(3, begin=1))
    assert came_ns == pacer.wake_ns()
    assert [(came_ns, b"<1>"), (came_ns + 100 * MS, b"<2>")] == [
        (at_ns, raws(frame))
        for at_ns in (came_ns, came_ns + 100 * MS)
        if (frame := pacer.due(at_ns) + pacer.due(at_ns))
    ]
    assert 0 == pacer.late_ns


def test_letting_go_returns_all_that_waits() -> None:
    """In its order, and nothing waits any more."""
    pacer = Pacer(PACE, 80)
    gone = pacer.feed(START_NS, words(50)) + pacer.let_go()
    assert raws([delta for delta, _ in words(50)]) == raws(gone)
    assert (None, 0, 0) == (pacer.wake_ns(), pacer.held_bytes, pacer.held_tokens)


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30)), max_size=60),
    st.floats(0.5, 5_000),
    st.integers(1, 40),
)
def test_nothing_is_lost_repeated_or_late(
    arrivals: list[tuple[int, int]], rate: float, most: int
) -> None:
    """Whatever comes when: all of it goes, in its order, by the end of the tail."""
    pacer = Pacer(Pace(most, 100 * MS, 300 * MS, most_bytes=1 << 18), rate)
    now_ns, gone, came = START_NS, [], []
    for number, (pause_ms, tokens) in enumerate(arrivals):
        now_ns += pause_ms * MS
        for _, frame in flow(pacer, now_ns):
            gone += frame
        came.append(Delta(b"<%d>" % number))
        gone += pacer.feed(now_ns, [(came[-1], tokens)])
    gone += pacer.end(now_ns)
    for _, frame in flow(pacer, now_ns + 300 * MS):
        gone += frame
    assert raws(came) == raws(gone)
    assert (None, 0, 0) == (pacer.wake_ns(), pacer.held_bytes, pacer.held_tokens)


# What joins with what stands beside it, by every rule of the annex, and what never does.
JOINING = "ab \r\n你👩\u200d👧\u0301각가각🇩🇪िक्न\u0600\ufe0f"


@given(
    st.one_of(st.text(max_size=300), st.text(JOINING, max_size=60)),
    st.integers(1, 100),
    st.integers(1, 20),
)
def test_a_text_is_cut_between_graphemes(text: str, tokens: int, most: int) -> None:
    """The pieces join to it, and none begins in the midst of what is read as one character."""
    pieces = cut(text, tokens, most)
    assert text == "".join(pieces)
    ends = {0} | {found.end() for found in regex.finditer(r"\X", text)}
    at = 0
    for piece in pieces:
        assert at in ends
        at += len(piece)


def test_words_stay_whole_where_pieces_are_long_enough() -> None:
    """A piece ends behind a word where one ends in its second half."""
    assert ["one two", " three", " four", " five"] == cut("one two three four five", 5, 2)


LUMP = bytes(range(65, 85))


def test_of_a_first_lump_one_frame_goes_at_once() -> None:
    """And the others at the rate."""
    pacer = Pacer(PACE, 80, letters)
    at_once = pacer.take_lump(START_NS, Delta(LUMP), 20)
    frames = [raws(frame) for _, frame in flow(pacer, START_NS + 10**9)]
    assert [LUMP[:8], LUMP[8:16], LUMP[16:]] == [raws(at_once), *frames]
    assert (0, 0) == (pacer.held_tokens, pacer.held_bytes)


def test_a_first_lump_goes_at_once_behind_what_has_no_tokens() -> None:
    """Most streams begin with an event that says whose words they are, and nothing else."""
    pacer = Pacer(PACE, 80, letters)
    pacer.feed(START_NS, [(Delta(b"<role>"), 0)])
    assert LUMP[:8] == raws(pacer.take_lump(START_NS + 10**9, Delta(LUMP), 20))


def test_a_later_lump_is_due_when_it_comes_and_cut_when_it_goes() -> None:
    """Whoever asks what is due does both, for many streams in a row."""
    pacer = Pacer(PACE, 80, letters)
    pacer.feed(START_NS, words(1))
    later_ns = START_NS + 10**9
    assert [] == pacer.take_lump(later_ns, Delta(LUMP), 20)
    assert (later_ns, 20, 20) == (pacer.wake_ns(), pacer.held_tokens, pacer.held_bytes)
    frames = [(at_ns, raws(frame)) for at_ns, frame in flow(pacer, later_ns + 10**9)]
    beats = [later_ns + beat * 100 * MS for beat in range(3)]
    assert list(zip(beats, [LUMP[:8], LUMP[8:16], LUMP[16:]], strict=True)) == frames


def test_a_lump_waits_behind_what_came_before_it() -> None:
    """At the rate that is set when its turn comes; then more tokens make a frame."""
    pacer = Pacer(PACE, 80, letters)
    pacer.feed(START_NS, words(16))
    assert [] == pacer.take_lump(START_NS, Delta(LUMP), 20)
    pacer.set_rate(160)
    frames = [raws(frame) for _, frame in flow(pacer, START_NS + 10**9)]
    assert [raws([delta for delta, _ in words(8, begin=8)]), LUMP[:16], LUMP[16:]] == frames


def test_lumps_beyond_the_bound_go_whole() -> None:
    """The oldest first; of what is left everything can be taken back, whole."""
    pacer = Pacer(Pace(16, 100 * MS, 300 * MS, most_bytes=50), 80, letters)
    gone = pacer.feed(START_NS, words(1))
    for _ in range(4):
        gone += pacer.take_lump(START_NS, Delta(LUMP), 20)
    assert [LUMP, LUMP] == [delta.raw for delta in gone[1:]]
    assert [LUMP, LUMP] == [delta.raw for delta in pacer.let_go()]


def test_what_pieces_of_a_lump_have_too_much_goes_with_the_first() -> None:
    """Each repeats what stands round its text: what waits becomes more when a lump is cut."""

    def repeat(lump: Delta, tokens: int, size: int) -> list[tuple[Delta, int]]:
        return [(Delta(b"x" * 100 + one.raw), its) for one, its in letters(lump, tokens, 1)]

    pacer = Pacer(Pace(16, 100 * MS, 300 * MS, most_bytes=1_000), 80, repeat)
    pacer.feed(START_NS, words(1))
    pacer.take_lump(START_NS + 10**9, Delta(LUMP), 20)
    gone = pacer.due(START_NS + 10**9)
    assert (11, 9 * 101, 9) == (len(gone), pacer.held_bytes, pacer.held_tokens)


def test_a_lump_that_cannot_be_cut_goes_whole() -> None:
    """A cutter says so by giving it back."""
    pacer = Pacer(PACE, 80, lambda lump, tokens, _: [(lump, tokens)])
    assert LUMP == raws(pacer.take_lump(START_NS, Delta(LUMP), 20))


def test_what_a_cutter_fails_at_is_not_lost() -> None:
    """It waits as it came."""

    def fail(lump: Delta, tokens: int, size: int) -> list[tuple[Delta, int]]:
        raise ValueError("no")

    pacer = Pacer(PACE, 80, fail)
    with pytest.raises(ValueError, match="no"):
        pacer.take_lump(START_NS, Delta(LUMP), 20)
    assert [LUMP] == [delta.raw for delta in pacer.let_go()]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 200))),
    st.sampled_from([8.0, 80.0, 300.0]),
)
def test_lumps_and_pieces_come_in_their_order(
    said: list[tuple[int, bool, int]], rate: float
) -> None:
    """Whole to the last byte, whenever they are asked for; and in time once the model ends."""
    pacer = Pacer(PACE, rate, letters)
    now_ns, came, gone = START_NS, b"", b""
    for number, (tokens, is_lump, after_ms) in enumerate(said):
        raw = bytes([65 + number % 26]) * tokens
        came += raw
        take = pacer.take_lump if is_lump else lambda at, one, n: pacer.feed(at, [(one, n)])
        gone += raws(take(now_ns, Delta(raw), tokens))
        now_ns += after_ms * MS
        gone += raws([delta for _, frame in flow(pacer, now_ns) for delta in frame])
        assert came == gone + raws([delta for delta, _ in pacer._queue])
        assert len(came) - len(gone) == pacer.held_bytes == pacer.held_tokens
    gone += raws(pacer.end(now_ns))
    gone += raws([delta for _, frame in flow(pacer, now_ns + 300 * MS) for delta in frame])
    assert came == gone
