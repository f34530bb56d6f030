"""`forebay`, with a filter more than it ships with: one that edits what the client receives."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import ClassVar

from ext_proc.cli import main
from filters import BUILT_IN
from filters.api import CONTINUE, Config, Delta, Exchange, Filter, Need, Outcome, Verdict

WORD = b"calm"
INSTEAD = b"as still as glass"  # longer: no length that was said before holds


class EditConfig(Config, frozen=True):
    """What the filter does beside replacing a word."""

    hold: bool = False
    """Keep each event until the next one is there."""
    fails_at: int = 0
    """Raise at this event, the first being 1; 0: at none."""


class EditFilter(Filter[EditConfig]):
    """Replaces a word in every event, and says how many events it saw."""

    name: ClassVar[str] = "edit"
    config_type: ClassVar[type[Config]] = EditConfig
    edits_stream: ClassVar[bool] = True

    _seen = 0
    _held: tuple[Delta, ...] = ()

    async def on_request(self, exchange: Exchange) -> Verdict:
        """Ask for the reply."""
        exchange.need(Need.REPLY)
        return CONTINUE

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        """Replace the word."""
        self._seen += 1
        delta.raw = delta.raw.replace(WORD, INSTEAD)
        if self._seen == self.config.fails_at:
            raise RuntimeError("told to")
        if not self.config.hold:
            return (delta,)
        ready, self._held = self._held, (delta,)
        if delta.done:
            ready, self._held = (*ready, delta), ()
        return ready

    async def on_finish(self, exchange: Exchange, outcome: Outcome) -> None:
        """Say what was seen."""
        exchange.note("edit.events", self._seen)


if __name__ == "__main__":
    BUILT_IN["edit"] = EditFilter
    sys.exit(main())
