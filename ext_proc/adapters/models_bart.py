"""Summarise with a BART-class model that was exported to ONNX as an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from ext_proc.adapters.models import Stop
from ext_proc.adapters.models_folder import find, longest_input, read_settings, read_tokenizer
from ext_proc.adapters.models_onnx import Arrays, Graph
from filters.errors import PortError

DEFAULT_TOKENS: Final = 1024  # what BART reads
MOST_WINDOWS: Final = 8  # a longer text cannot be read in any time that a request has
REPEATED_RUN: Final = 3  # of so many tokens none comes twice; a greedy search would go round
CHARS_PER_TOKEN: Final = 32  # no text of words has so many

_ENCODER: Final = frozenset({"input_ids", "attention_mask"})
_DECODER: Final = frozenset({"input_ids", "encoder_hidden_states", "encoder_attention_mask"})
_FLAG: Final = "use_cache_branch"
_PAST: Final = "past_key_values."
_PRESENT: Final = "present."


@dataclass(frozen=True, slots=True)
class Decoding:
    """How a model wants to be asked, by its config.json and generation_config.json."""

    start: int
    ends: frozenset[int]
    forced_first: int | None
    never: tuple[int, ...]
    """Tokens that are no text."""
    least: int
    """Tokens before the end may come."""

    @classmethod
    def of(cls, folder: Path, settings: Mapping[str, Any]) -> Decoding:
        """Read the settings; raise `PortError` when they do not say how to start and end."""
        end = settings.get("eos_token_id")
        ends = frozenset(end if isinstance(end, list) else [end])
        start = settings.get("decoder_start_token_id")
        forced = settings.get("forced_bos_token_id")
        if not isinstance(start, int) or not all(isinstance(token, int) for token in ends):
            raise PortError(
                f"{folder}: expected decoder_start_token_id and eos_token_id in config.json or "
                f"generation_config.json, found {start} and {end}"
            )
        never = tuple(
            token
            for name in ("pad_token_id", "bos_token_id")
            if isinstance(token := settings.get(name), int) and token not in ends
        )
        least = settings.get("min_length", 0)
        return cls(start, ends, forced, never, least if isinstance(least, int) else 0)


@dataclass(frozen=True, slots=True)
class BartSummariser:
    """An encoder that reads a text once, and a decoder that writes a token at a time, greedily."""

    encoder: Graph
    first: Graph
    """Decodes without anything remembered, or with the flag of a merged decoder."""
    later: Graph | None
    """Decodes from what is remembered; None: the first one does the whole again for each token."""
    tokenizer: Tokenizer
    decoding: Decoding
    most_tokens: int
    """The model reads so many at a time."""

    @classmethod
    def open(cls, folder: Path) -> BartSummariser:
        """Open a folder of encoder_model.onnx, its decoders and tokenizer.json."""
        settings = read_settings(
            folder, "tokenizer_config.json", "config.json", "generation_config.json"
        )
        encoder = Graph(find(folder, *_both("encoder_model.onnx")))
        encoder.expect(_ENCODER, {"last_hidden_state"})
        first = Graph(
            find(folder, *_both("decoder_model.onnx"), *_both("decoder_model_merged.onnx"))
        )
        later = None
        if _FLAG in first.inputs:
            later = first
        else:
            paths = [folder / name for name in _both("decoder_with_past_model.onnx")]
            later = next((Graph(path) for path in paths if path.is_file()), None)
        for graph in filter(None, (first, later)):
            past = {name for name in graph.inputs if name.startswith(_PAST)}
            graph.expect({*_DECODER, _FLAG, *past}, {"logits"})
        if later is not None:
            first.expect(
                first.inputs.keys(),
                {_present(past) for past in later.inputs if past.startswith(_PAST)},
            )
        tokenizer = read_tokenizer(folder)
        most = longest_input(settings, DEFAULT_TOKENS)
        tokenizer.enable_truncation(most)
        return cls(encoder, first, later, tokenizer, Decoding.of(folder, settings), most)

    def summarise(self, text: str, max_tokens: int, stop: Stop) -> str:
        """Return at most `max_tokens` tokens about `text`.

        A text longer than the model reads is read in windows, each with its share of the tokens;
        raise `PortError` when there would be too many.
        """
        windows = self._windows(text)
        share = max(1, max_tokens // len(windows))
        written = (self._write(window, share, stop) for window in windows)
        return " ".join(filter(None, written))

    def _windows(self, text: str) -> Sequence[Sequence[int]]:
        most_chars = MOST_WINDOWS * self.most_tokens * CHARS_PER_TOKEN
        encoding = self.tokenizer.encode(text[:most_chars])
        windows = [encoding.ids, *(more.ids for more in encoding.overflowing)]
        if len(windows) > MOST_WINDOWS or len(text) > most_chars:
            most = MOST_WINDOWS * self.most_tokens
            raise PortError(f"expected a text of at most {most} tokens, got more")
        return windows

    def _write(self, window: Sequence[int], max_tokens: int, stop: Stop) -> str:
        """Decode greedily until the model ends or `max_tokens` were written."""
        ids = np.array([window])
        mask = np.ones_like(ids)
        states = self.encoder.run({"input_ids": ids, "attention_mask": mask}, stop)
        memory: dict[str, Any] = {
            "encoder_attention_mask": mask,
            "encoder_hidden_states": states["last_hidden_state"],
        }
        tokens = [self.decoding.start]
        past: Arrays = self._empty_past()
        while len(tokens) <= max_tokens:
            again = self.later is not None and len(tokens) > 1
            graph = self.later if again and self.later else self.first
            asked = tokens[-1:] if again else tokens
            made = graph.run(
                {**memory, **past, "input_ids": np.array([asked]), _FLAG: np.array([again])}, stop
            )
            if self.later is not None:
                past = _remembered(past, made, keep_encoder=again)
            tokens.append(self._choose(tokens, made["logits"][0, -1]))
            if tokens[-1] in self.decoding.ends:
                break
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()

    def _empty_past(self) -> Arrays:
        """Return what a merged decoder is given before there is anything to remember."""
        past: dict[str, Any] = {}
        for name, one in self.first.inputs.items():
            if name.startswith(_PAST):
                _, heads, _, size = one.shape
                past[name] = np.zeros((1, heads, 1, size), np.float32)
        return past

    def _choose(self, tokens: Sequence[int], logits: Any) -> int:
        """Return the likeliest token that the settings allow here."""
        decoding = self.decoding
        if len(tokens) == 1 and decoding.forced_first is not None:
            return decoding.forced_first
        scores = logits.copy()
        scores[list(decoding.never)] = -np.inf
        scores[list(_repeating(tokens, REPEATED_RUN))] = -np.inf
        if len(tokens) < decoding.least:
            scores[list(decoding.ends)] = -np.inf
        return int(scores.argmax())


def _both(name: str) -> tuple[str, str]:
    return name, f"onnx/{name}"


def _present(past: str) -> str:
    return f"{_PRESENT}{past.removeprefix(_PAST)}"


def _remembered(past: Arrays, made: Arrays, *, keep_encoder: bool) -> Arrays:
    """Return what the next token needs; what was read of the text does not change."""
    now = {
        f"{_PAST}{name.removeprefix(_PRESENT)}": value
        for name, value in made.items()
        if name.startswith(_PRESENT) and not (keep_encoder and ".encoder." in name)
    }
    return {**past, **now}


def _repeating(tokens: Sequence[int], length: int) -> Iterable[int]:
    """Return the tokens that would make a run of `length` come a second time."""
    tail = tuple(tokens[len(tokens) - length + 1 :])
    return {
        tokens[end]
        for end in range(length - 1, len(tokens))
        if tuple(tokens[end - length + 1 : end]) == tail
    }
