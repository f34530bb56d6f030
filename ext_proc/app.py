"""Put a server together from its settings, run it, and let it end without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, assert_never

import msgspec

from ext_proc.adapters.batches import EgressBatches
from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.error_breaker import Limits as BreakerLimits
from ext_proc.adapters.flights import LocalFlights
from ext_proc.adapters.kv_settings import EventSettings
from ext_proc.adapters.layered_store import LayeredStore
from ext_proc.adapters.limits import LocalLimits, PoolLimits
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.models import LocalModels
from ext_proc.adapters.pool_breakers import PoolBreakers
from ext_proc.adapters.queues import PoolQueues, QueueLimits
from ext_proc.adapters.replica_warm_up import WarmUp
from ext_proc.adapters.replicas import Bound, FollowedReplicas, ReplicaSettings
from ext_proc.adapters.stages import PoolStages, Shape, Stage
from ext_proc.adapters.tokens import TiktokenTokens, default_folder
from ext_proc.adapters.upstream import EgressUpstream
from ext_proc.adapters.wheel import TimerWheel
from ext_proc.adapters.workers import WorkerPool
from ext_proc.admin import Admin
from ext_proc.cache_desk import CacheDesk
from ext_proc.config import (
    BreakerSettings,
    FilterSettings,
    FullSettings,
    KvEventSettings,
    PoolSettings,
    ProfileSettings,
    RedisSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    Transport,
    WarmUpSettings,
    Watcher,
    load,
    parse_host_port,
    parse_listen,
    pools_of,
)
from ext_proc.handler import ExtProc
from ext_proc.session import Gateway, Observer, Pool, Profile, tenant_of
from ext_proc.telemetry import Telemetry
from ext_proc.telemetry.batches import BatchMetrics
from ext_proc.telemetry.breakers import PoolBreakerFigures
from ext_proc.telemetry.limits import LimitMetrics
from ext_proc.telemetry.logs import parse_level
from ext_proc.telemetry.queues import QueueMetrics
from ext_proc.telemetry.replica_events import ReplicaEvents
from ext_proc.telemetry.replicas import ReplicaFigures
from ext_proc.telemetry.trials import TrialMetrics
from ext_proc.transport import Handler, Server
from ext_proc.transport.identity import Identity
from ext_proc.warm_up_file import prompt_of, read_prompts
from filters.admit import AdmitFilter
from filters.api import Clock, Ports, Quality, RequestHead, Step, Store
from filters.cache import CacheFilter
from filters.canary import CanaryConfig, CanaryFilter
from filters.cleaning import clean_passages
from filters.errors import ConfigError, PortError
from filters.fair_queue import Rules
from filters.fingerprint import fingerprint
from filters.gather import GatherFilter
from filters.pick import PickFilter
from filters.pipeline import Pipeline
from filters.pools import Offer, Pools
from filters.route import RouteFilter
from filters.stage import StageConfig, StageFilter

if TYPE_CHECKING:
    from ext_proc.adapters.redis_client import RedisClient

CONNECT_S: Final = 1.0  # for Redis at the start; without it the first requests are a `BYPASS`
WARM_UP_S: Final = 30.0  # on a machine that starts everything at once
_TO_A_POOL: Final = (GatherFilter, AdmitFilter, PickFilter)  # they go by it
YOUNG_OBJECTS: Final = 10_000
"""More of them than of those that went are looked through for garbage: hundreds of exchanges hold
more than Python's 700 all the time, and nearly nothing here is a cycle."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def serve(config: Path | str) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the exit code.

    Raise `ConfigError` when the settings, or an address in them, cannot be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    async with running(config, os.environ, sys.stdout.buffer):
        # The 60,000 objects of imports and settings stay: looking through all of them for garbage
        # takes 25 ms, in which nobody is served.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
        await stop.wait()
    return 0


@asynccontextmanager
async def running(
    config: Path | str, environ: Mapping[str, str], log: BinaryIO
) -> AsyncIterator[ExtProc]:
    """Run a server as long as the context lasts; leaving it drains.

    Raise `ConfigError` when the settings, or an address in them, cannot be used.
    """
    settings = load(config, environ)
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    telemetry = Telemetry.open(
        clock,
        log,
        version=_version(),
        level=parse_level(environ.get("FOREBAY_LOG_LEVEL", "")),
        otlp_endpoint=settings.tracing.endpoint,
        later=loop.call_later,
    )
    telemetry.take_library_logs()
    redis = open_redis(settings.store.redis, clock, telemetry)
    store = open_store(settings.store, redis, clock, telemetry)
    flights = open_flights(redis, telemetry)
    upstream = EgressUpstream(parse_listen(settings.server.egress), clock, telemetry)
    telemetry.read("upstream_calls", "Questions of Forebay's own that wait", lambda: upstream.calls)
    tokens = TiktokenTokens(default_folder(environ), telemetry.log)
    workers = open_workers(telemetry)
    models = LocalModels(clock)
    replicas = FollowedReplicas(clock, telemetry.log)
    telemetry.metrics.registry.register(ReplicaFigures(replicas.figures))
    telemetry.metrics.registry.register(ReplicaEvents(replicas.figures))
    limits = open_limits(redis, clock, telemetry)
    queues = open_queues(replicas, clock, telemetry)
    stages = open_stages(settings, clock, workers, telemetry)
    batches = open_batches(settings, clock, telemetry)
    breakers = PoolBreakers(clock, telemetry.log)
    telemetry.metrics.registry.register(PoolBreakerFigures(breakers.figures))
    wheel = TimerWheel(clock)
    ports = Ports(
        store=store,
        flights=flights,
        clock=clock,
        upstream=upstream,
        tokens=tokens,
        workers=workers,
        models=models,
        replicas=replicas,
        limits=limits,
        queues=queues,
        breakers=breakers,
        batches=batches,
        wheel=wheel,
    )
    telemetry.read("pace_streams", "Streams of which something waits", lambda: wheel.pending)
    telemetry.read(
        "most_exchanges",
        "Exchanges that may be open at once",
        lambda: settings.server.most_exchanges,
    )
    telemetry.read("loop_tasks", "Tasks of the event loop", lambda: len(asyncio.all_tasks(loop)))

    def open_gateway(settings: Settings) -> Gateway:
        staged = stages.follow(stages_of(settings), shapes_of(settings))
        return gateway_of(settings, replace(ports, stages=staged), telemetry)

    handler = ExtProc(open_gateway(settings), telemetry)
    server = open_transport(settings.server, handler, telemetry)
    not_ready = "starting"
    host, port = parse_host_port(settings.server.admin)
    desk = CacheDesk(telemetry.registry, memory_of(store), clock, telemetry.write)
    admin = Admin(host, port, telemetry.registry, lambda: not_ready, telemetry.write, desk)
    show_caches(settings, telemetry)

    def apply(changed: Settings) -> None:
        handler.gateway = open_gateway(changed)
        batches.follow(clusters_of(changed))
        replicas.follow(replicas_of(changed))
        limits.follow(limits_of(changed))
        queues.follow(queues_of(changed))
        breakers.follow(breakers_of(changed))
        show_caches(changed, telemetry)
        if counts_tokens(changed):
            tokens.load()

    watcher = Watcher(
        config,
        settings,
        environ=environ,
        apply=apply,
        count=lambda result: telemetry.config_reloaded(good=result == "applied"),
        log=telemetry.log,
        sleep=asyncio.sleep,
    )
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(telemetry.close)
        closing.push_async_callback(store.close)
        closing.push_async_callback(flights.close)
        closing.push_async_callback(limits.close)
        closing.callback(queues.close)
        closing.push_async_callback(upstream.close)
        closing.push_async_callback(workers.close)
        closing.push_async_callback(stages.close)
        closing.push_async_callback(batches.close)
        closing.callback(models.close)
        closing.push_async_callback(replicas.close)
        batches.follow(clusters_of(settings))
        replicas.follow(replicas_of(settings))
        limits.follow(limits_of(settings))
        queues.follow(queues_of(settings))
        breakers.follow(breakers_of(settings))
        telemetry.read(
            "tokens_estimated", "Counts of tokens that were estimates", lambda: tokens.estimated
        )
        if counts_tokens(settings):
            tokens.load()
        try:
            await admin.start()
        except OSError as error:
            place = "forebay.server.admin"
            raise ConfigError(place, f"cannot listen on {host}:{port}: {error.strerror}") from None
        closing.push_async_callback(admin.stop)
        if redis is not None and not await redis.open(CONNECT_S):
            telemetry.log.warning("redis is not reached yet", waited_s=CONNECT_S)
        try:
            await server.start()
        except OSError as error:
            raise ConfigError("forebay.server.listen", str(error)) from None
        watching = asyncio.create_task(watcher.run())
        warming = asyncio.create_task(warm(workers))
        not_ready = ""
        telemetry.log.info("serving", listen=settings.server.listen, admin=settings.server.admin)
        try:
            yield handler
        finally:
            not_ready = "draining"
            telemetry.log.info("draining", bound_s=settings.server.drain)
            watching.cancel()
            warming.cancel()
            await server.drain(settings.server.drain)


def open_transport(settings: ServerSettings, handler: Handler, telemetry: Telemetry) -> Server:
    """Return the server that the settings ask for; it binds when it is started."""
    tls = settings.tls
    identity = None if tls is None else Identity(Path(tls.certificate), Path(tls.key))
    match settings.transport:
        case Transport.GRPC:
            from ext_proc.transport.grpc_aio import GrpcServer  # 0.1 s that not all need

            return GrpcServer(
                handler, settings.listen, most_message_bytes=settings.max_message, identity=identity
            )
        case Transport.NATIVE:
            from ext_proc.transport.http2 import Reason
            from ext_proc.transport.native import NativeServer

            native = NativeServer(
                handler,
                settings.listen,
                most_message_bytes=settings.max_message,
                watch=telemetry,
                identity=identity,
            )
            for reason in Reason:  # a rate misses the first count of a series not there before
                telemetry.metrics.protocol_errors[(reason,)].inc(0)
            telemetry.read("streams", "Streams of the proxy that are open", lambda: native.streams)
            telemetry.read(
                "connections", "Connections of the proxy that are open", lambda: native.connections
            )
            return native
        case _:
            assert_never(settings.transport)


class OpenStore(Store, Protocol):
    """A store that can be closed."""

    async def close(self) -> None:
        """Let go of what is held."""


def open_store(
    settings: StoreSettings, redis: RedisClient | None, clock: Clock, telemetry: Telemetry
) -> OpenStore:
    """Return the store that the settings ask for, which closes `redis` when it is closed."""
    memory = None
    if settings.memory is not None:
        memory = MemoryStore(clock, settings.memory.size)
        telemetry.read("store_bytes", "Bytes kept in memory", lambda: memory.size)
        telemetry.read("store_entries", "Answers kept in memory", lambda: len(memory))
        telemetry.read_counts(
            "store_evictions",
            "What memory did not keep, or no longer",
            "reason",
            lambda: memory.lost,
        )
    if redis is None:
        assert memory is not None  # settings have one of the two
        return memory
    from ext_proc.adapters.redis_store import RedisStore  # 0.1 s that not all need

    shared = RedisStore(redis, clock)
    if memory is None or settings.memory is None:
        return shared
    return LayeredStore(memory, shared, settings.memory.copy_time)


def memory_of(store: OpenStore) -> MemoryStore | None:
    """Return what a store keeps in this process, if anything."""
    match store:
        case MemoryStore():
            return store
        case LayeredStore(near=near):
            return near
        case _:
            return None


def open_redis(
    settings: RedisSettings | None, clock: Clock, telemetry: Telemetry
) -> RedisClient | None:
    """Return what asks Redis, if there is one; it connects when it is first asked."""
    if settings is None:
        return None
    from ext_proc.adapters.redis_client import RedisClient  # 0.1 s that not all need

    client = RedisClient(
        settings.url,
        clock,
        telemetry,
        timeout_s=settings.timeout,
        password=settings.password,
        sentinel_username=settings.sentinel_username,
        sentinel_password=settings.sentinel_password,
        ca_file=settings.ca_file,
        reads_replicas=settings.read_replicas,
        lanes=settings.connections,
    )
    telemetry.read(
        "store_breaker", "Redis is asked (0), probed (1), bypassed (2)", lambda: client.state
    )
    return client


def open_flights(redis: RedisClient | None, telemetry: Telemetry) -> LocalFlights:
    """Return what lets one exchange ask the model for several, of all replicas if they share one.

    It is closed before `redis` is.
    """
    flights = LocalFlights(telemetry)
    if redis is not None:
        from ext_proc.adapters.redis_flights import RedisFlights  # 0.1 s that not all need

        flights = RedisFlights(redis, telemetry, name=secrets.token_hex(8).encode())
    telemetry.read("flights", "Calls of the model that others may wait for", lambda: len(flights))
    telemetry.read("flights_waiting", "Exchanges that wait for them", lambda: flights.waiting)
    return flights


def open_limits(redis: RedisClient | None, clock: Clock, telemetry: Telemetry) -> LocalLimits:
    """Return what counts who is in a pool, over all replicas if they share a Redis.

    It is closed before `redis` is.
    """
    limits = LocalLimits(clock)
    if redis is not None:
        from ext_proc.adapters.redis_limits import RedisLimits  # 0.1 s that not all need

        limits = RedisLimits(redis, clock, name=secrets.token_hex(8).encode())
    telemetry.metrics.registry.register(LimitMetrics(limits.figures))
    return limits


def open_queues(replicas: FollowedReplicas, clock: Clock, telemetry: Telemetry) -> PoolQueues:
    """Return what has exchanges wait for pools, as many as their replicas can take."""
    watch = QueueMetrics()
    queues = PoolQueues(clock, watch, replicas.replicas_of, nobody=nobody())
    replicas.on_said = queues.said
    watch.figures = queues.figures
    telemetry.metrics.registry.register(watch)
    return queues


def open_workers(telemetry: Telemetry) -> WorkerPool:
    """Return the processes for heavy work; they start when they are first needed."""
    workers = WorkerPool()
    telemetry.read("workers_busy", "Processes at heavy work", lambda: workers.busy)
    telemetry.read("workers_waiting", "Heavy work in the queue", lambda: workers.waiting)
    telemetry.read("workers_late", "Heavy work not done in time", lambda: workers.late)
    telemetry.read(
        "workers_rejected", "Heavy work that found the queue full", lambda: workers.rejected
    )
    telemetry.read("workers_died", "Processes that ended before their work", lambda: workers.died)
    return workers


def open_stages(
    settings: Settings, clock: Clock, workers: WorkerPool, telemetry: Telemetry
) -> PoolStages:
    """Return what brings pools in and asks their shadows."""
    watch = TrialMetrics(lambda: stages.shares)
    egress = parse_listen(settings.server.egress)
    stages = PoolStages(egress, clock, workers, watch, nobody=nobody())
    telemetry.metrics.registry.register(watch)
    telemetry.read("trial_shadows", "Shadows that are being asked", lambda: stages.under_way)
    telemetry.read(
        "trial_held_bytes", "Requests that are held for shadows", lambda: stages.held_bytes
    )
    return stages


def nobody() -> str:
    """Return the tenant of requests without a credential."""
    return tenant_of(RequestHead("POST", "/", {}), "")


def open_batches(settings: Settings, clock: Clock, telemetry: Telemetry) -> EgressBatches:
    """Return what asks for several embeddings in one call."""
    watch = BatchMetrics()
    batches = EgressBatches(parse_listen(settings.server.egress), clock, watch)
    telemetry.metrics.registry.register(watch)
    telemetry.read("batches_open", "Batches that are being asked for", lambda: batches.calls)
    telemetry.read("batches_waiting", "Requests that wait in batches", lambda: batches.waiting)
    telemetry.read("batches_held_bytes", "Texts that wait in batches", lambda: batches.held_bytes)
    return batches


async def warm(workers: WorkerPool) -> None:
    """Start a process before it is needed: the first long prompt would wait 0.2 s for it."""
    with contextlib.suppress(PortError):
        await workers.run(clean_passages, (), (), (), deadline_s=WARM_UP_S)


def show_caches(settings: Settings, telemetry: Telemetry) -> None:
    """Show from the start what the caches of profiles will count."""
    for name, profile in settings.profiles.items():
        if any(kind.name == CacheFilter.name for kind, _ in profile.filters):
            telemetry.caches(name)


def counts_tokens(settings: Settings) -> bool:
    """Tell whether a filter of some profile counts tokens; `route` does near a pool's context."""
    kinds = {kind for profile in settings.profiles.values() for kind, _ in profile.filters}
    bounded = any(pool.context for pool in settings.pools.values())
    return any(kind.counts_tokens or (bounded and kind is RouteFilter) for kind in kinds)


def gateway_of(settings: Settings, ports: Ports, observer: Observer) -> Gateway:
    """Return what exchanges share under these settings."""
    pools = {name: Pool(name, pool.cluster, pool.quality) for name, pool in settings.pools.items()}
    ports = replace(ports, pools=offers_of(settings))
    profiles = {
        name: Profile(
            name,
            pools[profile.pool],
            Pipeline(with_stages(profile, settings), ports),
            shaped_by(profile, settings.pools),
        )
        for name, profile in settings.profiles.items()
    }
    return Gateway(
        profiles,
        pools,
        settings.tenant.header,
        observer,
        ports.clock,
        picker=settings.picker.profile,
        most_body_bytes=settings.server.max_message,
        most_exchanges=settings.server.most_exchanges,
    )


def with_stages(profile: ProfileSettings, settings: Settings) -> tuple[FilterSettings, ...]:
    """Return a profile's filters, and who looks on as long as some pool is on its way in.

    It stands before `gather`, `admit` and `pick`: where no other filter asked for the stage, it
    chooses the pool. While some tenants are served elsewhere, another filter keeps their answers
    apart.
    """
    filters = profile.filters
    pools = (settings.pools[name] for name in pools_of(profile, settings.pools))
    steps = {pool.stage.step for pool in pools if pool.stage is not None}
    if not filters or not steps:
        return filters
    if Step.CANARY in steps:
        filters = ((CanaryFilter, CanaryConfig()), *filters)
    places = (at for at, (kind, _) in enumerate(filters) if kind in _TO_A_POOL)
    at = next(places, len(filters))
    return (*filters[:at], (StageFilter, StageConfig()), *filters[at:])


def offers_of(settings: Settings) -> Pools:
    """Return what the pools take and cost; without offers where no setting says any of it."""
    pools = settings.pools
    guarded = {
        name for name, pool in pools.items() if pool.limits is not None or pool.stage is not None
    }
    guarded.update(breakers_of(settings))
    said = any(one.context or one.price or one.serves or one.fallback for one in pools.values())
    offers = [_offer(name, pool) for name, pool in pools.items()] if said else []
    return Pools(offers, guarded=guarded)


def _offer(name: str, pool: PoolSettings) -> Offer:
    serves, price = pool.serves, pool.price
    tokens = serves.tokens if serves else None
    return Offer(
        name=name,
        best_effort=pool.quality is Quality.BEST_EFFORT,
        context=pool.context or 0,
        input_price=price.input if price else None,
        output_price=price.output if price else None,
        intents=frozenset(serves.intents if serves else ()),
        domains=frozenset(serves.domains if serves else ()),
        above=tokens.above if tokens else 0,
        up_to=(tokens.up_to or 0) if tokens else 0,
        fallback=pool.fallback or "",
    )


def clusters_of(settings: Settings) -> dict[str, str]:
    """Return Envoy's name for each pool."""
    return {name: pool.cluster for name, pool in settings.pools.items()}


def stages_of(settings: Settings) -> dict[str, Stage]:
    """Return the stages by the pool whose place is taken."""
    return {
        name: Stage(
            how.step,
            how.pool,
            settings.pools[how.pool].cluster,
            how.share,
            deadline_s=how.deadline,
            at_once=how.at_once,
        )
        for name, pool in settings.pools.items()
        if (how := pool.stage) is not None
    }


def replicas_of(settings: Settings) -> dict[str, ReplicaSettings]:
    """Return how replicas are picked, of the pools whose replicas some profile picks."""
    if not any(kind is PickFilter for one in settings.profiles.values() for kind, _ in one.filters):
        return {}  # to ask each of them twenty times a second would be for nothing
    return {
        name: ReplicaSettings(
            settings.members[name],
            strategy=how.strategy,
            prefix=how.prefix,
            queue=how.queue,
            kv=how.kv,
            explore=how.explore,
            full=bound_of(how.full),
            warm_up=warm_up_of(pool.warm_up),
            events=events_of(how.kv_events),
            tokenizer=how.tokenizer,
        )
        for name, pool in settings.pools.items()
        if (how := pool.replicas) is not None
    }


def warm_up_of(how: WarmUpSettings | None) -> WarmUp | None:
    """Return what replicas are asked when they have begun, if that is set.

    Raise `ConfigError` where the file with it is not what it was.
    """
    if how is None:
        return None
    return WarmUp(
        (*map(prompt_of, how.prompts), *(read_prompts(how.file) if how.file else ())),
        model=how.model,
        max_tokens=how.max_tokens,
        concurrency=how.concurrency,
        deadline_s=how.deadline,
        slow_start_s=how.slow_start,
    )


def breakers_of(settings: Settings) -> dict[str, BreakerLimits]:
    """Return when pools are left alone for their errors: those that others can stand in for."""
    found = {}
    for name, pool in settings.pools.items():
        how = pool.breaker or BreakerSettings()
        if pool.fallback is not None and how.errors < 1:
            found[name] = BreakerLimits(
                how.errors,
                round(how.window * 1e9),
                how.least,
                how.probes,
                round(how.rest * 1e9),
            )
    return found


def limits_of(settings: Settings) -> dict[str, PoolLimits]:
    """Return the limits of the pools that have some."""
    return {
        name: PoolLimits(
            how.concurrent,
            how.rate or 0.0,
            how.burst or max(1, math.ceil(how.rate or 0.0)),
        )
        for name, pool in settings.pools.items()
        if (how := pool.limits) is not None
    }


def queues_of(settings: Settings) -> dict[str, QueueLimits]:
    """Return how the pools have work wait that have queues."""
    return {
        name: QueueLimits(
            Rules(how.length, how.share, how.fast, how.bulk, how.slice),
            how.bulk_from,
            how.slots,
            how.replica_slots,
        )
        for name, pool in settings.pools.items()
        if (how := pool.queue) is not None
    }


def events_of(how: KvEventSettings | None) -> EventSettings | None:
    """Return where replicas say what they hold, if they do."""
    if how is None:
        return None
    return EventSettings(how.port, how.replay_port or 0, how.topic, how.relative)


def bound_of(full: FullSettings | None) -> Bound | None:
    """Return when replicas have all that they may, if that is set."""
    return None if full is None else Bound(full.queue, full.kv, full.retry_after)


def shapes_of(settings: Settings) -> Shape:
    """Return what says what answers are shaped by that come from pools on their way in."""

    def shape(profile: str, moved: frozenset[str]) -> str:
        return shaped_by(settings.profiles[profile], settings.pools, moved)

    return shape


def shaped_by(
    profile: ProfileSettings,
    pools: Mapping[str, PoolSettings],
    moved: frozenset[str] = frozenset(),
) -> str:
    """Return a hash of what decides how a profile's prompts are prepared and who answers them.

    A pool that took another one's place, also if only for a tenant who `moved`, is that: the hash
    stays when its stage is taken out, and its servers get the other's name.
    """
    whole = {name for name, pool in pools.items() if pool.stage and pool.stage.step is Step.FULL}
    pools = settled(pools, moved | whole)
    servers = {
        name: [one.cluster, one.quality, *filter(None, (one.context, one.serves, one.fallback))]
        for name, one in pools.items()
        if name in pools_of(profile, pools)
    }
    return fingerprint(profile.filters, [profile.pool, servers])


def settled(pools: Mapping[str, PoolSettings], moved: Collection[str]) -> dict[str, PoolSettings]:
    """Return pools without stages, those that `moved` with the servers that take their place."""
    return {
        name: msgspec.structs.replace(
            pools[pool.stage.pool] if pool.stage and name in moved else pool,
            serves=pool.serves,
            fallback=pool.fallback,
            stage=None,
        )
        for name, pool in pools.items()
    }


def _version() -> str:
    try:
        return metadata.version("forebay")
    except metadata.PackageNotFoundError:
        return "0+source"
