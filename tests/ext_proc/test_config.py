"""Settings: what is read, what the environment overrides, what is inherited, what is followed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import msgspec
import pytest
import yaml
from msgspec import inspect

from ext_proc.adapters.membership import Fixed, Named
from ext_proc.app import counts_tokens, offers_of
from ext_proc.config import (
    Domain,
    Intent,
    MemorySettings,
    PickSettings,
    PoolSettings,
    RedisSettings,
    ServerSettings,
    ServesSettings,
    Settings,
    StoreSettings,
    TenantSettings,
    TracingSettings,
    Watcher,
    load,
    parse_host_port,
    parse_listen,
    read_settings,
)
from ext_proc.settings_reader import Secret, clusters_in
from ext_proc.yaml_file import BadConfig, Loader, parse_yaml, read_yaml
from filters.api import Config, Filter, Quality
from filters.cache import CacheFilter
from filters.cache_settings import CacheConfig
from filters.clean import CleanConfig, CleanFilter
from filters.errors import ConfigError
from filters.intent_model import bundled_model
from filters.intent_rules import UNSURE
from filters.pools import Offer
from filters.route import RouteConfig, RouteFilter
from filters.strategies import STRATEGIES
from filters.think import ThinkConfig
from filters.units import ClusterName, Duration, PoolName, Size, SomeTime
from tests.fakes import drive

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "envoy" / "forebay.yaml"
EXAMPLES = sorted(f"examples/{file.name}" for file in (ROOT / "envoy/examples").glob("*.yaml"))


class Weight(msgspec.Struct, frozen=True):
    """A part of a filter's settings."""

    of: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1


class TryConfig(Config, frozen=True):
    """One setting of every kind."""

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    wait: SomeTime = Duration("1s")
    quality: Quality = Quality.FULL
    words: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()
    weights: list[Weight] = msgspec.field(default_factory=list)
    limits: dict[str, Size] = msgspec.field(default_factory=dict)
    spare: PoolName | None = None
    low: int = 0
    high: int = 10

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError("low", f"expected at most high, {self.high}, got {self.low}")
        if self.low == self.high:
            raise ValueError("expected low and high to differ")


class TryFilter(Filter[TryConfig]):
    """A filter for these tests."""

    name: ClassVar[str] = "try"
    config_type: ClassVar[type[Config]] = TryConfig


TRY: Mapping[str, type[Filter[Any]]] = {"try": TryFilter}


def block(text: str) -> str:
    """Return a file with `text` as its block, which needs no pools."""
    return "forebay:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def settings_of(
    text: str,
    environ: Mapping[str, str] | None = None,
    built_in: Mapping[str, type[Filter[Any]]] | None = None,
) -> Settings:
    """Read a block that has nothing wrong."""
    file = parse_yaml("forebay.yaml", block(text))
    known = {} if built_in is None else {"built_in": built_in}
    settings, problems = read_settings(file, environ or {}, **known)
    assert [] == problems
    assert settings is not None
    return settings


def problems_of(
    text: str,
    environ: Mapping[str, str] | None = None,
    built_in: Mapping[str, type[Filter[Any]]] | None = None,
) -> list[str]:
    """Read a block that has something wrong."""
    file = parse_yaml("forebay.yaml", block(text))
    known = {} if built_in is None else {"built_in": built_in}
    settings, problems = read_settings(file, environ or {}, **known)
    assert settings is None
    return [str(problem) for problem in problems]


def try_problems(settings: str) -> list[str]:
    """Return what is wrong with settings of the filter `try`."""
    said = problems_of(f"profiles: {{a: {{try: {settings}}}}}", built_in=TRY)
    return [line.removeprefix("forebay.yaml:2: forebay.profiles.a.") for line in said]


# --- What is read --------------------------------------------------------------------------------


def test_all_settings_are_read(tmp_path: Path) -> None:
    """Each key of the block ends in its field."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        block(
            'server: {listen: "127.0.0.1:9000", admin: "[::1]:9464", drain: 5s}\n'
            'store: {redis: {url: "redis://cache:6379/1", timeout: 7ms}}\n'
            "tenant: {header: x-team}\n"
            'tracing: {endpoint: "http://traces:4317"}\n'
            "pools: {main: {cluster: gpu}, small: {cluster: cpu, quality: BEST_EFFORT}}\n"
            "profiles:\n"
            "  chat: {pool: main, route: {pool: small}, cache: {ttl: 2m}}\n"
            "  raw: {pool: small}"
        ),
        encoding="utf-8",
    )
    settings = load(path, {})
    assert (
        ServerSettings(listen="127.0.0.1:9000", admin="[::1]:9464", drain=Duration(5))
        == settings.server
    )
    assert (
        RedisSettings(url="redis://cache:6379/1", timeout=Duration("7ms")) == settings.store.redis
    )
    assert TenantSettings(header="x-team") == settings.tenant
    assert TracingSettings(endpoint="http://traces:4317") == settings.tracing
    pools = {
        "main": PoolSettings(cluster="gpu"),
        "small": PoolSettings(cluster="cpu", quality=Quality.BEST_EFFORT),
    }
    assert pools == dict(settings.pools)
    chat = settings.profiles["chat"]
    assert ("chat", "main") == (chat.name, chat.pool)
    assert (
        (CacheFilter, CacheConfig(ttl=Duration("2m"))),
        (RouteFilter, RouteConfig(pool="small")),
    ) == chat.filters
    assert ("small", ()) == (settings.profiles["raw"].pool, settings.profiles["raw"].filters)


def test_who_the_replicas_are_is_what_envoys_cluster_says() -> None:
    """Of pools that have settings for them; a cluster that is not there has none."""
    pools = (
        "{full: {cluster: gpu, replicas: {}}, other: {cluster: gpu}, "
        "lost: {cluster: lost, replicas: {strategy: blend, prefix: 1, explore: 0.5}}}"
    )
    text = f"""
node: {{metadata: {{forebay: {{pools: {pools}, profiles: {{raw: {{}}}}}}}}}}
static_resources:
  clusters:
  - name: gpu
    type: STRICT_DNS
    load_assignment:
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: vllm, port_value: 8000}}}}}}
"""
    settings, problems = read_settings(parse_yaml("forebay.yaml", text), {})
    assert [] == problems
    assert settings is not None
    assert {"full": Named((("vllm", 8000),)), "lost": Fixed(())} == dict(settings.members)
    assert PickSettings() == settings.pools["full"].replicas
    assert settings.pools["other"].replicas is None
    expected = PickSettings(strategy="blend", prefix=1.0, explore=0.5)
    assert expected == settings.pools["lost"].replicas


def test_what_a_pool_takes_and_costs_is_read() -> None:
    """And becomes what filters see; a pool that says nothing takes everything."""
    settings = settings_of(
        "pools: {full: {cluster: gpu, context: 8192, fallback: long, "
        "price: {input: 0.5, output: 2}}, "
        "long: {cluster: big, serves: {tokens: {above: 8192, up_to: 131072}}}, "
        "coder: {cluster: code, serves: {intents: [code, write], domains: [code]}}}\n"
        "profiles: {raw: {}}"
    )
    assert settings.pools["coder"].serves == ServesSettings(("code", "write"), ("code",))
    pools = offers_of(settings)
    assert [
        Offer(name="full", context=8192, fallback="long", input_price=0.5, output_price=2.0),
        Offer(name="long", above=8192, up_to=131072),
        Offer(name="coder", intents=frozenset({"code", "write"}), domains=frozenset({"code"})),
    ] == list(pools.by_name.values())
    assert {} == offers_of(settings_of("profiles: {raw: {}}")).by_name


def test_only_pools_with_a_limit_a_breaker_or_a_stage_are_asked() -> None:
    """Of the others nobody need hear how an exchange ended."""
    settings = settings_of(
        "pools: {full: {cluster: a, price: {input: 1, output: 1}}, "
        "small: {cluster: b, limits: {}}, spared: {cluster: d, fallback: full}, "
        "old: {cluster: c, stage: {step: canary, pool: full}}}\n"
        "profiles: {raw: {}}"
    )
    pools = offers_of(settings)
    asked = {name for name in settings.pools if pools.guards(name)}
    assert {"small", "old", "spared"} == asked


def test_the_encoding_of_tokens_is_loaded_where_some_filter_counts() -> None:
    """Near a pool's context, `route` does."""
    routed = "profiles: {default: {route: {pool: full}}}"
    assert not counts_tokens(settings_of(routed))
    assert counts_tokens(settings_of(f"pools: {{full: {{cluster: a, context: 9}}}}\n{routed}"))
    assert not counts_tokens(
        settings_of("pools: {full: {cluster: a, context: 9}}\nprofiles: {raw: {}}")
    )
    assert counts_tokens(settings_of("profiles: {default: {budget: {}}}"))


def test_intents_and_domains_are_those_that_are_told_apart() -> None:
    """A pool can be for each of them."""
    model = bundled_model()
    assert set(get_args(Intent)) == {*model.intents, UNSURE}
    assert set(get_args(Domain)) == set(model.domains)


def test_every_strategy_has_its_word() -> None:
    """The first is the one without any."""
    kind = inspect.type_info(PickSettings)
    assert isinstance(kind, inspect.StructType)
    (words,) = (one.type for one in kind.fields if one.name == "strategy")
    assert isinstance(words, inspect.LiteralType)
    assert set(STRATEGIES) == set(words.values)
    assert next(iter(STRATEGIES)) == PickSettings().strategy


def test_only_a_profile_must_be_given() -> None:
    """Everything else has a default, which stands in the code."""
    settings = settings_of("profiles: {raw: {}}")
    assert ServerSettings() == settings.server
    assert StoreSettings(memory=MemorySettings()) == settings.store
    assert TenantSettings() == settings.tenant
    assert TracingSettings() == settings.tracing
    assert {"full": PoolSettings(cluster="full")} == dict(settings.pools)


def test_750_exchanges_may_be_open_unless_the_file_says_otherwise() -> None:
    """So the shipped file and docs/queues.md say; what is over is refused."""
    assert 750 == settings_of("profiles: {raw: {}}").server.most_exchanges
    settings = settings_of("server: {most_exchanges: 751}\nprofiles: {raw: {}}")
    assert 751 == settings.server.most_exchanges


@pytest.mark.parametrize("name", ["forebay.yaml", *EXAMPLES])
def test_envoy_ends_a_request_whose_body_is_not_whole_in_300_s(name: str) -> None:
    """Else heads without a body, which count towards no cap, would be held for ever."""
    tree = read_yaml(SHIPPED.parent / name).value
    (ingress,) = (one for one in tree["static_resources"]["listeners"] if one["name"] == "ingress")
    managers = [chain["filters"][0]["typed_config"] for chain in ingress["filter_chains"]]
    assert ["300s"] * len(managers) == [one["request_timeout"] for one in managers]
    assert managers


def test_the_block_is_found_in_envoys_file() -> None:
    """Under `node.metadata`, which Envoy passes on and does not read."""
    block = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))["node"]["metadata"]["forebay"]
    assert list(block["profiles"]) == list(load(SHIPPED, {}).profiles)


def test_files_are_read_by_libyaml() -> None:
    """It takes a tenth of the time, and the server reads its file again whenever it changes."""
    assert yaml.CSafeLoader is Loader


def test_filters_run_in_their_own_order_whatever_the_file_says() -> None:
    """A profile says what is on, not when."""
    settings = settings_of(
        "pools: {full: {cluster: full}, best_effort: {cluster: cpu}}\n"
        "profiles: {a: {route: {}, cache: {}, clean: {}}}"
    )
    assert [CleanFilter, CacheFilter, RouteFilter] == [
        kind for kind, _ in settings.profiles["a"].filters
    ]


def test_a_snapshot_cannot_be_changed() -> None:
    """What an exchange began with stays true for it."""
    settings = settings_of("profiles: {raw: {}}")
    with pytest.raises(TypeError):
        settings.pools["other"] = PoolSettings(cluster="x")  # type: ignore[index] # the point
    with pytest.raises(AttributeError):
        settings.server.listen = "x"  # type: ignore[misc] # the point


# --- Inheritance ---------------------------------------------------------------------------------


def test_a_profile_inherits_filters_and_settings_key_by_key() -> None:
    """What it says itself comes first, then its base, then the base's base."""
    settings = settings_of(
        "profiles:\n"
        "  last: {base: middle, cache: {admit_after: 1}}\n"
        "  middle: {base: first, cache: {ttl: 1h}}\n"
        "  first: {clean: {html: false}, cache: {ttl: 1m, max_tokens: 99}}"
    )
    cache = CacheConfig(ttl=Duration("1h"), admit_after=1, max_tokens=99)
    assert (
        (CleanFilter, CleanConfig(html=False)),
        (CacheFilter, cache),
    ) == settings.profiles["last"].filters


def test_false_takes_an_inherited_filter_out() -> None:
    """And an heir may put it in again, without what was set before."""
    settings = settings_of(
        "profiles:\n"
        "  a: {clean: {}, cache: {ttl: 1m}}\n"
        "  b: {base: a, cache: false}\n"
        "  c: {base: b, cache: {}}"
    )
    assert ((CleanFilter, CleanConfig()),) == settings.profiles["b"].filters
    assert (CacheFilter, CacheConfig()) == settings.profiles["c"].filters[1]


def test_a_pool_is_inherited() -> None:
    """An heir is served where its base is, unless it says otherwise."""
    settings = settings_of(
        "pools: {full: {cluster: full}, small: {cluster: small}}\n"
        "profiles: {a: {pool: small}, b: {base: a}, c: {base: a, pool: full}}"
    )
    assert ["small", "small", "full"] == [profile.pool for profile in settings.profiles.values()]


def test_a_chain_of_eight_bases_is_read() -> None:
    """One more is refused: see the corpus."""
    lines = "".join(f"  a{i}: {{base: a{i + 1}}}\n" for i in range(8))
    assert 9 == len(settings_of(f"profiles:\n{lines}  a8: {{}}").profiles)


# --- Where answers are kept -----------------------------------------------------------------------


def test_both_stores_are_two_levels() -> None:
    """Memory before Redis; its time has a default like every other."""
    text = 'store: {memory: {size: 8MiB}, redis: {url: "redis://cache"}}\nprofiles: {raw: {}}'
    store = settings_of(text).store
    assert (
        StoreSettings(
            memory=MemorySettings(size=Size("8MiB")), redis=RedisSettings(url="redis://cache")
        )
        == store
    )
    assert store.memory is not None
    assert 10 == store.memory.copy_time


def test_how_long_a_copy_serves_can_be_set() -> None:
    """A purge of Redis is to be seen everywhere within it."""
    text = 'store: {memory: {longest: 2s}, redis: {url: "redis://cache"}}\nprofiles: {raw: {}}'
    memory = settings_of(text).store.memory
    assert memory is not None
    assert 2 == memory.copy_time


def test_the_environment_says_where_the_lower_level_is() -> None:
    """Where the file has both levels; where it has memory alone, Redis takes its place."""
    environ = {"FOREBAY_REDIS_URL": "redis://cache"}
    both = "store: {memory: {size: 8MiB}, redis: {timeout: 9ms}}\nprofiles: {raw: {}}"
    assert (
        StoreSettings(
            memory=MemorySettings(size=Size("8MiB")),
            redis=RedisSettings(url="redis://cache", timeout=Duration("9ms")),
        )
        == settings_of(both, environ).store
    )
    alone = "store: {memory: {size: 8MiB}}\nprofiles: {raw: {}}"
    assert (
        StoreSettings(redis=RedisSettings(url="redis://cache")) == settings_of(alone, environ).store
    )


# --- The environment -----------------------------------------------------------------------------


def test_the_environment_chooses_redis() -> None:
    """Whatever store the file has; a time-out that it has stays."""
    environ = {"FOREBAY_REDIS_URL": "redis://cache:6379/0"}
    assert (
        RedisSettings(url="redis://cache:6379/0")
        == settings_of("profiles: {raw: {}}", environ).store.redis
    )
    assert (
        RedisSettings(url="redis://cache:6379/0", timeout=Duration("9ms"))
        == settings_of("store: {redis: {timeout: 9ms}}\nprofiles: {raw: {}}", environ).store.redis
    )


def test_all_but_the_url_stays_as_the_file_says() -> None:
    """Where Redis is differs between environments; how it is asked need not."""
    text = "store: {redis: {read_replicas: true, connections: 2}}\nprofiles: {raw: {}}"
    environ = {"FOREBAY_REDIS_URL": "redis+cluster://:hunter2@one:7000,two"}
    assert (
        RedisSettings(
            url="redis+cluster://one:7000,two",
            password=Secret("hunter2"),
            read_replicas=True,
            connections=2,
        )
        == settings_of(text, environ).store.redis
    )


def test_a_url_that_the_other_settings_do_not_fit_is_named() -> None:
    """The file alone has nothing wrong."""
    text = "store: {redis: {read_replicas: true}}\nprofiles: {raw: {}}"
    (problem,) = problems_of(text, {"FOREBAY_REDIS_URL": "redis://cache"})
    assert (
        "environment: FOREBAY_REDIS_URL: "
        "read_replicas: expected redis+sentinel:// or redis+cluster://"
    ) == problem


def test_sentinels_have_a_password_of_their_own() -> None:
    """Most have none while the servers do."""
    text = 'store: {redis: {url: "redis+sentinel://one,two/cache"}}\nprofiles: {raw: {}}'
    environ = {"FOREBAY_REDIS_SENTINEL_PASSWORD": "hunter2"}
    store = settings_of(text, environ).store.redis
    assert (
        RedisSettings(url="redis+sentinel://one,two/cache", sentinel_password=Secret("hunter2"))
        == store
    )
    assert "hunter2" not in repr(store)


def test_the_password_comes_from_the_environment_alone() -> None:
    """From its own variable, or from the URL in the other, which is kept without it."""
    own = {"FOREBAY_REDIS_PASSWORD": "hunter2"}
    text = 'store: {redis: {url: "rediss://cache"}}\nprofiles: {raw: {}}'
    assert (
        RedisSettings(url="rediss://cache", password=Secret("hunter2"))
        == settings_of(text, own).store.redis
    )
    in_url = {"FOREBAY_REDIS_URL": "redis://me:hun%40ter2@cache:6379/0"}
    assert (
        RedisSettings(url="redis://me@cache:6379/0", password=Secret("hun@ter2"))
        == settings_of(text, in_url).store.redis
    )


def test_a_password_is_not_shown() -> None:
    """Settings may be logged as a whole."""
    environ = {"FOREBAY_REDIS_URL": "redis://:hunter2@cache:6379/0"}
    assert "hunter2" not in repr(settings_of("profiles: {raw: {}}", environ))


def test_the_environment_names_the_receiver_of_traces() -> None:
    """By the variable that all of OpenTelemetry knows; an empty one counts as none."""
    text = 'tracing: {endpoint: "http://file:4317"}\nprofiles: {raw: {}}'
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://variable:4317"}
    assert "http://variable:4317" == settings_of(text, environ).tracing.endpoint
    empty = {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}
    assert "http://file:4317" == settings_of(text, empty).tracing.endpoint


def test_a_wrong_variable_is_named() -> None:
    """Its value is shown without a password."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "traces",
        "FOREBAY_REDIS_URL": "http://:hunter2@cache",
    }
    redis, traces = problems_of("profiles: {raw: {}}", environ)
    assert (
        "environment: FOREBAY_REDIS_URL: "
        'expected a URL such as "redis://host:6379/0", got "http://cache"'
    ) == redis
    assert (
        "environment: OTEL_EXPORTER_OTLP_ENDPOINT: "
        'expected a URL such as "http://127.0.0.1:4317", got "traces"'
    ) == traces


# --- Kinds of settings ---------------------------------------------------------------------------


def test_every_kind_of_setting_is_read() -> None:
    """Numbers, times, choices, lists, mappings and what may be missing."""
    settings = settings_of(
        "profiles: {a: {try: {share: 1, wait: 5ms, quality: BEST_EFFORT, words: [a, b], "
        "weights: [{of: x, weight: 2.0}], limits: {x: 1KiB}, spare: full}}}",
        built_in=TRY,
    )
    assert (
        TryFilter,
        TryConfig(
            share=1.0,
            wait=Duration("5ms"),
            quality=Quality.BEST_EFFORT,
            words=("a", "b"),
            weights=[Weight(of="x", weight=2)],
            limits={"x": Size("1KiB")},
            spare="full",
        ),
    ) == settings.profiles["a"].filters[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{share: 0}", "try.share: expected a number above 0 and of at most 1, got 0"),
        ("{share: true}", "try.share: expected a number above 0 and of at most 1, got true"),
        ("{wait: 0s}", 'try.wait: expected more than nothing, got "0s"'),
        ("{quality: best}", 'try.quality: expected one of FULL, BEST_EFFORT, got "best"'),
        ("{words: a}", 'try.words: expected a list, got "a"'),
        ('{words: [a, ""]}', 'try.words[1]: expected text that is not empty, got ""'),
        (
            "{weights: [{of: x, weight: 11}]}",
            "try.weights[0].weight: expected a whole number from 1 to 10, got 11",
        ),
        ("{weights: [{}]}", "try.weights[0].of: expected text, got nothing"),
        (
            "{weights: [{of: no}]}",
            'try.weights[0].of: expected text, got false (to mean the text, quote it: "no")',
        ),
        ("{weights: [x]}", 'try.weights[0]: expected a mapping, got "x"'),
        ("{limits: [1KiB]}", "try.limits: expected a mapping, got a list"),
        ("{limits: {x: 1}}", 'try.limits.x: expected a size such as "64KiB", got 1'),
        ("{low: 1.5}", "try.low: expected a whole number, got 1.5"),
        ("{spare: none}", 'try.spare: expected a pool, got "none"; there is full'),
        ("{low: 11}", "try.low: expected at most high, 10, got 11"),
        ("{low: 3, high: 3}", "try: expected low and high to differ"),
    ],
)
def test_a_wrong_setting_is_told_with_what_was_expected(settings: str, message: str) -> None:
    """In the words of the file, not of the types behind it."""
    assert [message] == try_problems(settings)


def test_null_leaves_an_optional_setting_out() -> None:
    """As if its key were not there."""
    settings = settings_of("profiles: {a: {try: {spare: null}}}", built_in=TRY)
    assert (TryFilter, TryConfig()) == settings.profiles["a"].filters[0]


def test_every_problem_stops_the_start(tmp_path: Path) -> None:
    """One error has them all, a line each."""
    path = tmp_path / "forebay.yaml"
    path.write_text(block("tracin: {}\nprofiles: {raw: {cahce: {}}}"), encoding="utf-8")
    with pytest.raises(BadConfig) as caught:
        load(path, {})
    assert "forebay.tracin" == caught.value.path
    assert (
        f"{path}:2: forebay.tracin: unknown key, did you mean tracing?\n"
        f"{path}:3: forebay.profiles.raw.cahce: unknown filter, did you mean cache?"
    ) == str(caught.value)


# --- Addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address", ["unix:/run/e.sock", "unix:@e", "127.0.0.1:8002", "localhost:8002", "[::1]:8002"]
)
def test_forebay_asks_by_a_socket_or_on_loopback(address: str) -> None:
    """Whoever reaches that listener may ask any cluster."""
    text = f'server: {{egress: "{address}"}}\nprofiles: {{raw: {{}}}}'
    assert address == settings_of(text).server.egress


@pytest.mark.parametrize("address", ["0.0.0.0:8002", "10.0.0.1:8002", "gateway:8002", "e.sock"])
def test_forebay_asks_nowhere_else(address: str) -> None:
    """A name may mean any machine."""
    text = f'server: {{egress: "{address}"}}\nprofiles: {{raw: {{}}}}'
    (problem,) = problems_of(text)
    assert problem.startswith("forebay.yaml:2: forebay.server.egress: expected")


class Ask(Config, frozen=True):
    """A part of a filter's settings that names a cluster."""

    cluster: ClusterName = ""


class AskConfig(Config, frozen=True):
    """A filter's settings that name clusters."""

    light: ClusterName = ""
    model: str = "light"
    deep: Ask = Ask()


def test_the_clusters_of_settings_are_found_under_their_keys() -> None:
    """Parts of settings are looked into; an empty name is none."""
    assert [] == clusters_in(AskConfig())
    assert [("light", "a"), ("deep.cluster", "b")] == clusters_in(
        AskConfig(light="a", deep=Ask(cluster="b"))
    )


def test_the_clusters_of_all_settings_are_those_of_pools_and_of_filters() -> None:
    """Each of them serves models, and is led elsewhere by `forebay up`."""
    text = (
        "pools: {full: {cluster: large}}\n"
        "profiles: {a: {think: {cluster: light, model: m}}, b: {base: a}}"
    )
    assert {"large", "light"} == settings_of(text).clusters


def test_the_settings_of_think_are_read() -> None:
    """Only who drafts must be said."""
    text = """
profiles:
  a: {think: {cluster: light, model: m}}
  b: {think: {cluster: light, model: m, deadline: 4s, max_tokens: 99, only: [code, open]}}
"""
    profiles = settings_of("pools: {full: {cluster: large}}" + text).profiles
    ((_, first),), ((_, second),) = profiles["a"].filters, profiles["b"].filters
    assert ThinkConfig(cluster="light", model="m") == first
    other = ThinkConfig(
        cluster="light",
        model="m",
        deadline=Duration("4s"),
        max_tokens=99,
        only=("code", "open"),
    )
    assert other == second


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/x.sock", "/run/x.sock"),
        ("unix:@abstract", "@abstract"),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_an_address_is_a_socket_or_host_and_port(text: str, address: str | tuple[str, int]) -> None:
    """Paths as Envoy's `pipe` has them, hosts without brackets."""
    assert address == parse_listen(text)


@pytest.mark.parametrize(
    "text", ["", ":80", "host", "host:", "host:65536", "::1:80", "host:\uff18", "[]:1"]
)
def test_an_address_of_another_form_is_refused(text: str) -> None:
    """An IPv6 address without brackets among them, for its port could not be told."""
    with pytest.raises(ValueError, match=r'^expected "host:port", got'):
        parse_host_port(text)


# --- YAML as Envoy reads it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("on", True),
        ("Yes", True),
        ("y", True),
        ("OFF", False),
        ("n", False),
        ("oN", "oN"),
        ('"on"', "on"),
        ("~", None),
        ("", None),
        ("Null", None),
        ('"~"', "~"),
        ("010", 8),
        ("0x1F", 31),
        ("-0x1F", -31),
        ("+5", 5),
        ("09", "09"),
        ("9" * 5000, "9" * 5000),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        (".inf", ".inf"),
        ("!!str true", True),
        ("!foo bar", "bar"),
    ],
)
def test_a_scalar_is_read_as_envoy_reads_it(text: str, value: object) -> None:
    """Measured on Envoy 1.40.0 by its /config_dump, but for fractions, which it keeps as text."""
    assert {"a": value} == parse_yaml("x.yaml", f"a: {text}\n").value


def test_a_key_is_text_whatever_it_looks_like() -> None:
    """One tagged `!ignore` holds anchors and nothing else; `<<` merges nothing."""
    text = "off: 1\n1: 2\n~: 3\n!ignore anchors: [&x {a: 1}]\n<<: *x\n"
    assert {"off": 1, "1": 2, "null": 3, "<<": {"a": 1}} == parse_yaml("x.yaml", text).value


def test_a_place_has_its_line() -> None:
    """An alias the line of its use, what is in it the anchor's; what is missing, its parent's."""
    file = parse_yaml("x.yaml", "a: &x\n  b: 1\n  c:\n  - 2\n  - d: 3\ne: *x\n")
    places: list[tuple[str | int, ...]] = [("a",), ("a", "b"), ("a", "c", 1, "d"), ("e",)]
    places += [("e", "b"), ("a", "c", 7), ("nothing",), ("a", "b", "c")]
    assert [1, 2, 5, 6, 2, 3, 1, 2] == [file.line(place) for place in places]


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """Block lists have no bound of libyaml's own."""
    for text in ("[" * 5000, "- " * 5000 + "a", "forebay: " + "{a: " * 900 + "1" + "}" * 900):
        path = tmp_path / "deep.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(BadConfig):
            load(path, {})


def test_a_file_of_over_1_mib_is_refused(tmp_path: Path) -> None:
    """A server that follows the file stands still while it is read."""
    path = tmp_path / "forebay.yaml"
    path.write_text("forebay: {profiles: {raw: {}}}\n#".ljust(1 << 20), encoding="utf-8")
    assert {"raw"} == set(load(path, {}).profiles)
    path.write_text("forebay: {profiles: {raw: {}}}\n#".ljust((1 << 20) + 1), encoding="utf-8")
    with pytest.raises(BadConfig, match="expected a file of at most 1 MiB, got a longer one"):
        load(path, {})


def test_bytes_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    """Without a guess at what they may be."""
    path = tmp_path / "forebay.yaml"
    path.write_bytes(b"forebay: \xff\n")
    with pytest.raises(BadConfig, match="expected UTF-8 text, got: invalid leading UTF-8 octet"):
        read_yaml(path)


# --- Following the file --------------------------------------------------------------------------


class Journal:
    """A log and a counter that remember."""

    def __init__(self) -> None:
        self.applied: list[Settings] = []
        self.counted: list[str] = []
        self.said: list[tuple[str, dict[str, object]]] = []
        self.refuse: Exception | None = None

    def apply(self, settings: Settings) -> None:
        if self.refuse:
            raise self.refuse
        self.applied.append(settings)

    def info(self, event: str, **fields: object) -> None:
        self.said.append((event, fields))

    warning = info


FIRST = block("profiles: {raw: {}}")
SECOND = block("profiles: {raw: {}, more: {}}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "forebay.yaml"
    file.write_text(FIRST, encoding="utf-8")
    return file


def replace_file(path: Path, text: str) -> None:
    """Swap a file as an editor or a ConfigMap does: never half of it is there."""
    beside = path.with_name("beside")
    beside.write_text(text, encoding="utf-8")
    beside.rename(path)


async def no_sleep(seconds: float) -> None:
    raise AssertionError(f"slept for {seconds} s")


def watch(path: Path, journal: Journal) -> Watcher:
    """Return a watcher that has looked once."""
    watcher = Watcher(
        path,
        load(path, {}),
        environ={},
        apply=journal.apply,
        count=journal.counted.append,
        log=journal,
        sleep=no_sleep,
    )
    assert watcher.look() is False
    return watcher


def test_a_file_that_stays_is_left_alone(path: Path) -> None:
    """It is not even read."""
    journal = Journal()
    watcher = watch(path, journal)
    assert watcher.look() is False
    assert ([], [], []) == (journal.applied, journal.counted, journal.said)


def test_a_change_is_applied(path: Path) -> None:
    """In one step, by the caller's own function."""
    journal = Journal()
    watcher = watch(path, journal)
    replace_file(path, SECOND)
    assert watcher.look() is True
    assert [["raw", "more"]] == [list(settings.profiles) for settings in journal.applied]
    assert journal.applied[0] is watcher.settings
    assert ["applied"] == journal.counted
    assert [("settings applied", {"file": str(path)})] == journal.said


def test_a_change_between_start_and_first_look_is_not_missed(path: Path) -> None:
    """The watcher does not take the file it finds for the one that was read."""
    journal = Journal()
    settings = load(path, {})
    replace_file(path, SECOND)
    watcher = Watcher(
        path,
        settings,
        environ={},
        apply=journal.apply,
        count=journal.counted.append,
        log=journal,
        sleep=no_sleep,
    )
    assert watcher.look() is True


def test_a_change_that_means_the_same_is_not_applied(path: Path) -> None:
    """A comment costs nobody a new pipeline."""
    journal = Journal()
    watcher = watch(path, journal)
    replace_file(path, f"# a comment\n{FIRST}")
    assert watcher.look() is False
    assert [] == journal.counted


def test_a_bad_version_is_refused_once_and_the_running_one_stays(path: Path) -> None:
    """With every problem in the log; the next good version is taken."""
    journal = Journal()
    watcher = watch(path, journal)
    running = watcher.settings
    replace_file(path, block("profiles: {raw: {cahce: {}}}"))
    assert (False, False) == (watcher.look(), watcher.look())
    assert running is watcher.settings
    assert ["refused"] == journal.counted
    problem = f"{path}:2: forebay.profiles.raw.cahce: unknown filter, did you mean cache?"
    assert [("settings refused, the running ones stay", {"problems": problem})] == journal.said
    replace_file(path, SECOND)
    assert watcher.look() is True


def test_a_file_that_goes_is_refused_and_taken_again_when_it_comes_back(path: Path) -> None:
    """Some editors remove it before they write it."""
    journal = Journal()
    watcher = watch(path, journal)
    path.unlink()
    assert (False, False) == (watcher.look(), watcher.look())
    assert ["refused"] == journal.counted
    path.write_text(SECOND, encoding="utf-8")
    assert watcher.look() is True


def test_a_configmap_swap_is_seen(tmp_path: Path) -> None:
    """The file is a link to a link, and the one in the middle is swapped."""
    for name, text in (("..1", FIRST), ("..2", SECOND)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "forebay.yaml").write_text(text, encoding="utf-8")
    same_time = (tmp_path / "..1" / "forebay.yaml").stat().st_mtime_ns
    os.utime(tmp_path / "..2" / "forebay.yaml", ns=(same_time, same_time))
    (tmp_path / "..data").symlink_to("..1")
    path = tmp_path / "forebay.yaml"
    path.symlink_to("..data/forebay.yaml")
    journal = Journal()
    watcher = watch(path, journal)
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert watcher.look() is True
    assert ["raw", "more"] == list(watcher.settings.profiles)


def test_what_needs_a_restart_waits_for_one(path: Path) -> None:
    """Addresses and the store stay as they run, the rest of the file is applied."""
    journal = Journal()
    watcher = watch(path, journal)
    changed = 'server: {listen: "unix:/elsewhere"}\nstore: {memory: {size: 1MiB}}\n'
    replace_file(path, block(f"{changed}profiles: {{raw: {{}}, more: {{}}}}"))
    assert watcher.look() is True
    assert (ServerSettings(), StoreSettings(memory=MemorySettings())) == (
        watcher.settings.server,
        watcher.settings.store,
    )
    assert ["raw", "more"] == list(watcher.settings.profiles)
    assert ("settings that need a restart", {"blocks": ["server", "store"]}) == journal.said[0]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConfigError("forebay.x", "expected y"), "forebay.x: expected y"),
        (RuntimeError("a prompt"), "RuntimeError"),
    ],
)
def test_settings_that_cannot_be_put_in_place_are_refused(
    path: Path, error: Exception, said: str
) -> None:
    """Whatever breaks; of a bug only its kind is logged."""
    journal = Journal()
    watcher = watch(path, journal)
    running = watcher.settings
    journal.refuse = error
    replace_file(path, SECOND)
    assert watcher.look() is False
    assert running is watcher.settings
    assert [("settings refused, the running ones stay", {"problems": said})] == journal.said


def test_the_file_is_looked_at_every_second(path: Path) -> None:
    """As long as the sleep that was passed in returns."""

    class Enough(Exception):
        """Ends a loop that has no end of its own."""

    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            replace_file(path, SECOND)
        if len(slept) == 3:
            raise Enough

    journal = Journal()
    watcher = Watcher(
        path,
        load(path, {}),
        environ={},
        apply=journal.apply,
        count=journal.counted.append,
        log=journal,
        sleep=sleep,
    )
    with pytest.raises(Enough):
        drive(watcher.run())
    assert [1.0, 1.0, 1.0] == slept
    assert ["applied"] == journal.counted
