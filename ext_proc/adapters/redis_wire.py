"""Speak to a Redis server over one connection: many calls' commands at once, then their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis.asyncio as redis
from redis.asyncio.connection import AbstractConnection

Command: TypeAlias = tuple[bytes | str | int, ...]
Replies: TypeAlias = list[Any] | Exception
"""The reply to each command of a call, or what went wrong; never raised where nobody listens."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one caller asked, and where its outcome goes."""

    commands: Sequence[Command]
    outcome: asyncio.Future[Replies]
    weight: int = 0
    """Bytes that a queue full of such calls is measured by; of what only reads, none."""
    stays: bool = False
    """It is sent even if its caller was cancelled before its turn came."""


async def ask_once(
    connection: AbstractConnection, commands: Sequence[Command], limit_s: float
) -> Replies:
    """Ask over a connection for this alone; return the replies or what broke."""
    call = Call(commands, asyncio.get_running_loop().create_future())
    try:
        async with asyncio.timeout(limit_s):
            await exchange(connection, [call])
        return await call.outcome
    except Exception as error:  # noqa: BLE001 - whatever broke, the caller hears of it
        return error
    finally:
        await connection.disconnect(nowait=True)


async def exchange(connection: AbstractConnection, calls: Sequence[Call]) -> None:
    """Write the commands of all calls at once and hand each call its replies."""
    if not connection.is_connected:
        await connection.connect()  # type: ignore[no-untyped-call] # redis-py's
    try:
        stale = await connection.can_read()
    except redis.ConnectionError:
        stale = True
    if stale:  # the server closed it meanwhile
        await connection.disconnect(nowait=True)
        await connection.connect()  # type: ignore[no-untyped-call] # redis-py's
    writer = writer_of(connection)  # redis-py forgets it when it closes the connection
    try:
        await _write_and_read(connection, calls)
    except BaseException:
        abort(writer)
        raise


def writer_of(connection: AbstractConnection) -> asyncio.StreamWriter | None:
    """Return what a connection writes to, None when it is closed."""
    return connection._writer  # noqa: SLF001 - there is no other way to close it at once


def abort(writer: asyncio.StreamWriter | None) -> None:
    """Close a connection at once.

    redis-py's way waits until a server that may take nothing has taken what was to be sent.
    """
    if writer is not None:
        writer.transport.abort()


async def _write_and_read(connection: AbstractConnection, calls: Sequence[Call]) -> None:
    commands = [command for call in calls for command in call.commands]
    await connection.send_packed_command(packed(commands), check_health=False)
    for call in calls:
        outcome: Replies = []
        for _ in call.commands:
            try:
                reply = await connection.read_response()
            except redis.ResponseError as error:
                outcome = error
            else:
                if isinstance(outcome, list):
                    outcome.append(reply)
        settle(call, outcome)


def packed(commands: Iterable[Command]) -> bytes:
    """Write commands as the protocol has them: arrays of strings, each behind its length.

    redis-py's way costs 6 us more for a look-up.
    """
    pieces: list[bytes] = []
    for command in commands:
        pieces.append(b"*%d\r\n" % len(command))
        for part in command:
            text = part if isinstance(part, bytes) else str(part).encode()
            pieces.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(pieces)


def settle(call: Call, outcome: Replies) -> None:
    """Give a call its outcome, unless it has one or nobody waits for it any more."""
    if not call.outcome.done():
        call.outcome.set_result(outcome)
