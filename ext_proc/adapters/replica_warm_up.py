"""Ask a replica that has just begun what it will be asked, before clients do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohttp
import msgspec

FIRST_REST_S: Final = 0.5
"""After a try that failed; then twice as long, and so on."""
MOST_REST_S: Final = 10.0
MOST_BYTES: Final = 1 << 20
"""Of a reply: an answer of one token has some hundred."""
PATH: Final = "/v1/chat/completions"
WARM: Final = "warm"

Prompt: TypeAlias = Mapping[str, Any]
"""A chat completion as OpenAI's API has it, without its model and the length of its answer."""
Warmed: TypeAlias = Callable[[str], None]
"""Told when it is over: `WARM`, or why not, such as "late: status 503"."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What a replica is asked, and how."""

    prompts: Sequence[Prompt]
    model: str = ""
    """Empty: the first that the replica names."""
    max_tokens: int = 1
    concurrency: int = 4
    """Prompts at once."""
    deadline_s: float = 120.0
    """For all of them, and for all tries."""
    slow_start_s: float = 30.0
    """How long its share of requests grows after that."""


class _Unwilling(Exception):
    """A replica does not take what it is asked, and will not."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS: Final = msgspec.json.Decoder(_Models)


class Warmer:
    """Warms replicas up, each in a task of its own; what fails is asked again until the deadline.

    Nothing is done about a replica that stays cold but to say so: a pool must not be lost to it.
    """

    def __init__(
        self,
        *,
        rng: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Warm nobody yet."""
        self._rng: Final = rng
        self._sleep: Final = sleep
        self._http: aiohttp.ClientSession | None = None
        self._tasks: Final[dict[tuple[str, str], asyncio.Task[None]]] = {}

    def warm(self, pool: str, address: str, how: WarmUp, warmed: Warmed) -> None:
        """Begin to warm a replica of a pool up; one that is under way begins anew."""
        self.forget(pool, address)

        async def run() -> None:
            said = await self._warm(address, how)
            del self._tasks[pool, address]
            warmed(said)

        self._tasks[pool, address] = asyncio.create_task(run())

    def forget(self, pool: str, address: str) -> None:
        """Stop warming a replica up; nobody is told."""
        task = self._tasks.pop((pool, address), None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Warm nobody any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self._http is not None:
            await self._http.close()

    async def _warm(self, address: str, how: WarmUp) -> str:
        said = "nothing"
        left: Sequence[Prompt] = how.prompts
        model, rest_s = how.model, FIRST_REST_S
        try:
            async with asyncio.timeout(how.deadline_s):
                while left:
                    try:
                        model = model or await self._model_of(address)
                        left, said = await self._ask_all(address, how, model, left)
                    except (aiohttp.ClientError, OSError) as error:
                        said = type(error).__name__
                    if left:
                        await self._sleep(rest_s * (0.5 + self._rng() / 2))
                        rest_s = min(MOST_REST_S, 2 * rest_s)
        except TimeoutError:
            return f"late: {said}"
        except _Unwilling as error:
            return f"unwilling: {error}"
        return WARM

    async def _ask_all(
        self, address: str, how: WarmUp, model: str, prompts: Sequence[Prompt]
    ) -> tuple[Sequence[Prompt], str]:
        """Return the prompts that failed, and what was said of the last of them."""
        waiting = list(reversed(prompts))
        failed: list[Prompt] = []
        said = ""

        async def ask_on() -> None:
            nonlocal said
            while waiting:
                prompt = waiting.pop()
                body = {**prompt, "model": model, "max_tokens": how.max_tokens, "stream": False}
                try:
                    status, _ = await self._read("POST", f"http://{address}{PATH}", body)
                except (aiohttp.ClientError, OSError) as error:
                    failed.append(prompt)
                    said = type(error).__name__
                    continue
                if status in (408, 429) or status >= 500:
                    failed.append(prompt)
                    said = f"status {status}"
                elif status != 200:
                    raise _Unwilling(f"status {status}")

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_told(ask_on()))
                for _ in range(min(how.concurrency, len(prompts)))
            ]
        for task in tasks:
            if (error := task.result()) is not None:
                raise error
        return failed, said

    async def _model_of(self, address: str) -> str:
        """Return the first model that a replica names."""
        status, body = await self._read("GET", f"http://{address}/v1/models", None)
        if status >= 500 or status in (408, 429):
            raise aiohttp.ClientError(f"status {status}")
        if status != 200:
            raise _Unwilling(f"status {status} for its models")
        try:
            return _MODELS.decode(body).data[0].id
        except (msgspec.DecodeError, IndexError):
            raise _Unwilling("it names no model") from None

    async def _read(self, method: str, url: str, body: Any) -> tuple[int, bytes]:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        data = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json"}
        async with self._http.request(
            method, url, data=data, headers=headers, allow_redirects=False
        ) as reply:
            read = bytearray()
            async for piece in reply.content.iter_any():
                read += piece
                if len(read) > MOST_BYTES:
                    break
            return reply.status, bytes(read)


async def _told(asking: Awaitable[None]) -> _Unwilling | None:
    """Return the refusal of a replica, so that the others' answers are waited for."""
    try:
        await asking
    except _Unwilling as error:
        return error
    return None
