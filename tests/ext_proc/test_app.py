"""Which transport the settings choose, and what it shows of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ext_proc.adapters.error_breaker import Limits
from ext_proc.adapters.limits import PoolLimits
from ext_proc.adapters.membership import Fixed
from ext_proc.adapters.queues import QueueLimits
from ext_proc.adapters.replica_warm_up import WarmUp
from ext_proc.adapters.replicas import Figures, ReplicaSettings
from ext_proc.app import (
    breakers_of,
    limits_of,
    offers_of,
    open_transport,
    queues_of,
    replicas_of,
    with_stages,
)
from ext_proc.config import ServerSettings, Settings, Transport, read_settings
from ext_proc.telemetry.replicas import ReplicaFigures
from ext_proc.transport import Stream
from ext_proc.transport.grpc_aio import GrpcServer
from ext_proc.transport.http2 import Reason
from ext_proc.transport.http2 import frames as wire
from ext_proc.transport.native import NativeServer
from ext_proc.yaml_file import parse_yaml
from filters.fair_queue import Rules
from tests.ext_proc.test_telemetry import Books
from tests.http2_peer import GREETING
from tests.protocol.test_native import plain, read_all


async def ignore(stream: Stream, message: bytes | None) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("transport", "kind"), [(Transport.GRPC, GrpcServer), (Transport.NATIVE, NativeServer)]
)
async def test_the_setting_chooses_the_transport(transport: Transport, kind: type) -> None:
    """Both are servers of the same seam."""
    settings = ServerSettings(transport=transport)
    assert kind is type(open_transport(settings, ignore, Books().telemetry))


async def test_the_native_transport_counts_what_it_gives_up(tmp_path: Path) -> None:
    """By reason, each from zero; and how much is open."""
    books = Books()
    settings = ServerSettings(listen=f"unix:{tmp_path}/s", transport=Transport.NATIVE)
    server = open_transport(settings, ignore, books.telemetry)
    for reason in Reason:
        assert 0 == books.value("protocol_errors_total", reason=reason)
    await server.start()
    assert (0, 0) == (books.value("connections"), books.value("streams"))
    with plain(tmp_path / "s") as connected:
        connected.sendall(GREETING + wire.frame(wire.PING, 0, 0, b"short"))
        await asyncio.to_thread(read_all, connected)
    assert 1 == books.value("protocol_errors_total", reason="frame_size")
    await server.drain(0)


def settings(pools: str, profiles: str) -> Settings:
    text = f"""
node: {{metadata: {{forebay: {{pools: {pools}, profiles: {profiles}}}}}}}
static_resources:
  clusters:
  - name: gpu
    load_assignment:
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 10.0.0.1, port_value: 8000}}}}}}
"""
    read, problems = read_settings(parse_yaml("forebay.yaml", text), {})
    assert [] == problems
    assert read is not None
    return read


def test_the_replicas_of_pools_are_followed_where_a_profile_picks() -> None:
    """Otherwise nobody is asked for figures."""
    pools = (
        "{full: {cluster: gpu, replicas: {strategy: blend, prefix: 1, queue: 2, kv: 4, explore: 0}}"
        ", other: {cluster: gpu}}"
    )
    expected = {"full": ReplicaSettings(Fixed(("10.0.0.1:8000",)), "blend", 1.0, 2.0, 4.0, 0.0)}
    assert expected == replicas_of(settings(pools, "{raw: {}, picks: {pick: {}}}"))
    assert {} == replicas_of(settings(pools, "{raw: {}}"))


def test_pools_that_another_one_stands_in_for_have_breakers() -> None:
    """By the defaults, or as they say; one that never opens is none. Routes ask for those alone."""
    pools = (
        "{full: {cluster: gpu}, plain: {cluster: gpu, fallback: full},"
        " never: {cluster: gpu, fallback: full, breaker: {errors: 1}}, own: {cluster: gpu,"
        " fallback: full, breaker: {errors: 0.5, window: 2m, least: 4, probes: 1, rest: 1s}}}"
    )
    read = settings(pools, "{raw: {}}")
    expected = {"plain": Limits(), "own": Limits(0.5, 120 * 10**9, 4, 1, 10**9)}
    assert expected == breakers_of(read)
    names = ("full", "plain", "never", "own")
    assert [False, True, False, True] == [offers_of(read).guards(name) for name in names]


def test_replicas_are_warmed_up_by_texts_and_by_a_file(tmp_path: Path) -> None:
    """One after the other."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"messages": [{"role": "system", "content": "Be brief."}]}')
    pools = (
        f"{{full: {{cluster: gpu, replicas: {{}}, warm_up: {{prompts: [Why?], file: {file},"
        " model: m, max_tokens: 2, concurrency: 3, deadline: 5s, slow_start: 0s}}}"
    )
    said = [{"role": "user", "content": "Why?"}], [{"role": "system", "content": "Be brief."}]
    how = WarmUp(tuple({"messages": one} for one in said), "m", 2, 3, 5.0, 0.0)
    assert how == replicas_of(settings(pools, "{picks: {pick: {}}}"))["full"].warm_up


def test_limits_are_those_of_the_pools_that_have_some() -> None:
    """32 at once and what comes, unless they say otherwise; a burst is what a second brings."""
    pools = (
        "{full: {cluster: gpu}, least: {cluster: gpu, limits: {}},"
        " all: {cluster: gpu, limits: {concurrent: 8, rate: 20, burst: 40}},"
        " rate: {cluster: gpu, limits: {rate: 2.5}}, rare: {cluster: gpu, limits: {rate: 0.1}}}"
    )
    expected = {
        "least": PoolLimits(32, 0.0, 1),
        "all": PoolLimits(8, 20.0, 40),
        "rate": PoolLimits(32, 2.5, 3),
        "rare": PoolLimits(32, 0.1, 1),
    }
    assert expected == limits_of(settings(pools, "{raw: {}}"))


def test_how_the_pools_are_is_shown() -> None:
    """Each at the moment that metrics are read."""
    each = {"10.0.0.1:8000": {"gpu": 0.75}}
    pools = {"full": Figures(4, 1, 7, 1_024, 2, {"token_s": 0.5}, hurried=3, each=each)}
    books = Books()
    books.telemetry.registry.register(ReplicaFigures(lambda: pools))
    shown = {
        "replica_known": 4,
        "replica_avoided": 1,
        "replica_requests": 7,
        "replica_index_bytes": 1_024,
        "replica_strategy_failures_total": 2,
        "replica_hurried_picks_total": 3,
    }
    assert shown == {name: books.value(name, pool="full") for name in shown}
    assert 0.5 == books.value("replica_cost", pool="full", constant="token_s")
    labels = {"pool": "full", "replica": "10.0.0.1:8000", "figure": "gpu"}
    assert 0.75 == books.value("replica_state", **labels)
    pools.clear()
    assert books.value("replica_known", pool="full") is None


def test_only_pools_with_a_queue_have_work_wait() -> None:
    """As their settings say."""
    read = settings(
        "{full: {cluster: full, queue: {slots: 3, share: 0.25, slice: 1s, bulk_from: 99}},"
        " other: {cluster: other}}",
        "{default: {admit: {}}}",
    )
    rules = Rules(share=0.25, slice_s=1.0)
    assert {"full": QueueLimits(rules, bulk_from=99, slots=3)} == queues_of(read)


def test_a_stage_is_known_before_anybody_waits_for_its_pool() -> None:
    """The queue is that of the pool which serves."""
    read = settings(
        "{full: {cluster: full, stage: {step: full, pool: other}}, other: {cluster: other}}",
        "{default: {clean: {}, admit: {}, pick: {}}}",
    )
    names = [kind.name for kind, _ in with_stages(read.profiles["default"], read)]
    assert ["clean", "stage", "admit", "pick"] == names
