"""Lay out what is measured: the shipped gateway, with stand-ins for everything around it.

Beside the shipped routes stand others: two through a no-op ext_proc server, one over each
transport, three to an upstream that streams, and one to a second Forebay that keeps its answers in
Redis. All programs are the ones that run in production, as is their configuration: access log and
exchange log into a file, metrics on, one request in ten traced.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from ext_proc.config import Transport
from ext_proc.tools.derivation import MEASURED_ENV, derive_measured
from ext_proc.tools.place import LOOPBACK, SOCKET, find_envoy, find_yaml, free_ports
from ext_proc.tools.stand_ins import HELD, LONG
from ext_proc.tools.supervisor import Child, answers
from ext_proc.yaml_file import read_yaml

REDIS: Final = "redis"
REDIS_SERVER: Final = "server at redis"
PORTS: Final = 10  # what `Places` gives out
ENVOY_WORKERS: Final = 1  # one core for Envoy leaves the other for the server it calls
_PER_ROUTE: Final = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
_FILTERS: Final = "type.googleapis.com/envoy.extensions.filters"
_HCM: Final = f"{_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"
REPLY: Final = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "demo",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "A forebay is the basin before a turbine. It calms the water and lets "
                "sand settle, so that what enters the pipe is smooth and clean. " * 5,
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 300, "completion_tokens": 160, "total_tokens": 460},
}
EVERYTHING: Final[dict[str, Any]] = {
    # All that looks at a prompt, with what the shipped profiles set; `think` would ask a model.
    **{name: {} for name in ("clean", "shape", "cache", "classify", "budget", "route")},
    "params": {"temperature": {"max": 0.3}, "max_tokens": 4096, "glossary": ["medical"]},
}


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything listens."""

    gateway: int
    envoy_admin: int
    metrics: int
    upstream: int
    streamer: int
    spans: int
    upstream_admin: int
    redis: int
    redis_metrics: int
    peer: int
    """For a gateway that is compared."""
    socket: Path
    grpc_socket: Path
    native_socket: Path
    redis_socket: Path
    """Of the Forebay that asks Redis."""

    @classmethod
    def on(cls, ports: Sequence[int], folder: Path) -> Places:
        """Give out ports, and sockets in a folder."""
        gateway, admin, metrics, upstream, streamer, spans, *others = ports
        upstream_admin, redis, redis_metrics, peer = others
        return cls(
            *(gateway, admin, metrics, upstream, streamer, spans),
            *(upstream_admin, redis, redis_metrics, peer),
            socket=folder / SOCKET,
            grpc_socket=folder / "g",
            native_socket=folder / "n",
            redis_socket=folder / "r",
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """The programs to run, and the logs that two of them write."""

    places: Places
    children: Mapping[str, Child]
    logs: tuple[BinaryIO, ...]
    transport: Transport
    """What carries Envoy's messages to Forebay."""

    def pid(self, name: str) -> int:
        """Return the process of a program that was started."""
        process = self.children[name].process
        assert process is not None
        return process.pid

    def empty_logs(self) -> None:
        """Cut the logs to nothing, so that a long run fills no disk."""
        for log in self.logs:
            log.truncate(0)


@contextlib.contextmanager
def set_up(folder: Path, transport: Transport | None, redis: str | None = None) -> Iterator[Setup]:
    """Write the configurations into `folder` and open the logs there.

    `transport` is Forebay's, if another than the shipped one; `redis` the server to run beside a
    second Forebay, None for neither.
    """
    envoy = find_envoy(None)
    places = Places.on(free_ports(PORTS), folder)
    gateway, upstream = folder / "gateway.json", folder / "upstream.json"
    tree, transport = _gateway(places, transport)
    gateway.write_text(json.dumps(tree))
    upstream.write_text(json.dumps(_upstream(places)))
    with contextlib.ExitStack() as closing:
        # Appending: what is cut to nothing is written on from its beginning.
        logs = tuple(
            closing.enter_context((folder / name).open("ab", buffering=0))
            for name in ("server.log", "access.log")
        )
        children = _children(places, envoy, gateway, upstream, logs)
        if redis:
            children |= _beside_redis(places, redis, folder, tree, logs[0])
        yield Setup(places, children, logs, transport)


def _children(
    places: Places, envoy: str, gateway: Path, upstream: Path, logs: tuple[BinaryIO, ...]
) -> dict[str, Child]:
    python = (sys.executable, "-m")
    stand_in = (*python, "ext_proc.tools.stand_ins")
    children = (
        _server("server", gateway, places.metrics, logs[0]),
        Child(
            "envoy",
            _envoy_words(envoy, gateway),
            lambda: answers(places.envoy_admin, "/ready"),
            stdout=logs[1].fileno(),
        ),
        Child(
            "upstream", _envoy_words(envoy, upstream), lambda: answers(places.upstream, "/health")
        ),
        *(
            Child(
                name,
                [*stand_in, name, f"unix:{socket}"],
                _connects(partial(asyncio.open_unix_connection, socket)),
            )
            for name, socket in _noop_servers(places).items()
        ),
        Child(
            "span receiver",
            [*stand_in, "spans", f"{LOOPBACK}:{places.spans}"],
            _connects(lambda: asyncio.open_connection(LOOPBACK, places.spans)),
        ),
        Child(
            "streaming upstream",
            [*stand_in, "stream", f"{LOOPBACK}:{places.streamer}"],
            _connects(lambda: asyncio.open_connection(LOOPBACK, places.streamer)),
        ),
    )
    return {child.name: child for child in children}


def _server(name: str, config: Path, metrics: int, log: BinaryIO) -> Child:
    return Child(
        name,
        [sys.executable, "-m", "ext_proc", "serve", "--config", str(config)],
        lambda: answers(metrics, "/readyz"),
        env=MEASURED_ENV,
        stdout=log.fileno(),
    )


def _beside_redis(
    places: Places, redis: str, folder: Path, tree: dict[str, Any], log: BinaryIO
) -> dict[str, Child]:
    """Return a Redis that keeps nothing on disk, and a Forebay like the first one before it."""
    block = copy.deepcopy(tree["node"]["metadata"]["forebay"])
    block["server"] |= {
        "listen": f"unix:{places.redis_socket}",
        "admin": f"{LOOPBACK}:{places.redis_metrics}",
    }
    # The shipped 5 ms would make of a machine that is full a bypass now and then, and the scenario
    # is about what a hit costs.
    block["store"] = {"redis": {"url": f"redis://{LOOPBACK}:{places.redis}/0", "timeout": "1s"}}
    config = folder / "redis.json"
    config.write_text(json.dumps({"forebay": block}))
    words = ("--port", str(places.redis), "--bind", LOOPBACK, "--dir", str(folder), "--save", "")
    return {
        REDIS: Child(
            REDIS,
            [redis, *words],
            _connects(lambda: asyncio.open_connection(LOOPBACK, places.redis)),
        ),
        REDIS_SERVER: _server(REDIS_SERVER, config, places.redis_metrics, log),
    }


def _noop_servers(places: Places) -> dict[str, Path]:
    return {"noop-grpc": places.grpc_socket, "noop-native": places.native_socket}


def _envoy_words(envoy: str, config: Path) -> list[str]:
    return [
        *(envoy, "--config-path", str(config), "--log-level", "error"),
        *("--concurrency", str(ENVOY_WORKERS), "--disable-hot-restart", "--drain-time-s", "1"),
    ]


def _connects(
    connect: Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]],
) -> Callable[[], Awaitable[bool]]:
    """Return a probe that is content when somebody listens."""

    async def probe() -> bool:
        try:
            _, writer = await connect()
        except OSError:
            return False
        writer.close()
        return True

    return probe


# --- Configurations ------------------------------------------------------------------------------


def _gateway(places: Places, transport: Transport | None) -> tuple[dict[str, Any], Transport]:
    """Return the shipped bootstrap at other addresses, with routes more, and its transport."""
    file = read_yaml(find_yaml(None))
    shipped = copy.deepcopy(file.value)
    tree, settings = derive_measured(
        file,
        (places.gateway, places.envoy_admin, places.metrics),
        places.socket,
        [places.upstream],
        otlp=f"http://{LOOPBACK}:{places.spans}",
    )
    transport = transport or settings.server.transport
    tree["node"]["metadata"]["forebay"]["server"]["transport"] = str(transport)
    # A derived gateway traces every request for whoever looks on; here it is as it is shipped.
    tree["layered_runtime"] = shipped["layered_runtime"]
    manager = _manager(tree)
    manager["tracing"] = _manager(shipped)["tracing"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    tree["node"]["metadata"]["forebay"]["profiles"]["everything"] = EVERYTHING
    faq, everything = _profile("faq"), _profile("everything")
    routes[:0] = [
        _route("/bench/everything/", "full", everything),
        _route("/bench/stream/", "streamer", faq),
        _route("/bench/long/", "streamer", faq, rewrite=LONG),
        _route("/bench/held/", "streamer", faq, rewrite=HELD),
        *(
            _route(f"/bench/{name}/", "full", {"grpc_service": _service(name)})
            for name in _noop_servers(places)
        ),
        _route("/bench/hit-redis/", "full", {**faq, "grpc_service": _service(REDIS)}),
    ]
    clusters = tree["static_resources"]["clusters"]
    by_name = {cluster["name"]: cluster for cluster in clusters}
    clusters += [
        _led(by_name["full"], "streamer", _address(places.streamer)),
        *(
            _led(by_name["forebay"], name, {"pipe": {"path": str(socket)}})
            for name, socket in {**_noop_servers(places), REDIS: places.redis_socket}.items()
        ),
    ]
    return tree, transport


def _manager(tree: dict[str, Any]) -> dict[str, Any]:
    (listener,) = (one for one in tree["static_resources"]["listeners"] if one["name"] == "ingress")
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _profile(name: str) -> dict[str, Any]:
    return {"grpc_initial_metadata": [{"key": "x-forebay-profile", "value": name}]}


def _service(cluster: str) -> dict[str, Any]:
    return {"envoy_grpc": {"cluster_name": cluster}}


def _route(
    prefix: str, cluster: str, overrides: dict[str, Any], *, rewrite: str = "/"
) -> dict[str, Any]:
    per_route = {"@type": _PER_ROUTE, "overrides": overrides}
    return {
        "name": prefix.split("/")[2],
        "match": {"prefix": prefix},
        "route": {"cluster": cluster, "prefix_rewrite": rewrite, "timeout": "0s"},
        "typed_per_filter_config": {"envoy.filters.http.ext_proc": per_route},
    }


def _led(cluster: dict[str, Any], name: str, address: dict[str, Any]) -> dict[str, Any]:
    """Return a cluster like another one, but for its name and address."""
    endpoint = {"endpoint": {"address": address}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {**cluster, "name": name, "load_assignment": assignment}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": LOOPBACK, "port_value": port}}


def _upstream(places: Places) -> dict[str, Any]:
    """Return the bootstrap of an Envoy that answers every request with the same completion."""
    route = {
        "match": {"prefix": "/"},
        "direct_response": {"status": 200, "body": {"inline_string": json.dumps(REPLY)}},
        "response_headers_to_add": [
            {
                "header": {"key": "content-type", "value": "application/json"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        ],
    }
    manager = {
        "@type": _HCM,
        "stat_prefix": "upstream",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                # A reply to half a request would cost its connection.
                "name": "envoy.filters.http.buffer",
                "typed_config": {
                    "@type": f"{_FILTERS}.http.buffer.v3.Buffer",
                    "max_request_bytes": 1 << 20,
                },
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_FILTERS}.http.router.v3.Router"},
            },
        ],
    }
    listener = {
        "name": "upstream",
        "address": _address(places.upstream),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    admin = {"address": _address(places.upstream_admin)}
    return {"admin": admin, "static_resources": {"listeners": [listener]}}
