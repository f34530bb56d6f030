"""The order in which a proxy may speak: which message may come after which.

One gRPC stream carries one HTTP exchange. Rules, from the ext_proc API's documentation:

1. The request's headers come first, or not at all; nothing comes twice but body chunks.
2. A body comes after its headers, trailers after their body.
3. The reply may start at any time: Envoy itself may answer, and what it refuses for its form, such
   as a request without a host, before a filter has seen it.
4. Nothing of the request comes once the reply has started, but a body already on its way.
5. The last chunk of a body may come twice (envoyproxy/envoy#46237): the second one is `REPEATED`.
"""

from __future__ import annotations

import enum
from typing import Final

from filters.errors import ConversationError


class Message(enum.StrEnum):  # its hash takes a tenth of the time of a plain one's
    """What the proxy can send."""

    REQUEST_HEADERS = "request headers"
    REQUEST_BODY = "request body"
    REQUEST_TRAILERS = "request trailers"
    RESPONSE_HEADERS = "response headers"
    RESPONSE_BODY = "response body"
    RESPONSE_TRAILERS = "response trailers"


class Phase(enum.IntEnum):
    """How far the exchange has come."""

    IDLE = enum.auto()
    REQUEST_HEAD = enum.auto()
    REQUEST_BODY = enum.auto()
    REQUEST_DONE = enum.auto()
    RESPONSE_HEAD = enum.auto()
    RESPONSE_BODY = enum.auto()
    RESPONSE_DONE = enum.auto()
    REPEATED = enum.auto()
    """Not a phase the exchange rests in: the message came before, or too late to matter."""


_NEXT: Final[dict[tuple[Phase, Message], tuple[Phase, Phase]]] = {
    # (phase, message): (phase after it, phase after it when it is the last of its direction)
    (Phase.IDLE, Message.REQUEST_HEADERS): (Phase.REQUEST_HEAD, Phase.REQUEST_DONE),
    (Phase.IDLE, Message.RESPONSE_HEADERS): (Phase.RESPONSE_HEAD, Phase.RESPONSE_DONE),
    (Phase.REQUEST_HEAD, Message.REQUEST_BODY): (Phase.REQUEST_BODY, Phase.REQUEST_DONE),
    (Phase.REQUEST_BODY, Message.REQUEST_BODY): (Phase.REQUEST_BODY, Phase.REQUEST_DONE),
    (Phase.REQUEST_DONE, Message.REQUEST_BODY): (Phase.REPEATED, Phase.REPEATED),
    (Phase.RESPONSE_HEAD, Message.REQUEST_BODY): (Phase.REPEATED, Phase.REPEATED),
    (Phase.RESPONSE_BODY, Message.REQUEST_BODY): (Phase.REPEATED, Phase.REPEATED),
    (Phase.RESPONSE_DONE, Message.REQUEST_BODY): (Phase.REPEATED, Phase.REPEATED),
    (Phase.REQUEST_HEAD, Message.REQUEST_TRAILERS): (Phase.REQUEST_DONE, Phase.REQUEST_DONE),
    (Phase.REQUEST_BODY, Message.REQUEST_TRAILERS): (Phase.REQUEST_DONE, Phase.REQUEST_DONE),
    (Phase.REQUEST_HEAD, Message.RESPONSE_HEADERS): (Phase.RESPONSE_HEAD, Phase.RESPONSE_DONE),
    (Phase.REQUEST_BODY, Message.RESPONSE_HEADERS): (Phase.RESPONSE_HEAD, Phase.RESPONSE_DONE),
    (Phase.REQUEST_DONE, Message.RESPONSE_HEADERS): (Phase.RESPONSE_HEAD, Phase.RESPONSE_DONE),
    (Phase.RESPONSE_HEAD, Message.RESPONSE_BODY): (Phase.RESPONSE_BODY, Phase.RESPONSE_DONE),
    (Phase.RESPONSE_BODY, Message.RESPONSE_BODY): (Phase.RESPONSE_BODY, Phase.RESPONSE_DONE),
    (Phase.RESPONSE_DONE, Message.RESPONSE_BODY): (Phase.REPEATED, Phase.REPEATED),
    (Phase.RESPONSE_HEAD, Message.RESPONSE_TRAILERS): (Phase.RESPONSE_DONE, Phase.RESPONSE_DONE),
    (Phase.RESPONSE_BODY, Message.RESPONSE_TRAILERS): (Phase.RESPONSE_DONE, Phase.RESPONSE_DONE),
}


def advance(phase: Phase, message: Message, *, last: bool) -> Phase:
    """Return the phase after `message`; `last` says that its direction ends with it.

    Raise `ConversationError` when the message may not come in this phase.
    """
    after = _NEXT.get((phase, message))
    if after is None:
        raise ConversationError(f"{message.value} may not come after {phase.name.lower()}")
    return after[last]
