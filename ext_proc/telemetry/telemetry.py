"""Keep the books of every exchange: one log line, its counts, and a span where it is traced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self, TypeAlias

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger

from ext_proc.session import Facts
from ext_proc.telemetry.admissions import STORED, result_of
from ext_proc.telemetry.cuts import by_rule
from ext_proc.telemetry.logs import LibraryLogs, Lines, event_logger, exchange_line
from ext_proc.telemetry.metrics import Metrics
from ext_proc.telemetry.routes import decision_of
from ext_proc.telemetry.skips import reason_of
from ext_proc.telemetry.traceparent import parse_traceparent
from filters.api import Boarding, Clock
from filters.cache_record import Unreadable
from filters.pace import HELD_MS

if TYPE_CHECKING:
    from ext_proc.telemetry.spans import Spans

CACHE_OUTCOMES: Final = frozenset({"hit", "miss", "bypass"})
RELOAD_RESULTS: Final = {True: "taken", False: "refused"}
STREAM_FAILURES: Final = ("conversation", "bug")
SAVED: Final = {"saved.input_tokens": "in", "saved.output_tokens": "out"}
"""Notes by which a filter says what the upstream was spared, and the direction it is counted as."""
SAVED_MS: Final = "saved.ms"
UNREADABLE: Final = "cache.unreadable"
"""Note of why a stored answer could not be read."""
ESTIMATED: Final = "budget.tokens"
EXPERT: Final = "classify.pool"
CHANGES: Final = {
    "params.temperature": "temperature",
    "params.max_tokens": "max_tokens",
    "params.thinking": "thinking",
    "params.terms": "glossary",
    "params.review": "review",
}
"""Notes by which `params` says what it set, and what that is counted as."""
UNREADABLES: Final = frozenset(Unreadable)
_TROUBLES: Final = (".failed", ".skip")
MOST_TEXT: Final = 128  # characters of a model's name or a note: both may be a client's own text
WRITE_AFTER_S: Final = 0.02  # nobody reads a log faster
MOST_WAITING: Final = 32  # written in a millisecond, for which others have to wait

Later: TypeAlias = Callable[[float, Callable[[], None]], object]
"""Calls a function after some seconds, as an event loop's `call_later` does."""


class Ended(NamedTuple):
    """An exchange that is over, and what only its end knew."""

    facts: Facts
    at: float
    """Unix time in seconds."""
    elapsed_ns: int
    traceparent: str | None


class Telemetry:
    """The `Observer` of sessions, and who else is told of what went wrong.

    With `later`, exchanges that ended are written some at a time: code and data that are in the
    processor's caches for the second one make all but the first cost half as much.
    """

    def __init__(
        self,
        clock: Clock,
        lines: Lines,
        metrics: Metrics,
        log: FilteringBoundLogger,
        later: Later | None = None,
    ) -> None:
        self.log: Final = log
        """For everything that is no exchange."""
        self.metrics: Final = metrics
        self.clock: Final = clock
        self.spans: Spans | None = None
        self.in_flight = 0
        self.awaited = 0
        self._lines: Final = lines
        self._later: Final = later
        self._waiting: list[Ended] = []
        self._delivering = True
        # A rate misses the first count of a series that was not there before.
        for boarding in Boarding:
            if boarding is not Boarding.WAITING:
                metrics.coalesced[(boarding,)].inc(0)
        for unreadable in Unreadable:
            metrics.unreadable[(unreadable,)].inc(0)
        for change in CHANGES.values():
            metrics.params[(change,)].inc(0)
        for result in RELOAD_RESULTS.values():
            metrics.reloads[(result,)].inc(0)
        for reason in STREAM_FAILURES:
            metrics.stream_failures[(reason,)].inc(0)
        metrics.read("in_flight", "Exchanges that are open", lambda: self.in_flight)
        metrics.read(
            "awaited", "Open exchanges whose request's body has not come", lambda: self.awaited
        )
        metrics.read("log_lines_lost", "Log lines that nobody took", lambda: lines.lost)

    @classmethod
    def open(
        cls,
        clock: Clock,
        stream: BinaryIO,
        *,
        version: str,
        level: int,
        otlp_endpoint: str = "",
        later: Later | None = None,
    ) -> Self:
        """Log to `stream` from `level` on, and trace to `otlp_endpoint` unless it is empty."""
        lines = Lines(stream)
        telemetry = cls(clock, lines, Metrics(version), event_logger(lines, clock, level), later)
        if otlp_endpoint:
            from ext_proc.telemetry.spans import Spans  # 0.2 s and 15 MB that not all need

            telemetry.spans = Spans(otlp_endpoint, version, telemetry.spans_exported)
        return telemetry

    async def close(self, bound_s: float = 2.0) -> None:
        """Deliver what is left, within a bound."""
        self.write()
        if self.spans is not None:
            await self.spans.close(bound_s)

    def take_library_logs(self) -> None:
        """Write what libraries log through `logging` as lines of ours, warnings and worse."""
        logging.basicConfig(handlers=[LibraryLogs(self.log)], level=logging.WARNING, force=True)

    @property
    def registry(self) -> CollectorRegistry:
        """What `/metrics` shows."""
        return self.metrics.registry

    # --- Exchanges -------------------------------------------------------------------------------

    def begin(self, profile: str, traceparent: str | None) -> Entry:
        """Open an entry; `traceparent` is the W3C header of the proxy's span, if there is one."""
        self.in_flight += 1
        return Entry(self, self.clock.monotonic_ns(), traceparent)

    def server_timing(self, stages: Sequence[tuple[str, int]]) -> str:
        """Write stage times as the value of a `Server-Timing` header, in milliseconds."""
        return ", ".join([f"{name};dur={elapsed_ns / 1e6:.3f}" for name, elapsed_ns in stages])

    def ended(self, ended: Ended) -> None:
        """Write an exchange that is over, or have it wait for others."""
        self.in_flight -= 1
        self._waiting.append(ended)
        if self._later is None or len(self._waiting) >= MOST_WAITING:
            self.write()
        elif len(self._waiting) == 1:
            self._later(WRITE_AFTER_S, self.write)

    def write(self) -> None:
        """Write what waits: count it, end its spans, and log it."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        with self._lines.together():
            for ended in waiting:
                self._write(ended)

    def _write(self, ended: Ended) -> None:
        facts, at, elapsed_ns, traceparent = ended
        self.count(facts, elapsed_ns)
        parent = parse_traceparent(traceparent)
        trace_id = parent.trace_id if parent else ""
        if self.spans is not None and (parent is None or parent.sampled):
            ended_ns = round(at * 1e9)
            if written := self.spans.write(facts, parent, ended_ns - elapsed_ns, ended_ns):
                trace_id = written
                self.metrics.spans[("ended",)].inc()
        self._lines.write(exchange_line(at, _fields(facts, elapsed_ns, trace_id)))

    def count(self, facts: Facts, elapsed_ns: int) -> None:
        """Count an exchange that ended."""
        metrics = self.metrics
        profile, quality = facts.profile, facts.quality
        dialect = facts.dialect.name if facts.dialect else "none"
        metrics.requests.add((profile, dialect, quality, facts.outcome))
        metrics.exchanges.observe((profile, quality, facts.outcome), elapsed_ns)
        metrics.stages.observe_each(facts.stages)
        if facts.broken is not None:
            metrics.broken[dialect, facts.broken].inc()
        if facts.first_token_ns:
            metrics.ttft.observe((profile, quality), facts.first_token_ns)
        if facts.token_gaps_ns:
            metrics.gaps.observe_all((profile, quality), facts.token_gaps_ns)
        if facts.usage is not None:
            usage = facts.usage
            for direction, tokens in (
                ("in", usage.input),
                ("out", usage.output),
                ("cached", usage.cached),
            ):
                if tokens:
                    metrics.tokens.add((direction, profile, quality), tokens)
        for rule, (before, after) in by_rule(facts.cuts).items():
            metrics.cuts[rule, "before"].inc(before)
            metrics.cuts[rule, "after"].inc(after)
        if facts.task is not None:
            metrics.tasks.add((facts.task.intent, facts.task.domain))
        if facts.notes:
            self._count_notes(facts)
            if isinstance(held_ms := facts.notes.get(HELD_MS), int) and held_ms > 0:
                metrics.paced.observe((facts.profile,), held_ms * 1_000_000)

    def _count_notes(self, facts: Facts) -> None:
        notes, metrics = facts.notes, self.metrics
        if notes.get("refused") == "crowded":
            metrics.crowded[(facts.profile,)].inc()
        if why := notes.get("reply.skip"):
            metrics.unread[(str(why),)].inc()
        if notes.get("cache") in CACHE_OUTCOMES:
            self._count_cache(facts, str(notes["cache"]))
        if isinstance(estimated := notes.get(ESTIMATED), int):
            metrics.tokens.add(("estimated", facts.profile, facts.quality), estimated)
        if (unreadable := notes.get(UNREADABLE)) in UNREADABLES:
            metrics.unreadable[(str(unreadable),)].inc()
        if (decision := decision_of(facts)) is not None:
            metrics.routes.add(decision)
        if facts.task is not None and EXPERT in notes:
            metrics.experts[facts.task.domain, str(notes[EXPERT])].inc()
        for key, note in notes.items():
            if key.endswith(_TROUBLES):
                filter_name, _, what = key.rpartition(".")
                if what == "failed":
                    metrics.filter_errors[(filter_name,)].inc()
                else:
                    metrics.skips[filter_name, reason_of(note)].inc()
            elif key in CHANGES:
                metrics.params[(CHANGES[key],)].inc()

    def _count_cache(self, facts: Facts, outcome: str) -> None:
        notes, metrics, profile = facts.notes, self.metrics, facts.profile
        metrics.cache.add((profile, outcome))
        if outcome == "miss" and (result := result_of(facts)):
            metrics.admissions.add((profile, result))
        saved = 0
        for key, direction in SAVED.items():
            if isinstance(tokens := notes.get(key), int) and tokens > 0:
                metrics.saved_tokens.add((profile, direction), tokens)
                saved += tokens
        if saved:
            metrics.tokens.add(("saved", profile, facts.quality), saved)
        if isinstance(saved_ms := notes.get(SAVED_MS), int) and saved_ms > 0:
            metrics.saved_seconds.add((profile,), saved_ms / 1000)

    def caches(self, profile: str) -> None:
        """Show a profile's outcomes from the start: a rate misses the first count of a series."""
        for outcome in CACHE_OUTCOMES:
            self.metrics.cache.add((profile, outcome), 0)
        self.metrics.admissions.add((profile, STORED), 0)

    # --- What went wrong -------------------------------------------------------------------------

    def stream_failed(self, reason: str, error: Exception) -> None:
        """Count a stream that was given up; the error's own text may quote a prompt."""
        self.metrics.stream_failures[(reason,)].inc()
        self.log.error("stream failed", reason=reason, exc_info=error)

    def protocol_error(self, reason: str) -> None:
        """Count what the native transport gave up; `reason` is one of its `Reason`."""
        self.metrics.protocol_errors[(reason,)].inc()

    def store_failed(self, store: str, operation: str) -> None:
        """Count that a store broke or was late in `operation`: `get`, `put` or `sighted`."""
        self.metrics.store_errors[store, operation].inc()
        self._count_write(store, operation)

    def store_bypassed(self, store: str, operation: str) -> None:
        """Count that `operation` was not tried: it failed moments ago, or too many wait."""
        self.metrics.store_bypassed[store, operation].inc()
        self._count_write(store, operation)

    def _count_write(self, store: str, operation: str) -> None:
        if operation == "put":
            self.metrics.store_dropped[(store,)].inc()

    def store_took(self, store: str, operation: str, elapsed_ns: int) -> None:
        """Count how long a store took to answer, or to fail."""
        self.metrics.store_seconds.observe((store, operation), elapsed_ns)

    def store_unreadable(self, store: str, reason: str) -> None:
        """Count that what lay in a store was no value, and why."""
        self.metrics.store_unreadable[store, reason].inc()

    def store_searched(self, store: str, *, found: bool) -> None:
        """Count that the servers of a store were looked for, and whether any were found."""
        self.metrics.store_searches[store, "found" if found else "none"].inc()

    def coalesced(self, boarding: Boarding) -> None:
        """Count an exchange that waited for another one's answer, or found no room to."""
        self.metrics.coalesced[(boarding,)].inc()

    def upstream_asked(self, cluster: str, outcome: str, seconds: float) -> None:
        """Count a question of Forebay's own to a cluster; `answered`, or why it came to nothing."""
        self.metrics.upstream[cluster, outcome].inc()
        self.metrics.upstream_seconds.observe((cluster,), round(seconds * 1e9))

    def config_reloaded(self, *, good: bool) -> None:
        """Count a change of the settings file, taken or refused."""
        self.metrics.reloads[(RELOAD_RESULTS[good],)].inc()

    def spans_exported(self, spans: int, delivered: bool) -> None:
        """Count spans sent; say so once when the receiver stops taking them, and once after."""
        self.metrics.spans[("exported" if delivered else "failed",)].inc(spans)
        if delivered is not self._delivering:
            self._delivering = delivered
            self.log.warning("spans are delivered again" if delivered else "spans are lost")

    def read(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """Show a value that somebody else keeps, as the gauge `forebay_NAME`."""
        self.metrics.read(name, documentation, value)

    def read_counts(
        self, name: str, documentation: str, label: str, counts: Callable[[], Mapping[Any, int]]
    ) -> None:
        """Show counts that somebody else keeps, as the counter `forebay_NAME_total`."""
        self.metrics.read_counts(name, documentation, label, counts)


class Entry:
    """The `Record` of one exchange."""

    __slots__ = ("_started_ns", "_telemetry", "_traceparent")

    def __init__(self, telemetry: Telemetry, started_ns: int, traceparent: str | None) -> None:
        self._telemetry: Telemetry | None = telemetry
        self._started_ns = started_ns
        self._traceparent = traceparent

    def end(self, facts: Facts) -> None:
        """Hand the exchange over to be written; a second call does nothing."""
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is None:
            return
        clock = telemetry.clock
        elapsed_ns = clock.monotonic_ns() - self._started_ns
        telemetry.ended(Ended(facts, clock.now(), elapsed_ns, self._traceparent))


def _fields(facts: Facts, elapsed_ns: int, trace_id: str) -> dict[str, Any]:
    """Return the fields of the log line; what is not known is left out."""
    fields: dict[str, Any] = {
        "profile": facts.profile,
        "outcome": facts.outcome,
        "us": elapsed_ns / 1000,
    }
    if facts.dialect is not None:
        fields["dialect"] = facts.dialect.name
        fields["model"] = facts.model[:MOST_TEXT]
        fields["stream"] = facts.stream
    if facts.pool:
        fields["pool"] = facts.pool
    if facts.quality:
        fields["quality"] = facts.quality
    if facts.status:
        fields["status"] = facts.status
    if facts.stages:
        fields["stages_us"] = {name: elapsed / 1000 for name, elapsed in facts.stages}
    if facts.usage is not None:
        fields["tokens"] = facts.usage
    if facts.finish is not None:
        fields["finish"] = facts.finish
    if facts.broken is not None:
        fields["broken"] = facts.broken
    if facts.first_token_ns:
        fields["ttft_us"] = facts.first_token_ns / 1000
    _add_what_filters_said(facts, fields)
    if trace_id:
        fields["trace_id"] = trace_id
    return fields


def _add_what_filters_said(facts: Facts, fields: dict[str, Any]) -> None:
    if facts.task is not None:
        fields["task"] = facts.task
    if facts.cuts:
        fields["cuts"] = by_rule(facts.cuts)
    if facts.notes:
        fields["notes"] = {
            key: note[:MOST_TEXT] if isinstance(note, str) else note
            for key, note in facts.notes.items()
        }
