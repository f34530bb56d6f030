"""The examples in `docs/`: find them, run them, and write them again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_BLOCK = re.compile(
    r"(?<=```console\n)\$ forebay explain (?P<words>.*)\n(?P<shown>(?:(?!```).*\n)*)"
)
_DIGEST = re.compile(r"\b[0-9a-f]{48}\b")  # of a key: it changes with every default of a setting
_TIME = re.compile(r" *[\d,.]+ [µm]s")
_SPACES = re.compile(r"\s+")  # the column of times is as wide as the longest; the rest wraps
_REMARK = re.compile(r"^\(tokens are estimated.*\n", re.MULTILINE)


def examples() -> list[tuple[str, str, str]]:
    """Return page, arguments and output of each example."""
    return [
        (path.name, found["words"], found["shown"])
        for path in sorted(DOCS.glob("*.md"))
        for found in _BLOCK.finditer(path.read_text(encoding="utf-8"))
    ]


def plain(shown: str) -> str:
    """Return an output without what differs from run to run and from machine to machine."""
    return _SPACES.sub(" ", _DIGEST.sub("DIGEST", _TIME.sub(" TIME", _REMARK.sub("", shown))))


def run(words: str) -> str:
    """Return what `forebay explain` prints in the folder of the docs."""
    done = subprocess.run(
        [sys.executable, "-m", "ext_proc", "explain", *shlex.split(words)],
        cwd=DOCS,
        env={**os.environ, "TIKTOKEN_CACHE_DIR": "none"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return _REMARK.sub("", done.stdout)


def write(say: Callable[[str], None] = print) -> None:
    """Run every example and write what it prints where it stands."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        made = _BLOCK.sub(lambda it: f"$ forebay explain {it['words']}\n{run(it['words'])}", text)
        if plain(made) != plain(text):
            path.write_text(made, encoding="utf-8")
            say(f"wrote {path.name}")


if __name__ == "__main__":
    write()
