"""A whole gateway for tests: Envoy on the shipped YAML, a server process, a simulated upstream.

Only addresses differ from `envoy/forebay.yaml` (or from an example beside it), how long Envoy waits
for a connection (`connecting`) and for Forebay before it goes on without (`waiting`), and what a
test's `edit` says. Every program is a child of its own; the simulator runs in a thread, so that
clients that block can call it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, TypeVar

from ext_proc.config import load
from ext_proc.tools.derivation import Local, derive
from ext_proc.tools.simulator import Received, Simulator
from ext_proc.yaml_file import read_yaml

SHIPPED: Final = Path(__file__).parents[1] / "envoy" / "forebay.yaml"
POOLS: Final = ("full", "best_effort")
PIPE_BYTES: Final = 1 << 20  # thousands of lines: what finds the pipe full is lost
PATIENCE_S: Final = 60.0  # for what takes milliseconds on a machine that does nothing else
LONG: Final = "60s"  # a request that passed without Forebay or failed would show nothing
# Below the range from which the kernel takes ports for outgoing connections, so that a server that
# is started again finds its port free.
PORTS: Final = range(10_000, 32_000)
# Each is given once: a cluster asks for twelve before its first server listens on one.
UNTRIED_PORTS: Final = iter(random.sample(PORTS, len(PORTS)))
# A child is killed when the thread that started it ends, however that came about.
ORPHAN_GUARD: Final = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
FOREBAY: Final = ("-m", "ext_proc")
Edit: TypeAlias = Callable[[dict[str, Any]], None]
"""Changes the derived bootstrap before anything is started on it."""
T = TypeVar("T")


class Log:
    """The lines that programs write, as they come."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._lines: Final[list[str]] = []
        self._came: Final = threading.Condition()

    def read(self, stream: IO[bytes]) -> threading.Thread:
        """Take lines from a stream until it ends, in a thread."""

        def pump() -> None:
            with stream:
                for raw in stream:
                    with self._came:
                        self._lines.append(raw.decode(errors="replace").rstrip("\n"))
                        self._came.notify_all()

        reader = threading.Thread(target=pump, name=self.name, daemon=True)
        reader.start()
        return reader

    def mark(self) -> int:
        """Return where the next line will stand."""
        with self._came:
            return len(self._lines)

    def since(self, mark: int = 0) -> list[str]:
        """Return the lines from `mark` on."""
        with self._came:
            return self._lines[mark:]

    def wait_for(
        self,
        wanted: Callable[[str], bool],
        *,
        mark: int = 0,
        count: int = 1,
        timeout_s: float = PATIENCE_S,
    ) -> list[str]:
        """Return the wanted lines from `mark` on, once there are so many."""
        found: list[str] = []
        at = mark

        def enough() -> bool:
            nonlocal at
            found.extend(filter(wanted, self._lines[at:]))
            at = len(self._lines)
            return len(found) >= count

        with self._came:
            there = self._came.wait_for(enough, timeout_s)
        assert there, f"{self.name}: {len(found)} of {count} lines came in {timeout_s} s"
        return found


class Program:
    """A child process; what it writes goes into two logs."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], out: Log, errors: Log | None = None
    ) -> None:
        guard = (sys.executable, "-S", "-E", "-c", ORPHAN_GUARD, str(os.getpid()))
        self.process: Final = subprocess.Popen(
            [*guard, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._readers: Final = [
            out.read(self.process.stdout),
            (errors or out).read(self.process.stderr),
        ]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end, and for what it wrote last; return its code."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        return code

    def kill(self) -> int:
        self.process.kill()
        return self.wait()


class Upstream:
    """The simulator on a loop of its own: one replica for each pool, named like the pool."""

    def __init__(self) -> None:
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="upstream")
        self._came: Final = threading.Condition()
        self._received: Final[list[Received]] = []
        self.simulator: Final = Simulator(names=POOLS, on_request=self._take)

    @property
    def ports(self) -> dict[str, list[int]]:
        """The ports by pool, as `derive` takes them."""
        return {replica.name: [replica.port] for replica in self.simulator.replicas}

    @property
    def url(self) -> str:
        """The address of the replica of the full pool."""
        return self.simulator.url

    def start(self) -> None:
        self._thread.start()
        self._run(self.simulator.__aenter__())

    def stop(self) -> None:
        self._run(self.simulator.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def mark(self) -> int:
        """Return how many requests came."""
        with self._came:
            return len(self._received)

    def since(self, mark: int) -> list[Received]:
        """Return the requests from `mark` on."""
        with self._came:
            return self._received[mark:]

    def wait_for(self, count: int, *, mark: int) -> list[Received]:
        """Return the requests from `mark` on, once there are so many."""
        with self._came:
            there = self._came.wait_for(lambda: len(self._received) >= mark + count, PATIENCE_S)
        assert there, f"{len(self.since(mark))} of {count} requests came in {PATIENCE_S} s"
        return self.since(mark)

    def _take(self, request: Received) -> None:
        with self._came:
            self._received.append(request)
            self._came.notify_all()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


@dataclass(slots=True)
class Seen:
    """What the upstream and Forebay saw while a block ran."""

    received: list[Received] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Forebay's log lines of the exchanges."""

    @property
    def notes(self) -> dict[str, Any]:
        """What the only exchange noted."""
        (line,) = self.lines
        notes: dict[str, Any] = line.get("notes", {})
        return notes


class Gateway:
    """Envoy, Forebay and what they call; `url` is where clients call them."""

    def __init__(
        self,
        folder: Path,
        *,
        upstream: Upstream | None = None,
        pools: Mapping[str, Sequence[int]] | None = None,
        otlp: str = "",
        environ: Mapping[str, str] | None = None,
        edit: Edit | None = None,
        program: Sequence[str] = FOREBAY,
        file: Path = SHIPPED,
    ) -> None:
        """Write the configuration; `pools` are other ports than the upstream's, `otlp` a URL.

        `program` is what Python is to run as `forebay`, `file` another than the shipped one.
        """
        self.folder: Final = folder
        self.config: Final = folder / "forebay.yaml"
        self.admin_port: Final = free_port()
        self.server_log: Final = Log("Forebay")
        self.access_log: Final = Log("Envoy's access log")
        self.envoy_log: Final = Log("Envoy")
        self.server: Program | None = None
        self.envoy: Program | None = None
        self.url = ""
        self.envoy_admin = ""
        self._served_from = 0
        self._upstream: Final = upstream
        self._program: Final = program
        own = {"PATH": os.environ.get("PATH", ""), "FOREBAY_LOG_LEVEL": "INFO"}
        self._environ: Final = {**own, **(environ or {})}
        local = Local(
            listen=("127.0.0.1", 0),
            admin_port=0,
            metrics_port=self.admin_port,
            socket=folder / "s",
            replicas=pools or (upstream.ports if upstream else {}),
            otlp=otlp,
        )
        self.tree: Final = derive(read_yaml(file), load(file, {}), local)
        waiting(self.tree, LONG)
        connecting(self.tree, LONG)
        if otlp:  # spans leave as soon as they end
            layer = {"name": "soon", "static_layer": {OTLP_FLUSH: 20}}
            self.tree["layered_runtime"]["layers"].append(layer)
        if transport := os.environ.get("FOREBAY_TEST_TRANSPORT"):  # else what is shipped
            self.tree["node"]["metadata"]["forebay"]["server"]["transport"] = transport
        if edit is not None:
            edit(self.tree)
        self.write()

    @property
    def upstream(self) -> Upstream:
        assert self._upstream is not None
        return self._upstream

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def logs(self) -> tuple[Log, ...]:
        return self.server_log, self.access_log, self.envoy_log

    def write(self) -> None:
        """Write the configuration as it stands in `tree`, whole or not at all."""
        draft = self.config.with_suffix(".draft")
        draft.write_text(json.dumps(self.tree))
        draft.replace(self.config)

    # --- The programs ----------------------------------------------------------------------------

    def start_server(self) -> Program:
        """Start the server and return once it serves."""
        self._served_from = mark = self.server_log.mark()
        argv = (sys.executable, *self._program, "serve", "--config", str(self.config))
        self.server = Program(argv, self._environ, self.server_log)
        self.server_log.wait_for(lambda line: '"event":"serving"' in line, mark=mark)
        return self.server

    def start_envoy(self) -> Program:
        """Start Envoy and return once it listens."""
        binary = shutil.which("envoy")
        assert binary is not None, "no envoy on the PATH"
        address = self.folder / "envoy.admin"
        address.unlink(missing_ok=True)  # of one that was killed
        mark = self.envoy_log.mark()
        argv = (
            *(binary, "-c", str(self.config), "--admin-address-path", str(address)),
            *("--concurrency", "1", "--disable-hot-restart", "--file-flush-interval-msec", "10"),
            *("--log-level", "warning", "--component-log-level", "config:info"),
        )
        self.envoy = Program(argv, self._environ, self.access_log, self.envoy_log)
        self.envoy_log.wait_for(lambda line: "starting workers" in line, mark=mark)
        self.envoy_admin = f"http://{address.read_text()}"
        listeners = json.loads(get(f"{self.envoy_admin}/listeners?format=json"))
        (ingress,) = (one for one in listeners["listener_statuses"] if one["name"] == "ingress")
        bound = ingress["local_address"]["socket_address"]
        self.url = f"http://127.0.0.1:{bound['port_value']}"
        return self.envoy

    def stop(self) -> None:
        """Kill what is left."""
        for program in (self.envoy, self.server):
            if program is not None and program.process.poll() is None:
                program.kill()

    def ended(self) -> list[int | None]:
        """Return the codes with which Envoy and the server ended; None for one that runs."""
        programs = (self.envoy, self.server)
        return [program.process.poll() for program in programs if program is not None]

    # --- What is seen ----------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until Forebay closed the books on all that was asked of it, and its log is read."""
        until = time.monotonic() + PATIENCE_S
        while (metrics := self.metrics())["forebay_in_flight"]:
            assert time.monotonic() < until, f"{metrics['forebay_in_flight']:g} are in flight"
        ended = sum(v for name, v in metrics.items() if name.startswith("forebay_requests_total{"))
        written = int(ended - metrics["forebay_log_lines_lost"])
        self.server_log.wait_for(is_exchange, mark=self._served_from, count=written)

    @contextlib.contextmanager
    def watch(self, exchanges: int = 1) -> Iterator[Seen]:
        """Watch a block; at its end wait until Forebay closed the books on so many exchanges.

        What was asked before the block is over when it begins.
        """
        self.settle()
        seen = Seen()
        self.metrics()  # reading them has Forebay write what ended before
        received = self._upstream.mark() if self._upstream else 0
        mark = self.server_log.mark()
        yield seen
        lines = self.server_log.wait_for(is_exchange, mark=mark, count=exchanges)
        seen.lines = [json.loads(line) for line in lines]
        seen.received = self._upstream.since(received) if self._upstream else []

    def metrics(self) -> dict[str, float]:
        """Return Forebay's metrics: sample with its labels, as Prometheus writes it, to value."""
        text = get(f"http://127.0.0.1:{self.admin_port}/metrics").decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name: float(value) for name, _, value in samples}

    def envoy_stats(self) -> str:
        """Return all of Envoy's counters and gauges as text."""
        return get(f"{self.envoy_admin}/stats").decode()

    def envoy_counter(self, name: str) -> int:
        """Return one of Envoy's counters."""
        text = get(f"{self.envoy_admin}/stats?filter=^{re.escape(name)}$").decode()
        return int(text.rpartition(": ")[2] or 0)


OTLP_FLUSH: Final = "tracing.opentelemetry.flush_interval_ms"


def ext_proc_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Return how Envoy asks Forebay, as it stands in the tree."""
    listeners = tree["static_resources"]["listeners"]
    (ingress,) = (one for one in listeners if one["name"] == "ingress")
    filters = ingress["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    (ext_proc,) = (one for one in filters if one["name"] == "envoy.filters.http.ext_proc")
    asking: dict[str, Any] = ext_proc["typed_config"]
    return asking


def waiting(tree: dict[str, Any], timeout: str) -> None:
    """Have Envoy wait so long for each of Forebay's replies."""
    ext_proc_of(tree)["message_timeout"] = timeout


def connecting(tree: dict[str, Any], timeout: str) -> None:
    """Have Envoy wait so long for each connection.

    The half second of the shipped file can be over before Envoy gets to run and sees that it is
    connected, which is a 503; a port where nobody listens is refused at once however long it is.
    """
    for cluster in tree["static_resources"]["clusters"]:
        cluster["connect_timeout"] = timeout


def is_exchange(line: str) -> bool:
    """Tell the log line of an exchange from all others."""
    return '"event":"exchange"' in line


def get(url: str) -> bytes:
    """Fetch from a program on this machine."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        body: bytes = reply.read()
        return body


def free_port() -> int:
    """Return a port that nobody listens on or was given, and no connection takes by chance."""
    for number in UNTRIED_PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return number
    raise RuntimeError("no port is free")


def dead_port() -> socket.socket:
    """Return a socket whose port refuses connections as long as it is open."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


def seconds(started: float) -> float:
    """Return how long ago `started` was, in `time.monotonic` seconds."""
    return time.monotonic() - started
