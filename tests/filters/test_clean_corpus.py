"""The corpus of prompts: what goes out of the dirty ones, and nothing out of the others."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from filters.cleaning import SAFE, clean

CORPUS: Final = Path(__file__).parents[1] / "corpus" / "clean"
GUIDE: Final = Path(__file__).parents[2] / "docs" / "clean.md"
FEWEST: Final = 60
SIGNATURES: Final = {
    "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "jpeg": b"\xff\xd8\xff\xe0\0\x10JFIF",
    "gif": b"GIF89a",
    "webp": b"RIFF\x10\0\0\0WEBP",
    "bytes": b"",
}


class Case(NamedTuple):
    name: str
    rules: frozenset[str]
    given: str
    expected: str


def written(match: re.Match[str]) -> str:
    """Return what stands for a code point or an image."""
    kind, *numbers = match[1].split()
    if kind not in SIGNATURES:
        return chr(int(kind, 16))
    size = int(numbers[0])
    noise = bytes(index * index * 7 % 251 for index in range(size))
    text = base64.b64encode((SIGNATURES[kind] + noise)[:size]).decode()
    width = int(numbers[1]) if len(numbers) > 1 else len(text)
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def read(folder: str) -> Iterator[Case]:
    for file in sorted((CORPUS / folder).glob("*.txt")):
        for block in ("\n" + file.read_text("utf-8")).removesuffix("\n").split("\n#### ")[1:]:
            title, body = block.split("\n", 1)
            body = re.sub(r"⟨([^⟩]+)⟩", written, body)
            name, _, rules = title.removesuffix("]").partition(" [")
            given, _, expected = body.partition("\n====>\n")
            yield Case(f"{file.stem}: {name}", SAFE | set(rules.split()), given, expected or given)


DIRTY: Final = list(read("dirty"))
KEPT: Final = list(read("kept"))


@pytest.mark.parametrize("case", DIRTY, ids=lambda case: case.name)
def test_what_carries_nothing_goes(case: Case) -> None:
    """Exactly what the corpus says, no more."""
    assert case.given != case.expected
    assert case.expected == clean(case.given, case.rules)


@pytest.mark.parametrize("case", DIRTY, ids=lambda case: case.name)
def test_what_was_cleaned_is_clean(case: Case) -> None:
    """Cleaning once more changes nothing."""
    assert case.expected == clean(case.expected, case.rules)


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_what_carries_meaning_stays(case: Case) -> None:
    """Every character of it."""
    assert case.given == clean(case.given, case.rules)


@pytest.mark.parametrize("cases", [DIRTY, KEPT], ids=["dirty", "kept"])
def test_the_corpus_is_large_and_says_each_thing_once(cases: list[Case]) -> None:
    """A corpus that was not found would prove nothing."""
    assert len(cases) >= FEWEST
    assert len(cases) == len({case.given for case in cases})


def test_the_examples_of_the_guide_are_true() -> None:
    """Each text and what is left of it, one after the other."""
    blocks = re.findall(r"```text\n(.*?)\n```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 8
    assert blocks[1::2] == [clean(block) for block in blocks[::2]]
