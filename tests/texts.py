"""Texts in Chinese, English and code, and how many tokens o200k makes of each."""

from __future__ import annotations

from pathlib import Path
from typing import Final


def _read() -> dict[str, tuple[str, int]]:
    texts: dict[str, tuple[str, int]] = {}
    for path in sorted(Path(__file__).with_name("counted_texts").glob("*.txt")):
        name, tokens = path.stem.split(".")
        texts[name] = (path.read_bytes().decode(), int(tokens))
    return texts


TEXTS: Final = _read()
"""By name; the number of tokens stands in the name of the file."""
