"""Show what a traced request went through, as a page for people."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ext_proc.tools.explanation import (
    Explanation,
    diff_of,
    ends,
    members_of,
    sent,
    written_path,
)
from ext_proc.tools.text_diff import ABSENT, changed_words
from ext_proc.tools.trace import Step
from filters.api import Note, Task

MOST_DIFF_LINES: Final = 80
MOST_RUN_LINES: Final = 12
FIRST_LINES, LAST_LINES = 8, 2
MOST_LINE_CHARS: Final = 160
MOST_VALUE_CHARS: Final = 60
BAR_CELLS: Final = 12
_ON_LINES: Final = ("cache.key", "route.alternatives")  # notes with lines of their own
_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
_CONTROL_PICTURES: Final = 0x2400  # where Unicode has a picture of each ASCII control character

Marked = tuple[str, list[tuple[int, int]]]
"""A line of a diff, and the spans in it that changed."""


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
    for remark in it.remarks:
        console.print(Text(f"({remark})", "dim"), soft_wrap=True)


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
    start, end = ends(it)
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
    words += [Text(f"{rule} {-cut:+,}" if cut else rule, "green") for rule, cut in by_rule.items()]
    if before.texts != after.texts and not by_rule:
        words.append(Text("text", "green"))
    words += [
        Text(f"{written_path(path)} {_value(old)} → {_value(new)}", "magenta")
        for path, old, new in members_of(step)
    ]
    if after.task is not None and after.task != before.task:
        words.append(_task(after.task))
    if after.pool != before.pool:
        words.append(Text(f"pool {after.pool}", "yellow"))
    words += [
        _note(step.name, key, value) for key, value in step.notes.items() if key not in _ON_LINES
    ]
    return Text(", ").join(words) if words else Text("nothing", "dim")


def _task(task: Task) -> Text:
    return Text.assemble(
        (task.intent, "bold magenta"), (f" {task.score:.2f}", "dim"), f" in {task.domain}"
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


def _changes(step: Step, *, full: bool) -> Iterator[Text]:
    """Show the diff of the texts; of many lines in a row that went or came the first and last."""
    lines = list(changed_words(diff_of(step)))
    shown = 0
    for sign, group in groupby(lines, key=lambda line: line[0][:1]):
        run = list(group)
        if full or len(run) <= MOST_RUN_LINES:
            parts: Sequence[Marked | int] = run
        else:
            left = len(run) - FIRST_LINES - LAST_LINES
            parts = [*run[:FIRST_LINES], left, *run[-LAST_LINES:]]
        if not full and shown + len(parts) > MOST_DIFF_LINES:
            yield Text("… and more (--full)", "dim")
            return
        shown += len(parts)
        for part in parts:
            if isinstance(part, int):
                yield Text(f"{sign}… {part:,} more lines (--full)", f"dim {_STYLES.get(sign, '')}")
            else:
                yield _diff_line(*part, full=full)


def _diff_line(line: str, spans: Sequence[tuple[int, int]], *, full: bool) -> Text:
    style = _STYLES.get(line[:1], "dim")
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


def _outcome(it: Explanation) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _facts(it):
        grid.add_row(name, text)
    return grid


def _facts(it: Explanation) -> Iterator[tuple[str, Text]]:
    trace = it.trace
    if it.task is not None:
        yield "intent", _task(it.task)
    if (cache := it.cache) is not None:
        yes = cache["state"] in ("miss", "hit")
        text = Text("yes" if yes else "no", "bold green" if yes else "yellow")
        text.append(f": {cache['why'] or 'a ' + cache['state']}", "")
        yield "cacheable", text
        if cache["key"] is not None:
            yield "cache key", Text(cache["key"])
    if trace.respond is not None:
        style = "bold red" if it.outcome == "refused" else "bold green"
        body = trace.respond.body.decode(errors="replace")
        yield "answer", Text.assemble((str(trace.respond.status), style), f" {body}")
    else:
        pool = it.pool
        text = Text.assemble((pool.name, "bold"), f" (cluster {pool.cluster}, {pool.quality})")
        yield "pool", text.append(f": {it.pool_why}", "")
    if it.alternatives:
        yield "or else", Text(it.alternatives)
    if trace.exchange is None and trace.facts is not None:
        why = trace.facts.notes.get("pass", "")
        yield "passed", Text(f"as it came: {why}", "yellow")
    elif trace.exchange is not None and trace.respond is None:
        yield "upstream", _headers(trace.exchange.upstream_headers)
        yield "client", _headers(it.client_headers)
    for cluster, model in dict.fromkeys(trace.asked):
        yield "not asked", Text(f"{model} of cluster {cluster} (--ask asks it)", "yellow")
    if trace.steps:
        yield "saved", _saved(it)


def _saved(it: Explanation) -> Text:
    before, after = ends(it)
    came, went = len(it.request.body), len(sent(it))
    words = [_less(before, after, "tokens")]
    if it.trace.respond is None:
        words.append(_less(came, went, "bytes"))
    return Text(", ".join(words))


def _less(before: int, after: int, what: str) -> str:
    if after > before:
        return f"{after - before:,} {what} more than {before:,}"
    return f"{before - after:,} of {before:,} {what}"


def _headers(headers: Mapping[str, str]) -> Text:
    pairs = (Text.assemble((f"{name}: ", "cyan"), value) for name, value in sorted(headers.items()))
    return Text("\n").join(pairs) if headers else Text("nothing set", "dim")
