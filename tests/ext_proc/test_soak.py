"""`forebay soak` asks as much as it says, leaves as it says, and finds what was left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ext_proc.config import Transport
from ext_proc.tools import soak
from ext_proc.tools.load import DIGITS
from ext_proc.tools.soak import MOST_GROWTH_BYTES, Plan, Sample, Soaked, judge, slope_of
from ext_proc.tools.soak_load import Exit, Load, Mix, State, Way
from ext_proc.tools.soak_plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, nice_step, plot

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\nx-cache: HIT\r\ncontent-length: 5\r\n\r\nhello"
WAY = Way("hit", b"GET /", b" HTTP/1.1\r\n\r\n", unique=True, expect=b"", connections=3)


# --- The load -------------------------------------------------------------------------------------


class Seen:
    """What a server saw: each connection's bytes, and how it ended."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.reset = 0
        self.closed = 0


@asynccontextmanager
async def answering(*replies: bytes) -> AsyncIterator[tuple[int, Seen]]:
    """Answer the requests of each connection with these, the last one over and over."""
    seen, serving = Seen(), set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            for reply in itertools.chain(replies, itertools.repeat(replies[-1])):
                seen.asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(reply)
        except asyncio.IncompleteReadError as error:
            seen.closed += 1
            if error.partial:
                seen.asked.append(error.partial)
        except ConnectionResetError:
            seen.reset += 1
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], seen
        await asyncio.gather(*serving)


async def work_off(mix: Mix) -> State:
    """Run a mix to its end; return the last state."""
    states = [state async for state in Load(mix).run()]
    assert [False] * (len(states) - 1) + [True] == [state.done for state in states]
    return states[-1]


async def test_as_many_are_asked_as_was_said() -> None:
    """Over all ways together, each request of a unique way with a number of its own."""
    same = msgspec.structs.replace(WAY, name="same", unique=False)
    async with answering(OK) as (port, seen):
        state = await work_off(Mix(port, (WAY, same), requests=100, first=7))
    assert 100 == sum(state.answered.values()) == len(seen.asked)
    assert {"hit", "same"} == set(state.answered)
    assert {} == state.errors
    numbers = [int(asked.split()[1][1:]) for asked in seen.asked]
    assert list(range(7, 7 + state.answered["hit"])) == sorted(filter(None, numbers))


async def test_a_reply_that_is_not_what_it_should_be_is_an_error() -> None:
    """It says of which way, and how often."""
    way = msgspec.structs.replace(WAY, expect=b"\r\nx-cache: MISS\r\n")
    async with answering(OK) as (port, _):
        state = await work_off(Mix(port, (way,), requests=10))
    assert {"hit: no x-cache: MISS": 10} == state.errors


async def test_a_gateway_that_answers_nobody_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection that waits is an error."""
    monkeypatch.setattr("ext_proc.tools.soak_load.STALLED_S", 0.1)
    async with answering(OK, OK, b"") as (port, _):
        state = await work_off(Mix(port, (WAY,), requests=100))
    assert (6, {"no reply": 3}) == (state.answered["hit"], state.errors)


async def test_clients_leave_in_every_way_as_often_as_was_said() -> None:
    """Half of them reset their connections, which a server sees as another end."""
    half = Exit("amid", b"POST /half", None, 0.001)
    whole = Exit("asked", b"GET /", b" HTTP/1.1\r\n\r\n", 0.001)
    reply = Exit("reply", b"GET /", b" HTTP/1.1\r\n\r\n", None)
    async with answering(OK) as (port, seen):
        state = await work_off(
            Mix(port, (WAY,), requests=200, exits=(half, whole, reply), leaving=60)
        )
    assert ({"amid": 20, "asked": 20, "reply": 20}, {}) == (state.left, state.errors)
    assert 200 == state.answered["hit"]
    assert 60 + WAY.connections == seen.reset + seen.closed
    assert 10 < seen.reset
    assert all(len(asked.split()[1]) in (len("/half"), 1 + DIGITS) for asked in seen.asked)


async def test_a_client_that_has_nothing_to_leave_from_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for a reply's first bytes, but not for ever."""
    monkeypatch.setattr("ext_proc.tools.soak_load.END_S", 0.05)
    never = Exit("stream", b"GET /", None, None)
    async with answering(OK) as (port, _):
        state = await work_off(Mix(port, (WAY,), requests=50, exits=(never,), leaving=1))
    assert ({}, {"stream: nothing came to leave from": 1}) == (state.left, state.errors)


# --- The verdict ----------------------------------------------------------------------------------

REST = Sample(0.0, 0, 150 * MIB, 100 * MIB, 0, 0, 4, 20, 1, 0)
PLAN = Plan(1_000, 100)


def soaked(**changes: int) -> Soaked:
    """Return a good run, but for what was open after it."""
    samples = [
        REST._replace(requests=number, anonymous=min(90 + number, 190) * MIB, streams=9, tasks=9)
        for number in range(0, 1_001, 10)
    ]
    state = State({"hit": 1_000}, {"amid": 100}, {}, done=True)
    after = REST._replace(**{"gone": 100, **changes})
    return Soaked(Transport.NATIVE, REST, samples, state, after)


def test_a_run_that_leaves_nothing_is_good() -> None:
    """What memory does in the warm-up and what is open meanwhile does not matter."""
    verdict = judge(PLAN, soaked())
    assert ([], 0.0, 0.0) == (verdict.faults, verdict.growth, verdict.slope)
    assert {"exchanges": 0, "streams": 0, "tasks": 0, "descriptors": 0} == verdict.left


def test_a_connection_more_has_its_descriptor() -> None:
    """Envoy may open another one at any time, and that is no leak."""
    assert [] == judge(PLAN, soaked(connections=2, descriptors=21)).faults


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"in_flight": 2}, "2 exchanges left"),
        ({"streams": 1}, "1 streams left"),
        ({"tasks": 7}, "3 tasks left"),
        ({"descriptors": 25}, "5 descriptors left"),
        ({"gone": 19}, "only 19 of 100 clients were seen to leave"),
    ],
)
def test_what_is_left_is_a_fault(changes: dict[str, int], fault: str) -> None:
    """Whatever of it; and so is a run in which nobody noticed those who left."""
    assert [fault] == judge(PLAN, soaked(**changes)).faults


@pytest.mark.parametrize(("more", "faults"), [(0, 0), (1, 1)])
def test_memory_may_grow_to_its_bound(more: int, faults: int) -> None:
    """At a byte above, it is told by how much; a few samples that are high alone do not count."""
    run = soaked()
    run.samples[40:45] = [one._replace(anonymous=900 * MIB) for one in run.samples[40:45]]
    grown = run.samples[-1].anonymous + MOST_GROWTH_BYTES + more
    run.samples[-20:] = [one._replace(anonymous=grown) for one in run.samples[-20:]]
    verdict = judge(PLAN, run)
    assert MOST_GROWTH_BYTES + more == verdict.growth
    assert ["memory grew by 4.0 MiB, more than 4 MiB"] * faults == verdict.faults


def test_errors_and_requests_that_are_missing_are_faults() -> None:
    """The run is not what it was to be."""
    run = soaked()
    run.errors["status 503"] = 2
    assert ["2 x status 503", "1,000 of 2,000 requests were answered"] == judge(
        Plan(2_000, 100), run
    ).faults


def test_the_slope_is_that_of_most_samples() -> None:
    """A quarter of them may be anything."""
    samples = [
        REST._replace(requests=at, anonymous=3 * at if at % 4 else 10**9) for at in range(100)
    ]
    assert 3.0 == pytest.approx(slope_of(samples), rel=0.05)


# --- What it shows --------------------------------------------------------------------------------


def test_the_plot_is_a_picture_with_every_point_in_its_frame() -> None:
    """Its axis begins at 0; words are no markup."""
    points = [(0.0, 10.0), (50.0, 30.0), (100.0, 20.0)]
    picture = ET.fromstring(
        plot("a < b", points, fit=((10.0, 20.0), (100.0, 20.0)), x_name="x", y_name="y")
    )
    paths = {path.get("class"): path.get("d", "") for path in picture.iter(f"{SVG}path")}
    places = [tuple(map(float, place.split())) for place in paths["line"][1:].split(" L")]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    assert [(LEFT, True), ((LEFT + right) / 2, True), (right, True)] == [
        (across, TOP <= down < bottom) for across, down in places
    ]
    assert bottom - (bottom - TOP) * 10 / 30 == pytest.approx(places[0][1], abs=0.1)
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"a < b", "0", "30", "100", "x", "y"} < set(texts)


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("most", "step"), [(1_000_000, 200_000.0), (133.9, 50.0), (5, 1.0), (0.06, 0.01), (7, 2.0)]
)
def test_steps_of_an_axis_are_round(most: float, step: float) -> None:
    """One, two or five times a power of ten."""
    assert step == pytest.approx(nice_step(most))


def options(*words: str) -> Namespace:
    parser = ArgumentParser()
    soak.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"tasks": 5}, 1)])
def test_a_fault_ends_with_code_1(
    changes: dict[str, int],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """And is told, below figures that are there in any case."""

    async def measured(plan: Plan, _: soak.SoakProgress) -> Soaked:
        assert (1_000, 10) == (plan.requests, plan.leaving)
        return soaked(**changes)

    monkeypatch.setattr(soak, "_soak", measured)
    assert code == soak.run(options("1000", "--output", str(tmp_path / "figures.json")))
    shown = capsys.readouterr().out
    assert "1,000 in 0 s (hit 1,000)" in shown
    assert "190.0 MiB after the warm-up, 190.0 at the end (+0.00; at most 4)" in shown
    assert (code == 1) == ("\n1 tasks left\n" in shown)
    assert 101 == len(json.loads((tmp_path / "figures.json").read_text())["samples"])
    assert "svg" in (tmp_path / "figures.svg").read_text()


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("transport", list(Transport))
def test_a_short_run_finds_nothing_left(transport: Transport, tmp_path: Path) -> None:
    """Four thousand requests on every way, two hundred clients that leave in every way."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "ext_proc", "soak", "4000", "--leaving", "200"),
            *("--transport", str(transport)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == run.returncode, run.stdout + run.stderr
    report = json.loads((tmp_path / "soak.json").read_text())
    assert [] == report["verdict"]["faults"]
    assert 4_000 == sum(report["answered"].values())
    assert set(soak.CONNECTIONS) == set(report["answered"])
    assert [40] * 5 == [*report["left_early"].values()]
    assert 40 <= report["after"]["gone"] <= 200
    assert 0 < max(sample["streams"] for sample in report["samples"])
    assert {"exchanges": 0, "streams": 0, "tasks": 0, "descriptors": 0} == report["verdict"]["left"]
    ET.fromstring((tmp_path / "soak.svg").read_text())
    assert "4,000 answered, 200 left early: " in run.stderr
