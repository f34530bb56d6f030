"""Play an exchange written as text, and write down what came of it in the same form.

A script is read line by line. The lines a reader acts on start in the first column, what belongs to
them is indented:

    == faq                      a new exchange, on the route of profile `faq`; `== -`: of none
    >> POST /v1/messages        request headers; further ones as `name: value` below
    >> request body             the text below; `last` at the end of the line ends the direction
    >> request trailers
    >> status 200               response headers, likewise
    >> response body
    >> response trailers
    >> gone                     the stream is over
    -- 0.25 s                   time passes
    -- store fails              the store breaks; `-- store works`: it is back

What is found stands below each of them:

    << pass request headers     commands to the proxy, and `<< close` for the end of our side
    .. store get                calls to the store
    .. end complete             the entry in the books, with the facts that are not at their default

Texts are joined without line ends; ␊, ␍ and ␀ stand for the characters they are named after.
Everything else is for the reader.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never

from ext_proc.codec import (
    Body,
    Command,
    Event,
    Extend,
    Forward,
    Headers,
    Pass,
    Respond,
    Stream,
    Trailers,
)
from ext_proc.conversation import Message
from ext_proc.session import Facts, Gateway, Pool, Profile, Record, Session
from filters.api import Config
from filters.lockstep import ALONE, Lockstep
from filters.pipeline import AnyFilter, Pipeline
from tests.fakes import FakeClock, FakeStore, FakeWheel, drive, fake_ports

FULL: Final = Pool("full", "full", "FULL")
BEST_EFFORT: Final = Pool("best_effort", "best_effort", "BEST_EFFORT")

_DIGEST: Final = re.compile(r"\b[0-9a-f]{48}\b")  # of a key
_PICTURES: Final = {"\n": "␊", "\r": "␍", "\0": "␀"}
_TRAILERS: Final = {
    "request trailers": Message.REQUEST_TRAILERS,
    "response trailers": Message.RESPONSE_TRAILERS,
}
_BODIES: Final = {
    "request body": Message.REQUEST_BODY,
    "response body": Message.RESPONSE_BODY,
}


@dataclass(frozen=True, slots=True)
class Open:
    """An exchange begins; `profile` is `-` where the route names none."""

    profile: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The stream is over."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StoreFails:
    """The store breaks, or is back."""

    fails: bool


Action: TypeAlias = Open | Event | Gone | Sleep | StoreFails | None


@dataclass
class Transcript:
    """What happened, line by line."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str, *details: str) -> None:
        self.lines += [line, *(f"   {_pictured(detail)}".rstrip() for detail in details)]


class ScriptedStore(FakeStore):
    """A store whose calls are written down."""

    def __init__(self, clock: FakeClock, transcript: Transcript) -> None:
        super().__init__(clock)
        self._transcript = transcript

    async def _called(self, operation: str, key: bytes) -> None:
        self._transcript.add(f".. store {operation}")
        await super()._called(operation, key)


@dataclass
class Books:
    """An observer that writes the facts of every exchange down when it ends."""

    transcript: Transcript
    begun: list[tuple[str, str | None]] = field(default_factory=list)
    ended: list[Facts] = field(default_factory=list)
    awaited: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.begun) - len(self.ended)

    def begin(self, profile: str, traceparent: str | None) -> Record:
        self.begun.append((profile, traceparent))
        return self

    def end(self, facts: Facts) -> None:
        self.ended.append(facts)
        self.transcript.add(f".. end {facts.outcome}", *_facts(facts))

    def server_timing(self, stages: Sequence[tuple[str, int]]) -> str:
        return ", ".join(f"{name};dur={ns / 1e6:g}" for name, ns in stages)


@dataclass
class ScriptedPeer:
    """The proxy's end: writes commands down."""

    transcript: Transcript
    lockstep: Lockstep = ALONE
    commands: list[Command] = field(default_factory=list)
    closed: bool = False
    reads: bool = True

    async def send(self, command: Command) -> None:
        if not self.closed:
            self.commands.append(command)
            self.transcript.add(*_command(command))

    def post(self, command: Command) -> None:
        if not self.closed:
            self.commands.append(command)
            self.transcript.add(*_command(command))

    def has_room(self) -> bool:
        return self.reads

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.transcript.add("<< close")


class Stage:
    """A gateway with everything about it in sight, and the exchange that is being played."""

    def __init__(
        self,
        profiles: Mapping[str, Iterable[tuple[type[AnyFilter], Config]]],
        *,
        pools: Mapping[str, Pool] | None = None,
        tenant_header: str = "",
        most_exchanges: int = 750,
    ) -> None:
        """Make a gateway of these profiles; `pools` are those of profiles that have not `FULL`."""
        self.transcript = Transcript()
        self.clock = FakeClock()
        self.store = ScriptedStore(self.clock, self.transcript)
        self.books = Books(self.transcript)
        self.wheel = FakeWheel(self.clock)
        ports = fake_ports(self.clock, store=self.store, wheel=self.wheel)
        self.gateway = Gateway(
            profiles={
                name: Profile(name, (pools or {}).get(name, FULL), Pipeline(filters, ports))
                for name, filters in profiles.items()
            },
            pools={each.name: each for each in (FULL, BEST_EFFORT)},
            tenant_header=tenant_header,
            observer=self.books,
            clock=self.clock,
            most_exchanges=most_exchanges,
        )
        self.peer = ScriptedPeer(self.transcript)
        self.session = self.open("-")

    def open(self, profile: str, traceparent: str | None = None) -> Session:
        """Begin another exchange."""
        self.peer = ScriptedPeer(self.transcript)
        name = None if profile == "-" else profile
        self.session = Session(self.gateway, self.peer, profile=name, traceparent=traceparent)
        return self.session

    def receive(self, *events: Event) -> list[Command]:
        """Hand events to the exchange and return the commands that answer them."""
        before = len(self.peer.commands)
        for event in events:
            drive(self.session.receive(event))
        return self.peer.commands[before:]

    def leave(self) -> None:
        """End the stream."""
        drive(self.session.leave())

    def play(self, script: str) -> str:
        """Play a script and return it with what was found in place of what was expected."""
        self.transcript.lines.clear()
        for lines, action in read_script(script):
            self.transcript.lines += lines
            self.act(action)
        return "\n".join(self.transcript.lines) + "\n"

    def act(self, action: Action) -> None:
        """Do what one line of a script says."""
        match action:
            case Open(profile):
                self.open(profile)
            case Gone():
                self.leave()
            case Sleep(seconds):
                self.wheel.turn(seconds)
            case StoreFails(fails):
                self.store.failing = fails
            case None:
                pass
            case _:
                self.receive(action)


def check(stage: Stage, script: str) -> None:
    """Play a script and fail with a diff if anything else came of it than it says."""
    actual = stage.play(script)
    diff = difflib.unified_diff(
        script.splitlines(), actual.splitlines(), "expected", "actual", n=9, lineterm=""
    )
    assert script == actual, "\n".join(diff)


# --- Reading -------------------------------------------------------------------------------------


def read_script(script: str) -> Iterator[tuple[list[str], Action]]:
    """Yield what to do, and the lines that say so; what is expected is left out."""
    for lines in _blocks(script):
        head, *details = lines
        if not head.startswith(("<<", "..")):
            yield lines, _action(head, [detail.strip() for detail in details])


def _blocks(script: str) -> Iterator[list[str]]:
    """Yield each line with the indented ones below it."""
    block: list[str] = []
    for line in script.splitlines():
        if block and line.startswith("   "):
            block.append(line)
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _action(line: str, details: list[str]) -> Action:
    verb, _, rest = line.partition(" ")
    match verb:
        case "==":
            return Open(rest)
        case ">>" if rest == "gone":
            return Gone()
        case ">>":
            return _event(rest, details)
        case "--" if rest.startswith("store "):
            return StoreFails({"store fails": True, "store works": False}[rest])
        case "--":
            return Sleep(float(rest.removesuffix(" s")))
        case _:
            return None


def _event(what: str, details: list[str]) -> Event:
    last = what.endswith(" last")
    what = what.removesuffix(" last")
    if what in _TRAILERS:
        return Trailers(_TRAILERS[what])
    if what in _BODIES:
        text = "".join(details)
        for character, picture in _PICTURES.items():
            text = text.replace(picture, character)
        return Body(_BODIES[what], text.encode(), last)
    headers = dict(detail.split(": ", 1) for detail in details)
    first, second = what.split(" ", 1)
    if first == "status":
        return Headers(Message.RESPONSE_HEADERS, {":status": second, **headers}, last)
    return Headers(Message.REQUEST_HEADERS, {":method": first, ":path": second, **headers}, last)


# --- Writing -------------------------------------------------------------------------------------


def _pictured(text: str) -> str:
    for character, picture in _PICTURES.items():
        text = text.replace(character, picture)
    return text


def _text(data: bytes) -> list[str]:
    """Write bytes as a script has them: a line ends behind each line feed."""
    return data.decode("utf-8", "backslashreplace").splitlines(keepends=True)


def _pairs(verb: str, pairs: Mapping[str, str] | None) -> list[str]:
    return [f"{verb} {name}: {value}" for name, value in (pairs or {}).items()]


def _command(command: Command) -> list[str]:
    match command:
        case Pass(message, metadata, mode):
            asked = [] if mode is None else [f"response body: {mode.name}"]
            return [f"<< pass {message.value}", *_pairs("tell", metadata), *asked]
        case Forward():
            body = ["body: as it came"] if command.body is None else ["body:", *_text(command.body)]
            again = ["choose route again"] if command.choose_route_again else []
            again += [f"ask {command.endpoints}"] if command.endpoints else []
            return [
                "<< forward",
                *_pairs("set", command.set_headers),
                *(f"remove {name}" for name in command.remove_headers),
                *_pairs("tell", command.metadata),
                *again,
                *body,
            ]
        case Respond(status, headers, body, details, metadata):
            told = _pairs("tell", metadata)
            return [f"<< respond {status} {details}", *_pairs("set", headers), *told, *_text(body)]
        case Stream(data, last):
            return ["<< stream last" if last else "<< stream", *_text(data)]
        case Extend(seconds):
            return [f"<< extend {seconds:g} s"]
        case _:
            assert_never(command)


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:g} s"


def _facts(facts: Facts) -> Iterator[str]:
    shown: dict[str, Any] = {
        "profile": facts.profile,
        "dialect": facts.dialect and facts.dialect.name,
        "model": facts.model,
        "pool": facts.pool,
        "quality": facts.quality,
        "stream": facts.stream,
        "status": facts.status,
        "stages": " ".join(name for name, _ in facts.stages),
        "first token": facts.first_token_ns and _seconds(facts.first_token_ns),
        "gaps": ", ".join(map(_seconds, facts.token_gaps_ns)),
        "finish": facts.finish,
        "broken": facts.broken,
    }
    if usage := facts.usage:
        shown["usage"] = f"{usage.input} in, {usage.cached} of them cached, {usage.output} out"
    for name, value in shown.items():
        if value:
            yield f"{name}: {value}"
    for name, value in facts.notes.items():
        yield f"note {name}: {_DIGEST.sub('DIGEST', str(value))}"
