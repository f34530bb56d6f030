"""Make one request of several that each have one text embedded, and their replies of its reply.

What was written stays as it was: inputs, settings and vectors are copied as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec

from filters.document import Document, Json

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRIES: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_INTEGER: Final = msgspec.json.Decoder(int)
_ANY: Final = msgspec.json.Decoder()
_ENCODER: Final = msgspec.json.Encoder()
_ZERO: Final = msgspec.Raw(b"0")


class Single(msgspec.Struct, frozen=True):
    """A request for one embedding, taken apart."""

    rest: tuple[tuple[str, bytes], ...]
    """What it asks for beside its text, by name: those of two must be equal to ask for both."""
    kind: str
    """What its text is, for a list may not hold one of each."""
    item: bytes
    """Its text, as JSON."""
    weight: int
    """About how many tokens that is; at least 1."""


class Way(Protocol):
    """How the requests of one endpoint become one. Stateless."""

    def take_apart(
        self, path: str, document: Document, estimate: Callable[[str], int]
    ) -> Single | str:
        """Return a request for one embedding, or in a few words why it is none."""

    def path(self, path: str) -> str:
        """Return where several are asked for, of the path at which one is."""

    def join(self, path: str, singles: Sequence[Single]) -> bytes:
        """Return the body that asks for all of them; they are alike, and sent to `path`."""

    def split(self, path: str, reply: bytes, weights: Sequence[int]) -> list[bytes] | None:
        """Return what each would have been answered alone, in their order.

        None where the reply does not have exactly one embedding for each.
        """


class OpenAIWay:
    """`/v1/embeddings`: the text is a string or an array of tokens, alone or alone in a list."""

    def take_apart(
        self, path: str, document: Document, estimate: Callable[[str], int]
    ) -> Single | str:
        """See `Way`."""
        given = document.root.get("input")
        members = _OBJECT.decode(document.render())
        item = members.pop("input", None)
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
            (given,) = given
            (item,) = _ARRAY.decode(item or b"")
        if not given:
            return "nothing"
        if isinstance(given, str):
            kind, weight = "text", estimate(given)
        elif isinstance(given, list) and type(given[0]) is int:
            kind, weight = "tokens", len(given)
        else:
            return "several"
        return Single(_sorted(members), kind, bytes(item or b""), max(1, weight))

    def path(self, path: str) -> str:
        """Return the same."""
        return path

    def join(self, path: str, singles: Sequence[Single]) -> bytes:
        """See `Way`."""
        members = {name: msgspec.Raw(value) for name, value in singles[0].rest}
        return _ENCODER.encode({**members, "input": [msgspec.Raw(one.item) for one in singles]})

    def split(self, path: str, reply: bytes, weights: Sequence[int]) -> list[bytes] | None:
        """See `Way`; the tokens that were used are shared out by weight."""
        try:
            members = _OBJECT.decode(reply)
            entries = _ENTRIES.decode(members.get("data", b""))
            indexes = [_INTEGER.decode(entry.get("index", b"")) for entry in entries]
            usages = parted(_ANY.decode(members.get("usage", b"null")), weights)
        except (ValueError, RecursionError):
            return None
        if sorted(indexes) != list(range(len(weights))):
            return None
        if any("embedding" not in entry for entry in entries):
            return None
        found: list[bytes] = [b""] * len(weights)
        for index, entry in zip(indexes, entries, strict=True):
            written: dict[str, Any] = {**members, "data": [{**entry, "index": _ZERO}]}
            if "usage" in members:
                written["usage"] = usages[index]
            found[index] = _ENCODER.encode(written)
        return found


class GeminiWay:
    """`embedContent`, and `batchEmbedContents` of one, as Google's client asks for a single text.

    Not at Vertex AI, which has no `batchEmbedContents`.
    """

    def take_apart(
        self, path: str, document: Document, estimate: Callable[[str], int]
    ) -> Single | str:
        """See `Way`."""
        root, members = document.root, _OBJECT.decode(document.render())
        if path.partition("?")[0].endswith(_MANY):
            requests = root.get("requests")
            if not isinstance(requests, list) or len(requests) != 1:
                return "several"
            if len(root) > 1 or not isinstance(requests[0], dict):
                return "shape"
            (root,) = requests
            (members,) = _ENTRIES.decode(members["requests"])
        content, item = root.get("content"), members.pop("content", None)
        parts = content.get("parts") if isinstance(content, dict) else None
        if item is None or not isinstance(parts, list) or _VERTEX in path:
            return "shape"
        if any(not isinstance(part, dict) or part.keys() != {"text"} for part in parts):
            return "media"
        text = "".join(part["text"] for part in parts if isinstance(part["text"], str))
        if not text:
            return "nothing"
        resource = unquote(path.partition("?")[0]).rpartition(":")[0]
        members.setdefault("model", msgspec.Raw(_ENCODER.encode(_named(resource))))
        return Single(_sorted(members), "content", bytes(item), max(1, estimate(text)))

    def path(self, path: str) -> str:
        """Return the path of the method that takes several."""
        route, mark, query = path.partition("?")
        return f"{route.rpartition(':')[0]}{_MANY}{mark}{query}"

    def join(self, path: str, singles: Sequence[Single]) -> bytes:
        """See `Way`."""
        members = {name: msgspec.Raw(value) for name, value in singles[0].rest}
        requests = [{**members, "content": msgspec.Raw(one.item)} for one in singles]
        return _ENCODER.encode({"requests": requests})

    def split(self, path: str, reply: bytes, weights: Sequence[int]) -> list[bytes] | None:
        """See `Way`; embeddings come in the order of the requests."""
        try:
            members = _OBJECT.decode(reply)
            entries = _ENTRIES.decode(members.pop("embeddings", b""))
            usages = parted(_ANY.decode(members.get("usageMetadata", b"null")), weights)
        except (ValueError, RecursionError):
            return None
        if len(entries) != len(weights) or any("values" not in entry for entry in entries):
            return None
        many = path.partition("?")[0].endswith(_MANY)
        found = []
        for entry, usage in zip(entries, usages, strict=True):
            one: dict[str, Any] = {"embeddings": [entry]} if many else {"embedding": entry}
            one |= members
            if "usageMetadata" in members:
                one["usageMetadata"] = usage
            found.append(_ENCODER.encode(one))
        return found


_MANY: Final = ":batchEmbedContents"
_VERTEX: Final = "/publishers/"


def _named(resource: str) -> str:
    """Return a model's full name, such as `models/NAME`, of its path."""
    return "/".join(resource.rsplit("/", 2)[-2:])


def _sorted(members: Mapping[str, msgspec.Raw]) -> tuple[tuple[str, bytes], ...]:
    return tuple(sorted((name, bytes(value)) for name, value in members.items()))


def parted(used: Json, weights: Sequence[int]) -> list[Json]:
    """Share out by weight every number in what was used; the parts of each add up to it."""
    if isinstance(used, dict):
        parts = {name: parted(value, weights) for name, value in used.items()}
        return [{name: part[at] for name, part in parts.items()} for at in range(len(weights))]
    if isinstance(used, list):
        return [list(one) for one in zip(*(parted(one, weights) for one in used), strict=True)] or [
            [] for _ in weights
        ]
    if isinstance(used, int) and not isinstance(used, bool) and used > 0:
        return list(shares(used, weights))
    if isinstance(used, float):
        whole = sum(weights)
        return [used * weight / whole for weight in weights]
    return [used] * len(weights)


def shares(whole: int, weights: Sequence[int]) -> list[int]:
    """Cut a positive number into whole parts by weights that are at least 1.

    Each part is at least 1 if there is so much; weights that add up to it are the parts.
    """
    scale = sum(weights)
    parts = [whole * weight // scale for weight in weights]
    # What the rounding left goes to those who lost most by it (Hamilton's method).
    lost = sorted(range(len(parts)), key=lambda at: -(whole * weights[at] % scale))
    for at in lost[: whole - sum(parts)]:
        parts[at] += 1
    if whole >= len(parts):
        while 0 in parts:
            parts[parts.index(max(parts))] -= 1
            parts[parts.index(0)] += 1
    return parts


OPENAI_WAY: Final = OpenAIWay()
GEMINI_WAY: Final = GeminiWay()
WAYS: Final[Mapping[str, Way]] = {
    "openai.embeddings": OPENAI_WAY,
    "gemini.embeddings": GEMINI_WAY,
}
"""By the name of the dialect."""
