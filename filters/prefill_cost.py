"""What a prompt costs a replica before the first token of its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefillCost:
    """Seconds of prefill, and of what goes on beside it."""

    token_s: float = 1 / 10_000
    """A token at the beginning of a prompt."""
    doubles: float = 32_768.0
    """At this position a token costs twice as much."""
    decode_s: float = 0.000_5
    """What each answer being written adds to the wait of a prompt."""

    def seconds(self, held: int, tokens: int) -> float:
        """Return the seconds that the prompt's tokens from `held` on take."""
        left = tokens - held
        return self.token_s * left * (1 + (held + left / 2) / self.doubles)
