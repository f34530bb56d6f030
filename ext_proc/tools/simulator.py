r"""Stand in for vLLM replicas and for the providers' APIs, so that all runs without a model.

Each replica listens on a port of its own and answers what OpenAI, Gemini and Anthropic clients
send, with words made from the prompt alone. Request headers command it:

| header | effect |
|---|---|
| `x-test-status: 503` | an error in the provider's shape; `503,200`: by attempt, see below |
| `x-test-delay: 0.2` | seconds before the first byte |
| `x-test-sse: ["data: a", "b\n\n"]` | exactly these chunks; or each in Base64, with commas |
| `x-test-close: 40`, `2 chunks` | drop the connection after so much of the body; 0: at once |
| `x-test-gzip: 1` | a compressed reply |
| `x-test-echo: 1` | the request as it came: method, path, headers, body_base64 |
| `x-test-no-done: 1` | a stream without the event that ends it |
| `x-test-crlf: 1` | a stream whose lines end with CRLF |
| `x-test-tokens: 50000` | an answer of exactly so many tokens |
| `x-test-headers: {"etag": "1"}` | more headers on the reply |

Attempts are requests with the same `x-request-id`, at any replica; the last status stays. What
happens to all requests of a replica is said at `/simulator`: see `simulator_desk`.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import math
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from ext_proc.tools import simulated_apis as apis
from ext_proc.tools import simulator_desk as desk
from ext_proc.tools.kv_publisher import Publisher
from ext_proc.tools.replica_faults import ALL, ENDS_IN_RESTART, Fault, Kind
from ext_proc.tools.replica_life import Life, Model, Running, TooLong
from ext_proc.tools.replica_time import LoopTimers
from ext_proc.tools.simulated_model import Ask, Said, Spent, say, tokens_of
from ext_proc.tools.simulated_replies import Commands, Refused, Sender, apart
from ext_proc.transport.address import close
from filters.api import Finish
from filters.document import Json, encode, parse
from filters.errors import NotJson

HOST: Final = "127.0.0.1"
BODY_BYTES: Final = 256 << 20  # more than any gateway lets through, less than a machine has
HEADER_BYTES: Final = 64 << 10  # Envoy's own limit is 60 KiB; `x-test-sse` needs the room
KEPT_REQUESTS: Final = 1_000
KEPT_ATTEMPTS: Final = 10_000
MOST_PORT: Final = 65_535
IDLE_S: Final = 3_600.0  # longer than proxies keep idle connections, so that they close first
STOP_S: Final = 0.1  # streams are cut when the simulator ends, as when a replica dies
BACKLOG: Final = 4_096  # a burst of clients that find it full try again only after a second
ENDPOINTS: Final[tuple[tuple[str, apis.Api], ...]] = (
    ("/chat/completions", apis.OpenAIChat()),
    ("/completions", apis.OpenAICompletions()),
    ("/responses", apis.OpenAIResponses()),
    ("/messages", apis.Anthropic()),
)


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it reached a replica; header names are lower case."""

    replica: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Replica:
    """One simulated server: a model behind a port, and how it fails."""

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        model: Model,
        on_request: Callable[[Received], None],
        attempts: Counter[str],
        desk: desk.Desk,
        *,
        port: int = 0,
        events_ports: tuple[int, int] | None = None,
    ) -> None:
        """Make one that listens at `port`, and tells of blocks at two others.

        A port of 0 is any free one.
        """
        self.name: Final = name
        self.model: Final = model
        self.port = port
        self.faults: Final[dict[Kind, Fault]] = {}
        self.events_ports: Final = events_ports
        self._models: Final = models
        self._on_request: Final = on_request
        self._attempts: Final = attempts
        self._desk: Final = desk
        self._rng: Final = random.Random(name)  # noqa: S311 - repeatable
        self._frozen: bytes | None = None
        self._planned: Final[dict[Kind, asyncio.Task[None]]] = {}
        self._life: Life | None = None
        self._publisher: Publisher | None = None
        self._server: web.Server | None = None
        self._listening: asyncio.Server | None = None

    @property
    def life(self) -> Life:
        """The life that it lives; only once it has started."""
        assert self._life is not None
        return self._life

    @property
    def publisher(self) -> Publisher | None:
        """Where it tells of its blocks."""
        return self._publisher

    @property
    def listening(self) -> bool:
        """Whether it takes connections."""
        return self._listening is not None

    async def start(self) -> None:
        """Listen; raise `OSError` when a port is taken."""
        self._server = web.Server(
            self.handle,
            request_factory=_request,
            handler_cancellation=True,  # a client that leaves ends its request, as in vLLM
            access_log=None,
            auto_decompress=False,  # what came is what `requests` and an echo show
            keepalive_timeout=IDLE_S,
            max_field_size=HEADER_BYTES,
            max_line_size=HEADER_BYTES,
        )
        await self._listen()
        try:
            self._live()
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End what runs, and listen no more."""
        for task in self._planned.values():
            task.cancel()
        self._planned.clear()
        self._end_life()
        if self._listening is not None:
            await close(self._listening)
            self._listening = None
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(STOP_S)

    def plan(self, fault: Fault, *, keep: asyncio.BaseTransport | None = None) -> None:
        """Have it fail, now or later; the connection `keep` outlives a crash."""
        self._unplan(fault.kind)
        if not fault.after_s:
            self._fail(fault, keep)
        if fault.after_s or fault.for_s < math.inf:
            self._planned[fault.kind] = asyncio.create_task(self._happen(fault))

    async def recover(self, *kinds: Kind, keep: asyncio.BaseTransport | None = None) -> None:
        """Have it fail no longer, in some ways or in any; the connection `keep` stays."""
        for kind in kinds or tuple(Kind):
            self._unplan(kind)
            await self._recover(kind, keep)

    def _unplan(self, kind: Kind) -> None:
        if (task := self._planned.pop(kind, None)) is not None:
            task.cancel()

    async def _happen(self, fault: Fault) -> None:
        if fault.after_s:
            await asyncio.sleep(fault.after_s)
            self._fail(fault, None)
        if fault.for_s < math.inf:
            await asyncio.sleep(fault.for_s)
            await self._recover(fault.kind, None)

    def _fail(self, fault: Fault, keep: asyncio.BaseTransport | None) -> None:
        self.faults[fault.kind] = fault
        self._suffer(fault)
        if fault.kind is Kind.CRASH:
            self._end_life()
            self._close()
            self._drop_connections(keep)

    def _suffer(self, fault: Fault) -> None:
        """Have the life it lives suffer from a fault."""
        life = self.life
        match fault.kind:
            case Kind.SLOW:
                life.timed.speed = self.model.speed / fault.factor
            case Kind.HANG:
                life.timed.stop()
            case Kind.SILENT:
                life.timed.stop()
                life.silent = True
            case Kind.FROZEN:
                self._frozen = self._frozen or life.metrics()

    async def _recover(self, kind: Kind, keep: asyncio.BaseTransport | None) -> None:
        if self.faults.pop(kind, None) is None:
            return
        if kind is Kind.SLOW:
            self.life.timed.speed = self.model.speed
        elif kind is Kind.FROZEN:
            self._frozen = None
        elif kind in ENDS_IN_RESTART:
            self._end_life()
            self._drop_connections(keep)
            if Kind.CRASH not in self.faults:
                self._live()
                for fault in self.faults.values():
                    self._suffer(fault)
                if self._listening is None:
                    await self._listen()

    def _live(self) -> None:
        """Begin a life."""
        if self.events_ports is not None:
            ports = self.events_ports
            if self._publisher is not None:  # those that it was first given
                ports = (self._publisher.port, self._publisher.replay_port)
            self._publisher = Publisher(*ports)
        self._life = Life(self.model, self._models[0], LoopTimers(), self._publisher)

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.timed.stop()
        if self._publisher is not None:
            self._publisher.close()

    async def _listen(self) -> None:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._server, HOST, self.port, backlog=BACKLOG)
        self.port = self._listening.sockets[0].getsockname()[1]

    def _close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _drop_connections(self, keep: asyncio.BaseTransport | None) -> None:
        if self._server is not None:
            for connection in list(self._server.connections):
                transport = connection.transport  # uvloop's are of no class of asyncio's
                if transport is not None and transport is not keep:
                    transport.abort()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        if path == desk.PATH or path.startswith(f"{desk.PATH}/"):
            return await self._desk.answer(request, self)
        if Kind.HANG in self.faults:
            await _for_ever()
        if path == "/health":
            return web.Response(headers=self._headers(Commands()))
        if path == "/metrics":
            return await self._metrics()
        body = await request.read()
        headers = {
            name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers
        }
        received = Received(self.name, request.method, request.raw_path, headers, body)
        self._on_request(received)
        if Kind.SILENT in self.faults:
            await _for_ever()
        commands = Commands()
        try:
            error = self.faults.get(Kind.ERROR)
            if error is not None and self._rng.random() < error.share:
                raise Refused(error.status, f"Simulated error {error.status}.")
            commands = Commands.read(headers, self._attempt(headers))
            if commands.delay_s:
                await asyncio.sleep(commands.delay_s)
            if commands.status >= 400:
                raise Refused(commands.status, f"Simulated error {commands.status}.")
            return await self._answer(request, received, commands)
        except (Refused, TooLong, ValueError, msgspec.MsgspecError) as error:
            status = error.status if isinstance(error, Refused) else 400
            reply = Sender(request, self._headers(commands), commands)
            return await reply.whole(encode(apis.error(path, headers, status, str(error))), status)

    async def _metrics(self) -> web.StreamResponse:
        if Kind.STALE in self.faults:
            await _for_ever()
        page = self._frozen or self.life.metrics()
        return web.Response(body=page, headers={"content-type": "text/plain; version=0.0.4"})

    def _attempt(self, headers: Mapping[str, str]) -> int:
        """Return how often the request's id came before."""
        if "," not in headers.get("x-test-status", ""):
            return 0
        if len(self._attempts) > KEPT_ATTEMPTS:
            self._attempts.clear()
        self._attempts[headers.get("x-request-id", "")] += 1
        return self._attempts[headers.get("x-request-id", "")] - 1

    def _headers(self, commands: Commands) -> dict[str, str]:
        return {"x-simulated-replica": self.name, **commands.headers}

    async def _answer(
        self, request: web.BaseRequest, received: Received, commands: Commands
    ) -> web.StreamResponse:
        sender = Sender(request, self._headers(commands), commands)
        if commands.echo:
            return await sender.whole(_echo(received))
        if commands.chunks is not None:
            return await sender.stream(apis.SSE, apart(commands.chunks))
        path = request.path
        if request.method in ("GET", "HEAD") and "/models" in path:
            return await sender.whole(encode(apis.models(path, received.headers, self._models)))
        if request.method != "POST":
            raise Refused(404, f"There is no {request.method} {path} here.")
        zipped = received.headers.get("content-encoding") == "gzip"
        body = _object(gzip.decompress(received.body) if zipped else received.body)
        try:
            api, plain = self._route(request, body)
            ask = api.read(body) if api is not None else None
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            # A body of another shape fails somewhere in there; which member it was is the text.
            raise Refused(400, f"The request is not understood at {error}.") from None
        if api is None or ask is None:
            text, reply = plain
            if text:
                async with self.life.run(text, ("",), (0,)):
                    pass
            return await sender.whole(encode(reply))
        return await self._generate(sender, api, ask)

    def _route(self, request: web.BaseRequest, body: Json) -> tuple[apis.Api | None, PlainReply]:
        """Find what answers a path: an API that generates, or a reply that needs no tokens."""
        path = request.path
        none: PlainReply = ("", None)
        gemini = apis.gemini_action(path)
        if gemini is not None:
            model, action = gemini
            match action:
                case "generateContent":
                    return apis.Gemini(model, stream=False, events=False), none
                case "streamGenerateContent":
                    events = request.query.get("alt") == "sse"
                    return apis.Gemini(model, stream=True, events=events), none
                case "countTokens":
                    return None, ("", apis.gemini_count(body))
                case "embedContent" | "batchEmbedContents":
                    return None, apis.gemini_embed(body, action == "batchEmbedContents")
        elif path.endswith("/embeddings"):
            return None, apis.openai_embeddings(body)
        elif path.endswith("/messages/count_tokens"):
            prompt = apis.Anthropic().read(body).prompt
            return None, ("", {"input_tokens": tokens_of(prompt)})
        for end, api in ENDPOINTS:
            if path.endswith(end):
                return api, none
        raise Refused(404, f"There is no {request.method} {path} here.")

    async def _generate(self, sender: Sender, api: apis.Api, ask: Ask) -> web.StreamResponse:
        tokens = sender.commands.tokens
        said = [say(ask, choice, tokens) for choice in range(ask.choices)]
        spent = Spent(tokens_of(ask.prompt), sum(len(one.pieces) for one in said))
        cut = any(one.finish is Finish.LENGTH for one in said)
        async with self.life.run(
            ask.prompt,
            [_as_it_comes_back(ask, one) for one in said],
            [len(one.pieces) for one in said],
            reason="length" if cut else "stop",
        ) as running:
            sender.headers["x-simulated-cached-tokens"] = str(running.cached_tokens)
            if ask.stream:
                kind, frames = api.stream(ask, said, spent)
                return await sender.stream(kind, _timed(running, frames, sender.commands))
            await running.reach(apis.length(said))
            return await sender.whole(encode(api.reply(ask, said, spent)))


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """Make a request whose body may be longer than the megabyte that aiohttp allows."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES
    )


PlainReply: TypeAlias = tuple[str, Json]
"""What the model reads for a reply without generated tokens, empty for nothing, and the reply."""


def _object(raw: bytes) -> dict[str, Json]:
    try:
        body = parse(raw)
    except NotJson as error:
        raise Refused(400, f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, f"The body should be an object, but is {type(body).__name__}.")
    return body


def _echo(received: Received) -> bytes:
    return encode(
        {
            "method": received.method,
            "path": received.path,
            "headers": received.headers,
            "body_base64": base64.b64encode(received.body).decode(),
        }
    )


def _as_it_comes_back(ask: Ask, said: Said) -> str:
    """Return what stands behind the prompt when the conversation goes on."""
    return ask.turn + encode(said.text).decode()[1:-1] if ask.turn else said.text


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def _timed(
    run: Running, frames: Iterator[apis.Frame], commands: Commands
) -> AsyncIterator[bytes]:
    for frame in frames:
        await run.reach(frame.step)
        if not (frame.last and commands.no_done):
            yield frame.data.replace(b"\n", b"\r\n") if commands.crlf else frame.data


class Simulator:
    """Some replicas in this process.

    `async with Simulator() as simulator:` starts them; `simulator.port` is the first one's port,
    `simulator.requests` what reached them, the oldest first. A port of 0 takes a free one, any
    other the first of a row. `on_request` is called with each request instead of its being kept.
    Raise `OSError` when a port is taken.
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        port: int = 0,
        names: Sequence[str] = (),
        models: Sequence[str] = ("simulated",),
        model: Model = Model(),  # noqa: B008  # frozen
        faults: Sequence[tuple[str, Fault]] = (),
        events_port: int | None = None,
        keep: int = KEPT_REQUESTS,
        on_request: Callable[[Received], None] | None = None,
    ) -> None:
        """Make them, to fail from the start on as `faults` say, each of a replica or of `*`.

        With an `events_port` they tell of their blocks there and at the ports after it, and can be
        asked for what was missed at as many behind those.
        """
        self.requests: Final[deque[Received]] = deque(maxlen=keep)
        attempts: Counter[str] = Counter()
        take = on_request or self.requests.append
        self.replicas: Final[list[Replica]] = []
        self._faults: Final = faults
        at_desk = desk.Desk(self.replicas)
        called = names or [f"replica-{index}" for index in range(replicas)]
        for index, name in enumerate(called):
            events = None
            if events_port is not None:
                row = range(events_port + index, events_port + 2 * len(called), len(called))
                events = (row[0], row[1]) if events_port else (0, 0)
            self.replicas.append(
                Replica(
                    name,
                    models,
                    model,
                    take,
                    attempts,
                    at_desk,
                    port=port and port + index,
                    events_ports=events,
                )
            )

    @property
    def port(self) -> int:
        """The port of the first replica."""
        return self.replicas[0].port

    @property
    def ports(self) -> list[int]:
        """The ports of all replicas."""
        return [replica.port for replica in self.replicas]

    @property
    def url(self) -> str:
        """The address of the first replica."""
        return f"http://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        last = self.replicas[-1]
        if max(last.port, *(last.events_ports or (0,))) > MOST_PORT:  # the next would be 0, 1, 2
            raise OSError(errno.EADDRNOTAVAIL, "there is no port above 65,535")
        try:
            for replica in self.replicas:
                await replica.start()
        except OSError:
            await self._stop()
            raise
        for name, fault in self._faults:
            for replica in self.replicas:
                if name in (ALL, replica.name):
                    replica.plan(fault)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for replica in self.replicas:
            await replica.stop()
