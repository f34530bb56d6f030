"""Read the URL that says which Redis keeps the answers: one server, Sentinel's, or a cluster."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from ext_proc.yaml_file import found

Address: TypeAlias = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
EXAMPLE: Final = 'a URL such as "redis://host:6379/0"'

_SENTINEL_FORM: Final = '"redis+sentinel://host:26379,host:26379/service"'
_CLUSTER_FORM: Final = '"redis+cluster://host:6379,host:6379"'
# valkeys:// is what Valkey's own clients call rediss://.
_SCHEME: Final = re.compile(r"(?:redis|valkey)(?P<tls>s?)(?:\+(?P<kind>sentinel|cluster))?")
_SERVER: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\[\]:,\s]+))(?::([0-9]{1,5}))?")
_DB: Final = re.compile(r"[0-9]{1,5}")


class Kind(enum.Enum):
    """How the server that has a key is found."""

    ONE = enum.auto()
    """It is the one in the URL."""
    SENTINEL = enum.auto()
    """Sentinels, those in the URL, know the master."""
    CLUSTER = enum.auto()
    """Every server, such as those in the URL, knows who has which slot."""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL says, but for the password, which must not stand there."""

    kind: Kind
    servers: tuple[Address, ...]
    username: str = ""
    tls: bool = False
    db: int = 0
    service: str = ""
    """The name of the master at Sentinel."""


def parse_redis_url(text: str) -> RedisUrl:
    """Read a URL; raise `ValueError` with what was expected, and never with a password."""
    scheme, login, location, query = split_redis_url(text)
    user, colon, _ = login.partition(":")
    hosts, slash, path = location.partition("/")
    if colon or (scheme == "unix" and ":" in hosts):
        raise ValueError("expected FOREBAY_REDIS_PASSWORD in the environment, got a password here")
    user = unquote(user)
    if scheme == "unix":
        option, _, number = query.partition("=")
        db = _number_of_db(number) if query else 0
        if hosts or not path or db is None or option not in ("", "db"):
            raise ValueError(f'expected "unix:///path" or "unix:///path?db=0", got {found(text)}')
        return RedisUrl(Kind.ONE, (unquote(slash + path),), user, db=db)
    match = _SCHEME.fullmatch(scheme)
    if match is None:
        raise ValueError(f"expected {EXAMPLE}, got {found(text)}")
    if query:
        raise ValueError(f'expected no options behind a "?" in the URL, got {found(text)}')
    tls = bool(match["tls"])
    match match["kind"]:
        case "sentinel":
            service, slash, number = path.partition("/")
            db = _number_of_db(number) if slash else 0
            servers = _servers(hosts, SENTINEL_PORT)
            if not servers or not service or db is None:
                raise ValueError(f"expected {_SENTINEL_FORM}, got {found(text)}")
            return RedisUrl(Kind.SENTINEL, servers, user, tls, db, unquote(service))
        case "cluster":
            servers = _servers(hosts, PORT)
            if not servers or path not in ("", "0"):
                raise ValueError(f"expected {_CLUSTER_FORM}, got {found(text)}")
            return RedisUrl(Kind.CLUSTER, servers, user, tls)
        case _:
            db = _number_of_db(path) if path else 0
            servers = _servers(hosts, PORT)
            if len(servers) != 1 or db is None:
                raise ValueError(f"expected {EXAMPLE}, got {found(text)}")
            return RedisUrl(Kind.ONE, servers, user, tls, db)


def split_redis_url(text: str) -> tuple[str, str, str, str]:
    """Return scheme, user with password, location and query of a URL, which may be a bad one.

    A slash in a password should be escaped; one that is not must not make it part of a path.
    """
    scheme, _, rest = text.partition("://")
    rest, _, query = rest.partition("?")
    login, _, location = rest.rpartition("@")
    if scheme == "unix" and "/" in login:  # a path may have the sign
        login, location = "", rest
    return scheme, login, location, query


def _servers(hosts: str, default_port: int) -> tuple[Address, ...]:
    """Return the servers in a list parted by commas; none if one of them is none."""
    servers: list[Address] = []
    for host in hosts.split(","):
        match = _SERVER.fullmatch(host)
        port = int(match[3] or default_port) if match else 0
        if match is None or not 0 < port <= 65535:
            return ()
        servers.append((match[1] or match[2], port))
    return tuple(servers)


def _number_of_db(text: str) -> int | None:
    return int(text) if _DB.fullmatch(text) else None
