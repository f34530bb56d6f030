"""Plain HTTP calls to a gateway, in every provider's words and with nothing added by a client."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from multidict import CIMultiDictProxy

from filters.dialects import DIALECTS
from filters.document import Document
from tests.exchanges import ask as exchange

ONE_WRITE_BYTES: Final = 1 << 20  # aiohttp asks for a file where there are more
GEMINI_ARRAY: Final = "/v1beta/models/m:streamGenerateContent"
ROOM: Final[Mapping[str, Mapping[str, Any]]] = {
    "openai.completions": {"max_tokens": 400},  # by default 16
    "anthropic.messages": {"max_tokens": 400},
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as a provider's client writes it."""

    path: str
    body: bytes
    dialect: str = ""


def ask_for(dialect: str, question: str, *, array: bool = False, **options: Any) -> Ask:
    """Return how a client of `dialect` asks; options are those of `tests.exchanges.ask`.

    `array` asks Gemini for a stream that is one JSON array. Where answers would be cut short by a
    limit, there is room for a whole one.
    """
    more = ROOM.get(dialect, {}) | options.pop("more", {})
    made = exchange(dialect, question, more=more, **options)
    path = GEMINI_ARRAY if array else made.head.path
    return Ask(path, made.prompt.document.raw, dialect)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply that came whole; `cut` if the connection ended before it did."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes
    cut: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cache(self) -> str | None:
        return self.headers.get("x-cache")

    @property
    def quality(self) -> str | None:
        return self.headers.get("x-model-quality")


class Caller:
    """Calls one gateway; `key` is the credential, sent the way each provider's clients send it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self.http: Final = http
        self.url: Final = url
        self.key: Final = key

    def with_key(self, key: str) -> Caller:
        """Return a caller with another credential."""
        return Caller(self.http, self.url, key)

    async def __call__(
        self,
        ask: Ask,
        profile: str = "",
        headers: Mapping[str, str] | None = None,
        **commands: str,
    ) -> Reply:
        """Ask; `commands` go to the simulator as `x-test-` headers."""
        path = f"/p/{profile}{ask.path}" if profile else ask.path
        given = {"content-type": "application/json", **self._credential(ask.path)}
        return await self.send("POST", path, ask.body, {**given, **(headers or {})}, **commands)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **commands: str,
    ) -> Reply:
        """Send a request as it stands."""
        if isinstance(body, bytes) and len(body) > ONE_WRITE_BYTES:
            body = io.BytesIO(body)
        given = {f"x-test-{name.replace('_', '-')}": value for name, value in commands.items()}
        async with self.http.request(
            method,
            self.url + path,
            data=body,
            headers={"accept-encoding": "identity", **given, **(headers or {})},
            skip_auto_headers=("user-agent", "accept", "content-type"),
        ) as reply:
            body = bytearray()
            try:
                async for piece in reply.content.iter_any():
                    body += piece
            except aiohttp.ClientError:
                return Reply(reply.status, reply.headers, bytes(body), cut=True)
            return Reply(reply.status, reply.headers, bytes(body))

    def _credential(self, path: str) -> dict[str, str]:
        if not self.key:
            return {}
        if "/messages" in path:
            return {"x-api-key": self.key}
        if ":" in path:
            return {"x-goog-api-key": self.key}
        return {"authorization": f"Bearer {self.key}"}


def text_of(dialect: str, body: bytes) -> str:
    """Return what a plain reply says."""
    return DIALECTS[dialect].read_reply(json.loads(body)).text


def streamed_text(dialect: str, question: Ask, reply: Reply) -> str:
    """Return what a stream says, read to its end; fail when it is not complete."""
    view = DIALECTS[dialect]
    prompt = view.read(Document(question.body), question.path)
    framer = view.framer(reply.headers["content-type"], prompt)
    assert framer is not None, reply.headers
    events = [*framer.feed(reply.body), *framer.close()]
    assembled = view.assemble(events)
    assert assembled is not None, reply.body
    return text_of(dialect, assembled)
