"""Report what a running server saw: `forebay report stages`."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.config import load
from ext_proc.tools import trial_page
from ext_proc.tools.cache_server import PATIENCE_S, PLACE, CacheServer, NotRunning
from ext_proc.tools.place import find_yaml
from ext_proc.trial_figures import figures_of
from filters.errors import ConfigError

GOOD: Final = 0
WORSE: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the reports and what each takes."""
    reports = parser.add_subparsers(dest="report", metavar="REPORT", required=True)
    stages = reports.add_parser(
        "stages", help="compare a shadow or canary with the pool it is to replace"
    )
    add = stages.add_argument
    add("--config", metavar="FILE", help="Envoy's YAML with the forebay block (as `up` finds it)")
    add(
        "--admin",
        metavar="HOST:PORT",
        action="append",
        help="a server's admin address, if not the file's; more than one are added up",
    )
    add("--json", action="store_true", help="print one JSON object")
    add("--html", metavar="FILE", type=Path, help="write a page with plots as well")
    for name, text in (
        ("slower", "end with 1 where the median time is this much more: 0.2"),
        ("errors", "end with 1 where this much more of the requests fail: 0.01"),
        ("unlike", "end with 1 where answers are this little alike: 0.5"),
    ):
        add(f"--{name}", metavar="SHARE", type=_share, help=text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise argparse.ArgumentTypeError(f'expected a number such as 0.2, got "{text}"')
    return share


def run(args: argparse.Namespace) -> int:
    """Run `forebay report stages`; return 1 when a bound that was given is passed.

    Raise `ConfigError` for a file or a server that cannot be used.
    """
    addresses: Sequence[str] = args.admin or ()
    if not addresses:
        addresses = (load(find_yaml(args.config), os.environ).server.admin,)
    servers = [CacheServer(one, "--admin" if args.admin else "") for one in addresses]
    place = "--admin" if args.admin else PLACE
    texts = asyncio.run(_metrics([server.address for server in servers], place))
    families = (family for text in texts for family in text_string_to_metric_families(text))
    trials = figures_of(families)
    for trial in trials:
        trial["passed"] = passed(trial, args.slower, args.errors, args.unlike)
    if args.json:
        report = {"admin": [server.address for server in servers], "trials": trials}
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        trial_page.show(trials)
    if args.html:
        args.html.write_text(trial_page.html(trials), encoding="utf-8")
    return WORSE if any(trial["passed"] for trial in trials) else GOOD


def passed(
    trial: dict[str, Any], slower: float | None, errors: float | None, unlike: float | None
) -> list[str]:
    """Return which bounds a trial passed; what is not known passes none."""
    found = trial["differences"]
    over = [
        name
        for name, bound in (("slower", slower), ("errors", errors))
        if bound is not None and found[name] is not None and found[name] > bound
    ]
    if unlike is not None and found["likeness"] is not None and found["likeness"] < unlike:
        over.append("unlike")
    return over


async def _metrics(addresses: Sequence[str], place: str) -> list[str]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        return [await _one(client, address, place) for address in addresses]


async def _one(client: aiohttp.ClientSession, address: str, place: str) -> str:
    try:
        # Without a word on what is accepted, Prometheus's plain text.
        async with client.get(f"http://{address}/metrics") as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        raise NotRunning(
            place,
            f"nobody answers at {address}: start the server (forebay serve, forebay up), or name "
            "its address with --admin",
        ) from None
    if "forebay_build_info" not in text:
        raise ConfigError(place, f"expected Forebay's admin port at {address}, got another server")
    return text
