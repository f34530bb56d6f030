"""`forebay bench pacing` speaks, listens, and holds what it heard against what is promised."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from ext_proc import cli
from ext_proc.config import load
from ext_proc.tools.bench_pacing import page
from ext_proc.tools.pacing_client import Heard, Kept, Listening, frames_of, heard, request, wrong
from ext_proc.tools.pacing_goals import figures_of, goals, median
from ext_proc.tools.pacing_run import CASES, PROFILES, Seen, bootstrap, late_us
from ext_proc.tools.pacing_speech import (
    LATE,
    SPEECHES,
    WORD,
    Mouth,
    Speaker,
    chunk,
    event,
)
from ext_proc.tools.queue_goals import Goal

MS = 1_000_000
GAP = "gap between frames P99, of the target"
FIRST = "first token P99, beyond that of streams nobody reads"
END = "end of the stream P99, beyond that of streams nobody reads"
ADDED, BROKEN = "CPU that pace adds to a frame", "streams that did not come whole"
ASKED = Listening(0, "/p/chat", "fits", 2, 7.0, (1, 2))
HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def seen(name: str = "whole", *, us: float = 1e6, late_us: int = 0, **changes: Any) -> Seen:
    """Return what a case showed in a window of ten thousand frames and twelve thousand events."""
    figures: dict[str, Any] = {
        "seconds": 10.0, "frames": 10_000, "gaps_us": [100_000] * 100, "firsts_us": [900] * 100,
        "ends_us": [800] * 100, "read_late_us": [10], "sent_late_us": [20],
        "cpu_ns": (round(us * 1e3), 5 * MS), "errors": {},
    }  # fmt: skip
    return Seen(Heard(**{**figures, **changes}), 12_000.0, [late_us], 0.5)


def held(**found: Seen) -> Mapping[tuple[str, str], Goal]:
    named = {name.replace("_", " "): one for name, one in found.items()}
    return {(goal.load, goal.what): goal for goal in goals(figures_of([named]))}


# --- Speaking ------------------------------------------------------------------------------------


@pytest.fixture
def mouth() -> Iterator[tuple[Mouth, socket.socket]]:
    """Return who answers on a connection, and its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Mouth(ours), theirs


@pytest.mark.parametrize("name", SPEECHES)
def test_a_speech_is_as_long_as_it_says(name: str, mouth: tuple[Mouth, socket.socket]) -> None:
    """And its events come when they are to, behind one another."""
    speaks, hears = mouth
    asked = request(msgspec.structs.replace(ASKED, speech=name), 0)
    assert None is speaks.hear(asked[:90], 0)
    at = speaks.hear(asked[90:], 0)
    times, came = [], hears.recv(1 << 20)
    while at is not None:
        times.append(at)
        at = speaks.speak(at, at + 2_000)
        came += hears.recv(1 << 20)
    assert "" == wrong(came, SPEECHES[name].words(7.0))
    assert all(at < later for at, later in pairwise(times))
    assert pytest.approx(7.0, abs=0.02) == (times[-1] - times[0]) / 1e9
    assert b'"id":"late 2 2 ' in came
    assert (late := LATE.search(came)) is not None
    assert SPEECHES[name].fits(7.0) * SPEECHES[name].events == len(late[1].split())


def test_whoever_asks_is_answered_and_forgotten_when_it_leaves() -> None:
    """All by one thread."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        speaker = Speaker(listening)
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(request(ASKED, 0))
            client.setblocking(False)
            came = b""
            while WORD.encode() not in came:
                speaker.turn()
                try:
                    came += client.recv(1 << 16)
                except BlockingIOError:
                    continue
            assert 1 == len(speaker.mouths)
        while speaker.mouths:
            speaker.turn()
    assert came.startswith(b"HTTP/1.1 200 OK\r\n")


# --- Hearing -------------------------------------------------------------------------------------


def stream(pieces: Mapping[int, bytes]) -> Kept:
    """Return a stream whose pieces came at these milliseconds, and were read one later."""
    times_ns = [at * MS for at in pieces]
    return times_ns, [at + MS for at in times_ns], list(pieces.values())


def whole(gap_ms: int) -> Kept:
    """Return a stream that is whole; it was sent 3 ms before it came, and its end 250."""
    words = SPEECHES["fits"].words(ASKED.seconds)
    ends = 1_000 + gap_ms * words
    pieces = {1_000: HEAD + chunk(event(WORD, f"@{997 * MS}"))}
    pieces |= {1_000 + gap_ms * number: chunk(event(WORD)) for number in range(1, words)}
    end = chunk(event("", f"late 5 7 @{(ends - 250) * MS}")) + chunk(b"data: [DONE]\n\n")
    return stream({**pieces, ends: end})


def test_gaps_count_while_all_flow() -> None:
    """By the kernel's clock; CPU time is of the same window, and others are of whole streams."""
    marks = [(1_050 * MS, (10, 20)), (1_450 * MS, (110, 420))]
    found = heard(ASKED, [whole(100), whole(50)], marks)
    expected = Heard(
        seconds=0.4,
        frames=4 + 8,
        gaps_us=[50_000] * 7 + [100_000] * 3,
        firsts_us=[3_000] * 2,
        ends_us=[250_000] * 2,
        read_late_us=[1_000] * 12,
        sent_late_us=[5, 5, 7, 7],
        cpu_ns=(100, 400),
        errors={},
    )
    assert expected == found


def test_a_stream_that_is_not_whole_is_an_error_and_nothing_else() -> None:
    """Its figures would be those of another stream."""
    marks = [(0, (0,)), (10_000 * MS, (1,))]
    times_ns, read_ns, data = whole(10)
    cut = times_ns[:-2], read_ns[:-2], data[:-2]
    endless = times_ns[:-1], read_ns[:-1], data[:-1]
    refused = stream({5: b"HTTP/1.1 503 Service Unavailable\r\n\r\n"})
    found = heard(ASKED, [cut, endless, refused, stream({})], marks)
    errors = {"a word is missing, or came twice": 1, "no end": 1, "status 503": 1, "no reply": 1}
    assert (errors, 0, []) == (found.errors, found.frames, found.firsts_us)


def test_a_run_that_broke_off_has_no_window() -> None:
    """It has its errors."""
    found = heard(ASKED, [stream({})], [(1, (1, 1))])
    assert (0, 0.0, {"no reply": 1}) == (found.frames, found.seconds, found.errors)


def test_pieces_that_come_together_are_one_frame() -> None:
    """Of several chunks that are let go at once each may be read by itself."""
    assert [0, 10 * MS] == frames_of([0, MS, 4 * MS, 10 * MS])


def test_forebays_log_says_how_late_frames_left_it() -> None:
    """In each line of a paced stream."""
    lines = [
        b'{"event":"exchange","notes":{"pace.late_ms":12.5}}',
        b'{"event":"exchange","notes":{}}',
        b'{"event":"exchange","notes":{"pace.late_ms":0.0}}',
    ]
    assert [0, 12_500] == late_us(lines)


# --- What is promised ----------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_us", "met"), [(125_000, True), (125_100, False)])
def test_frames_come_steadily(gap_us: int, met: bool) -> None:
    """One gap in a hundred may be longer, and no other."""
    gaps_us = [100_000] * 197 + [gap_us] * 2 + [900_000]
    assert met is held(cut=seen(gaps_us=gaps_us))["cut", GAP].met


@pytest.mark.parametrize(("first_us", "met"), [(5_900, True), (6_000, False)])
def test_the_first_token_comes_at_once(first_us: int, met: bool) -> None:
    """What upstream, Envoy and the machine take without Forebay is not Forebay's."""
    found = held(even=seen(), cut=seen(firsts_us=[first_us] * 9))["cut", FIRST]
    assert met is found.met
    assert not held(cut=seen(firsts_us=[5_900] * 9))["cut", FIRST].met
    assert 0 == held(even=seen(), cut=seen(firsts_us=[800]))["cut", FIRST].found


@pytest.mark.parametrize(("end_us", "met"), [(305_000, True), (305_100, False)])
def test_the_end_comes_soon_after_the_models(end_us: int, met: bool) -> None:
    """Beyond what it takes on a way without Forebay; one stream in a hundred may take longer."""
    ends_us = [1_000] * 197 + [end_us] * 2 + [900_000]
    found = held(even=seen(ends_us=[5_000] * 9), cut=seen(ends_us=ends_us))["cut", END]
    assert met is found.met
    assert not held(cut=seen(ends_us=[300_100] * 9))["cut", END].met


@pytest.mark.parametrize(("us", "met"), [(850_000, True), (851_000, False)])
def test_pace_adds_little_to_what_it_costs_to_read(us: float, met: bool) -> None:
    """Twelve thousand events at 50 us are read in any case; ten thousand frames are the rest."""
    found = held(read=seen(us=600_000), whole=seen(us=us))["whole", ADDED]
    assert met is found.met
    assert pytest.approx((us - 600_000) / 10_000) == found.found


def test_what_only_reads_is_held_against_nothing() -> None:
    """But for streams that were not whole, which nobody may have."""
    found = held(read=seen(), even=seen(errors={"status 503": 2}))
    assert [("all", BROKEN)] == list(found)
    assert not found["all", BROKEN].met


def test_a_figure_is_the_median_of_its_rounds() -> None:
    """What pace adds is told of each round; errors are added up, and no reply has no figures."""
    rounds = [
        {"read": seen("read", us=base, errors={"no end": 1}), "whole": seen(us=us)}
        for base, us in ((600_000, 700_000), (1_200_000, 1_310_000), (600_000, 900_000))
    ]
    figures = figures_of(rounds)
    assert {"no end": 3} == figures["read"]["errors"]
    assert pytest.approx(11) == figures["whole"]["added_us_a_frame"]
    assert pytest.approx(90) == figures["whole"]["forebay_us_a_frame"]
    assert 3 == len(figures["whole"]["rounds"])
    assert {"a": 2, "b": {"c": 4}, "d": None} == median(
        [{"a": at, "b": {"c": 2 * at}, "d": None if at == 1 else at} for at in (1, 2, 3)]
    )


def test_streams_of_which_nothing_came_are_held_against_nothing_else() -> None:
    """There is no gap of them that could be too long."""
    none: dict[str, Any] = {
        "frames": 0, "gaps_us": [], "firsts_us": [], "ends_us": [], "errors": {"no reply": 9},
    }  # fmt: skip
    assert [("all", BROKEN)] == list(held(even=seen(**none), cut=seen(**none)))


def test_plots_are_svg_and_every_point_lies_within() -> None:
    """Gaps of what flows evenly, first tokens of all."""
    drawn = page([{name: seen(gaps_us=list(range(90_000, 140_000, 500))) for name in CASES}])
    assert 2 == drawn.count("<svg")
    for part in drawn.split("<svg")[1:]:
        root = ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
        wide, high = float(root.attrib["width"]), float(root.attrib["height"])
        for line in root.iter("{http://www.w3.org/2000/svg}polyline"):
            points = [pair.split(",") for pair in line.attrib["points"].split()]
            assert all(0 <= float(x) <= wide and 0 <= float(y) <= high for x, y in points)


def test_its_gateway_is_the_shipped_one_with_the_profiles_that_are_measured(tmp_path: Path) -> None:
    """Each case has a profile, and as many streams may be open."""
    assert {case.path for case in CASES.values()} == {f"/p/{name}" for name in PROFILES}
    file = tmp_path / "gateway.json"
    file.write_text(json.dumps(bootstrap(tmp_path, range(20_000, 20_004), 600)))
    settings = load(file, {})
    assert 1_200 == settings.server.most_exchanges
    assert {*PROFILES} <= {*settings.profiles}


@pytest.mark.slow
@pytest.mark.e2e
def test_a_run_prints_a_table_and_goals_and_keeps_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whether every goal was met."""
    output = tmp_path / "figures.json"
    few = ["--streams", "4", "--seconds", "7", "--cases", "cut lumps", "--output", str(output)]
    code = cli.main(["bench", "pacing", *few])
    printed = capsys.readouterr()
    figures = json.loads(output.read_text())
    assert int(not all(goal["met"] for goal in figures["goals"])) == code
    one = figures["cases"]["cut lumps"]
    assert {} == one["errors"]
    assert 0 < one["frames"]
    assert len(figures["goals"]) == printed.out.count("(goal: ") == 4
    assert "round 1 of 1: cut lumps, 4 streams" in printed.err
    assert "<svg" in output.with_suffix(".html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seconds", "6"], 'expected a whole number from 7 on, got "6"'),
        (["--cases", "cut,none"], 'cut lumps, got "none"'),
    ],
)
def test_what_cannot_be_run_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that says what was expected."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "pacing", *words])
    assert 2 == ended.value.code
    assert message in capsys.readouterr().err


def test_figures_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked for before anything is started."""
    assert 2 == cli.main(["bench", "pacing", "--output", str(tmp_path / "none" / "figures.json")])
    assert "expected a file in a folder that exists" in capsys.readouterr().err
