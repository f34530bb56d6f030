"""One exchange: the proxy's events in, commands out, finished exactly once.

Knows the order of things and nothing else: what happens to a request is the pipeline's matter, how
it is written the codec's, how it travels the transport's. Awaits ports only. Whatever breaks, the
client's original request goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, assert_never
from urllib.parse import unquote

from blake3 import blake3

from ext_proc.codec import (
    ENDPOINTS_KEY,
    Body,
    Command,
    Event,
    Extend,
    Forward,
    Headers,
    Mode,
    Pass,
    Respond,
    Sent,
    Stream,
    Trailers,
    in_chunks,
)
from ext_proc.conversation import Message, Phase, advance
from ext_proc.outflow import Outflow, Peer
from ext_proc.waiting import told_before_waiting
from filters.api import (
    Answer,
    Clock,
    Cut,
    Delta,
    Dialect,
    Exchange,
    Finish,
    Holding,
    Need,
    Note,
    Outcome,
    ReplyHead,
    RequestHead,
    Task,
    Usage,
)
from filters.bounds import has_too_many_containers, has_too_many_values
from filters.breaking import UPSTREAMS, Break, ending, is_clients_fault
from filters.dialects import dialect_of
from filters.document import Document, parse
from filters.errors import NO_REPLICA, FilterError, NotJson
from filters.framing import Event as StreamEvent
from filters.framing import Framer
from filters.pipeline import Pipeline, Run, note_failure, refusal

# Headers by which clients prove who they are: one per provider, and what stands before others.
CREDENTIALS: Final = (
    "authorization",
    "x-api-key",
    "x-goog-api-key",
    "api-key",
    "proxy-authorization",
    "cookie",
    "x-auth-token",
    "ocp-apim-subscription-key",
)
OK: Final = 200
MOST_MODEL_CHARS: Final = 128  # a client's own words: no name of a model is longer
MOST_REPLY_BYTES: Final = 8 * 1024 * 1024
"""A plain reply longer than this is not looked at; it reaches the client all the same."""


@dataclass(slots=True)
class Facts:
    """What is told about an exchange when it is over: to the log, the metrics and the span."""

    profile: str
    dialect: Dialect | None = None
    model: str = ""
    pool: str = ""
    quality: str = ""
    stream: bool = False
    status: int = 0
    """The reply's status; 0 when it was not seen."""
    outcome: Outcome = Outcome.PASSED
    stages: Sequence[tuple[str, int]] = ()
    """Stage name and nanoseconds, in the order they ran."""
    notes: Mapping[str, Note] = field(default_factory=dict)
    cuts: Sequence[Cut] = ()
    """What was taken out of the prompt."""
    task: Task | None = None
    """What was asked for; None when no filter looked."""
    usage: Usage | None = None
    finish: Finish | None = None
    broken: Break | None = None
    """How a streamed answer, as far as it was seen, came not to be whole."""
    first_token_ns: int = 0
    """From the request's head to the first piece of the answer; 0 when it was not seen."""
    token_gaps_ns: list[int] = field(default_factory=list)
    """Between the pieces of a streamed answer, as far as it was seen; bounded."""


class Record(Protocol):
    """An open entry in the books: from the request's head to the end of the exchange."""

    def end(self, facts: Facts) -> None:
        """Write the log line, count, and end the span. Called exactly once."""


class Observer(Protocol):
    """Keeps the books."""

    @property
    def in_flight(self) -> int:
        """How many entries are open."""

    awaited: int
    """How many of them are of requests whose body has not come."""

    def begin(self, profile: str, traceparent: str | None) -> Record:
        """Open an entry; `traceparent` is the W3C header of the proxy's span, if there is one."""

    def server_timing(self, stages: Sequence[tuple[str, int]]) -> str:
        """Write stage times as the value of a `Server-Timing` header."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A group of replicas that Envoy knows as a cluster, and what its answers are worth."""

    name: str
    cluster: str
    quality: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What a route asked for: filters, and the pool its plain route leads to."""

    name: str
    pool: Pool
    pipeline: Pipeline
    shaped_by: str = ""
    """A hash of the settings that may change prompts or answers."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Everything exchanges share: one immutable snapshot, replaced whole when settings change."""

    profiles: Mapping[str, Profile]
    pools: Mapping[str, Pool]
    tenant_header: str
    """A header only the mesh can set; empty: the tenant is the credential itself."""
    observer: Observer
    clock: Clock
    picker: str = ""
    """The profile of streams that name none: those of a gateway that has replicas picked here."""
    most_body_bytes: int = 64 * 1024 * 1024
    """A longer body is refused where we have to hold it."""
    most_exchanges: int = 750
    """What comes while so many are open is refused: they may end sooner elsewhere. Requests whose
    body the proxy still waits for do not count, but are bounded as well: `AWAITED_FOR_EACH`."""


MOST_TOKEN_GAPS: Final = 4096
CROWDED: Final = "too many requests are being served here at once; try again"
AWAITED_FOR_EACH: Final = 4
"""So many heads may wait for their bodies as exchanges may be open, times this: a head costs
little, but it costs a client nothing either."""
CROWDED_RETRY_S: Final = 1  # the proxy before this one may try another instance at once
_MAY_READ: Final = Need.REPLY | Need.HEAD
# In Python 3.11 reading an enum's member costs 0.1 us: these are read for every message.
_IDLE: Final = Phase.IDLE
_REPEATED: Final = Phase.REPEATED
_REQUEST_HEADERS: Final = Message.REQUEST_HEADERS
_RESPONSE_BODY: Final = Message.RESPONSE_BODY
_GONE: Final = Outcome.GONE
_FORWARDED: Final = Outcome.FORWARDED
_NONE: Final = Mode.NONE


class Session:
    """The state of one stream. `receive` for every message, `leave` when the stream is over."""

    __slots__ = (
        "_awaits",
        "_blameless",
        "_dialect",
        "_duplex",
        "_ended",
        "_error",
        "_exchange",
        "_facts",
        "_framer",
        "_gateway",
        "_head",
        "_last_event",
        "_last_token_ns",
        "_mode",
        "_outcome",
        "_outflow",
        "_peer",
        "_phase",
        "_picks",
        "_profile",
        "_profile_name",
        "_record",
        "_run",
        "_settled",
        "_started_ns",
        "_subset",
        "_traceparent",
    )  # fmt: skip

    def __init__(
        self,
        gateway: Gateway,
        peer: Peer,
        *,
        profile: str | None,
        traceparent: str | None,
        duplex: bool = False,
    ) -> None:
        """Open an exchange for the profile that the route named, if it named one.

        `duplex` says that the proxy sends replies in full duplex, asked or not.
        """
        self._gateway = gateway
        self._peer = peer
        self._profile_name = profile
        self._profile: Profile | None = None
        self._traceparent = traceparent
        self._phase = _IDLE
        self._awaits = False
        """It counts among those whose body has not come."""
        self._ended = False
        self._outcome = _GONE
        """What the exchange ends as if its stream is over before we say so."""
        self._started_ns = 0
        self._last_token_ns = 0
        self._head: RequestHead | None = None
        self._dialect: Dialect | None = None
        self._record: Record | None = None
        self._facts: Facts | None = None
        self._exchange: Exchange | None = None
        self._run: Run | None = None
        self._framer: Framer | WholeBody | None = None
        self._mode = _NONE
        self._duplex = duplex
        self._outflow: Outflow | None = None
        """None where nothing of the reply has to wait."""
        self._settled = False
        """A streamed answer ended or failed, or cannot be told from one that did."""
        self._blameless = False
        """Its streamed answer failed by the client's fault, as far as the upstream says."""
        self._last_event: StreamEvent | None = None
        """The last one with data."""
        self._error = b""
        """What we put at the end of a stream."""
        self._picks = False
        """The proxy is a gateway that leaves it to us whom it asks: none named is an error."""
        self._subset: tuple[str, ...] | None = None

    async def receive(self, event: Event) -> None:
        """Take the next message and send what answers it.

        Raise `ConversationError` when it may not come here; nothing else ever leaves, short of a
        bug of ours. Either way the exchange is finished as failed.
        """
        try:
            after = advance(self._phase, event.message, last=event.last)
            if after is not _REPEATED:
                self._phase = after
            if after is _REPEATED or self._ended:
                await self._peer.send(Pass(event.message))
            else:
                await self._take(event)
        except Exception:
            await self._finish(Outcome.FAILED)
            raise

    async def leave(self) -> None:
        """Finish an exchange whose stream is over, however that came about."""
        await self._finish(self._outcome)

    async def fail(self) -> None:
        """Finish an exchange whose stream cannot be understood any more."""
        await self._finish(Outcome.FAILED)

    async def _take(self, event: Event) -> None:
        match event:
            case Body() if event.message is _RESPONSE_BODY:  # a stream's many chunks first
                await self._on_response_body(event)
            case Body():
                await self._on_request_body(event)
            case Headers() if event.message is _REQUEST_HEADERS:
                await self._on_request_headers(event)
            case Headers():
                await self._on_response_headers(event)
            case Trailers():
                await self._on_trailers(event)
            case _:
                assert_never(event)

    # --- Request ---------------------------------------------------------------------------------

    async def _on_request_headers(self, event: Headers) -> None:
        self._started_ns = self._gateway.clock.monotonic_ns()
        headers = event.headers
        name = self._profile_name
        if name is None:
            name = self._gateway.picker
            if not name:
                await self._let_pass(event, None)
                return
            self._picks = True
        self._subset = event.subset
        path = headers.get(":path", "")
        head = RequestHead(headers.get(":method", ""), path, headers)
        dialect = dialect_of(head.method, path)
        self._facts = Facts(name, dialect)
        self._record = self._gateway.observer.begin(
            name, self._traceparent or headers.get("traceparent")
        )
        books, most = self._gateway.observer, self._gateway.most_exchanges
        if books.in_flight - books.awaited > most or books.awaited >= most * AWAITED_FOR_EACH:
            await self._refuse_crowded()
            return
        profile = self._gateway.profiles.get(name)
        if profile is None:
            text = f"the gateway has no profile {name!r}; ask its operator to run `forebay check`"
            await self._refuse(500, text, "forebay_no_profile")
            return
        self._profile = profile
        if dialect is None or event.last:
            await self._let_pass(event, "no LLM call")
        elif not profile.pipeline.stages:
            await self._let_pass(event, "no filters")
        elif headers.get("content-encoding", "identity") != "identity":
            await self._let_pass(event, "compressed body")
        elif self._picks and event.route is not None and event.route.request is Sent.NONE:
            await self._let_pass(event, "body not sent")
        else:
            self._head = head
            self._dialect = dialect
            # A body that comes in full duplex is here before it is whole: it counts from its head.
            if event.route is None or event.route.request is not Sent.FULL_DUPLEX:
                self._awaits = True
                books.awaited += 1
            await self._peer.send(Pass(event.message))

    async def _on_request_body(self, event: Body) -> None:
        profile, head, dialect, facts = self._profile, self._head, self._dialect, self._facts
        if profile is None or head is None or dialect is None or facts is None or self._exchange:
            # A body before trailers does not say that it is the last, and may come twice as well.
            await self._peer.send(Pass(event.message))
            return
        if await self._finds_no_place():
            return
        if has_too_many_values(event.data):
            await self._let_pass(event, "too many values")
            return
        lockstep = self._peer.lockstep
        if lockstep.several:
            await lockstep
        try:
            prompt = dialect.read(Document(event.data), head.path)
        except NotJson:
            await self._let_pass(event, _why_unread(event.data))
            return
        exchange = self._exchange = Exchange(
            profile=profile.name,
            tenant=tenant_of(head, self._gateway.tenant_header),
            head=head,
            dialect=dialect,
            prompt=prompt,
            pool=profile.pool.name,
            traceparent=self._traceparent or head.headers.get("traceparent", ""),
            shaped_by=profile.shaped_by,
            subset=self._subset,
            must_pick=self._picks,
        )
        run = self._run = Run(profile.pipeline)
        facts.model, facts.stream, facts.notes = prompt.model, prompt.stream, exchange.notes
        facts.stages, facts.cuts = run.timings, exchange.cuts
        if patience_s := profile.pipeline.patience_s:
            long = partial(self._peer.send, Extend(patience_s))
            answer = await told_before_waiting(run.request(exchange, lockstep), long)
        else:
            answer = await run.request(exchange, lockstep)
        if lockstep.several:
            await lockstep
        if answer is None and self._picks and not exchange.endpoints:
            answer = refusal(exchange, FilterError(503, NO_REPLICA))
        if answer is not None:
            await self._answer(exchange, answer)
            return
        forward = self._forward(profile, exchange)
        if not exchange.needs:
            await self._send_last(forward, _FORWARDED)
        else:
            await self._peer.send(forward)

    async def _finds_no_place(self) -> bool:
        """Take a place once a request is here as a whole; refuse it where there is none."""
        if not self._awaits:
            return False
        self._awaits = False
        books = self._gateway.observer
        books.awaited -= 1
        if books.in_flight - books.awaited <= self._gateway.most_exchanges:
            return False
        await self._refuse_crowded()
        return True

    def _forward(self, profile: Profile, exchange: Exchange) -> Forward:
        """Say how the request goes upstream, and what the client is told with its reply."""
        pool = self._gateway.pools.get(exchange.pool)
        if pool is None:
            exchange.note("pool.unknown", exchange.pool)
            pool = profile.pool
        set_headers = exchange.upstream_headers
        set_headers["x-model-quality"] = pool.quality
        elsewhere = pool is not profile.pool and not self._picks
        if elsewhere:
            set_headers["x-forebay-cluster"] = pool.cluster
        endpoints = ",".join(exchange.endpoints)
        if self._picks:
            set_headers[ENDPOINTS_KEY] = endpoints
        # What we may read must come as plain bytes; clients do without compression for it.
        needs = exchange.needs
        removed = ("accept-encoding",) if needs and needs & _MAY_READ else ()
        if ENDPOINTS_KEY in exchange.head.headers and not self._picks:
            removed = (*removed, ENDPOINTS_KEY)
        body: bytes | None = None
        if exchange.prompt.document.changed:
            body = exchange.prompt.document.render()
            set_headers["content-length"] = str(len(body))
        facts = self._facts
        assert facts is not None  # set with the exchange
        facts.pool, facts.quality = pool.name, pool.quality
        told = exchange.client_headers
        told["x-model-quality"] = pool.quality
        return Forward(
            set_headers=set_headers,
            remove_headers=removed,
            body=body,
            metadata={
                **told,
                "x-forebay-profile": profile.name,
                "server-timing": self._server_timing(),
                "pool": pool.name,
                "dialect": exchange.dialect.name,
                "model": exchange.prompt.model[:MOST_MODEL_CHARS],
            },
            choose_route_again=elsewhere,
            endpoints=endpoints,
        )

    async def _answer(self, exchange: Exchange, answer: Answer) -> None:
        facts = self._facts
        assert facts is not None  # set with the exchange
        facts.status = answer.status
        facts.quality = answer.headers.get("x-model-quality", "")
        body = await self._relay(exchange, answer, facts) if answer.relayed else answer.body
        headers = {
            **exchange.client_headers,
            **answer.headers,
            "x-forebay-profile": exchange.profile,
            "server-timing": self._server_timing(),
        }
        metadata = {
            "x-forebay-profile": exchange.profile,
            "dialect": exchange.dialect.name,
            "model": exchange.prompt.model[:MOST_MODEL_CHARS],
        }
        if answer.relayed:
            metadata["pool"] = facts.pool
        details = f"forebay_{answer.status}"
        respond = Respond(answer.status, headers, body, details, metadata)
        await self._send_last(respond, Outcome.COMPLETE if answer.relayed else Outcome.ANSWERED)

    async def _relay(self, exchange: Exchange, answer: Answer, facts: Facts) -> bytes:
        """Show the filters what the upstream said by another way; return what the client gets."""
        run, pool = self._run, self._gateway.pools.get(exchange.pool)
        assert run is not None  # it answered
        facts.pool = exchange.pool
        if pool is not None:
            facts.quality = pool.quality
            told = {"x-model-quality": pool.quality, "x-forebay-pool": pool.name}
            exchange.client_headers.update(told)
        exchange.reply_head = ReplyHead(answer.status, answer.headers)
        await run.response(exchange)
        if not exchange.needs & Need.REPLY:
            return answer.body
        self._framer = WholeBody()
        return b"".join(delta.raw for delta in self._read(answer.body, last=True))

    async def _let_pass(self, event: Event, why: str | None) -> None:
        """Let the exchange go on without us."""
        metadata = None
        if self._profile is not None:
            metadata = {"x-forebay-profile": self._profile.name}
        if self._facts is not None and why is not None:
            self._facts.notes = {"pass": why}
        if self._picks and event.message is not Message.RESPONSE_HEADERS:
            await self._pick_unread(event.message, metadata)
            return
        await self._send_last(Pass(event.message, metadata), Outcome.PASSED)

    async def _pick_unread(self, message: Message, metadata: Mapping[str, str] | None) -> None:
        """Name replicas for what no filter reads, such as a list of models."""
        profile, facts = self._profile, self._facts
        assert profile is not None  # where we pick
        assert facts is not None
        replicas = profile.pipeline.ports.replicas
        picked = replicas.pick(profile.pool.name, b"", "", watched=False, subset=self._subset)
        if picked is None:
            await self._refuse(503, NO_REPLICA, "forebay_no_replica")
            return
        picked.ended(good=False)  # it prefills nothing, and nobody will see its end
        facts.pool, facts.quality = profile.pool.name, profile.pool.quality
        endpoints = ",".join(picked.addresses)
        facts.notes = {**facts.notes, "pick.replica": picked.addresses[0]}
        forward = Forward(
            {ENDPOINTS_KEY: endpoints}, metadata=metadata, endpoints=endpoints, message=message
        )
        await self._send_last(forward, Outcome.PASSED)

    async def _refuse(
        self, status: int, text: str, details: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with an error: a route to a profile that is missing must not serve unprotected."""
        dialect = self._facts.dialect if self._facts is not None else None
        body = dialect.error(status, text) if dialect else text.encode()
        kind = "application/json" if dialect else "text/plain; charset=utf-8"
        if self._facts is not None:
            self._facts.status = status
        respond = Respond(status, {"content-type": kind, **(headers or {})}, body, details)
        await self._send_last(respond, Outcome.REFUSED)

    async def _refuse_crowded(self) -> None:
        assert self._facts is not None  # only what is in the books is counted
        self._facts.notes = {"refused": "crowded"}
        retry = {"retry-after": str(CROWDED_RETRY_S)}
        await self._refuse(503, CROWDED, "forebay_crowded", retry)

    async def refuse_body(self) -> None:
        """Answer that the request's body is longer than may be held."""
        most = self._gateway.most_body_bytes
        await self._refuse(413, f"the request's body has more than {most} bytes", "forebay_413")

    async def _on_trailers(self, event: Trailers) -> None:
        """Trailers end a direction; those of the reply end the exchange."""
        if event.message is Message.REQUEST_TRAILERS:
            await self._on_request_trailers(event)
            return
        if self._outflow is not None:
            await self._on_flow(event, self._outflow)
            return
        left = b"".join(delta.raw for delta in self._read(b"", last=True))
        if left and self._mode is Mode.FULL_DUPLEX:
            for piece in in_chunks(left, last=False, message=Message.RESPONSE_BODY):
                await self._peer.send(piece)
        await self._send_last(Pass(event.message), Outcome.COMPLETE)

    async def _on_request_trailers(self, event: Trailers) -> None:
        """Trailers without a body end a request in which there is nothing to read."""
        if self._head is None or self._exchange is not None:
            await self._peer.send(Pass(event.message))
        elif await self._finds_no_place():
            return
        elif self._picks:  # no header can be set any more, so nobody can be named
            await self._refuse(400, "the request has no body", "forebay_400")
        else:
            await self._let_pass(event, "no body")

    # --- Reply -----------------------------------------------------------------------------------

    async def _on_response_headers(self, event: Headers) -> None:
        exchange, run, facts = self._exchange, self._run, self._facts
        status = event.headers.get(":status", "")
        if facts is not None:
            facts.status = int(status) if status.isascii() and status.isdigit() else 0
        if exchange is None or run is None or facts is None:
            # The proxy answered by itself before the request was whole, for instance with 413; or
            # the request ended with trailers behind no body, and the proxy does not send those.
            await self._let_pass(event, "answered by the proxy")
            return
        exchange.reply_head = ReplyHead(facts.status, event.headers, event.served)
        await run.response(exchange)
        self._mode = self._reading_mode(exchange, last=event.last)
        go_on = Pass(event.message, response_body=self._mode)
        if event.last:
            await self._send_last(go_on, Outcome.COMPLETE)
        elif self._mode is Mode.NONE and not exchange.needs & Need.END:
            await self._send_last(go_on, Outcome.FORWARDED)
        else:
            if self._mode is Mode.NONE:  # whose end and whose leaving Envoy does not tell apart
                self._outcome = Outcome.FORWARDED
            await self._peer.send(go_on)

    def _reading_mode(self, exchange: Exchange, *, last: bool) -> Mode:
        """Choose how the body comes: chunks shown to us, or given to us to send what we like."""
        head = exchange.reply_head
        if last or head is None or not exchange.needs & Need.REPLY:
            return Mode.NONE
        if "content-encoding" in head.headers:
            exchange.note("reply.skip", "compressed")
            return Mode.NONE
        content_type = head.headers.get("content-type", "")
        self._framer = exchange.dialect.framer(content_type, exchange.prompt)
        if self._framer is None:
            if not content_type.startswith("application/json"):
                exchange.note("reply.skip", "content type")
                return Mode.NONE
            self._framer = WholeBody()
        profile, run = self._profile, self._run
        assert profile is not None  # with the exchange
        assert run is not None
        edits, holding = profile.pipeline.edits_stream, profile.pipeline.holding
        if not holding or isinstance(self._framer, WholeBody):
            return Mode.FULL_DUPLEX if edits else Mode.STREAMED
        cut = edits or holding is Holding.CUT or self._duplex
        ports, over = profile.pipeline.ports, self._completed
        self._outflow = Outflow(self._peer, run, exchange, ports, cut=cut, over=over)
        return Mode.FULL_DUPLEX if cut else Mode.STREAMED

    async def _on_response_body(self, event: Body) -> None:
        """Pass a chunk on at once where filters only watch; else send what they made of it."""
        if self._outflow is not None:
            await self._on_flow(event, self._outflow)
            return
        edits = self._mode is Mode.FULL_DUPLEX
        commands: Iterable[Command] = (Pass(event.message),)
        if edits or event.last:  # the end may need a word from us
            made = b"".join(delta.raw for delta in self._read(event.data, last=event.last))
            if edits:
                commands = in_chunks(made, last=event.last, message=event.message)
            elif self._error:
                body = event.data + self._error
                commands = (Forward({}, body=body, message=event.message),)
        if event.last:
            self._outcome = Outcome.COMPLETE
        try:
            for command in commands:
                await self._peer.send(command)
        finally:  # also when cancelled: what was passed on was said
            if not edits and not event.last:
                self._read(event.data, last=False)
        if event.last:
            self._peer.close()
            await self._finish(Outcome.COMPLETE)

    async def _on_flow(self, event: Body | Trailers, outflow: Outflow) -> None:
        """Send what is due; when the upstream's reply is over, the client's may not be."""
        exchange, run = self._exchange, self._run
        assert exchange is not None  # they are there with the flow
        assert run is not None
        data = event.data if isinstance(event, Body) else b""
        deltas = self._read(data, last=event.last)
        if event.last:
            deltas += run.end(exchange)
        if isinstance(event, Trailers):
            over = await outflow.end(deltas, Pass(event.message))
        else:
            over = await outflow.take(event, deltas, self._last_of(event) if event.last else None)
        if over:
            self._peer.close()
            await self._finish(Outcome.COMPLETE)

    def _last_of(self, event: Body) -> Command:
        """Return what answers the last chunk."""
        if self._mode is Mode.FULL_DUPLEX:
            return Stream(b"", last=True)
        if self._error:
            return Forward({}, body=event.data + self._error, message=event.message)
        return Pass(event.message)

    def _completed(self) -> None:
        self._outcome = Outcome.COMPLETE

    def _read(self, data: bytes, *, last: bool) -> list[Delta]:
        """Cut bytes into deltas and show them to the filters; return what the client gets."""
        exchange, run, framer = self._exchange, self._run, self._framer
        if exchange is None or run is None or framer is None:
            return [Delta(data)]
        deltas = self._show(exchange, run, framer, framer.feed(data))
        if last:
            deltas += self._show(exchange, run, framer, self._close(exchange, framer))
        return deltas

    def _close(self, exchange: Exchange, framer: Framer | WholeBody) -> Sequence[StreamEvent]:
        """Return what is left at the end, and what its reader is told if the answer had none."""
        facts = self._facts
        if facts is None or facts.status != OK or self._settled or isinstance(framer, WholeBody):
            return framer.close()
        end = ending(exchange.dialect, framer, self._last_event, sent=self._mode is Mode.STREAMED)
        if end.broken and facts.broken is None:
            facts.broken = Break.UNFINISHED
        head = exchange.reply_head
        told = self._mode is Mode.STREAMED and head is not None and "content-length" in head.headers
        if end.error is None or told:  # the proxy makes an error of all of it where a length is off
            return end.rest
        self._error = end.error.raw
        return [*end.rest, end.error]

    def _show(
        self,
        exchange: Exchange,
        run: Run,
        framer: Framer | WholeBody,
        events: Iterable[StreamEvent],
    ) -> list[Delta]:
        """Show events to the filters; return what the client gets."""
        deltas: list[Delta] = []
        for event in events:
            if event.data:
                self._last_event = event
            if self._outflow is not None:
                self._outflow.seen_bytes += len(event.raw)
            try:
                if has_too_many_containers(event.data):
                    delta = Delta(event.raw)
                    self._settled = True
                elif isinstance(framer, WholeBody):
                    delta = _whole_reply(exchange.dialect, event)
                else:
                    delta = exchange.dialect.read_event(event)
            except Exception as error:  # noqa: BLE001 - fail-open: the bytes reach the client
                note_failure(exchange, exchange.dialect.name, error)
                delta = Delta(event.raw)
                self._settled = True
            self._count(delta)
            deltas.extend(run.delta(exchange, delta))
        return deltas

    def _count(self, delta: Delta) -> None:
        """Keep what the books want to know of a delta."""
        facts = self._facts
        if facts is None:
            return
        if delta.usage is not None:
            facts.usage = _greatest(delta.usage, facts.usage)
        facts.finish = delta.finish or facts.finish
        if delta.done or delta.finish or delta.failed:
            self._settled = True
            if delta.failed and facts.broken is None:
                facts.broken = Break.FAILED
                said = self._last_event
                self._blameless = said is not None and is_clients_fault(said.data)
        if not delta.text:
            return
        at = self._gateway.clock.monotonic_ns()
        if not facts.first_token_ns:
            facts.first_token_ns = at - self._started_ns
        elif len(facts.token_gaps_ns) < MOST_TOKEN_GAPS:
            facts.token_gaps_ns.append(at - self._last_token_ns)
        self._last_token_ns = at

    # --- End -------------------------------------------------------------------------------------

    async def _send_last(self, command: Command, outcome: Outcome) -> None:
        """Send what ends the exchange: it counts as sent even if the proxy leaves meanwhile.

        A client that closes its connection behind a reply takes the stream with it, often before
        the call that sent the reply returns.
        """
        self._outcome = outcome
        await self._peer.send(command)
        self._peer.close()
        await self._finish(outcome)

    async def _finish(self, outcome: Outcome) -> None:
        """Let every filter let go, then write the books; the first outcome counts.

        What a cancelled call left undone the next one does.
        """
        facts = self._facts
        if not self._ended and facts is not None:
            facts.outcome = outcome
            stream = self._framer is not None and not isinstance(self._framer, WholeBody)
            if stream and not self._settled and outcome is Outcome.GONE:
                facts.broken = facts.broken or Break.CUT
            if facts.broken in UPSTREAMS and self._exchange is not None:
                self._exchange.broke_off = not self._blameless
        self._ended = True
        if self._awaits:
            self._awaits = False
            self._gateway.observer.awaited -= 1
        if self._outflow is not None:
            self._outflow.close()
        try:
            if self._run is not None and self._exchange is not None and facts is not None:
                await self._run.finish(self._exchange, facts.outcome)
        finally:  # also when cancelled: the books count what is in flight
            record, self._record = self._record, None
            if record is not None and facts is not None:
                if self._exchange is not None:
                    facts.task = self._exchange.task
                record.end(facts)

    def _server_timing(self) -> str:
        run = self._run
        assert run is not None  # runs only once a pipeline ran
        total_ns = self._gateway.clock.monotonic_ns() - self._started_ns
        return self._gateway.observer.server_timing([*run.timings, ("forebay", total_ns)])


class WholeBody:
    """A framer for a plain reply: one event that is the whole body, if it is not too long."""

    def __init__(self, most_bytes: int = MOST_REPLY_BYTES) -> None:
        self._most_bytes: Final = most_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Keep the bytes; over the bound they pass as they come and mean nothing."""
        self._size += len(data)
        self._pieces.append(data)
        if self._size <= self._most_bytes:
            return []
        pieces, self._pieces = self._pieces, []
        return [StreamEvent(b"".join(pieces))]

    def close(self) -> list[StreamEvent]:
        """Return the body."""
        if self._size > self._most_bytes:
            return []
        whole = b"".join(self._pieces)
        return [StreamEvent(whole, data=whole)]


def _why_unread(body: bytes) -> str:
    """Say why no prompt was found in a body: its bytes, or what they say."""
    try:
        parse(body)
    except NotJson:
        return "not JSON"
    return "shape not known"


def _whole_reply(dialect: Dialect, event: StreamEvent) -> Delta:
    """Read a plain reply as one delta."""
    try:
        reply = dialect.read_reply(parse(event.data))
    except NotJson:
        return Delta(event.raw)
    return Delta(event.raw, reply.text, reply.finish, reply.usage, done=reply.finish is not None)


def _greatest(usage: Usage, before: Usage | None) -> Usage:
    """Join counts spread over events: each is a running total, and 0 where an event has none."""
    if before is None:
        return usage
    return Usage(
        max(usage.input, before.input),
        max(usage.output, before.output),
        max(usage.cached, before.cached),
    )


def tenant_of(head: RequestHead, tenant_header: str) -> str:
    """Return whose request this is, as a hash: by the mesh's header, else by its credentials.

    A request that came without that header past the mesh is nobody's but whose credentials it has.
    All of them count, for the one that the upstream reads is not known here. Requests without any
    share one tenant, which no credential can name.
    """
    headers = head.headers
    if tenant_header and (named := headers.get(tenant_header)):
        return _hashed("mesh", named)
    found = [f"{name}:{value}" for name in CREDENTIALS if (value := headers.get(name))]
    if query := head.path.partition("?")[2]:  # Gemini's clients may send the key there
        members = query.split("&")
        found += [member for member in members if unquote(member.partition("=")[0]) == "key"]
    return _hashed("client", "\n".join(found))  # no header holds a line feed


def _hashed(kind: str, value: str) -> str:
    return blake3(f"{kind}:{value}".encode()).hexdigest(16)
