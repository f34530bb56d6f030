"""Settings that may shape prompts and answers are told apart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ext_proc.app import shaped_by
from ext_proc.config import (
    LengthSettings,
    PoolSettings,
    ProfileSettings,
    ServesSettings,
    StageSettings,
)
from filters import BUILT_IN, fingerprint
from filters.api import Config, Step
from filters.budget import BudgetConfig
from filters.cache_rules import Ignored
from filters.cache_settings import CacheConfig
from filters.fingerprint import bundled_hash
from filters.route import RouteConfig
from filters.units import Duration, Size

POOLS = {name: PoolSettings(cluster=name) for name in ("full", "best_effort", "expert")}


def of(*configs: Config, pool: str = "full", pools: dict[str, PoolSettings] = POOLS) -> str:
    kinds = {kind.config_type: kind for kind in BUILT_IN.values()}
    filters = tuple((kinds[type(config)], config) for config in configs)
    return shaped_by(ProfileSettings("p", pool, filters), pools)


@pytest.mark.parametrize(
    ("config", "other"),
    [
        (BudgetConfig(), BudgetConfig(limit=513)),
        (BudgetConfig(), BudgetConfig(deadline=Duration("3s"))),
        (RouteConfig(), RouteConfig(downgrade=False)),
        (CacheConfig(), CacheConfig(ignore=(Ignored.USER,))),
        (CacheConfig(), CacheConfig(tools=True)),
    ],
    ids=str,
)
def test_a_changed_setting_is_another_fingerprint(config: Config, other: Config) -> None:
    """What was answered under the old one is not given again."""
    assert of(config) != of(other)


@pytest.mark.parametrize(
    "other",
    [
        CacheConfig(ttl=Duration("1h"), ttl_context=Duration("1m")),
        CacheConfig(admit_after=1, window=Duration("2h")),
        CacheConfig(max_tokens=9, max_answer=Size("1KiB")),
        CacheConfig(any_temperature=True),
    ],
    ids=str,
)
def test_what_only_bears_on_keeping_is_not_in_it(other: CacheConfig) -> None:
    """A longer time to live loses no answer."""
    assert of(CacheConfig()) == of(other)


def test_a_filter_more_is_another_fingerprint() -> None:
    """With its defaults it does something."""
    assert of(CacheConfig()) != of(CacheConfig(), BudgetConfig())


@pytest.mark.parametrize(
    ("pool", "counts"), [("full", True), ("best_effort", True), ("expert", False)]
)
@pytest.mark.parametrize("change", [{"cluster": "other"}, {"quality": "BEST_EFFORT"}], ids=str)
def test_the_servers_behind_it_count(pool: str, counts: bool, change: dict[str, Any]) -> None:
    """Those of its own pool and of pools its filters name; others answer nothing here."""
    changed = POOLS | {pool: PoolSettings(**({"cluster": pool} | change))}
    assert counts is (of(RouteConfig()) != of(RouteConfig(), pools=changed))


def test_a_pool_that_is_chosen_by_length_counts() -> None:
    """And one that stands in for another, and both settings; where nothing routes, none does."""
    long = PoolSettings(cluster="expert", serves=ServesSettings(tokens=LengthSettings(above=8192)))
    last = PoolSettings(cluster="full", fallback="expert")
    for changed in (POOLS | {"expert": long}, POOLS | {"full": last}):
        assert of(RouteConfig()) != of(RouteConfig(), pools=changed)
        moved = changed | {"expert": msgspec.structs.replace(changed["expert"], cluster="else")}
        assert of(RouteConfig(), pools=changed) != of(RouteConfig(), pools=moved)
    assert of(CacheConfig()) == of(CacheConfig(), pools=POOLS | {"expert": long})


def test_the_pool_of_a_profile_counts() -> None:
    """The same filters before other servers."""
    assert of(RouteConfig()) != of(RouteConfig(), pool="expert")


@pytest.mark.parametrize(("kind", "name"), [("classify", "templates"), ("params", "glossary")])
def test_bundled_data_counts(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version of the templates or the glossary makes other prompts."""
    config = BUILT_IN[kind].config_type()
    before = of(config)
    real = bundled_hash
    monkeypatch.setattr(fingerprint, "bundled_hash", lambda of: "other" if of == name else real(of))
    assert before != of(config)


def test_every_setting_of_every_filter_can_be_told() -> None:
    """Their kinds of value are written the same each time."""
    for kind in BUILT_IN.values():
        required = [field for field in msgspec.structs.fields(kind.config_type) if field.required]
        config = kind.config_type(**{field.encode_name: "x" for field in required})
        assert of(config) == of(config)


def test_a_pool_that_took_anothers_place_is_that_one_whatever_its_name() -> None:
    """As a shadow it shapes nothing; whole, the same as when its servers have the name."""
    pools = {"full": PoolSettings(cluster="old"), "coming": PoolSettings(cluster="new")}
    profile = ProfileSettings("default", "full", ())

    def step(step: Step) -> dict[str, PoolSettings]:
        return pools | {
            "full": PoolSettings(cluster="old", stage=StageSettings(step=step, pool="coming"))
        }

    before, after = (
        shaped_by(profile, pools),
        shaped_by(profile, {"full": PoolSettings(cluster="new")}),
    )
    assert before != after
    assert [before, before, after] == [shaped_by(profile, step(one)) for one in Step]
    assert after == shaped_by(profile, step(Step.CANARY), frozenset(("full",)))
