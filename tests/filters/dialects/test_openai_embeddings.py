"""The dialect of OpenAI's embeddings."""

from __future__ import annotations

from typing import Any

import pytest

from filters.api import Delta, Finish, Parameter
from filters.dialects.openai_embeddings import OPENAI_EMBEDDINGS
from filters.document import Document, encode
from filters.framing import Event

PATH = "/v1/embeddings"


def prompt(given: Any, **more: Any) -> Any:
    return OPENAI_EMBEDDINGS.read(Document(encode({"input": given, **more})), PATH)


@pytest.mark.parametrize("given", [[], [1, 2], [[1, 2], [3]], [None]])
def test_inputs_of_token_ids_have_no_texts(given: list[Any]) -> None:
    """Nothing in them can be read without the model's own tokenizer."""
    assert [] == prompt(given).turns()


@pytest.mark.parametrize(
    ("finish", "data"),
    [
        (Finish.STOP, [{"embedding": [0.5]}]),
        (Finish.STOP, [{"embedding": "AACAPw=="}, {"embedding": [0.5]}]),
        (None, [{"embedding": [0.5]}, {"embedding": []}]),
        (None, [{"embedding": [0.5]}, {}]),
        (None, [None]),
        (None, []),
        (None, None),
    ],
)
def test_a_list_is_complete_when_every_entry_is(finish: Finish | None, data: Any) -> None:
    """Numbers or base64, but one for each input."""
    assert finish == OPENAI_EMBEDDINGS.read_reply({"data": data}).finish


def test_embeddings_never_stream() -> None:
    """Neither a stream flag nor a content type makes one; what comes all the same passes."""
    asked = prompt("a", stream=True)
    event = Event(b"data: {}\n\n", "", b"{}")
    assert not asked.stream
    assert OPENAI_EMBEDDINGS.framer("text/event-stream", asked) is None
    assert Delta(event.raw) == OPENAI_EMBEDDINGS.read_event(event)
    assert OPENAI_EMBEDDINGS.assemble([event]) is None


@pytest.mark.parametrize("name", list(Parameter))
def test_there_is_nothing_to_sample(name: Parameter) -> None:
    """No parameter can be read or set."""
    asked = prompt("a", temperature=1)
    assert asked.parameter(name) is None
    with pytest.raises(KeyError):
        asked.set_parameter(name, 1)
