"""Run a load in real time: simulated replicas, and before them Envoy and Forebay, or a router.

For each load and each way to pick a replica, everything is started anew, so that all begin with
nothing in any cache and nothing learned.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from ext_proc.tools.derivation import MEASURED_ENV, derive_measured
from ext_proc.tools.envoy_counters import counted
from ext_proc.tools.load import cpu_clock_ns
from ext_proc.tools.machine import Busy
from ext_proc.tools.place import LOOPBACK, SOCKET, find_envoy, find_example, free_ports, run_folder
from ext_proc.tools.routing_client import Client, errors_of, late_s
from ext_proc.tools.routing_loads import Load
from ext_proc.tools.routing_run import WARM_UP, Result, percentile
from ext_proc.tools.supervisor import Child, Supervisor, answers
from ext_proc.yaml_file import read_yaml
from filters.errors import ConfigError

EXAMPLE: Final = "replicas.yaml"
POOL: Final = "full"
MODEL: Final = "simulated"
BLOCK_TOKENS: Final = 16  # of the simulator's `--blocks`
START_S: Final = 60.0  # a router's first import on a busy machine
MOST_S: Final = 600.0
"""A load that is not over by then is given up: somebody does not keep up."""
UNPICKED: Final = "ext_proc.*(message_timeouts|failure_mode_allowed)"
_ENV: Final = {
    **MEASURED_ENV,
    # Routers look for tokenizers of models whose names they hear; nothing is asked beyond here.
    "HF_HUB_OFFLINE": "1",
}
_SAMPLE: Final = re.compile(r"^vllm:(\w+?)(?:_total)?(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Router(NamedTuple):
    """A router that installs as a wheel."""

    module: str
    words: tuple[str, ...]
    """What it is started with, beside its addresses and those of the replicas."""


ROUTERS: Final = {
    "vllm-router": Router("vllm_router.launch_router", ("--policy", "cache_aware")),
    "sglang-router": Router("sglang_router.launch_router", ("--policy", "cache_aware")),
    "smg": Router("smg.launch_router", ("--policy", "cache_aware", "--disable-tokenizer-autoload")),
}
"""Each as it comes, with the policy that goes by prefixes."""


@dataclass(frozen=True, slots=True)
class Live:
    """What became of a load in real time."""

    result: Result
    errors: Mapping[str, int] = field(default_factory=dict)
    late_s: float = 0.0
    """How late requests were sent, the 95th percentile: the client's own share of every figure."""
    machine: float = 0.0
    """What share of the machine was busy, with whatever else ran there."""
    cores: Mapping[str, float] = field(default_factory=dict)
    """How many cores each program took, the client with them."""


class Counts(NamedTuple):
    """What a replica counted so far."""

    prompt: float = 0.0
    hits: float = 0.0
    generated: float = 0.0
    requests: float = 0.0

    def since(self, before: Counts) -> Counts:
        """Return what it counted since."""
        return Counts(*(one - other for one, other in zip(self, before, strict=True)))


async def play(
    load: Load,
    way: str,
    replicas: int,
    requests: int,
    *,
    seed: int,
    speed: float,
    python: str | None,
    say: Callable[[str], None],
) -> Live:
    """Play a load that is `speed` times faster than the model; `python` is the routers'."""
    with run_folder() as folder:
        ports = free_ports(replicas + 4)
        gateway, admin, metrics, other, *behind = ports
        simulator = _simulator(load, behind, speed)
        if way in ROUTERS:
            assert python is not None
            children = [_router(ROUTERS[way], python, gateway, other, behind, folder)]
        else:
            children = _gateway(way, folder, gateway, admin, metrics, behind)
        fallen: list[str] = []
        before, behind_them = Supervisor(children, fallen.append), Supervisor([simulator], say)
        try:
            await behind_them.start(say)
            await before.start(say)
            await _knows_all(gateway if way in ROUTERS else metrics, way, replicas)
            running = [simulator, *children]
            live = await _played(load, way, requests, seed, gateway, behind, running)
            if way not in ROUTERS and (lost := await counted(admin, UNPICKED)):
                live = replace(live, errors={**live.errors, "not picked": lost})
        finally:
            await before.stop()
            await behind_them.stop()
    if fallen:
        raise ConfigError("", fallen[0])
    return live


async def _played(
    load: Load,
    way: str,
    requests: int,
    seed: int,
    gateway: int,
    behind: Sequence[int],
    running: Sequence[Child],
) -> Live:
    loop = asyncio.get_running_loop()
    sessions = load.sessions(random.Random(seed), len(behind))  # noqa: S311 - repeatable
    client = Client(f"http://{LOOPBACK}:{gateway}", MODEL, sessions, requests)
    warm: list[Counts] = []
    warm_s, busy, spent = loop.time(), Busy(), _cpu_s(running)

    async def on_warm() -> None:
        nonlocal warm_s, busy, spent
        warm[:] = await counts_of(behind)
        warm_s, busy, spent = loop.time(), Busy(), _cpu_s(running)

    try:
        async with asyncio.timeout(MOST_S):
            told = await client.play(int(requests * WARM_UP), on_warm)
    except TimeoutError:
        raise ConfigError(f"{load.name}, {way}", f"was not over after {MOST_S:.0f} s") from None
    seconds = loop.time() - warm_s
    machine = busy.share()
    cores = {name: (cpu_s - spent[name]) / seconds for name, cpu_s in _cpu_s(running).items()}
    after = await counts_of(behind)
    counted_ = [one.since(before) for one, before in zip(after, warm, strict=True)]
    work = [work_s(load, one) for one in counted_]
    prompts = sum(one.prompt for one in counted_)
    mean_s = sum(work) / len(work)
    result = Result(
        load.name,
        way,
        len(behind),
        sorted(one.ttft_s for one in told if not one.error) or [0.0],
        sum(one.hits for one in counted_) / prompts if prompts else 0.0,
        max(work) / mean_s if mean_s else 0.0,
        mean_s / seconds,
        seconds,
    )
    late = percentile(sorted(late_s(told)), 0.95)
    return Live(result, errors_of(told), late, machine, cores)


def _cpu_s(running: Sequence[Child]) -> dict[str, float]:
    """Return the CPU time that each program took so far, and this one."""
    spent = {"client": time.process_time()}
    for child in running:
        assert child.process is not None
        spent[child.name] = cpu_clock_ns(child.process.pid) / 1e9
    return spent


def work_s(load: Load, counts: Counts) -> float:
    """Return about how many seconds a replica worked: prompts computed, and answers written.

    Counters do not say where in a prompt a token was: half of it lay before, on the average.
    """
    if not counts.requests:
        return 0.0
    hardware, mean = load.hardware, counts.prompt / counts.requests
    computed = counts.prompt - counts.hits
    prefill_s = hardware.prefill_s * computed * (1 + mean / 2 / hardware.prefill_doubles)
    return prefill_s + counts.generated * (hardware.decode_s + mean * hardware.context_s)


async def counts_of(ports: Sequence[int]) -> list[Counts]:
    """Return what each replica counted so far."""
    async with aiohttp.ClientSession() as http:

        async def one(port: int) -> Counts:
            async with http.get(f"http://{LOOPBACK}:{port}/metrics") as reply:
                found: dict[str, float] = {}
                for name, value in _SAMPLE.findall(await reply.text()):
                    found[name] = found.get(name, 0.0) + float(value)
            return Counts(
                found.get("prefix_cache_queries", 0.0),
                found.get("prefix_cache_hits", 0.0),
                found.get("generation_tokens", 0.0),
                found.get("request_prompt_tokens_count", 0.0),
            )

        return list(await asyncio.gather(*map(one, ports)))


# --- What runs -----------------------------------------------------------------------------------


def _simulator(load: Load, ports: Sequence[int], speed: float) -> Child:
    hardware = load.hardware
    words = {
        "--replicas": len(ports),
        "--port": ports[0],
        "--model": MODEL,
        "--blocks": hardware.cache_tokens // BLOCK_TOKENS,
        "--slots": hardware.slots,
        "--step-tokens": hardware.step_tokens,
        "--speed": speed,
    }
    argv = [sys.executable, "-m", "ext_proc", "simulate", "--quiet"]
    for name, value in words.items():
        argv += [name, str(value)]

    async def ready() -> bool:
        return all(await asyncio.gather(*(answers(port, "/health") for port in ports)))

    return Child("simulator", argv, ready, start_s=START_S)


def _gateway(
    strategy: str, folder: Path, gateway: int, admin: int, metrics: int, replicas: Sequence[int]
) -> list[Child]:
    """Return Envoy and Forebay on the example's file, with another strategy."""
    tree, _ = derive_measured(
        read_yaml(find_example(EXAMPLE)), (gateway, admin, metrics), folder / SOCKET, replicas
    )
    block = tree["node"]["metadata"]["forebay"]
    block["pools"][POOL]["replicas"]["strategy"] = strategy
    # Prompts are all different: what is left is the pick.
    block["profiles"] = {"default": {"pick": {}}}
    config = folder / "gateway.json"
    config.write_text(json.dumps(tree))
    return [
        Child(
            "server",
            [sys.executable, "-m", "ext_proc", "serve", "--config", str(config)],
            lambda: answers(metrics, "/readyz"),
            env=_ENV,
            start_s=START_S,
        ),
        Child(
            "envoy",
            [
                *(find_envoy(None), "--config-path", str(config), "--log-level", "error"),
                *("--concurrency", "1", "--disable-hot-restart", "--drain-time-s", "1"),
            ],
            lambda: answers(admin, "/ready"),
            start_s=START_S,
        ),
    ]


def _router(
    router: Router, python: str, port: int, metrics: int, replicas: Sequence[int], folder: Path
) -> Child:
    argv = [python, "-m", router.module, "--host", LOOPBACK, "--port", str(port)]
    argv += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics)]
    argv += [*router.words, "--log-level", "error"]
    argv += ["--worker-urls", *(f"http://{LOOPBACK}:{one}" for one in replicas)]
    return Child(
        router.module.split(".")[0],
        argv,
        lambda: answers(port, "/readiness"),
        env={**_ENV, "HOME": str(folder)},
        start_s=START_S,
    )


async def installed(python: str) -> dict[str, str]:
    """Return the versions of the routers that a Python has; raise `ConfigError` for no Python."""
    code = (
        "import importlib.metadata as m, json\n"
        f"names = {list(ROUTERS)!r}\n"
        "have = {d.name.lower(): d.version for d in m.distributions() if d.name}\n"
        "print(json.dumps({n: have[n] for n in names if n in have}))"
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", code), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise ConfigError("--routers", f"{python}: {error.strerror}") from None
    out, told = await process.communicate()
    if process.returncode:
        raise ConfigError("--routers", f"{python}: {told.decode(errors='replace').strip()}")
    versions: dict[str, str] = json.loads(out)
    return {name: versions[name] for name in ROUTERS if name in versions}


async def _knows_all(port: int, way: str, replicas: int) -> None:
    """Wait until all replicas are known to whoever picks."""
    probe = partial(_workers, port) if way in ROUTERS else partial(_known, port)
    async with asyncio.timeout(START_S):
        while await probe() < replicas:  # noqa: ASYNC110 - other processes cannot set our events
            await asyncio.sleep(0.1)


async def _known(port: int) -> float:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{LOOPBACK}:{port}/metrics") as reply,
    ):
        found = re.search(rf'forebay_replica_known{{pool="{POOL}"}} (\S+)', await reply.text())
    return float(found[1]) if found else 0.0


async def _workers(port: int) -> float:
    """Return how many workers a router has, as far as it tells."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{LOOPBACK}:{port}/workers") as reply,
    ):
        if reply.status != 200:
            return float("inf")  # it waits for them before it is ready
        listed = await reply.json()
    workers = listed.get("workers", ())
    return sum(1 for one in workers if one.get("is_healthy", True))
