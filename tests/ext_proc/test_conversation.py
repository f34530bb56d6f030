"""The order in which a proxy may speak, pair by pair and as whole exchanges."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.conversation import Message, Phase, advance
from filters.errors import ConversationError

# One row per phase, one column per message: the phase after it, `a|b` when the last message of its
# direction leads to b, and `-` for what may not come.
TABLE: Final = """
               request_headers            request_body              request_trailers  response_headers            response_body                response_trailers
idle           request_head|request_done  -                         -                 response_head|response_done -                            -
request_head   -                          request_body|request_done request_done      response_head|response_done -                            -
request_body   -                          request_body|request_done request_done      response_head|response_done -                            -
request_done   -                          repeated                  -                 response_head|response_done -                            -
response_head  -                          repeated                  -                 -                           response_body|response_done  response_done
response_body  -                          repeated                  -                 -                           response_body|response_done  response_done
response_done  -                          repeated                  -                 -                           repeated                     -
repeated       -                          -                         -                 -                           -                            -
"""  # noqa: E501 - a table


def _cells() -> list[tuple[Phase, Message, str]]:
    header, *rows = TABLE.strip("\n").splitlines()
    messages = [Message[name.upper()] for name in header.split()]
    return [
        (Phase[phase.upper()], message, cell)
        for phase, *cells in map(str.split, rows)
        for message, cell in zip(messages, cells, strict=True)
    ]


CELLS: Final = _cells()
LEGAL: Final = [(phase, message, cell) for phase, message, cell in CELLS if cell != "-"]
ILLEGAL: Final = [(phase, message) for phase, message, cell in CELLS if cell == "-"]


def test_the_table_holds_every_pair_once() -> None:
    """What follows leaves no pair of phase and message out."""
    assert {(p, m) for p in Phase for m in Message} == {(p, m) for p, m, _ in CELLS}
    assert len(Phase) * len(Message) == len(CELLS)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("phase", "message", "cell"), LEGAL)
def test_a_message_in_its_place_moves_the_exchange_on(
    phase: Phase, message: Message, cell: str, last: bool
) -> None:
    """Every legal pair leads where the table says, the last of a direction included."""
    expected = Phase[cell.split("|")[-1 if last else 0].upper()]
    assert expected is advance(phase, message, last=last)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("phase", "message"), ILLEGAL)
def test_a_message_out_of_its_place_is_refused(phase: Phase, message: Message, last: bool) -> None:
    """Every other pair raises, and says which message and which phase."""
    with pytest.raises(ConversationError) as raised:
        advance(phase, message, last=last)
    expected = f"{message.name.lower().replace('_', ' ')} may not come after {phase.name.lower()}"
    assert expected == str(raised.value)


def test_a_refusal_reads_as_a_sentence() -> None:
    """The exact text, once in full."""
    with pytest.raises(ConversationError) as raised:
        advance(Phase.REQUEST_HEAD, Message.RESPONSE_BODY, last=False)
    assert "response body may not come after request_head" == str(raised.value)


@st.composite
def exchanges(draw: st.DrawFn) -> list[tuple[Message, bool]]:
    """Generate what a proxy may send in one exchange, cut off anywhere."""
    sent: list[tuple[Message, bool]] = []

    def direction(headers: Message, body: Message, trailers: Message) -> None:
        chunks = draw(st.integers(0, 4))
        with_trailers = draw(st.booleans())
        sent.append((headers, not chunks and not with_trailers))
        sent.extend((body, at == chunks - 1 and not with_trailers) for at in range(chunks))
        if chunks and draw(st.booleans()):
            sent.append(sent[-1])  # the last chunk comes twice
        if with_trailers:
            sent.append((trailers, True))

    direction(Message.REQUEST_HEADERS, Message.REQUEST_BODY, Message.REQUEST_TRAILERS)
    request = len(sent)
    direction(Message.RESPONSE_HEADERS, Message.RESPONSE_BODY, Message.RESPONSE_TRAILERS)
    if draw(st.booleans()):  # the proxy answers by itself before the request is whole
        del sent[draw(st.integers(0, request)) : request]
    return sent[: draw(st.integers(0, len(sent)))]


@given(exchanges())
def test_whatever_a_proxy_may_send_is_taken(sent: list[tuple[Message, bool]]) -> None:
    """No exchange that the API allows is ever refused, wherever it stops."""
    phase = Phase.IDLE
    for message, last in sent:
        after = advance(phase, message, last=last)
        phase = phase if after is Phase.REPEATED else after


@given(st.lists(st.tuples(st.sampled_from(Message), st.booleans())))
def test_an_exchange_never_goes_back(sent: list[tuple[Message, bool]]) -> None:
    """Whatever comes, phases only follow one another, and nothing but a body is taken twice."""
    phase = Phase.IDLE
    taken: list[Message] = []
    for message, last in sent:
        try:
            after = advance(phase, message, last=last)
        except ConversationError:
            continue
        taken.append(message)
        if after is not Phase.REPEATED:
            assert phase.value <= after.value
            phase = after
    bodies = (Message.REQUEST_BODY, Message.RESPONSE_BODY)
    others = [message for message in taken if message not in bodies]
    assert sorted(set(others), key=others.index) == others
