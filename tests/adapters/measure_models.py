"""Print what a call of a classifier in ONNX costs, by its size.

    python -m tests.adapters.measure_models

The models have the shapes of MiniLM-L6 and DistilBERT-base and random weights: what a call costs
does not depend on what was learnt. A text fills the 40 tokens that are read, one thread does the
work, and its CPU time counts, tokenizer and all. Takes a minute and 600 MB of memory.
"""

from __future__ import annotations

import logging
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

from ext_proc.adapters.models import Stop
from ext_proc.adapters.models_onnx import MOST_TOKENS, OnnxClassifier
from tests.tiny_models import FLOAT, INT, graph, node, write_tokenizer

LABELS: Final = 14
WORDS: Final = tuple(f"word{number}" for number in range(30_000))
CALLS: Final = 200
GOAL_MS: Final = 15.0


class Shape(NamedTuple):
    name: str
    layers: int
    width: int
    heads: int


SHAPES: Final = (
    Shape("MiniLM-L6", 6, 384, 12),
    Shape("DistilBERT-base", 6, 768, 12),
)


def write_classifier(folder: Path, shape: Shape) -> None:
    """Write a transformer of random weights: attention, a layer four times as wide, two norms."""
    write_tokenizer(folder, WORDS)
    noise = np.random.default_rng(1)
    constants: dict[str, Any] = {
        "heads": np.array([0, 0, shape.heads, shape.width // shape.heads]),
        "joined": np.array([0, 0, shape.width]),
        "root": np.float32((shape.width // shape.heads) ** 0.5),
        "two": np.float32(2**0.5),
        "half": np.float32(0.5),
        "one": np.float32(1),
        "first": np.array(0),
        "scale": np.ones(shape.width, np.float32),
        "shift": np.zeros(shape.width, np.float32),
    }

    def weights(name: str, *size: int) -> str:
        constants[name] = noise.normal(0, 0.02, size).astype(np.float32)
        return name

    nodes = [node("Gather", f"{weights('words', len(WORDS) + 4, shape.width)} input_ids", "in0")]
    for layer in range(shape.layers):
        at = f"l{layer}_"
        for part, turn in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
            wide = weights(at + part, shape.width, shape.width)
            nodes += [
                node("MatMul", f"in{layer} {wide}", f"{at}{part}1"),
                node("Reshape", f"{at}{part}1 heads", f"{at}{part}2"),
                node("Transpose", f"{at}{part}2", f"{at}{part}3", perm=turn),
            ]
        out, up, down = (
            weights(at + "out", shape.width, shape.width),
            weights(at + "up", shape.width, 4 * shape.width),
            weights(at + "down", 4 * shape.width, shape.width),
        )
        nodes += [
            node("MatMul", f"{at}q3 {at}k3", f"{at}scores"),
            node("Div", f"{at}scores root", f"{at}scaled"),
            node("Softmax", f"{at}scaled", f"{at}seen", axis=-1),
            node("MatMul", f"{at}seen {at}v3", f"{at}mixed"),
            node("Transpose", f"{at}mixed", f"{at}back", perm=(0, 2, 1, 3)),
            node("Reshape", f"{at}back joined", f"{at}flat"),
            node("MatMul", f"{at}flat {out}", f"{at}told"),
            node("Add", f"{at}told in{layer}", f"{at}sum"),
            node("LayerNormalization", f"{at}sum scale shift", f"{at}norm", axis=-1),
            node("MatMul", f"{at}norm {up}", f"{at}wide"),
            node("Div", f"{at}wide two", f"{at}e1"),
            node("Erf", f"{at}e1", f"{at}e2"),
            node("Add", f"{at}e2 one", f"{at}e3"),
            node("Mul", f"{at}wide {at}e3", f"{at}e4"),
            node("Mul", f"{at}e4 half", f"{at}gelu"),
            node("MatMul", f"{at}gelu {down}", f"{at}narrow"),
            node("Add", f"{at}narrow {at}norm", f"{at}more"),
            node("LayerNormalization", f"{at}more scale shift", f"in{layer + 1}", axis=-1),
        ]
    nodes += [
        node("Gather", f"in{shape.layers} first", "start", axis=1),
        node("MatMul", f"start {weights('labels', shape.width, LABELS)}", "logits"),
    ]
    graph(
        folder / "model.onnx",
        nodes,
        {"input_ids": (INT, ("batch", "length"))},
        {"logits": (FLOAT, ("batch", LABELS))},
        constants,
    )
    (folder / "labels.txt").write_text("\n".join(f"label{number}" for number in range(LABELS)))


def print_costs(name: str, folder: Path) -> None:
    """Open a folder, ask it, and print a line."""
    began = time.perf_counter()
    classifier = OnnxClassifier.open(folder)
    opened_s = time.perf_counter() - began
    taken = []
    for number in range(CALLS):
        text = " ".join(random.Random(number).choices(WORDS, k=2 * MOST_TOKENS))
        started_ns = time.process_time_ns()
        classifier.classify(text, Stop())
        taken.append((time.process_time_ns() - started_ns) / 1e6)
    taken.sort()
    size = classifier.graph.path.stat().st_size / 1e6
    print(
        f"{name:24}{size:5.0f} MB  {statistics.median(taken):5.1f} ms of CPU, one in a hundred"
        f" {taken[CALLS * 99 // 100]:5.1f}   opened in {opened_s:.2f} s"
    )


def main() -> None:
    logging.disable(logging.WARNING)  # the quantiser recommends steps that change no cost
    print(f"goal: at most {GOAL_MS:g} ms for a model of the class of a quantised DistilBERT")
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_classifier(folder, shape)
            print_costs(f"{shape.name}, float32", folder)
            whole = folder / "model.onnx"
            quantize_dynamic(whole, folder / "model_quantized.onnx", weight_type=QuantType.QInt8)
            whole.unlink()
            print_costs(f"{shape.name}, int8", folder)


if __name__ == "__main__":
    main()
