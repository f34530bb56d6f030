"""Run one request through the code that serves, and keep what each filter did to it.

Filters, pipeline and session are the server's own. Only the class of each filter is stood in for by
one that looks at the exchange before and after the filter's own `on_request`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ext_proc.app import gateway_of
from ext_proc.codec import Body, Command, Forward, Headers, Respond
from ext_proc.config import AnyFilter, Settings
from ext_proc.conversation import Message
from ext_proc.session import Facts, Session
from filters.api import Answer, Cut, Exchange, Note, Ports, Role, Task, Verdict
from filters.errors import FilterError
from filters.lockstep import ALONE


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class State:
    """An exchange at one moment."""

    texts: tuple[tuple[Role, str], ...]
    """What the model reads, in its order."""
    text_paths: frozenset[tuple[str | int, ...]]
    body: bytes
    pool: str
    task: Task | None
    cuts: int
    notes: Mapping[str, Note]
    upstream_headers: Mapping[str, str]
    client_headers: Mapping[str, str]

    @classmethod
    def of(cls, exchange: Exchange) -> State:
        """Take what may change."""
        texts = [text for turn in exchange.prompt.turns() for text in turn.texts]
        return cls(
            texts=tuple((text.role, text.value) for text in texts),
            text_paths=frozenset(text.path for text in texts),
            body=exchange.prompt.document.render(),
            pool=exchange.pool,
            task=exchange.task,
            cuts=len(exchange.cuts),
            notes=dict(exchange.notes),
            upstream_headers=dict(exchange.upstream_headers),
            client_headers=dict(exchange.client_headers),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What a filter did."""

    name: str
    took_ns: int
    before: State
    after: State
    """Where it failed, the same: the pipeline undoes what it did."""
    cuts: tuple[Cut, ...]
    answer: Answer | None
    refusal: str
    """Status and text of its refusal; empty: none."""
    failure: str
    """What else it raised; empty: nothing."""

    @property
    def notes(self) -> dict[str, Note]:
        """What it said."""
        return {
            key: value
            for key, value in self.after.notes.items()
            if key not in self.before.notes or self.before.notes[key] != value
        }


@dataclass(slots=True)
class Trace:
    """What became of a request."""

    steps: list[Step] = field(default_factory=list)
    exchange: Exchange | None = None
    """None: no filter saw it."""
    facts: Facts | None = None
    commands: list[Command] = field(default_factory=list)
    """What the proxy is told, in this order."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Cluster and model of other models that filters wanted to ask, and could not."""

    @property
    def forward(self) -> Forward | None:
        """How the request goes upstream; None: as it came, or not at all."""
        return next((one for one in self.commands if isinstance(one, Forward)), None)

    @property
    def respond(self) -> Respond | None:
        """What the client is answered in the upstream's stead."""
        return next((one for one in self.commands if isinstance(one, Respond)), None)


async def trace(request: Request, settings: Settings, profile: str, ports: Ports) -> Trace:
    """Send a request through a profile; raise nothing that a filter raised."""
    kept = Trace()
    chosen = settings.profiles[profile]
    watched = tuple((_watched(kind, kept), config) for kind, config in chosen.filters)
    settings = replace(settings, profiles={profile: replace(chosen, filters=watched)})
    session = Session(
        gateway_of(settings, ports, _Books(kept)), _Proxy(kept), profile=profile, traceparent=None
    )
    headers = {":method": "POST", ":path": request.path, **request.headers}
    await session.receive(Headers(Message.REQUEST_HEADERS, headers, last=False))
    if kept.facts is None:  # else it was let pass by its headers
        await session.receive(Body(Message.REQUEST_BODY, request.body, last=True))
    await session.leave()
    return kept


def _watched(kind: type[AnyFilter], kept: Trace) -> type[AnyFilter]:
    """Return a filter that does what `kind` does and keeps what that was."""

    class Watched(kind):  # type: ignore[misc, valid-type] # a base that is only known now
        async def on_request(self, exchange: Exchange) -> Verdict:
            kept.exchange = exchange
            before = State.of(exchange)
            clock = self.ports.clock
            verdict: Any = None
            refusal = failure = ""
            started_ns = clock.monotonic_ns()
            try:
                verdict = await super().on_request(exchange)
            except FilterError as error:
                refusal = str(error)
                raise
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                raise
            finally:
                took_ns = clock.monotonic_ns() - started_ns
                after = State.of(exchange)
                if failure:
                    after = replace(before, notes=after.notes)
                kept.steps.append(
                    Step(
                        name=self.name,
                        took_ns=took_ns,
                        before=before,
                        after=after,
                        cuts=tuple(exchange.cuts[before.cuts :]),
                        answer=verdict if isinstance(verdict, Answer) else None,
                        refusal=refusal,
                        failure=failure,
                    )
                )
            return verdict  # type: ignore[no-any-return] # the filter's own

    Watched.__name__ = kind.__name__
    return Watched


class _Proxy:
    """The proxy's end of the stream: keeps what it is told."""

    lockstep: Final = ALONE

    def __init__(self, kept: Trace) -> None:
        self._kept: Final = kept

    async def send(self, command: Command) -> None:
        self._kept.commands.append(command)

    def post(self, command: Command) -> None:
        self._kept.commands.append(command)

    def has_room(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing holds anything."""


class _Books:
    """An observer, and its only record."""

    in_flight = 0
    awaited = 0

    def __init__(self, kept: Trace) -> None:
        self._kept: Final = kept

    def begin(self, profile: str, traceparent: str | None) -> _Books:
        return self

    def end(self, facts: Facts) -> None:
        self._kept.facts = facts

    def server_timing(self, stages: Sequence[tuple[str, int]]) -> str:
        return ""
