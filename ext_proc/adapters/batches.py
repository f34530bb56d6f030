"""Ask for several embeddings in one call, by way of Envoy's egress listener.

The call has the headers that its first request would have had upstream, credentials included: only
requests that have the same ones are together in it. What comes back is anything but a good answer
for each: then all go on by themselves, by the way that they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Final, Protocol

import aiohttp
from yarl import URL

from ext_proc.adapters.upstream import open_egress
from ext_proc.telemetry.traceparent import parse_traceparent
from filters.api import Answer, Clock, Part
from filters.onward import returned_headers

MOST_CALLS: Final = 64  # batches at once, so up to 1,024 texts of the default size
MOST_WAITING: Final = 4_000  # as many as may wait for another's answer
MOST_BYTES: Final = 64 * 1024 * 1024  # of texts that wait
MOST_ANSWER_BYTES: Final = 8 * 1024 * 1024  # 93 vectors of 4,096 numbers of 22 characters
REST_S: Final = 5.0  # after an upstream failed: what is wrong with it, its own breaker finds out
MOST_RESTING: Final = 1_000
# What one text may be the cause of. Everything else is true of each call, so that the next batch
# would end alike.
OF_ONE: Final = frozenset((400, 413, 422))


class BatchWatch(Protocol):
    """Who is told how each batch went."""

    def batch_asked(self, outcome: str, size: int) -> None:
        """Count a batch of so many: `answered`, or why its requests went on by themselves."""


class _Failed(Exception):
    """A call came to nothing; `outcome` is why, `rests` whether the next one would too."""

    def __init__(self, outcome: str, *, rests: bool = True) -> None:
        super().__init__(outcome)
        self.outcome: Final = outcome
        self.rests: Final = rests


class EgressBatches:
    """The `Batches` of a server. One task asks for each batch; those in it have a future each."""

    def __init__(
        self,
        egress: str | tuple[str, int],
        clock: Clock,
        watch: BatchWatch,
        *,
        most_calls: int = MOST_CALLS,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Connect to nothing yet; know of no pool."""
        self.waiting = 0
        """How many wait, for others or for an answer."""
        self.held_bytes = 0
        """The texts of those who wait."""
        self._egress: Final = egress
        self._clock: Final = clock
        self._watch: Final = watch
        self._most_calls: Final = most_calls
        self._most_waiting: Final = most_waiting
        self._most_bytes: Final = most_bytes
        self._clusters: Mapping[str, str] = {}
        self._kinds: Final[dict[Hashable, _Kind]] = {}
        self._resting: Final[dict[Hashable, int]] = {}
        """Until when those of a kind go by themselves, in the order in which that began."""
        self._calls: Final[set[asyncio.Task[None]]] = set()
        self._http: aiohttp.ClientSession | None = None

    def __len__(self) -> int:
        """Return of how many kinds something is under way."""
        return len(self._kinds)

    @property
    def calls(self) -> int:
        """How many batches are being asked for."""
        return len(self._calls)

    def follow(self, clusters: Mapping[str, str]) -> None:
        """Take Envoy's names of the pools."""
        self._clusters = clusters

    async def close(self) -> None:
        """Give up every call, have those who wait go by themselves, and close every connection."""
        for kind in tuple(self._kinds.values()):
            if kind.gathering is not None:
                self._disperse(kind.gathering, "closed")
        for call in tuple(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def take(self, part: Part, *, most: int, wait_s: float, deadline_s: float) -> EgressBerth:
        """See `filters.api.Batches`."""
        berth = EgressBerth(self, part)
        alike = part.alike
        if part.pool not in self._clusters or self._rests(alike):
            return berth
        kind = self._kinds.get(alike)
        if kind is None:
            kind = self._kinds[alike] = _Kind(alike)
            self._lead(kind, berth)
            return berth
        size = len(part.single.item)
        if self.waiting >= self._most_waiting or self.held_bytes + size > self._most_bytes:
            berth.why = "full"
            return berth
        batch = kind.gathering
        if batch is None:
            batch = kind.gathering = _Batch(kind, deadline_s)
            batch.timer = asyncio.get_running_loop().call_later(wait_s, self._send, batch)
        batch.berths[berth] = None
        berth.batch = batch
        self.waiting += 1
        self.held_bytes += size
        if len(batch.berths) >= most:
            self._send(batch)
        return berth

    def settle(self, kind: _Kind) -> None:
        """Take away one that was under way; behind the last one go those who waited meanwhile."""
        kind.under_way -= 1
        if kind.under_way:
            return
        if kind.gathering is not None:
            self._send(kind.gathering)
        else:
            del self._kinds[kind.alike]

    def leave(self, berth: EgressBerth, batch: _Batch) -> None:
        """Take one that waits out of its batch; a call that nobody waits for any more is given up.

        Its place in a call that is under way stays, for nobody.
        """
        self._release(berth)
        del batch.berths[berth]
        if batch.berths:
            return
        if batch.call is not None:
            batch.call.cancel()
        elif batch.kind.gathering is batch:
            batch.kind.gathering = None
            batch.stop()

    def _rests(self, alike: Hashable) -> bool:
        """Tell whether those of a kind go by themselves after one of their batches failed."""
        if not self._resting or alike not in self._resting:
            return False
        if self._resting[alike] > self._clock.monotonic_ns():
            return True
        del self._resting[alike]
        return False

    def _lead(self, kind: _Kind, berth: EgressBerth) -> None:
        berth.leads = True
        berth.kind = kind
        kind.under_way += 1

    def _release(self, berth: EgressBerth) -> None:
        berth.batch = None
        self.waiting -= 1
        self.held_bytes -= len(berth.part.single.item)

    def _send(self, batch: _Batch) -> None:
        """Close a batch and ask for it; one that is alone in it goes by itself."""
        kind = batch.kind
        kind.gathering = None
        batch.stop()
        if len(batch.berths) == 1:
            (berth,) = batch.berths
            self._lead(kind, berth)
            self._tell(berth, None)
        elif len(self._calls) >= self._most_calls:
            self._disperse(batch, "full")
            kind.under_way += 1
            self.settle(kind)
        else:
            kind.under_way += 1
            batch.sent = tuple(batch.berths)
            batch.call = asyncio.create_task(self._ask(batch), name="batch")
            self._calls.add(batch.call)
            batch.call.add_done_callback(partial(self._over, batch))

    async def _ask(self, batch: _Batch) -> None:
        for berth, answer in zip(batch.sent, await self._answers(batch), strict=True):
            berth.size = len(batch.sent)
            if berth in batch.berths:
                self._tell(berth, answer)

    def _over(self, batch: _Batch, call: asyncio.Task[None]) -> None:
        """Let go of a batch, also of one whose call was given up before it began."""
        self._calls.discard(call)
        match None if call.cancelled() else call.exception():
            case _Failed(outcome=outcome, rests=rests):
                if rests:
                    self._rest(batch.kind.alike)
            case None:
                outcome = "left" if call.cancelled() else "answered"
            case _:  # a bug of ours, whose text may quote a prompt
                outcome = "bug"
        self._disperse(batch, outcome)
        self.settle(batch.kind)
        self._watch.batch_asked(outcome, len(batch.sent))

    async def _answers(self, batch: _Batch) -> list[Answer]:
        """Return an answer for each; raise `_Failed` where there is not one for all of them."""
        first = batch.sent[0].part
        way, path = first.way, first.path
        singles = [berth.part.single for berth in batch.sent]
        body = way.join(path, singles)
        headers, reply = await self._post(first, way.path(path), body, batch.deadline_s)
        replies = way.split(path, reply, [single.weight for single in singles])
        if replies is None:
            raise _Failed("unreadable")
        return [Answer(200, headers, one, relayed=True) for one in replies]

    async def _post(
        self, first: Part, path: str, body: bytes, deadline_s: float
    ) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of a good reply.

        A call that is late or cancelled takes its connection along: Envoy sees that, and breaks off
        the call to the upstream.
        """
        cluster = self._clusters.get(first.pool)
        if cluster is None:
            raise _Failed("broken")  # the settings changed meanwhile
        # A request that names no type is JSON all the same; aiohttp would say that it is not.
        headers = {"content-type": "application/json", **first.headers}
        headers["x-forebay-cluster"] = cluster
        if parse_traceparent(first.traceparent):
            headers["traceparent"] = first.traceparent
        if self._http is None:
            self._http = open_egress(self._egress)
        # What stands behind two slashes, or a scheme, would be another host than the listener's.
        url = URL("/" + path.lstrip("/"), encoded=True)
        try:
            async with (
                asyncio.timeout(deadline_s),
                self._http.post(url, data=body, headers=headers, allow_redirects=False) as reply,
            ):
                if reply.status != 200:
                    raise _Failed(_why(reply.status), rests=reply.status not in OF_ONE)
                if "content-encoding" in reply.headers:
                    raise _Failed("unreadable")
                return returned_headers(reply.headers), await _bounded(reply.content)
        except TimeoutError:
            raise _Failed("late") from None
        except (aiohttp.ClientError, OSError):
            raise _Failed("broken") from None

    def _rest(self, alike: Hashable) -> None:
        self._resting.pop(alike, None)
        while len(self._resting) >= MOST_RESTING:
            del self._resting[next(iter(self._resting))]
        self._resting[alike] = self._clock.monotonic_ns() + round(REST_S * 1e9)

    def _disperse(self, batch: _Batch, why: str) -> None:
        """Have all who still wait go by themselves."""
        batch.stop()
        if batch.kind.gathering is batch:
            batch.kind.gathering = None
        for berth in tuple(batch.berths):
            berth.why = why
            self._tell(berth, None)

    def _tell(self, berth: EgressBerth, answer: Answer | None) -> None:
        batch = berth.batch
        assert batch is not None  # it waits
        del batch.berths[berth]
        self._release(berth)
        berth.given = answer
        if berth.told is not None and not berth.told.done():
            berth.told.set_result(None)


class _Kind:
    """Requests of which any two may be asked together."""

    __slots__ = ("alike", "gathering", "under_way")

    def __init__(self, alike: Hashable) -> None:
        self.alike: Final = alike
        self.under_way = 0
        """How many upstream calls are, batches or not."""
        self.gathering: _Batch | None = None
        """The batch that waits for more."""


class _Batch:
    """Those who wait together, in the order in which they came."""

    __slots__ = ("berths", "call", "deadline_s", "kind", "sent", "timer")

    def __init__(self, kind: _Kind, deadline_s: float) -> None:
        self.kind: Final = kind
        self.deadline_s: Final = deadline_s
        self.berths: Final[dict[EgressBerth, None]] = {}
        """Without those who left."""
        self.sent: tuple[EgressBerth, ...] = ()
        """Those who were in it when it went."""
        self.timer: asyncio.TimerHandle | None = None
        self.call: asyncio.Task[None] | None = None
        """None while it waits for more."""

    def stop(self) -> None:
        """Wait for no more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class EgressBerth:
    """One request's place; it waits as long as it has a batch."""

    __slots__ = ("_batches", "batch", "given", "kind", "leads", "part", "size", "told", "why")

    def __init__(self, batches: EgressBatches, part: Part) -> None:
        self._batches: Final = batches
        self.part: Final = part
        self.leads = False
        self.size = 0
        self.why = ""
        self.kind: _Kind | None = None
        """Where it leads, what it leads."""
        self.batch: _Batch | None = None
        self.told: asyncio.Future[None] | None = None
        self.given: Answer | None = None

    async def answer(self) -> Answer | None:
        """See `filters.api.Berth`."""
        if self.batch is not None:
            self.told = asyncio.get_running_loop().create_future()
            try:
                await self.told
            except asyncio.CancelledError:
                self.leave()  # it may have been told to lead a moment ago
                raise
        given, self.given = self.given, None
        return given

    def leave(self) -> None:
        """See `filters.api.Berth`."""
        if self.batch is not None:
            self._batches.leave(self, self.batch)
        kind, self.kind = self.kind, None
        if kind is not None:
            self.leads = False
            self._batches.settle(kind)


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    reply = bytearray()
    async for piece in content.iter_any():
        reply += piece
        if len(reply) > MOST_ANSWER_BYTES:
            raise _Failed("unreadable")
    return bytes(reply)


def _why(status: int) -> str:
    """Name what a status says."""
    if status in OF_ONE:
        return "refused"
    return "throttled" if status == 429 else "denied" if status < 500 else "failed"
