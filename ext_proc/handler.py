"""Join a transport to sessions: bytes to events, commands to bytes, no error past here."""

from __future__ import annotations

from typing import Protocol

from ext_proc.codec import Command, decode, encode
from ext_proc.session import Gateway, Session
from ext_proc.transport import Stream
from filters.errors import ConversationError

PROFILE_METADATA = "x-forebay-profile"
"""Where a route names its profile: gRPC metadata of the stream, which no client can forge."""


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
        session: Session | None = stream.state
        try:
            if message is None:
                # The session holds the stream. As a circle, every exchange with its body would stay
                # until the collector comes, and the next one would find no warm memory to use.
                stream.state = None
                if session is not None:
                    await session.leave()
                return
            if session is None:
                metadata = stream.metadata
                session = stream.state = Session(
                    self.gateway,
                    _EncodingPeer(stream),
                    profile=metadata.get(PROFILE_METADATA),
                    traceparent=metadata.get("traceparent"),
                )
            try:
                event = decode(message)
            except ConversationError:
                await session.fail()
                raise
            await session.receive(event)
        except ConversationError as error:
            self._watch.stream_failed("conversation", error)
            stream.fail(str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost no client its request
            self._watch.stream_failed("bug", error)
            stream.fail("internal error")


class _EncodingPeer:
    """A session's peer over a stream of bytes."""

    __slots__ = ("_stream", "close")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.close = stream.close

    async def send(self, command: Command) -> None:
        await self._stream.send(encode(command))
