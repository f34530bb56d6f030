"""Faults are read from options and queries, and what is wrong in them is told."""

from __future__ import annotations

import math

import pytest

from ext_proc.tools.replica_faults import Fault, Kind, fault_of


def test_a_fault_is_a_replica_a_kind_and_options() -> None:
    """Each option has a default."""
    assert ("a", Fault(Kind.SLOW)) == fault_of("a:slow")
    assert math.inf == Fault(Kind.SLOW).for_s
    assert ("*", Fault(Kind.ERROR, 5.0, 0.25, status=500, share=0.1)) == fault_of(
        "*:error,after=5s,for=250ms,status=500,share=0.1"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow", 'expected something like "replica-0:slow,for=10s", got "slow"'),
        (":slow", 'expected something like "replica-0:slow,for=10s", got ":slow"'),
        ("a:slow,factor", 'expected something like "replica-0:slow,for=10s", got "a:slow,factor"'),
        ("a:lame", 'expected one of slow, error, hang, silent, crash, frozen, stale, got "lame"'),
        ("a:slow,by=4", 'expected one of after, for, factor, status, share, got "by"'),
        ("a:slow,for=4", 'expected a duration such as "10m", got "4"'),
        ("a:slow,factor=0", 'expected for factor a number from 0.01 to 1000, got "0"'),
        ("a:slow,factor=x", 'expected for factor a number from 0.01 to 1000, got "x"'),
        ("a:slow,factor=nan", 'expected for factor a number from 0.01 to 1000, got "nan"'),
        ("a:error,status=200", 'expected for status a number from 400 to 599, got "200"'),
        ("a:error,share=2", 'expected for share a number from 0 to 1, got "2"'),
    ],
)
def test_what_is_no_fault_is_told_with_what_was_expected(text: str, message: str) -> None:
    """The words stand in an option's error and in the answer to a request."""
    with pytest.raises(ValueError, match=r".") as raised:
        fault_of(text)
    assert message == str(raised.value)
