"""Read the prompts by which replicas are warmed up from a file: a chat completion in each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from filters.errors import ConfigError

MOST_BYTES: Final = 4 << 20
MOST_PROMPTS: Final = 256
_OURS: Final = ("model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n")
"""What a warm-up says itself."""


def read_prompts(path: str) -> tuple[dict[str, Any], ...]:
    """Return the requests in a file; raise `ConfigError` where it has none, or is no such file."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError("file", f"expected a file, got {error.strerror} ({path})") from None
    if len(text) > MOST_BYTES:
        raise ConfigError("file", f"expected at most {MOST_BYTES >> 20} MiB, got more ({path})")
    prompts: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            prompt = {}
        if not isinstance(prompt.get("messages"), list):
            message = f'expected a JSON object with "messages" in line {number}, got none ({path})'
            raise ConfigError("file", message)
        prompts.append({key: value for key, value in prompt.items() if key not in _OURS})
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        count = len(prompts) or "none"
        raise ConfigError("file", f"expected 1 to {MOST_PROMPTS} prompts, got {count} ({path})")
    return tuple(prompts)


def prompt_of(text: str) -> dict[str, Any]:
    """Return the request of a user who says `text`."""
    return {"messages": [{"role": "user", "content": text}]}
