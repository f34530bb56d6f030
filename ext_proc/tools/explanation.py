"""Say what a traced request went through, as plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ext_proc.config import Settings
from ext_proc.session import Pool
from ext_proc.tools.text_diff import ABSENT, changed_members, unified
from ext_proc.tools.trace import Request, State, Step, Trace
from filters.api import Step as StageStep
from filters.api import Task
from filters.route import RouteConfig

Count = Callable[[str], int]
"""Tokens of a text, for the model that is asked."""

_WHOSE: Final = {StageStep.SHADOW: "requests", StageStep.CANARY: "tenants"}
"""What a share is one of."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A trace, and what is needed to read it."""

    source: str
    """Where the request came from."""
    profile: str
    request: Request
    guessed: str
    """Why this path was taken; empty: it was given."""
    trace: Trace
    count: Count
    settings: Settings
    remarks: Sequence[str]
    """What bears on the figures."""

    def tokens(self, state: State) -> int:
        """Return the tokens of all texts."""
        return sum(self.count(text) for _, text in state.texts)

    @property
    def found_something(self) -> bool:
        """Whether a filter failed, or the request would not reach a model."""
        facts, respond = self.trace.facts, self.trace.respond
        passed = facts is not None and facts.notes.get("pass") not in (None, "no filters")
        refused = respond is not None and respond.status >= 400
        return passed or refused or any(step.failure for step in self.trace.steps)

    @property
    def outcome(self) -> str:
        """What becomes of the request."""
        trace = self.trace
        if trace.respond is not None:
            return "answered" if trace.respond.status < 400 else "refused"
        return "passed" if trace.exchange is None else "forwarded"

    @property
    def pool(self) -> Pool:
        """Where the request goes."""
        name = self.settings.profiles[self.profile].pool
        if self.trace.exchange is not None and self.trace.exchange.pool in self.settings.pools:
            name = self.trace.exchange.pool
        pool = self.settings.pools[name]
        return Pool(name, pool.cluster, pool.quality)

    @property
    def pool_why(self) -> str:
        """Why it goes there."""
        exchange, own = self.trace.exchange, "the profile's own"
        if exchange is None:
            return own
        notes = exchange.notes
        given = [str(value) for key, value in notes.items() if key in ("route.why", "pool.why")]
        if exchange.task is not None and notes.get("classify.pool") == exchange.pool:
            given.insert(0, f"expert for {exchange.task.domain}")
        if given:
            return "; ".join([*given, *self._stages()])
        filters = self.settings.profiles[self.profile].filters
        off = any(isinstance(config, RouteConfig) and not config.downgrade for _, config in filters)
        if off:
            own = f"{own}, for its downgrade is off"
        moved = self.pool.name != self.settings.profiles[self.profile].pool
        return "; ".join([*(() if moved else (own,)), *self._stages()]) or own

    def _stages(self) -> Iterator[str]:
        """Return how the pool is on its way into another's place, or another into its."""
        for name, pool in self.settings.pools.items():
            if (how := pool.stage) is not None and self.pool.name in (name, how.pool):
                share = f", {how.share:g} of the {_WHOSE[how.step]}" if how.step in _WHOSE else ""
                yield f"{how.step}: {how.pool} for {name}{share}"

    @property
    def alternatives(self) -> str:
        """Which other pools it may have gone to, empty for none."""
        exchange = self.trace.exchange
        return str(exchange.notes.get("route.alternatives", "")) if exchange else ""

    @property
    def client_headers(self) -> Mapping[str, str]:
        """What the client reads of it beside what its model server, or the answer, says."""
        exchange = self.trace.exchange
        if exchange is None:
            return {}
        told = {**exchange.client_headers, "x-forebay-profile": exchange.profile}
        return told if self.trace.respond else {**told, "x-forebay-pool": self.pool.name}

    @property
    def task(self) -> Task | None:
        """What it asks for, if a filter looked."""
        return self.trace.exchange.task if self.trace.exchange else None

    @property
    def cache(self) -> Mapping[str, Any] | None:
        """Key (None: not looked up) and what was found; None: no filter keeps answers."""
        step = next((step for step in self.trace.steps if step.name == "cache"), None)
        if step is None:
            return None
        why = step.notes.get("cache.why")
        state = step.notes.get("cache", "failed")
        return {"key": step.notes.get("cache.key"), "state": state, "why": why}


def as_data(it: Explanation) -> dict[str, Any]:
    """Return everything as JSON values; `docs/explain.md` says what they mean."""
    steps, respond = it.trace.steps, it.trace.respond
    first, last = ends(it)
    task = it.task
    exchange = it.trace.exchange
    passed = it.trace.facts.notes.get("pass") if it.trace.facts else None
    return {
        "profile": it.profile,
        "path": it.request.path,
        "guessed": it.guessed or None,
        "dialect": exchange.dialect.name if exchange else None,
        "model": exchange.prompt.model if exchange else None,
        "outcome": it.outcome,
        "why_passed": passed,
        "answer": None
        if respond is None
        else {"status": respond.status, "body": respond.body.decode(errors="replace")},
        "tokens": {"before": first, "after": last, "saved": first - last},
        "bytes": {"before": len(it.request.body), "after": len(sent(it))},
        "took_us": _us(sum(step.took_ns for step in steps)),
        "intent": None
        if task is None
        else {"intent": task.intent, "domain": task.domain, "score": round(task.score, 4)},
        "cache": it.cache,
        "pool": {
            "name": it.pool.name,
            "cluster": it.pool.cluster,
            "quality": it.pool.quality,
            "why": it.pool_why,
            "alternatives": it.alternatives or None,
        },
        "headers": {
            "upstream": dict(exchange.upstream_headers) if exchange else {},
            "client": dict(it.client_headers),
        },
        "filters": [_step_data(it, step) for step in steps],
        "not_asked": [{"cluster": cluster, "model": model} for cluster, model in it.trace.asked],
        "remarks": list(it.remarks),
    }


def _step_data(it: Explanation, step: Step) -> dict[str, Any]:
    return {
        "filter": step.name,
        "took_us": _us(step.took_ns),
        "tokens": {"before": it.tokens(step.before), "after": it.tokens(step.after)},
        "diff": "\n".join(diff_of(step)),
        "members": [
            {
                "path": written_path(path),
                **({} if old is ABSENT else {"before": old}),
                **({} if new is ABSENT else {"after": new}),
            }
            for path, old, new in members_of(step)
        ],
        "cuts": [{"rule": cut.rule, "before": cut.before, "after": cut.after} for cut in step.cuts],
        "notes": step.notes,
        "headers": {
            "upstream": _added(step.before.upstream_headers, step.after.upstream_headers),
            "client": _added(step.before.client_headers, step.after.client_headers),
        },
        "pool": step.after.pool if step.after.pool != step.before.pool else None,
        "answered": step.answer.status if step.answer else None,
        "refusal": step.refusal or None,
        "failure": step.failure or None,
    }


def _us(ns: int) -> float:
    return round(ns / 1e3, 1)


def ends(it: Explanation) -> tuple[int, int]:
    """Return the tokens of all texts before the first filter and after the last."""
    steps = it.trace.steps
    return (it.tokens(steps[0].before), it.tokens(steps[-1].after)) if steps else (0, 0)


def sent(it: Explanation) -> bytes:
    """Return the body that goes upstream."""
    forward = it.trace.forward
    return it.request.body if forward is None or forward.body is None else forward.body


def diff_of(step: Step) -> list[str]:
    """Return the lines of the diff of all texts."""
    if step.before.texts == step.after.texts:
        return []
    return unified(step.before.texts, step.after.texts)


def members_of(step: Step) -> list[tuple[tuple[str | int, ...], Any, Any]]:
    """Return what changed in the body beside the texts: path, before, after."""
    if step.before.body == step.after.body:
        return []
    texts = step.before.text_paths | step.after.text_paths
    return changed_members(json.loads(step.before.body), json.loads(step.after.body), texts)


def _added(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in after.items() if before.get(key) != value}


def written_path(path: Sequence[str | int]) -> str:
    """Write a path as JSONPath does without its root, such as `messages[0].content`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")
