"""Tell what a request asks for and of which trade it is, by a small model that lies in the package.

A mark is a part of the text, such as a word or two characters; each weighs for or against every
label. All marks of a text are found in one pass, and all its labels are summed in one addition per
mark: a mark's weights lie side by side in one integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

import ahocorasick_rs as ahocorasick
import msgspec

MODEL_FILE: Final = "intents.msgpack"
GENERAL: Final = "general"
LEAST_DOMAIN: Final = 0.35  # of five; no text of a trade that risks much was below it in `dev`

_LANE_BITS: Final = 32  # a sum of 65,536 weights of two bytes still fits
_ZERO: Final = 128  # added to each weight, so that no lane is below zero


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
    biases: list[float]
    intent_scale: float
    """What a unit of weight is worth, once the text's length is allowed for."""
    domain_scale: float


class IntentModel:
    """A linear model over marks. Immutable, shared by every exchange."""

    def __init__(self, weights: Weights) -> None:
        """Build the finder of all marks."""
        self.intents: Final = tuple(weights.intents)
        self.domains: Final = tuple(weights.domains)
        labels = len(self.intents) + len(self.domains)
        self._sums: Final = struct.Struct(f"<{labels}I")
        self._packed: Final = [
            int.from_bytes(self._sums.pack(*(weight + _ZERO for weight in row)), "little")
            for row in struct.iter_unpack(f"{labels}b", weights.weights)
        ]
        self._finder: Final = finder_of(weights.marks)
        self._intent_biases: Final = weights.biases[: len(self.intents)]
        self._domain_biases: Final = weights.biases[len(self.intents) :]
        self._intent_scale: Final = weights.intent_scale
        self._domain_scale: Final = weights.domain_scale

    def guess(self, layout: str) -> Guess:
        """Return what a layout most likely asks for; one without a known mark is a toss-up."""
        matches = self._finder.find_matches_as_indexes(layout, overlapping=True)
        found = {mark for mark, _, _ in matches}
        total = sum(map(self._packed.__getitem__, found))
        sums = self._sums.unpack(total.to_bytes(self._sums.size, "little"))
        zero = len(found) * _ZERO
        # A long text has more marks, not stronger ones.
        damping = 1 / math.sqrt(len(found) or 1)
        intents = len(self.intents)
        scale = self._intent_scale * damping
        intent, score = _likeliest(
            [(part - zero) * scale + bias for part, bias in zip(sums, self._intent_biases)]  # noqa: B905 - the rest are domains
        )
        scale = self._domain_scale * damping
        domain, domain_score = _likeliest(
            [
                (part - zero) * scale + bias
                for part, bias in zip(sums[intents:], self._domain_biases, strict=True)
            ]
        )
        trade = self.domains[domain] if domain_score >= LEAST_DOMAIN else GENERAL
        return Guess(self.intents[intent], score, trade, domain_score)


def finder_of(marks: Sequence[str]) -> ahocorasick.AhoCorasick:
    """Return what finds every mark in a layout in one pass; some 0.1 s for all of them."""
    return ahocorasick.AhoCorasick(
        marks,
        implementation=ahocorasick.Implementation.ContiguousNFA,  # a DFA takes 50 MB
    )


def _likeliest(logits: Sequence[float]) -> tuple[int, float]:
    """Return the place of the greatest and its softmax."""
    most = max(logits)
    return logits.index(most), 1 / sum([math.exp(logit - most) for logit in logits])


def read_model(data: bytes) -> IntentModel:
    """Return the model in `data`; raise `msgspec.MsgspecError` when there is none."""
    return IntentModel(msgspec.msgpack.decode(data, type=Weights))


@cache
def bundled_model() -> IntentModel:
    """Return the model that lies in the package; it is read once."""
    return read_model(resources.files("filters").joinpath("data", MODEL_FILE).read_bytes())
