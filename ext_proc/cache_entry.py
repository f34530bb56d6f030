"""Say what an entry of the cache is, without its answer's text, and which entries somebody means.

Pure: both the server and the command line say it in the same words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from filters.cache_key import SHARED, TENANT_CHARS
from filters.cache_record import Unreadable, read_record
from filters.dialects import DIALECTS
from filters.document import parse
from filters.errors import NotJson

CONTENT_TYPE: Final = "application/json"  # a reply is kept plain, also one that came as a stream
KEY_FORM: Final = "PROFILE:TENANT:DIGEST, as `forebay explain` and the note cache.key show it"

_PROFILE: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_TENANT: Final = rf"[0-9a-f]{{{TENANT_CHARS}}}|{SHARED}"
_KEY: Final = re.compile(rf"({_PROFILE}):({_TENANT}):([0-9a-f]{{48}})")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stored answer; times in seconds, sizes in bytes."""

    key: str
    profile: str
    tenant: str
    place: str
    """`memory` or `redis`."""
    ttl_s: float
    """How long the store keeps it yet."""
    stored_bytes: int
    """As it lies in the store."""
    compression: str = "none"
    unreadable: str = ""
    """Why nothing below is known; the cache takes it for a miss."""
    age_s: float = 0
    serves_s: float = 0
    """How long it serves yet: its own time, which its profile may shorten."""
    input_tokens: int = 0
    output_tokens: int = 0
    body_bytes: int = 0
    content_type: str = ""
    dialect: str = ""
    model: str = ""
    quality: str = ""
    took_ms: int = 0
    """How long the upstream took to say it."""
    context: bool = False
    """It rests on a conversation, a document or what a tool found."""
    body: str | None = None
    """The answer itself, for who asked for it."""


def describe(
    key: str,
    value: bytes,
    *,
    place: str,
    ttl_s: float,
    now_s: float,
    stored_bytes: int | None = None,
    compression: str = "none",
    with_body: bool = False,
) -> Entry:
    """Return what is known of the entry under `key`, whose value is a written record.

    `stored_bytes` is the size it has in the store, where that is another than the value's.
    """
    profile, tenant, _ = key.split(":")
    record = read_record(value)
    size = len(value) if stored_bytes is None else stored_bytes
    entry = Entry(
        key=key,
        profile=profile,
        tenant=tenant,
        place=place,
        ttl_s=ttl_s,
        stored_bytes=size,
        compression=compression,
    )
    if isinstance(record, Unreadable):
        return replace(entry, unreadable=str(record))
    return replace(
        entry,
        age_s=max(0.0, now_s - record.at),
        serves_s=max(0.0, record.ends - now_s),
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        body_bytes=len(record.body),
        content_type=CONTENT_TYPE,
        dialect=record.dialect,
        model=_model_of(record.dialect, record.body),
        quality=record.quality,
        took_ms=record.took_ms,
        context=record.context,
        body=record.body.decode("utf-8", "replace") if with_body else None,
    )


def _model_of(dialect: str, body: bytes) -> str:
    reader = DIALECTS.get(dialect)
    if reader is None:
        return ""
    try:
        return reader.read_reply(parse(body)).model
    except NotJson:
        return ""


def check_key(text: str) -> str:
    """Return a key that can be one; raise `ValueError`."""
    if not _KEY.fullmatch(text):
        raise ValueError(f"expected a key {KEY_FORM}, got {text[:120]!r}")
    return text


def check_tenant(text: str) -> str:
    """Return the part of a key that stands for a tenant; raise `ValueError`."""
    if not re.fullmatch(_TENANT, text):
        expected = f'{TENANT_CHARS} hex digits, "{SHARED}", or "-" to read a credential'
        raise ValueError(f"expected {expected}")  # it may be the credential itself: not repeated
    return text


def check_profile(text: str) -> str:
    """Return a name that a profile can have; raise `ValueError`."""
    if not re.fullmatch(_PROFILE, text):
        raise ValueError(f"expected a profile's name, got {text[:120]!r}")
    return text


@dataclass(frozen=True, slots=True)
class Which:
    """Which entries: all of a profile, of a tenant, of both, or all there are (both None)."""

    profile: str | None = None
    tenant: str | None = None

    @property
    def pattern(self) -> str:
        """The keys, as Redis takes a pattern; no name that a part may have has a special sign."""
        return f"{self.profile or '*'}:{self.tenant or '*'}:*"

    def has(self, key: bytes) -> bool:
        """Tell whether a key is one of them."""
        profile, _, rest = key.decode("utf-8", "replace").partition(":")
        tenant, _, _ = rest.partition(":")
        return self.profile in (None, profile) and self.tenant in (None, tenant)
