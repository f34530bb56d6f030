"""A replica that has begun is asked its prompts until it has answered them, or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from ext_proc.adapters.replica_warm_up import FIRST_REST_S, MOST_REST_S, WARM, Warmer, WarmUp
from ext_proc.warm_up_file import prompt_of
from tests.gateway import dead_port
from tests.model_server import ModelServer

PATIENCE_S = 60.0
POOL = "full"
TEXTS = ("Why is the basin calm?", "Where does the water go?", "Who opens the gates?")
HOW = WarmUp([prompt_of(text) for text in TEXTS], deadline_s=PATIENCE_S)


class Rests:
    """Rests that take no time; how long each was to be is kept."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self._came = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self._came.set()
        await asyncio.sleep(0)

    async def until(self, count: int) -> None:
        """Wait until so many were taken."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.taken) < count:
                self._came.clear()
                await self._came.wait()


@pytest.fixture
def rests() -> Rests:
    return Rests()


@pytest.fixture
async def warmer(rests: Rests) -> AsyncIterator[Warmer]:
    made = Warmer(rng=lambda: 1.0, sleep=rests)
    yield made
    await made.close()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as made:
        yield made


async def warmed(warmer: Warmer, address: str, how: WarmUp = HOW) -> str:
    """Warm a replica up and return what became of it."""
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    warmer.warm(POOL, address, how, said.set_result)
    async with asyncio.timeout(PATIENCE_S):
        return await said


def texts(server: ModelServer) -> Sequence[str]:
    return [chat["messages"][0]["content"] for chat in server.chats]


async def test_every_prompt_is_asked_once_for_a_token_of_the_model_there(
    warmer: Warmer, server: ModelServer
) -> None:
    """A whole answer of one token, of the first model that the replica names."""
    assert WARM == await warmed(warmer, server.address)
    assert sorted(TEXTS) == sorted(texts(server))
    asked = {(chat["model"], chat["max_tokens"], chat["stream"]) for chat in server.chats}
    assert {("m", 1, False)} == asked


async def test_a_model_that_is_named_is_not_looked_for(warmer: Warmer, server: ModelServer) -> None:
    """A server may hide its list."""
    server.has_models = False
    assert WARM == await warmed(warmer, server.address, replace(HOW, model="n", max_tokens=2))
    assert {("n", 2)} == {(chat["model"], chat["max_tokens"]) for chat in server.chats}


async def test_no_more_are_asked_at_once_than_is_said(warmer: Warmer, server: ModelServer) -> None:
    """The others wait for an answer."""
    server.answers.clear()
    warming = asyncio.create_task(warmed(warmer, server.address, replace(HOW, concurrency=2)))
    await server.chatted(2)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 2 == len(server.chats)
    server.answers.set()
    assert WARM == await warming
    assert 3 == len(server.chats)


async def test_what_failed_is_asked_again_after_longer_and_longer_rests(
    warmer: Warmer, rests: Rests, server: ModelServer
) -> None:
    """And nothing else is."""
    server.statuses.extend([503, 200, 200, 500, 429])
    assert WARM == await warmed(warmer, server.address, replace(HOW, concurrency=1))
    assert [*TEXTS, *[TEXTS[0]] * 3] == texts(server)
    assert [FIRST_REST_S, 2 * FIRST_REST_S, 4 * FIRST_REST_S] == rests.taken


async def test_a_rest_has_a_bound(warmer: Warmer, rests: Rests, server: ModelServer) -> None:
    """A replica that needs minutes is asked every ten seconds."""
    server.statuses.extend([503] * 30)
    assert WARM == await warmed(warmer, server.address)
    assert MOST_REST_S == max(rests.taken)


async def test_a_replica_that_does_not_listen_yet_is_asked_again(
    warmer: Warmer, rests: Rests
) -> None:
    """Once it does, it is warmed up."""
    with dead_port() as dead:
        port = dead.getsockname()[1]
        warming = asyncio.create_task(warmed(warmer, f"127.0.0.1:{port}"))
        await rests.until(3)
    async with ModelServer(port) as server:
        assert WARM == await warming
        assert 3 == len(server.chats)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_replica_that_refuses_is_not_asked_again(
    warmer: Warmer, rests: Rests, server: ModelServer, status: int
) -> None:
    """It would refuse again; the others are asked."""
    server.statuses.append(status)
    assert f"unwilling: status {status}" == await warmed(warmer, server.address)
    assert (3, []) == (len(server.chats), rests.taken)


async def test_a_replica_that_names_no_model_is_not_asked(
    warmer: Warmer, server: ModelServer
) -> None:
    """Nothing is known to ask for."""
    server.has_models = False
    said = "unwilling: status 404 for its models"
    assert (said, 0) == (await warmed(warmer, server.address), len(server.chats))


async def test_time_is_up_for_a_replica_that_does_not_answer(
    warmer: Warmer, server: ModelServer
) -> None:
    """Whoever waits for it is told why."""
    server.answers.clear()
    how = replace(HOW, deadline_s=0.05)
    assert "late: nothing" == await warmed(warmer, server.address, how)


async def test_one_that_begins_again_meanwhile_is_warmed_up_anew(
    warmer: Warmer, server: ModelServer
) -> None:
    """The first try ends without a word."""
    server.answers.clear()
    warmer.warm(POOL, server.address, HOW, pytest.fail)
    await server.chatted(3)
    server.answers.set()
    assert WARM == await warmed(warmer, server.address)
    assert 6 == len(server.chats)


async def test_one_that_is_forgotten_is_asked_no_more(warmer: Warmer, server: ModelServer) -> None:
    """Nobody is told; to forget a stranger does nothing."""
    server.answers.clear()
    warmer.warm(POOL, server.address, HOW, pytest.fail)
    await server.chatted(1)
    warmer.forget(POOL, server.address)
    warmer.forget(POOL, server.address)
    assert WARM == await warmed(warmer, server.address, replace(HOW, prompts=()))
