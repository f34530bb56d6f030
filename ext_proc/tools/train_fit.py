"""Fit the weights of the bundled classifier. Needs numpy, which only training does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from filters.intent_model import MOST_BIAS, MOST_WEIGHT, MarkFinder, Weights
from filters.intent_text import edges, laid_out, marks

LEAST_SEEN: Final = 3  # a mark of fewer requests says more of them than of the task
KEPT_MARKS: Final = (32_000, 22_000)
"""Those with the least weight go; then the rest learn to do without them, and so on."""
COST: Final = 0.2
"""A mark counts for less by this power of how often it is seen: finding it is what takes time."""
EPOCHS: Final = 15
BATCH: Final = 64
RATE: Final = 3.0
DECAY: Final = 2e-6  # L2 on every weight
KEEP: Final = 0.6  # share of a text's marks that an epoch sees, so that no single one carries it
SEED: Final = 11


class Labelled(NamedTuple):
    """A text with the places of its labels."""

    text: str
    intent: int
    """-1 where it has none."""
    domain: int


def fit(requests: Sequence[Labelled], intents: Sequence[str], domains: Sequence[str]) -> Weights:
    """Return weights fitted to `requests`; the same every time."""
    layouts = [laid_out(edges([request.text])) for request in requests]
    seen: Counter[str] = Counter()
    for layout in layouts:
        seen.update(set(marks(layout)))
    vocabulary = sorted(mark for mark, count in seen.items() if count >= LEAST_SEEN)
    kinds = len(intents), len(domains)
    for most in KEPT_MARKS:
        weights, _ = _descend(requests, layouts, vocabulary, kinds)
        worth = np.abs(weights).max(axis=1) * np.array([seen[mark] for mark in vocabulary]) ** -COST
        order = sorted(range(len(vocabulary)), key=lambda place: (-round(worth[place], 6), place))
        vocabulary = sorted(vocabulary[place] for place in order[:most])
    weights, biases = _descend(requests, layouts, vocabulary, kinds)
    scales = [
        float(np.float32(np.abs(part).max() / MOST_WEIGHT))
        for part in (weights[:, : len(intents)], weights[:, len(intents) :])
    ]
    units = np.repeat(scales, kinds)
    rows = np.rint(weights / units).astype(np.int8)
    kept = np.flatnonzero(np.any(rows != 0, axis=1))
    return Weights(
        intents=list(intents),
        domains=list(domains),
        marks=[vocabulary[place] for place in kept],
        weights=rows[kept].tobytes(),
        biases=[int(bias) for bias in np.rint(biases / units).clip(-MOST_BIAS, MOST_BIAS)],
        intent_scale=scales[0],
        domain_scale=scales[1],
    )


def _descend(
    requests: Sequence[Labelled],
    layouts: Sequence[str],
    vocabulary: Sequence[str],
    kinds: tuple[int, int],
) -> tuple[Any, Any]:
    """Minimise the two cross-entropies by AdaGrad over small batches."""
    finder = MarkFinder(vocabulary)
    places = {mark: place for place, mark in enumerate(vocabulary)}
    found = [
        np.array(sorted(map(places.__getitem__, finder(layout))), dtype=np.int64)
        for layout in layouts
    ]
    intents, labels = kinds[0], sum(kinds)
    weights = np.zeros((len(vocabulary), labels))
    biases = np.zeros(labels)
    past = np.full((len(vocabulary), labels), 1e-2)
    chance = random.Random(SEED)  # noqa: S311 - the order of training, no secret
    drops = np.random.default_rng(SEED)
    order = list(range(len(requests)))
    for epoch in range(EPOCHS):
        chance.shuffle(order)
        rate = RATE * (1 - epoch / EPOCHS)
        for start in range(0, len(order), BATCH):
            batch = [place for place in order[start : start + BATCH] if len(found[place])]
            kept = []
            for place in batch:
                mask = drops.random(len(found[place])) < KEEP
                mask[0] = True
                kept.append(found[place][mask])
            counts = np.array([len(places) for places in kept])
            flat = np.concatenate(kept)
            damping = 1 / np.sqrt(counts)
            starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
            sums = np.add.reduceat(weights[flat], starts, axis=0) + biases
            logits = sums * damping[:, None]
            slope = np.concatenate(
                [_softmax(logits[:, :intents]), _softmax(logits[:, intents:])], axis=1
            )
            rows = np.arange(len(batch))
            asked = np.array([requests[place].intent for place in batch])
            slope[rows[asked >= 0], asked[asked >= 0]] -= 1
            slope[asked < 0, :intents] = 0
            slope[rows, [intents + requests[place].domain for place in batch]] -= 1
            slope /= len(batch)
            slope *= damping[:, None]
            # None of an intent: what is not understood must not pass for the commonest short one.
            biases[intents:] -= 0.1 * rate * slope[:, intents:].sum(axis=0)
            by_mark = np.argsort(flat, kind="stable")
            unique, firsts = np.unique(flat[by_mark], return_index=True)
            owners = np.repeat(rows, counts)[by_mark]
            step = np.add.reduceat(slope[owners], firsts, axis=0)
            step += DECAY * weights[unique]
            past[unique] += step * step
            weights[unique] -= rate * step / np.sqrt(past[unique])
    return weights, biases


def _softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
