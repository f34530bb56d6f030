"""Orders are compared where they can be told, and what is close together is of one rank."""

from __future__ import annotations

from ext_proc.tools.routing_order import order_of


def test_the_same_order_agrees() -> None:
    """However far apart they are here."""
    order = order_of({"a": 1.0, "b": 1.1, "c": 9.0}, {"a": 1.0, "b": 2.0, "c": 3.0})
    assert (3, 1.0) == (order.told, order.agrees)


def test_what_is_close_there_may_be_either_way_here() -> None:
    """A quarter is within what a short run scatters."""
    order = order_of({"a": 5.0, "b": 1.0}, {"a": 1.0, "b": 1.2})
    assert (0, 1.0) == (order.told, order.agrees)


def test_a_pair_that_is_turned_is_named() -> None:
    """The one that should be first, first."""
    order = order_of({"a": 3.0, "b": 1.0, "c": 9.0}, {"a": 1.0, "b": 2.0, "c": 5.0})
    assert (("a", "b"),) == order.turned
    assert () == order.closer
    assert 2 / 3 == order.agrees


def test_a_pair_that_is_turned_by_little_is_told_apart_from_that() -> None:
    """It is in the wrong order all the same."""
    order = order_of({"a": 1.1, "b": 1.0}, {"a": 1.0, "b": 2.0})
    assert ((), (("a", "b"),)) == (order.turned, order.closer)
    assert 0.0 == order.agrees


def test_who_is_in_one_run_only_is_left_out() -> None:
    """Routers are not in virtual time, the oracle is in nothing else."""
    assert 0 == order_of({"a": 1.0, "router": 2.0}, {"a": 1.0, "oracle": 0.5}).told
