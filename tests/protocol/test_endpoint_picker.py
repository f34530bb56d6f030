"""The endpoint-picker protocol, as the Gateway API Inference Extension has it (proposal 004).

Each test states a rule of that text, or of the full-duplex mode that it asks for, and holds a
server to it over the wire. What a gateway would do with the answers, `tests/e2e` shows with Envoy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import grpc
import msgspec
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from grpc_health.v1 import health_pb2

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.session import Gateway, Pool, Profile
from filters.api import CONTINUE, Config, Delta, Exchange, Filter, Need, Outcome, Verdict
from filters.cache import CacheFilter
from filters.cache_settings import CacheConfig
from filters.pick import PickConfig, PickFilter
from filters.pipeline import AnyFilter, Pipeline
from tests.fakes import FakeClock, FakeReplicas, fake_ports
from tests.protocol.conftest import Call, Serve, Served, Watch, ext_proc, read
from tests.session_scripts import Books, Transcript

DESTINATION: Final = "x-gateway-destination-endpoint"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
SERVED: Final = "x-gateway-destination-endpoint-served"
CHUNK_BYTES: Final = 62_000
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "[2001:db8::3]:8000"
DUPLEX: Final = pb.ProcessingMode.FULL_DUPLEX_STREAMED
PATH: Final = "/v1/chat/completions"
CHAT: Final = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
STREAM: Final = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
ANSWER: Final = (
    b'{"choices":[{"index":0,"message":{"role":"assistant","content":"calm"},'
    b'"finish_reason":"stop"}]}'
)
EVENTS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"calm"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)
PROMPT_BYTES: Final = (1, CHUNK_BYTES - len(CHAT) + 2, 1024 * 1024, 8 * 1024 * 1024)


class Sign(Filter[Config]):
    """Signs every text, and shouts every answer."""

    name: ClassVar[str] = "sign"
    config_type: ClassVar[type[Config]] = Config
    edits_stream: ClassVar[bool] = True

    async def on_request(self, exchange: Exchange) -> Verdict:
        for turn in exchange.prompt.turns():
            for text in turn.texts:
                text.value += " -- signed"
        exchange.need(Need.REPLY)
        return CONTINUE

    def on_delta(self, exchange: Exchange, delta: Delta) -> tuple[Delta, ...]:
        return (
            msgspec.structs.replace(delta, raw=delta.raw.replace(b"calm", b"as CALM as can be")),
        )


@dataclass
class Table:
    """A server that picks, and who there is to be picked."""

    replicas: FakeReplicas = field(default_factory=lambda: FakeReplicas({"full": (A, B, C)}))
    filters: Sequence[tuple[type[AnyFilter], Any]] = ((PickFilter, PickConfig()),)
    most_body_bytes: int = 64 * 1024 * 1024
    books: Books = field(default_factory=lambda: Books(Transcript()))

    def __post_init__(self) -> None:
        clock = FakeClock()
        ports = fake_ports(clock, replicas=self.replicas)
        pool = Pool("full", "full", "FULL")
        self.gateway = Gateway(
            {"default": Profile("default", pool, Pipeline(self.filters, ports))},
            {"full": pool},
            "",
            self.books,
            clock,
            picker="default",
            most_body_bytes=self.most_body_bytes,
        )

    async def open(self, serve: Serve) -> Talk:
        handler, self.watch = ext_proc(self.gateway)
        served = await serve(handler)
        return Talk(served, served.process(), self.watch)

    @property
    def outcomes(self) -> list[Outcome]:
        return [facts.outcome for facts in self.books.ended]


@dataclass
class Talk:
    """What a gateway says to a picker, and is told."""

    served: Served
    call: Call
    watch: Watch

    async def head(
        self,
        *,
        method: str = "POST",
        path: str = PATH,
        headers: Mapping[str, str] | None = None,
        last: bool = False,
        hint: Any = None,
        modes: tuple[Any, Any] | None = (DUPLEX, DUPLEX),
    ) -> None:
        """Send request headers; `hint` is the metadata of the subset's namespace."""
        request = pb.ProcessingRequest()
        names = {":method": method, ":path": path, **(headers or {})}
        for name, value in names.items():
            request.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        request.request_headers.end_of_stream = last
        if hint is not None:
            struct = ParseDict(hint, Struct())
            request.metadata_context.filter_metadata["envoy.lb.subset_hint"].CopyFrom(struct)
        if modes is not None:
            request.protocol_config.request_body_mode = modes[0]
            request.protocol_config.response_body_mode = modes[1]
        await self.call.write(request.SerializeToString())

    async def body(self, *chunks: bytes, last: bool = True) -> None:
        """Send pieces of the request's body; the last of them ends it, unless trailers do."""
        for number, chunk in enumerate(chunks, 1):
            request = pb.ProcessingRequest()
            request.request_body.body = chunk
            request.request_body.end_of_stream = last and number == len(chunks)
            await self.call.write(request.SerializeToString())

    async def trailers(self, *, request: bool) -> None:
        message = pb.ProcessingRequest()
        (message.request_trailers if request else message.response_trailers).SetInParent()
        await self.call.write(message.SerializeToString())

    async def reply(
        self, kind: str, *chunks: bytes, served: str = "", status: int = 200, last: bool = True
    ) -> None:
        """Send what the model server answered; `served` says which."""
        request = pb.ProcessingRequest()
        names = {":status": str(status), "content-type": kind, "content-length": "7"}
        for name, value in names.items():
            request.response_headers.headers.headers.add(key=name, raw_value=value.encode())
        if served:
            struct = ParseDict({SERVED: served}, Struct())
            request.metadata_context.filter_metadata["envoy.lb"].CopyFrom(struct)
        await self.call.write(request.SerializeToString())
        for number, chunk in enumerate(chunks, 1):
            request = pb.ProcessingRequest()
            request.response_body.body = chunk
            request.response_body.end_of_stream = last and number == len(chunks)
            await self.call.write(request.SerializeToString())

    async def told(self) -> pb.ProcessingResponse:
        """Return the next answer."""
        message = await read(self.call)
        assert message is not None
        return pb.ProcessingResponse.FromString(message)

    async def chunks(self, part: str) -> list[tuple[bytes, bool]]:
        """Return the pieces of a body up to its last, each with whether it says that it is."""
        pieces: list[tuple[bytes, bool]] = []
        while not pieces or not pieces[-1][1]:
            pieces.append(await self.chunk(part))
        return pieces

    async def chunk(self, part: str) -> tuple[bytes, bool]:
        answer = await self.told()
        assert part == answer.WhichOneof("response")
        mutation = getattr(answer, part).response.body_mutation
        assert "streamed_response" == mutation.WhichOneof("mutation")
        return mutation.streamed_response.body, mutation.streamed_response.end_of_stream

    async def ends(self) -> None:
        """See that the picker ends the stream, and that all went well."""
        assert await read(self.call) is None
        assert grpc.StatusCode.OK is await self.call.code()
        await self.served.handler.ended(1)
        assert [] == self.watch.failed


def mutated(common: pb.CommonResponse) -> dict[str, str]:
    """Return the headers that are set; each takes the place of what was there."""
    options = common.header_mutation.set_headers
    assert all(one.append_action == one.OVERWRITE_IF_EXISTS_OR_ADD for one in options)
    return {one.header.key: one.header.raw_value.decode() for one in options}


def destination(answer: pb.ProcessingResponse, part: str = "request_headers") -> str:
    """Return who is named: the same in the header and in the metadata."""
    assert part == answer.WhichOneof("response")
    in_header = mutated(getattr(answer, part).response)[DESTINATION]
    in_metadata = MessageToDict(answer.dynamic_metadata)["envoy.lb"][DESTINATION]
    assert in_header == in_metadata
    return in_header


def refusal(answer: pb.ProcessingResponse) -> tuple[int, dict[str, str], bytes]:
    """Return an immediate response."""
    assert "immediate_response" == answer.WhichOneof("response")
    refused = answer.immediate_response
    headers = {one.header.key: one.header.raw_value.decode() for one in refused.headers.set_headers}
    return refused.status.code, headers, refused.body


async def passes(talk: Talk) -> None:
    """Have the model server answer, and see that all of it passes."""
    await talk.reply("application/json", b"[", b"]")
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    assert [(b"[", False), (b"]", True)] == await talk.chunks("response_body")
    await talk.ends()


# --- Who is named -------------------------------------------------------------------------------


async def test_the_replica_is_named_in_the_header_and_in_the_metadata(serve: Serve) -> None:
    """Gateways read the one or the other, so both say the same."""
    talk = await Table().open(serve)
    await talk.head()
    await talk.body(CHAT)
    assert f"{A},{B}" == destination(await talk.told())


async def test_whom_a_client_names_is_replaced(serve: Serve) -> None:
    """In either form that a header may have."""
    talk = await Table().open(serve)
    await talk.head(headers={DESTINATION: "10.6.6.6:1", SUBSET: "10.6.6.6:1"})
    await talk.body(CHAT)
    assert f"{A},{B}" == destination(await talk.told())


async def test_where_bodies_come_whole_the_reply_to_the_body_names_it(serve: Serve) -> None:
    """A gateway that holds the body itself, as plain ext_proc has it."""
    table = Table()
    talk = await table.open(serve)
    await talk.head(modes=(pb.ProcessingMode.BUFFERED, pb.ProcessingMode.NONE))
    assert "request_headers" == (await talk.told()).WhichOneof("response")
    await talk.body(CHAT)
    assert f"{A},{B}" == destination(await talk.told(), "request_body")
    await talk.reply("application/json")
    answer = await talk.told()
    assert "response_headers" == answer.WhichOneof("response")
    talk.call.cancel()
    await talk.served.handler.ended(1)


async def test_where_no_body_comes_the_headers_are_enough(serve: Serve) -> None:
    """Nothing is known of the prompt then, but who is there."""
    talk = await Table().open(serve)
    await talk.head(modes=(pb.ProcessingMode.NONE, pb.ProcessingMode.NONE))
    assert f"{A},{B}" == destination(await talk.told())
    await talk.ends()


async def test_a_gateway_that_does_not_tell_its_modes_has_full_duplex(serve: Serve) -> None:
    """Every picker has to know that mode: of no other is it sure that it works."""
    talk = await Table().open(serve)
    await talk.head(modes=None)
    await talk.body(CHAT[:9], CHAT[9:])
    assert f"{A},{B}" == destination(await talk.told())
    assert [(CHAT, True)] == await talk.chunks("request_body")


async def test_a_request_without_a_body_has_a_replica_named(serve: Serve) -> None:
    """Such as for the list of models; the reply is given back as it comes."""
    talk = await Table().open(serve)
    await talk.head(method="GET", path="/v1/models", last=True)
    assert f"{A},{B}" == destination(await talk.told())
    await passes(talk)


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/v1/files", {}, b"\xff" * 200_000),
        (PATH, {"content-encoding": "gzip"}, b"\x1f\x8b"),
        (PATH, {}, b"no JSON"),
        (PATH, {}, b""),
    ],
    ids=["no LLM call", "compressed", "no JSON", "empty"],
)
async def test_what_cannot_be_read_has_a_replica_named_as_well(
    serve: Serve, path: str, headers: Mapping[str, str], body: bytes
) -> None:
    """And arrives byte for byte."""
    table = Table()
    talk = await table.open(serve)
    await talk.head(path=path, headers=headers)
    await talk.body(body[:100], body[100:])
    assert f"{A},{B}" == destination(await talk.told())
    assert body == b"".join(data for data, _ in await talk.chunks("request_body"))
    await passes(talk)
    assert [Outcome.PASSED] == table.outcomes
    assert [False] == [picked.good for picked in table.replicas.picked]


# --- The subset ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [[C, "10.9.9.9:80"], f"{C},10.9.9.9:80", f" {C} , ", [f"{C},10.9.9.9:80"]],
    ids=["list", "text", "spaces", "texts in a list"],
)
async def test_nobody_outside_the_subset_is_named(serve: Serve, hint: Any) -> None:
    """However it is written; addresses in it that nobody knows are nobody."""
    talk = await Table().open(serve)
    await talk.head(hint={SUBSET: hint})
    await talk.body(CHAT)
    assert C == destination(await talk.told())


async def test_without_the_key_all_of_the_pool_may_be_named(serve: Serve) -> None:
    """Whatever else stands in that namespace."""
    talk = await Table().open(serve)
    await talk.head(hint={"canary": "yes"})
    await talk.body(CHAT)
    assert f"{A},{B}" == destination(await talk.told())


@pytest.mark.parametrize(
    "hint",
    [[], "", ["10.9.9.9:80"], None, 5, {"a": A}, [5, [A]]],
    ids=["empty", "no text", "unknown", "null", "number", "mapping", "no texts"],
)
@pytest.mark.parametrize("last", [False, True], ids=["prompt", "no body"])
async def test_a_subset_without_anybody_ready_is_503(
    serve: Serve, hint: Any, *, last: bool
) -> None:
    """Nor is one that cannot be read a leave to pick anybody."""
    table = Table()
    talk = await table.open(serve)
    await talk.head(hint={SUBSET: hint}, last=last)
    if not last:
        await talk.body(CHAT)
    status, _, body = refusal(await talk.told())
    assert (503, True) == (status, b"no model server is ready" in body)
    await talk.ends()
    assert [] == table.replicas.picked


# --- Refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("addresses", [{}, {"full": ()}], ids=["no pool", "none in it"])
async def test_a_pool_without_anybody_ready_is_503(
    serve: Serve, addresses: Mapping[str, tuple[str, ...]]
) -> None:
    """In the provider's shape."""
    talk = await Table(FakeReplicas(addresses)).open(serve)
    await talk.head()
    await talk.body(CHAT)
    status, headers, body = refusal(await talk.told())
    assert (503, "application/json") == (status, headers["content-type"])
    assert b'"error"' in body
    await talk.ends()


async def test_a_filter_that_fails_to_pick_is_503(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the proxy would choose instead: here nobody else does."""
    table = Table()
    monkeypatch.setattr(FakeReplicas, "full_s", None)
    talk = await table.open(serve)
    await talk.head()
    await talk.body(CHAT)
    assert 503 == refusal(await talk.told())[0]
    await talk.ends()


async def test_full_replicas_are_429_with_when_to_come_back(serve: Serve) -> None:
    """In whole seconds, as HTTP has it."""
    table = Table()
    table.replicas.full = 1.2
    talk = await table.open(serve)
    await talk.head()
    await talk.body(CHAT)
    status, headers, body = refusal(await talk.told())
    assert (429, "2") == (status, headers["retry-after"])
    assert b"ask again in 2 s" in body
    await talk.ends()
    assert [] == table.replicas.picked


async def test_a_body_longer_than_may_be_held_is_413(serve: Serve) -> None:
    """The gateway bounds none of them in full duplex."""
    table = Table(most_body_bytes=1_000)
    talk = await table.open(serve)
    await talk.head()
    await talk.body(b"x" * 600, b"x" * 600)
    assert 413 == refusal(await talk.told())[0]
    await talk.ends()
    assert [Outcome.REFUSED] == table.outcomes


# --- Who served ---------------------------------------------------------------------------------


async def test_whom_the_gateway_took_in_the_end_is_known(serve: Serve) -> None:
    """It may have gone down the list."""
    table = Table()
    talk = await table.open(serve)
    await talk.head()
    await talk.body(CHAT)
    await talk.told()
    await talk.chunks("request_body")
    await talk.reply("application/json", ANSWER, served=B)
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    assert [(ANSWER, True)] == await talk.chunks("response_body")
    await talk.ends()
    (picked,) = table.replicas.picked
    assert (B, A) == picked.addresses
    assert picked.good is True


# --- Requests in full duplex ----------------------------------------------------------------------


async def test_the_headers_wait_for_the_end_of_the_body(serve: Serve) -> None:
    """Nothing is said before, for nobody is chosen yet; then headers come first."""
    table = Table()
    talk = await table.open(serve)
    await talk.head()
    for byte in (CHAT[at : at + 1] for at in range(len(CHAT) - 1)):
        await talk.body(byte, last=False)
    assert [] == table.replicas.picked
    await talk.body(CHAT[-1:])
    assert f"{A},{B}" == destination(await talk.told())
    assert [(CHAT, True)] == await talk.chunks("request_body")


@pytest.mark.parametrize("size", PROMPT_BYTES)
@pytest.mark.parametrize("signed", [False, True], ids=["as it came", "changed"])
async def test_a_prompt_of_any_length_is_given_back_in_chunks(
    serve: Serve, size: int, *, signed: bool
) -> None:
    """Of at most 62,000 bytes, and only the last says that it is."""
    filters: list[tuple[type[AnyFilter], Any]] = [(PickFilter, PickConfig())]
    if signed:
        filters.insert(0, (Sign, Config()))
    talk = await Table(filters=filters).open(serve)
    text = random.Random(size).randbytes(size // 2 + 1).hex()[:size].encode()
    body = CHAT.replace(b"hi", text)
    await talk.head(headers={"content-length": str(len(body))})
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    await talk.body(*pieces)
    head = await talk.told()
    expected = CHAT.replace(b"hi", text + b" -- signed") if signed else body
    if signed:
        assert str(len(expected)) == mutated(head.request_headers.response)["content-length"]
    chunks = await talk.chunks("request_body")
    assert expected == b"".join(data for data, _ in chunks)
    assert max(len(data) for data, _ in chunks) <= CHUNK_BYTES
    assert [False] * (len(chunks) - 1) + [True] == [last for _, last in chunks]


async def test_trailers_end_a_request_as_well(serve: Serve) -> None:
    """No chunk says that it is the last then."""
    talk = await Table().open(serve)
    await talk.head()
    await talk.body(CHAT, last=False)
    await talk.trailers(request=True)
    assert f"{A},{B}" == destination(await talk.told())
    assert (CHAT, False) == await talk.chunk("request_body")
    assert "request_trailers" == (await talk.told()).WhichOneof("response")


async def test_trailers_may_come_without_a_body(serve: Serve) -> None:
    """Somebody has to be named all the same."""
    talk = await Table().open(serve)
    await talk.head()
    await talk.trailers(request=True)
    assert f"{A},{B}" == destination(await talk.told())
    assert (b"", False) == await talk.chunk("request_body")
    assert "request_trailers" == (await talk.told()).WhichOneof("response")
    await passes(talk)


async def test_buffered_trailers_without_a_body_are_refused(serve: Serve) -> None:
    """Their answer can set no header any more, so nobody could be named."""
    table = Table()
    talk = await table.open(serve)
    await talk.head(modes=(pb.ProcessingMode.BUFFERED, pb.ProcessingMode.NONE))
    assert "request_headers" == (await talk.told()).WhichOneof("response")
    await talk.trailers(request=True)
    assert 400 == (await talk.told()).immediate_response.status.code
    assert [Outcome.REFUSED] == table.outcomes


async def test_a_last_chunk_that_comes_twice_is_given_back_once(serve: Serve) -> None:
    """envoyproxy/envoy#46237: the second one would follow the end of the body."""
    talk = await Table().open(serve)
    await talk.head()
    await talk.body(CHAT)
    await talk.body(CHAT)
    assert f"{A},{B}" == destination(await talk.told())
    assert [(CHAT, True)] == await talk.chunks("request_body")
    await talk.reply("application/json", ANSWER)
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    assert [(ANSWER, True)] == await talk.chunks("response_body")
    await talk.ends()


async def test_a_gateway_may_answer_before_the_request_is_whole(serve: Serve) -> None:
    """With an error of its own; nothing of the request is wanted any more."""
    table = Table()
    talk = await table.open(serve)
    await talk.head()
    await talk.body(CHAT[:9], last=False)
    await talk.reply("text/plain", b"too large", status=413)
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    assert [(b"too large", True)] == await talk.chunks("response_body")
    await talk.ends()
    assert [] == table.replicas.picked


@pytest.mark.parametrize("in_the_reply", [False, True], ids=["before the reply", "in it"])
async def test_a_client_that_leaves_frees_the_replica(serve: Serve, *, in_the_reply: bool) -> None:
    """The exchange ends once."""
    table = Table()
    talk = await table.open(serve)
    await asked(talk)
    if in_the_reply:
        await talk.reply("text/event-stream", EVENTS[0], last=False)
        await talk.told()
        assert (EVENTS[0], False) == await talk.chunk("response_body")
    talk.call.cancel()
    await talk.served.handler.ended(1)
    assert [Outcome.GONE] == table.outcomes
    assert 1 == len(table.replicas.picked)
    assert None not in [picked.good for picked in table.replicas.picked]
    assert [] == talk.watch.failed


async def test_messages_out_of_order_end_the_stream(serve: Serve) -> None:
    """As they do in every other mode."""
    talk = await Table().open(serve)
    await talk.head()
    await talk.head()
    assert await read(talk.call) is None
    assert grpc.StatusCode.INVALID_ARGUMENT is await talk.call.code()
    assert [("conversation", "ConversationError")] == talk.watch.failed


# --- Replies in full duplex -----------------------------------------------------------------------


async def asked(talk: Talk, body: bytes = STREAM) -> None:
    """Bring an exchange to where the model server answers."""
    await talk.head()
    await talk.body(body)
    await talk.told()
    await talk.chunks("request_body")


async def test_a_stream_passes_chunk_by_chunk(serve: Serve) -> None:
    """Each is given back before the next one comes, and read for its first token."""
    table = Table()
    talk = await table.open(serve)
    await asked(talk)
    await talk.reply("text/event-stream", *EVENTS, last=False)
    head = await talk.told()
    assert not head.HasField("mode_override")
    assert [] == list(head.response_headers.response.header_mutation.remove_headers)
    assert (EVENTS[0], False) == await talk.chunk("response_body")
    assert (EVENTS[1], False) == await talk.chunk("response_body")
    await talk.trailers(request=False)
    assert "response_trailers" == (await talk.told()).WhichOneof("response")
    await talk.ends()
    (picked,) = table.replicas.picked
    assert picked.good is True
    assert [Outcome.COMPLETE] == table.outcomes


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 1024 * 1024, 8 * 1024 * 1024])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "image/png"])
async def test_a_reply_of_any_length_is_given_back(serve: Serve, size: int, kind: str) -> None:
    """Whether it is looked at or not, and also an empty last chunk."""
    table = Table()
    talk = await table.open(serve)
    await asked(talk)
    body = random.Random(size).randbytes(size)
    if kind == "text/event-stream":  # which an answer ends, or an error would be put behind it
        body = b": %b\n\ndata: [DONE]\n\n" % body.hex().encode()[:size]
    await talk.reply(kind, body, b"")
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    chunks = await talk.chunks("response_body")
    assert body == b"".join(data for data, _ in chunks)
    assert max(len(data) for data, _ in chunks) <= CHUNK_BYTES
    await talk.ends()
    assert [Outcome.COMPLETE] == table.outcomes
    assert None not in [picked.good for picked in table.replicas.picked]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_filter_that_edits_has_its_way(serve: Serve, *, stream: bool) -> None:
    """The length that was said before does not hold any more."""
    talk = await Table(filters=[(PickFilter, PickConfig()), (Sign, Config())]).open(serve)
    await asked(talk, STREAM if stream else CHAT)
    chunks = EVENTS if stream else (ANSWER[:20], ANSWER[20:])
    await talk.reply("text/event-stream" if stream else "application/json", *chunks)
    head = await talk.told()
    assert not head.HasField("mode_override")
    assert ["content-length"] == list(head.response_headers.response.header_mutation.remove_headers)
    got = b"".join(data for data, _ in await talk.chunks("response_body"))
    assert b"".join(chunks).replace(b"calm", b"as CALM as can be") == got
    await talk.ends()


async def test_an_answer_may_come_from_the_cache(serve: Serve) -> None:
    """No replica is named, for none is asked."""
    cache = (CacheFilter, CacheConfig(any_temperature=True, admit_after=1))
    table = Table(filters=[cache, (PickFilter, PickConfig())])
    talk = await table.open(serve)
    await asked(talk, CHAT)
    await talk.reply("application/json", ANSWER)
    assert "response_headers" == (await talk.told()).WhichOneof("response")
    assert [(ANSWER, True)] == await talk.chunks("response_body")
    assert await read(talk.call) is None
    again = replace(talk, call=talk.served.process())
    await again.head()
    await again.body(CHAT)
    status, headers, body = refusal(await again.told())
    assert (200, "HIT", ANSWER) == (status, headers["x-cache"], body)
    assert 1 == len(table.replicas.picked)


# --- Health -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "service", ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
)
async def test_health_is_told_by_the_names_of_the_protocol(serve: Serve, service: str) -> None:
    """Liveness, readiness, and the service itself."""
    talk = await Table().open(serve)
    check: Any = talk.served.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest(service=service))
    assert health_pb2.HealthCheckResponse.SERVING == answer.status
