"""Measure how many tokens a shorter prompt saves, and whether it still says what is asked for.

Documents and chats are made of word lists, with the facts of several subjects of one kind in each,
so that the asked fact is one among dozens; the question is mostly worded in another way than the
fact. Each goes through the filter that shortens it. A fact counts as kept when its sentence is in
the prompt word for word and it is still clear of whom it speaks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from ext_proc.adapters.clock import SystemClock
from ext_proc.adapters.memory_store import MemoryStore
from ext_proc.adapters.tokens import TiktokenTokens, default_folder
from ext_proc.adapters.workers import WorkerPool
from ext_proc.tools.facts import Case, is_kept, made_cases, made_chats, texts_of
from ext_proc.tools.facts_words import LANGUAGES
from filters.api import Exchange, Ports, RequestHead
from filters.budget import BudgetConfig, BudgetFilter
from filters.dialects import DIALECTS
from filters.document import Document, encode
from filters.shape import ShapeConfig, ShapeFilter

SEED: Final = 20_260
DOCUMENTS: Final = 60
CHATS: Final = 40
EACH: Final = 5
CURVE: Final = (32, 64, 96, 128, 192, 256, 384)
"""Tokens of the summary; 128 is what profiles come with."""
CURVE_EACH: Final = 1
USUAL: Final = 128
GOAL_CUT: Final = 0.60
GOAL_KEPT: Final = 0.97
PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one sort of prompts with summaries of one size."""

    language: str
    what: str
    """`documents` or `chats`."""
    summary: int
    questions: int
    kept: int
    """Questions whose fact is still in the prompt."""
    before: int
    after: int
    """Tokens of all prompts together."""
    ms: float
    """For one prompt, from the body to the shorter one."""

    @property
    def cut(self) -> float:
        """The share of tokens that went."""
        return 1 - self.after / self.before

    @property
    def kept_share(self) -> float:
        """The share of questions whose fact stayed."""
        return self.kept / self.questions


async def measure(*, documents: int = DOCUMENTS, chats: int = CHATS, each: int = EACH) -> list[Row]:
    """Return a row for each language and sort at the usual size, and a few questions at others."""
    tokens = TiktokenTokens(default_folder(os.environ), structlog.get_logger())
    await asyncio.to_thread(tokens.load, "", 10.0)
    workers = WorkerPool()
    clock = SystemClock()
    absent: Any = None  # a port that these filters do not ask
    ports = Ports(
        store=MemoryStore(clock, 0),
        flights=absent,
        clock=clock,
        upstream=absent,
        tokens=tokens,
        workers=workers,
        models=absent,
    )
    rows: list[Row] = []
    try:
        await workers.run(len, "", deadline_s=10.0)  # to start a process is no part of a summary
        for size in CURVE:
            most = each if size == USUAL else CURVE_EACH
            for name, language in LANGUAGES.items():
                asked = made_cases(language, SEED, documents, most)
                rows.append(await _row(name, "documents", size, asked, ports))
                asked = made_chats(language, SEED, chats, most)
                rows.append(await _row(name, "chats", size, asked, ports))
    finally:
        await workers.close()
    return rows


async def _row(language: str, what: str, size: int, cases: Sequence[Case], ports: Ports) -> Row:
    kept = before = after = 0
    took_s = 0.0
    for case in cases:
        exchange = _exchange(case)
        started = time.perf_counter()
        await _filter(what, size, ports).on_request(exchange)
        took_s += time.perf_counter() - started
        prompt = texts_of(exchange.prompt.document.root["messages"])
        kept += is_kept(case, prompt)
        before += ports.tokens.count(texts_of(case.messages))
        after += ports.tokens.count(prompt)
    return Row(language, what, size, len(cases), kept, before, after, took_s / len(cases) * 1e3)


def _filter(what: str, size: int, ports: Ports) -> BudgetFilter | ShapeFilter:
    if what == "documents":
        return BudgetFilter(BudgetConfig(summary=size), None, ports)
    # A chat is shortened from the size on at which a document is.
    return ShapeFilter(ShapeConfig(summary=size, limit=BudgetConfig().limit), None, ports)


def _exchange(case: Case) -> Exchange:
    dialect = DIALECTS["openai.chat"]
    body = encode({"model": "demo", "messages": list(case.messages)})
    return Exchange(
        profile="bench",
        tenant="",
        head=RequestHead("POST", PATH, {}),
        dialect=dialect,
        prompt=dialect.read(Document(body), PATH),
        pool="full",
    )


def run(picture: Path) -> int:
    """Measure, print, and draw the curve into `picture`; return 1 when a goal is missed."""
    rows = asyncio.run(measure())
    print("\n".join(table(rows)))
    picture.write_text(plot(rows), encoding="utf-8")
    print(f"the curve: {picture}")
    return 0 if good(rows) else 1


def good(rows: Sequence[Row]) -> bool:
    """Tell whether both goals are met at the usual size, in each language and sort."""
    usual = [row for row in rows if row.summary == USUAL]
    return all(row.cut >= GOAL_CUT and row.kept_share >= GOAL_KEPT for row in usual)


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines that `forebay bench` prints."""
    lines = [f"{'':15} {'questions':>9} {'tokens':>15} {'cut':>6} {'fact kept':>9} {'ms each':>8}"]
    for row in rows:
        if row.summary == USUAL:
            each = f"{row.before // row.questions} -> {row.after // row.questions}"
            lines.append(
                f"{row.language} {row.what:12} {row.questions:9} {each:>15}"
                f" {row.cut:6.1%} {row.kept_share:9.1%} {row.ms:8.1f}"
            )
    lines.append(f"{'goal':42} {GOAL_CUT:5.0%} {GOAL_KEPT:9.0%}")
    return lines


# --- The plot ------------------------------------------------------------------------------------

NAMESPACE: Final = "http://www.w3.org/2000/svg"
FONT: Final = 'font-family="sans-serif" font-size="12"'
CENTRED: Final = 'text-anchor="middle"'
WIDTH: Final = 720
HEIGHT: Final = 440
LEFT: Final = 70
RIGHT: Final = 700
TOP: Final = 40
BOTTOM: Final = 380
LOWEST_KEPT: Final = 0.5
COLOURS: Final = ("#1f6fb2", "#c2571a", "#2f8f4e", "#8a4fb0")


def plot(rows: Sequence[Row]) -> str:
    """Return an SVG: the tokens that stayed, across, against the facts that stayed, upwards."""
    most = max((1 - row.cut for row in rows), default=1.0) * 1.05

    def across(share: float) -> float:
        return LEFT + share / most * (RIGHT - LEFT)

    def up(share: float) -> float:
        share = max(share, LOWEST_KEPT)
        return BOTTOM - (share - LOWEST_KEPT) / (1 - LOWEST_KEPT) * (BOTTOM - TOP)

    parts = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_axes(across, up, most),
    ]
    kinds = sorted({(row.language, row.what) for row in rows})
    for number, (language, what) in enumerate(kinds):
        colour = COLOURS[number % len(COLOURS)]
        points = [
            (across(1 - row.cut), up(row.kept_share), row)
            for row in sorted(rows, key=lambda row: row.summary)
            if (row.language, row.what) == (language, what)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y, row in points:
            size = 5 if row.summary == USUAL else 3
            title = f"{row.summary} tokens: {row.cut:.0%} cut, {row.kept_share:.1%} kept"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{colour}">'
                f"<title>{title}</title></circle>"
            )
        at = TOP + 200 + 20 * number
        parts.append(
            f'<rect x="{RIGHT - 130}" y="{at - 9}" width="10" height="10" fill="{colour}"/>'
        )
        parts.append(f'<text x="{RIGHT - 114}" y="{at}">{language} {what}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _axes(across: Callable[[float], float], up: Callable[[float], float], most: float) -> list[str]:
    title = f"Facts kept, summaries of {CURVE[0]} to {CURVE[-1]} tokens (large point: {USUAL})"
    middle, centre = (LEFT + RIGHT) // 2, (TOP + BOTTOM) // 2
    turned = f'transform="rotate(-90 16 {centre})"'
    parts = [
        f'<text x="{LEFT}" y="{TOP - 18}" font-size="14">{title}</text>',
        f'<text x="{middle}" y="{HEIGHT - 14}" {CENTRED}>tokens of the prompt that stayed</text>',
        f'<text x="16" y="{centre}" {CENTRED} {turned}>asked facts that stayed</text>',
    ]
    for tenth in range(5, 11):
        y = up(tenth / 10)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tenth}0%</text>')
    for tenth in range(int(most * 10) + 1):
        x = across(tenth / 10)
        parts.append(f'<path d="M{x:.1f} {TOP}V{BOTTOM}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{tenth}0%</text>')
    goal_x, goal_y = across(1 - GOAL_CUT), up(GOAL_KEPT)
    parts.append(
        f'<path d="M{LEFT} {goal_y:.1f}H{goal_x:.1f}V{TOP}" fill="none" stroke="#555" '
        'stroke-dasharray="4 3"><title>goal: above and left of it</title></path>'
    )
    return parts
