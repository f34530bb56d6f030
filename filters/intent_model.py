"""Tell what a request asks for and of which trade it is, by a small model that lies in the package.

A mark is a part of the text, such as a word or two characters; each weighs for or against every
label. All marks of a text are found in one pass, and all its labels are summed in one addition per
mark: a mark's weights lie side by side in one integer. What costs is how many marks a text has and
how far apart they lie in memory, not how many there are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final, Generic, NamedTuple, TypeVar

import ahocorasick_rs as ahocorasick
import msgspec

MODEL_FILE: Final = "intents.msgpack"
GENERAL: Final = "general"
LEAST_DOMAIN: Final = 0.45  # of five; below it are mostly words that the model does not know
LEAST_OF_FEW: Final = 0.55  # a short text has to say its trade clearly
FEW_MARKS: Final = 12

MOST_WEIGHT: Final = 127  # what fits a byte
MOST_BIAS: Final = 255
_LANE_BITS: Final = 16
_ZERO: Final = 1 << (_LANE_BITS - 1)  # where each lane starts, so that no sum is below 0
_MOST_FOUND: Final = (_ZERO - 1 - MOST_BIAS) // MOST_WEIGHT  # the edges of a prompt have half
_UNLIKELY: Final = 8.0  # e to its power is 3,000: what is so much less likely counts for nothing


class Guess(NamedTuple):
    """The likeliest label of each kind and how likely it is."""

    intent: str
    score: float
    domain: str
    domain_score: float


class Weights(msgspec.Struct, frozen=True):
    """What `make train` writes: a byte for each mark and label."""

    intents: list[str]
    domains: list[str]
    marks: list[str]
    weights: bytes
    """Mark by mark, in each the intents before the domains; signed."""
    biases: list[int]
    """What a text has of each label before any mark is found: of an intent nothing."""
    intent_scale: float
    """What a unit of weight is worth, once the text's length is allowed for."""
    domain_scale: float


class _Mark(str):
    """A mark that knows its row: looked up in a table, each would be two places more to read."""

    __slots__ = ("row",)
    row: int
    """All its weights, side by side."""


MarkT = TypeVar("MarkT", bound=str)


class MarkFinder(Generic[MarkT]):
    """Finds all marks that a layout has, each once."""

    def __init__(self, marks: Sequence[MarkT]) -> None:
        """Take some 0.1 s for all of them."""
        # English is searched for English marks only: half the automaton, and shorter steps.
        self._english: Final = _finder([mark for mark in marks if mark.isascii()])
        self._other: Final = _finder([mark for mark in marks if not mark.isascii()])

    def __call__(self, layout: str) -> set[MarkT]:
        """Return the marks themselves: strings that are there already cost nothing to make."""
        found = set(self._english.find_matches_as_strings(layout, overlapping=True))
        if not layout.isascii():
            found.update(self._other.find_matches_as_strings(layout, overlapping=True))
        return found  # type: ignore[return-value]  # typed as strings, they are what was given


class IntentModel:
    """A linear model over marks. Immutable, shared by every exchange."""

    def __init__(self, weights: Weights) -> None:
        """Build the finder of all marks."""
        self.intents: Final = tuple(weights.intents)
        self.domains: Final = tuple(weights.domains)
        labels = len(self.intents) + len(self.domains)
        self._sums: Final = struct.Struct(f"<{labels}H")
        zero = self._packed([0] * labels)
        self._start: Final = self._packed(weights.biases)
        marks = [_Mark(mark) for mark in weights.marks]
        rows = struct.iter_unpack(f"{labels}b", weights.weights)
        for mark, row in zip(marks, rows, strict=True):
            mark.row = self._packed(row) - zero
        self._found: Final = MarkFinder(marks)
        self._intent_scale: Final = weights.intent_scale
        self._domain_scale: Final = weights.domain_scale

    def guess(self, layout: str) -> Guess:
        """Return what a layout most likely asks for; one without a known mark is a toss-up."""
        found = self._found(layout)
        if len(found) > _MOST_FOUND:
            found = set(sorted(found)[:_MOST_FOUND])
        total = sum([mark.row for mark in found], self._start)
        sums = self._sums.unpack(total.to_bytes(self._sums.size, "little"))
        # A long text has more marks, not stronger ones.
        damping = 1 / math.sqrt(len(found) or 1)
        intents = len(self.intents)
        intent, score = _likeliest(sums[:intents], self._intent_scale * damping)
        domain, domain_score = _likeliest(sums[intents:], self._domain_scale * damping)
        least = LEAST_DOMAIN if len(found) >= FEW_MARKS else LEAST_OF_FEW
        trade = self.domains[domain] if domain_score >= least else GENERAL
        return Guess(self.intents[intent], score, trade, domain_score)

    def _packed(self, row: Sequence[int]) -> int:
        return int.from_bytes(self._sums.pack(*[weight + _ZERO for weight in row]), "little")


def _finder(marks: Sequence[str]) -> ahocorasick.AhoCorasick:
    return ahocorasick.AhoCorasick(
        marks,
        store_patterns=True,
        implementation=ahocorasick.Implementation.ContiguousNFA,  # a DFA takes 50 MB
    )


def _likeliest(sums: Sequence[int], scale: float) -> tuple[int, float]:
    """Return the place of the greatest and its softmax."""
    most = max(sums)
    least = most - _UNLIKELY / scale
    exp = math.exp
    total = 0.0
    for one in sums:  # a loop: a list to sum up takes a fifth more
        if one > least:
            total += exp((one - most) * scale)
    return sums.index(most), 1 / total


def read_model(data: bytes) -> IntentModel:
    """Return the model in `data`; raise `msgspec.MsgspecError` when there is none."""
    return IntentModel(msgspec.msgpack.decode(data, type=Weights))


@cache
def bundled_model() -> IntentModel:
    """Return the model that lies in the package; it is read once."""
    return read_model(resources.files("filters").joinpath("data", MODEL_FILE).read_bytes())
