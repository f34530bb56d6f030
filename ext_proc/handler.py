"""Join a transport to sessions: bytes to events, commands to bytes, no error past here."""

from __future__ import annotations

from typing import Final, Protocol

from ext_proc.codec import Command, Event, Headers, Route, Sent, decode, encode
from ext_proc.duplex import DuplexSession
from ext_proc.session import Gateway, Session
from ext_proc.transport import Stream
from filters.errors import ConversationError

PROFILE_METADATA = "x-forebay-profile"
"""Where a route names its profile: gRPC metadata of the stream, which no client can forge."""


_DUPLEX: Final = Route(Sent.FULL_DUPLEX, Sent.FULL_DUPLEX, duplex=True)
"""What the endpoint-picker protocol has gateways use, should one not tell how it sends bodies."""


class HandlerWatch(Protocol):
    """Who is told of what should not happen."""

    def stream_failed(self, reason: str, error: Exception) -> None:
        """Count a stream that was given up: `conversation` was the proxy's doing, `bug` ours.

        The error's own text may quote a prompt: only its type and place may be logged.
        """


class ExtProc:
    """The handler of the `Process` method.

    `gateway` may be replaced at any time: open exchanges keep the settings they began with.
    """

    def __init__(self, gateway: Gateway, watch: HandlerWatch) -> None:
        self.gateway = gateway
        self._watch = watch

    async def __call__(self, stream: Stream, message: bytes | None) -> None:
        """Take a message of a stream, or None when the stream is over."""
        session: Session | DuplexSession | None = stream.state
        try:
            if message is None:
                # The session holds the stream. As a circle, every exchange with its body would stay
                # until the collector comes, and the next one would find no warm memory to use.
                stream.state = None
                if session is not None:
                    await session.leave()
                return
            try:
                event = decode(message)
            except ConversationError:
                if session is not None:
                    await session.fail()
                raise
            if session is None:
                session = stream.state = self._open(stream, event)
            await session.receive(event)
        except ConversationError as error:
            self._watch.stream_failed("conversation", error)
            stream.fail(str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost no client its request
            self._watch.stream_failed("bug", error)
            stream.fail("internal error")

    def _open(self, stream: Stream, first: Event) -> Session | DuplexSession:
        metadata = stream.metadata
        profile, traceparent = metadata.get(PROFILE_METADATA), metadata.get("traceparent")
        peer = _EncodingPeer(stream)
        if isinstance(first, Headers):
            route = first.route
            if route is None and profile is None and self.gateway.picker:
                route = _DUPLEX
            if route is not None and route.duplex:
                return DuplexSession(self.gateway, peer, route, profile, traceparent)
        return Session(self.gateway, peer, profile=profile, traceparent=traceparent)


class _EncodingPeer:
    """A session's peer over a stream of bytes."""

    __slots__ = ("_stream", "close", "has_room", "lockstep")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.close = stream.close
        self.has_room = stream.has_room
        self.lockstep = stream.lockstep

    async def send(self, command: Command) -> None:
        await self._stream.send(encode(command))

    def post(self, command: Command) -> None:
        self._stream.post(encode(command))
