"""Serve an exchange whose bodies come in full duplex, as gateways with an endpoint picker do.

There the proxy waits for no reply, sends on nothing but what it is given back, and cannot go on
alone before a body has ended. Around a `Session`, which knows whole requests: the reply to the
headers is held until the request's body has ended, for only then is known where it goes.
"""

from __future__ import annotations

from typing import Final, assert_never

from ext_proc.codec import (
    Body,
    Command,
    Event,
    Extend,
    Forward,
    Headers,
    Mode,
    Pass,
    Respond,
    Route,
    Sent,
    Stream,
    Trailers,
    in_chunks,
)
from ext_proc.conversation import Message, Phase, advance
from ext_proc.outflow import Peer
from ext_proc.session import Gateway, Session


class DuplexSession:
    """The state of one stream, as a `Session` is."""

    def __init__(
        self,
        gateway: Gateway,
        peer: Peer,
        route: Route,
        profile: str | None,
        traceparent: str | None,
    ) -> None:
        self._peer: Final = peer
        self._inner: Final = _Translator(peer, route)
        duplex = route.reply is Sent.FULL_DUPLEX
        self._session: Final = Session(
            gateway, self._inner, profile=profile, traceparent=traceparent, duplex=duplex
        )
        self._most_bytes: Final = gateway.most_body_bytes
        self._asks: Final = route.request is Sent.FULL_DUPLEX
        self._answers: Final = route.reply is Sent.FULL_DUPLEX
        # Each direction by itself: a reply may begin before its request has ended.
        self._request = Phase.IDLE
        self._reply = Phase.IDLE
        self._holding = False
        self._held = bytearray()  # not pieces: a client may send its body byte by byte

    async def receive(self, event: Event) -> None:
        """Take the next message and send what it brings about; see `Session.receive`."""
        try:
            if event.message in _OF_REQUEST:
                self._request, phase = self._next(self._request, event)
            else:
                self._reply, phase = self._next(self._reply, event)
            if phase is Phase.REPEATED:
                return  # it was answered, and another answer would be one too many
            if event.message in _OF_REQUEST:
                await self._on_request(event)
            else:
                await self._on_reply(event)
            if self._inner.closed and self._is_over():
                self._peer.close()
        except Exception:
            await self._session.fail()
            raise

    async def leave(self) -> None:
        """Finish an exchange whose stream is over."""
        await self._session.leave()

    async def fail(self) -> None:
        """Finish an exchange whose stream cannot be understood any more."""
        await self._session.fail()

    def _next(self, phase: Phase, event: Event) -> tuple[Phase, Phase]:
        after = advance(phase, event.message, last=event.last)
        return (phase if after is Phase.REPEATED else after), after

    def _is_over(self) -> bool:
        """Tell whether the proxy may go on alone: every byte it waits for has been given back.

        Not before the reply, though nobody needs it: Envoy 1.40 may have begun to send it here when
        it hears of the end, and the client would get an empty body.
        """
        if self._inner.answered:
            return True
        if self._asks and self._request is not Phase.REQUEST_DONE:
            return False
        return self._reply is Phase.RESPONSE_DONE or not self._answers

    # --- Request ---------------------------------------------------------------------------------

    async def _on_request(self, event: Event) -> None:
        if not self._asks:
            await self._pass_on(event)
            return
        match event:
            case Headers(last=last):
                await self._session.receive(event)
                if self._inner.closed or last:
                    await self._inner.go_on()
                else:
                    self._holding = True
            case Body(_, data, last):
                if self._holding:
                    await self._hold(data, last=last)
                elif not self._inner.answered:
                    await self._give_back(event)
            case Trailers():
                if self._holding:
                    await self._whole(last=False)
                if not self._inner.closed:
                    await self._session.receive(event)
                elif not self._inner.answered:
                    await self._peer.send(Pass(event.message))

    async def _hold(self, data: bytes, *, last: bool) -> None:
        if len(self._held) + len(data) > self._most_bytes:
            self._holding = False
            self._held.clear()
            await self._session.refuse_body()
            return
        self._held += data
        if last:
            await self._whole(last=True)

    async def _whole(self, *, last: bool) -> None:
        self._holding = False
        self._inner.chunk = bytes(self._held)
        self._inner.last = last
        self._held.clear()
        # To the session the body is whole, whether trailers follow or not.
        await self._session.receive(Body(Message.REQUEST_BODY, self._inner.chunk, last))
        self._inner.chunk = b""

    # --- Reply -----------------------------------------------------------------------------------

    async def _on_reply(self, event: Event) -> None:
        if isinstance(event, Headers) and self._holding:
            # The proxy itself answers, before the request was whole: it wants no more of that.
            self._holding = False
            self._held.clear()
            self._request = Phase.REQUEST_DONE
        if not self._answers:
            await self._pass_on(event)
            return
        inner = self._inner
        if isinstance(event, Body) and not inner.closed and inner.mode is Mode.NONE:
            await self._give_back(event)
            if event.last:
                inner.mute = True
                await self._session.receive(Body(event.message, b"", last=True))
            return
        if isinstance(event, Body):
            inner.chunk, inner.last = event.data, event.last
        if not inner.closed:
            await self._session.receive(event)
        elif isinstance(event, Body):
            await self._give_back(event)
        else:
            await self._peer.send(Pass(event.message))

    async def _pass_on(self, event: Event) -> None:
        """Hand over what does not come in full duplex."""
        if not self._inner.closed:
            await self._session.receive(event)
        else:
            await self._peer.send(Pass(event.message))

    async def _give_back(self, event: Body) -> None:
        for piece in in_chunks(event.data, last=event.last, message=event.message):
            await self._peer.send(piece)


_OF_REQUEST: Final = (
    Message.REQUEST_BODY,
    Message.REQUEST_HEADERS,
    Message.REQUEST_TRAILERS,
)


class _Translator:
    """The peer of the session inside: makes its commands those of full duplex."""

    def __init__(self, peer: Peer, route: Route) -> None:
        self._peer: Final = peer
        self.lockstep: Final = peer.lockstep
        self._asks: Final = route.request is Sent.FULL_DUPLEX
        self._answers: Final = route.reply is Sent.FULL_DUPLEX
        self._head: Command | None = None
        """What the session said to the headers, held."""
        self.chunk = b""
        """The body at hand, or the piece of it."""
        self.last = False
        """Nothing follows it."""
        self.mode = Mode.NONE
        """How the session wants the reply's body."""
        self.closed = False
        """The session is done."""
        self.answered = False
        """The client has its answer from us: nothing more is wanted."""
        self.posted = False
        """Something was sent that no message asked for."""
        self.mute = False

    def close(self) -> None:
        self.closed = True
        if self.posted:  # nobody else looks: it is the end of a reply whose pieces had to wait
            self._peer.close()

    def has_room(self) -> bool:
        return self._peer.has_room()

    def post(self, command: Command) -> None:
        self.posted = True
        self._peer.post(command)

    async def go_on(self) -> None:
        """Send what was held of the reply to the headers, if anything was."""
        if self._head is not None:
            head, self._head = self._head, None
            await self._peer.send(head)

    async def send(self, command: Command) -> None:
        if self.mute:
            return
        match command:
            case Extend() if self._asks:
                pass  # in full duplex the proxy waits without end
            case Respond():
                self.answered = True
                await self._peer.send(command)
            case Forward(message=Message.RESPONSE_BODY, body=body) if self._answers:
                await self._stream(body or b"", Message.RESPONSE_BODY)
            case Forward() if self._asks:
                await self._forward(command)
            case Pass(Message.REQUEST_HEADERS) if self._asks:
                self._head = command
            case Pass(Message.REQUEST_BODY, metadata) if self._asks:
                self._head = Pass(Message.REQUEST_HEADERS, metadata)
                await self.go_on()
                await self._stream(self.chunk, Message.REQUEST_BODY)
            case Pass(Message.RESPONSE_HEADERS, metadata, mode) if self._answers:
                self.mode = mode or Mode.NONE
                # How it comes is not ours to say here: a mode override would be refused.
                if self.mode is Mode.FULL_DUPLEX:  # Envoy 1.40 keeps it, whatever the length
                    removed, message = ("content-length",), Message.RESPONSE_HEADERS
                    command = Forward({}, removed, metadata=metadata, message=message)
                else:
                    command = Pass(Message.RESPONSE_HEADERS, metadata)
                await self._peer.send(command)
            case Pass(Message.RESPONSE_BODY) if self._answers:
                await self._stream(self.chunk, Message.RESPONSE_BODY)
            case Pass() | Stream() | Forward() | Extend():
                await self._peer.send(command)
            case _:
                assert_never(command)

    async def _forward(self, command: Forward) -> None:
        """Reply to the headers with what becomes of them, then give the body back."""
        if command.message is Message.REQUEST_HEADERS:
            self._head = command
            return
        self._head = None
        head = Forward(
            command.set_headers,
            command.remove_headers,
            metadata=command.metadata,
            choose_route_again=command.choose_route_again,
            endpoints=command.endpoints,
            message=Message.REQUEST_HEADERS,
        )
        await self._peer.send(head)
        await self._stream(
            self.chunk if command.body is None else command.body, Message.REQUEST_BODY
        )

    async def _stream(self, data: bytes, message: Message) -> None:
        for piece in in_chunks(data, last=self.last, message=message):
            await self._peer.send(piece)
