"""Look through what Forebay keeps in Redis, a little at a time, so that Redis serves others.

Names are found by SCAN on every master and let go of by UNLINK: no command here takes longer for
there being more names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from ext_proc.adapters.redis_client import RedisClient, name_of
from ext_proc.adapters.redis_lane import Command
from ext_proc.adapters.redis_node import RedisNode
from ext_proc.adapters.redis_values import Unreadable, unpack
from ext_proc.cache_entry import Entry, Which, describe
from ext_proc.config import RedisSettings
from filters.api import Clock
from filters.errors import ConfigError, PortError

AT_ONCE: Final = 1_000  # names that Redis looks at in one step: a fraction of a millisecond
UNLINKED: Final = 200  # names in one batch of UNLINK, each a command: a cluster takes no other way
MOST_COUNTED: Final = 200_000  # names of one master; of more a part tells, for SCAN has no order
PATIENCE_S: Final = 1.0  # nobody's request waits here
PREFIX: Final = b"forebay:"
# Locks and marks end by themselves within seconds; without them a model would be asked twice.
PURGED: Final = (b"answer", b"seen", b"landed")
_PLACE: Final = "forebay.store.redis.url"
_NEXT_STEP: Final = "is it running, and are its address and FOREBAY_REDIS_PASSWORD right?"


class Seen(Protocol):
    """Is told how far it is."""

    def __call__(self, scanned: int, found: int) -> None:
        """Say that so many names were looked at, and so many are meant."""


class Counted(msgspec.Struct, frozen=True):
    """What is kept."""

    entries: int
    bytes: int
    """Of the values, as they lie there."""
    patterns: int
    """Requests whose sightings are counted."""
    profiles: dict[str, dict[str, int]]
    sampled: bool
    """There was too much to look at everything: all is reckoned from a part."""
    masters: int


class Purged(msgspec.Struct, frozen=True):
    """What was let go of."""

    entries: int
    others: int
    """Counts of sightings, and answers on their way to those who wait."""
    scanned: int


@dataclass(slots=True)
class _Part:
    """What was counted so far, by profile."""

    scanned: int = 0
    patterns: int = 0
    entries: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    sampled: bool = False

    def add(self, other: _Part) -> None:
        """Count what another one has as well."""
        self.scanned += other.scanned
        self.patterns += other.patterns
        self.entries.update(other.entries)
        self.bytes.update(other.bytes)
        self.sampled |= other.sampled

    def stand_for(self, names: int) -> None:
        """Take what was looked at for a sample of so many names."""
        times = names / self.scanned
        if times > 1:
            self.sampled = True
            self.patterns = round(self.patterns * times)
            for counter in (self.entries, self.bytes):
                for name in counter:
                    counter[name] = round(counter[name] * times)


class RedisEntries:
    """What Forebay keeps in one Redis, whatever its kind."""

    def __init__(self, settings: RedisSettings, clock: Clock) -> None:
        """Connect to nothing yet."""
        self._clock: Final = clock
        self._client: Final = RedisClient(
            settings.url,
            clock,
            _Unwatched(),
            timeout_s=PATIENCE_S,
            password=settings.password,
            sentinel_username=settings.sentinel_username,
            sentinel_password=settings.sentinel_password,
            ca_file=settings.ca_file,
            lanes=1,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    async def entry(self, key: str, *, with_body: bool = False) -> Entry | None:
        """Return what is known of the entry under a key; None when there is none."""
        name = name_of(b"answer", key.encode())
        written, left_ms = await self._about(key, ("GET", name), ("PTTL", name))
        if written is None:
            return None
        value = unpack(written)
        return describe(
            key,
            written if isinstance(value, Unreadable) else value,
            place="redis",
            ttl_s=left_ms / 1000,
            now_s=self._clock.now(),
            stored_bytes=len(written),
            compression="zstd" if written.startswith(b"z") else "none",
            with_body=with_body,
        )

    async def count(self, seen: Seen) -> Counted:
        """Return how much is kept, by profile."""
        whole = _Part()
        masters = await self._masters()
        for node in masters:
            whole.add(await self._part(node, whole, seen))
        return Counted(
            entries=sum(whole.entries.values()),
            bytes=sum(whole.bytes.values()),
            patterns=whole.patterns,
            profiles={
                name: {"entries": number, "bytes": whole.bytes[name]}
                for name, number in sorted(whole.entries.items())
            },
            sampled=whole.sampled,
            masters=len(masters),
        )

    async def _part(self, node: RedisNode, before: _Part, seen: Seen) -> _Part:
        """Return what one master keeps; `before` is what was counted so far."""
        part = _Part()
        async for names in self._names(node, b"*"):
            part.scanned += len(names)
            part.patterns += sum(kind_of(name) == b"seen" for name in names)
            if ours := [name for name in names if kind_of(name) == b"answer"]:
                for name, length in await self._lengths(node, ours):
                    part.entries[profile_of(name)] += 1
                    part.bytes[profile_of(name)] += length
            found = sum(before.entries.values()) + sum(part.entries.values())
            seen(before.scanned + part.scanned, found)
            if part.scanned >= MOST_COUNTED:
                (size,) = await self._at(node, [("DBSIZE",)])
                part.stand_for(size)
                break
        return part

    async def _lengths(self, node: RedisNode, names: list[bytes]) -> list[tuple[bytes, int]]:
        """Return how long the values are that may be answers; a list of somebody else's has none.

        That is rare, and the server's reply to all of them is an error then.
        """
        try:
            lengths = await self._at(node, [("STRLEN", name) for name in names])
        except ConfigError:
            types = await self._at(node, [("TYPE", name) for name in names])
            names = [name for name, kind in zip(names, types, strict=True) if kind == b"string"]
            lengths = await self._at(node, [("STRLEN", name) for name in names])
        return list(zip(names, lengths, strict=True))

    async def purge(self, which: Which, seen: Seen, *, dry_run: bool = False) -> Purged:
        """Let go of what is named, a few names at a time."""
        match = b"%b*:{%b}" % (PREFIX, which.pattern.encode())
        gone: Counter[bytes] = Counter()
        scanned = 0
        for node in await self._masters():
            async for names in self._names(node, match):
                scanned += AT_ONCE
                meant = [name for name in names if kind_of(name) in PURGED]
                for first in range(0, len(meant), UNLINKED):
                    batch = meant[first : first + UNLINKED]
                    unlinked: Sequence[int] = [1] * len(batch)
                    if not dry_run:
                        unlinked = await self._at(node, [("UNLINK", name) for name in batch])
                    for name, number in zip(batch, unlinked, strict=True):
                        gone[kind_of(name)] += number
                    seen(scanned, sum(gone.values()))
                seen(scanned, sum(gone.values()))
        entries = gone.pop(b"answer", 0)
        return Purged(entries=entries, others=sum(gone.values()), scanned=scanned)

    async def _names(self, node: RedisNode, match: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the names of a server that fit, in steps; one may come twice."""
        cursor = b"0"
        while True:
            scan: Command = ("SCAN", cursor, "MATCH", match, "COUNT", AT_ONCE)
            ((cursor, names),) = await self._at(node, [scan])
            yield names
            if int(cursor) == 0:
                return

    async def _masters(self) -> list[RedisNode]:
        masters = await self._client.masters()
        if not masters:
            raise ConfigError(_PLACE, f"no master was found; {_NEXT_STEP}")
        return masters

    async def _at(self, node: RedisNode, commands: Sequence[Command]) -> list[Any]:
        try:
            return await self._client.ask_at(node, "operator", *commands)
        except PortError as error:
            raise ConfigError(_PLACE, f"{error}; {_NEXT_STEP}") from None

    async def _about(self, key: str, *commands: Command) -> list[Any]:
        try:
            return await self._client.ask("operator", key.encode(), *commands, reads=True)
        except PortError as error:
            raise ConfigError(_PLACE, f"{error}; {_NEXT_STEP}") from None


def kind_of(name: bytes) -> bytes:
    """Return what a name in Redis is of (`answer`, `seen`, ...); empty where it is not ours."""
    if not name.startswith(PREFIX):
        return b""
    return name[len(PREFIX) :].partition(b":")[0]


def profile_of(name: bytes) -> str:
    """Return the profile in one of our names."""
    return name.partition(b"{")[2].partition(b":")[0].decode("utf-8", "replace")


class _Unwatched:
    """Counts nothing: what fails is told to who waits."""

    def store_failed(self, store: str, operation: str) -> None:
        """See `StoreWatch`."""

    def store_bypassed(self, store: str, operation: str) -> None:
        """See `StoreWatch`."""

    def store_unreadable(self, store: str, reason: str) -> None:
        """See `StoreWatch`."""

    def store_took(self, store: str, operation: str, elapsed_ns: int) -> None:
        """See `StoreWatch`."""

    def store_searched(self, store: str, *, found: bool) -> None:
        """See `StoreWatch`."""
