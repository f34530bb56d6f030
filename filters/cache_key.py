"""Say when two requests ask the same thing: a BLAKE3 key over what decides the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from blake3 import blake3

from filters.api import Exchange, Role, Turn
from filters.bounds import is_too_much
from filters.cache_folding import fold_all
from filters.cache_neutral import neutral_request
from filters.cache_rules import VARIANT_HEADERS, Ignored, dropped_members, variant_query
from filters.document import Document, Json, Path

DIGEST_BYTES: Final = 24
TENANT_CHARS: Final = 16  # enough to find a tenant's entries; the whole hash is in the digest
SHARED: Final = "shared"
LONG_DATA_CHARS: Final = 4096  # a hash in its place costs less than to copy it
_SLICE_CHARS: Final = 1 << 16
_TOOL: Final = Role.TOOL  # in Python 3.11 reading an enum's member costs 0.1 us
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_NO_HEADERS: Final = ("",) * len(VARIANT_HEADERS)


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What a profile says of keys."""

    ignore: frozenset[Ignored] = frozenset()
    """Members that do not count."""
    share_tenants: bool = False
    across_dialects: bool = False


_STRICT: Final = KeyRule()


def cache_key(exchange: Exchange, rule: KeyRule = _STRICT) -> bytes:
    """Return the key of an exchange's request: `PROFILE:TENANT:DIGEST`, printable.

    What is in the digest, and what is not, says the table in `cache_rules.py`.
    """
    tenant = "" if rule.share_tenants else exchange.tenant
    asked = neutral_request(exchange, rule.ignore) if rule.across_dialects else None
    if asked is None:
        asked = _own_request(exchange, rule.ignore)
    # JSON tells where each part ends, so that no two lists of parts look alike.
    parts = (exchange.profile, exchange.shaped_by, rule.share_tenants, tenant, asked)
    digest = blake3(_SORTED.encode(parts)).hexdigest(DIGEST_BYTES)
    label = SHARED if rule.share_tenants else tenant[:TENANT_CHARS]
    return f"{exchange.profile}:{label}:{digest}".encode()


def _own_request(exchange: Exchange, ignore: frozenset[Ignored]) -> tuple[Json, ...]:
    """Return what counts of a request in its dialect's own words."""
    headers = exchange.head.headers
    place, mark, _ = (path := exchange.head.path).partition("?")
    if ":" in place:
        place = _without_method(place)
    return (
        exchange.dialect.name,
        exchange.prompt.model,
        [*map(headers.get, VARIANT_HEADERS, _NO_HEADERS)],
        place,
        variant_query(path) if mark else [],
        *_normalised(exchange, ignore),
    )


def _without_method(place: str) -> str:
    """Return a path without its method: it may name a deployment, an account or a project."""
    parent, slash, last = place.rpartition("/")  # a colon before is a name's
    return parent + slash + (last.rpartition(":")[0] or last)


def _normalised(exchange: Exchange, ignore: frozenset[Ignored]) -> tuple[Json, list[Json]]:
    """Return the body as it counts, and the hashes of data that is left out of it.

    White space is folded in prose, members of delivery and ignored ones are not there.
    """
    prompt = exchange.prompt
    document = prompt.document
    texts: dict[Path, str] = {}
    for text, value in zip(prompt.texts(), prompt.said(), strict=True):
        if text.role is not _TOOL:  # a program's: its lines may be a list of names
            texts[text.path] = value
    changed: dict[Path, Json] = {}
    if not is_too_much(texts.values()):  # else they count as they stand
        for (path, value), folded in zip(texts.items(), fold_all(texts.values()), strict=True):
            if folded != value:
                changed[path] = folded
    hashes: list[Json] = []
    if len(document.raw) > LONG_DATA_CHARS:
        for path, data in _long_data(prompt.turns(), document, texts):
            changed[path] = None
            hashes.append([path, _hashed(data)])
    root = document.replaced(changed)
    if dropped := dropped_members(exchange, ignore):
        root = {key: value for key, value in root.items() if key not in dropped}
    hashes.sort(key=str)  # the order of members does not count
    return root, hashes


def _long_data(
    turns: Sequence[Turn], document: Document, texts: Mapping[Path, str]
) -> Iterator[tuple[Path, str]]:
    """Yield the long strings beside the texts of turns that carry images, sounds or files."""
    for turn in turns:
        if not turn.has_media:
            continue
        left: list[tuple[Path, Json]] = [(turn.path, document.get(turn.path))]
        while left:
            path, value = left.pop()
            if isinstance(value, str):
                if len(value) >= LONG_DATA_CHARS and path not in texts:
                    yield path, value
            elif isinstance(value, dict):
                left += (((*path, key), below) for key, below in value.items())
            elif isinstance(value, list):
                left += (((*path, index), below) for index, below in enumerate(value))


def _hashed(data: str) -> str:
    """Return the hash of a string without a second copy of it."""
    hasher = blake3()
    for start in range(0, len(data), _SLICE_CHARS):
        hasher.update(data[start : start + _SLICE_CHARS].encode())
    return hasher.hexdigest()
