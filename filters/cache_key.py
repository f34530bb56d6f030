"""Say when two requests ask the same thing: a BLAKE3 key over what decides the answer."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from blake3 import blake3

from filters.api import Exchange, Role
from filters.bounds import is_too_much
from filters.document import Json, Path
from filters.segments import edit_prose

KEY_BYTES: Final = 24
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
_DELIVERY_QUERY: Final = frozenset({"key", "alt", "$alt", "prettyPrint", "$prettyPrint"})
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_INDENTED_LINE: Final = re.compile(r"\n(?: ?\t|  )[ \t]*+\S")
_CELLS: Final = re.compile(r"\S\t++\S")  # a row of a table, where an empty cell is one tab more
_SPACES: Final = "\n\r\t\v\f\x1c\x1d\x1e\x1f"  # of ASCII, as `str.isspace` has it
# Without one of these a text has no code, JSON or mathematics, or none that one line changes.
_MARKS_OF_CODE: Final = "`$\\~={}[<>|"


def cache_key(exchange: Exchange) -> bytes:
    """Return the key of an exchange's request.

    Profile, tenant, dialect, model, system prompt, tools and every parameter count; how the answer
    is delivered (streamed or not) does not, nor do runs of white space outside code.
    """
    prompt = exchange.prompt
    headers = exchange.head.headers
    # JSON tells where each part ends, so that no two lists of parts look alike.
    parts = (
        *(exchange.profile, exchange.tenant, exchange.dialect.name, prompt.model),
        [headers.get(name, "") for name in VARIANT_HEADERS],
        _place(exchange.head.path),
        _variant_query(exchange.head.path),
        _normalised(exchange),
    )
    return blake3(_SORTED.encode(parts)).digest(KEY_BYTES)


def _place(path: str) -> str:
    """Return the path without its method: it may name a deployment, an account or a project."""
    route = path.partition("?")[0]
    return route.rpartition(":")[0] or route


def _variant_query(path: str) -> list[tuple[str, str]]:
    query = path.partition("?")[2]
    if not query:
        return []
    members = parse_qsl(query, keep_blank_values=True, encoding="latin-1")  # no byte is lost
    counting = [member for member in members if member[0] not in _DELIVERY_QUERY]
    return sorted(counting, key=itemgetter(0))  # of a repeated one, some read the first


def _normalised(exchange: Exchange) -> dict[str, Json]:
    """Return the body with white space folded in prose and without its delivery members."""
    document = exchange.prompt.document
    texts = {
        text.path: text.value
        for turn in exchange.prompt.turns()
        for text in turn.texts
        if text.role is not Role.TOOL  # a program's: its lines may be a list of names
    }
    folded: dict[Path, Json] = {}
    if not is_too_much(texts.values()):  # else they count as they stand
        for path, value in texts.items():
            if (normal := fold_white_space(value)) != value:
                folded[path] = normal
    root = document.replaced(folded)
    delivery = exchange.prompt.transport_paths()
    if delivery:
        root = {key: value for key, value in root.items() if (key,) not in delivery}
    return root


def fold_white_space(text: str) -> str:
    """Fold runs of white space in prose to one space.

    Code, even unfenced, keeps its own, and so does a table whose columns are parted by tabs.
    """
    if not text or _INDENTED_LINE.search(text) or ("\t" in text and _CELLS.search(text)):
        return text
    for mark in _MARKS_OF_CODE:
        if mark in text:
            return edit_prose(text, _fold).strip()
    return _fold(text).strip()


def _fold(prose: str) -> str:
    # The spaces at the ends count: code may stand beyond them.
    if not prose.isascii():
        # Scripts that have spaces of their own; those with none are one word a line.
        words = prose.split()
        if not words:
            return " "
        left = " " if prose[0].isspace() else ""
        right = " " if prose[-1].isspace() else ""
        return f"{left}{' '.join(words)}{right}"
    for space in _SPACES:  # a tenth of the time of splitting into words
        if space in prose:
            prose = prose.replace(space, " ")
    while "  " in prose:
        prose = prose.replace("  ", " ")
    return prose
