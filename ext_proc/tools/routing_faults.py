"""Let a replica fail in the middle of a load, in virtual time, and see what clients notice of it.

A request that cannot connect is tried elsewhere at once, as by the gateway's Envoy. One without a
first token in time is asked again by its client, whom Envoy told so by a 504. Both once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ext_proc.tools.replica_model import Work
from ext_proc.tools.routing_loads import Load, Session
from ext_proc.tools.routing_run import Asked, Run, percentile
from filters.replica import Signals

TRY_S: Final = 8.0
"""Without a first token for so long, as on the routes of `chat`, a client asks elsewhere."""
VICTIM: Final = 0
AFTER_S: Final = 60.0
"""It fails when caches are warm."""
LASTS_S: Final = 30.0
GOES_ON_S: Final = 30.0
"""So long the load goes on once it is well again."""
MOST_NOTICE_S: Final = 1.5
MOST_BACK_S: Final = 5.0


class Fault(StrEnum):
    """How a replica fails."""

    KILLED = "killed"
    """No connection, and those that were are reset."""
    HUNG = "hung"
    """It takes connections and answers nothing, its metrics neither."""
    SILENT = "silent"
    """It says that it is well and idle, and never answers."""
    FROZEN = "frozen"
    """It works, but its metrics say for ever what they said once."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What became of a load of which a replica failed."""

    fault: Fault
    noticed_s: float
    """From the first failed connect or overdue token until only probes are sent there."""
    errors_before: int
    """Clients that got no answer, or a broken one, of those that asked until `MOST_NOTICE_S`."""
    errors_after: int
    """Of those that asked later."""
    probes: int
    """Requests sent there after `MOST_NOTICE_S` and before it was well again."""
    back_s: float
    """From when it was well to its first answer; infinite if there is none."""
    p95_s: float
    """To the first token, of those that asked later, while it was failed."""
    p95_well_s: float
    """The same, of those that asked in the time before it failed."""


class FaultyRun(Run):
    """A run in which one replica fails for a while."""

    def __init__(
        self, load: Load, strategy: str, replicas: int, fault: Fault, *, seed: int = 1
    ) -> None:
        super().__init__(load, strategy, replicas, seed=seed)
        self._fault: Final = fault
        self._failed = False
        self._first_s = float("inf")
        """The first failed connect or overdue token."""
        self._noticed_s = float("inf")
        self._sent_s: Final[list[float]] = []
        """When requests were sent to it while it was failed."""
        self._errors_s: Final[list[float]] = []
        """When those had asked that got no whole answer."""
        self._back_s = float("inf")

    def play(self) -> Failed:
        """Play until it has been well again for a while."""
        self._at(AFTER_S, self._fail)
        self._at(AFTER_S + LASTS_S, self._recover)
        self.until(AFTER_S + LASTS_S + GOES_ON_S)
        late_s = min(self._first_s, AFTER_S + LASTS_S) + MOST_NOTICE_S
        return Failed(
            self._fault,
            max(0.0, self._noticed_s - self._first_s),
            sum(at_s < late_s for at_s in self._errors_s),
            sum(at_s >= late_s for at_s in self._errors_s),
            sum(at_s >= late_s for at_s in self._sent_s),
            self._back_s,
            self._p95(late_s, AFTER_S + LASTS_S),
            self._p95(AFTER_S / 2, AFTER_S - 1),
        )

    def _p95(self, from_s: float, to_s: float) -> float:
        waits = [one.ttft_s for one in self.answered.values() if from_s <= one.asked_s < to_s]
        return percentile(sorted(waits), 0.95)

    def _ask(self, now_s: float, session: Session) -> None:
        super()._ask(now_s, session)
        if self._failed and self.picker.replicas[self._addresses[VICTIM]].avoided_s is not None:
            self._noticed_s = min(self._noticed_s, now_s)

    def _fail(self, now_s: float) -> None:
        self._failed = True
        if self._fault is Fault.FROZEN:
            self._first_s = self._noticed_s = now_s  # it answers: there is nothing to notice
            return
        self._stop(VICTIM)
        if self._fault is Fault.KILLED:
            for asked in self._gone(self.engines[VICTIM].clear()):
                self._broke(now_s, asked)
            return
        for work in self.engines[VICTIM].running + list(self.engines[VICTIM].waiting):
            if work.first_s:
                continue
            pick = self._asked[id(work)].pick
            self._first_s = min(self._first_s, max(now_s, pick.at_s + pick.expected_s))

    def _recover(self, now_s: float) -> None:
        self._failed = False
        if self._fault is Fault.FROZEN:
            self._back_s = 0.0
            return
        for asked in self._gone(self.engines[VICTIM].clear()):
            self._broke(now_s, asked)
        self.picker.restarted(self._addresses[VICTIM])  # as its metrics tell

    def _gone(self, works: Sequence[Work]) -> list[Asked]:
        return [self._asked.pop(id(work)) for work in works]

    def _broke(self, now_s: float, asked: Asked) -> None:
        """Try again what has no first token yet; what has is an answer that breaks off."""
        work, pick = asked.work, asked.pick
        second = [self.picker.replicas[address].number for address in pick.addresses[1:]]
        if work.first_s or asked.at in second or not second:
            self.picker.ended(pick, now_s, good=False)
            self._errors_s.append(asked.asked_s)
            return
        # The picker hears of it with the first token: the response says who served it.
        asked.work = Work(work.chain, work.prompt_tokens, work.answer_tokens)
        asked.at = second[0]
        self._asked[id(asked.work)] = asked
        self._arrive(now_s, asked)

    def _arrive(self, now_s: float, asked: Asked) -> None:
        if not self._failed or asked.at != VICTIM or self._fault is Fault.FROZEN:
            super()._arrive(now_s, asked)
        else:
            self._sent_s.append(now_s)
            if self._fault is Fault.KILLED:
                self._first_s = min(self._first_s, now_s)
                del self._asked[id(asked.work)]
                self._broke(now_s, asked)
                return
            self._first_s = min(self._first_s, now_s + asked.pick.expected_s)
            self.engines[VICTIM].arrive(asked.work, now_s)
        self._at(now_s + TRY_S, self._overdue, asked.work)

    def _overdue(self, now_s: float, work: Work) -> None:
        asked = self._asked.get(id(work))
        if asked is None or asked.work is not work or work.first_s:
            return
        self.engines[asked.at].drop(work)
        del self._asked[id(work)]
        self._broke(now_s, asked)

    def _started(self, now_s: float, asked: Asked) -> None:
        if asked.at != asked.pick.replica.number:
            asked.pick = self.picker.moved(asked.pick, self._addresses[asked.at], now_s)
        super()._started(now_s, asked)
        well_s = AFTER_S + LASTS_S
        if asked.at == VICTIM and now_s >= well_s:
            self._back_s = min(self._back_s, now_s - well_s)

    def _scrape(self, now_s: float, at: int) -> None:
        unheard = self._fault in (Fault.KILLED, Fault.HUNG)
        if not (self._failed and at == VICTIM and unheard):
            super()._scrape(now_s, at)

    def _signals(self, now_s: float, at: int) -> Signals:
        said = self.picker.replicas[self._addresses[at]].signals
        if self._failed and at == VICTIM and said is not None:
            if self._fault is Fault.FROZEN:
                return replace(said, at_s=now_s)
            if self._fault is Fault.SILENT:
                return Signals(now_s, 0, 0, said.kv_usage)
        return super()._signals(now_s, at)
