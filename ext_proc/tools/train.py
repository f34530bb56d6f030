"""Train the classifier that comes with Forebay, and say how often it is right.

`make train` calls it; the server needs only the file it writes. Without `--write` it tells whether
that file is what the training data makes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

import filters
from ext_proc.tools.train_data import DOMAINS, Request, make_requests, read_split
from filters.intent_model import MODEL_FILE, Guess, IntentModel, read_model
from filters.intent_rules import ruled
from filters.intent_text import edges, laid_out

DATA: Final = Path(filters.__file__).parent / "data"
GOAL: Final = 0.92
MOST_CALL_US: Final = 1_000
THRESHOLDS: Final = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
PIPED_WIDTH: Final = 140
SPLITS: Final = {
    "dev": "to choose settings by",
    "test": "of the authors' own",
    "blind": "of another author",
    "fresh": "of a third author, after the model was done",
}
"""Requests written by hand, and what is said of them."""
JUDGED: Final = "blind"
SHORT: Final = {"summarise": "sum", "reasoning": "reas", "calculate": "calc", "translate": "tran"}


class Tried(NamedTuple):
    """A request and what was made of it."""

    request: Request
    guess: Guess


def train() -> bytes:
    """Return the model that the training data makes, as it is kept; a minute or two."""
    from ext_proc.tools.train_fit import Labelled, fit

    requests = make_requests(DATA / "intents")
    intents = sorted({request.intent for request in requests} - {""})
    labelled = [
        Labelled(
            request.text,
            intents.index(request.intent) if request.intent else -1,
            DOMAINS.index(request.domain),
        )
        for request in requests
    ]
    return msgspec.msgpack.encode(fit(labelled, intents, DOMAINS))


def tried(model: IntentModel, split: str) -> list[Tried]:
    """Return what rules and model make of the hand-written requests of a split."""
    found = []
    for request in read_split(DATA / "intents", split):
        layout = laid_out(edges([request.text]))
        guess = model.guess(layout)
        if intent := ruled(layout):
            guess = guess._replace(intent=intent, score=1.0)
        found.append(Tried(request, guess))
    return found


def right_intents(all_tried: Sequence[Tried]) -> float:
    """Return the share of requests whose intent was told."""
    return sum(one.guess.intent == one.request.intent for one in all_tried) / len(all_tried)


def right_domains(all_tried: Sequence[Tried]) -> float:
    """Return the share of requests whose domain was told."""
    return sum(one.guess.domain == one.request.domain for one in all_tried) / len(all_tried)


def call_costs_us(model: IntentModel, split: str) -> list[float]:
    """Return the CPU time of telling each request of a split, in rising order.

    Everything that is done is counted, the rules as well, where a rule may spare the model.
    """
    taken = []
    for request in read_split(DATA / "intents", split):
        started_ns = time.thread_time_ns()
        layout = laid_out(edges([request.text]))
        ruled(layout)
        model.guess(layout)
        taken.append((time.thread_time_ns() - started_ns) / 1e3)
    return sorted(taken)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print, and write or compare; return 1 when the file or the accuracy is not good."""
    parser = argparse.ArgumentParser(prog="train", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the model in its place")
    arguments = parser.parse_args(argv)
    data = train()
    file = DATA / MODEL_FILE
    if arguments.write:
        file.write_bytes(data)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    model = read_model(data)
    for split in SPLITS:
        _print(console, split, tried(model, split))
    same = file.read_bytes() == data
    console.print(f"{file.name}: {len(data):,} bytes, {'as trained' if same else 'NOT as trained'}")
    taken = call_costs_us(model, JUDGED)
    console.print(
        f"a call: {taken[len(taken) // 2]:.0f} µs of CPU, at the 99th percentile"
        f" {taken[len(taken) * 99 // 100]:.0f}, the longest {taken[-1]:.0f}"
        f" (goal: at most {MOST_CALL_US:,})"
    )
    judged = tried(model, JUDGED)
    good = min(right_intents(judged), right_domains(judged)) >= GOAL
    return 0 if same and good else 1


def _print(console: Console, split: str, all_tried: Sequence[Tried]) -> None:
    name = SPLITS[split]
    table = Table(title=f"{len(all_tried)} requests {name}", box=box.SIMPLE)
    for column in ("", "requests", "intent", "domain"):
        table.add_column(column, justify="right" if column else "left")
    for language in ("all", "en", "zh"):
        chosen = [one for one in all_tried if language in ("all", one.request.language)]
        table.add_row(
            language, str(len(chosen)), _share(right_intents(chosen)), _share(right_domains(chosen))
        )
    console.print(table)
    asked = [(one.request.intent, one.guess.intent) for one in all_tried]
    _confusion(console, f"intents, {name}", sorted({intent for intent, _ in asked}), asked)
    traded = [(one.request.domain, one.guess.domain) for one in all_tried]
    _confusion(console, f"domains, {name}", DOMAINS, traded)
    table = Table(title=f"what the threshold does, {name}", box=box.SIMPLE)
    for column in ("threshold", "sure", "right when sure"):
        table.add_column(column, justify="right")
    for threshold in THRESHOLDS:
        sure = [one for one in all_tried if one.guess.score >= threshold]
        share = len(sure) / len(all_tried)
        table.add_row(f"{threshold:g}", _share(share), _share(right_intents(sure)))
    console.print(table)


def _confusion(
    console: Console, title: str, labels: Sequence[str], pairs: Iterable[tuple[str, str]]
) -> None:
    counts = Counter(pairs)
    table = Table(title=f"{title}: rows are right, columns were told", box=box.SIMPLE)
    table.add_column("")
    for label in labels:
        table.add_column(SHORT.get(label, label), justify="right", no_wrap=True)
    for right in labels:
        cells = []
        for told in labels:
            count = counts[right, told]
            style = "green" if right == told else "red"
            cells.append(f"[{style}]{count}[/]" if count else "·")
        table.add_row(right, *cells)
    console.print(table)


def _share(value: float) -> str:
    return f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main())
