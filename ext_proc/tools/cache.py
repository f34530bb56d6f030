"""Look into the cache that a configuration names, and clear it: `forebay cache stats|get|purge`."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ext_proc.adapters.clock import SystemClock
from ext_proc.cache_entry import KEY_FORM, Entry, Which, check_key, check_profile, check_tenant
from ext_proc.config import Settings, load
from ext_proc.session import CREDENTIALS, tenant_of
from ext_proc.tools import cache_page
from ext_proc.tools.cache_redis import RedisEntries
from ext_proc.tools.cache_server import CacheServer, NotRunning
from ext_proc.tools.place import find_yaml
from filters.api import RequestHead
from filters.cache_key import TENANT_CHARS
from filters.errors import ConfigError

T = TypeVar("T")

GOOD: Final = 0
NOT_FOUND: Final = 1
STDIN: Final = "-"
PROMPT: Final = "credential, as the header's line (Authorization: Bearer ...): "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of `forebay cache` and what each takes."""
    common = argparse.ArgumentParser(add_help=False)
    add = common.add_argument
    add("--config", metavar="FILE", help="Envoy's YAML with the forebay block (as `up` finds it)")
    add("--admin", metavar="HOST:PORT", help="the server's admin address, if not the file's")
    add("--json", action="store_true", help="print one JSON object")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs.add_parser("stats", parents=[common], help="how much is kept, and what it saves")
    get = verbs.add_parser("get", parents=[common], help="what is known of one answer")
    get.add_argument("key", metavar="KEY", type=_checked(check_key), help=KEY_FORM)
    get.add_argument("--body", action="store_true", help="print the answer itself, too")
    purge = verbs.add_parser("purge", parents=[common], help="let go of answers")
    purge.add_argument(
        "--profile", metavar="P", type=_checked(check_profile), help="only those of a profile"
    )
    purge.add_argument(
        "--tenant",
        metavar="T",
        type=_checked(_tenant),
        help=f"only those of a tenant: {TENANT_CHARS} hex digits of its hash, `shared`, or - to "
        "read a line such as `Authorization: Bearer ...` from standard input",
    )
    purge.add_argument("--dry-run", action="store_true", help="only say what would go")


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _tenant(text: str) -> str:
    return text if text == STDIN else check_tenant(text)


def run(args: argparse.Namespace) -> int:
    """Run `forebay cache`; return 1 when `get` finds nothing.

    Raise `ConfigError` for a file, a store or a server that cannot be used.
    """
    settings = load(find_yaml(args.config), os.environ)
    server = CacheServer(args.admin or settings.server.admin, "--admin" if args.admin else "")
    match args.verb:
        case "stats":
            return asyncio.run(_stats(settings, server, as_json=args.json))
        case "get":
            return asyncio.run(
                _get(settings, server, args.key, with_body=args.body, as_json=args.json)
            )
        case _:
            which = Which(args.profile, _asked_tenant(settings, args.tenant))
            return asyncio.run(
                _purge(settings, server, which, dry_run=args.dry_run, as_json=args.json)
            )


# --- Whose ---------------------------------------------------------------------------------------


def _asked_tenant(settings: Settings, text: str | None) -> str | None:
    if text != STDIN:
        return text
    lines = [getpass.getpass(PROMPT)] if sys.stdin.isatty() else sys.stdin.read().splitlines()
    return read_tenant(lines, settings.tenant.header)


def read_tenant(lines: Sequence[str], mesh_header: str) -> str:
    """Return how keys name whoever sends these header lines; raise `ConfigError`.

    `?key=VALUE` stands for a credential in the query. What is wrong is told without the value.
    """
    headers: dict[str, str] = {}
    path = "/"
    known = (mesh_header, *CREDENTIALS) if mesh_header else CREDENTIALS
    for line in filter(str.strip, lines):
        name, colon, value = line.partition(":")
        if line.strip().startswith("?"):
            path = f"/{line.strip()}"
        elif colon and name.strip().lower() in known:
            headers[name.strip().lower()] = value.strip()
        else:
            expected = f"a line NAME: VALUE with a name among {', '.join(known)}"
            raise ConfigError("--tenant", f"expected {expected}, got another one")
    if not headers and path == "/":
        raise ConfigError("--tenant", "expected a credential on standard input, got nothing")
    return tenant_of(RequestHead("POST", path, headers), mesh_header)[:TENANT_CHARS]


# --- The verbs -----------------------------------------------------------------------------------


async def _stats(settings: Settings, server: CacheServer, *, as_json: bool) -> int:
    figures: dict[str, Any] | None = None
    try:
        figures = await server.stats()
    except NotRunning:
        if settings.store.redis is None:
            raise
    kept = await _with_redis(settings, lambda redis, seen: redis.count(seen))
    if as_json:
        _print({"admin": server.address, "redis": kept, "server": figures})
    else:
        cache_page.show_stats(figures, kept, server, now_s=time.time())
    return GOOD


async def _get(
    settings: Settings, server: CacheServer, key: str, *, with_body: bool, as_json: bool
) -> int:
    entries: list[Entry] = []
    if settings.store.memory is not None:
        try:
            entries += await server.entry(key, with_body=with_body)
        except NotRunning:
            if settings.store.redis is None:
                raise
    found = await _with_redis(settings, lambda redis, _: redis.entry(key, with_body=with_body))
    entries += [found] if found else []
    if as_json:
        _print({"key": key, "entries": entries})
    else:
        cache_page.show_entries(key, entries)
    return GOOD if entries else NOT_FOUND


async def _purge(
    settings: Settings, server: CacheServer, which: Which, *, dry_run: bool, as_json: bool
) -> int:
    """Clear Redis first: memory before it would be filled again from what is still there."""
    began = time.monotonic()
    shared = await _with_redis(
        settings, lambda redis, seen: redis.purge(which, seen, dry_run=dry_run)
    )
    in_memory: int | None = None
    if settings.store.memory is not None:
        try:
            in_memory = await server.purge(which, dry_run=dry_run)
        except NotRunning:
            if shared is None:
                raise
    if shared is None and in_memory is None:
        expected = "the store that the server has; FOREBAY_REDIS_URL chooses one beside the file"
        raise ConfigError("forebay.store", f"expected {expected}, got memory, of which it has none")
    report = {
        "dry_run": dry_run,
        "pattern": which.pattern,
        "redis": shared,
        "memory": in_memory,
        "seconds": time.monotonic() - began,
    }
    if as_json:
        _print(report)
    else:
        cache_page.show_purge(report, settings, server)
        if which.profile is not None and which.profile not in settings.profiles:
            cache_page.remark(f"the file has no profile {which.profile}")
    return GOOD


async def _with_redis(
    settings: Settings,
    ask: Callable[[RedisEntries, cache_page.Progress], Awaitable[T]],
) -> T | None:
    """Return what Redis says, showing how far it is; None where the settings have no Redis."""
    if settings.store.redis is None:
        return None
    redis = RedisEntries(settings.store.redis, SystemClock())
    try:
        with cache_page.Progress() as progress:
            return await ask(redis, progress)
    finally:
        await redis.close()


def _print(what: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(what), indent=2).decode())
