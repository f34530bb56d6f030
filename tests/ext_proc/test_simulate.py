"""`forebay simulate` makes replicas of its options, and says what they are."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import replace

import aiohttp
import pytest

from ext_proc import cli
from ext_proc.tools.replica_life import SERVER, Model
from ext_proc.tools.simulate import add_arguments, model_of

PATIENCE_S = 60.0


def model(*argv: str) -> Model:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return model_of(parser.parse_args(argv))


def test_without_options_a_replica_is_that_of_the_routing_bench() -> None:
    """Its blocks are smaller, as those of servers are, and what it cannot hold it refuses."""
    assert Model(SERVER, context_tokens=SERVER.cache_tokens) == model()


def test_each_option_changes_what_it_says() -> None:
    """Rates are those of one request that is alone."""
    options = "--rate 50 --prefill 1000 --slots 2 --blocks 100 --step-tokens 512 --speed 10"
    made = model(*options.split())
    hardware = replace(
        SERVER,
        step_s=0.02 - SERVER.decode_s,
        prefill_s=0.001,
        slots=2,
        cache_tokens=1_600,
        step_tokens=512,
    )
    assert Model(hardware, speed=10, context_tokens=1_600) == made


def test_a_rate_of_zero_takes_no_time() -> None:
    """Neither for a step nor for its tokens."""
    made = model("--rate", "0", "--prefill", "0").hardware
    assert [0.0] * 4 == [made.step_s, made.decode_s, made.context_s, made.prefill_s]


def test_a_rate_beyond_what_a_token_takes_is_held_too() -> None:
    """The share of a token shrinks; a step never takes less than nothing."""
    made = model("--rate", "20000").hardware
    assert (0.0, 1 / 20_000) == (made.step_s, made.decode_s)


def test_a_context_is_no_longer_than_the_memory() -> None:
    """A longer request would wait for ever."""
    assert [100, 1_600] == [
        model("--blocks", "100", "--context", context).context_tokens for context in ("100", "9999")
    ]


def test_a_fault_of_no_replica_stops_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """The names that there are stand in the message."""
    assert 2 == cli.main(["simulate", "--fault", "c:slow"])
    expected = '--fault: expected one of replica-0, replica-1 or "*", got "c"'
    assert f"forebay simulate: {expected}\n" == capsys.readouterr().err


@pytest.mark.slow
async def test_it_says_where_replicas_are_and_how_to_have_them_fail() -> None:
    """Addresses, constants, and commands that work as they are printed."""
    options = ["--port", "0", "--kv-events", "0", "--speed", "10", "--ttft", "5ms"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ext_proc", "simulate", *options, "--fault", "replica-1:slow"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as http:
            while not (lines and lines[-1].startswith("look:")):
                lines.append((await process.stdout.readline()).decode().rstrip())
            async with http.get(lines[-1].split()[-1]) as response:
                replicas = (await response.json())["replicas"]
            command = next(line for line in lines if line.startswith("fail:")).split("'")[1]
            async with http.post(command) as response:
                failed = (await response.json())["replicas"][0]["faults"][0]["kind"]
    finally:
        process.send_signal(signal.SIGTERM)
        status = await process.wait()
    urls = [f"{one['name']}  http://127.0.0.1:{one['port']}" for one in replicas]
    assert all(line.startswith(url) for line, url in zip(lines, urls, strict=False))
    assert all("  events tcp://127.0.0.1:" in line for line in lines[:2])
    assert ([], "slow", "slow", 0) == (
        replicas[0]["faults"],
        replicas[1]["faults"][0]["kind"],
        failed,
        status,
    )
    told = "\n".join(lines)
    for fact in (
        "a step       8 ms, of at most 2,048 tokens",
        "prefill      10,000 tokens/s at first, half of it at token 32,768",
        "an answer    0.1 ms a step more, and 20 ns for each token of its context",
        "memory       131,072 tokens, in blocks of 16",
        "before that  5 ms",
        "time         passes 10 times as fast",
        "fails        replica-1: slow",
    ):
        assert fact in told
