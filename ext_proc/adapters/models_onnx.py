"""Run ONNX graphs, and classify texts with any sequence classifier that was exported to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

from ext_proc.adapters.models import Stop
from ext_proc.adapters.models_folder import (
    find,
    longest_input,
    read_labels,
    read_settings,
    read_tokenizer,
)
from filters.errors import PortError

Arrays = Mapping[str, Any]

GRAPHS: Final = (
    "model.onnx",
    "onnx/model.onnx",
    "model_quantized.onnx",
    "onnx/model_quantized.onnx",
)  # as exporters name them
DEFAULT_TOKENS: Final = 512  # what BERT reads
MOST_TOKENS: Final = (
    40  # what is asked stands in fewer; a quantised DistilBERT takes 14 ms for them
)
CHARS_PER_TOKEN: Final = 16  # the tokenizer is not shown what its truncation drops anyway
_FATAL: Final = 4  # everything else reaches us as an exception
_TYPES: Final = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


class Graph:
    """One ONNX file and the names and shapes of what goes in and comes out."""

    def __init__(self, path: Path) -> None:
        """Load it; raise `PortError` when onnxruntime cannot."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        self.path: Final = path
        try:
            self._session: Final = ort.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # noqa: BLE001 - the library's own classes have no common base
            reason = (str(error).splitlines() or [""])[0]
            raise PortError(f"{path}: expected an ONNX graph, found: {reason}") from None
        self.inputs: Final = {one.name: one for one in self._session.get_inputs()}
        self.outputs: Final = {one.name: one for one in self._session.get_outputs()}

    def expect(self, inputs: AbstractSet[str], outputs: AbstractSet[str]) -> None:
        """Raise `PortError` when it asks for more than these inputs or lacks one of the outputs."""
        if strange := sorted(self.inputs.keys() - inputs):
            known = ", ".join(sorted(inputs))
            raise PortError(f"{self.path}: expected inputs of {known}, found {', '.join(strange)}")
        if missing := sorted(outputs - self.outputs.keys()):
            there = ", ".join(self.outputs)
            raise PortError(f"{self.path}: expected an output {missing[0]}, found {there}")

    def run(self, arrays: Arrays, stop: Stop) -> Arrays:
        """Return every output; of `arrays` it is given what it asks for, in the type it asks.

        Raise `PortError` when the call was stopped.
        """
        options = ort.RunOptions()
        options.log_severity_level = _FATAL

        def end() -> None:
            options.terminate = True

        stop.end = end
        if stop.asked:
            raise PortError("stopped")
        feed = {
            name: arrays[name].astype(_TYPES.get(one.type, arrays[name].dtype), copy=False)
            for name, one in self.inputs.items()
        }
        values = self._session.run(None, feed, options)
        return dict(zip(self.outputs, values, strict=True))


@dataclass(frozen=True, slots=True)
class OnnxClassifier:
    """A sequence classifier: tokens in, one number for each label out."""

    graph: Graph
    tokenizer: Tokenizer
    labels: Sequence[str]
    output: str
    """Name of the numbers."""
    several: bool
    """Labels do not exclude each other."""
    most_chars: int

    @classmethod
    def open(cls, folder: Path) -> OnnxClassifier:
        """Open a folder with model.onnx, tokenizer.json and labels; raise `PortError`."""
        settings = read_settings(folder, "tokenizer_config.json", "config.json")
        graph = Graph(find(folder, *GRAPHS))
        tokenizer = read_tokenizer(folder)
        labels = read_labels(folder, settings)
        output = "logits" if "logits" in graph.outputs else next(iter(graph.outputs))
        graph.expect({"input_ids", "attention_mask", "token_type_ids"}, {output})
        if "input_ids" not in graph.inputs:
            there = ", ".join(graph.inputs)
            raise PortError(f"{graph.path}: expected an input input_ids, found {there}")
        _check_shape(graph.path, output, graph.outputs[output].shape, labels)
        tokens = min(MOST_TOKENS, longest_input(settings, DEFAULT_TOKENS))
        fixed = graph.inputs["input_ids"].shape[-1]
        if isinstance(fixed, int):  # exported for one length
            tokens = fixed
            padding = settings.get("pad_token_id", 0)
            tokenizer.enable_padding(length=fixed, pad_id=padding)
        tokenizer.enable_truncation(tokens)
        several = settings.get("problem_type") == "multi_label_classification"
        return cls(graph, tokenizer, labels, output, several, tokens * CHARS_PER_TOKEN)

    def classify(self, text: str, stop: Stop) -> Mapping[str, float]:
        """Return the probability of each label for the head of `text`."""
        encoding = self.tokenizer.encode(text[: self.most_chars])
        arrays = {
            "input_ids": np.array([encoding.ids]),
            "attention_mask": np.array([encoding.attention_mask]),
            "token_type_ids": np.array([encoding.type_ids]),
        }
        logits = self.graph.run(arrays, stop)[self.output]
        _check_shape(self.graph.path, self.output, logits.shape, self.labels)
        numbers = logits[0].astype(np.float64)
        if self.several:
            shares = 1 / (1 + np.exp(-numbers))
        else:
            shares = np.exp(numbers - numbers.max())
            shares /= shares.sum()
        return dict(zip(self.labels, shares.tolist(), strict=True))


def _check_shape(path: Path, output: str, shape: Sequence[Any], labels: Sequence[str]) -> None:
    """Raise `PortError` unless there is one number for each label, as far as the shape tells."""
    if len(shape) != 2:
        raise PortError(
            f"{path}: expected {output} of one row of numbers for a text, found {len(shape)} "
            "dimensions; is it a sequence classifier?"
        )
    if isinstance(shape[1], int) and shape[1] != len(labels):
        raise PortError(
            f"{path}: expected {len(labels)} numbers for {len(labels)} labels, found {shape[1]}"
        )
