"""Tell what a request asks for and of which trade it is, by a small model that lies in the package.

A mark is a part of the text, such as a word or two characters; each weighs for or against every
label. All marks of a text are found in one pass, and all its labels are summed in one addition per
mark: a mark's weights lie side by side in one integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

import ahocorasick
import msgspec

from filters.intent_text import laid_out

MODEL_FILE: Final = "intents.msgpack"

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
        """Build the finder of all marks: some 20 ms."""
        self.intents: Final = tuple(weights.intents)
        self.domains: Final = tuple(weights.domains)
        labels = len(self.intents) + len(self.domains)
        self._weights: Final = weights
        self._sums: Final = struct.Struct(f"<{labels}I")
        self._finder: Final = ahocorasick.Automaton(ahocorasick.STORE_INTS)
        self._packed: Final[list[int]] = []
        for place, mark in enumerate(weights.marks):
            row = struct.unpack_from(f"{labels}b", weights.weights, place * labels)
            packed = self._sums.pack(*(weight + _ZERO for weight in row))
            self._packed.append(int.from_bytes(packed, "little"))
            self._finder.add_word(mark, place)
        self._finder.make_automaton()

    def guess(self, text: str) -> Guess:
        """Return what `text` most likely asks for; a text without any known mark is a toss-up."""
        found = {place for _, place in self._finder.iter(laid_out(text))}
        total = sum(map(self._packed.__getitem__, found))
        sums = self._sums.unpack(total.to_bytes(self._sums.size, "little"))
        zero = len(found) * _ZERO
        # A long text has more marks, not stronger ones.
        damping = 1 / math.sqrt(len(found) or 1)
        intents = len(self.intents)
        biases = self._weights.biases
        scale = self._weights.intent_scale * damping
        intent, score = _likeliest(
            [
                (part - zero) * scale + bias
                for part, bias in zip(sums[:intents], biases, strict=False)
            ]
        )
        scale = self._weights.domain_scale * damping
        domain, domain_score = _likeliest(
            [
                (part - zero) * scale + bias
                for part, bias in zip(sums[intents:], biases[intents:], strict=True)
            ]
        )
        return Guess(self.intents[intent], score, self.domains[domain], domain_score)


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
