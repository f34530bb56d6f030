"""Tell settings apart that may shape prompts or answers, so that no answer outlives them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from operator import itemgetter
from typing import Any, Final

import msgspec
from blake3 import blake3

from filters.api import Config, Filter
from filters.document import Json


def _number(value: Any) -> float | int:
    """Write a `Duration` or a `Size`."""
    return float(value) if isinstance(value, float) else int(value)


_SORTED: Final = msgspec.json.Encoder(enc_hook=_number, order="sorted")


def fingerprint(filters: Iterable[tuple[type[Filter[Any]], Config]], pools: Json = None) -> str:
    """Return a hash of what a profile's filters do by their settings and their bundled data.

    `pools` is what is known of the servers behind it, as JSON. What lies elsewhere, such as a model
    in a folder, is known by its place alone.
    """
    stages = [
        (kind.name, kind.shaping(config), [bundled_hash(name) for name in kind.bundled])
        for kind, config in filters
    ]
    return blake3(_SORTED.encode((stages, pools))).hexdigest(16)


@cache
def bundled_hash(name: str) -> str:
    """Return the hash of a file, or of all files of a folder, in `filters/data`."""
    hasher = blake3()
    for path, file in sorted(
        _files(name, resources.files("filters") / "data" / name), key=itemgetter(0)
    ):
        content = file.read_bytes()
        hasher.update(f"{path}\n{len(content)}\n".encode())
        hasher.update(content)
    return hasher.hexdigest(16)


def _files(path: str, place: Traversable) -> Iterable[tuple[str, Traversable]]:
    if place.is_file():
        yield path, place
        return
    for below in place.iterdir():
        yield from _files(f"{path}/{below.name}", below)
