"""Print what Envoy does with a keep-alive comment that is sent while a request waits.

    python -m tests.e2e.measure_waiting

Envoy runs with the shipped file, and in Forebay's place a server that sends the head of a reply and
a comment, and then ends the reply itself or has the request go on. A gateway could keep its clients
from giving up where `goes on` ends in the upstream's answer behind the comment.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc

from ext_proc._pb import ext_proc_pb2 as pb
from tests.calls import ask_for
from tests.e2e.by_hand import ByHand
from tests.gateway import POOLS, Gateway

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
COUNTERS: Final = "http.ingress.ext_proc."
EVERY_TIME: Final = ("stream_msgs_", "streams_started", "streams_closed")
MODES: Final = ("BUFFERED", "FULL_DUPLEX_STREAMED", "NONE")
PHASES: Final = ("headers", "body")
SHAPES: Final = ("streamed_immediate_response", "response_headers")
COMMENT: Final = b": waiting\n\n"
OURS: Final = b"data: ours\n\n"
UPSTREAMS: Final = b"data: the upstream's\n\n"
PATIENCE_S: Final = 5.0


def head(shape: str) -> pb.ProcessingResponse:
    """Return the head of a reply."""
    if shape == "response_headers":
        return pb.ProcessingResponse(response_headers=pb.HeadersResponse())
    headers = pb.HeaderMap(
        headers=[
            pb.HeaderValue(key=":status", raw_value=b"200"),
            pb.HeaderValue(key="content-type", raw_value=b"text/event-stream"),
        ]
    )
    made = pb.StreamedImmediateResponse(headers_response=pb.HttpHeaders(headers=headers))
    return pb.ProcessingResponse(streamed_immediate_response=made)


def body(shape: str, data: bytes, *, ends: bool = False) -> pb.ProcessingResponse:
    """Return a piece of its body."""
    piece = pb.StreamedBodyResponse(body=data, end_of_stream=ends)
    if shape == "response_headers":
        mutation = pb.BodyMutation(streamed_response=piece)
        common = pb.CommonResponse(body_mutation=mutation)
        return pb.ProcessingResponse(response_body=pb.BodyResponse(response=common))
    made = pb.StreamedImmediateResponse(body_response=piece)
    return pb.ProcessingResponse(streamed_immediate_response=made)


def onward(request: pb.ProcessingRequest, mode: str) -> pb.ProcessingResponse | None:
    """Return the answer that has a message pass as it is; None where there is none."""
    what = request.WhichOneof("request")
    if what == "request_headers":
        return pb.ProcessingResponse(request_headers=pb.HeadersResponse())
    if what == "response_headers":
        return pb.ProcessingResponse(response_headers=pb.HeadersResponse())
    if what == "request_trailers":
        return pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
    if what != "request_body":
        return None
    came, common = request.request_body, pb.CommonResponse()
    if mode == "FULL_DUPLEX_STREAMED":
        piece = pb.StreamedBodyResponse(body=came.body, end_of_stream=came.end_of_stream)
        common = pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=piece))
    return pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))


class Waiting:
    """A server in Forebay's place that comments once, in one phase of a request."""

    def __init__(self, mode: str, phase: str, shape: str, *, goes_on: bool) -> None:
        self._mode: Final = mode
        self._phase: Final = f"request_{phase}"
        self._shape: Final = shape
        self._goes_on: Final = goes_on

    async def process(
        self, requests: AsyncIterator[pb.ProcessingRequest], _: Any
    ) -> AsyncIterator[pb.ProcessingResponse]:
        """Answer the messages of one exchange."""
        commented = False
        async for request in requests:
            if request.WhichOneof("request") == self._phase and not commented:
                commented = True
                yield head(self._shape)
                yield body(self._shape, COMMENT)
                if not self._goes_on:
                    yield body(self._shape, OURS, ends=True)
                    continue
            if (answer := onward(request, self._mode)) is not None:
                yield answer

    @contextlib.asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[None]:
        """Serve there."""
        server = grpc.aio.server()
        process = grpc.stream_stream_rpc_method_handler(
            self.process, pb.ProcessingRequest.FromString, pb.ProcessingResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler(SERVICE, {"Process": process})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


@contextlib.contextmanager
def envoy(port: int, mode: str) -> Iterator[Gateway]:
    """Run Envoy alone, in front of an upstream, with a mode for the bodies of requests."""

    def edit(tree: dict[str, Any]) -> None:
        listeners = tree["static_resources"]["listeners"]
        (ingress,) = (one for one in listeners if one["name"] == "ingress")
        filters = ingress["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
        (ours,) = (one for one in filters if one["name"] == "envoy.filters.http.ext_proc")
        processing = ours["typed_config"]["processing_mode"]
        processing["request_body_mode"] = mode
        ours["typed_config"]["message_timeout"] = "1s"
        if mode == "FULL_DUPLEX_STREAMED":
            processing["request_trailer_mode"] = "SEND"
            ours["typed_config"]["failure_mode_allow"] = False

    with tempfile.TemporaryDirectory() as folder:
        gateway = Gateway(Path(folder), pools={name: [port] for name in POOLS}, edit=edit)
        try:
            gateway.start_envoy()
            yield gateway
        finally:
            gateway.stop()


def counted(gateway: Gateway) -> dict[str, int]:
    """Return what the filter counts that is not counted each time."""
    lines = (line.partition(": ") for line in gateway.envoy_stats().splitlines())
    found = {name.removeprefix(COUNTERS): said for name, _, said in lines if COUNTERS in name}
    return {
        name: int(said)
        for name, said in found.items()
        if said.isdecimal() and int(said) and not name.startswith(EVERY_TIME)
    }


async def heard(url: str) -> str:
    """Ask, and say what a client gets."""
    ask = ask_for("openai.chat", "Why?", stream=True)
    headers = {"content-type": "application/json"}
    got, how = b"", "then silence"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as http:
            path = f"{url}/p/chat{ask.path}"
            async with http.post(path, data=ask.body, headers=headers) as reply:
                how = f"{reply.status}, then silence"
                try:
                    async for piece in reply.content.iter_any():
                        got += piece
                    how = f"{reply.status}, whole"
                except aiohttp.ClientPayloadError:
                    how = f"{reply.status}, cut"
    told = {"comment": COMMENT, "ours": OURS, "the upstream's": UPSTREAMS}
    parts = [name for name, data in told.items() if data in got]
    return f"{how}: {' + '.join(parts) or f'{len(got)} other bytes'}"


async def measure(mode: str, phase: str, shape: str, *, goes_on: bool) -> None:
    """Run one case and print what came of it."""
    asked = 0

    async def answer(by_hand: ByHand) -> None:
        nonlocal asked
        while True:
            one = await by_hand.asked()
            asked += 1
            await one.whole("text/event-stream", UPSTREAMS)

    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        envoy(listening.getsockname()[1], mode) as gateway,
    ):
        waiting = Waiting(mode, phase, shape, goes_on=goes_on)
        async with ByHand(listening) as by_hand, waiting.at(gateway.folder / "s"):
            answering = asyncio.create_task(answer(by_hand))
            client = await heard(gateway.url)
            counts = counted(gateway)
            answering.cancel()
    then = "goes on" if goes_on else "ends it"
    print(f"{mode:20} {phase:7} {shape:27} {then}: client {client}; upstream asked {asked} times;")
    print(" " * 21, ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "-")


async def main() -> None:
    """Run all cases."""
    for mode in MODES:
        for phase in PHASES if mode != "NONE" else PHASES[:1]:
            for shape in SHAPES:
                for goes_on in (True, False):
                    await measure(mode, phase, shape, goes_on=goes_on)


if __name__ == "__main__":
    program = shutil.which("envoy")
    assert program is not None, "no envoy on the PATH"
    subprocess.run((program, "--version"), check=True)
    asyncio.run(main())
