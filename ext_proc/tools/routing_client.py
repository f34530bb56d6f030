"""Ask a gateway what a load asks, in real time, and take the time to each first token.

Sessions begin when the load says, whether or not those before are answered; within a session, a
question waits for the answer before it, which is part of it. Prompts are text that is nothing but
the same wherever the load says that tokens are the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

import aiohttp
import msgspec

from ext_proc.tools.routing_loads import Label, Session, Sessions
from ext_proc.tools.simulated_model import BYTES_PER_TOKEN
from filters.document import encode

ANSWER_S: Final = 60.0
"""Who has no whole answer by then gives up."""
_FIRST: Final = re.compile(rb'"content": ?"(?!")')
_PIECES: Final = re.compile(rb'"content": ?("(?:[^"\\]|\\.)*")')
_DONE: Final = b"data: [DONE]"


@dataclass(slots=True)
class Told:
    """A question and what came of it, in seconds on the event loop's clock."""

    number: int
    due_s: float
    sent_s: float = 0.0
    first_s: float = 0.0
    replica: str = ""
    """Who answered, where whoever is between lets it through."""
    error: str = ""
    """Why there is no whole answer; empty when there is one."""

    @property
    def ttft_s(self) -> float:
        """From when it was to be asked to its first token."""
        return self.first_s - self.due_s


class Client:
    """Plays the first so many questions of a load."""

    def __init__(self, url: str, model: str, sessions: Sessions, requests: int) -> None:
        self._url: Final = f"{url}/v1/chat/completions"
        self._model: Final = model
        self._sessions: Final = sessions
        self._requests: Final = requests
        self._numbers: Final = count()
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._over: Final = asyncio.Event()
        self.told: Final[list[Told]] = []
        """Those that were asked, in their order."""
        self._left = requests
        self._failed: BaseException | None = None

    async def play(self, warm: int, on_warm: Callable[[], Awaitable[None]]) -> Sequence[Told]:
        """Return the first so many questions but `warm`; call `on_warm` before the first of them.

        Others go on asking until all of these are answered.
        """
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            self._spawn(self._begin(http, warm, on_warm))
            try:
                await self._over.wait()
            finally:
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if self._failed is not None:
            raise self._failed
        return self.told[warm : self._requests]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed = error
            self._over.set()

    async def _begin(
        self, http: aiohttp.ClientSession, warm: int, on_warm: Callable[[], Awaitable[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        is_warm = False
        for at_s, session in self._sessions:
            await asyncio.sleep(start_s + at_s - loop.time())
            if not is_warm and len(self.told) >= warm:
                is_warm = True
                await on_warm()
            self._spawn(self._ask_all(http, session, start_s + at_s))

    async def _ask_all(self, http: aiohttp.ClientSession, session: Session, due_s: float) -> None:
        loop = asyncio.get_running_loop()
        messages = _beginning(session)
        while (pause_s := session.pause_s) is not None:
            if session.asked:
                due_s = loop.time() + pause_s
                await asyncio.sleep(pause_s)
            turn = session.turns[session.asked]
            label = (f"session {session.number}", 2 * session.asked + 2)
            session.asked += 1
            messages.append({"role": "user", "content": text_of(label, turn.asked)})
            told = Told(next(self._numbers), due_s)
            self.told.append(told)
            answer = await self._ask(http, messages, turn.answered, told)
            if told.number < self._requests:
                self._left -= 1
                if not self._left:
                    self._over.set()
            if told.error:
                return
            messages.append({"role": "assistant", "content": answer})

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        messages: Sequence[dict[str, str]],
        tokens: int,
        told: Told,
    ) -> str:
        body = encode(
            {
                "model": self._model,
                "messages": messages,
                "stream": True,
                "max_tokens": tokens,
                "ignore_eos": True,
            }
        )
        loop = asyncio.get_running_loop()
        told.sent_s = loop.time()
        read = bytearray()
        try:
            async with http.post(
                self._url, data=body, headers={"content-type": "application/json"}
            ) as reply:
                told.replica = reply.headers.get("x-simulated-replica", "")
                async for chunk in reply.content.iter_any():
                    read += chunk
                    if not told.first_s and _FIRST.search(read):
                        told.first_s = loop.time()
            if reply.status != 200:
                told.error = f"status {reply.status}"
            elif not told.first_s or _DONE not in read[-64:]:
                told.error = "broken off"
        except TimeoutError:
            told.error = "no answer"
        except aiohttp.ClientError as error:
            told.error = type(error).__name__
        return _said(read)


def _said(read: bytes | bytearray) -> str:
    with suppress(msgspec.DecodeError):
        return "".join(msgspec.json.decode(piece, type=str) for piece in _PIECES.findall(read))
    return ""


def _beginning(session: Session) -> list[dict[str, str]]:
    """Return what comes before a session's first question: others may begin alike."""
    text = "".join(text_of(label, tokens) for label, tokens in session.said.parts)
    return [{"role": "system", "content": text}] if text else []


def text_of(label: Label, tokens: int) -> str:
    """Return so many tokens of text, the same at the beginning wherever the label is."""
    size = tokens * BYTES_PER_TOKEN
    return hashlib.shake_128(repr(label).encode()).hexdigest(-(-size // 2))[:size]


def errors_of(told: Sequence[Told]) -> dict[str, int]:
    """Count the errors by their kind."""
    kinds = [one.error for one in told if one.error]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def late_s(told: Sequence[Told]) -> Iterator[float]:
    """Return how late each was sent: a client that cannot keep up measures itself."""
    return (one.sent_s - one.due_s for one in told)
