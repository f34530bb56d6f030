"""Where a server listens, and the names that it answers for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
# The endpoint-picker protocol of the Gateway API Inference Extension asks for the middle two.
HEALTH_NAMES: Final = ("", "liveness", "readiness", EXT_PROC)
SOCKET_MODE: Final = 0o660
_TURNS: Final = 2  # of the loop: a transport is made in one, its protocol is told in the next


def socket_path(listen: str) -> Path | None:
    """Return the path of a `unix:` address; None for TCP and for `unix:@name`, without a file."""
    path = listen.removeprefix("unix:")
    return None if path == listen or path.startswith("@") else Path(path)


def replace_stale_socket(path: Path) -> None:
    """Remove a socket file that nobody listens on; raise `OSError` for anything else there."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} exists and is not a socket: remove it or listen elsewhere")
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.settimeout(1)
        probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    else:
        raise OSError(f"another server listens on {path}: stop it or listen elsewhere")
    finally:
        probe.close()


@dataclass(frozen=True, slots=True)
class Bound:
    """A socket that listens."""

    socket: socket.socket
    path: Path | None
    inode: int

    def leave(self) -> None:
        """Remove the socket's file, unless a successor has put its own there."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                if self.path.lstat().st_ino == self.inode:
                    self.path.unlink()


def bind(listen: str) -> Bound:
    """Listen on `unix:/path`, `unix:@name` or `host:port`; replace a stale socket file.

    Raise `OSError` when the address cannot be had.
    """
    path = socket_path(listen)
    if path is not None:
        replace_stale_socket(path)
    try:
        if not listen.startswith("unix:"):
            host, _, port = listen.rpartition(":")
            host = host.removeprefix("[").removesuffix("]")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return Bound(socket.create_server((host, int(port)), family=family), None, 0)
        address = f"\0{listen.removeprefix('unix:@')}" if path is None else os.fspath(path)
        with contextlib.ExitStack() as failing:
            bound = failing.enter_context(socket.socket(socket.AF_UNIX))
            bound.bind(address)
            if path is not None:
                path.chmod(SOCKET_MODE)  # nobody connects before `listen`
            bound.listen()
            failing.pop_all()
        return Bound(bound, path, path.lstat().st_ino if path is not None else 0)
    except OSError as error:
        raise OSError(f"cannot listen on {listen}: {error}") from None


async def close(server: asyncio.Server) -> None:
    """Listen no more; each connection that was accepted is known to its protocol, or to its TLS.

    asyncio makes an accepted socket's transport a turn of the loop later, and calls
    `connection_made` in the turn after that. `Server.close` between them leaves a socket open that
    nobody reads or ends (https://github.com/python/cpython/issues/109564).
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        server.close()
