"""Where pages of tables go: a terminal as wide as it is, or a pipe."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console

PLAIN_COLUMNS: Final = 120
LEAST_COLUMNS: Final = 100
"""A narrower terminal breaks lines: no figure may be cut off to make a table fit."""


def page_console() -> Console:
    """Return the console of a page on standard output."""
    console = Console(highlight=False)
    if not sys.stdout.isatty():
        console.width = PLAIN_COLUMNS
    elif console.width < LEAST_COLUMNS:
        console.width = LEAST_COLUMNS
    return console
