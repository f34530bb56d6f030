"""Say what a traced request went through: as plain data for programs, as a page for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ext_proc.config import Settings
from ext_proc.session import Pool
from ext_proc.tools.text_diff import ABSENT, changed_members, changed_words, unified
from ext_proc.tools.trace import Request, State, Step, Trace
from filters.api import Note, Task

MOST_DIFF_LINES: Final = 40
MOST_LINE_CHARS: Final = 160
MOST_VALUE_CHARS: Final = 60
BAR_CELLS: Final = 12
_CONTROL_PICTURES: Final = 0x2400  # where Unicode has a picture of each ASCII control character

Count = Callable[[str], int]
"""Tokens of a text, for the model that is asked."""


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
        notes = self.trace.exchange.notes if self.trace.exchange else {}
        given = [str(value) for key, value in notes.items() if key in ("route.why", "pool.why")]
        return "; ".join(given) or "the profile's own"

    @property
    def task(self) -> Task | None:
        """What it asks for, if a filter looked."""
        return self.trace.exchange.task if self.trace.exchange else None

    @property
    def cache(self) -> Mapping[str, Any] | None:
        """Key, and whether it is looked up; None: no filter keeps answers."""
        step = next((step for step in self.trace.steps if step.name == "cache"), None)
        if step is None:
            return None
        why = step.notes.get("cache.why")
        state = step.notes.get("cache", "failed")
        return {"key": step.cache_key.hex(), "state": state, "why": why}


# --- For programs --------------------------------------------------------------------------------


def as_data(it: Explanation) -> dict[str, Any]:
    """Return everything as JSON values; `docs/explain.md` says what they mean."""
    steps, respond = it.trace.steps, it.trace.respond
    first, last = _ends(it)
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
        "bytes": {"before": len(it.request.body), "after": len(_sent(it))},
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
        },
        "headers": {
            "upstream": dict(exchange.upstream_headers) if exchange else {},
            "client": dict(exchange.client_headers) if exchange else {},
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
        "diff": "\n".join(_diff(step)),
        "members": [
            {
                "path": _path(path),
                **({} if old is ABSENT else {"before": old}),
                **({} if new is ABSENT else {"after": new}),
            }
            for path, old, new in _members(step)
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


def _ends(it: Explanation) -> tuple[int, int]:
    steps = it.trace.steps
    return (it.tokens(steps[0].before), it.tokens(steps[-1].after)) if steps else (0, 0)


def _sent(it: Explanation) -> bytes:
    forward = it.trace.forward
    return it.request.body if forward is None or forward.body is None else forward.body


def _diff(step: Step) -> list[str]:
    if step.before.texts == step.after.texts:
        return []
    return unified(step.before.texts, step.after.texts)


def _members(step: Step) -> list[tuple[tuple[str | int, ...], Any, Any]]:
    if step.before.body == step.after.body:
        return []
    texts = step.before.text_paths | step.after.text_paths
    return changed_members(json.loads(step.before.body), json.loads(step.after.body), texts)


def _added(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in after.items() if before.get(key) != value}


def _path(path: Sequence[str | int]) -> str:
    """Write a path as JSONPath does without its root, such as `messages[0].content`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


# --- For people ----------------------------------------------------------------------------------


def show(it: Explanation, console: Console, *, full: bool = False) -> None:
    """Print what happened; `full` leaves nothing out of the diffs."""
    console.print(_head(it), soft_wrap=True)
    if it.trace.steps:
        console.print()
        console.print(_table(it))
    for step in it.trace.steps:
        if parts := list(_changes(step, full=full)):
            console.print()
            console.rule(Text(step.name, "bold cyan"), align="left", style="dim", characters="─")
            for part in parts:
                console.print(part, soft_wrap=True)
    console.print()
    console.print(_outcome(it))


def _head(it: Explanation) -> Text:
    exchange = it.trace.exchange
    words = [(it.source, "bold"), (f"profile {it.profile}", "cyan")]
    if exchange is not None:
        words.append((exchange.dialect.name, ""))
        words.append((exchange.prompt.model or "no model", ""))
    words.append((f"POST {it.request.path}", ""))
    line = Text(" · ", "dim").join(Text(*word) for word in words)
    return line.append(f" (guessed: {it.guessed})" if it.guessed else "", "dim")


def _table(it: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("filter", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("what it did", overflow="fold")
    start, end = _ends(it)
    for step in it.trace.steps:
        before, after = it.tokens(step.before), it.tokens(step.after)
        table.add_row(
            Text(step.name, "bold"),
            _tokens(before, after),
            _bar(after, start),
            Text(_time(step.took_ns), "dim"),
            _did(step),
        )
    total = sum(step.took_ns for step in it.trace.steps)
    saved = Text("nothing saved", "dim")
    if start > end:
        saved = Text(f"{start - end:,} tokens saved", "bold green")
    elif end > start:
        saved = Text(f"{end - start:,} tokens added", "yellow")
    table.add_section()
    table.add_row(
        Text("all", "bold"), _tokens(start, end), _bar(end, start), Text(_time(total), "dim"), saved
    )
    return table


def _tokens(before: int, after: int) -> Text:
    if before == after:
        return Text(f"{after:,}", "dim")
    text = Text(f"{before:,} → {after:,}")
    if before:
        text.append(f" {(after - before) / before:+.0%}", _more_or_less(before, after))
    return text


def _more_or_less(before: int, after: int) -> str:
    return "bold green" if after < before else "yellow"


def _bar(tokens: int, start: int) -> Text:
    """Draw how much of the prompt is left."""
    cells = min(BAR_CELLS, -(-BAR_CELLS * tokens // start)) if start else 0
    return Text.assemble(("█" * cells, "green"), ("░" * (BAR_CELLS - cells), "dim"))


def _time(ns: int) -> str:
    return f"{ns / 1e6:,.1f} ms" if ns >= 1_000_000 else f"{ns / 1e3:,.0f} µs"


def _did(step: Step) -> Text:
    """Say in a line what a filter did: what it cut, set, chose and noted."""
    if step.failure:
        return Text(f"failed and was undone: {step.failure}", "bold red")
    if step.refusal:
        return Text(f"refused {step.refusal}", "bold red")
    before, after = step.before, step.after
    words: list[Text] = []
    if step.answer is not None:
        words.append(Text(f"answered {step.answer.status}", "bold green"))
    by_rule: dict[str, int] = {}
    for cut in step.cuts:
        rule = cut.rule.removeprefix(f"{step.name}.")
        by_rule[rule] = by_rule.get(rule, 0) + cut.before - cut.after
    words += [Text(f"{rule} {-cut:+,}", "green") for rule, cut in by_rule.items()]
    if before.texts != after.texts and not by_rule:
        words.append(Text("text", "green"))
    words += [
        Text(f"{_path(path)} {_value(old)} → {_value(new)}", "magenta")
        for path, old, new in _members(step)
    ]
    if after.task is not None and after.task != before.task:
        words.append(_task(after.task))
    if after.pool != before.pool:
        words.append(Text(f"pool {after.pool}", "yellow"))
    words += [_note(step.name, key, value) for key, value in step.notes.items()]
    return Text(", ").join(words) if words else Text("nothing", "dim")


def _task(task: Task) -> Text:
    return Text.assemble(
        (task.intent, "bold magenta"), f" in {task.domain}", (f" {task.score:.2f}", "dim")
    )


def _note(name: str, key: str, value: Note) -> Text:
    short = key.removeprefix(name).removeprefix(".").removesuffix("why")
    short = short.replace("_", " ").replace(".", " ").strip()
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return Text(f"{short} {shown}".strip(), "")


def _value(value: Any) -> str:
    if value is ABSENT:
        return "–"
    if isinstance(value, list | dict) and len(json.dumps(value)) > MOST_VALUE_CHARS:
        return f"{len(value)} {'items' if isinstance(value, list) else 'members'}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_VALUE_CHARS else f"{text[:MOST_VALUE_CHARS]}…"


def _changes(step: Step, *, full: bool) -> Iterator[RenderableType]:
    """Show the diff of the texts."""
    lines = list(changed_words(_diff(step)))
    shown = lines if full else lines[:MOST_DIFF_LINES]
    for line, spans in shown:
        yield _diff_line(line, spans, full=full)
    if left := len(lines) - len(shown):
        yield Text(f"… {left:,} more lines (--full)", "dim")


def _diff_line(line: str, spans: Sequence[tuple[int, int]], *, full: bool) -> Text:
    style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
    text = Text(style=style)
    whole = not spans and line[:1] in "+-"
    at = 0
    for start, end in spans:
        text.append(_visible(line[at:start], unseen=False))
        text.append(_visible(line[start:end], unseen=True), "reverse")
        at = end
    text.append(_visible(line[at:], unseen=whole))
    if not full and len(text) > MOST_LINE_CHARS:
        left = len(text) - MOST_LINE_CHARS
        text.right_crop(left)
        text.append(f" … {left:,} more characters", "dim not reverse")
    return text


def _visible(text: str, *, unseen: bool) -> str:
    """Show control characters, which a terminal obeys, and those of no width where they matter."""
    if text.isprintable():
        return text
    return "".join(_picture(char, unseen=unseen) for char in text)


def _picture(char: str, *, unseen: bool) -> str:
    number = ord(char)
    if number < 0x20 and char != "\t":
        return chr(_CONTROL_PICTURES + number)
    kind = unicodedata.category(char)
    if (kind == "Cc" and char != "\t") or (unseen and kind == "Cf"):
        return f"<U+{number:04X}>"
    return char


def _outcome(it: Explanation) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _facts(it):
        grid.add_row(name, text)
    return Group(Padding(grid, 0), *(Text(f"({remark})", "dim") for remark in it.remarks))


def _facts(it: Explanation) -> Iterator[tuple[str, Text]]:
    trace = it.trace
    if it.task is not None:
        yield "intent", _task(it.task)
    if (cache := it.cache) is not None:
        yes = cache["state"] in ("miss", "hit")
        text = Text("yes" if yes else "no", "bold green" if yes else "yellow")
        text.append(f": {cache['why'] or 'a ' + cache['state']}", "")
        yield "cacheable", text
        yield "cache key", Text(cache["key"], "" if yes else "dim")
    if trace.respond is not None:
        style = "bold red" if it.outcome == "refused" else "bold green"
        body = trace.respond.body.decode(errors="replace")
        yield "answer", Text.assemble((str(trace.respond.status), style), f" {body}")
    else:
        pool = it.pool
        text = Text.assemble((pool.name, "bold"), f" (cluster {pool.cluster}, {pool.quality})")
        yield "pool", text.append(f": {it.pool_why}", "")
    if trace.exchange is None and trace.facts is not None:
        why = trace.facts.notes.get("pass", "")
        yield "passed", Text(f"as it came: {why}", "yellow")
    elif trace.exchange is not None and trace.respond is None:
        yield "upstream", _headers(trace.exchange.upstream_headers)
        yield "client", _headers(trace.exchange.client_headers)
    for cluster, model in dict.fromkeys(trace.asked):
        yield "not asked", Text(f"{model} of cluster {cluster} (--ask asks it)", "yellow")
    if trace.steps:
        yield "saved", _saved(it)


def _saved(it: Explanation) -> Text:
    before, after = _ends(it)
    length, sent = len(it.request.body), len(_sent(it))
    words = [_less(before, after, "tokens")]
    if it.trace.respond is None:
        words.append(_less(length, sent, "bytes"))
    return Text(", ".join(words))


def _less(before: int, after: int, what: str) -> str:
    if after > before:
        return f"{after - before:,} {what} more than {before:,}"
    return f"{before - after:,} of {before:,} {what}"


def _headers(headers: Mapping[str, str]) -> Text:
    pairs = (Text.assemble((f"{name}: ", "cyan"), value) for name, value in sorted(headers.items()))
    return Text("\n").join(pairs) if headers else Text("nothing set", "dim")
