"""Answer `grpc.health.v1`, by which Kubernetes, load balancers and gateways ask, natively."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from ext_proc.transport import Handler, Stream
from ext_proc.transport.http2 import Status
from ext_proc.transport.turns import TurnStream

SERVICE: Final = "grpc.health.v1.Health"
_RESPONSE: Final[Any] = health_pb2.HealthCheckResponse
_STATUS: Final[dict[bool | None, bytes]] = {
    serving: _RESPONSE(status=status).SerializeToString()
    for serving, status in (
        (True, _RESPONSE.SERVING),
        (False, _RESPONSE.NOT_SERVING),
        (None, _RESPONSE.SERVICE_UNKNOWN),
    )
}


class Health:
    """What is said of each name: serving, or not."""

    def __init__(self, names: Iterable[str]) -> None:
        self._serving: Final = dict.fromkeys(names, False)
        self._change = asyncio.Event()
        self._last = False
        self.routes: Final[dict[str, Handler]] = {
            f"/{SERVICE}/Check": self._check,
            f"/{SERVICE}/Watch": self._watch,
        }

    def report(self, *, serving: bool) -> None:
        """Say the same of every name; not to serve is the last that those who watch are told."""
        for name in self._serving:
            self._serving[name] = serving
        self._last = not serving
        self._change.set()
        self._change = asyncio.Event()

    async def _check(self, stream: Stream, message: bytes | None) -> None:
        if message is None:
            return
        name = _name(stream, message)
        if name is None:
            return
        if name in self._serving:
            await stream.send(_STATUS[self._serving[name]])
            stream.close()
        else:
            assert isinstance(stream, TurnStream)  # what this transport hands over
            stream.end(Status.NOT_FOUND, "unknown service")

    async def _watch(self, stream: Stream, message: bytes | None) -> None:
        if message is None:
            return
        name = _name(stream, message)
        if name is None:
            return
        while True:
            change = self._change
            await stream.send(_STATUS[self._serving.get(name)])
            if self._last:  # whoever watches on would hold up a drain
                stream.close()
                return
            await change.wait()


def _name(stream: Stream, message: bytes) -> str | None:
    try:
        name: str = health_pb2.HealthCheckRequest.FromString(message).service
    except DecodeError:
        stream.fail("not a HealthCheckRequest")
        return None
    return name
