"""Know which replicas a pool has: from Envoy's YAML, from DNS, or from a file that Envoy watches.

It is what Envoy itself goes by for the pool's cluster, so that both know the same addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from ext_proc.yaml_file import BadConfig, read_yaml

DNS_S: Final = 5.0
"""Between two look-ups of names, as Envoy does it by default."""
DNS_DEADLINE_S: Final = 4.0
FILE_S: Final = 1.0
"""Between two looks at a file's place, time and size."""
MOST_REPLICAS: Final = 1_024
"""Of one pool; more are a mistake, and a pick would take milliseconds."""
_BY_NAME: Final = frozenset(("STRICT_DNS", "LOGICAL_DNS"))

LookUp: TypeAlias = Callable[[str, int, str], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Addresses as they stand in the YAML, as "ip:port"."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """Names whose addresses DNS knows, such as a headless service's."""

    hosts: tuple[tuple[str, int], ...]
    family: str = "AUTO"
    """Envoy's `dns_lookup_family`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file with a `ClusterLoadAssignment`, as Envoy's own discovery by file reads it."""

    path: str
    cluster: str


Members: TypeAlias = Fixed | Named | Listed


def members_of(cluster: Mapping[str, Any]) -> Members:
    """Return where to find the replicas of a cluster, as it stands in Envoy's YAML.

    A cluster of a kind that is not known, or without endpoints, has none.
    """
    kind = cluster.get("type", "STATIC")
    if kind == "EDS":
        eds = _mapping(cluster.get("eds_cluster_config"))
        source = _mapping(eds.get("eds_config"))
        path = _mapping(source.get("path_config_source")).get("path") or source.get("path")
        name = eds.get("service_name") or cluster.get("name")
        return Listed(path, str(name)) if isinstance(path, str) else Fixed(())
    places = endpoints_in(_mapping(cluster.get("load_assignment")))
    if kind in _BY_NAME:
        return Named(tuple(places), str(cluster.get("dns_lookup_family", "AUTO")))
    return Fixed(tuple(address_of(host, port) for host, port in places if _is_ip(host)))


def endpoints_in(assignment: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return host and port of each endpoint of a `ClusterLoadAssignment` that is not unhealthy."""
    found: list[tuple[str, int]] = []
    for locality in _list(assignment.get("endpoints")):
        for endpoint in _list(_mapping(locality).get("lb_endpoints")):
            entry = _mapping(endpoint)
            if entry.get("health_status") in ("UNHEALTHY", "DRAINING", "TIMEOUT"):
                continue
            address = _mapping(_mapping(entry.get("endpoint")).get("address"))
            place = _mapping(address.get("socket_address"))
            host, port = place.get("address"), place.get("port_value")
            if isinstance(host, str) and type(port) is int and 0 < port < 65_536:
                found.append((host, port))
    return found


def address_of(host: str, port: int) -> str:
    """Write an endpoint as Envoy does: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_listed(listed: Listed) -> list[str]:
    """Return the addresses in a file; raise `BadConfig` or `OSError` when it cannot be read."""
    value = read_yaml(listed.path).value
    assignments = [_mapping(one) for one in _list(value.get("resources"))] or [value]
    return [
        address_of(host, port)
        for assignment in assignments
        if assignment.get("cluster_name", listed.cluster) == listed.cluster
        for host, port in endpoints_in(assignment)
        if _is_ip(host)
    ]


async def look_up(host: str, port: int, family: str) -> list[str]:
    """Return the addresses that DNS has for a name; raise `OSError` when it has none."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DNS_DEADLINE_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    six, four = (
        [address_of(str(to[0]), port) for kind, _, _, _, to in found if kind == wanted]
        for wanted in (socket.AF_INET6, socket.AF_INET)
    )
    match family:
        case "V4_ONLY":
            return four
        case "V6_ONLY":
            return six
        case "V4_PREFERRED":
            return four or six
        case "ALL":
            return [*six, *four]
        case _:
            return six or four


class Follower:
    """Follows who belongs to a pool, and tells when that changed. What fails changes nothing."""

    def __init__(
        self,
        members: Members,
        changed: Callable[[Sequence[str]], None],
        failed: Callable[[str], None],
        *,
        look_up: LookUp = look_up,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Follow `members`; `failed` is told in a few words what could not be found out."""
        self._members: Final = members
        self._changed: Final = changed
        self._failed: Final = failed
        self._look_up: Final = look_up
        self._sleep: Final = sleep
        self._known: tuple[str, ...] | None = None
        self._version: tuple[int, int, int] | None = None
        self._seen: tuple[int, int, int] | None = None
        """Of the file at the last look, whether or not it was read."""

    async def run(self) -> None:
        """Follow until cancelled."""
        match self._members:
            case Fixed(addresses):
                self._tell(addresses)
            case Named(hosts, family):
                while True:
                    await self._ask(hosts, family)
                    await self._sleep(DNS_S)
            case Listed() as listed:
                while True:
                    await self._look(listed)
                    await self._sleep(FILE_S)

    async def _ask(self, hosts: Sequence[tuple[str, int]], family: str) -> None:
        found: list[str] = []
        for host, port in hosts:
            try:
                found += await self._look_up(host, port, family)
            except (OSError, TimeoutError, UnicodeError) as error:
                self._failed(f"{host}: {type(error).__name__}")
                return  # half of a pool is no pool: those known stay
        self._tell(found)

    async def _look(self, listed: Listed) -> None:
        try:
            version = _version(listed.path)
            seen, self._seen = self._seen, version
            if version == self._version:
                return
            if seen is not None and seen[0] == version[0] and seen != version:
                return  # written in place, perhaps not to its end: what stands still is read
            found = await asyncio.to_thread(read_listed, listed)  # 0.1 ms for each endpoint
        except (OSError, BadConfig) as error:
            self._failed(f"{listed.path}: {type(error).__name__}")
            return
        self._version = version
        self._tell(found)

    def _tell(self, addresses: Sequence[str]) -> None:
        known = tuple(dict.fromkeys(addresses))[:MOST_REPLICAS]
        if self._known is None or set(known) != set(self._known):
            self._known = known
            self._changed(known)


def _version(path: str) -> tuple[int, int, int]:
    stat = Path(path).stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
