"""BART-class models exported to ONNX, on one that repeats what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ext_proc.adapters.models import Stop
from ext_proc.adapters.models_bart import BartSummariser
from filters.errors import PortError
from tests import tiny_models
from tests.tiny_models import WORDS

FORMS: dict[str, dict[str, Any]] = {
    "with past": {},
    "alone": {"remembers": False},
    "merged": {"merged": True},
    "in a folder below": {"inside": "onnx"},
}


def written(folder: Path, words: tuple[str, ...], max_tokens: int) -> list[str]:
    text = " ".join(words)
    return BartSummariser.open(folder).summarise(text, max_tokens, Stop()).split()


def refused(folder: Path) -> str:
    with pytest.raises(PortError) as raised:
        BartSummariser.open(folder)
    return str(raised.value).replace(str(folder), ".")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_export_writes_the_same(form: str, tmp_path: Path) -> None:
    """Decoders that remember see what those do that read all again, in order and to the end."""
    folder = tiny_models.summariser(tmp_path, **FORMS[form])
    assert list(WORDS[:12]) == written(folder, WORDS[:12], 50)


@pytest.mark.parametrize("form", FORMS)
def test_no_more_is_written_than_asked(form: str, tmp_path: Path) -> None:
    """The bound is the caller's budget."""
    folder = tiny_models.summariser(tmp_path, **FORMS[form])
    assert list(WORDS[:5]) == written(folder, WORDS[:12], 5)


def test_a_long_text_is_read_in_windows_that_share_the_tokens(tmp_path: Path) -> None:
    """This model reads 32 tokens, the marks of start and end among them."""
    folder = tiny_models.summariser(tmp_path)
    said = written(folder, WORDS[:60], 6)
    assert [*WORDS[:3], *WORDS[30:33]] == said


def test_a_text_of_too_many_windows_is_refused(tmp_path: Path) -> None:
    """It could not be read in any time that a request has."""
    folder = tiny_models.summariser(tmp_path)
    with pytest.raises(PortError, match="expected a text of at most 256 tokens, got more"):
        written(folder, WORDS * 5, 50)


def test_the_same_run_of_words_is_not_written_twice(tmp_path: Path) -> None:
    """A greedy search would go round for ever."""
    folder = tiny_models.summariser(tmp_path)
    said = written(folder, WORDS[:3] * 4, 12)
    runs = [tuple(said[start : start + 3]) for start in range(len(said) - 2)]
    assert len(runs) == len(set(runs))


def test_the_first_token_is_the_one_that_the_settings_force(tmp_path: Path) -> None:
    """`forced_bos_token_id`, as multilingual models name the language to write."""
    folder = tiny_models.summariser(tmp_path, forced_bos_token_id=4 + WORDS.index("w40"))
    assert ["w40", "w1", "w2"] == written(folder, WORDS[:3], 10)


def test_no_end_comes_before_the_least_length(tmp_path: Path) -> None:
    """`min_length`, which counts the start; this text has an end in it."""
    text = ("w0", "</s>", *WORDS[1:5])
    assert ["w0"] == written(tiny_models.summariser(tmp_path / "free"), text, 8)
    folder = tiny_models.summariser(tmp_path / "bound", min_length=4)
    assert list(WORDS[:5]) == written(folder, text, 8)


# --- What cannot be used -------------------------------------------------------------------------


def test_a_folder_of_another_model(tmp_path: Path) -> None:
    """A classifier has no encoder."""
    assert (
        ".: expected encoder_model.onnx or onnx/encoder_model.onnx, "
        "found config.json, model.onnx, tokenizer.json"
    ) == refused(tiny_models.classifier(tmp_path))


def test_a_folder_without_a_decoder(tmp_path: Path) -> None:
    """All names that exporters use are told."""
    tiny_models.summariser(tmp_path, remembers=False)
    (tmp_path / "decoder_model.onnx").unlink()
    assert (
        ".: expected decoder_model.onnx or onnx/decoder_model.onnx or decoder_model_merged.onnx or "
        "onnx/decoder_model_merged.onnx, found config.json, encoder_model.onnx, tokenizer.json"
    ) == refused(tmp_path)


def test_settings_that_do_not_say_how_to_start(tmp_path: Path) -> None:
    """Guessing would write nonsense."""
    assert (
        ".: expected decoder_start_token_id and eos_token_id in config.json or "
        "generation_config.json, found None and 2"
    ) == refused(tiny_models.summariser(tmp_path, decoder_start_token_id=None))


def test_decoders_that_do_not_fit_each_other(tmp_path: Path) -> None:
    """The first one was exported without what the second one remembers."""
    tiny_models.summariser(tmp_path)
    tiny_models.summariser(tmp_path / "other", remembers=False)
    (tmp_path / "other" / "decoder_model.onnx").replace(tmp_path / "decoder_model.onnx")
    assert (
        "./decoder_model.onnx: expected an output present.0.decoder.key, found logits"
        == refused(tmp_path)
    )


def test_an_encoder_with_another_output(tmp_path: Path) -> None:
    """A classifier's graph under an encoder's name."""
    tiny_models.summariser(tmp_path)
    tiny_models.classifier(tmp_path, file="encoder_model.onnx")
    assert "./encoder_model.onnx: expected an output last_hidden_state, found logits" == refused(
        tmp_path
    )


def test_a_call_that_was_stopped_writes_nothing(tmp_path: Path) -> None:
    """It was late before its turn came."""
    summariser = BartSummariser.open(tiny_models.summariser(tmp_path))
    stop = Stop()
    stop.now()
    with pytest.raises(PortError, match="stopped"):
        summariser.summarise("w1", 5, stop)
