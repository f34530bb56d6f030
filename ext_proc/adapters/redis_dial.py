"""Make the connections to Redis servers, all alike but for the address."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio as redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ext_proc.redis_url import Address
from filters.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Dial:
    """How to connect to any server of a place, and who one is there."""

    username: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    tls: ssl.SSLContext | None = None
    reads_replicas: bool = False
    """A cluster's replica sends readers to its master unless the connection says `READONLY`."""

    def __call__(self, address: Address) -> AbstractConnection:
        """Return a connection that does not connect yet."""
        options: dict[str, Any] = {
            "username": self.username or None,
            "password": self.password or None,
            "db": self.db,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,  # one timer for a batch instead of one for each reply
            "socket_connect_timeout": None,  # likewise
            "protocol": 2,  # RESP3 would cost one more round trip for each connection
            "driver_info": None,  # likewise
        }
        if self.reads_replicas:
            options["redis_connect_func"] = _connect_to_read
        if isinstance(address, str):
            return redis.UnixDomainSocketConnection(path=address, **options)
        host, port = address
        if self.tls is None:
            return redis.Connection(host=host, port=port, **options)
        connection = redis.SSLConnection(host=host, port=port, **options)
        # Made once: redis-py would read the authorities' certificates for each connection.
        connection.ssl_context.context = self.tls
        return connection


async def _connect_to_read(connection: AbstractConnection) -> None:
    await connection.on_connect()
    await connection.send_command("READONLY", check_health=False)
    await connection.read_response()


def open_tls(ca_file: str) -> ssl.SSLContext:
    """Return how servers prove who they are; raise `ConfigError` if the file is no good."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # ssl.SSLError is one
        why = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError("forebay.store.redis.ca_file", f"cannot read {ca_file}: {why}") from None
