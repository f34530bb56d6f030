"""`make bench-peers` compares what both sides cost, and takes no other reply for a hit."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from ext_proc.tools import bench_peers
from ext_proc.tools.bench import Plan, Progress
from ext_proc.tools.load import Result

ROOT = Path(__file__).parents[2]
# Takes the options of `litellm` and answers at once, as a hit or not.
STAND_IN = """#!{python}
import asyncio, json, os, re, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
model = json.load(open(words["--config"]))["model_list"][0]
assert "http://127.0.0.1:" in model["litellm_params"]["api_base"]
assert os.environ["LITELLM_OFFLINE_MODE"] == "true"
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode().lower()
            assert head.startswith("get /health/") or os.environ["LITELLM_MASTER_KEY"] in head
            length = re.search("content-length: ([0-9]+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(b"HTTP/1.1 200 OK\\r\\n{header}content-length: 2\\r\\n\\r\\n{{}}")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, words["--host"], int(words["--port"]))
    await server.serve_forever()
asyncio.run(main())
"""


def stand_in(folder: Path, header: str) -> Path:
    program = folder / "litellm"
    program.write_text(STAND_IN.format(python=sys.executable, header=header))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def options(*words: str) -> Namespace:
    parser = ArgumentParser()
    bench_peers.add_arguments(parser)
    return parser.parse_args(words)


def figures(requests_per_core_s: float, p99_ms: float) -> bench_peers.Figures:
    return bench_peers.Figures(100, 50.0, requests_per_core_s, 1e6, 1.0, p99_ms)


def test_the_cpu_time_of_all_processes_counts() -> None:
    """Ten requests in a second that took two and three tenths of a core are twenty a core."""
    result = Result(10, 1.0, 1.5, 2.5, (200_000_000, 300_000_000), {}, 0)
    assert bench_peers.Figures(10, 10.0, 20.0, 50_000.0, 1.5, 2.5) == bench_peers.figures_of(result)


def test_a_process_is_counted_with_all_below_it() -> None:
    """Workers of workers, too."""
    inner = "import subprocess; subprocess.run(['cat'])"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        while len(tree := bench_peers.tree_of(process.pid)) < 3:
            assert process.poll() is None
        assert process.pid == tree[0]
        assert process.stdin is not None
        process.stdin.close()


def test_ratios_are_taken_within_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round on a busy machine is one for both sides; a goal that is missed is said to be."""
    rows = {
        bench_peers.LITELLM: bench_peers.Row([figures(n, 30.0) for n in (10, 20, 40)]),
        bench_peers.HIT: bench_peers.Row([figures(n, 3.0) for n in (200, 200, 400)]),
        bench_peers.MISS: bench_peers.Row([figures(n, 6.0) for n in (100, 100, 100)]),
    }

    async def measured(*_: object) -> dict[str, bench_peers.Row]:
        return rows

    monkeypatch.setattr(bench_peers, "measure", measured)
    output = tmp_path / "peers.json"
    assert 0 == bench_peers.run(options("--litellm", sys.executable, "--output", str(output)))
    against = json.loads(output.read_text())["hit_against"]
    expected = {"median": 10, "least": 10, "most": 20}
    assert expected == against["litellm-hit"]["requests_per_core_s"]
    assert {"median": 2, "least": 2, "most": 4} == against["miss"]["requests_per_core_s"]
    shown = capsys.readouterr().out
    assert "requests/s a core of a hit: 10.00 x LiteLLM's (goal: at least 15)" in shown
    assert "99th percentile of a hit: 0.10 x LiteLLM's (goal: at most 1)" in shown
    assert [False, True] == [one.met for one in bench_peers.goals_of({"hit_against": against})]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("header", "errors"),
    [("x-litellm-cache-key: 1\\r\\n", set()), ("", {"no x-litellm-cache-key:"})],
    ids=["hits", "no hits"],
)
async def test_a_short_run_measures_both_sides(
    header: str, errors: set[str], tmp_path: Path
) -> None:
    """Each side is asked in each round, and what is no hit is an error."""
    plan = Plan(list(bench_peers.SIDES), 2, 3, 0.5)
    rows = await bench_peers.measure(
        plan, Progress(plan), str(stand_in(tmp_path, header)), workers=1
    )
    assert errors == set(rows[bench_peers.LITELLM].errors)
    for name in (bench_peers.HIT, bench_peers.MISS):
        assert {} == rows[name].errors
    for row in rows.values():
        assert 3 == len(row.slices)
        assert all(0 < one.requests and 0 < one.cpu_us for one in row.slices)


def test_a_program_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line names what is missing and what makes it."""
    assert 2 == bench_peers.main(["--litellm", f"{os.devnull}/litellm"])
    told = "bench-peers: --litellm: expected a program, got /dev/null/litellm; make bench-peers"
    assert f"{told} installs it\n" == capsys.readouterr().err
