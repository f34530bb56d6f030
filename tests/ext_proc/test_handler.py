"""The handler joins streams of bytes to sessions."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ext_proc._pb import ext_proc_pb2 as pb
from ext_proc.handler import PROFILE_METADATA, ExtProc
from ext_proc.session import Facts, Gateway, Pool, Profile
from filters import BUILT_IN
from filters.lockstep import ALONE
from filters.pipeline import Pipeline
from tests.fakes import FakeClock, drive, fake_ports

CHAT = b'{"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}'


class OneStream:
    """A stream that takes what is sent and never waits."""

    lockstep = ALONE

    def __init__(self) -> None:
        self.metadata: Mapping[str, str] = {PROFILE_METADATA: "default"}
        self.state: Any = None
        self.sent: list[bytes] = []
        self.ends = 0

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    def post(self, message: bytes) -> None:
        self.sent.append(message)

    def has_room(self) -> bool:
        return True

    def close(self) -> None:
        self.ends += 1

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


class NoBooks:
    in_flight = 0
    awaited = 0

    def begin(self, profile: str, traceparent: str | None) -> NoBooks:
        return self

    def end(self, facts: Facts) -> None:
        pass

    def server_timing(self, stages: Sequence[tuple[str, int]]) -> str:
        return ""


class NoWatch:
    def stream_failed(self, reason: str, error: Exception) -> None:
        raise AssertionError(reason) from error


@pytest.fixture
def handler() -> ExtProc:
    clock = FakeClock()
    ports = fake_ports(clock)
    pool = Pool("full", "full", "FULL")
    # Without `think`: it has settings that nobody can guess.
    filters = [(kind, kind.config_type()) for name, kind in BUILT_IN.items() if name != "think"]
    profile = Profile("default", pool, Pipeline(filters, ports))
    return ExtProc(Gateway({"default": profile}, {"full": pool}, "", NoBooks(), clock), NoWatch())


def head() -> bytes:
    request = pb.ProcessingRequest()
    for name, value in ((":method", b"POST"), (":path", b"/v1/chat/completions")):
        request.request_headers.headers.headers.add(key=name, raw_value=value)
    return request.SerializeToString()


def body() -> bytes:
    request = pb.ProcessingRequest()
    request.request_body.body = CHAT
    request.request_body.end_of_stream = True
    return request.SerializeToString()


def test_an_exchange_that_ended_leaves_nothing_to_the_collector(handler: ExtProc) -> None:
    """Its memory, the body included, is free at once for the next one."""

    def exchange() -> None:
        stream = OneStream()
        for message in (head(), body(), None):
            drive(handler(stream, message))
        assert (2, 1) == (len(stream.sent), stream.ends)

    exchange()  # what is made once, is made
    gc.collect()
    gc.disable()
    try:
        exchange()
        assert 0 == gc.collect()
    finally:
        gc.enable()
