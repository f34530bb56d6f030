"""Read and write OpenAI's embeddings: `POST /v1/embeddings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from filters.api import Delta, Finish, Prompt, Reply, Role, Stamp, Text, Turn
from filters.dialects import openai
from filters.dialects.base import BodyPrompt, Shape, items, mapping, text
from filters.document import Document, Json, Path, encode
from filters.errors import NotJson
from filters.framing import Event, Framer


class OpenAIEmbeddings:
    """The dialect of embeddings: every input is a user's turn of its own, and nothing streams.

    Inputs of token ids have no texts.
    """

    name = "openai.embeddings"
    provider = openai.PROVIDER
    operation = "embeddings"

    def read(self, document: Document, path: str) -> Prompt:
        """View an embeddings request; raise `NotJson` when it has no input."""
        if not isinstance(document.root.get("input"), str | list):
            raise NotJson("expected a string or an array in input")
        return BodyPrompt(document, _SHAPE, model=openai.model(document, path), stream=False)

    def read_reply(self, reply: Json) -> Reply:
        """Read a list of embeddings; it is complete when every entry has one."""
        listed = mapping(reply)
        entries = items(listed.get("data"))
        complete = bool(entries) and all(mapping(entry).get("embedding") for entry in entries)
        return Reply(
            finish=Finish.STOP if complete else None,
            usage=openai.usage(listed.get("usage")),
            model=text(listed.get("model")),
        )

    def framer(self, content_type: str, prompt: Prompt) -> Framer | None:
        """Return None: embeddings never stream."""
        return None

    def read_event(self, event: Event) -> Delta:
        """Return the event's bytes: it says nothing here."""
        return Delta(event.raw)

    def assemble(self, events: Sequence[Event]) -> bytes | None:
        """Return None: no stream stands for embeddings."""
        return None

    def replay(self, reply: Json, prompt: Prompt) -> tuple[str, bytes]:
        """Return the list as it is."""
        return openai.JSON, encode(reply)

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return nothing: a list of embeddings has neither id nor time."""
        return {}

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return None: embeddings are no text."""
        return None

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return None: no stream stands for embeddings."""
        return None

    def error(self, status: int, text: str) -> bytes:
        """Return OpenAI's error object."""
        return openai.error(status, text)

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return None: embeddings never stream."""
        return None


def _turns(document: Document) -> list[Turn]:
    given = document.root.get("input")
    if isinstance(given, str):
        return [Turn(Role.USER, (Text(document, ("input",), Role.USER),), ("input",))]
    return [
        Turn(Role.USER, (Text(document, ("input", index), Role.USER),), ("input", index))
        for index, one in enumerate(items(given))
        if isinstance(one, str)
    ]


_SHAPE: Final = Shape(turns=_turns, parameters={}, tools=())

OPENAI_EMBEDDINGS: Final = OpenAIEmbeddings()
