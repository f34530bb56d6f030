"""Carry messages between the proxy and a handler that knows nothing of how they travel.

A transport listens, hands every message of a stream to `handler(stream, message)` in order, and
tells the handler once, with None, that the stream is over. A stream whose handler waits holds up no
other. There are two: `grpc_aio` and `native`. Both answer `grpc.health.v1` for their names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeAlias

from filters.lockstep import Lockstep

ENVELOPE_BYTES: Final = 1024 * 1024
"""What a message may have over the longest body: one of headers may be larger than its share."""


class Stream(Protocol):
    """One stream of the `Process` method."""

    metadata: Mapping[str, str]
    """The stream's initial metadata; names are lower case."""
    state: Any
    """The handler's own; None at first."""

    @property
    def lockstep(self) -> Lockstep:
        """To be awaited where it has `several`: those that came in the same read then go as far."""

    async def send(self, message: bytes) -> None:
        """Send a message; waits only when the peer does not read. Nothing is sent once it left."""

    def post(self, message: bytes) -> object:
        """Send a message that answers none, at any time; to be called only where `has_room`."""

    def has_room(self) -> bool:
        """Tell whether the peer reads what is sent."""

    def close(self) -> None:
        """End the stream with success after what was sent; later messages are not handed over."""

    def fail(self, reason: str) -> None:
        """End the stream with an error: the proxy does as its `failure_mode_allow` says."""


Handler: TypeAlias = Callable[[Stream, bytes | None], Coroutine[Any, Any, None]]
"""Called with each message, then exactly once with None. Must not raise."""


class Server(Protocol):
    """A filling that listens."""

    async def start(self) -> None:
        """Bind and listen; raise `OSError` when the address cannot be had."""

    async def drain(self, bound_s: float) -> None:
        """Take no more streams, let the open ones finish within `bound_s`, then cut the rest."""
