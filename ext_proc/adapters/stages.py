"""Bring a pool in step by step, and ask the shadows, by way of Envoy's egress listener.

A shadow is asked when the client has its answer, under the same headers, credentials included: it
is to take the place of the pool that had them. Nobody waits for it. What finds too many of them
under way, or too much held for them, is not asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import aiohttp
from blake3 import blake3
from yarl import URL

from ext_proc.adapters.upstream import open_egress
from ext_proc.telemetry.traceparent import parse_traceparent
from filters.api import (
    Clock,
    Delta,
    Ending,
    Heard,
    Question,
    Staged,
    Step,
    Trial,
    Workers,
)
from filters.bounds import has_too_many_containers
from filters.document import parse
from filters.errors import NotJson, PortError
from filters.framing import Event
from filters.hearing import FIRST_REFUSAL, Ear
from filters.likeness import likeness

MOST_BODY_BYTES: Final = 8 * 1024 * 1024
MOST_HELD_BYTES: Final = 64 * 1024 * 1024  # of bodies of all shadows under way
MOST_ANSWER_BYTES: Final = 4 * 1024 * 1024
COMPARED_IN_S: Final = 5.0  # two long answers take some milliseconds, and others may be before
_BYTES: Final = 8
_WHOLE: Final = 1 << 8 * _BYTES


class _TooLong(Exception):
    """An answer is longer than what is compared."""


class StageWatch(Protocol):
    """Who is told what is known of pools on their way in."""

    def trial_heard(self, trial: Trial, pool: str, heard: Heard) -> None:
        """Count an answer of `pool`, which is one of the two."""

    def trial_compared(self, trial: Trial, old: Heard, new: Heard, alike: float | None) -> None:
        """Count two answers to the same request; `alike` is None where neither has a text."""

    def trial_skipped(self, trial: Trial, why: str) -> None:
        """Count an exchange that could not be compared."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A pool on its way into the place of another."""

    step: Step
    new: str
    cluster: str
    """Of the new one."""
    share: float
    deadline_s: float
    at_once: int


Shape: TypeAlias = Callable[[str, frozenset[str]], str]
"""What the answers of a profile are shaped by when others took the places of these pools."""


def _no_shape(profile: str, moved: frozenset[str]) -> str:
    return ""


class StagesOfAFile:
    """The `Stages` that exchanges go by which began under one version of the file.

    The file may change while they wait: their pool must be the one whose answers the key that was
    made before stands for.
    """

    def __init__(self, all_stages: PoolStages, stages: Mapping[str, Stage], shape: Shape) -> None:
        """Take the stages by the pool whose place is taken; `all_stages` asks the shadows."""
        self._all: Final = all_stages
        self.courses: Final = {old: _Course(old, stage) for old, stage in stages.items()}
        self._canaries: Final = [
            one for one in self.courses.values() if one.stage.step is Step.CANARY
        ]
        self._shape: Final = shape
        self._shapes: Final[dict[tuple[str, frozenset[str]], str]] = {}
        self._plain: Final[dict[str, Staged]] = {}

    def choose(self, pool: str, tenant: str) -> Staged:
        """See `filters.api.Stages`."""
        course = self.courses.get(pool)
        if course is None:
            # Made once: every exchange of every pool asks.
            return self._plain.get(pool) or self._plain.setdefault(pool, Staged(pool))
        stage = course.stage
        match stage.step:
            case Step.FULL:
                return course.new
            case Step.SHADOW:
                return course.shadowed if self._all.dice() < stage.share else course.old
            case Step.CANARY:
                at = self._all.dice() if tenant == self._all.nobody else course.position(tenant)
                if at < stage.share:
                    return course.new
                return course.seen if self._all.dice() < course.look else course.old

    def shaped_by(self, profile: str, tenant: str) -> str:
        """See `filters.api.Stages`; nobody is moved by lot, and keeps what all others have."""
        if tenant == self._all.nobody:
            return ""
        moved = frozenset(
            one.trial.old for one in self._canaries if one.position(tenant) < one.stage.share
        )
        if not moved:
            return ""
        key = profile, moved
        if key not in self._shapes:
            self._shapes[key] = self._shape(profile, moved)
        return self._shapes[key]

    def heard(self, staged: Staged, heard: Heard, question: Question | None = None) -> None:
        """See `filters.api.Stages`."""
        self._all.heard(staged, heard, question)

    def skipped(self, staged: Staged, why: str) -> None:
        """See `filters.api.Stages`."""
        self._all.skipped(staged, why)


class PoolStages:
    """The stages of a server. `nobody` is the tenant of requests without a credential.

    Such requests are drawn each by itself: as one tenant they would move all at once.
    """

    def __init__(
        self,
        egress: str | tuple[str, int],
        clock: Clock,
        workers: Workers,
        watch: StageWatch,
        *,
        nobody: str = "",
        dice: Callable[[], float] = random.random,
    ) -> None:
        """Know of no stage yet, and connect to nothing."""
        self._egress: Final = egress
        self._clock: Final = clock
        self._workers: Final = workers
        self._watch: Final = watch
        self.nobody: Final = nobody
        self.dice: Final = dice
        self._newest = StagesOfAFile(self, {}, _no_shape)
        self._http: aiohttp.ClientSession | None = None
        self._shadows: Final[dict[asyncio.Task[None], tuple[Trial, int]]] = {}
        """With the size of what is held for each."""
        self.held_bytes = 0
        """Of requests whose shadows are under way."""

    @property
    def under_way(self) -> int:
        """How many shadows are being asked."""
        return len(self._shadows)

    @property
    def shares(self) -> Mapping[Trial, float]:
        """What is set, by the trial."""
        return {course.trial: course.stage.share for course in self._newest.courses.values()}

    def follow(self, stages: Mapping[str, Stage], shape: Shape = _no_shape) -> StagesOfAFile:
        """Take the stages by the pool whose place is taken. Shadows under way go on.

        Return what exchanges go by that begin from here on; those before keep what they have.
        """
        self._newest = StagesOfAFile(self, stages, shape)
        return self._newest

    def heard(self, staged: Staged, heard: Heard, question: Question | None = None) -> None:
        """Take an answer, as `filters.api.Stages` says; also of an exchange that began before."""
        trial = staged.trial
        if trial is None:
            return
        if not staged.shadow:
            self._watch.trial_heard(trial, staged.pool, heard)
            return
        if question is None:
            return
        why = self._why_not(trial, len(question.body))
        if why:
            self._watch.trial_skipped(trial, why)
            return
        size = len(question.body)
        self.held_bytes += size
        stage = self._newest.courses[trial.old].stage
        task = asyncio.create_task(self._compare(trial, stage, heard, question), name="shadow")
        self._shadows[task] = trial, size
        task.add_done_callback(self._over)

    def skipped(self, staged: Staged, why: str) -> None:
        """Say that an exchange is no evidence, as `filters.api.Stages` says."""
        if staged.trial is not None:
            self._watch.trial_skipped(staged.trial, why)

    async def close(self) -> None:
        """Give up every shadow, and close every connection."""
        for task in tuple(self._shadows):
            task.cancel()
        await asyncio.gather(*self._shadows, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def _why_not(self, trial: Trial, size: int) -> str:
        course = self._newest.courses.get(trial.old)
        if course is None or course.trial != trial:
            return "over"  # the file says something else by now
        if size > MOST_BODY_BYTES:
            return "size"
        if self.held_bytes + size > MOST_HELD_BYTES:
            return "full"
        under_way = sum(other == trial for other, _ in self._shadows.values())
        return "full" if under_way >= course.stage.at_once else ""

    def _over(self, task: asyncio.Task[None]) -> None:
        trial, size = self._shadows.pop(task)
        self.held_bytes -= size
        if task.cancelled():
            self._watch.trial_skipped(trial, "closed")
        elif task.exception() is not None:  # a bug of ours, whose text may quote an answer
            self._watch.trial_skipped(trial, "broken")

    async def _compare(self, trial: Trial, stage: Stage, old: Heard, question: Question) -> None:
        try:
            new = await self._ask(stage, question)
        except _TooLong:
            self._watch.trial_skipped(trial, "size")
            return
        self._watch.trial_heard(trial, trial.old, old)
        self._watch.trial_heard(trial, trial.new, new)
        if old.ending is not Ending.ANSWERED or new.ending is not Ending.ANSWERED:
            return
        alike: float | None = None
        if old.text or new.text:
            try:
                alike = await self._workers.run(
                    likeness, old.text, new.text, deadline_s=COMPARED_IN_S
                )
            except PortError:
                self._watch.trial_skipped(trial, "likeness")
        self._watch.trial_compared(trial, old, new, alike)

    async def _ask(self, stage: Stage, question: Question) -> Heard:
        """Return what the shadow answers; one that is late or broken off takes its connection."""
        if self._http is None:
            self._http = open_egress(self._egress)
        headers = {**question.headers, "x-forebay-cluster": stage.cluster}
        if parse_traceparent(question.traceparent):
            headers["traceparent"] = question.traceparent
        ear = Ear(self._clock.monotonic_ns())
        status, whole = 0, False
        # What stands behind two slashes, or a scheme, would be another host than the listener's.
        url = URL("/" + question.path.lstrip("/"), encoded=True)
        try:
            async with (
                asyncio.timeout(stage.deadline_s),
                self._http.post(
                    url, data=question.body, headers=headers, allow_redirects=False
                ) as reply,
            ):
                status = reply.status
                await self._listen(reply, question, ear)
                whole = True
        except (aiohttp.ClientError, ConnectionError):
            status = status if status >= FIRST_REFUSAL else 0
        except TimeoutError:
            return Heard(Ending.LATE, self._clock.monotonic_ns() - ear.asked_ns)
        return ear.heard(
            status, self._clock.monotonic_ns(), stream=question.prompt.stream, whole=whole
        )

    async def _listen(self, reply: aiohttp.ClientResponse, question: Question, ear: Ear) -> None:
        """Hear a reply to its end; raise `_TooLong` before memory ends."""
        dialect = question.dialect
        framer = dialect.framer(reply.headers.get("content-type", ""), question.prompt)
        plain = bytearray()
        size = 0
        async for piece in reply.content.iter_any():
            size += len(piece)
            if size > MOST_ANSWER_BYTES:
                raise _TooLong
            if framer is None:
                plain += piece
            else:
                self._take(framer.feed(piece), question, ear)
        if framer is not None:
            self._take(framer.close(), question, ear)
        elif not has_too_many_containers(bytes(plain)):
            with suppress(NotJson):
                said = dialect.read_reply(parse(bytes(plain)))
                done = said.finish is not None
                ear.take(Delta(b"", said.text, said.finish, done=done), self._clock.monotonic_ns())

    def _take(self, events: list[Event], question: Question, ear: Ear) -> None:
        now_ns = self._clock.monotonic_ns()
        for event in events:
            if not has_too_many_containers(event.data):
                with suppress(NotJson):
                    ear.take(question.dialect.read_event(event), now_ns)


class _Course:
    """A stage with all that `choose` may answer, made once."""

    __slots__ = ("_salt", "look", "new", "old", "seen", "shadowed", "stage", "trial")

    def __init__(self, old: str, stage: Stage) -> None:
        self.stage: Final = stage
        self.trial: Final = Trial(old, stage.new, stage.step)
        self._salt: Final = f"{old}\n{stage.new}\n".encode()  # no name has a line feed
        compared = None if stage.step is Step.FULL else self.trial
        self.old: Final = Staged(old)
        self.seen: Final = Staged(old, trial=self.trial)
        self.new: Final = Staged(stage.new, trial=compared)
        self.shadowed: Final = Staged(old, stage.new, self.trial)
        left = 1 - stage.share
        self.look: Final = min(1.0, stage.share / left) if left else 1.0
        """The share of the old pool's requests that are listened to: as many as the new one has."""

    def position(self, tenant: str) -> float:
        """Return where a tenant stands from 0 to 1: those below the share have moved.

        It depends on no share, so that a greater one only adds tenants; and on both pools, so that
        the same tenants are not always the first.
        """
        digest = blake3(self._salt + tenant.encode()).digest(_BYTES)
        return int.from_bytes(digest, "big") / _WHOLE
