"""What makes two requests one: the table that keys are made by, shown in `docs/cache.md`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from operator import itemgetter
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from filters.api import Exchange

# Headers by which a provider picks itself, an account, a deployment or a version of its API: other
# value, other answer.
VARIANT_HEADERS: Final = (
    ":authority",
    "anthropic-beta",
    "anthropic-version",
    "azureml-model-deployment",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "x-goog-user-project",
)
# Query members that carry a credential (part of the tenant) or say how to deliver the answer.
DELIVERY_QUERY: Final = frozenset({"key", "alt", "$alt", "prettyPrint", "$prettyPrint"})


class Ignored(enum.StrEnum):
    """Members of a body that say who asks and for what account, not what is asked."""

    USER = "user"
    METADATA = "metadata"
    SAFETY_IDENTIFIER = "safety_identifier"
    SERVICE_TIER = "service_tier"
    STORE = "store"
    LABELS = "labels"


_OPENAI: Final = (Ignored.USER, Ignored.METADATA, Ignored.SAFETY_IDENTIFIER, Ignored.SERVICE_TIER)
IGNORABLE: Final[Mapping[str, frozenset[Ignored]]] = {
    # `store: false` is chat's default. A response is kept by the provider unless told otherwise,
    # and what is kept can be gone on with: there it counts.
    "openai.chat": frozenset((*_OPENAI, Ignored.STORE)),
    "openai.completions": frozenset((Ignored.USER,)),
    "openai.embeddings": frozenset((Ignored.USER,)),
    "openai.responses": frozenset(_OPENAI),
    "anthropic.messages": frozenset((Ignored.METADATA, Ignored.SERVICE_TIER)),
    "gemini.generate": frozenset((Ignored.LABELS,)),
    "gemini.embeddings": frozenset(),
}
"""Which of them a dialect has; `store` is ignored where it is `false`, the others whatever."""


class How(enum.StrEnum):
    """What becomes of a difference."""

    COUNTS = "counts"
    FOLDED = "folded"
    HASHED = "hashed"
    SETTING = "counts, unless the profile says otherwise"
    DROPPED = "does not count"


class Row(NamedTuple):
    """One kind of difference between two requests."""

    what: str
    how: How
    detail: str
    why: str


def _code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


TABLE: Final = (
    Row("profile", How.COUNTS, "its name", "another one prepares prompts in another way"),
    Row(
        "settings",
        How.COUNTS,
        "of every filter of the profile, the clusters of its pools, the bundled data",
        "what was answered under other settings may be another answer",
    ),
    Row(
        "tenant",
        How.SETTING,
        "the credentials, hashed; `share_tenants: true` leaves them out",
        "tenants see nothing of each other",
    ),
    Row(
        "dialect",
        How.SETTING,
        "with `across_dialects: true` a plain question is one in all chat dialects",
        "a reply is in one provider's words",
    ),
    Row("headers", How.COUNTS, _code(*VARIANT_HEADERS), "they pick host, account and API version"),
    Row(
        "path", How.COUNTS, "but for Gemini's method", "it may name deployment, account or project"
    ),
    Row(
        "query",
        How.COUNTS,
        f"but for {_code(*sorted(DELIVERY_QUERY))}",
        "those are the credential, or say how to deliver the answer",
    ),
    Row("model", How.COUNTS, "in body or path", "another model answers something else"),
    Row(
        "texts",
        How.FOLDED,
        "of system, user and assistant: a run of white space outside code and tables is one space",
        "how a text is laid out is not what it says",
    ),
    Row("tool results", How.COUNTS, "every character", "a program's lines may be a list"),
    Row(
        "images, sounds, files",
        How.HASHED,
        "data of 4 KiB and more by its BLAKE3 hash, shorter data and addresses as they stand",
        "another picture, another answer; a hash is as good and small",
    ),
    Row("turns", How.COUNTS, "order, roles, names, number", "who said what when is the prompt"),
    Row("tools", How.COUNTS, "and which of them to choose", "the model sees them"),
    Row("response format", How.COUNTS, "schema and kind", "the model keeps to it"),
    Row(
        "parameters",
        How.COUNTS,
        "temperature, top_p, top_k, penalties, seed, stop, n, limits, thinking, every other one",
        "they steer what is said, or how much of it",
    ),
    Row("unknown members", How.COUNTS, "whatever a body holds", "nobody knows what they do"),
    Row(
        "JSON",
        How.DROPPED,
        "order of members, white space between them, escapes in strings",
        "it is the same value",
    ),
    Row(
        "delivery",
        How.DROPPED,
        _code("stream", "stream_options", "prompt_cache_key", "prompt_cache_retention")
        + ", Anthropic's top-level `cache_control`, Gemini's `streamGenerateContent`",
        "it says how the answer comes and where the prompt is kept",
    ),
    Row(
        "who asks",
        How.SETTING,
        f"{_code(*Ignored)}; those named in `ignore` are left out (`store` where it is `false`)",
        "models do not see them, but a provider may act on them",
    ),
    Row(
        "other headers",
        How.DROPPED,
        "`user-agent`, `accept`, `traceparent` and all that is not named here",
        "they do not reach the model",
    ),
)


def variant_query(path: str) -> list[tuple[str, str]]:
    """Return the members of a query that count."""
    query = path.partition("?")[2]
    if not query:
        return []
    members = parse_qsl(query, keep_blank_values=True, encoding="latin-1")  # no byte is lost
    # Some end a member at a semicolon too: a credential may stand behind it.
    counting = [one for one in members if one[0] not in DELIVERY_QUERY or ";" in one[1]]
    return sorted(counting, key=itemgetter(0))  # of a repeated one, some read the first


def dropped_members(exchange: Exchange, ignore: frozenset[Ignored]) -> set[str]:
    """Return the members of a body that do not count: delivery, and what is ignored."""
    prompt = exchange.prompt
    dropped = prompt.transport_members()
    if ignore:
        root = prompt.document.root
        for name in ignore & IGNORABLE[exchange.dialect.name]:
            if name is not Ignored.STORE or root.get(name) is False:
                dropped.add(name)
    return dropped


def as_markdown() -> str:
    """Return the table as `docs/cache.md` has it."""
    lines = ["| what differs | how | what exactly | why |", "|---|---|---|---|"]
    lines += (f"| {row.what} | {row.how} | {row.detail} | {row.why} |" for row in TABLE)
    return "\n".join(lines) + "\n"
