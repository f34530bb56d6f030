"""Read and write Gemini's embeddings: `embedContent` and `batchEmbedContents`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from filters.api import Delta, Finish, Prompt, Reply, Role, Stamp, Text, Turn, Usage
from filters.dialects.base import BodyPrompt, Shape, count, items, mapping
from filters.dialects.gemini import GEMINI
from filters.document import Document, Json, Path, encode
from filters.errors import NotJson
from filters.framing import Event, Framer


class GeminiEmbeddings:
    """The dialect of embeddings: every content is a user's turn of its own, and nothing streams."""

    name = "gemini.embeddings"
    provider = GEMINI.provider
    operation = "embeddings"

    def read(self, document: Document, path: str) -> Prompt:
        """View a request; raise `NotJson` when it has no content, or one beside several."""
        root = document.root
        if isinstance(root.get("content"), dict) is isinstance(root.get("requests"), list):
            raise NotJson("expected an object in content, or else an array in requests")
        return BodyPrompt(document, _SHAPE, model=_model(path), stream=False)

    def read_reply(self, reply: Json) -> Reply:
        """Read one embedding or a list; it is complete when all of them have values."""
        response = mapping(reply)
        found = [response["embedding"]] if "embedding" in response else response.get("embeddings")
        entries = items(found)
        complete = bool(entries) and all(mapping(entry).get("values") for entry in entries)
        used = response.get("usageMetadata")
        return Reply(
            finish=Finish.STOP if complete else None,
            usage=Usage(count(used.get("promptTokenCount"))) if isinstance(used, dict) else None,
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
        """Return the embeddings as they are."""
        return "application/json", encode(reply)

    def stamps(self, reply: Json, prompt: Prompt) -> dict[Path, Stamp]:
        """Return nothing: embeddings have neither id nor time."""
        return {}

    def write(self, reply: Reply, name: str, at_s: int) -> Json:
        """Return None: embeddings are no text."""
        return None

    def split(self, raw: bytes, parts: Sequence[str]) -> Sequence[bytes] | None:
        """Return None: no stream stands for embeddings."""
        return None

    def error(self, status: int, text: str) -> bytes:
        """Return Google's error object."""
        return GEMINI.error(status, text)

    def broken(self, last: Event | None, why: str) -> tuple[str, bytes] | None:
        """Return None: embeddings never stream."""
        return None


def _model(path: str) -> str:
    """Return the model's name, of `/v1beta/models/NAME:embedContent`."""
    resource = unquote(path.partition("?")[0]).rpartition(":")[0]
    return resource.rpartition("/")[2]


def _turns(document: Document) -> list[Turn]:
    root = document.root
    if isinstance(root.get("content"), dict):
        return [_turn(document, root["content"], ("content",))]
    return [
        _turn(document, one["content"], ("requests", index, "content"))
        for index, one in enumerate(items(root.get("requests")))
        if isinstance(one, dict) and isinstance(one.get("content"), dict)
    ]


def _turn(document: Document, content: dict[str, Json], path: Path) -> Turn:
    parts = list(enumerate(items(content.get("parts"))))
    texts = tuple(
        Text(document, (*path, "parts", at, "text"), Role.USER)
        for at, part in parts
        if isinstance(mapping(part).get("text"), str)
    )
    return Turn(Role.USER, texts, path, has_media=len(texts) < len(parts))


_SHAPE: Final = Shape(turns=_turns, parameters={}, tools=())

GEMINI_EMBEDDINGS: Final = GeminiEmbeddings()
