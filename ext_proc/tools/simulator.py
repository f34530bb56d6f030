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

Attempts are requests with the same `x-request-id`, at any replica; the last status stays.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import errno
import gzip
import signal
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeAlias

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from ext_proc.tools import simulated_apis as apis
from ext_proc.tools.arguments import at_least, duration, port, rate
from ext_proc.tools.simulated_engine import Capacity, Engine, Run, Speed
from ext_proc.tools.simulated_model import Ask, Spent, say, tokens_of
from filters.api import Finish
from filters.document import Json, encode, parse
from filters.errors import ConfigError, NotJson
from filters.units import Duration

HOST: Final = "127.0.0.1"
BODY_BYTES: Final = 256 << 20  # more than any gateway lets through, less than a machine has
HEADER_BYTES: Final = 64 << 10  # Envoy's own limit is 60 KiB; `x-test-sse` needs the room
KEPT_REQUESTS: Final = 1_000
KEPT_ATTEMPTS: Final = 10_000
MOST_PORT: Final = 65_535
IDLE_S: Final = 3_600.0  # longer than proxies keep idle connections, so that they close first
STOP_S: Final = 0.1  # streams are cut when the simulator ends, as when a replica dies
BACKLOG: Final = 4_096  # a burst of clients that find it full try again only after a second
APART_S: Final = 0.002  # chunks written in one breath would arrive as one
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


@dataclass(frozen=True, slots=True)
class Commands:
    """What the request's headers ask of the simulator."""

    status: int = 200
    delay_s: float = 0.0
    chunks: tuple[bytes, ...] | None = None
    close_bytes: int | None = None
    close_chunks: int | None = None
    gzip: bool = False
    echo: bool = False
    no_done: bool = False
    crlf: bool = False
    tokens: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, headers: Mapping[str, str], attempt: int) -> Commands:
        """Read the `x-test-` headers; raise `ValueError` for one that means nothing."""
        statuses = headers.get("x-test-status", "200").split(",")
        close = headers.get("x-test-close", "").split()
        in_chunks = len(close) == 2 and close[1].startswith("chunk")
        tokens = headers.get("x-test-tokens")
        return cls(
            status=int(statuses[min(attempt, len(statuses) - 1)]),
            delay_s=float(headers.get("x-test-delay", 0)),
            chunks=_chunks(headers["x-test-sse"]) if "x-test-sse" in headers else None,
            close_bytes=int(close[0]) if close and not in_chunks else None,
            close_chunks=int(close[0]) if in_chunks else None,
            gzip="x-test-gzip" in headers,
            echo="x-test-echo" in headers,
            no_done="x-test-no-done" in headers,
            crlf="x-test-crlf" in headers,
            tokens=int(tokens) if tokens else None,
            headers=msgspec.json.decode(headers.get("x-test-headers", "{}"), type=dict[str, str]),
        )


def _chunks(value: str) -> tuple[bytes, ...]:
    if value.startswith("["):
        return tuple(chunk.encode() for chunk in msgspec.json.decode(value, type=list[str]))
    return tuple(base64.b64decode(chunk, validate=True) for chunk in value.split(","))


class Refused(Exception):
    """A request gets an error; `status` and `text` go into the provider's shape."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Replica:
    """One simulated server: an engine behind a port."""

    def __init__(
        self,
        name: str,
        models: Sequence[str],
        engine: Engine,
        on_request: Callable[[Received], None],
        attempts: Counter[str],
    ) -> None:
        self.name: Final = name
        self.engine: Final = engine
        self.port = 0
        self._models: Final = models
        self._on_request: Final = on_request
        self._attempts: Final = attempts

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        path = request.path
        if path == "/health":
            return web.Response(headers=self._headers(Commands()))
        if path == "/metrics":
            text = self.engine.meters.render()
            return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4"})
        body = await request.read()
        headers = {
            name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers
        }
        received = Received(self.name, request.method, request.raw_path, headers, body)
        self._on_request(received)
        commands = Commands()
        try:
            commands = Commands.read(headers, self._attempt(headers))
            if commands.delay_s:
                await asyncio.sleep(commands.delay_s)
            if commands.status >= 400:
                raise Refused(commands.status, f"Simulated error {commands.status}.")
            return await self._answer(request, received, commands)
        except (Refused, ValueError, msgspec.MsgspecError) as error:
            status = error.status if isinstance(error, Refused) else 400
            reply = Sender(request, self._headers(commands), commands)
            return await reply.whole(encode(apis.error(path, headers, status, str(error))), status)

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
            return await sender.stream(apis.SSE, _apart(commands.chunks))
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
                async with self.engine.run(text) as run:
                    run.finish("stop")
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
        async with self.engine.run(ask.prompt, len(said)) as run:
            sender.headers["x-simulated-cached-tokens"] = str(run.cached_tokens)
            if ask.stream:
                kind, frames = api.stream(ask, said, spent)
                response = await sender.stream(kind, _timed(run, frames, sender.commands))
            else:
                await run.decode(apis.length(said))
                response = await sender.whole(encode(api.reply(ask, said, spent)))
            run.finish("length" if cut else "stop")
        return response


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


async def _apart(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for index, chunk in enumerate(chunks):
        if index:
            await asyncio.sleep(APART_S)
        yield chunk


async def _timed(
    run: Run, frames: Iterator[apis.Frame], commands: Commands
) -> AsyncIterator[bytes]:
    for frame in frames:
        await run.decode(frame.step)
        if not (frame.last and commands.no_done):
            yield frame.data.replace(b"\n", b"\r\n") if commands.crlf else frame.data


class Sender:
    """Writes one reply, compressed or cut off as the commands say."""

    def __init__(
        self, request: web.BaseRequest, headers: dict[str, str], commands: Commands
    ) -> None:
        self.headers: Final = headers
        self.commands: Final = commands
        self._request: Final = request
        self._zip: Final = zlib.compressobj(wbits=31) if commands.gzip else None  # 31: gzip

    async def whole(self, body: bytes, status: int | None = None) -> web.StreamResponse:
        """Send a body of known length."""
        data = self._pack(body) + (self._zip.flush() if self._zip else b"")
        response = self._response(apis.JSON, status)
        response.content_length = len(data)

        async def once() -> AsyncIterator[bytes]:
            yield data

        return await self._write(response, once())

    async def stream(self, kind: str, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
        """Send chunks as they come; the head goes out with the first one."""

        async def packed() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                flushed = self._zip.flush(zlib.Z_SYNC_FLUSH) if self._zip else b""
                yield self._pack(chunk) + flushed
            if self._zip:
                yield self._zip.flush()

        return await self._write(self._response(kind, None), packed())

    def _pack(self, data: bytes) -> bytes:
        return self._zip.compress(data) if self._zip else data

    def _response(self, kind: str, status: int | None) -> web.StreamResponse:
        headers = {"content-type": kind, **self.headers}
        if self._zip:
            headers["content-encoding"] = "gzip"
        return web.StreamResponse(status=status or self.commands.status, headers=headers)

    async def _write(
        self, response: web.StreamResponse, chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        left, count = self.commands.close_bytes, 0
        if left == 0:
            self._drop()
            return response
        if self._request.method == "HEAD":
            await response.prepare(self._request)
            return response
        async for chunk in chunks:
            if not response.prepared:
                await response.prepare(self._request)
            if left is not None and len(chunk) >= left:
                await response.write(chunk[:left])
                self._drop()
                break
            await response.write(chunk)
            left = None if left is None else left - len(chunk)
            count += 1
            if count == self.commands.close_chunks:
                self._drop()
                break
        if not response.prepared:
            await response.prepare(self._request)
        return response

    def _drop(self) -> None:
        if self._request.transport is not None:
            self._request.transport.close()


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
        speed: Speed = Speed(ttft_s=0.0, prefill_rate=0.0, decode_rate=0.0),  # noqa: B008  # frozen
        capacity: Capacity = Capacity(),  # noqa: B008  # likewise
        keep: int = KEPT_REQUESTS,
        on_request: Callable[[Received], None] | None = None,
    ) -> None:
        self.requests: Final[deque[Received]] = deque(maxlen=keep)
        attempts: Counter[str] = Counter()
        take = on_request or self.requests.append
        self.replicas: Final = [
            Replica(name, models, Engine(models[0], speed, capacity), take, attempts)
            for name in names or [f"replica-{index}" for index in range(replicas)]
        ]
        self._first_port: Final = port
        self._runners: Final[list[web.ServerRunner]] = []

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
        if self._first_port + len(self.replicas) - 1 > MOST_PORT:  # the next would be 0, 1, 2
            raise OSError(errno.EADDRNOTAVAIL, "there is no port above 65,535")
        for index, replica in enumerate(self.replicas):
            server = web.Server(
                replica.handle,
                request_factory=_request,
                handler_cancellation=True,  # a client that leaves ends its request, as in vLLM
                access_log=None,
                auto_decompress=False,  # what came is what `requests` and an echo show
                keepalive_timeout=IDLE_S,
                max_field_size=HEADER_BYTES,
                max_line_size=HEADER_BYTES,
            )
            runner = web.ServerRunner(server, shutdown_timeout=STOP_S)
            await runner.setup()
            self._runners.append(runner)
            try:
                wanted = self._first_port + index if self._first_port else 0
                await web.TCPSite(runner, HOST, wanted, backlog=BACKLOG).start()
            except OSError:
                await self._stop()
                raise
            replica.port = runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()


# --- `forebay simulate` --------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `forebay simulate`."""
    speed, capacity = Speed(), Capacity()
    # Two at 8081 and 8082 are what the shipped envoy/forebay.yaml has as its two pools.
    parser.add_argument("--replicas", type=at_least(1), default=2, metavar="N", help="how many (2)")
    parser.add_argument(
        "--port", type=port, default=8081, help="of the first replica, 0 for free ones (8081)"
    )
    parser.add_argument("--names", metavar="A,B", help="their names, instead of --replicas")
    parser.add_argument(
        "--model", action="append", metavar="NAME", help="listed by /v1/models; all are answered"
    )
    parser.add_argument(
        "--ttft", type=duration, default=Duration(speed.ttft_s), help="before a first token (50ms)"
    )
    parser.add_argument(
        "--rate", type=rate, default=speed.decode_rate, help="tokens/s of a stream, 0: all (80)"
    )
    parser.add_argument(
        "--prefill",
        type=rate,
        default=speed.prefill_rate,
        metavar="RATE",
        help="prompt tokens/s of a replica, 0: all (8000)",
    )
    parser.add_argument(
        "--slots",
        type=at_least(1),
        default=capacity.slots,
        help="requests at once, others wait (256)",
    )
    parser.add_argument(
        "--blocks", type=at_least(1), default=capacity.blocks, help="KV blocks of 16 tokens (4096)"
    )
    parser.add_argument("--quiet", action="store_true", help="do not list the replicas")


def run(arguments: argparse.Namespace) -> int:
    """Run `forebay simulate` until SIGINT or SIGTERM."""
    import uvloop

    return uvloop.run(_simulate(arguments))


async def _simulate(arguments: argparse.Namespace) -> int:
    names = arguments.names.split(",") if arguments.names else ()
    simulator = Simulator(
        replicas=arguments.replicas,
        port=arguments.port,
        names=names,
        models=arguments.model or ["simulated"],
        speed=Speed(arguments.ttft, arguments.prefill, arguments.rate),
        capacity=Capacity(slots=arguments.slots, blocks=arguments.blocks),
        keep=0,
    )
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(simulator)
        except OSError as error:
            raise ConfigError(
                "--port",
                f"{arguments.port} or one of the next is not to be had ({error.strerror}); "
                "choose others, or 0 for free ones",
            ) from None
        if not arguments.quiet:
            for replica in simulator.replicas:
                print(f"{replica.name}  http://{HOST}:{replica.port}", flush=True)
        await stop.wait()
    return 0
