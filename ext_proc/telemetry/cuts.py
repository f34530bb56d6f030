"""Sum up what was taken out of a prompt."""

from __future__ import annotations

from collections.abc import Iterable

from filters.api import Cut


def by_rule(cuts: Iterable[Cut]) -> dict[str, tuple[int, int]]:
    """Return the tokens before and after each rule; a rule may have cut several texts."""
    sums: dict[str, tuple[int, int]] = {}
    for cut in cuts:
        before, after = sums.get(cut.rule, (0, 0))
        sums[cut.rule] = before + cut.before, after + cut.after
    return sums
