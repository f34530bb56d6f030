"""Find out which Redis servers there are, and which of them has which keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ext_proc.adapters.redis_dial import Dial
from ext_proc.adapters.redis_lane import ask_once
from ext_proc.redis_url import Address

SLOTS: Final = 16384  # of a cluster; Redis Cluster Specification, "Key distribution model"
LIMIT_S: Final = 1.0  # for one server to say what it knows, connecting included
UNWELL: Final = frozenset(("s_down", "o_down", "disconnected", "master_down"))


class Span(NamedTuple):
    """Slots that one master serves, the last included, and who has a copy of them."""

    first: int
    last: int
    master: Address
    replicas: tuple[Address, ...] = ()


async def ask_cluster(dial: Dial, address: Address) -> Sequence[Span]:
    """Return what a server of a cluster knows, none when it does not answer."""
    replies = await ask_once(partial(dial, address), [("CLUSTER", "SLOTS")], LIMIT_S)
    if not isinstance(replies, list):
        return ()
    try:
        return [_span(row, address) for row in replies[0]]
    except (TypeError, ValueError, IndexError):  # no reply to that question
        return ()


def _span(row: Sequence[Any], asked: Address) -> Span:
    first, last, *servers = row
    if not 0 <= first <= last < SLOTS:
        raise ValueError("no such slots")
    master, *replicas = (_address(server, asked) for server in servers)
    return Span(first, last, master, tuple(replicas))


def _address(server: Sequence[Any], asked: Address) -> Address:
    """Return host and port of a server that may not know its own name: that is `asked` then."""
    host, port = server[0], int(server[1])
    if host == b"?":  # it prefers a name and has none
        raise ValueError("a server without a name")
    return (host.decode() if host else asked[0]), port


async def ask_sentinel(service: str, dial: Dial, address: Address) -> Sequence[Span]:
    """Return who is master of `service`, none when this Sentinel does not answer or know."""
    commands = [("SENTINEL", "MASTER", service), ("SENTINEL", "REPLICAS", service)]
    replies = await ask_once(partial(dial, address), commands, LIMIT_S)
    if not isinstance(replies, list):
        return ()
    try:
        master = _well(replies[0])
        replicas = [server for row in replies[1] if (server := _well(row))]
    except (TypeError, ValueError, KeyError):  # no reply to that question
        return ()
    return [Span(0, SLOTS - 1, master, tuple(replicas))] if master else ()


def _well(row: Sequence[bytes]) -> Address | None:
    """Return where a server is that Sentinel believes to be up; `row` has name, value, name..."""
    fields = dict(zip(row[::2], row[1::2], strict=True))
    if not UNWELL.isdisjoint(fields[b"flags"].decode().split(",")):
        return None
    return fields[b"ip"].decode(), int(fields[b"port"])
