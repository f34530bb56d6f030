"""Make of an Envoy bootstrap one that runs on this machine, at addresses of its own.

The YAML is edited as the tree that Envoy would read, never as text, and written as JSON, which is
YAML that nobody reads differently: a name such as `y` stays a name.
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ext_proc.config import Settings, block_place, read_settings
from ext_proc.yaml_file import BadConfig, YamlFile
from filters.errors import ConfigError

HTTP_PORTS: Final = {"http": 80, "https": 443}
REMOTE_CONNECT_TIMEOUT: Final = "5s"  # TCP and TLS over a long way; pools on this machine have less
INGRESS: Final = "ingress"
EGRESS: Final = "egress"
EGRESS_MODE: Final = 0o660  # its user and group: whoever connects may ask any cluster
DRAIN: Final = "2s"  # whoever presses Ctrl-C waits for it
EGRESS_SOCKET: Final = "e"  # no longer than the other one: a socket's whole path has 107 bytes
FLUSH_MS: Final = 500  # default 5,000: someone is waiting to see the first trace
MESSAGE_TIMEOUT: Final = "10s"  # a machine that stands still for a second is no error
MEASURED_ENV: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "",
    "FOREBAY_REDIS_URL": "",
    "FOREBAY_LOG_LEVEL": "",
}
"""Environment of a server that is measured: what the user's shell says must not reach it."""
_HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_TLS: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
# Where Debian, Alpine; Fedora; and SUSE keep the certificates of public authorities.
_AUTHORITIES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)


@dataclass(frozen=True, slots=True)
class Target:
    """A server that a URL names."""

    host: str
    port: int
    tls: bool = False
    path: str = ""
    """What stands before `/v1`, without a slash at its end."""

    @property
    def authority(self) -> str:
        """The `host` header that it expects."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == HTTP_PORTS["https" if self.tls else "http"] else self.socket

    @property
    def socket(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Local:
    """Where everything is on this machine."""

    listen: tuple[str, int]
    """Address and port of the gateway."""
    admin_port: int
    metrics_port: int
    socket: Path
    """Forebay's own; the egress listener has its socket beside it."""
    replicas: Mapping[str, Sequence[int]]
    """Ports of the simulated replicas by cluster; empty with an upstream."""
    upstream: Target | None = None
    """Serves every pool in the replicas' stead."""
    otlp: str = ""
    """URL of the OTLP receiver; empty: no traces."""

    @property
    def egress(self) -> Path:
        """Where Envoy takes Forebay's own questions."""
        return self.socket.with_name(EGRESS_SOCKET)


def parse_target(option: str, url: str) -> Target:
    """Read a URL; raise `ConfigError` naming the option that it was given for."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(option, "expected a URL without a credential: clients send their own")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in HTTP_PORTS or not parts.hostname or port == 0 or parts.query:
        raise ConfigError(option, f'expected a URL such as "https://api.openai.com", got "{url}"')
    # Clients say /v1 themselves, and the address that a provider's page shows often ends in it.
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    tls = parts.scheme == "https"
    return Target(parts.hostname, port or HTTP_PORTS[parts.scheme], tls, path)


def settings_of(file: YamlFile, env: Mapping[str, str]) -> Settings:
    """Return the settings in a file; raise `BadConfig` with everything that is wrong with them.

    `env` goes before what the environment of this process says.
    """
    settings, problems = read_settings(file, {**os.environ, **env})
    if settings is None:
        raise BadConfig(tuple(problems))
    return settings


def derive(file: YamlFile, settings: Settings, local: Local) -> dict[str, Any]:
    """Return the bootstrap with everything at the addresses in `local`.

    Raise `ConfigError` when a part that has to be edited is not there.
    """
    # Through JSON: what an anchor shares in the file must not be edited for all who name it.
    tree: dict[str, Any] = json.loads(json.dumps(file.value))
    if "static_resources" not in tree or block_place(file) == ("forebay",):
        raise ConfigError(file.name, "expected an Envoy bootstrap, got Forebay's settings alone")
    block: dict[str, Any] = tree["node"]["metadata"]["forebay"]
    server = block.setdefault("server", {})
    server |= {
        "listen": f"unix:{local.socket}",
        "admin": f"127.0.0.1:{local.metrics_port}",
        "drain": DRAIN,
    }
    server.pop("tls", None)  # on one machine, over a socket
    block["tracing"] = {"endpoint": local.otlp}
    tree["admin"] = tree.get("admin") or {}
    tree["admin"]["address"] = _address("127.0.0.1", local.admin_port)
    _named(tree, "listeners", INGRESS)["address"] = _address(*local.listen)
    if egress := _maybe_named(tree, "listeners", EGRESS):
        mode = egress["address"].get("pipe", {}).get("mode", EGRESS_MODE)
        egress["address"] = {"pipe": {"path": str(local.egress), "mode": mode}}
        server["egress"] = f"unix:{local.egress}"
    forebay = _named(tree, "clusters", "forebay")
    forebay.pop("transport_socket", None)
    _lead(forebay, [{"pipe": {"path": str(local.socket)}}])
    if admin := _maybe_named(tree, "clusters", "forebay_admin"):
        _lead(admin, [_address("127.0.0.1", local.metrics_port)])
    clusters = settings.clusters
    for name in clusters:
        cluster = _named(tree, "clusters", name)
        if local.upstream is not None:
            _lead_away(cluster, local.upstream)
        elif name in local.replicas:
            _lead(cluster, [_address("127.0.0.1", port) for port in local.replicas[name]])
    if local.upstream is not None:
        for pool in block.get("pools", {}).values():
            pool.pop("quality", None)  # one server serves them all: none is less than another
            pool.pop("stage", None)  # and to ask it twice would be paid twice
            pool.pop("replicas", None)  # nor is it asked for figures: it may be somebody else's
        for route in (*_routes(tree), *_routes(tree, EGRESS)):
            _send_to(route, clusters, local.upstream)
    _trace(tree, local.otlp)
    return tree


def derive_measured(
    file: YamlFile, ports: Sequence[int], socket: Path, behind: Sequence[int], *, otlp: str = ""
) -> tuple[dict[str, Any], Settings]:
    """Return the bootstrap of a gateway that is measured, and the settings of its file.

    `ports` are those of the gateway, of Envoy's admin and of the metrics; `behind`, those of the
    servers of every pool. The server is to run with `MEASURED_ENV`. Raise as `derive` does, and
    `BadConfig`.
    """
    settings = settings_of(file, MEASURED_ENV)
    gateway, admin, metrics = ports
    local = Local(
        listen=("127.0.0.1", gateway),
        admin_port=admin,
        metrics_port=metrics,
        socket=socket,
        replicas=dict.fromkeys(settings.clusters, behind),
        otlp=otlp,
    )
    tree = derive(file, settings, local)
    for manager in _managers(tree):
        for http_filter in manager["http_filters"]:
            if http_filter["name"] == "envoy.filters.http.ext_proc":
                http_filter["typed_config"]["message_timeout"] = MESSAGE_TIMEOUT
    return tree, settings


def rewrites(tree: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return by route name what a path begins with, and what Envoy puts in its place."""
    found: dict[str, list[tuple[str, str]]] = {}
    for route in _routes(tree):
        prefix, instead = route["match"].get("prefix"), route["route"].get("prefix_rewrite")
        if prefix and instead:
            found.setdefault(route.get("name", ""), []).append((prefix, instead))
    return found


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _maybe_named(tree: dict[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    found = (part for part in tree["static_resources"].get(kind) or () if part["name"] == name)
    return next(found, None)


def _named(tree: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    part = _maybe_named(tree, kind, name)
    if part is None:
        raise ConfigError(f"static_resources.{kind}", f'expected one named "{name}", got none')
    return part


def _lead(cluster: dict[str, Any], addresses: list[dict[str, Any]]) -> None:
    """Give a cluster other endpoints."""
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    cluster["load_assignment"] = {
        "cluster_name": cluster["name"],
        "endpoints": [{"lb_endpoints": endpoints}],
    }


def _lead_away(cluster: dict[str, Any], target: Target) -> None:
    """Lead a cluster to a server that may be far, have a name and want TLS."""
    _lead(cluster, [_address(target.host, target.port)])
    cluster["connect_timeout"] = REMOTE_CONNECT_TIMEOUT
    cluster.pop("cluster_type", None)
    cluster.pop("transport_socket", None)
    if not _is_address(target.host):
        # One name whose addresses change, as those of large providers do.
        cluster["type"] = "LOGICAL_DNS"
        cluster["dns_lookup_family"] = "V4_PREFERRED"
    if target.tls:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": _TLS} | _tls(target.host),
        }


def _tls(host: str) -> dict[str, Any]:
    kind = "IP_ADDRESS" if _is_address(host) else "DNS"
    names = [{"san_type": kind, "matcher": {"exact": host}}]
    validation = {
        "trusted_ca": {"filename": _authorities()},
        "match_typed_subject_alt_names": names,
    }
    common = {"alpn_protocols": ["http/1.1"], "validation_context": validation}
    sni = {} if _is_address(host) else {"sni": host}
    return sni | {"common_tls_context": common}


def _authorities() -> str:
    candidates = (
        os.environ.get("SSL_CERT_FILE"),
        *_AUTHORITIES,
        ssl.get_default_verify_paths().cafile,
    )
    for path in candidates:
        if path and Path(path).is_file():
            return path
    raise ConfigError(
        "--upstream", "no file of trusted certificates was found; name one in SSL_CERT_FILE"
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _managers(tree: dict[str, Any], listener: str = INGRESS) -> Iterator[dict[str, Any]]:
    for chain in (_maybe_named(tree, "listeners", listener) or {}).get("filter_chains") or ():
        for one in chain.get("filters") or ():
            config = one.get("typed_config") or {}
            if str(config.get("@type")).endswith(_HCM):
                yield config


def _routes(tree: dict[str, Any], listener: str = INGRESS) -> Iterator[dict[str, Any]]:
    for manager in _managers(tree, listener):
        for host in (manager.get("route_config") or {}).get("virtual_hosts") or ():
            yield from (route for route in host.get("routes") or () if "route" in route)


def _send_to(route: dict[str, Any], clusters: set[str], target: Target) -> None:
    """Say the target's host, and its path before the request's, on the way to a pool."""
    action = route["route"]
    if "cluster" in action and action["cluster"] not in clusters:
        return
    for other in ("auto_host_rewrite", "host_rewrite_header", "host_rewrite_path_regex"):
        action.pop(other, None)
    action["host_rewrite_literal"] = target.authority
    prefix = route["match"].get("prefix", route["match"].get("path"))
    if target.path and "regex_rewrite" in action:
        action["regex_rewrite"]["substitution"] = f"{target.path}/"
    elif target.path and prefix is not None:
        action["prefix_rewrite"] = target.path + action.get("prefix_rewrite", prefix)


def _trace(tree: dict[str, Any], url: str) -> None:
    """Trace every request, or none when there is nobody to send spans to."""
    managers = [*_managers(tree), *_managers(tree, EGRESS)]
    if not url:
        for manager in managers:
            manager.pop("tracing", None)
        return
    target = parse_target("--otlp", url)
    if cluster := _maybe_named(tree, "clusters", "otel"):
        _lead_away(cluster, target)
        if target.tls:
            context = cluster["transport_socket"]["typed_config"]["common_tls_context"]
            context["alpn_protocols"] = ["h2"]  # gRPC
    for manager in managers:
        provider = ((manager.get("tracing") or {}).get("provider") or {}).get("typed_config") or {}
        if "sampler" in provider:
            provider["sampler"] = _sampler("parent_based", wrapped_sampler=_sampler("always_on"))
    layers = tree.setdefault("layered_runtime", {}).setdefault("layers", [])
    static = next((layer["static_layer"] for layer in layers if "static_layer" in layer), None)
    if static is None:
        static = {}
        layers.insert(0, {"name": "static", "static_layer": static})
    static["tracing.random_sampling"] = 100
    static["tracing.opentelemetry.flush_interval_ms"] = FLUSH_MS


def _sampler(name: str, **members: Any) -> dict[str, Any]:
    kind = "".join(word.capitalize() for word in name.split("_"))
    package = "type.googleapis.com/envoy.extensions.tracers.opentelemetry.samplers.v3"
    return {
        "name": f"envoy.tracers.opentelemetry.samplers.{name}",
        "typed_config": {"@type": f"{package}.{kind}SamplerConfig", **members},
    }
