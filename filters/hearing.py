"""Hear out an answer, as far as it is compared with another one's."""

from __future__ import annotations

from typing import Final

from filters.api import Delta, Ending, Finish, Heard

MOST_CHARS: Final = 64 * 1024
"""Of an answer's text; what comes behind does not count."""
TOO_MANY: Final = 429
FIRST_REFUSAL: Final = 400
FIRST_FAILURE: Final = 500


class Ear:
    """Takes the pieces of one answer. `asked_ns` is when the request left."""

    __slots__ = ("_chars", "_done", "_finish", "_first_ns", "_pieces", "asked_ns")

    def __init__(self, asked_ns: int) -> None:
        self.asked_ns: Final = asked_ns
        self._pieces: list[str] = []
        self._chars = 0
        self._first_ns = 0
        self._finish: Finish | None = None
        self._done = False

    def take(self, delta: Delta, at_ns: int) -> None:
        """Hear the next piece."""
        self._finish = delta.finish or self._finish
        self._done = self._done or delta.done
        if not delta.text:
            return
        if not self._first_ns:
            self._first_ns = at_ns - self.asked_ns
        if self._chars < MOST_CHARS:
            self._pieces.append(delta.text[: MOST_CHARS - self._chars])
            self._chars += len(delta.text)

    def heard(self, status: int, at_ns: int, *, stream: bool, whole: bool = True) -> Heard:
        """Return what was heard of a reply with this status, which ended; `whole`: to its end."""
        return Heard(
            ending_of(status, whole=whole and self._done),
            at_ns - self.asked_ns,
            self._first_ns if stream else 0,
            "".join(self._pieces),
            self._finish,
        )


def ending_of(status: int, *, whole: bool) -> Ending:
    """Return how a request ended that got a reply; no status is 0."""
    if status >= FIRST_FAILURE or status in (0, TOO_MANY):
        return Ending.FAILED
    if status >= FIRST_REFUSAL:
        return Ending.REFUSED
    return Ending.ANSWERED if whole else Ending.FAILED
