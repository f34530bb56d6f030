"""Limits over a real Redis: gateways that share, die, pause and are alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.limits import PoolLimits, Refusal
from ext_proc.adapters.redis_client import RedisClient
from ext_proc.adapters.redis_lane import Call, Command, Lane
from ext_proc.adapters.redis_limits import LEASE_MS, Asks, RedisLimits
from filters.api import Lease
from filters.errors import PortError
from tests.fakes import FakeClock, FakeStoreWatch
from tests.gateway import dead_port
from tests.redis_server import RedisServer

PATIENT_S = 20.0
NEVER_S = 600.0
OFTEN_S = 0.01
POOL = "best_effort"
LEASES = "forebay:leases:{best_effort}"
BUCKET = "forebay:bucket:{best_effort}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


class Raw:
    """Asks the server what limits do not."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def __call__(self, *command: bytes | str | int) -> Any:
        (reply,) = await self._client.ask("test", POOL.encode(), command)
        return reply

    async def ends(self) -> dict[bytes, float]:
        """Return when each lease ends."""
        pairs = iter(await self("ZRANGE", LEASES, 0, -1, "WITHSCORES"))
        return {name: float(end) for name, end in zip(pairs, pairs, strict=True)}


@pytest.fixture
async def raw(server: RedisServer) -> AsyncIterator[Raw]:
    client = RedisClient(server.url, SystemClock(), FakeStoreWatch(), timeout_s=PATIENT_S)
    raw = Raw(client)
    await raw("FLUSHALL")
    yield raw
    await client.close()


class Gateways:
    """Limits of several gateways on one Redis, and what they need."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def open(
        self,
        name: bytes,
        beat_s: float = NEVER_S,
        url: str = "",
        via: Callable[[RedisClient], Asks] = lambda client: client,
        **limits: Any,
    ) -> RedisLimits:
        url = url or self._url
        client = RedisClient(url, SystemClock(), FakeStoreWatch(), timeout_s=PATIENT_S, lanes=2)
        self._stack.push_async_callback(client.close)
        opened = RedisLimits(via(client), SystemClock(), name=name, beat_s=beat_s)
        self._stack.push_async_callback(opened.close)
        opened.follow({POOL: PoolLimits(**limits)})
        return opened


@pytest.fixture
async def gateways(server: RedisServer, raw: Raw) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as stack:
        yield Gateways(server.url, stack)


async def until(wanted: Any, look: Callable[[], Awaitable[Any]]) -> None:
    """Wait until something is so that nobody tells of; a server that was gone may be avoided."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            with contextlib.suppress(PortError):
                if wanted == await look():
                    return


async def until_held(wanted: int, raw: Raw) -> None:
    await until(wanted, lambda: raw("ZCARD", LEASES))


async def took(limits: RedisLimits, number: int) -> list[Lease]:
    taken = await asyncio.gather(*(limits.take(POOL) for _ in range(number)))
    return [lease for lease in taken if lease is not None]


async def test_two_gateways_share_the_places(gateways: Gateways, raw: Raw) -> None:
    """Together they let in as many as one would; what one gives back the other may take."""
    one = await gateways.open(b"one", concurrent=32)
    two = await gateways.open(b"two", concurrent=32)
    first, second = await asyncio.gather(took(one, 50), took(two, 50))
    assert 32 == len(first) + len(second)
    assert 32 == await raw("ZCARD", LEASES)
    for lease in first:
        lease.release()
    await until_held(len(second), raw)
    assert len(first) == len(await took(two, 50))


async def test_two_gateways_share_the_tokens(gateways: Gateways) -> None:
    """One bucket for both."""
    settings: dict[str, Any] = {"concurrent": 100, "rate": 0.01, "burst": 10}
    one = await gateways.open(b"one", **settings)
    two = await gateways.open(b"two", **settings)
    first, second = await took(one, 7), await took(two, 7)
    assert (7, 3) == (len(first), len(second))
    assert 4 == two.figures()[POOL].refused[Refusal.RATE]


async def test_what_a_dead_gateway_held_is_free_in_the_end(gateways: Gateways, raw: Raw) -> None:
    """Nobody renews it."""
    dead = await gateways.open(b"dead", concurrent=3)
    alive = await gateways.open(b"alive", concurrent=3)
    assert (2, 1) == (len(await took(dead, 2)), len(await took(alive, 1)))
    assert [] == await took(alive, 1)
    for number in range(2):  # a server's clock cannot be moved
        await raw("ZINCRBY", LEASES, -LEASE_MS, f"dead-{number}")
    assert 2 == len(await took(alive, 3))


async def test_a_lease_is_renewed_as_long_as_it_is_held(gateways: Gateways, raw: Raw) -> None:
    """It ends later and later, all others of its gateway with it, until it is given back."""
    one = await gateways.open(b"one", OFTEN_S, concurrent=3)
    leases = await took(one, 3)
    began = await raw.ends()

    async def all_later() -> bool:
        ends = await raw.ends()
        return began.keys() == ends.keys() and all(ends[name] > began[name] for name in ends)

    await until(True, all_later)
    for lease in leases:
        lease.release()
    await until_held(0, raw)
    assert 0 == one.figures()[POOL].lost


async def test_a_lease_that_is_renewed_twice_in_a_millisecond_is_not_lost(
    gateways: Gateways,
) -> None:
    """It ends when it did."""
    one = await gateways.open(b"one", concurrent=1)
    await took(one, 1)
    await asyncio.gather(*(one._renew_all() for _ in range(50)))
    assert 0 == one.figures()[POOL].lost


async def test_leases_that_redis_forgot_are_taken_again(gateways: Gateways, raw: Raw) -> None:
    """Their exchanges go on; the pool is as full as it was, and the loss is counted."""
    one = await gateways.open(b"one", OFTEN_S, concurrent=3)
    two = await gateways.open(b"two", concurrent=3)
    assert 3 == len(await took(one, 3))

    async def lost() -> int:
        await raw("PING")
        return one.figures()[POOL].lost

    for times in (1, 2):
        await raw("FLUSHALL")
        await until_held(3, raw)
        assert [] == await took(two, 1)
        await until(3 * times, lost)


@pytest.mark.slow
async def test_without_redis_a_gateway_goes_by_its_share(
    gateways: Gateways, raw: Raw, server: RedisServer
) -> None:
    """Of as many as there were; afterwards what it let in meanwhile counts for all."""
    one = await gateways.open(b"one", OFTEN_S, concurrent=10)
    two = await gateways.open(b"two", OFTEN_S, concurrent=10)

    async def known() -> list[int]:
        await raw("PING")
        return [limits.figures()[POOL].gateways for limits in (one, two)]

    await until([2, 2], known)
    server.kill()
    first, second = await took(one, 10), await took(two, 10)
    assert (5, 5) == (len(first), len(second))
    figures = one.figures()[POOL]
    assert (10, 0) == (figures.unshared, figures.lost)
    assert {Refusal.CONCURRENT: 5, Refusal.RATE: 0} == figures.refused
    server.start()
    await until_held(10, raw)
    assert (0, 0) == (one.figures()[POOL].lost, two.figures()[POOL].lost)
    for lease in first:
        lease.release()
    await until_held(5, raw)


async def test_a_gateway_that_never_found_redis_goes_by_the_whole(gateways: Gateways) -> None:
    """It knows of nobody else."""
    with dead_port() as dead:
        url = f"redis://127.0.0.1:{dead.getsockname()[1]}/0"
        one = await gateways.open(b"one", url=url, concurrent=4)
        assert 4 == len(await took(one, 10))


async def test_a_gateway_that_ends_leaves_nothing(gateways: Gateways, raw: Raw) -> None:
    """Neither what it held nor its name among those who share."""
    one = await gateways.open(b"one", OFTEN_S, concurrent=3)
    held, *_ = await took(one, 3)
    await one.close()
    assert [] == await raw("KEYS", "forebay:*")
    held.release()


async def test_a_server_whose_clock_was_set_back_keeps_nobody_out(
    gateways: Gateways, raw: Raw
) -> None:
    """Leases and tokens of a time to come would last until then."""
    ahead_s = time.time() + 3_600
    await raw("ZADD", LEASES, int(ahead_s * 1e3), "dead-1")
    await raw("SET", BUCKET, int(ahead_s * 1e6))
    one = await gateways.open(b"one", concurrent=1, rate=100.0, burst=1)

    async def entered() -> int:
        return len(await took(one, 1))

    await until(1, entered)


async def test_a_user_needs_no_other_commands_than_those_named(
    gateways: Gateways, raw: Raw, server: RedisServer
) -> None:
    """Taking, renewing and giving back, as the document has them."""
    commands = "TIME GET SET ZADD ZCARD ZREM ZREMRANGEBYSCORE PEXPIRE EVAL PING"
    may = [f"+{command.lower()}" for command in commands.split()]
    await raw("ACL", "SETUSER", "me", "reset", "on", "nopass", "~forebay:*", *may)
    url = f"redis://me@127.0.0.1:{server.port}/0"
    # The bucket stays as long as it is not full.
    one = await gateways.open(b"one", OFTEN_S, url, concurrent=2, rate=0.01, burst=10)
    first, _ = await took(one, 2)
    first.release()
    await until_held(1, raw)
    await until(2, lambda: raw("EXISTS", LEASES, BUCKET))

    async def gateways_there() -> int:
        return int(await raw("ZCARD", "forebay:gateways:{best_effort}"))

    await until(1, gateways_there)
    assert 0 == one.figures()[POOL].unshared


async def test_to_take_a_place_is_one_round_trip() -> None:
    """And tells of those that were given back before."""
    asked = Asked([[0], [0, 0]])
    limits = RedisLimits(asked, FakeClock(), name=b"one")
    limits.follow({POOL: PoolLimits(concurrent=1)})
    await asyncio.sleep(0)
    asked.commands.clear()
    first = await limits.take(POOL)
    assert first is not None
    first.release()
    assert await limits.take(POOL) is not None
    assert [["EVAL"], ["ZREM", "EVAL"]] == asked.commands
    await limits.close()


async def test_a_full_gateway_asks_nobody() -> None:
    """What it holds itself is enough to know."""
    asked = Asked([[0]])
    limits = RedisLimits(asked, FakeClock(), name=b"one")
    limits.follow({POOL: PoolLimits(concurrent=1)})
    await limits.take(POOL)
    await asyncio.sleep(0)
    asked.commands.clear()
    assert await limits.take(POOL) is None
    assert [] == asked.commands
    await limits.close()


async def test_what_is_given_back_while_it_is_renewed_stays_so(
    gateways: Gateways, raw: Raw
) -> None:
    """The renewal may come after. The place is free, and nothing was lost."""
    detour = Detour("XX")
    one = await gateways.open(b"one", OFTEN_S, via=detour.of, concurrent=1)
    (lease,) = await took(one, 1)
    await detour.set_out.wait()
    lease.release()
    await until_held(0, raw)
    detour.may_arrive.set()
    await detour.arrived.wait()
    assert [] == detour.found
    assert 0 == one.figures()[POOL].lost


async def test_a_gateway_that_ends_gives_back_what_is_being_taken_again(
    gateways: Gateways, raw: Raw
) -> None:
    """Also what was given back before."""
    detour = Detour("CH")
    one = await gateways.open(b"one", OFTEN_S, via=detour.of, concurrent=1)
    (lease,) = await took(one, 1)
    await raw("FLUSHALL")
    await detour.set_out.wait()
    lease.release()
    await detour.told.wait()
    ending = asyncio.ensure_future(one.close())
    await asyncio.sleep(0)
    detour.may_arrive.set()
    await ending
    assert [b"one-0"] == detour.found
    assert [] == await raw("KEYS", "forebay:*")


async def test_what_is_taken_for_one_that_was_cancelled_is_given_back_after_that(
    gateways: Gateways, raw: Raw, held: HeldTake
) -> None:
    """By a connection that is faster, what gives it back would come before."""
    one = await gateways.open(b"one", concurrent=3)
    await held.cancelled_take(one)
    await took(one, 1)
    await held.send()
    await one.close()
    assert [] == await raw("KEYS", "forebay:*")


async def test_a_gateway_that_ends_waits_for_what_is_taken_for_one_that_was_cancelled(
    gateways: Gateways, raw: Raw, held: HeldTake
) -> None:
    """All are cancelled when it ends."""
    one = await gateways.open(b"one", concurrent=2)
    await held.cancelled_take(one)
    await ended_before(one, held)
    assert [] == await raw("KEYS", "forebay:*")


async def test_a_gateway_that_ends_gives_back_what_a_pool_without_limits_by_now_had(
    gateways: Gateways, raw: Raw, held: HeldTake
) -> None:
    """Others may have limits for it yet."""
    one = await gateways.open(b"one", concurrent=2)
    await held.cancelled_take(one)
    for lease in tuple(one.gates[POOL].held):
        lease.release()
    await until_held(0, raw)
    one.follow({})
    await ended_before(one, held)
    assert (0, 0) == (len(one.gates), await raw("EXISTS", LEASES))


async def test_a_gateway_ends_although_one_was_cancelled_before_redis_was_found(
    gateways: Gateways,
) -> None:
    """There was nobody yet to ask."""
    with dead_port() as dead:
        url = f"redis+cluster://127.0.0.1:{dead.getsockname()[1]}"
        one = await gateways.open(b"one", url=url, concurrent=1)
        await cancelled(asyncio.ensure_future(one.take(POOL)))
        async with asyncio.timeout(PATIENT_S):
            await one.close()
    assert 0 == one.figures()[POOL].unshared


async def test_a_gateway_ends_although_a_question_broke() -> None:
    """Whoever asked hears of the bug."""
    limits = RedisLimits(Broken(), FakeClock(), name=b"one")
    limits.follow({POOL: PoolLimits(concurrent=1)})
    with pytest.raises(ZeroDivisionError):
        await limits.take(POOL)
    async with asyncio.timeout(PATIENT_S):
        await limits.close()


async def ended_before(one: RedisLimits, held: HeldTake) -> None:
    """End a gateway, and have what was held up arrive only then."""
    ending = asyncio.ensure_future(one.close())
    await asyncio.sleep(0)
    await held.send()
    await ending


async def cancelled(task: asyncio.Future[Any]) -> None:
    """Cancel it once it waits."""
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Detour:
    """Has the first renewal of a lease arrive later than what is asked after it."""

    def __init__(self, which: str) -> None:
        """Hold up one of the leases that are there (`XX`), or of any (`CH`)."""
        self.set_out = asyncio.Event()
        self.may_arrive = asyncio.Event()
        self.arrived = asyncio.Event()
        self.found: list[bytes] = []
        """What was there when it had arrived."""
        self.told = asyncio.Event()
        """Set when something was given back."""
        self._which = which
        self._client: RedisClient

    def of(self, client: RedisClient) -> Detour:
        self._client = client
        return self

    async def ask(
        self,
        operation: str,
        key: bytes,
        *commands: Command,
        over: Callable[[], object] | None = None,
    ) -> list[Any]:
        if self.set_out.is_set() or self._which not in commands[0] or b"one-0" not in commands[0]:
            replies = await self._client.ask(operation, key, *commands, over=over)
            if ("ZREM", LEASES.encode(), b"one-0") in commands:
                self.told.set()
            return replies
        self.set_out.set()
        await self.may_arrive.wait()
        replies = await self._client.ask(operation, key, *commands, over=over)
        (self.found,) = await self._client.ask("test", key, ("ZRANGE", LEASES, 0, -1))
        self.arrived.set()
        return replies


class HeldTake:
    """Holds up the second place that is taken, as a connection does that is being opened."""

    def __init__(self) -> None:
        self._send = Lane.send
        self._held: list[tuple[Lane, Sequence[Call]]] = []
        self._is_held = asyncio.Event()

    def hold(self, lane: Lane, calls: Sequence[Call]) -> None:
        """Stand in for `Lane.send`."""
        names = {part for call in calls for command in call.commands for part in command}
        if self._is_held.is_set() or b"one-1" not in names:
            self._send(lane, calls)
        else:
            self._held.append((lane, calls))
            self._is_held.set()

    async def cancelled_take(self, limits: RedisLimits) -> None:
        """Have one cancelled while its place is being taken; another is there."""
        await took(limits, 1)
        task = asyncio.ensure_future(limits.take(POOL))
        await self._is_held.wait()
        await cancelled(task)

    async def send(self) -> None:
        """Return once the place was taken."""
        ((lane, calls),) = self._held
        self._send(lane, calls)
        await asyncio.wait([call.outcome for call in calls])


@pytest.fixture
async def held(monkeypatch: pytest.MonkeyPatch) -> HeldTake:
    held = HeldTake()

    def send(lane: Lane, calls: Sequence[Call]) -> None:
        held.hold(lane, calls)

    monkeypatch.setattr(Lane, "send", send)
    return held


class Broken:
    """Stands in for Redis: to take a place raises what no caller expects."""

    async def ask(self, operation: str, key: bytes, *commands: Command, **_: Any) -> list[Any]:
        if commands[-1][0] == "EVAL" and operation == "limit":
            raise ZeroDivisionError
        return [[1, []] for _ in commands]


class Asked:
    """Stands in for Redis: gives the replies to what takes places, and keeps what it was asked."""

    def __init__(self, replies: list[list[Any]]) -> None:
        self.commands: list[list[Any]] = []
        self._replies = replies

    async def ask(
        self,
        operation: str,
        key: bytes,
        *commands: Command,
        over: Callable[[], object] | None = None,
    ) -> list[Any]:
        self.commands.append([command[0] for command in commands])
        if operation == "renew":
            return [[1, []]]
        if commands[-1][0] == "ZREM":
            return [1 for _ in commands]
        if not self._replies:
            raise PortError("nothing is left to say")
        return self._replies.pop(0)
