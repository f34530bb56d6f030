"""Tenants whom a canary serves have answers of their own in the cache."""

from __future__ import annotations

from filters.api import CONTINUE
from filters.cache_key import cache_key
from filters.canary import CanaryConfig, CanaryFilter
from tests.exchanges import ask
from tests.fakes import FakeStages, drive, fake_ports


def test_a_tenant_who_moved_finds_answers_of_the_pool_that_serves_him() -> None:
    """All others find what they had."""
    stages = FakeStages(moved={"moved": "another hash"})
    keys = {}
    for tenant in ("moved", "stayed"):
        exchange = ask("openai.chat", "Why?", tenant=tenant)
        before = cache_key(exchange)
        canary = CanaryFilter(CanaryConfig(), None, fake_ports(stages=stages))
        assert CONTINUE is drive(canary.on_request(exchange))
        keys[tenant] = cache_key(exchange) == before
    assert {"moved": False, "stayed": True} == keys
