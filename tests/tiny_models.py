"""Make model folders of a few kilobytes, with the names and shapes that real exports have.

The classifier votes: each word of its vocabulary speaks for a label. The summariser repeats: its
decoder writes at each position the token that the encoder read there, until the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, save
from tokenizers import Tokenizer, models, pre_tokenizers, processors

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

VOTES = {
    "sum": "summarise",
    "shorten": "summarise",
    "def": "code",
    "bug": "code",
    "hello": "greeting",
}
LABELS = ("summarise", "code", "greeting")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WORDS = tuple(f"w{number}" for number in range(60))
START, PAD, END = 0, 1, 2


def write_tokenizer(folder: Path, words: Sequence[str]) -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", START), ("</s>", END)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def graph(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, tuple[int, Sequence[int | str]]],
    constants: Mapping[str, Any],
) -> None:
    """Check a graph and write it to a file."""
    made = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(name, *of) for name, of in inputs.items()],
        [helper.make_tensor_value_info(name, *of) for name, of in outputs.items()],
        [numpy_helper.from_array(np.asarray(of), name) for name, of in constants.items()],
    )
    model: ModelProto = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    checker.check_model(model)
    path.parent.mkdir(exist_ok=True)
    save(model, str(path))


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


# --- Classifier ----------------------------------------------------------------------------------


def classifier(
    folder: Path,
    *,
    file: str = "model.onnx",
    settings: Mapping[str, Any] | None = None,
    length: int | str = "length",
    extra: str = "",
    integer: int = INT,
) -> Path:
    """Make a classifier of `LABELS` with one layer of attention over the words' embeddings.

    `length` is that of its input where it was exported for one; `extra` names an input that no
    classifier has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = list(VOTES)
    write_tokenizer(folder, words)
    embeddings = np.zeros((len(SPECIAL) + len(words), len(LABELS)), np.float32)
    for number, word in enumerate(words, len(SPECIAL)):
        embeddings[number, LABELS.index(VOTES[word])] = 6.0
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {
        "input_ids": (integer, ("batch", length)),
        "attention_mask": (integer, ("batch", length)),
    }
    if extra:
        inputs[extra] = (integer, ("batch", length))
    graph(
        folder / file,
        [
            node("Gather", "embeddings input_ids", "words"),
            node("Cast", "attention_mask", "real", to=FLOAT),
            node("Unsqueeze", "real across", "keys"),
            node("Transpose", "words", "turned", perm=[0, 2, 1]),
            node("MatMul", "words turned", "scores"),
            node("Sub", "one keys", "hidden"),
            node("Mul", "hidden far", "away"),
            node("Sub", "scores away", "masked"),
            node("Softmax", "masked", "attention", axis=-1),
            node("MatMul", "attention words", "seen"),
            node("Add", "words seen", "layer"),
            node("Unsqueeze", "real behind", "column"),
            node("Mul", "layer column", "kept"),
            node("ReduceSum", "kept along", "sum", keepdims=0),
            node("ReduceSum", "real along", "count", keepdims=1),
            node("Div", "sum count", "mean"),
            node("MatMul", "mean weights", "weighed"),
            node("Add", "weighed bias", "logits"),
        ],
        inputs,
        {"logits": (FLOAT, ("batch", len(LABELS)))},
        {
            "embeddings": embeddings,
            "across": np.array([1]),
            "behind": np.array([2]),
            "along": np.array([1]),
            "one": np.float32(1),
            "far": np.float32(1e4),
            "weights": np.eye(len(LABELS), dtype=np.float32),
            "bias": np.zeros(len(LABELS), np.float32),
        },
    )
    named = {"id2label": {str(number): label for number, label in enumerate(LABELS)}}
    text = json.dumps({"model_type": "distilbert", **named} if settings is None else settings)
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


# --- Summariser ----------------------------------------------------------------------------------

SIZE = len(SPECIAL) + len(WORDS)
HEADS = 1


def summariser(
    folder: Path,
    *,
    remembers: bool = True,
    merged: bool = False,
    inside: str = "",
    **settings: Any,
) -> Path:
    """Make a BART-class model: an encoder, and a decoder that repeats what was read.

    It comes as exporters write it: with a second decoder that remembers, with the one decoder
    alone, or with both `merged`. `inside` is the folder of the graphs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, WORDS)
    graphs = folder / inside
    graph(
        graphs / "encoder_model.onnx",
        [node("Gather", "embeddings input_ids", "last_hidden_state")],
        {"input_ids": (INT, ("batch", "read")), "attention_mask": (INT, ("batch", "read"))},
        {"last_hidden_state": (FLOAT, ("batch", "read", SIZE))},
        {"embeddings": np.eye(SIZE, dtype=np.float32)},
    )
    if merged:
        _merged_decoder(graphs / "decoder_model_merged.onnx")
    else:
        _first_decoder(graphs / "decoder_model.onnx", remembers=remembers)
        if remembers:
            _later_decoder(graphs / "decoder_with_past_model.onnx")
    config = {
        "model_type": "bart",
        "decoder_start_token_id": END,
        "eos_token_id": END,
        "bos_token_id": START,
        "pad_token_id": PAD,
        "max_position_embeddings": 32,
    }
    text = json.dumps(
        {name: value for name, value in {**config, **settings}.items() if value is not None}
    )
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder


_ASKED: Mapping[str, tuple[int, Sequence[int | str]]] = {
    "input_ids": (INT, ("batch", "written")),
    "encoder_attention_mask": (INT, ("batch", "read")),
}
_STATES: Mapping[str, tuple[int, Sequence[int | str]]] = {
    "encoder_hidden_states": (FLOAT, ("batch", "read", SIZE))
}
_LOGITS: Mapping[str, tuple[int, Sequence[int | str]]] = {
    "logits": (FLOAT, ("batch", "written", SIZE))
}
# What was read stands behind the start of the text, so that the first token repeats the first word.
_CONSTANTS = {
    "one": np.array([1]),
    "zero": np.array([0]),
    "heads": np.array([1]),
    "axis": np.array([1]),
}


def _memory(prefix: str, length: str) -> dict[str, tuple[int, Sequence[int | str]]]:
    """Return a layer's memory: its own past, as long as what was written, and what was read."""
    own = (FLOAT, ("batch", HEADS, length, 1))
    other = (FLOAT, ("batch", HEADS, "read", SIZE))
    return {
        f"{prefix}.0.decoder.key": own,
        f"{prefix}.0.decoder.value": own,
        f"{prefix}.0.encoder.key": other,
        f"{prefix}.0.encoder.value": other,
    }


def _own(ids: str) -> list[Any]:
    """Return nodes that make a key, `own`, of shape batch, heads, length, 1 of token ids."""
    return [
        node("Cast", ids, "numbers", to=FLOAT),
        node("Unsqueeze", "numbers heads", "headed"),
        node("Unsqueeze", "headed last", "own"),
    ]


def _first_decoder(path: Path, *, remembers: bool) -> None:
    nodes = [
        node("Shape", "input_ids", "shape"),
        node("Slice", "shape one two", "written"),
        node("Add", "written one", "end"),
        node("Slice", "encoder_hidden_states one end axis", "logits"),
    ]
    outputs = dict(_LOGITS)
    if remembers:
        outputs |= _memory("present", "written")
        nodes += [
            *_own("input_ids"),
            node("Identity", "own", "present.0.decoder.key"),
            node("Identity", "own", "present.0.decoder.value"),
            node("Unsqueeze", "encoder_hidden_states heads", "present.0.encoder.key"),
            node("Unsqueeze", "encoder_hidden_states heads", "present.0.encoder.value"),
        ]
    constants = {**_CONSTANTS, "two": np.array([2]), "last": np.array([3])}
    graph(path, nodes, {**_ASKED, **_STATES}, outputs, constants)


def _later_decoder(path: Path) -> None:
    """Write the decoder of one token: its position is how much is remembered."""
    nodes = [
        *_own("input_ids"),
        node("Concat", "past_key_values.0.decoder.key own", "present.0.decoder.key", axis=2),
        node("Concat", "past_key_values.0.decoder.value own", "present.0.decoder.value", axis=2),
        node("Shape", "present.0.decoder.key", "shape"),
        node("Slice", "shape two last", "start"),
        node("Add", "start one", "end"),
        node("Slice", "past_key_values.0.encoder.key start end two", "here"),
        node("Squeeze", "here heads", "logits"),
    ]
    present = _memory("present", "all")
    outputs = {name: of for name, of in present.items() if ".decoder." in name}
    constants = {**_CONSTANTS, "two": np.array([2]), "last": np.array([3])}
    inputs = {"encoder_attention_mask": _ASKED["encoder_attention_mask"]}
    inputs |= {"input_ids": _ASKED["input_ids"]} | _memory("past_key_values", "past")
    graph(path, nodes, inputs, {**_LOGITS, **outputs}, constants)


def _merged_decoder(path: Path) -> None:
    """Write both in one; the flag says whether what is remembered counts.

    As in a real one the memory of what was read is right only without the flag.
    """
    nodes = [
        *_own("input_ids"),
        node("Cast", "use_cache_branch", "counts", to=INT),
        node("Shape", "past_key_values.0.decoder.key", "before"),
        node("Slice", "before two last", "past"),
        node("Mul", "past counts", "kept"),
        node("Slice", "past_key_values.0.decoder.key zero kept two", "mine"),
        node("Concat", "mine own", "present.0.decoder.key", axis=2),
        node("Concat", "mine own", "present.0.decoder.value", axis=2),
        node("Shape", "present.0.decoder.key", "shape"),
        node("Slice", "shape two last", "length"),
        node("Add", "kept one", "start"),
        node("Add", "length one", "end"),
        node("Unsqueeze", "encoder_hidden_states heads", "states"),
        node("Shape", "states", "all"),
        node("Slice", "all two last", "read"),
        node("Sub", "one counts", "fresh"),
        node("Mul", "read fresh", "shown"),
        node("Slice", "states zero shown two", "present.0.encoder.key"),
        node("Slice", "states zero shown two", "present.0.encoder.value"),
        node(
            "If",
            "use_cache_branch",
            "from",
            then_branch=_branch("past_key_values.0.encoder.key"),
            else_branch=_branch("states"),
        ),
        node("Slice", "from start end two", "here"),
        node("Squeeze", "here heads", "logits"),
    ]
    constants = {**_CONSTANTS, "two": np.array([2]), "last": np.array([3])}
    inputs = {**_ASKED, **_STATES, **_memory("past_key_values", "past")}
    inputs["use_cache_branch"] = (BOOL, (1,))
    outputs = {**_LOGITS, **_memory("present", "all")}
    graph(path, nodes, inputs, outputs, constants)


def _branch(source: str) -> Any:
    out = f"taken.{source}"
    info = helper.make_tensor_value_info(out, FLOAT, ("batch", HEADS, None, SIZE))
    return helper.make_graph([helper.make_node("Identity", [source], [out])], "branch", [], [info])
