"""Find a place for an exchange in the first of several pools that works and is not full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from filters.api import UNLIMITED, Exchange, Lease, Need, Ports, ReplyHead, Staged
from filters.routing import Choice, Rule, Size

FIRST_BAD: Final = 500
FIRST_OF_CLIENTS: Final = 400  # what is below `FIRST_BAD` then is the client's own fault


class Place:
    """Where one exchange runs. `leave` is to be called in the end, whatever happened."""

    def __init__(self, ports: Ports) -> None:
        self._ports: Final = ports
        self._lease: Lease = UNLIMITED
        self._admitted = ""
        """The pool whose breaker waits to hear how it ended, since `_admitted_ns`."""
        self._admitted_ns = 0
        self._began_well = ""
        """The pool whose breaker was told that it did well, at `_well_ns`."""
        self._well_ns = 0

    async def enter(self, exchange: Exchange, line: Sequence[Choice], size: Size) -> Choice | None:
        """Take a place in the first pool that works and has one; None where all are full.

        Where those with room are broken, the first of them is asked all the same: some of its
        answers are errors, and an answer of ours would be one for certain.
        """
        missed: Choice | None = None
        broken: list[tuple[Choice, Staged]] = []
        for choice, staged in self._staged(exchange, line, size):
            pool = choice.pool
            if not self._ports.breakers.admits(pool):
                broken.append((choice, staged))
                missed = missed or choice._replace(rule=Rule.BREAKER)
                continue
            watches = self._ports.breakers.watches(pool)
            if watches:
                self._admitted, self._admitted_ns = pool, self._ports.clock.monotonic_ns()
            if await self._take(exchange, pool):
                if watches:
                    exchange.need(Need.HEAD)
                exchange.staged = staged
                return choice if missed is None else _instead(choice, missed)
            self._let_go(good=None)
            missed = missed or choice._replace(rule=Rule.LIMIT)
        for choice, staged in broken:
            if await self._take(exchange, choice.pool):
                exchange.staged = staged
                return choice._replace(why=f"{choice.pool} is broken, and so are all others")
        return None

    def answered(self, head: ReplyHead) -> None:
        """Say how the pool did: by the head, for what follows may last minutes, or be unread.

        The proxy's own errors are among them: no connection, no answer in time. An error below 500
        is the client's and says nothing; nor does a 429: this one asks too much, and others may be
        served well.
        """
        says = not FIRST_OF_CLIENTS <= head.status < FIRST_BAD
        if self._admitted and says and head.status < FIRST_BAD:
            self._began_well, self._well_ns = self._admitted, self._ports.clock.monotonic_ns()
        self._let_go(good=head.status < FIRST_BAD if says else None)

    def leave(self, head: ReplyHead | None, *, broke_off: bool = False) -> None:
        """Give the place back, and say how the pool did. May be called again.

        `broke_off`: what the upstream answered is not whole, and nobody else is to blame.
        """
        self._lease.release()
        if head is not None:
            self.answered(head)
        pool, self._began_well = self._began_well, ""
        if pool and broke_off:
            self._ports.breakers.broke(pool, self._admitted_ns, self._well_ns)
        self._let_go(good=None)  # the client left, or it was answered here

    async def _take(self, exchange: Exchange, pool: str) -> bool:
        lease = await self._ports.limits.take(pool)
        if lease is None:
            return False
        self._lease = lease
        if lease is not UNLIMITED:
            exchange.need(Need.END)
        return True

    def _let_go(self, *, good: bool | None) -> None:
        if self._admitted:
            pool, self._admitted = self._admitted, ""
            self._ports.breakers.ended(pool, self._admitted_ns, good=good)

    def _staged(
        self, exchange: Exchange, line: Sequence[Choice], size: Size
    ) -> Iterator[tuple[Choice, Staged]]:
        """Return each pool, behind the one that is on its way into its place for this tenant."""
        for choice in line:
            staged = self._ports.stages.choose(choice.pool, exchange.tenant)
            if staged.pool != choice.pool and self._ports.pools[staged.pool].holds(*size):
                why = f"stage: in the place of {choice.pool}"
                yield Choice(staged.pool, Rule.STAGE, why), staged
            yield choice, staged


def _instead(choice: Choice, missed: Choice) -> Choice:
    """Say that a pool serves because the one before it could not."""
    what = "broken" if missed.rule is Rule.BREAKER else "full"
    return Choice(choice.pool, missed.rule, f"{missed.pool} is {what}")
