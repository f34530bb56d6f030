"""Put a short marker in the place of an image that is written out in a text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final

from filters.segments import edit_prose
from filters.words import WordFinder

_SHORTEST: Final = 120  # characters of Base64: below it the marker saves next to nothing
_HEAD: Final = 32  # characters: enough for every signature below

_ENDS_CHARS: Final = 4_000  # a question stands before or behind what it is about
_ABOUT_ENCODING: Final = WordFinder(
    [
        "base64", "base 64", "data uri", "data uris", "data url", "data urls", "decode", "decoded",
        "decoding", "decoder", "encode", "encoded", "encoding", "encoder", "hex", "bytes", "magic",
        "解码", "编码", "字节",
    ]
)  # fmt: skip

# What a file begins with (each format's own specification), and the same as Base64 writes it.
_SIGNATURES: Final = (
    ("iVBORw0KGgo", b"\x89PNG\r\n\x1a\n", "image/png"),
    ("/9j/", b"\xff\xd8\xff", "image/jpeg"),
    ("R0lGOD", b"GIF8", "image/gif"),
    ("UklGR", b"RIFF", "image/webp"),
    ("SUkqA", b"II*\0", "image/tiff"),
    ("TU0AK", b"MM\0*", "image/tiff"),
    ("AAABAA", b"\0\0\1\0", "image/x-icon"),
    ("ZnR5cGF2aW", b"", "image/avif"),
    ("ZnR5cGhlaW", b"", "image/heic"),
    ("PHN2Zy", b"<svg", "image/svg+xml"),
)
_BOXED: Final = {b"ftypavif": "image/avif", b"ftypheic": "image/heic", b"ftypheix": "image/heic"}
# Formats that are not named begin with zeros.
TRACES: Final = ("data:", "DATA:", "AA", "/9j/", "R0lGOD", "PHN2Zy")
"""A text without any of these holds no image."""
# Base64 in one piece, or in lines of one length as MIME writes it; the last line may be shorter,
# and is taken for Base64 where it is not all letters: it may be a word.
_RUN: Final = (
    r"(?:[A-Za-z0-9+/]{60,100}+\r?\n){1,200000}+"
    r"(?:(?=[A-Za-z]*[0-9+/=]|[A-Za-z]{21})[A-Za-z0-9+/]{1,100}+={0,2}"
    r"(?=[\"')>\]]|[ \t]*(?:\r?\n|\Z)))?"
    r"|[A-Za-z0-9+/_-]+={0,2}"
)
_URI: Final = re.compile(
    r"data:(?P<type>[a-z]{2,20}/[\w.+-]{1,60})?(?:;[\w-]{1,30}=[\w.+\"-]{1,60}){0,4}"
    rf"(?:;base64,(?P<data>{_RUN})|,(?P<plain>[\w%!$&'()*+,;=:@/?.~-]+))",
    re.IGNORECASE,
)
_BARE: Final = re.compile(
    rf"(?<![A-Za-z0-9+/_=-])(?=(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|SUkqA|TU0AK|AAABAA|PHN2Zy"
    rf"|AAAA[A-Za-z0-9+/]{{4}}ZnR5cG))(?P<data>{_RUN})"
)


def shorten_media(text: str) -> str:
    """Return `text` with images in it, as data URIs or bare Base64, shortened to type and size.

    `[image/png, 12 KB]` stands in their place. What is no image by its first bytes stays, and so
    does what is short, and a data URI of text.
    """
    if len(text) < _SHORTEST:
        return text
    return edit_prose(text, _shorten) if _may_hold(text) else text


def _may_hold(text: str) -> bool:
    for trace in TRACES:  # noqa: SIM110 - a generator costs more than the searches
        if trace in text:
            return True
    return False


def is_about_encoding(texts: Iterable[str]) -> bool:
    """Tell whether texts, what they carry aside, speak of Base64 or data URIs."""
    return any(
        _ABOUT_ENCODING.first(bare[:_ENDS_CHARS]) or _ABOUT_ENCODING.first(bare[-_ENDS_CHARS:])
        for bare in map(shorten_media, texts)
    )


def _shorten(prose: str) -> str:
    if "data:" in prose or "DATA:" in prose:
        prose = _URI.sub(_marker_of_uri, prose)
    return _BARE.sub(_marker_of_run, prose)


def _marker_of_uri(uri: re.Match[str]) -> str:
    kind = (uri["type"] or "text/plain").lower()
    if len(uri[0]) < _SHORTEST or (kind.startswith("text/") or kind.endswith("json")):
        return uri[0]
    if uri["data"] is not None:
        return f"[{kind}, {_size(_bytes_in(uri['data']))}]" + _end_of_line(uri["data"])
    return f"[{kind}, {_size(len(uri['plain']))}]" if kind.startswith("image/") else uri[0]


def _marker_of_run(run: re.Match[str]) -> str:
    data = run["data"]
    kind = _kind(data[:_HEAD]) if len(data) >= _SHORTEST else None
    return f"[{kind}, {_size(_bytes_in(data))}]" + _end_of_line(data) if kind else data


def _kind(head: str) -> str | None:
    """Return the media type that the first bytes say; None for anything but an image."""
    try:
        raw = base64.b64decode(head)
    except binascii.Error:
        return None
    if raw.startswith(b"RIFF"):
        return "image/webp" if raw[8:12] == b"WEBP" else None
    if raw[4:12] in _BOXED:
        return _BOXED[raw[4:12]]
    for _, signature, kind in _SIGNATURES:
        if signature and raw.startswith(signature):
            return kind
    return None


def _bytes_in(data: str) -> int:
    letters = len(data) - data.count("\n") - data.count("\r") - data.count("=")
    return letters * 3 // 4


def _end_of_line(data: str) -> str:
    return "\n" if data.endswith("\n") else ""


def _size(count: int) -> str:
    if count < 1_000:
        return f"{count} B"
    return f"{round(count / 1_000)} KB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"
