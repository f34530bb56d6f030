"""Read Forebay's settings, all of them or none, and follow the file when it changes.

They are the `forebay` block under `node.metadata` of an Envoy bootstrap, or a file that has only
that block. What is read becomes an immutable `Settings`.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NoReturn, Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from ext_proc.adapters.membership import Fixed, members_of
from ext_proc.adapters.membership import Members as PoolMembers
from ext_proc.redis_url import EXAMPLE as REDIS_URL
from ext_proc.redis_url import Kind, parse_redis_url, split_redis_url
from ext_proc.settings_reader import (
    INVALID,
    Invalid,
    Members,
    Secret,
    SettingsReader,
    clusters_in,
    not_among,
    pools_in,
    unknown,
)
from ext_proc.warm_up_file import MOST_PROMPTS, read_prompts
from ext_proc.yaml_file import BadConfig, Place, Problem, YamlFile, found, read_yaml
from filters import BUILT_IN
from filters.api import Config, Filter, Quality, Step
from filters.errors import ConfigError
from filters.route import RouteFilter
from filters.units import Duration, PoolName, Size, SomeSize, SomeTime

AnyFilter: TypeAlias = Filter[Any]
FilterSettings: TypeAlias = tuple[type[AnyFilter], Config]

LONGEST_SOCKET_PATH: Final = 107  # bytes; sun_path of unix(7) has 108 with the closing zero
MOST_BASES: Final = 8  # a longer line of heirs is hard to follow, and more likely an accident
POLL_S: Final = 1.0
COPY_S: Final = 10.0  # a purge of Redis is seen within it; what many ask for comes more often
DEFAULT_POOL: Final = "full"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # goes into headers, paths and labels
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]*")  # RFC 9110, 5.1, as HTTP/2 writes it
_AT_RESTART: Final = ("server", "store", "tracing")


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the fixed parts of the `forebay` block."""


def parse_listen(text: str) -> str | tuple[str, int]:
    """Return the path in `unix:/path`, or host and port of `host:port`; raise `ValueError`."""
    if not text.startswith("unix:"):
        try:
            return parse_host_port(text)
        except ValueError:
            raise ValueError(f'expected "unix:/path" or "host:port", got {found(text)}') from None
    path = text.removeprefix("unix:")
    if not path.startswith(("/", "@")):
        raise ValueError(f'expected an absolute path after "unix:", got {found(path)}')
    if (length := len(path.encode())) > LONGEST_SOCKET_PATH:
        raise ValueError(f"expected a path of at most {LONGEST_SOCKET_PATH} bytes, got {length}")
    return path


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[address]:port`; raise `ValueError`."""
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if in_brackets else host
    good_host = bool(bare) and (in_brackets or ":" not in host)
    if good_host and port.isascii() and port.isdigit() and int(port) <= 65535:
        return bare, int(port)
    raise ValueError(f'expected "host:port", got {found(text)}')


def _check_egress(text: str) -> None:
    egress = parse_listen(text)
    if not isinstance(egress, str) and not is_loopback(egress[0]):
        raise ValueError(f'expected "unix:/path" or a loopback "host:port", got {found(text)}')


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can connect to an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_otlp_url(text: str) -> None:
    url = urlsplit(text)
    if text and (url.scheme not in ("http", "https") or not url.hostname):
        raise ValueError(f'expected a URL such as "http://127.0.0.1:4317", got {found(text)}')
    if not _has_good_port(text):
        raise ValueError(f"expected a URL with a port from 1 to 65535, got {found(text)}")


def _has_good_port(text: str) -> bool:
    try:
        return urlsplit(text).port != 0
    except ValueError:
        return False


def _check_header(text: str) -> None:
    if not _HEADER.fullmatch(text):
        raise ValueError(f"expected a header's name in lower case, got {found(text)}")


def _checked(check: Callable[[str], object]) -> msgspec.Meta:
    return msgspec.Meta(extra={"check": check})


class Transport(enum.StrEnum):
    """What carries the proxy's messages."""

    GRPC = "grpc"
    """grpc.aio."""
    NATIVE = "native"
    """An HTTP/2 server of our own, several times lighter."""


class TlsSettings(_Block, frozen=True):
    """Who the server is to those who connect; both files are read at the start."""

    certificate: Annotated[str, msgspec.Meta(min_length=1)]
    """Path of its chain, in PEM; it may be signed by itself, as long as who connects takes it."""
    key: Annotated[str, msgspec.Meta(min_length=1)]
    """Path of its private key, in PEM."""


class ServerSettings(_Block, frozen=True):
    """Where the ext_proc server listens."""

    listen: Annotated[str, _checked(parse_listen)] = "unix:/run/forebay/ext_proc.sock"
    """`unix:/path` or `host:port`; the same as the address of Envoy's ext_proc cluster."""
    tls: TlsSettings | None = None
    """For gateways on other machines; None: whoever connects speaks plain HTTP/2."""
    admin: Annotated[str, _checked(parse_host_port)] = "127.0.0.1:9464"
    """`host:port` of metrics and health."""
    transport: Transport = Transport.NATIVE
    """What carries Envoy's messages: the two do the same, `grpc` for more CPU time."""
    egress: Annotated[str, _checked(_check_egress)] = "unix:/run/forebay/egress.sock"
    """Where Envoy takes Forebay's own questions to models; the address of its egress listener."""
    max_message: SomeSize = Size("64MiB")
    """A greater message of Envoy's is refused: the bound for a body."""
    most_exchanges: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 750
    """Requests that are open here at once; what is over is answered 503 before it is read."""
    drain: Duration = Duration("30s")
    """How long running exchanges may take to end at a stop."""


class MemorySettings(_Block, frozen=True):
    """Answers are kept in this process."""

    size: SomeSize = Size("64MiB")
    longest: SomeTime | None = None
    """How long a copy of what is in Redis serves; `COPY_S` if it is not set."""

    @property
    def copy_time(self) -> float:
        """The same, in seconds."""
        return COPY_S if self.longest is None else self.longest


class RedisSettings(_Block, frozen=True):
    """Answers are kept in Redis."""

    url: Annotated[str, _checked(parse_redis_url)] = ""
    """Without a password: one server, Sentinels or servers of a cluster."""
    timeout: SomeTime = Duration("5ms")
    """What takes longer counts as a miss."""
    connections: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """To each server, at most: a large value on one does not hold up what goes by another."""
    read_replicas: bool = False
    """Ask replicas for answers; all else is the masters' in any case."""
    ca_file: str = ""
    """Who vouches for servers, in PEM; empty: whom the system trusts."""
    sentinel_username: str = ""
    """Who Forebay is to Sentinels."""
    password: Annotated[Secret, msgspec.Meta(extra={"variable": "FOREBAY_REDIS_PASSWORD"})] = (
        Secret()
    )
    sentinel_password: Annotated[
        Secret, msgspec.Meta(extra={"variable": "FOREBAY_REDIS_SENTINEL_PASSWORD"})
    ] = Secret()

    def __post_init__(self) -> None:
        if not self.url:
            return
        url = parse_redis_url(self.url)
        if self.read_replicas and url.kind is Kind.ONE:
            raise ConfigError("read_replicas", "expected redis+sentinel:// or redis+cluster://")
        if self.ca_file and not url.tls:
            raise ConfigError("ca_file", "expected a URL with TLS such as rediss://")
        if self.sentinel_username and url.kind is not Kind.SENTINEL:
            raise ConfigError("sentinel_username", "expected a URL such as redis+sentinel://")


class StoreSettings(_Block, frozen=True):
    """Where answers are kept: one of the two, or in memory before Redis."""

    memory: MemorySettings | None = None
    redis: RedisSettings | None = None

    def __post_init__(self) -> None:
        if self.memory and self.memory.longest is not None and self.redis is None:
            raise ConfigError("memory.longest", "expected `redis` beside `memory`, got memory only")


class TenantSettings(_Block, frozen=True):
    """Whose request it is."""

    header: Annotated[str, _checked(_check_header)] = ""
    """A header only the mesh can set; empty: the credential itself tells tenants apart."""


class TracingSettings(_Block, frozen=True):
    """Where spans go."""

    endpoint: Annotated[str, _checked(_check_otlp_url)] = ""
    """URL of an OTLP gRPC receiver; empty: no spans."""


class PickerSettings(_Block, frozen=True):
    """What is done for gateways that have replicas picked here, and name no profile."""

    profile: str = ""
    """The profile of all their requests; empty: they pass as they came."""


Weight: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=100)]


class FullSettings(_Block, frozen=True):
    """How much the replicas of a pool may have to do before clients are told to ask again (429)."""

    queue: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Requests that wait at a replica, on the average."""
    kv: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.8
    """The part of a replica's memory for keys and values that is in use, on the average."""
    retry_after: SomeTime = Duration("1s")
    """When a client that is told so should ask again."""


class KvEventSettings(_Block, frozen=True):
    """Where the replicas of a pool say what their prefix caches hold, as vLLM does over ZeroMQ."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 5_557
    """That of vLLM's `endpoint`, at each replica's own address."""
    replay_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    """That of its `replay_endpoint`; None: what was missed cannot be asked for."""
    topic: str = ""
    """Events under others are not heard; empty: all are."""
    relative: bool = False
    """The ports are added to the replica's own, for several on one machine."""

    def __post_init__(self) -> None:
        _need("zmq", "pyzmq")


def _need(module: str, package: str) -> None:
    if find_spec(module) is None:
        message = f"expected {package} to be installed: pip install 'forebay[kv-events]'"
        raise ConfigError("", message)


class PickSettings(_Block, frozen=True):
    """How a replica is picked among those of a pool."""

    strategy: Literal["expected", "blend", "affinity", "least_load", "random", "round_robin"] = (
        "expected"
    )
    """One of `filters.strategies.STRATEGIES`."""
    prefix: Weight = 3.0
    """The weights of `blend`."""
    queue: Weight = 3.0
    kv: Weight = 2.0
    explore: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.02
    """The share of picks that try another replica; where prefixes do not count, none does."""
    full: FullSettings | None = None
    """None: whoever asks waits for the replicas, however busy they are."""
    kv_events: KvEventSettings | None = None
    """None: what replicas hold is reckoned from what was sent to them."""
    tokenizer: str = ""
    """The folder with the model's tokenizer.json and chat template: what replicas say is
    understood block by block; empty: by its figures only."""

    def __post_init__(self) -> None:
        if not self.prefix + self.queue + self.kv:
            raise ConfigError("prefix", "expected prefix, queue or kv above 0, got none")
        if self.tokenizer and self.kv_events is None:
            raise ConfigError("tokenizer", "expected `kv_events` beside `tokenizer`, got none")
        if self.tokenizer:
            _need("tokenizers", "tokenizers")
            _need("jinja2", "jinja2")


class StageSettings(_Block, frozen=True):
    """How far another pool is on its way into this one's place."""

    step: Step
    """`shadow`: it is asked too, unheard; `canary`: it serves a share; `full`: it serves all."""
    pool: PoolName
    """The one that comes in."""
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Of the requests that are asked twice, or of the tenants that it serves."""
    deadline: SomeTime = Duration("60s")
    """How long a shadow may take to answer."""
    at_once: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    """Shadows under way; what comes meanwhile is not asked twice."""


class LimitSettings(_Block, frozen=True):
    """How much a pool takes, of all gateways that share a Redis; what is over goes elsewhere."""

    concurrent: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 32
    """Exchanges at once."""
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=100_000)] | None = None
    """Exchanges in a second, in the long run; None: as many as come."""
    burst: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    """Exchanges that may come at the same moment after a pause; None: those of one second."""

    def __post_init__(self) -> None:
        if self.burst is not None and self.rate is None:
            raise ConfigError("burst", "expected `rate` beside `burst`, got burst only")


class QueueSettings(_Block, frozen=True):
    """How work waits for a pool in two queues, by the filter `admit`: each gateway by itself."""

    slots: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    """Exchanges at once, as long as replicas do not say how much they have to do."""
    replica_slots: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 256
    """At most at each replica, whatever it says."""
    length: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    """Exchanges that may wait in each queue."""
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """The part of these that one tenant may have."""
    bulk_from: Annotated[int, msgspec.Meta(ge=1)] = 8_192
    """Prompts of so many tokens and more are bulk work."""
    fast: Annotated[int, msgspec.Meta(ge=1, le=100)] = 90
    """The weights of the two queues."""
    bulk: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    slice: SomeTime = Duration("500ms")
    """Between two pieces of bulk work that begin while fast work waits."""


class PriceSettings(_Block, frozen=True):
    """What a million tokens cost, in a currency that all pools share."""

    input: Annotated[float, msgspec.Meta(ge=0)]
    output: Annotated[float, msgspec.Meta(ge=0)]


class LengthSettings(_Block, frozen=True):
    """Prompts of how many tokens."""

    above: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of more than so many."""
    up_to: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Of no more than so many; None: of any number."""

    def __post_init__(self) -> None:
        if self.up_to is None and not self.above:
            raise ConfigError("", "expected `above`, `up_to` or both, got neither")
        if self.up_to is not None and self.up_to <= self.above:
            raise ConfigError(
                "up_to", f"expected more than `above`, {self.above}, got {self.up_to}"
            )


Intent: TypeAlias = Literal[
    "calculate", "classify", "code", "count", "extract", "greeting", "list", "open", "reasoning",
    "rewrite", "summarise", "translate", "write", "yes_no",
]  # fmt: skip
"""What the bundled model tells apart."""
Domain: TypeAlias = Literal["code", "finance", "general", "legal", "medical"]


class ServesSettings(_Block, frozen=True):
    """Which requests come to a pool by the filter `route`: those that all of it is true of."""

    intents: tuple[Intent, ...] = ()
    """What they ask for, as `classify` tells; none: anything."""
    domains: tuple[Domain, ...] = ()
    """Of which trade they are, likewise."""
    tokens: LengthSettings | None = None

    def __post_init__(self) -> None:
        if not self.intents and not self.domains and self.tokens is None:
            raise ConfigError("", "expected intents, domains or tokens, got none")


class BreakerSettings(_Block, frozen=True):
    """When a pool is left alone for its errors; its fallback serves meanwhile."""

    errors: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05
    """More than this share of its answers; 1: it never is."""
    window: SomeTime = Duration("60s")
    """Of the answers of so long."""
    least: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 20
    """Of fewer answers nothing is concluded."""
    probes: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """After a rest one exchange goes there, then the next; so many good in a row end it."""
    rest: SomeTime = Duration("10s")
    """Longer than a client waits for a first byte: what began before is over by then."""


class WarmUpSettings(_Block, frozen=True):
    """What a replica is asked when it has begun, before it gets requests."""

    prompts: tuple[str, ...] = ()
    """What a user says."""
    file: str = ""
    """A chat completion of OpenAI's API in each line; read when the settings are."""
    model: str = ""
    """Empty: the first that the replica names."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    """Prompts at once."""
    deadline: SomeTime = Duration("120s")
    """After so long the replica gets requests, warm or not."""
    slow_start: Duration = Duration("30s")
    """How long its share of requests grows then, from a tenth of it."""

    def __post_init__(self) -> None:
        if not self.prompts and not self.file:
            raise ConfigError("", "expected `prompts` or `file`, got neither")
        if len(self.prompts) > MOST_PROMPTS:
            raise ConfigError(
                "prompts", f"expected {MOST_PROMPTS} at most, got {len(self.prompts)}"
            )


class PoolSettings(_Block, frozen=True):
    """A group of replicas."""

    cluster: Annotated[str, msgspec.Meta(min_length=1)]
    """Envoy's name for it."""
    quality: Quality = Quality.FULL
    """What its answers are worth."""
    replicas: PickSettings | None = None
    """How the filter `pick` chooses among them; None: the proxy chooses."""
    warm_up: WarmUpSettings | None = None
    """What a replica that has begun is asked first; None: nothing."""
    limits: LimitSettings | None = None
    """How much it takes; None: all that comes."""
    queue: QueueSettings | None = None
    """How what it cannot take yet waits; None: it does not."""
    stage: StageSettings | None = None
    """A pool on its way into this one's place."""
    context: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many tokens a prompt and its answer may have together; None: not known."""
    price: PriceSettings | None = None
    """Of pools that fit equally, the cheapest is chosen."""
    serves: ServesSettings | None = None
    """What it is chosen for by `route`; None: it serves whom profiles and filters send by name."""
    fallback: PoolName | None = None
    """The pool that serves in its stead, where it is broken, full or too small."""
    breaker: BreakerSettings | None = None
    """When it counts as broken; None: by the defaults. Without a fallback, it is asked anyway."""


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """What a route may ask for."""

    name: str
    pool: str
    """The pool that serves it unless a filter chooses another."""
    filters: tuple[FilterSettings, ...]
    """In the order in which a request passes them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set: one immutable snapshot."""

    server: ServerSettings
    store: StoreSettings
    tenant: TenantSettings
    tracing: TracingSettings
    picker: PickerSettings
    pools: Mapping[str, PoolSettings]
    profiles: Mapping[str, ProfileSettings]
    members: Mapping[str, PoolMembers]
    """Where the replicas are found, by the names of pools that have `replicas`."""

    @property
    def clusters(self) -> set[str]:
        """Every cluster of Envoy's that serves models: those of pools, and of filters' own."""
        own = {
            name
            for profile in self.profiles.values()
            for _, config in profile.filters
            for _, name in clusters_in(config)
        }
        return own | {pool.cluster for pool in self.pools.values()}


def pools_of(profile: ProfileSettings, pools: Mapping[str, PoolSettings]) -> set[str]:
    """Return the names of all pools that may serve an exchange of a profile."""
    named = {profile.pool}
    for _, config in profile.filters:
        named.update(pools_in(config))
    if not profile.filters:
        return named
    routes = any(kind.name == RouteFilter.name for kind, _ in profile.filters)
    if routes:
        named.update(name for name, pool in pools.items() if pool.serves is not None)
    waiting = [*named]
    while waiting:
        pool = pools[waiting.pop()]
        fallback = pool.fallback if routes else None
        for after in (fallback, pool.stage.pool if pool.stage else None):
            if after is not None and after not in named:
                named.add(after)
                waiting.append(after)
    return named


def load(
    path: Path | str,
    environ: Mapping[str, str],
    built_in: Mapping[str, type[AnyFilter]] = BUILT_IN,
) -> Settings:
    """Read the settings of a file; raise `BadConfig` with everything that is wrong with them.

    `environ` may hold FOREBAY_REDIS_URL (keeps answers there), FOREBAY_REDIS_PASSWORD,
    FOREBAY_REDIS_SENTINEL_PASSWORD and OTEL_EXPORTER_OTLP_ENDPOINT; an empty value counts as none.
    """
    settings, problems = read_settings(read_yaml(path), environ, built_in)
    if settings is None:
        raise BadConfig(tuple(problems))
    return settings


def read_settings(
    file: YamlFile,
    environ: Mapping[str, str],
    built_in: Mapping[str, type[AnyFilter]] = BUILT_IN,
) -> tuple[Settings | None, list[Problem]]:
    """Return the settings in a file and what is wrong with them; None if anything is."""
    reader = SettingsReader(file)
    settings: Settings | Invalid = INVALID
    place = block_place(file)
    if place is None:
        reader.wrong((), "expected a `forebay` block under node.metadata, got none")
    else:
        for repeated, _ in file.repeated:
            if repeated[: len(place)] == place:
                reader.wrong(repeated, "expected each key once, got it twice")
        settings = _BlockReader(reader, place, environ, built_in).read()
    problems = sorted(reader.problems, key=lambda problem: problem.line or 0)
    if problems or isinstance(settings, Invalid):
        return None, problems
    return settings, []


def block_place(file: YamlFile) -> Place | None:
    """Return where a file has its `forebay` block, or None if it has none."""
    if "forebay" in file.value:
        return ("forebay",)
    value: Any = file.value
    place: Place = ("node", "metadata", "forebay")
    for step in place:
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return place


def clusters_of(file: YamlFile) -> dict[str, Mapping[str, Any]]:
    """Return Envoy's clusters in a file, by name."""
    resources = file.value.get("static_resources")
    clusters = resources.get("clusters") if isinstance(resources, dict) else None
    return {
        cluster["name"]: cluster
        for cluster in (clusters if isinstance(clusters, list) else ())
        if isinstance(cluster, dict) and isinstance(cluster.get("name"), str)
    }


# --- The block -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Draft:
    """A profile as it stands in the file."""

    base: str | None
    pool: str | None
    filters: Mapping[str, tuple[Place, Members | None]]
    """Filter name to where it is named and its settings, None for `false`."""


@dataclass(frozen=True, slots=True)
class _BlockReader:
    reader: SettingsReader
    place: Place
    environ: Mapping[str, str]
    built_in: Mapping[str, type[AnyFilter]]

    def read(self) -> Settings | Invalid:
        """Return the whole block's settings."""
        block: Any = self.reader.file.value
        for step in self.place:
            block = block[step]
        if not isinstance(block, dict):
            return self.reader.wrong(self.place, f"expected a mapping, got {found(block)}")
        keys = ("server", "store", "tenant", "tracing", "picker", "pools", "profiles")
        for key in block:
            if key not in keys:
                self.reader.wrong((*self.place, key), unknown("key", key, keys))
        server = self._part(ServerSettings, block, "server")
        store = self._store(block)
        tenant = self._part(TenantSettings, block, "tenant")
        tracing = self._tracing(block)
        picker = self._part(PickerSettings, block, "picker")
        pools = self._pools(block.get("pools", {DEFAULT_POOL: {"cluster": DEFAULT_POOL}}))
        self.reader.pools = None if isinstance(pools, Invalid) else pools
        profiles = self._profiles(block.get("profiles"))
        if not isinstance(picker, Invalid) and not isinstance(profiles, Invalid):
            self._check_picker(picker, profiles, pools)
        if (
            isinstance(server, Invalid)
            or isinstance(store, Invalid)
            or isinstance(tenant, Invalid)
            or isinstance(tracing, Invalid)
            or isinstance(picker, Invalid)
            or isinstance(pools, Invalid)
            or isinstance(profiles, Invalid)
        ):
            return INVALID
        return Settings(
            server,
            store,
            tenant,
            tracing,
            picker,
            MappingProxyType(pools),
            MappingProxyType(profiles),
            MappingProxyType(self._members(pools)),
        )

    def _part(self, kind: type[msgspec.Struct], block: dict[str, Any], key: str) -> Any:
        return self.reader.read(kind, block.get(key, {}), (*self.place, key))

    def _tracing(self, block: dict[str, Any]) -> TracingSettings | Invalid:
        tracing: TracingSettings | Invalid = self._part(TracingSettings, block, "tracing")
        endpoint = self.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
        if not endpoint or isinstance(tracing, Invalid):
            return tracing
        try:
            _check_otlp_url(endpoint)
        except ValueError as error:
            return self._wrong_variable("OTEL_EXPORTER_OTLP_ENDPOINT", str(error))
        return TracingSettings(endpoint=endpoint)

    def _store(self, block: dict[str, Any]) -> StoreSettings | Invalid:
        store: StoreSettings | Invalid = self._part(StoreSettings, block, "store")
        if isinstance(store, Invalid):
            return store
        password = self.environ.get("FOREBAY_REDIS_PASSWORD", "")
        redis = store.redis or RedisSettings()
        if url := self.environ.get("FOREBAY_REDIS_URL", ""):
            bare, in_url = _take_password(url)
            try:
                parse_redis_url(bare)
                redis = msgspec.structs.replace(redis, url=bare)
            except (ValueError, ConfigError) as error:
                return self._wrong_variable("FOREBAY_REDIS_URL", str(error))
            password = password or in_url
            store = StoreSettings(memory=store.memory if store.redis else None, redis=redis)
        if store.redis is None:
            return StoreSettings(memory=store.memory or MemorySettings())
        if not redis.url:
            place = (*self.place, "store", "redis", "url")
            return self.reader.wrong(place, f"expected {REDIS_URL}, got nothing")
        redis = msgspec.structs.replace(
            redis,
            password=Secret(password),
            sentinel_password=Secret(self.environ.get("FOREBAY_REDIS_SENTINEL_PASSWORD", "")),
        )
        return StoreSettings(memory=store.memory, redis=redis)

    def _wrong_variable(self, name: str, message: str) -> Invalid:
        self.reader.note(Problem("environment", None, name, message))
        return INVALID

    def _pools(self, value: Any) -> dict[str, PoolSettings] | Invalid:
        place = (*self.place, "pools")
        pools = self.reader.read(dict[str, PoolSettings], value, place)
        if not isinstance(value, dict):
            return INVALID
        self._check_names("pool", value, place)
        if isinstance(pools, Invalid):
            # Their names are still good to check others by; a null setting stands in.
            return {name: PoolSettings(cluster=name) for name in value}
        self._check_stages(pools, place)
        self._check_fallbacks(pools, place)
        self._check_warm_ups(pools, place)
        self._check_queues(pools, place)
        if self.place == ("forebay",):
            for name, pool in pools.items():
                if pool.replicas is not None:
                    message = "expected Envoy's clusters in this file, which name them, got none"
                    self.reader.wrong((*place, name, "replicas"), message)
        return dict(pools)

    def _check_stages(self, pools: Mapping[str, PoolSettings], place: Place) -> None:
        for name, pool in pools.items():
            if pool.stage is None:
                continue
            where = (*place, name, "stage", "pool")
            comes = pool.stage.pool
            others = [other for other in pools if other != name]
            if comes not in others:
                self.reader.wrong(where, not_among("another pool", comes, others))
            elif pools[comes].stage is not None:
                message = f"expected a pool without a stage of its own, got {found(comes)}"
                self.reader.wrong(where, message)

    def _check_warm_ups(self, pools: Mapping[str, PoolSettings], place: Place) -> None:
        for name, pool in pools.items():
            where = (*place, name, "warm_up")
            if pool.warm_up is None:
                continue
            if pool.replicas is None:
                message = "expected `replicas` beside it, or Envoy picks, got none"
                self.reader.wrong(where, message)
            if pool.warm_up.file:
                try:
                    read_prompts(pool.warm_up.file)
                except ConfigError as error:
                    self.reader.wrong((*where, "file"), error.message)

    def _check_queues(self, pools: Mapping[str, PoolSettings], place: Place) -> None:
        for name, pool in pools.items():
            if pool.queue is not None and pool.limits is not None:
                message = "expected `limits` (what is over goes elsewhere) or `queue`, got both"
                self.reader.wrong((*place, name, "queue"), message)

    def _check_fallbacks(self, pools: Mapping[str, PoolSettings], place: Place) -> None:
        for name, pool in pools.items():
            where = (*place, name, "fallback")
            others = [other for other in pools if other != name]
            if pool.fallback is None and pool.breaker is not None:
                message = "expected `fallback` beside it, or nobody else could serve, got none"
                self.reader.wrong((*place, name, "breaker"), message)
            if pool.fallback is not None and pool.fallback not in others:
                self.reader.wrong(where, not_among("another pool", pool.fallback, others))
                continue
            line = [name]
            while (after := pools[line[-1]].fallback or "") in pools and after not in line:
                line.append(after)
            if after == name and len(line) > 1 and name == min(line, key=list(pools).index):
                circle = " -> ".join([*line, name])
                self.reader.wrong(where, f"expected fallbacks that end, got {circle}")

    def _members(self, pools: Mapping[str, PoolSettings]) -> dict[str, PoolMembers]:
        """Return who belongs to pools: whom Envoy's clusters name."""
        clusters = clusters_of(self.reader.file)
        return {
            name: members_of(clusters[pool.cluster]) if pool.cluster in clusters else Fixed(())
            for name, pool in pools.items()
            if pool.replicas is not None
        }

    def _check_picker(
        self,
        picker: PickerSettings,
        profiles: Mapping[str, ProfileSettings],
        pools: Mapping[str, PoolSettings] | Invalid,
    ) -> None:
        """Look whether replicas can be picked: each request would get an error otherwise."""
        place = (*self.place, "picker", "profile")
        profile = profiles.get(picker.profile)
        if not picker.profile:
            return
        if profile is None:
            self.reader.wrong(place, not_among("a profile", picker.profile, profiles))
        elif not any(kind.name == "pick" for kind, _ in profile.filters):
            message = f"expected a profile with the filter `pick`, got {found(picker.profile)}"
            self.reader.wrong(place, message)
        elif not isinstance(pools, Invalid) and pools[profile.pool].replicas is None:
            self.reader.wrong(place, f"expected `replicas` of its pool, {profile.pool}, got none")

    def _check_names(self, what: str, names: Mapping[str, Any], place: Place) -> None:
        for name in names:
            if not _NAME.fullmatch(name):
                form = "letters, digits, dots, dashes and underscores, 63 at most"
                self.reader.wrong(
                    (*place, name), f"expected a {what}'s name of {form}, got {found(name)}"
                )

    # --- Profiles --------------------------------------------------------------------------------

    def _profiles(self, value: Any) -> dict[str, ProfileSettings] | Invalid:
        place = (*self.place, "profiles")
        if not isinstance(value, dict) or not value:
            message = (
                f"expected at least one profile such as `raw: {{}}`, got {found(value or None)}"
            )
            return self.reader.wrong(place, message)
        self._check_names("profile", value, place)
        drafts = {name: self._draft(body, (*place, name)) for name, body in value.items()}
        profiles: dict[str, ProfileSettings] = {}
        for name in drafts:
            line = self._line(name, drafts)
            if line:
                profiles[name] = self._build(name, line, (*place, name))
        return profiles

    def _draft(self, body: Any, place: Place) -> _Draft | None:
        if not isinstance(body, dict):
            self.reader.wrong(place, f"expected a mapping of filters, got {found(body)}")
            return None
        named: dict[str, str | None] = {"base": None, "pool": None}
        filters: dict[str, tuple[Place, Members | None]] = {}
        for key, value in body.items():
            where = (*place, key)
            if key in named:
                text = self.reader.read(PoolName if key == "pool" else str, value, where)
                named[key] = None if isinstance(text, Invalid) else text
            elif key not in self.built_in:
                self.reader.wrong(where, unknown("filter", key, [*self.built_in, *named]))
            elif isinstance(value, dict):
                members = {name: (below, (*where, name)) for name, below in value.items()}
                filters[key] = (where, members)
            elif value is False:
                filters[key] = (where, None)
            else:
                message = f"expected a mapping such as {{}}, or false, got {found(value)}"
                self.reader.wrong(where, message)
        return _Draft(named["base"], named["pool"], filters)

    def _line(self, name: str, drafts: Mapping[str, _Draft | None]) -> list[_Draft] | None:
        """Return a profile and its bases, the most basic first; None if one cannot be had."""
        place = (*self.place, "profiles", name, "base")
        names = [name]
        line: list[_Draft] = []
        while True:
            draft = drafts[names[-1]]
            if draft is None:
                return None
            line.insert(0, draft)
            if draft.base is None:
                return line
            if draft.base not in drafts:
                if len(names) == 1:  # its heirs need not repeat it
                    others = [other for other in drafts if other != name]
                    self.reader.wrong(place, not_among("a profile", draft.base, others))
                return None
            if draft.base in names:
                if draft.base == name and name == min(names, key=list(drafts).index):
                    circle = " -> ".join([*names, name])
                    self.reader.wrong(place, f"expected bases that end, got {circle}")
                return None
            if len(names) > MOST_BASES:
                self.reader.wrong(place, f"expected at most {MOST_BASES} bases in a row, got more")
                return None
            names.append(draft.base)

    def _build(self, name: str, line: list[_Draft], place: Place) -> ProfileSettings:
        merged: dict[str, tuple[Place, Members]] = {}
        for draft in line:
            for key, (where, members) in draft.filters.items():
                if members is None:
                    merged.pop(key, None)
                else:
                    inherited = merged[key][1] if key in merged else {}
                    merged[key] = (where, {**inherited, **members})
        pool = next((draft.pool for draft in reversed(line) if draft.pool), None)
        if pool is None:
            pool = DEFAULT_POOL
            if self.reader.pools is not None and pool not in self.reader.pools:
                message = not_among("a pool", pool, self.reader.pools, " by default")
                self.reader.wrong((*place, "pool"), message)
        filters: list[FilterSettings] = []
        for key, kind in self.built_in.items():
            if key in merged:
                where, members = merged[key]
                settings = self.reader.struct(kind.config_type, members, where)
                if not isinstance(settings, Invalid):
                    filters.append((kind, settings))
        return ProfileSettings(name, pool, tuple(filters))


def _take_password(url: str) -> tuple[str, str]:
    """Return a URL without its password, and that."""
    scheme, login, location, query = split_redis_url(url)
    if not login:
        return url, ""
    user, _, password = login.partition(":")
    at, mark = "@" if user else "", "?" if query else ""
    return f"{scheme}://{user}{at}{location}{mark}{query}", unquote(password)


# --- Following the file --------------------------------------------------------------------------


class Log(Protocol):
    """Where the watcher says what it did; a structlog logger is one."""

    def info(self, event: str, **fields: object) -> object:
        """Say that something went well."""

    def warning(self, event: str, **fields: object) -> object:
        """Say that somebody must do something."""


class Watcher:
    """Follows a settings file, so that a change needs no restart.

    The file is looked at rather than listened to: Kubernetes swaps a ConfigMap by a symbolic link
    two levels up, which no watch on the file itself would see.
    """

    def __init__(
        self,
        path: Path | str,
        settings: Settings,
        *,
        environ: Mapping[str, str],
        apply: Callable[[Settings], None],
        count: Callable[[str], None],
        log: Log,
        sleep: Callable[[float], Awaitable[None]],
        built_in: Mapping[str, type[AnyFilter]] = BUILT_IN,
    ) -> None:
        """Watch `path`, from which `settings` were read.

        `apply` puts new settings in place and may refuse them by a `ConfigError`; `count` is told
        "applied" or "refused" for every version that differs.
        """
        self.path: Final = Path(path)
        self.settings = settings
        """What is in place."""
        self._environ: Final = environ
        self._apply: Final = apply
        self._count: Final = count
        self._log: Final = log
        self._sleep: Final = sleep
        self._built_in: Final = built_in
        # The file may have changed since it was read: the first look reads it in any case.
        self._seen: tuple[int, int, int, int] | None = None

    async def run(self) -> NoReturn:
        """Look every second, for ever."""
        while True:
            await self._sleep(POLL_S)
            self.look()

    def look(self) -> bool:
        """Read the file if it is another than it was; return whether settings were applied."""
        version = _version(self.path)
        if version == self._seen:
            return False
        self._seen = version
        try:
            read = load(self.path, self._environ, self._built_in)
            # What is only read at the start stays as it runs, so that no part of the process
            # believes in another address or store than the rest.
            running = {name: getattr(self.settings, name) for name in _AT_RESTART}
            settings = replace(read, **running)
            waiting = [name for name in _AT_RESTART if getattr(read, name) != running[name]]
            if waiting:
                self._log.warning("settings that need a restart", blocks=waiting)
            if settings == self.settings:
                return False
            self._apply(settings)
        except Exception as error:  # noqa: BLE001 - whatever breaks, the running settings stay
            self._count("refused")
            said = str(error) if isinstance(error, ConfigError) else type(error).__name__
            self._log.warning("settings refused, the running ones stay", problems=said)
            return False
        self.settings = settings
        self._count("applied")
        self._log.info("settings applied", file=str(self.path))
        return True


def _version(path: Path) -> tuple[int, int, int, int] | None:
    """Return what tells two versions of a file apart; None as long as it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
