"""Read what options say; a wrong value is told with what was expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from filters.errors import ConfigError
from filters.units import Duration


def duration(text: str) -> Duration:
    """Read a duration such as "50ms"."""
    try:
        return Duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def port(text: str) -> int:
    """Read a TCP port; 0 stands for a free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f'expected a port from 0 to 65535, got "{text}"')
    return int(text)


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` on."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            message = f'expected a whole number from {least} on, got "{text}"'
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return read


def rate(text: str) -> float:
    """Read a number per second; 0 stands for no limit."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f'expected a number from 0 on, got "{text}"')
    return number


def add_report(parser: argparse.ArgumentParser, output: str | None, words: str = "") -> None:
    """Add `--json` and `--output`, of a command that draws what it measures.

    `words` say in the help where figures are kept by default, if there is not one file for all.
    """
    add = parser.add_argument
    add("--json", action="store_true", help="print every figure as JSON, and no table")
    add(
        "--output",
        metavar="FILE",
        default=output,
        help=f"keep every figure there, and plots beside it ({words or output})",
    )


def output_file(text: str) -> Path:
    """Return what `--output` names; raise `ConfigError` where no file can be made there."""
    output = Path(text)
    if not output.parent.is_dir():
        raise ConfigError("--output", f"expected a file in a folder that exists, got {output}")
    return output
