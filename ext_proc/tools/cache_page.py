"""Show what is in the cache and what it saves, as tables for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.cache_entry import Entry
from ext_proc.config import Settings
from ext_proc.tools.cache_redis import Counted, Purged
from ext_proc.tools.cache_server import CacheServer
from ext_proc.tools.pages import page_console

NAME_CHARS: Final = 15  # `redis sighted` and two spaces
_BREAKER: Final = {"closed": "green", "probing": "yellow", "open": "red"}
_KIB: Final = 1024


class Progress:
    """Tells on a terminal how far it is, and how fast it goes."""

    def __init__(self) -> None:
        self._status: Final = Console(stderr=True, highlight=False).status("looking")
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        """Begin to show it, if anybody looks."""
        if sys.stderr.isatty():
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self._status.stop()

    def __call__(self, scanned: int, found: int) -> None:
        """Say that so many names were looked at, and so many are meant."""
        rate = scanned / max(time.monotonic() - self._began, 1e-3)
        self._status.update(f"{scanned:,} names looked at, {found:,} found, {rate:,.0f}/s")


# --- Figures -------------------------------------------------------------------------------------


def show_stats(
    figures: dict[str, Any] | None, kept: Counted | None, server: CacheServer, *, now_s: float
) -> None:
    """Print what is kept and what it saved; `figures` are None where no server runs."""
    console = page_console()
    memory = figures["memory"] if figures else None
    counted: dict[str, dict[str, int]] = {}
    if kept is not None:
        about = "about " if kept.sampled else ""
        servers = "" if kept.masters == 1 else f" on {kept.masters} masters"
        console.print(
            _line(
                "redis",
                f"{about}{_answers(kept.entries)}, {_size(kept.bytes)}{servers}; "
                f"{about}{kept.patterns:,} requests counted",
            )
        )
        counted = kept.profiles
    if memory:
        room = f"{_size(memory['bytes'])} of {_size(memory['room'])}"
        console.print(_line("memory", f"{_answers(memory['entries'])}, {room}"))
        counted = counted or memory["profiles"]
    profiles = figures["profiles"] if figures else {}
    if names := sorted({*counted, *profiles}):
        console.print(_profiles(console, names, counted, profiles))
    if figures is None:
        told = f"nobody answers at {server.address}: hits and times are counted in the server"
        console.print(Text(told, "yellow"))
        return
    for name, text in _process_lines(figures):
        console.print(_line(name, text))
    since = _span(now_s - figures["started_at"]) if figures["started_at"] else "its start"
    console.print(Text(f"counted by {server.address} in the last {since}", "dim"))


def _profiles(
    console: Console,
    names: Sequence[str],
    counted: Mapping[str, Mapping[str, int]],
    profiles: Mapping[str, Mapping[str, Any]],
) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    table.add_column("profile", style="bold")
    columns = ("answers", "size", "hits", "misses", "bypassed", "hit rate", "tokens saved")
    for column in (*columns, "time saved", "stored", "not stored"):
        table.add_column(column, justify="right")
    for name in names:
        here, figures = counted.get(name, {}), profiles.get(name)
        cells = [f"{here['entries']:,}", _size(here["bytes"])] if here else ["", ""]
        if figures:
            rate = figures["hit_rate"]
            saved = figures["saved_input_tokens"] + figures["saved_output_tokens"]
            refused = {**figures["admissions"]}
            stored = refused.pop("stored", 0)
            cells += [
                *(f"{figures[key]:,}" for key in ("hit", "miss", "bypass")),
                "" if rate is None else f"{rate:.1%}",
                f"{saved:,}",
                _span(figures["saved_s"]),
                f"{stored:,}",
                f"{sum(refused.values()):,}",
            ]
        table.add_row(Text(_harmless(name)), *cells)
    return table


def _process_lines(figures: dict[str, Any]) -> list[tuple[str, Text]]:
    lines: list[tuple[str, Text]] = []
    refused: dict[str, int] = {}
    for profile in figures["profiles"].values():
        for result, number in profile["admissions"].items():
            if result != "stored":
                refused[result] = refused.get(result, 0) + number
    for name, counts in (
        ("not stored", refused),
        ("coalesced", figures["coalesced"]),
        ("let go", figures["evictions"]),
        ("unreadable", figures["unreadable"]),
        ("failed", figures["errors"]),
        ("not tried", figures["bypassed"]),
        ("writes lost", figures["dropped_writes"]),
    ):
        if counts:
            said = ", ".join(f"{reason} {number:,}" for reason, number in counts.items())
            lines.append((name, Text(said)))
    for name, times in figures["latency"].items():
        said = f"median {times['p50_ms']:.2f} ms, P99 {times['p99_ms']:.2f} ms"
        lines.append((name, Text(f"{said} ({times['count']:,})")))
    if breaker := figures["breaker"]:
        lines.append(("breaker", Text(breaker, _BREAKER[breaker])))
    return lines


# --- One answer ----------------------------------------------------------------------------------


def show_entries(key: str, entries: Sequence[Entry]) -> None:
    """Print what is known of an answer, in each place that has it; the answer only if given."""
    console = page_console()
    if not entries:
        console.print(Text(f"{key}: nothing is kept", "yellow"))
    for entry in entries:
        for name, said in _said_of(entry):
            if said:
                console.print(_line(name, said), soft_wrap=True)
        if entry is not entries[-1]:
            console.print()
    if body := next((entry.body for entry in entries if entry.body is not None), None):
        print(f"\n{_harmless(body)}")  # as it is: rich would read marks in it


def _said_of(entry: Entry) -> list[tuple[str, str]]:
    compression = "" if entry.compression == "none" else f" ({entry.compression})"
    said = [
        ("key", entry.key),
        ("in", entry.place),
        ("kept for", f"{_span(entry.ttl_s)} yet" if entry.ttl_s >= 0 else "ever"),
        ("stored as", f"{_size(entry.stored_bytes)}{compression}"),
    ]
    if entry.unreadable:
        return [*said, ("unreadable", f"{entry.unreadable}: the cache takes it for a miss")]
    return [
        *said,
        ("age", _span(entry.age_s)),
        ("serves for", f"{_span(entry.serves_s)} yet"),
        ("tokens", f"{entry.input_tokens:,} in, {entry.output_tokens:,} out"),
        ("answer", f"{_size(entry.body_bytes)}, {entry.content_type}"),
        ("dialect", entry.dialect),
        ("model", entry.model),
        ("quality", entry.quality),
        ("took", _span(entry.took_ms / 1000)),
        ("rests on", "context" if entry.context else "the question alone"),
    ]


# --- What was let go of --------------------------------------------------------------------------


def show_purge(report: dict[str, Any], settings: Settings, server: CacheServer) -> None:
    """Print how much was let go of, and what may still be elsewhere."""
    console = page_console()
    done = "would go" if report["dry_run"] else "gone"
    redis: Purged | None = report["redis"]
    if redis is not None:
        others = f"{redis.others:,} names that go with them"
        took = f"in {report['seconds']:.1f} s"
        console.print(_line("redis", f"{done}: {_answers(redis.entries)} and {others}, {took}"))
    if report["memory"] is not None:
        said = f"{done}: {_answers(report['memory'])}, at {server.address}"
        console.print(_line("memory", said))
    if redis is not None and settings.store.memory is not None:
        longest = _span(settings.store.memory.copy_time)
        who = "other replicas" if report["memory"] is not None else "no server was asked; replicas"
        console.print(Text(f"{who} may give copies for {longest} yet", "dim"))


def remark(said: str) -> None:
    """Print what may explain the rest."""
    page_console().print(Text(said, "yellow"))


# --- Words ---------------------------------------------------------------------------------------


def _line(name: str, said: str | Text) -> Text:
    if isinstance(said, str):
        said = _harmless(said)
    return Text.assemble((f"{name:<{NAME_CHARS}}", "cyan"), said)


def _harmless(text: str) -> str:
    """Return a text that others may have written, with what commands a terminal spelled out."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in text)


def _answers(number: int) -> str:
    return f"{number:,} answer" if number == 1 else f"{number:,} answers"


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _KIB
    return f"{number:.1f} GiB"


def _span(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.1f} s"
