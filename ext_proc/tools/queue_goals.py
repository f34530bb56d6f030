"""What queues promise, and whether the figures of a run keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rich.text import Text

from ext_proc.tools.queue_loads import (
    CALM,
    CROWDED,
    FLOODED,
    LONG,
    LONG_ALONE,
    MIXED,
    ROOMY,
    SHORT,
    SHORT_ALONE,
)
from ext_proc.tools.queue_run import Group, Played
from filters.fair_queue import Rules
from filters.queue_order import Lane, Priority

MOST_BESIDE: Final = 1.25
LEAST_WITHOUT: Final = 3.0
LEAST_FAIR: Final = 0.9
MOST_TURNLESS_S: Final = {Lane.FAST: 30.0, Lane.BULK: 300.0}
"""A long prompt takes a replica for half a minute: two turns a minute for four classes."""
MOST_REFUSED: Final = 0.25
"""Of long ones that fit in beside: they come by chance, and those of three minutes at once."""
MOST_FLOODED: Final = 0.1

PlayedBy = Mapping[tuple[str, bool], Played]
"""By the load, and whether it had queues."""


class Goal(NamedTuple):
    """A figure that is promised, and the one that was measured."""

    load: str
    what: str
    found: float
    bound: float
    least: bool = False
    """The bound is the least that it may be, else the most."""
    unit: str = ""
    beside: str = ""
    """What it is made of."""

    @property
    def met(self) -> bool:
        """Whether the figure is as promised."""
        return self.found >= self.bound if self.least else self.found <= self.bound

    @property
    def line(self) -> Text:
        """The goal and whether it is met, in one line."""
        how = "at least" if self.least else "at most"
        return Text.assemble(
            ("ok     ", "green") if self.met else ("missed ", "bold red"),
            (f"{self.load:8}", "dim"),
            f" {self.what}: {self.found:,.2f}{self.unit}",
            (f" (goal: {how} {self.bound:g}{self.beside and '; '}{self.beside})", "dim"),
        )


def goals(played: PlayedBy) -> list[Goal]:
    """Return what can be held against a bound, of that which was played."""
    return [*_of_short(played), *_of_long(played), *_of_classes(played), *_of_tenants(played)]


def _short(played: PlayedBy, load: str, *, queued: bool) -> Group | None:
    one = played.get((load, queued))
    return one.streams[SHORT.name] if one is not None else None


def _of_short(played: PlayedBy) -> Iterator[Goal]:
    for load, without, queued in (
        (MIXED, SHORT_ALONE, True),
        (MIXED, SHORT_ALONE, False),
        (ROOMY, CALM, True),
    ):
        alone = _short(played, without, queued=True)
        beside = _short(played, load, queued=queued)
        if alone is None or beside is None:
            continue
        was_s, is_s = alone.percentile(0.95), beside.percentile(0.95)
        yield Goal(
            load,
            f"TTFT P95 of short ones, of theirs alone, {'with' if queued else 'without'} queues",
            is_s / was_s,
            MOST_BESIDE if queued else LEAST_WITHOUT,
            least=not queued,
            beside=f"{is_s:,.2f} s against {was_s:,.2f} s",
        )


def _of_long(played: PlayedBy) -> Iterator[Goal]:
    roomy = played.get((ROOMY, True))
    if roomy is not None and (long := roomy.streams.get(LONG.name)) is not None:
        yield Goal(
            ROOMY,
            "share of long ones sent away",
            long.shed_share,
            MOST_REFUSED,
            beside=f"{60 * roomy.bulk_rate:.1f} a minute were read",
        )
    alone = played.get((LONG_ALONE, False))
    if alone is None:
        return
    part = Rules().bulk_part
    for load in (MIXED, CROWDED):
        if (one := played.get((load, True))) is not None:
            yield Goal(
                load,
                "long ones read, of their fair share",
                one.bulk_rate / (part * alone.bulk_rate),
                LEAST_FAIR,
                least=True,
                beside=f"{part:.0%} of the {60 * alone.bulk_rate:.1f} a minute that the pool reads "
                "of nothing else",
            )


def _of_classes(played: PlayedBy) -> Iterator[Goal]:
    for load in (MIXED, ROOMY, CROWDED):
        one = played.get((load, True))
        if one is None:
            continue
        for lane in Lane:
            turnless = {of[1]: s for of, s in one.turnless_s.items() if of[0] is lane}
            if turnless:
                yield Goal(
                    load,
                    f"longest without a turn while some of a class waited, {lane}",
                    max(turnless.values()),
                    MOST_TURNLESS_S[lane],
                    unit=" s",
                    beside=in_words(turnless),
                )


def in_words(seconds: Mapping[Priority, float]) -> str:
    """Return a duration for each class."""
    return ", ".join(f"{priority.word} {value:.0f} s" for priority, value in seconds.items())


def _of_tenants(played: PlayedBy) -> Iterator[Goal]:
    there, without = (_short(played, FLOODED, queued=queued) for queued in (True, False))
    if there is None or without is None:
        return
    is_s, was_s = there.percentile(0.95), without.percentile(0.95)
    alone = _short(played, SHORT_ALONE, queued=True)
    beside = f"{is_s:,.2f} s against {was_s:,.2f} s"
    if alone is not None:
        beside += f"; {alone.percentile(0.95):,.2f} s where nobody floods"
    what = "TTFT P95 of the other tenants, of that without queues"
    yield Goal(FLOODED, what, is_s / was_s, MOST_FLOODED, beside=beside)
    yield Goal(FLOODED, "share of the other tenants sent away", there.shed_share, 0.01)


def missed(held: Sequence[Goal]) -> int:
    """Return how many goals were missed."""
    return sum(not goal.met for goal in held)
