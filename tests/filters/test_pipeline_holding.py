"""A filter that has a stream wait may fail anywhere: the client gets all of it, once, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Config, Delta, Exchange, Filter, Holding
from filters.pipeline import AnyFilter, Pipeline, Run
from tests.fakes import drive, fake_ports
from tests.filters.test_pipeline import made_exchange

KEPT: Final = 2
EVENTS: Final = 6


class Plan:
    """Where a filter fails: at one of the steps that it takes."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.fails_at:
            raise RuntimeError


class Watches(Filter[Config]):
    """Passes on what it sees."""

    name: ClassVar[str] = "watches"
    config_type: ClassVar[type[Config]] = Config

    def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
        return (delta,)


def splitting(several: int) -> type[AnyFilter]:
    """Make a filter that makes several pieces of each."""

    class Splits(Watches):
        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            return [Delta(delta.raw + b"%d " % number) for number in range(several)]

    return Splits


def holding(plan: Plan, *, edits: bool = False) -> type[AnyFilter]:
    """Make a filter that keeps the last pieces, and gives and forgets them one at a time."""

    class Holds(Filter[Config]):
        name: ClassVar[str] = "holds"
        config_type: ClassVar[type[Config]] = Config
        edits_stream: ClassVar[bool] = edits

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.waits: list[Delta] = []

        @classmethod
        def holding(cls, config: Config) -> Holding:
            return Holding.WHOLE

        def _all_but(self, kept: int) -> Iterator[Delta]:
            while len(self.waits) > kept:
                plan.step()
                yield self.waits[0]
                plan.step()
                self.waits.pop(0)
            plan.step()

        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            plan.step()
            self.waits.append(delta)
            yield from self._all_but(KEPT)

        def on_end(self, exchange: Exchange) -> Iterable[Delta]:
            return self._all_but(1)

        def wake_ns(self) -> int | None:
            plan.step()
            return 0 if self.waits else None

        def on_time(self, exchange: Exchange) -> Iterable[Delta]:
            return self._all_but(0)

        def let_go(self) -> Iterable[Delta]:
            return self.waits

    return Holds


def made_run(*kinds: type[AnyFilter]) -> tuple[Run, Exchange]:
    run = Run(Pipeline([(kind, Config()) for kind in kinds], fake_ports()))
    exchange = made_exchange()
    drive(run.request(exchange))
    return run, exchange


def flow(run: Run, exchange: Exchange) -> str:
    """Send a whole stream through; return what the client gets."""
    out: list[Delta] = []
    for number in range(EVENTS):
        out += run.delta(exchange, Delta(b"%d." % number))
        run.wake_ns()
    out += run.end(exchange)
    while run.wake_ns() is not None:
        out += run.due(exchange, 1)
    return b"".join(delta.raw for delta in out).decode()


@pytest.mark.parametrize("last", [True, False])
@given(st.integers(1, 150), st.booleans(), st.integers(1, 3))
def test_wherever_it_fails_nothing_is_lost_or_repeated(
    last: bool, fails_at: int, edits: bool, several: int
) -> None:
    """It sees one piece of the reply at a time or several, and stands last or before others."""
    kinds = (holding(Plan(fails_at), edits=edits), splitting(several))
    run, exchange = made_run(*kinds) if last else made_run(Watches, *kinds)
    every = [f"{event}.{number} " for event in range(EVENTS) for number in range(several)]
    assert "".join(every) == flow(run, exchange)


def test_every_step_of_a_flow_may_be_the_one_that_fails() -> None:
    """Of any of the numbers that the test above tries, some must lie within the flow."""
    plan = Plan()
    flow(*made_run(holding(plan), splitting(1)))
    steps = plan.steps
    failed: list[bool] = []
    for fails_at in (1, steps, steps + 1):
        run, exchange = made_run(holding(Plan(fails_at)), splitting(1))
        flow(run, exchange)
        failed.append("holds.failed" in exchange.notes)
    assert [True, True, False] == failed


def test_what_waits_comes_behind_what_was_given_for_earlier_pieces() -> None:
    """The second of three pieces breaks it: the first had sent an older one on its way."""
    kind: Any = holding(Plan())

    class Breaks(kind):  # type: ignore[misc]  # a class made by a function
        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            if delta.raw == b"b1 ":
                raise RuntimeError
            yield from super().on_delta(exchange, delta)

    run, exchange = made_run(Breaks, splitting(3))
    first = [delta.raw for delta in run.delta(exchange, Delta(b"a"))]
    second = [delta.raw for delta in run.delta(exchange, Delta(b"b"))]
    assert ([b"a0 "], [b"a1 ", b"a2 ", b"b0 ", b"b1 ", b"b2 "]) == (first, second)
    assert {"holds.failed": "RuntimeError"} == exchange.notes


def test_a_piece_that_it_kept_and_wrote_into_goes_as_it_came() -> None:
    """Of what an editor did to the piece that broke it nothing stays."""
    kind: Any = holding(Plan(), edits=True)

    class Scribbles(kind):  # type: ignore[misc]  # a class made by a function
        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            self.waits.append(delta)
            delta.raw = b"half an edit"
            raise RuntimeError

    run, exchange = made_run(Scribbles, splitting(2))
    assert [b"a0 ", b"a1 "] == [delta.raw for delta in run.delta(exchange, Delta(b"a"))]


def test_where_it_cannot_let_go_either_only_what_it_kept_to_itself_is_lost() -> None:
    """What it could let go comes, and what it failed at, and what is behind that."""
    kind: Any = holding(Plan())

    class Breaks(kind):  # type: ignore[misc]  # a class made by a function
        def on_delta(self, exchange: Exchange, delta: Delta) -> Iterable[Delta]:
            if delta.raw == b"b0 ":
                raise RuntimeError
            return super().on_delta(exchange, delta)  # type: ignore[no-any-return]  # likewise

        def let_go(self) -> Iterable[Delta]:
            yield self.waits[0]
            raise LookupError

    run, exchange = made_run(Breaks, splitting(2))
    assert [] == list(run.delta(exchange, Delta(b"a")))
    given = [delta.raw for delta in run.delta(exchange, Delta(b"b"))]
    assert [b"a0 ", b"b0 ", b"b1 "] == given
    assert {"holds.failed": "LookupError"} == exchange.notes


def test_two_that_hold_may_both_fail_at_the_same_piece() -> None:
    """What the first lets go, the second is given."""
    run, exchange = made_run(holding(Plan(10)), Watches, holding(Plan(12)), splitting(2))
    every = [f"{event}.{number} " for event in range(EVENTS) for number in range(2)]
    assert "".join(every) == flow(run, exchange)
