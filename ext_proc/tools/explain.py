"""Show what each filter would do to a request, and what that would save: `forebay explain FILE`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from rich.console import Console

from ext_proc.adapters.batches import EgressBatches
from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.flights import LocalFlights
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.models import LocalModels
from ext_proc.adapters.queues import PoolQueues
from ext_proc.adapters.stages import PoolStages
from ext_proc.adapters.tokens import TiktokenTokens, default_folder
from ext_proc.adapters.upstream import EgressUpstream
from ext_proc.adapters.workers import WorkerPool
from ext_proc.app import clusters_of, nobody, queues_of, shapes_of, stages_of
from ext_proc.config import Settings, load, parse_listen
from ext_proc.settings_reader import unknown
from ext_proc.tools.explanation import Explanation, as_data
from ext_proc.tools.explanation_page import show
from ext_proc.tools.place import find_yaml
from ext_proc.tools.trace import Request, Trace, trace
from filters.api import Boarding, Heard, Ports, Trial, Upstream
from filters.document import Document, Json
from filters.errors import ConfigError, NotJson, PortError
from filters.queue_order import Shed, Wish

GOOD: Final = 0
FOUND: Final = 1

PIPED_COLUMNS: Final = 120  # nobody's terminal: wide enough for a table without folds
AUTHORITY: Final = ":authority"  # what the proxy calls `host`; it is part of keys
STORE_BYTES: Final = 1 << 20
LOAD_S: Final = 10.0  # counting tokens needs half a second to begin
STDIN: Final = "-"
LOT: Final = 0.5  # who moves to a pool on its way in by lot does so here if most do


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `forebay explain` takes."""
    parser.add_argument(
        "file",
        nargs="?",
        default=STDIN,
        metavar="FILE",
        help="a request's body in JSON (default: standard input)",
    )
    parser.add_argument("--profile", metavar="NAME", help='the profile (default: "default")')
    parser.add_argument(
        "--config", metavar="FILE", help="the YAML with the profiles (default: the shipped one)"
    )
    parser.add_argument(
        "--path",
        metavar="PATH",
        help="the path it is sent to, such as /v1/messages (default: guessed from the body)",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="a header of the request; may be repeated",
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="let filters ask other models by way of the running gateway; else nobody is asked",
    )
    parser.add_argument("--full", action="store_true", help="leave nothing out of the diffs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Explain a request; return 0 good, 1 a filter failed or no model is reached.

    Raise `ConfigError` for a request, a profile or a file that cannot be used.
    """
    source, body = _read(args.file)
    headers = dict(map(_header, args.header))
    settings = load(find_yaml(args.config), os.environ)
    profile = _profile(settings, args.profile)
    path, guessed = args.path, ""
    parsed = _parsed(source, body)
    if path is None:
        path, guessed = guess_path(parsed)
    request = Request(path, headers, body)
    it = asyncio.run(_explain(source, request, guessed, settings, profile, ask=args.ask))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(as_data(it)), indent=2).decode())
    else:
        _print(it, full=args.full)
    return FOUND if it.found_something else GOOD


def guess_path(body: Mapping[str, Json]) -> tuple[str, str]:
    """Return the path that a body looks made for, and by what it was told.

    Raise `ConfigError` when it looks like none.
    """
    model = body.get("model")
    name = model if isinstance(model, str) else ""
    if "contents" in body:
        name = name.encode("utf-8", "ignore").decode()  # half a surrogate pair is in no path
        return f"/v1beta/models/{name or 'gemini'}:generateContent", "it has `contents`"
    if "content" in body or "requests" in body:
        method = "embedContent" if "content" in body else "batchEmbedContents"
        name = name.removeprefix("models/").encode("utf-8", "ignore").decode()
        why = "`content`" if "content" in body else "`requests`"
        return f"/v1beta/models/{name or 'gemini-embedding'}:{method}", f"it has {why}"
    if "messages" in body:
        if "system" in body:
            return "/v1/messages", "it has `system` beside `messages`"
        if name.startswith("claude"):
            return "/v1/messages", "its model is a Claude"
        return "/v1/chat/completions", "it has `messages`"
    if "input" in body:
        if "embed" in name:
            return "/v1/embeddings", "its model embeds"
        return "/v1/responses", "it has `input`"
    if "prompt" in body:
        return "/v1/completions", "it has `prompt`"
    raise ConfigError(
        "--path",
        "expected the request's path, for the body has none of `messages`, `contents`, `input` "
        "and `prompt`",
    )


async def _explain(
    source: str, request: Request, guessed: str, settings: Settings, profile: str, *, ask: bool
) -> Explanation:
    """Run the request twice, for the first run of a process is slow, and explain the second."""
    remarks: list[str] = []
    clock = SystemClock()
    tokens = TiktokenTokens(default_folder(os.environ), _collector(remarks))
    workers = WorkerPool()
    models = LocalModels(clock)
    address = parse_listen(settings.server.egress)
    egress = EgressUpstream(address, clock, _Unwatched())
    # It asks no shadow: that is done when a client has its answer, and here nobody gets one.
    stages = PoolStages(address, clock, workers, _Unwatched(), nobody=nobody(), dice=lambda: LOT)
    staged = stages.follow(stages_of(settings), shapes_of(settings))
    queues = PoolQueues(clock, _Unwatched())
    queues.follow(queues_of(settings))
    batches = EgressBatches(address, clock, _Unwatched())  # one request alone is never a batch
    batches.follow(clusters_of(settings))

    def ports(upstream: Upstream) -> Ports:
        return Ports(
            store=MemoryStore(clock, STORE_BYTES),
            flights=LocalFlights(_Unwatched()),
            clock=clock,
            upstream=upstream,
            queues=queues,
            tokens=tokens,
            workers=workers,
            models=models,
            stages=staged,
            batches=batches,
        )

    model = _model(request)
    counted: dict[str, int] = {}

    def count(text: str) -> int:
        if text not in counted:
            counted[text] = tokens.count(text, model)
        return counted[text]

    try:
        if not tokens.load(model, LOAD_S):
            tokens.count("", model)  # says why
        await trace(request, settings, profile, ports(NotAsked([])))
        await models.opened()
        asked: list[tuple[str, str]] = []
        kept: Trace = await trace(
            request, settings, profile, ports(egress if ask else NotAsked(asked))
        )
        kept.asked = asked
    finally:
        models.close()
        await egress.close()
        await batches.close()
        await stages.close()
        await workers.close()
    return Explanation(source, profile, request, guessed, kept, count, settings, remarks)


class NotAsked:
    """An `Upstream` that keeps what it was to ask, and asks nobody."""

    def __init__(self, asked: list[tuple[str, str]]) -> None:
        self._asked: Final = asked

    async def ask(self, cluster: str, model: str, prompt: str, **_: Any) -> str:
        """Raise `PortError`."""
        self._asked.append((cluster, model))
        raise PortError(f"{cluster}: not asked")


class _Unwatched:
    def coalesced(self, boarding: Boarding) -> None:
        """Nobody counts."""

    def served(self, pool: str, wish: Wish, waited_s: float, *, named: bool) -> None:
        """Nobody counts."""

    def shed(self, pool: str, wish: Wish, why: Shed, *, named: bool) -> None:
        """Nobody counts."""

    def batch_asked(self, outcome: str, size: int) -> None:
        """Nobody counts."""

    def upstream_asked(self, cluster: str, outcome: str, seconds: float) -> None:
        """Nobody counts."""

    def trial_heard(self, trial: Trial, pool: str, heard: Heard) -> None:
        """Nobody counts."""

    def trial_compared(self, trial: Trial, old: Heard, new: Heard, alike: float | None) -> None:
        """Nobody counts."""

    def trial_skipped(self, trial: Trial, why: str) -> None:
        """Nobody counts."""


# --- What it is given ----------------------------------------------------------------------------


def _read(file: str) -> tuple[str, bytes]:
    if file == STDIN:
        if sys.stdin.isatty():
            raise ConfigError("FILE", "expected a request's body, in a file or on standard input")
        return "standard input", sys.stdin.buffer.read()
    try:
        return file, Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(file, f"cannot be read: {error.strerror}") from None


def _parsed(source: str, body: bytes) -> dict[str, Json]:
    """Return what a body says; raise `ConfigError` when it is no JSON object by anyone's reading.

    One that only the server does not read is explained: it passes as it came.
    """
    try:
        return Document(body).root
    except NotJson as error:
        unread = error
    try:
        value = json.loads(body, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        where = f"at line {error.lineno} column {error.colno}"
        raise ConfigError(source, f"expected JSON, {where}: {error.msg}") from None
    except ValueError:
        value = None
    except RecursionError:
        value = {}  # nested too deep to be read here or there
    if not isinstance(value, dict):
        raise ConfigError(source, f"expected JSON: {unread}")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"expected a number, got {word}")  # Python reads NaN, JSON does not know it


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ConfigError("--header", f'expected "NAME: VALUE", got "{text}"')
    name = name.strip().lower()
    return AUTHORITY if name == "host" else name, value.strip()


def _profile(settings: Settings, name: str | None) -> str:
    if name is None:
        name = "default" if "default" in settings.profiles else min(settings.profiles)
    if name not in settings.profiles:
        raise ConfigError("--profile", unknown("profile", name, sorted(settings.profiles)))
    return name


def _model(request: Request) -> str:
    try:
        model = Document(request.body).root.get("model")
    except NotJson:
        return ""
    return model if isinstance(model, str) else ""


def _collector(remarks: list[str]) -> Any:
    """Return a logger whose lines become remarks."""

    def keep(_: Any, __: str, event: Mapping[str, Any]) -> Any:
        rest = "; ".join(f"{key}: {value}" for key, value in event.items() if key != "event")
        remarks.append(f"{event['event']}: {rest}" if rest else str(event["event"]))
        raise structlog.DropEvent

    return structlog.wrap_logger(None, processors=[keep])


def _print(it: Explanation, *, full: bool) -> None:
    """Print the page: in colour as wide as the terminal, or plain without spaces at line ends."""
    if sys.stdout.isatty():
        show(it, _console(None), full=full)
        return
    console = _console(PIPED_COLUMNS)
    with console.capture() as page:
        show(it, console, full=full)
    print("\n".join(line.rstrip() for line in page.get().splitlines()))


def _console(width: int | None) -> Console:
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
