"""Read and write conversations in a text, and what stands for the part of one that is gone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from filters.api import Role
from filters.summary import NOTHING_KEPT, summarise_all
from filters.terms import terms_of
from filters.token_estimate import estimate_tokens

# Written and read again by Forebay: a prompt may pass through it twice.
_SUMMARY: Final = re.compile(r"\[Summary of prior (\d{1,6}) turns?\]: ([^\n]*)(?:\n\n?|\Z)")
_SPEAKERS: Final = {
    "user": Role.USER,
    "human": Role.USER,
    "用户": Role.USER,
    "model": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "模型": Role.ASSISTANT,
    "助手": Role.ASSISTANT,
    "tool": Role.TOOL,
    "工具": Role.TOOL,
    "system": Role.SYSTEM,
    "系统": Role.SYSTEM,
}
_MARK: Final = re.compile(
    rf"^(?:\[({'|'.join(_SPEAKERS)})\] ?[:：]|\[Summary of prior \d{{1,6}} turns?\]: )",
    re.MULTILINE | re.IGNORECASE,
)
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_MOST_CHARS: Final = 131_072  # about 80 ms to summarise; a longer text would be late
MOST_ASKED_CHARS: Final = 4_000  # of a question; what it asks stands at its end
_MOST_ASKED_TERMS: Final = 64  # each is looked for in each message
_MARGIN: Final = 0.9  # an estimate may be 15 % off; few texts are as far off as that


class Part(NamedTuple):
    """What one speaker says in a transcript, from its mark to the next one."""

    role: Role | None
    """None for a summary of what stood before."""
    text: str
    words: str
    """The text without its mark."""


class Gone(NamedTuple):
    """What is to be summarised: how many turns, and their words."""

    turns: int
    words: tuple[str, ...]


NOTHING: Final = Gone(0, ())


def join(several: Sequence[Gone]) -> Gone:
    """Return several as one: the turns add up."""
    return Gone(
        sum(one.turns for one in several), tuple(word for one in several for word in one.words)
    )


def may_be_transcript(text: str, rounds: int) -> bool:
    """Tell at a hundredth of the cost of reading whether a text may have more rounds than that."""
    return text.count("]:") + text.count("]：") + text.count("] :") > rounds


def take_summary(text: str) -> tuple[Gone, str]:
    """Part a text into the summary that Forebay put in front of it, and the rest."""
    match = _SUMMARY.match(text)
    if match is None:
        return NOTHING, text
    return Gone(int(match[1]), (match[2],)), text[match.end() :]


def without_summaries(text: str) -> str:
    """Return a text as it is without what Forebay says of older turns: nobody asks for that."""
    return _SUMMARY.sub("", text) if "[Summary of prior " in text else text


def write_summary(turns: int, summary: str) -> str:
    """Write what stands for so many turns, on one line."""
    return f"[Summary of prior {turns} turn{'s'[: turns != 1]}]: {summary}"


def read_transcript(text: str) -> tuple[str, list[Part]]:
    """Part a text into what stands before its first mark and what each speaker says.

    There are no parts where a mark stands in code.
    """
    marks = list(_MARK.finditer(text))
    if not marks:
        return text, []
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    parts: list[Part] = []
    for mark, end in zip(marks, ends, strict=True):
        whole = text[mark.start() : end]
        if whole.count("```") % 2:
            return text, []
        role = _SPEAKERS[mark[1].lower()] if mark[1] else None
        parts.append(Part(role, whole, text[mark.end() : end].strip()))
    return text[: marks[0].start()], parts


def write_transcript(before: str, parts: Sequence[Part], summary: str, at: int) -> str:
    """Write a transcript with a summary in front of the part at `at`."""
    gap = "\n\n" if any(part.text.endswith("\n\n") for part in parts) else "\n"
    texts = [part.text for part in parts]
    return "".join((before, *texts[:at], summary, gap, *texts[at:]))


class OldParts(NamedTuple):
    """What of a transcript is to be summarised, and what stays."""

    gone: Gone
    texts: tuple[str, ...]
    """The parts that go, as they stand."""
    kept: tuple[Part, ...]
    place: int
    """Which of the kept parts the summary goes before."""


def old_parts(
    parts: Sequence[Part], starts: Sequence[int], cut: int, *, at_question: bool
) -> OldParts:
    """Take out the first `cut` of the rounds that begin at `starts`, but for system prompts."""
    gone: list[Gone] = []
    texts: list[str] = []
    kept: list[Part] = []
    place = 0
    for index, part in enumerate(parts):
        if index == starts[-1 if at_question else cut]:
            place = len(kept)
        if part.role is None:
            gone.append(take_summary(part.text)[0])
        elif starts[0] <= index < starts[cut] and part.role is not Role.SYSTEM:
            gone.append(Gone(1, (part.words,)))
        else:
            kept.append(part)
            continue
        texts.append(part.text)
    return OldParts(join(gone), tuple(texts), tuple(kept), place)


def _bounded(words: Sequence[str], question: str) -> Sequence[str]:
    """Return those of the words that fit in a bound, in their order.

    First come those in which most of the question's terms are, then the latest.
    """
    if sum(map(len, words)) <= _MOST_CHARS:
        return words
    asked = set(terms_of(question)[-_MOST_ASKED_TERMS:])
    lower = [one.lower() for one in words]
    order = sorted(
        range(len(words)), key=lambda at: (-sum(term in lower[at] for term in asked), -at)
    )
    chosen: list[int] = []
    room = _MOST_CHARS
    for index in order:
        room -= len(words[index])
        if room < 0:
            break
        chosen.append(index)
    return [words[index] for index in sorted(chosen)]


def condense(words: Sequence[str], question: str, tokens: int) -> str:
    """Return a summary of at most so many tokens, on one line, with what `question` asks for.

    Code is left out: lines of it picked here and there are none. Empty when no words are left.
    """
    question = question[-MOST_ASKED_CHARS:]
    said = [_CODE.sub(" ", one).strip() for one in words]
    most = max(int(tokens * _MARGIN), 1)
    kept = summarise_all(_bounded([one for one in said if one], question), most, question)
    line = " ".join(" ".join(one for one in kept if one != NOTHING_KEPT).split())
    while (estimate := estimate_tokens(line)) > tokens:
        line = line[: len(line) * tokens // estimate].rstrip()
    return line
