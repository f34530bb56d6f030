"""Add to a request's instructions behind what stands there.

What was there stays as it is, so that the prefix which a provider has cached still fits. Beside
the parts of an array a part of its own is put: a mark on the last of them ends a cached prefix.
"""

from __future__ import annotations

from typing import Final

from filters.dialects.base import items, mapping
from filters.document import Document, Json, Path

_GAP: Final = "\n\n"
_SYSTEM: Final = ("system", "developer")


def append_to(document: Document, at: Path, part: Json, text: str) -> bool:
    """Add to the string or the array of parts at `at`; `part` is one that says `text`.

    Return False where there is neither.
    """
    content = document.get(at)
    if isinstance(content, str):
        document.set(at, f"{content}{_GAP}{text}" if content else text)
    elif isinstance(content, list):
        document.set(at, [*content, part])
    else:
        return False
    return True


def append_to_messages(document: Document, name: str, part: Json, text: str) -> bool:
    """Add to the last of the system messages with which the array `name` begins, if one does."""
    last: int | None = None
    for index, message in enumerate(items(document.root.get(name))):
        if mapping(message).get("role") not in _SYSTEM:
            break
        last = index
    return last is not None and append_to(document, (name, last, "content"), part, text)


def append_to_question(document: Document, name: str, part: Json, text: str) -> bool:
    """Add to the user's last message in the array `name`, if it has one."""
    messages = items(document.root.get(name))
    for index in reversed(range(len(messages))):
        if mapping(messages[index]).get("role") == "user":
            return append_to(document, (name, index, "content"), part, text)
    return False
