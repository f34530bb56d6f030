"""Limits of one process: shares, buckets and figures."""

from __future__ import annotations

import pytest

from ext_proc.adapters.limits import Bucket, Figures, LocalLimits, PoolLimits, Refusal
from tests.fakes import FakeClock, drive

SECOND_NS = 1_000_000_000


def test_all_gateways_shares_together_are_within_the_limits() -> None:
    """As long as there are no more gateways than places."""
    whole = PoolLimits(concurrent=32, rate=30.0, burst=10)
    assert PoolLimits(concurrent=10, rate=10.0, burst=3) == whole.share(3)


@pytest.mark.parametrize("gateways", [0, 1])
def test_one_gateway_has_all_for_itself(gateways: int) -> None:
    """Also one that never heard of itself."""
    whole = PoolLimits(concurrent=32, rate=30.0, burst=10)
    assert whole == whole.share(gateways)


def test_every_gateway_has_one_place_at_least() -> None:
    """A share of nothing would keep everybody out for as long as Redis is gone."""
    assert PoolLimits(concurrent=1, rate=0.5, burst=1) == PoolLimits(2, 2.0, 2).share(4)


def test_a_bucket_lets_through_at_its_rate_for_ever() -> None:
    """In a hundred seconds at ten a second: the burst, and a thousand."""
    bucket, gap_ns = Bucket(), SECOND_NS // 10
    moments = range(0, 100 * SECOND_NS + 1, gap_ns // 4)
    assert 6 + 1_000 == sum(bucket.take(now_ns, gap_ns, 6) for now_ns in moments)


def test_figures_are_those_of_pools_with_limits() -> None:
    """A pool whose limits were taken away is not shown, though some of its leases are held."""
    limits = LocalLimits(FakeClock())
    limits.follow({"one": PoolLimits(concurrent=1), "two": PoolLimits(concurrent=2)})
    lease = drive(limits.take("one"))
    assert lease is not None
    assert drive(limits.take("one")) is None
    drive(limits.take("two"))
    refused: dict[str, int] = {Refusal.CONCURRENT: 1, Refusal.RATE: 0}
    assert Figures(1, 1, 1, refused, 0, 0) == limits.figures()["one"]
    limits.follow({"two": PoolLimits(concurrent=2)})
    assert ["two"] == list(limits.figures())
    lease.release()
    limits.follow({})
    assert ["two"] == list(limits.gates)
