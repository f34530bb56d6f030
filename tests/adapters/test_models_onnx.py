"""Classifiers exported to ONNX: any that fits, and a clear word about one that does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from ext_proc.adapters.models import Stop
from ext_proc.adapters.models_folder import longest_input, read_labels
from ext_proc.adapters.models_onnx import MOST_TOKENS, OnnxClassifier
from filters.errors import PortError
from tests import tiny_models
from tests.tiny_models import LABELS


def likeliest(said: Mapping[str, float]) -> str:
    return max(said, key=lambda label: said[label])


def asked(folder: Path, text: str) -> Mapping[str, float]:
    return OnnxClassifier.open(folder).classify(text, Stop())


def refused(folder: Path) -> str:
    """Return what is said of a folder, its own path replaced by a dot."""
    with pytest.raises(PortError) as raised:
        OnnxClassifier.open(folder)
    return str(raised.value).replace(str(folder), ".")


@pytest.mark.parametrize(("text", "label"), list(tiny_models.VOTES.items()))
def test_the_likeliest_label_is_the_models(text: str, label: str, tmp_path: Path) -> None:
    """Tokenizer, graph and labels work together."""
    assert label == likeliest(asked(tiny_models.classifier(tmp_path), text))


def test_the_probabilities_of_all_labels_add_up_to_one(tmp_path: Path) -> None:
    """Softmax over the model's numbers."""
    said = asked(tiny_models.classifier(tmp_path), "sum def unknown words")
    assert set(LABELS) == set(said)
    assert pytest.approx(1.0) == sum(said.values())


def test_labels_that_do_not_exclude_each_other_have_each_its_own_probability(
    tmp_path: Path,
) -> None:
    """`problem_type` of config.json says so: a sigmoid for each."""
    settings = {"id2label": dict(enumerate(LABELS)), "problem_type": "multi_label_classification"}
    said = asked(tiny_models.classifier(tmp_path, settings=settings), "nothing known")
    assert dict.fromkeys(LABELS, 0.5) == said


@pytest.mark.parametrize(
    "file", ["model.onnx", "onnx/model.onnx", "model_quantized.onnx", "onnx/model_quantized.onnx"]
)
def test_the_graph_may_stand_where_exporters_put_it(file: str, tmp_path: Path) -> None:
    """Beside the tokenizer or in a folder below."""
    assert "code" == likeliest(asked(tiny_models.classifier(tmp_path, file=file), "def"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", "summarise\ncode\ngreeting\n"),
        ("labels.json", '["summarise", "code", "greeting"]'),
        ("labels.json", '{"1": "code", "0": "summarise", "2": "greeting"}'),
        ("labels.json", '{"greeting": 2, "code": 1, "summarise": 0}'),
    ],
)
def test_labels_may_stand_in_a_file_of_their_own(name: str, content: str, tmp_path: Path) -> None:
    """Where config.json has none."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(LABELS) == list(read_labels(tmp_path, {}))


def test_a_graph_for_one_length_is_given_that_length(tmp_path: Path) -> None:
    """Exports without a dynamic axis: what is missing is padded and masked."""
    folder = tiny_models.classifier(tmp_path, length=8)
    assert "greeting" == likeliest(asked(folder, "hello"))
    assert "greeting" == likeliest(asked(folder, "hello " * 20))


def test_a_graph_may_want_the_types_of_segments_and_short_integers(tmp_path: Path) -> None:
    """BERT has `token_type_ids`, and some exporters write 32 bits."""
    folder = tiny_models.classifier(tmp_path, extra="token_type_ids", integer=TensorProto.INT32)
    assert "code" == likeliest(asked(folder, "bug"))


def test_a_long_text_is_read_as_far_as_the_model_reads(tmp_path: Path) -> None:
    """Its head decides; the rest costs nothing."""
    folder = tiny_models.classifier(tmp_path)
    assert "code" == likeliest(asked(folder, "def " * MOST_TOKENS + "hello " * 100_000))


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 514, "model_type": "roberta"}, 512),
        ({"max_position_embeddings": 512, "model_max_length": 256}, 256),
        ({"model_max_length": 1e30}, 77),
        ({}, 77),
    ],
)
def test_a_model_reads_what_its_files_say(settings: dict[str, Any], tokens: int) -> None:
    """RoBERTa's positions begin behind its padding."""
    assert tokens == longest_input(settings, 77)


# --- What cannot be used -------------------------------------------------------------------------


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """The path is told."""
    assert ".: expected a folder, found none" == refused(tmp_path / "no")


def test_a_folder_without_a_graph(tmp_path: Path) -> None:
    """What was looked for, and what there is."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert (
        ".: expected model.onnx or onnx/model.onnx or model_quantized.onnx or "
        "onnx/model_quantized.onnx, found pytorch_model.bin"
    ) == refused(tmp_path)


def test_a_graph_that_is_none(tmp_path: Path) -> None:
    """A cut download, for instance."""
    (tmp_path / "model.onnx").write_bytes(b"<html>")
    assert refused(tmp_path).startswith("./model.onnx: expected an ONNX graph, found: ")


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    """A vocabulary alone does not say how to cut words."""
    tiny_models.classifier(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert ".: expected tokenizer.json, found config.json, model.onnx" == refused(tmp_path)


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    """The library's own reason is kept."""
    tiny_models.classifier(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert refused(tmp_path).startswith("./tokenizer.json: expected a tokenizer, found: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {},
            ".: expected labels in config.json (id2label), labels.json or labels.txt, found none",
        ),
        (
            {"id2label": {"0": "a", "2": "b"}},
            "./config.json: expected labels numbered from 0 on, found {'0': 'a', '2': 'b'}",
        ),
        (
            {"id2label": {"0": "a", "1": "b"}},
            "./model.onnx: expected 2 numbers for 2 labels, found 3",
        ),
    ],
)
def test_labels_that_do_not_fit(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A wrong label is worse than none."""
    assert message == refused(tiny_models.classifier(tmp_path, settings=settings))


def test_a_model_of_another_kind(tmp_path: Path) -> None:
    """A graph with inputs that no classifier of texts has."""
    assert (
        "./model.onnx: expected inputs of attention_mask, input_ids, token_type_ids, "
        "found pixel_values"
    ) == refused(tiny_models.classifier(tmp_path, extra="pixel_values"))


def test_an_encoder_that_is_no_classifier(tmp_path: Path) -> None:
    """Its numbers are for each token."""
    tiny_models.summariser(tmp_path)
    (tmp_path / "encoder_model.onnx").rename(tmp_path / "model.onnx")
    (tmp_path / "labels.txt").write_text("a\nb", encoding="utf-8")
    assert (
        "./model.onnx: expected last_hidden_state of one row of numbers for a text, found 3 "
        "dimensions; is it a sequence classifier?"
    ) == refused(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_settings_that_are_no_json(name: str, tmp_path: Path) -> None:
    """A file that was edited by hand."""
    tiny_models.classifier(tmp_path)
    (tmp_path / name).write_text("[]", encoding="utf-8")
    assert f"./{name}: expected a JSON object, found list" == refused(tmp_path)
    (tmp_path / name).write_text("{", encoding="utf-8")
    assert refused(tmp_path).startswith(f"./{name}: expected JSON, found: ")


def test_a_call_that_was_stopped_runs_no_graph(tmp_path: Path) -> None:
    """It was late before its turn came."""
    classifier = OnnxClassifier.open(tiny_models.classifier(tmp_path))
    stop = Stop()
    stop.now()
    with pytest.raises(PortError, match="stopped"):
        classifier.classify("text", stop)


def test_config_is_written_as_exporters_do(tmp_path: Path) -> None:
    """The tests' own folder has keys that are text, as JSON must."""
    tiny_models.classifier(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert {"0": "summarise", "1": "code", "2": "greeting"} == config["id2label"]
