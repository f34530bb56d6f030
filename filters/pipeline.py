"""Run an exchange through the filters of its profile, so that no filter can harm a request.

Requests pass the filters in order, replies in reverse; the first answer wins. What a filter did
before it failed is undone and the rest go on without it: the worst a broken filter can do is
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from filters.api import (
    CONTINUE,
    Answer,
    Config,
    Delta,
    Exchange,
    Filter,
    Holding,
    Outcome,
    Ports,
)
from filters.errors import FilterError, PortError
from filters.lockstep import ALONE, Lockstep

AnyFilter = Filter[Any]

WAIT_S: Final = 0.2
"""What filters may wait for together without a word to the proxy: Envoy's own `message_timeout`."""
SPARE_S: Final = 1.0
"""What a busy moment may take beside the waits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A filter with its settings in one profile, and the hooks it listens to."""

    filter_type: type[AnyFilter]
    config: Config
    prepared: Any
    on_response: bool
    on_delta: bool
    on_finish: bool
    holding: Holding = Holding.NOTHING
    name: str = field(init=False)
    listens: bool = field(init=False)
    """It has anything to do after the request."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.filter_type.name)
        listens = self.on_response or self.on_delta or self.on_finish
        object.__setattr__(self, "listens", listens)


_Watcher: TypeAlias = tuple[Stage, AnyFilter]


class Pipeline:
    """The filters of one profile. Immutable, shared by all its exchanges."""

    def __init__(self, filters: Iterable[tuple[type[AnyFilter], Config]], ports: Ports) -> None:
        """Prepare every filter; `filters` come in request order."""
        self.ports: Final = ports
        self.stages: Final = tuple(
            Stage(
                filter_type=kind,
                config=config,
                prepared=kind.prepare(config),
                on_response=kind.on_response is not Filter.on_response,
                on_delta=kind.on_delta is not Filter.on_delta,
                on_finish=kind.on_finish is not Filter.on_finish,
                holding=kind.holding(config),
            )
            for kind, config in filters
        )
        self.edits_stream: Final = any(stage.filter_type.edits_stream for stage in self.stages)
        """Some filter changes what the client receives."""
        self.holding: Final = max((one.holding for one in self.stages), default=Holding.NOTHING)
        """Some filter has what the client receives of a stream wait."""
        self.patience_s: Final = patience_s((one.filter_type, one.config) for one in self.stages)
        """How long the proxy is to wait for a request's filters; 0: as it does by itself."""


class Run:
    """One exchange's way through a pipeline: its filter instances and what became of them."""

    __slots__ = (
        "_failed", "_holders", "_lone", "_pipeline", "_reached", "_unwell", "_watchers", "timings",
    )  # fmt: skip

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._reached: list[tuple[Stage, AnyFilter]] = []
        self._failed: list[AnyFilter] = []
        """They see nothing more but the end: what they know of the exchange may be half of it."""
        self._watchers: list[tuple[Stage, AnyFilter]] | None = None
        self._holders: Sequence[AnyFilter] = ()
        """Those of them that may hold something."""
        self._lone: _Watcher | None = None
        """The one that does, where nobody else does and nobody sees what it gives: nearly always.
        """
        self._unwell: tuple[AnyFilter, Exception] | None = None
        """One of these that failed when it was asked how long, and has not been left out yet."""
        self.timings: list[tuple[str, int]] = []
        """Stage name and nanoseconds it took, waits included, in the order they ran."""

    async def request(self, exchange: Exchange, lockstep: Lockstep = ALONE) -> Answer | None:
        """Let every filter see the request; return the first answer, or None to go upstream.

        Before each stage those that came with this exchange go as far, as `lockstep` has it.
        """
        ports = self._pipeline.ports
        monotonic_ns = ports.clock.monotonic_ns
        document = exchange.prompt.document
        started = monotonic_ns()
        for stage in self._pipeline.stages:
            if lockstep.several:
                await lockstep
                started = monotonic_ns()
            name = stage.name
            before = _state(exchange)
            instance: AnyFilter | None = None
            verdict: Any = CONTINUE
            try:
                instance = stage.filter_type(stage.config, stage.prepared, ports)
                if stage.listens:
                    self._reached.append((stage, instance))
                verdict = await instance.on_request(exchange)
            except FilterError as error:
                exchange.note(f"{name}.refused", error.status)
                verdict = refusal(exchange, error)
            except Exception as error:  # noqa: BLE001 - fail-open: no filter may harm a request
                _restore(exchange, before)
                note_failure(exchange, name, error)
                if instance is not None:
                    self._failed.append(instance)
            ended = monotonic_ns()
            self.timings.append((name, ended - started))
            started = ended
            if verdict is not CONTINUE and isinstance(verdict, Answer):
                return verdict
        assert exchange.prompt.document is document
        return None

    async def response(self, exchange: Exchange) -> None:
        """Let the filters that listen see the reply's head."""
        for stage, instance in reversed(self._reached):
            if stage.on_response and instance not in self._failed:
                try:
                    await instance.on_response(exchange)
                except Exception as error:  # noqa: BLE001 - fail-open: no filter may harm a reply
                    self._failed.append(instance)
                    note_failure(exchange, instance.name, error)

    def delta(self, exchange: Exchange, delta: Delta) -> Sequence[Delta]:
        """Pass one piece of the reply through the filters; return what the client receives."""
        if self._watchers is None:
            self._watchers = [
                (stage, instance)
                for stage, instance in reversed(self._reached)
                if stage.on_delta and instance not in self._failed
            ]
            self._holders = [instance for stage, instance in self._watchers if stage.holding]
            if len(self._holders) == 1 and self._watchers[-1][0].holding:
                self._lone = self._watchers[-1]
        return self._through(exchange, (delta,), self._watchers)

    def _through(
        self, exchange: Exchange, deltas: Sequence[Delta], watchers: Iterable[_Watcher]
    ) -> Sequence[Delta]:
        """Pass pieces through some filters, in the order of the reply."""
        for watcher in watchers:
            stage, instance = watcher
            # A filter that edits works on copies: what it did before it failed is undone.
            pieces = [copy(one) for one in deltas] if stage.filter_type.edits_stream else deltas
            given: list[Delta] = []
            through = 0
            left = iter(pieces)
            try:
                for piece in left:
                    through = len(given)
                    given.extend(instance.on_delta(exchange, piece))
            except Exception as error:  # noqa: BLE001 - fail-open: it sees no further deltas
                at = len(deltas) - len(tuple(left)) - 1
                if not stage.holding:
                    del given[through:]  # half of what was to take the place of one piece
                self._drop(exchange, watcher, error, given)
                # Where that has the piece it failed at, the client gets it there, and once.
                given = [deltas[at] if one is pieces[at] else one for one in given]
                if any(one is deltas[at] for one in given):
                    at += 1
                given.extend(deltas[at:])
            deltas = given
        return deltas

    def _drop(
        self, exchange: Exchange, watcher: _Watcher, error: Exception, given: list[Delta]
    ) -> None:
        """Go on without a filter; put what it had wait behind what it gave before it failed."""
        stage, instance = watcher
        assert self._watchers is not None  # it is one of them
        self._watchers = [one for one in self._watchers if one is not watcher]
        self._holders = [one for one in self._holders if one is not instance]
        self._unwell = self._lone = None
        self._failed.append(instance)
        note_failure(exchange, instance.name, error)
        if not stage.holding:
            return
        gone = {id(one) for one in given}  # it may have failed between giving and forgetting
        try:
            given.extend(one for one in instance.let_go() if id(one) not in gone)
        except Exception as another:  # noqa: BLE001 - what it still had wait is lost
            note_failure(exchange, instance.name, another)

    def end(self, exchange: Exchange) -> Sequence[Delta]:
        """Tell the filters that hold something that nothing more comes; return what is due."""
        return self._asked(exchange, None)

    def due(self, exchange: Exchange, now_ns: int) -> Sequence[Delta]:
        """Return what the filters that hold something have due, to be sent in one."""
        lone = self._lone
        if lone is None:
            return self._asked(exchange, now_ns)
        given: list[Delta] = []
        try:
            given.extend(lone[1].on_time(exchange))
        except Exception as error:  # noqa: BLE001 - fail-open: the client gets what waits
            self._drop(exchange, lone, error, given)
        return given

    def _asked(self, exchange: Exchange, now_ns: int | None) -> Sequence[Delta]:
        """Join what filters give unasked; those behind a filter see what it gives."""
        given: list[Delta] = []
        for watcher in self._watchers or ():
            stage, instance = watcher
            if given:
                given = list(self._through(exchange, given, (watcher,)))
            if not stage.holding or instance in self._failed:
                continue
            try:
                if self._unwell is not None and self._unwell[0] is instance:
                    raise self._unwell[1]
                if now_ns is None:
                    given.extend(instance.on_end(exchange))
                elif (wake_ns := instance.wake_ns()) is not None and wake_ns <= now_ns:
                    given.extend(instance.on_time(exchange))
            except Exception as error:  # noqa: BLE001 - fail-open: the client gets what waits
                self._drop(exchange, watcher, error, given)
        return given

    def wake_ns(self) -> int | None:
        """Return when to call `due`, or None while no filter has anything wait.

        A filter that cannot say has what it holds due at once.
        """
        soonest_ns = None
        for instance in self._holders:
            try:
                wake_ns = instance.wake_ns()
            except Exception as error:  # noqa: BLE001 - fail-open: `due` goes on without it
                self._unwell, self._lone = (instance, error), None
                return 0
            if self._lone is not None:
                return wake_ns
            if wake_ns is not None and (soonest_ns is None or wake_ns < soonest_ns):
                soonest_ns = wake_ns
        return soonest_ns

    async def finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Let every filter that saw the request let go of what it holds.

        To one that failed the outcome is `FAILED`. A call that is cancelled may be made again: it
        goes on with the filters that are left.
        """
        while self._reached:
            stage, instance = self._reached.pop()
            if stage.on_finish:
                own = Outcome.FAILED if instance in self._failed else outcome
                try:
                    await instance.on_finish(exchange, own)
                except Exception as error:  # noqa: BLE001 - the other filters must still let go
                    note_failure(exchange, instance.name, error)


def _state(exchange: Exchange) -> tuple[Any, ...]:
    """Return the exchange as a filter finds it: every filter costs one, so it is a bare tuple."""
    return (
        exchange.prompt.document.mark(),
        len(exchange.cuts),
        exchange.pool,
        exchange.endpoints,
        exchange.task,
        exchange.needs,
        exchange.upstream_headers.copy(),
        exchange.client_headers.copy(),
    )


def _restore(exchange: Exchange, state: tuple[Any, ...]) -> None:
    """Return to how a filter that failed found the exchange."""
    mark, cuts, pool, endpoints, task, needs, upstream_headers, client_headers = state
    exchange.prompt.document.rollback(mark)
    del exchange.cuts[cuts:]
    exchange.pool, exchange.endpoints = pool, endpoints
    exchange.task, exchange.needs = task, needs
    exchange.upstream_headers, exchange.client_headers = upstream_headers, client_headers


def patience_s(filters: Iterable[tuple[type[AnyFilter], Config]]) -> float:
    """Return for how many seconds to ask the proxy, 0 where the filters' waits are short."""
    needed_s = waits_s(filters)
    return needed_s + SPARE_S if needed_s > WAIT_S else 0.0


def waits_s(filters: Iterable[tuple[type[AnyFilter], Config]]) -> float:
    """Return how long a request may wait in its filters, in seconds."""
    return sum(kind.longest_wait_s(config) for kind, config in filters)


def refusal(exchange: Exchange, error: FilterError) -> Answer:
    """Put a filter's refusal into the shape the client's provider would use."""
    body = exchange.dialect.error(error.status, error.text)
    return Answer(error.status, {"content-type": "application/json"}, body)


def note_failure(exchange: Exchange, name: str, error: Exception) -> None:
    """Note which filter failed and how; never what the error says, which may quote a prompt."""
    cause = str(error) if isinstance(error, PortError) else type(error).__name__
    exchange.note(f"{name}.failed", cause)
