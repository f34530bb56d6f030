"""Read what lies beside a model: its settings, its labels, its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from filters.errors import PortError

MOST_NAMES: Final = 8  # of what lies in a folder, in a message
_UNLIMITED: Final = 1_000_000  # `model_max_length` is 1e30 where nobody set it
# RoBERTa and BART count positions from behind the padding's id, and their exports say so in
# `max_position_embeddings`: 514 for 512 tokens.
_OFFSET_KINDS: Final = frozenset({"roberta", "xlm-roberta", "camembert"})
_OFFSET: Final = 2


def find(folder: Path, *names: str) -> Path:
    """Return the first file of those names; raise `PortError` with what there is instead."""
    for name in names:
        if (path := folder / name).is_file():
            return path
    if not folder.is_dir():
        raise PortError(
            f"{folder}: expected a folder, found {'a file' if folder.exists() else 'none'}"
        )
    there = sorted(path.name for path in folder.iterdir())
    found = ", ".join(there[:MOST_NAMES]) + (", …" if len(there) > MOST_NAMES else "")
    raise PortError(f"{folder}: expected {' or '.join(names)}, found {found or 'nothing'}")


def read_settings(folder: Path, *names: str) -> dict[str, Any]:
    """Return the members of those JSON files that exist, later ones over earlier ones."""
    settings: dict[str, Any] = {}
    for name in names:
        path = folder / name
        if path.is_file():
            value = _read_json(path)
            if not isinstance(value, dict):
                raise PortError(f"{path}: expected a JSON object, found {type(value).__name__}")
            settings |= {key: member for key, member in value.items() if member is not None}
    return settings


def read_labels(folder: Path, settings: Mapping[str, Any]) -> Sequence[str]:
    """Return the labels in the order of the model's outputs; raise `PortError` without any.

    They stand in config.json (`id2label`), labels.json (a list, or label or number to the other),
    or labels.txt (one a line).
    """
    if numbered := settings.get("id2label"):
        return _in_order(folder / "config.json", numbered)
    if (path := folder / "labels.json").is_file():
        return _in_order(path, _read_json(path))
    if (path := folder / "labels.txt").is_file():
        return [line.strip() for line in read_text(path).splitlines() if line.strip()]
    raise PortError(
        f"{folder}: expected labels in config.json (id2label), labels.json or labels.txt, "
        "found none"
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer in `tokenizer.json`, without padding."""
    path = find(folder, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
        raise PortError(f"{path}: expected a tokenizer, found: {error}") from None
    tokenizer.no_padding()
    return tokenizer


def longest_input(settings: Mapping[str, Any], default: int) -> int:
    """Return how many tokens a model reads, by its own files."""
    positions = settings.get("max_position_embeddings")
    if isinstance(positions, int) and settings.get("model_type") in _OFFSET_KINDS:
        positions -= _OFFSET
    limits = [
        int(limit)
        for limit in (positions, settings.get("model_max_length"))
        if isinstance(limit, int | float) and 0 < limit < _UNLIMITED
    ]
    return min(limits, default=default)


def _in_order(path: Path, labels: Any) -> Sequence[str]:
    if isinstance(labels, list):
        return [str(label) for label in labels]
    if isinstance(labels, dict) and labels:
        pairs = [
            (key, value) if str(key).isdigit() else (value, key) for key, value in labels.items()
        ]
        try:
            numbered = {int(number): str(label) for number, label in pairs}
        except (TypeError, ValueError):
            numbered = {}
        if sorted(numbered) == list(range(len(labels))):
            return [numbered[number] for number in range(len(labels))]
    raise PortError(f"{path}: expected labels numbered from 0 on, found {str(labels)[:60]}")


def read_text(path: Path) -> str:
    """Return what stands in a file; raise `PortError` for what is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PortError(f"{path}: expected text in UTF-8, found: {error}") from None


def _read_json(path: Path) -> Any:
    try:
        return msgspec.json.decode(read_text(path))
    except (ValueError, RecursionError) as error:
        raise PortError(f"{path}: expected JSON, found: {error}") from None
