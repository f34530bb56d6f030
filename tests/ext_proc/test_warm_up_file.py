"""Prompts for replicas that have begun are read from a file, or it is said what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ext_proc.warm_up_file import MOST_BYTES, MOST_PROMPTS, prompt_of, read_prompts
from filters.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_prompts(str(file))
    assert "file" == refused.value.path
    return refused.value.message.replace(str(file), "FILE")


def test_a_line_is_a_request_without_what_the_warm_up_says_itself(file: Path) -> None:
    """Tools and system prompts stay: a server's template has them first."""
    kept = {"messages": [{"role": "system", "content": "Be brief."}], "tools": [{"type": "x"}]}
    said = {"model": "m", "stream": True, "max_tokens": 9, "max_completion_tokens": 9, "n": 2}
    file.write_text(f"{json.dumps(kept | said)}\n\n{json.dumps(prompt_of('Why?'))}\n")
    assert (kept, {"messages": [{"role": "user", "content": "Why?"}]}) == read_prompts(str(file))


@pytest.mark.parametrize("line", ["hello", "[]", '{"prompt": "x"}', '{"messages": "x"}'])
def test_a_line_that_is_no_chat_is_named(file: Path, line: str) -> None:
    """By its number."""
    file.write_text(f"{json.dumps(prompt_of('Why?'))}\n{line}\n")
    message = 'expected a JSON object with "messages" in line 2, got none (FILE)'
    assert message == refusal(file)


def test_a_file_has_prompts_but_not_too_many(file: Path) -> None:
    """Each is asked of every replica that begins."""
    file.write_text("\n")
    assert "expected 1 to 256 prompts, got none (FILE)" == refusal(file)
    file.write_text(f"{json.dumps(prompt_of('Why?'))}\n" * (MOST_PROMPTS + 1))
    assert "expected 1 to 256 prompts, got 257 (FILE)" == refusal(file)


def test_a_file_is_read_so_far_and_no_further(file: Path) -> None:
    """It may be anything."""
    file.write_bytes(b" " * (MOST_BYTES + 1))
    assert "expected at most 4 MiB, got more (FILE)" == refusal(file)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    """In the system's words."""
    assert "expected a file, got Is a directory (FILE)" == refusal(tmp_path)
