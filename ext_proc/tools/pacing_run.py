"""Run paced streams through a real gateway, and the same ones unpaced beside them.

Envoy and Forebay run as shipped, but for the profiles and the addresses; the upstream and the
clients are processes of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from ext_proc.tools.derivation import MEASURED_ENV, derive_measured
from ext_proc.tools.envoy_counters import counted
from ext_proc.tools.machine import Busy
from ext_proc.tools.pacing_client import Heard, Listening
from ext_proc.tools.pacing_speech import SPEECHES, Speech
from ext_proc.tools.place import LOOPBACK, SOCKET, find_envoy, find_yaml, free_ports, run_folder
from ext_proc.tools.supervisor import Child, Supervisor, answers
from ext_proc.yaml_file import read_yaml
from filters.errors import ConfigError
from filters.pace import LATE_MS

STREAMS: Final = 500
SECONDS: Final = 10
LEAST_SECONDS: Final = 7
"""All flow for one second then."""
TARGET_S: Final = 0.1
"""Between two frames, as shipped."""
EVEN: Final = "even"
LOG_LOOKS: Final = 30
SERVER, ENVOY, UPSTREAM = "forebay", "envoy", "upstream"


class Case(NamedTuple):
    """Streams that speak in one way, through one profile."""

    about: str
    path: str
    speech: str
    reads: str = ""
    """The case whose events are read and not paced: what these cost without. Empty: none."""

    @property
    def spoken(self) -> Speech:
        """How the upstream speaks."""
        return SPEECHES[self.speech]


PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    # Served at `/p/NAME/` as all of the shipped file; what each does is said here.
    "raw": {},
    "documents": {"cache": {"any_temperature": True, "ttl": "1s", "admit_after": 1}},
    "chat": {"pace": {}},
    "faq": {"pace": {"chunks": "cut"}},
}
CASES: Final = {
    EVEN: Case("not read, spoken evenly", "/p/raw", "even"),
    "read": Case("read and not paced, spoken in fits", "/p/documents", "fits"),
    "whole": Case("paced, spoken in fits", "/p/chat", "fits", "read"),
    "cut": Case("paced, spoken in fits", "/p/faq", "fits", "read"),
    "read lumps": Case("read and not paced, spoken in lumps", "/p/documents", "lumps"),
    "cut lumps": Case("paced, events cut, spoken in lumps", "/p/faq", "lumps", "read lumps"),
}
"""The first one shows what the upstream, Envoy and the client make of even gaps by themselves."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one case showed."""

    heard: Heard
    events: float
    """That the upstream sent in the window."""
    left_late_us: list[int] = field(default_factory=list)
    """By how much its latest frame left Forebay late, of each paced stream; ascending."""
    machine: float = 0.0
    """What share of the machine was busy."""

    @property
    def server_us(self) -> float:
        """CPU of Forebay's in the window."""
        return self.heard.cpu_ns[0] / 1e3 if self.heard.cpu_ns else 0.0

    @property
    def envoy_us(self) -> float:
        """CPU of Envoy's."""
        return self.heard.cpu_ns[1] / 1e3 if self.heard.cpu_ns else 0.0


async def run(
    names: Sequence[str], streams: int, seconds: int, rounds: int, say: Callable[[str], None]
) -> list[dict[str, Seen]]:
    """Run some of `CASES`, one after the other, round after round."""
    played: list[dict[str, Seen]] = []
    fallen: list[str] = []
    with run_folder() as folder, _set_up(folder, streams) as (children, ports, log):
        supervisor = Supervisor(list(children.values()), fallen.append)
        try:
            await supervisor.start(lambda name: say(f"{name} is ready"))
            for number in range(rounds):
                seen: dict[str, Seen] = {}
                played.append(seen)
                for name in names:
                    say(f"round {number + 1} of {rounds}: {name}, {streams} streams")
                    seen[name] = await _case(CASES[name], streams, seconds, children, ports, log)
                    if fallen:
                        raise ConfigError("", fallen[0])
        finally:
            await supervisor.stop()
    return played


async def _case(
    case: Case,
    streams: int,
    seconds: int,
    children: Mapping[str, Child],
    ports: Sequence[int],
    log: BinaryIO,
) -> Seen:
    gateway, admin, *_ = ports
    pids = tuple(_pid(children[name]) for name in (SERVER, ENVOY))
    what = Listening(gateway, case.path, case.speech, streams, seconds, pids)
    log.truncate(0)
    alone, busy = await counted(admin, _ALONE), Busy()
    heard = await _listen(what)
    machine = busy.share()
    if more := await counted(admin, _ALONE) - alone:
        heard.errors["went on without the server"] = more
    lines = await _written(Path(f"/proc/self/fd/{log.fileno()}"), streams)
    events = streams * case.spoken.events_per_s * heard.seconds
    return Seen(heard, events, late_us(lines), machine)


async def _written(log: Path, exchanges: int) -> list[bytes]:
    """Return what Forebay's log says, once it says so many exchanges; or soon without."""
    lines: list[bytes] = []
    for _ in range(LOG_LOOKS):
        lines = (await asyncio.to_thread(log.read_bytes)).splitlines()
        if sum(b'"event":"exchange"' in line for line in lines) >= exchanges:
            break
        await asyncio.sleep(0.1)
    return lines


_ALONE: Final = "ext_proc.*failure_mode_allowed"


def _pid(child: Child) -> int:
    assert child.process is not None
    return child.process.pid


async def _listen(what: Listening) -> Heard:
    """Have the clients' process listen."""
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "ext_proc.tools.pacing_client")
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    try:
        told, _ = await process.communicate(msgspec.json.encode(what))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigError("clients", f"ended with code {process.returncode}")
    return msgspec.json.decode(told, type=Heard)


def late_us(lines: Sequence[bytes]) -> list[int]:
    """Return from Forebay's log how late the latest frame of each paced stream left it."""
    told = [msgspec.json.decode(line) for line in lines if LATE_MS.encode() in line]
    return sorted(round(1000 * exchange["notes"][LATE_MS]) for exchange in told)


# --- The programs --------------------------------------------------------------------------------


@contextlib.contextmanager
def _set_up(
    folder: Path, streams: int
) -> Iterator[tuple[dict[str, Child], Sequence[int], BinaryIO]]:
    """Write the configuration; yield the programs to run, their ports, and Forebay's log."""
    ports = free_ports(4)
    envoy, config = find_envoy(None), folder / "gateway.json"
    config.write_text(json.dumps(bootstrap(folder, ports, streams)), encoding="utf-8")
    gateway, admin, metrics, upstream = ports
    envoy_words = (
        *(envoy, "--config-path", str(config), "--log-level", "error"),
        *("--concurrency", "1", "--disable-hot-restart", "--drain-time-s", "1"),
    )
    speech = (sys.executable, "-m", "ext_proc.tools.pacing_speech", f"{LOOPBACK}:{upstream}")
    serve = (sys.executable, "-m", "ext_proc", "serve", "--config", str(config))
    with (
        (folder / "server.log").open("ab", buffering=0) as log,
        (folder / "access.log").open("ab", buffering=0) as access,
    ):
        children = (
            Child(UPSTREAM, speech, lambda: _listens(upstream)),
            Child(
                SERVER,
                serve,
                lambda: answers(metrics, "/readyz"),
                env=MEASURED_ENV,
                stdout=log.fileno(),
            ),
            Child(ENVOY, envoy_words, lambda: answers(admin, "/ready"), stdout=access.fileno()),
        )
        yield {child.name: child for child in children}, (gateway, admin), log


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


def bootstrap(folder: Path, ports: Sequence[int], streams: int) -> dict[str, Any]:
    """Return the shipped bootstrap at other addresses, with the profiles that are measured."""
    tree, settings = derive_measured(
        read_yaml(find_yaml(None)), ports[:3], folder / SOCKET, ports[3:]
    )
    block = tree["node"]["metadata"]["forebay"]
    block["profiles"] |= {name: dict(filters) for name, filters in PROFILES.items()}
    block["server"]["most_exchanges"] = max(settings.server.most_exchanges, 2 * streams)
    return tree
