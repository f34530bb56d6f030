"""Start a whole gateway on this machine and say what to try.

Envoy, the ext_proc server and simulated model servers run as children, at addresses of their own
that stand in a derived copy of the configuration. Ctrl-C ends all of it and leaves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ext_proc.adapters.membership import Fixed
from ext_proc.config import Settings
from ext_proc.redis_url import Address, parse_redis_url
from ext_proc.tools.arguments import port
from ext_proc.tools.check import ask_envoy
from ext_proc.tools.derivation import Local, Target, derive, parse_target, rewrites, settings_of
from ext_proc.tools.place import LOOPBACK, SOCKET, find_envoy, find_yaml, free_ports, run_folder
from ext_proc.tools.supervisor import Child, Supervisor, answers
from ext_proc.yaml_file import BadConfig, read_yaml
from filters.errors import ConfigError

GATEWAY_PORT: Final = 8001
ADMIN_PORT: Final = 9901
METRICS_PORT: Final = 9464
REPLICAS: Final = {"full": 2, "best_effort": 1}  # a pool of another name has one
ENVOY_DRAIN_S: Final = 1
ACCESS_LOG_FLUSH_MS: Final = 100  # Envoy's 10 s would show requests long after they were made
WATCH_S: Final = 1.0
KNOCK_S: Final = 1.0  # who has not taken a connection by then is said not to answer
QUESTION: Final = "What is a forebay?"
OTHER_QUESTION: Final = "Why should water be calm before a turbine?"  # not kept yet: it streams


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay up`."""
    add = parser.add_argument
    add("--upstream", metavar="URL", help="a model server or provider, instead of simulated ones")
    add("--config", metavar="FILE", help="Envoy's YAML (envoy/forebay.yaml, or the built-in one)")
    add("--redis", metavar="URL", help="keep answers there, instead of in memory")
    add("--otlp", metavar="URL", help="send traces there (OTLP over gRPC), every request")
    add("--port", type=port, default=GATEWAY_PORT, help="of the gateway, 0 for a free one (8001)")
    add("--host", default=LOOPBACK, help="where the gateway listens (127.0.0.1)")
    add("--admin-port", type=port, default=ADMIN_PORT, metavar="PORT", help="Envoy's (9901)")
    add("--metrics-port", type=port, default=METRICS_PORT, metavar="PORT", help="(9464)")
    add("--envoy", metavar="FILE", help="the Envoy binary (the one on PATH)")
    add("--verbose", action="store_true", help="show what the programs write")


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay up` until SIGINT or SIGTERM."""
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    terminal = Terminal(arguments.verbose)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    with run_folder() as folder:
        plan = _plan(arguments, folder)
        terminal.rewrites = plan.rewrites
        supervisor = Supervisor(_children(plan, terminal), terminal.say)
        watch = asyncio.create_task(_follow(plan, terminal))
        doubts = asyncio.create_task(find_doubts(plan.settings, plan.local.upstream))
        try:
            with terminal.progress(
                ["server", "envoy", *(["upstream"] if plan.pools else [])]
            ) as on:
                start = asyncio.create_task(supervisor.start(on))
                stopped = asyncio.create_task(stop.wait())
                await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not start.done():
                    start.cancel()
                    await asyncio.gather(start, return_exceptions=True)
                    return 0
                try:
                    await start
                except ConfigError as error:
                    raise await _in_envoys_words(error, plan) from None
            terminal.welcome(plan)
            for doubt in await doubts:
                terminal.say(doubt)
            await stopped
        finally:
            watch.cancel()
            doubts.cancel()
            await supervisor.stop()
    terminal.say("stopped")
    return 0


# --- What will run -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was decided before the first program starts."""

    source: Path
    derived: Path
    settings: Settings
    local: Local
    pools: Mapping[str, Sequence[int]]
    """Ports of simulated replicas by cluster."""
    envoy: str
    env: Mapping[str, str]
    """For the server: where answers are kept and traces go, without which it reads the file."""
    verbose: bool
    rewrites: Mapping[str, Sequence[tuple[str, str]]]
    """See `ext_proc.tools.derivation.rewrites`."""

    @property
    def url(self) -> str:
        """The gateway as a client on this machine calls it."""
        host, number = self.local.listen
        everywhere = host == "0.0.0.0"  # noqa: S104 - compared, not bound
        return f"http://{LOOPBACK if everywhere else host}:{number}"


def _plan(arguments: argparse.Namespace, folder: Path) -> Plan:
    source = find_yaml(arguments.config)
    otlp = arguments.otlp or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
    if arguments.redis:
        env["FOREBAY_REDIS_URL"] = arguments.redis
    file = read_yaml(source)
    try:
        settings = settings_of(file, env)
    except BadConfig as error:
        raise _as_option(error, arguments) from None
    upstream = parse_target("--upstream", arguments.upstream) if arguments.upstream else None
    envoy = find_envoy(arguments.envoy)
    clusters = [] if upstream else sorted(settings.clusters)
    counts = {name: count_replicas(settings, name) for name in clusters}
    free = iter(free_ports(3 + sum(counts.values())))
    own = (
        arguments.port or next(free),
        arguments.admin_port or next(free),
        arguments.metrics_port or next(free),
    )
    hosts = (arguments.host, LOOPBACK, LOOPBACK)
    _check_open(zip(("--port", "--admin-port", "--metrics-port"), hosts, own, strict=True))
    # The simulator takes a row of ports, in the order of these.
    pools = {name: [next(free) for _ in range(count)] for name, count in counts.items()}
    local = Local(
        listen=(arguments.host, own[0]),
        admin_port=own[1],
        metrics_port=own[2],
        socket=folder / SOCKET,
        replicas=pools,
        upstream=upstream,
        otlp=otlp,
    )
    derived = folder / "forebay.yaml"
    tree = derive(file, settings, local)
    _write(derived, tree)
    verbose = arguments.verbose
    return Plan(source, derived, settings, local, pools, envoy, env, verbose, rewrites(tree))


def count_replicas(settings: Settings, cluster: str) -> int:
    """Return how many replicas are simulated: where some are picked, as many as the file names."""
    named = [
        len(members.addresses)
        for name, members in settings.members.items()
        if settings.pools[name].cluster == cluster and isinstance(members, Fixed)
    ]
    return max(named, default=0) or REPLICAS.get(cluster, 1)


def _as_option(error: BadConfig, arguments: argparse.Namespace) -> ConfigError:
    """Name the option, where a variable is wrong that was set from one."""
    options = {
        "FOREBAY_REDIS_URL": arguments.redis and "--redis",
        "OTEL_EXPORTER_OTLP_ENDPOINT": arguments.otlp and "--otlp",
    }
    option = options.get(error.path)
    return ConfigError(option, error.message) if option else error


def _write(derived: Path, tree: Mapping[str, Any]) -> None:
    """Write the derived configuration, whole or not at all."""
    draft = derived.with_suffix(".draft")
    draft.write_text(json.dumps(tree, indent=1, ensure_ascii=False))
    draft.replace(derived)


def _check_open(ports: Iterable[tuple[str, str, int]]) -> None:
    """Raise `ConfigError` that names each option whose port is not free on its host.

    Envoy would share a taken port with another Envoy without a word (SO_REUSEPORT).
    """
    taken = []
    with contextlib.ExitStack() as held:  # so that no two of them are the same one
        for option, host, number in ports:
            try:
                held.enter_context(socket.create_server((host, number)))
            except OSError as error:
                used = error.errno == errno.EADDRINUSE
                why = "is in use" if used else f"cannot be used ({error})"
                taken.append(f"{option}: {number} {why}; choose another, or 0 for a free one")
    if taken:
        raise ConfigError("", "\n".join(taken))


# --- Whom it will need ----------------------------------------------------------------------------


async def find_doubts(settings: Settings, upstream: Target | None) -> list[str]:
    """Return a sentence for each server elsewhere that takes no connection.

    The gateway starts all the same: it goes on without Redis, and a model server may come later.
    """
    knocks: dict[str, Awaitable[bool]] = {}
    if settings.store.redis is not None:
        url = settings.store.redis.url
        text = f"Redis at {_redis(url)} does not answer: answers are not kept until it does"
        knocks[text] = _any_opens(parse_redis_url(url).servers)
    if upstream is not None:
        text = f"{_url(upstream)} does not answer: requests end in 503 until it does"
        knocks[text] = _opens(asyncio.open_connection(upstream.host, upstream.port))
    opened = await asyncio.gather(*knocks.values())
    return [text for text, good in zip(knocks, opened, strict=True) if not good]


async def _any_opens(servers: Sequence[Address]) -> bool:
    """Tell whether one of them takes connections: it knows the others."""
    opened = await asyncio.gather(
        *(
            _opens(
                asyncio.open_unix_connection(server)
                if isinstance(server, str)
                else asyncio.open_connection(*server)
            )
            for server in servers
        )
    )
    return any(opened)


async def _opens(connecting: Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> bool:
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await connecting
    except (OSError, TimeoutError, UnicodeError):  # the last: a name that DNS cannot hold
        return False
    writer.close()
    return True


# --- The programs --------------------------------------------------------------------------------


def _children(plan: Plan, terminal: Terminal) -> list[Child]:
    local, python = plan.local, [sys.executable, "-m", "ext_proc"]

    def logs(name: str) -> Callable[[str], None]:
        return lambda line: terminal.log(name, line)

    behind = [
        Child(
            "server",
            [*python, "serve", "--config", str(plan.derived)],
            lambda: answers(local.metrics_port, "/readyz"),
            env=plan.env,
            on_line=logs("server"),
        )
    ]
    if plan.pools:
        names = [f"{pool}-{index}" for pool, row in plan.pools.items() for index in range(len(row))]
        row = [number for row in plan.pools.values() for number in row]
        options = ["--names", ",".join(names), "--port", str(row[0]), "--quiet"]
        behind.append(
            Child(
                "upstream",
                [*python, "simulate", *options],
                lambda: answers(row[-1], "/health"),
                on_line=logs("upstream"),
            )
        )
    envoy = Child(
        "envoy",
        [
            plan.envoy,
            *("--config-path", str(plan.derived)),
            *("--log-level", "info" if plan.verbose else "warning"),
            *("--file-flush-interval-msec", str(ACCESS_LOG_FLUSH_MS)),
            *("--drain-time-s", str(ENVOY_DRAIN_S)),
            "--disable-hot-restart",  # it needs no base id then, and shares no memory
        ],
        lambda: answers(local.admin_port, "/ready"),
        on_line=logs("envoy"),
        behind=behind,  # who finds the gateway's port open is served
    )
    return [*behind, envoy]


async def _in_envoys_words(error: ConfigError, plan: Plan) -> ConfigError:
    """Return what Envoy has against the file, if it is Envoy that did not start, and for that.

    What it logs at a start is cut and speaks of the derived file; asked to validate the source, it
    says all of it.
    """
    if error.path != "envoy":
        return error
    found = await asyncio.to_thread(ask_envoy, read_yaml(plan.source), plan.envoy)
    more = f"see forebay check {shlex.quote(str(plan.source))}"
    refusals = [problem for problem in found if not problem.warning]
    if not refusals:
        return error
    return BadConfig(tuple(replace(one, message=f"{one.message}; {more}") for one in refusals))


async def _follow(plan: Plan, terminal: Terminal) -> None:
    """Derive again when the source changes; the server reads its part, Envoy's needs a restart."""
    seen = _stamp(plan.source)
    while True:
        await asyncio.sleep(WATCH_S)
        if (stamp := _stamp(plan.source)) == seen:
            continue
        seen = stamp
        try:
            file = read_yaml(plan.source)
            _write(plan.derived, derive(file, settings_of(file, plan.env), plan.local))
        except ConfigError as error:
            terminal.say(f"{plan.source} is not taken: {str(error).splitlines()[0]}")
        else:
            terminal.say(f"{plan.source} changed: Forebay reads it; Envoy's part needs a restart")


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


# --- What is seen of it --------------------------------------------------------------------------

_COLOURS: Final = {"server": "magenta", "envoy": "blue", "upstream": "yellow"}
_CACHE_STYLES: Final = {"HIT": "bold green", "MISS": "cyan", "BYPASS": "dim"}


class _Console(Console):
    """A console that ends the program when nobody reads it any more, but in order."""

    def on_broken_pipe(self) -> None:
        """Ask for the stop that Ctrl-C asks for; rich would break off the event loop."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at last
        signal.raise_signal(signal.SIGTERM)


class Terminal:
    """Tells a person what happens; plain lines when nobody but a file reads them."""

    def __init__(self, verbose: bool) -> None:
        self._verbose: Final = verbose
        self._console: Final = _Console(highlight=False)
        self._began: Final = time.monotonic()
        self.rewrites: Mapping[str, Sequence[tuple[str, str]]] = {}

    def say(self, text: str) -> None:
        """Write one sentence."""
        self._print(Text.assemble(("forebay: ", "bold"), text))

    def log(self, name: str, line: str) -> None:
        """Show a request, and with --verbose whatever else a program writes."""
        if name == "envoy" and line.startswith("{"):
            with contextlib.suppress(ValueError):
                self._print(request_line(json.loads(line), self.rewrites))
                return
        if self._verbose:
            self._print(Text.assemble((f"{name:8} ", _COLOURS[name]), line))

    @contextlib.contextmanager
    def progress(self, names: Sequence[str]) -> Iterator[Callable[[str], None]]:
        """Show which programs are ready; yields what to call with each one's name."""
        ready: set[str] = set()

        def line() -> str:
            marks = (f"[green]✓ {n}[/]" if n in ready else f"[dim]… {n}[/]" for n in names)
            return "starting  " + "  ".join(marks)

        if not self._console.is_terminal:
            yield ready.add
            return
        with self._console.status(line()) as status:

            def on(name: str) -> None:
                ready.add(name)
                status.update(line())

            yield on

    def welcome(self, plan: Plan) -> None:
        """Say what is running, where, and what to try."""
        rows = _rows(plan)
        if self._console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for name, text in rows:
                table.add_row(Text(name, style="bold"), text)
            title = f"Forebay is ready ({time.monotonic() - self._began:.1f} s), Ctrl-C stops it"
            panel = Panel(table, title=title, border_style="cyan", expand=False)
            self._console.print(panel)
        else:
            for name, text in rows:
                self._print(Text(f"{name:9} {text}"))
        for what, command in tries(plan.url, list(plan.settings.profiles)):
            self._print(Text(f"# {what}", style="dim"))
            self._print(Text(command, style="green"))

    def _print(self, text: Text) -> None:
        # A command that is to be copied must stay one line, however narrow the terminal.
        self._console.print(text, soft_wrap=True)


def tries(url: str, profiles: Sequence[str]) -> list[tuple[str, str]]:
    """Return commands to try, each with what it shows."""
    # `faq` keeps an answer at its first sighting; the default waits for the fifth.
    base = f"{url}/p/faq" if "faq" in profiles else url

    def curl(question: str, **others: Any) -> str:
        messages = [{"role": "user", "content": question}]
        data = json.dumps({"model": "demo", "messages": messages, **others})
        return (
            f"curl -iN {base}/v1/chat/completions -H 'content-type: application/json' -d '{data}'"
        )

    answers = [("an answer", curl(QUESTION))]
    if "faq" in profiles:
        answers = [
            ("a miss: the upstream answers (X-Cache: MISS)", curl(QUESTION)),
            ("a hit: the same again, without the upstream (X-Cache: HIT)", curl(QUESTION)),
        ]
    return [*answers, ("a stream: the answer as it is made", curl(OTHER_QUESTION, stream=True))]


def request_line(
    entry: Mapping[str, Any], rewrites: Mapping[str, Sequence[tuple[str, str]]]
) -> Text:
    """Put one entry of Envoy's access log into words: method, path, status, cache, quality, ms."""
    status = int(entry.get("status") or 0)
    style = "green" if 200 <= status < 400 else "yellow" if status < 500 and status else "red"
    cache, quality = str(entry.get("x_cache", "-")), str(entry.get("x_model_quality", "-"))
    profile = entry.get("profile") or entry.get("route", "")
    path = _asked(str(entry.get("path", "-")), rewrites.get(str(entry.get("route")), ()))
    parts: list[str | tuple[str, str]] = [
        f"{entry.get('method', '-'):4} {path}  ",
        (str(status or "gone"), style),
        "  ",
        (f"{cache:6}", _CACHE_STYLES.get(cache, "")),
        f" {quality:11} ",
        (f"{entry.get('duration_ms', '-')} ms", "bold"),
        (f"  {profile}", "dim"),
    ]
    if status >= 500 or not status:
        parts.append((f"  {entry.get('details', '')}", "red"))
    return Text.assemble(*parts)


def _asked(path: str, rewrites: Sequence[tuple[str, str]]) -> str:
    """Return the path that the client asked for; Envoy logs it as it went upstream, if it did."""
    if any(path.startswith(prefix) for prefix, _ in rewrites):
        return path
    for prefix, instead in rewrites:
        if path.startswith(instead):
            return prefix + path.removeprefix(instead)
    return path


def _rows(plan: Plan) -> list[tuple[str, str]]:
    local = plan.local
    others = [name for name in plan.settings.profiles if name != "default"]
    rows = [
        ("gateway", plan.url),
        ("profiles", f"default at /v1 and /v1beta; {', '.join(others)} under /p/NAME"),
        ("upstream", _upstream(local.upstream, plan.pools)),
        ("store", _store(plan.settings)),
        ("traces", local.otlp or "off (--otlp URL)"),
        ("metrics", f"http://{LOOPBACK}:{local.metrics_port}/metrics"),
        ("Envoy", f"http://{LOOPBACK}:{local.admin_port}"),
        ("settings", str(plan.source)),
    ]
    return [row for row in rows if row[0] != "profiles" or others]


def _upstream(target: Target | None, pools: Mapping[str, Sequence[int]]) -> str:
    if target is not None:
        return f"{_url(target)}, for every pool"
    return "simulated: " + ", ".join(
        f"{name} on {', '.join(map(str, row))}" for name, row in pools.items()
    )


def _url(target: Target) -> str:
    return f"{'https' if target.tls else 'http'}://{target.authority}{target.path}"


def _store(settings: Settings) -> str:
    memory, redis = settings.store.memory, settings.store.redis
    places = [f"in memory, {memory.size}"] if memory else []
    if redis is not None:
        places.append(_redis(redis.url))
    return ", before ".join(places)


def _redis(text: str) -> str:
    url = urlsplit(text)  # without a user's name
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"
