"""Bound what is worked on in one go: every other exchange waits meanwhile."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST_CHARS: Final = 262_144  # 65,000 tokens; 20 to 100 ns each, by what is done with them
MOST_CHARS_APART: Final = 1_048_576
"""260,000 tokens of English: what another process works on. To look at them here and to send them
takes 3 to 6 ms; a summary of them takes a second there."""
MOST_TEXTS: Final = 2_048  # 5 to 10 us each; as many inputs as OpenAI embeds at once
MOST_VALUES: Final = 100_000  # of a JSON body: 0.1 us each to decode, 1 us each as a message


def is_too_much(texts: Collection[str]) -> bool:
    """Tell whether going through all of `texts` would hold up others for tens of milliseconds."""
    return len(texts) > MOST_TEXTS or sum(map(len, texts)) > MOST_CHARS


def has_too_many_values(raw: bytes) -> bool:
    """Tell whether a JSON request may hold more values than can be looked at in one go.

    Commas in its texts count as well: a million characters of prose hold some 15,000.
    """
    if len(raw) <= MOST_VALUES:
        return False
    return raw.count(b",") + raw.count(b"{") + raw.count(b"[") > MOST_VALUES


def has_too_many_containers(raw: bytes) -> bool:
    """Tell the same of a reply, whose numbers are not looked at: embeddings are millions."""
    if len(raw) <= MOST_VALUES:
        return False
    return raw.count(b"{") + raw.count(b"[") > MOST_VALUES
