"""What the dialects share: a prompt over a JSON body, reading odd shapes, rendering streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from filters.api import Parameter, Text, Thinking, Turn
from filters.document import Document, Json, Path, encode, parse
from filters.errors import NotJson

EVENT_STREAM: Final = "text/event-stream"
BROKEN_STATUS: Final = 502
"""Of an error in a stream: the upstream's, whatever it was that ended it."""

# A streamed piece is 24 characters and the rest of the word, of which at most 16 more: about what
# models send in four to ten tokens. It ends behind marks that belong to the character before
# (combining marks, variation selectors, skin tones, joined emoji) and never inside CRLF.
_PIECE: Final = re.compile(
    r".{1,24}\S{0,16}(?:(?<=\r)\n)?"
    "(?:(?<=\u200d).)?(?:[\u0300-\u036f\u20d0-\u20ff\ufe00-\ufe0f\U0001f3fb-\U0001f3ff]|\u200d.)*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the requests of one endpoint keep what a `Prompt` shows."""

    turns: Callable[[Document], Sequence[Turn]]
    """Reads the turns from the body as it stands; must not raise on any JSON object."""
    parameters: Mapping[Parameter, tuple[Path, ...]]
    """The places a parameter may stand in: read from the first that holds one, set there or, when
    none does, in the first."""
    transport: frozenset[str] = frozenset()
    """Members that say how to deliver the answer, not what it says."""
    tools: tuple[Path, ...] = (("tools",),)
    """Arrays of declared tools; they are shown joined."""
    takes_temperature: Callable[[Document, str], bool] = lambda _document, _model: True
    """Whether the model named takes a temperature, with what else the request asks for."""
    limit_thinking: Callable[[Document, str, Thinking], bool] = lambda *_: False
    """Lowers what the request asks the model named to think; says whether it changed anything."""
    instruct: Callable[[Document, str], bool] = lambda *_: False
    """Adds a text behind the instructions; says whether there is a place for it."""


class BodyPrompt:
    """The `Prompt` of every dialect: a document, a shape, and the turns as last read."""

    __slots__ = (
        *("_said", "_shape", "_structure", "_texts", "_turns", "_version"),
        *("document", "model", "stateful", "stream"),
    )

    def __init__(
        self, document: Document, shape: Shape, *, model: str, stream: bool, stateful: bool = False
    ) -> None:
        self.document = document
        self.model = model
        self.stream = stream
        self.stateful = stateful
        self._shape: Final = shape
        self._structure = -1
        self._turns: Sequence[Turn] = ()
        self._texts: Sequence[Text] = ()
        self._version = -1
        self._said: Sequence[str] = ()

    def turns(self) -> Sequence[Turn]:
        """Return the turns; read again only after an edit that may have moved them."""
        structure = self.document.structure
        if self._structure != structure:
            self._turns = self._shape.turns(self.document)
            self._texts = [text for turn in self._turns for text in turn.texts]
            self._structure = structure
        return self._turns

    def texts(self) -> Sequence[Text]:
        """Return the texts of all turns, in their order."""
        self.turns()
        return self._texts

    def said(self) -> Sequence[str]:
        """Return what these texts say; read again only after an edit."""
        version = self.document.version
        if self._version != version:
            self._said = [text.value for text in self.texts()]
            self._version = version
        return self._said

    def tools(self) -> Sequence[Json]:
        """Return the declared tools, as they stand in the body."""
        found: list[Json] = []
        for path in self._shape.tools:
            found += items(self.document.get(path))
        return found

    def parameter(self, name: Parameter) -> Json:
        """Return a sampling parameter, or None when the request leaves it to the provider."""
        for path in self._shape.parameters.get(name, ()):
            value = self.document.get(path)
            if value is not None:
                return value
        return None

    def set_parameter(self, name: Parameter, value: Json) -> None:
        """Set a sampling parameter; raise `KeyError` when this dialect has no such parameter."""
        paths = self._shape.parameters[name]
        for path in paths:
            if self.document.get(path) is not None:
                self.document.set(path, value)
                return
        self.document.set(paths[0], value)

    def takes_temperature(self) -> bool:
        """Tell whether the provider takes a temperature with this request."""
        return self._shape.takes_temperature(self.document, self.model)

    def limit_thinking(self, most: Thinking) -> bool:
        """Let the model think at most so much; return whether that changed the request."""
        return self._shape.limit_thinking(self.document, self.model, most)

    def instruct(self, text: str) -> bool:
        """Add to the instructions, behind what stands there; return False where there are none."""
        return self._shape.instruct(self.document, text)

    def transport_members(self) -> set[str]:
        """Return the members present that say how to deliver the answer, not what it says."""
        return self.document.root.keys() & self._shape.transport


# --- Reading what may have any shape -------------------------------------------------------------


def mapping(value: Json) -> dict[str, Json]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return `value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return `value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def count(value: Json) -> int:
    """Return `value` if it is a whole number of tokens, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def parse_or_none(data: bytes) -> Json:
    """Decode JSON, or return None for anything else."""
    try:
        return parse(data)
    except NotJson:
        return None


# --- Streams -------------------------------------------------------------------------------------


def is_event_stream(content_type: str) -> bool:
    """Tell whether a content type names server-sent events; parameters and case do not matter."""
    return content_type.partition(";")[0].strip().lower() == EVENT_STREAM


def sse(data: Json, name: str = "") -> bytes:
    """Render one server-sent event with a JSON value as its data."""
    head = b"event: %b\ndata: " % name.encode() if name else b"data: "
    return b"%b%b\n\n" % (head, encode(data))


def pieces(whole: str) -> list[str]:
    """Cut a text into pieces such as a model streams; joined they are the text.

    A piece has some tens of characters and ends at the end of a word where words are short enough.
    """
    return _PIECE.findall(whole)


def joined(parts: Iterable[Json]) -> str:
    """Join those parts that are strings."""
    return "".join(part for part in parts if isinstance(part, str))
