"""Cut a conversation into rounds, what the user says and all that answers it; choose old ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from filters.api import Role, Text, Turn
from filters.document import Document, Path
from filters.token_estimate import estimate_tokens
from filters.tool_pairs import Ends, breaks_a_pair, ends_in
from filters.transcript import (
    Gone,
    condense,
    join,
    old_parts,
    read_transcript,
    take_summary,
    write_summary,
    write_transcript,
)

_MOST_STEPS: Final = 5  # of a path: what lies deeper is in a document or a tool's result, not said
_MOST_TRIES: Final = 8  # each goes through all messages; results come a round late or two
_JSON_STARTS: Final = ("{", "[")


def round_starts(speakers: Iterable[Role]) -> list[int]:
    """Return where rounds begin: where the user speaks and did not just before.

    A system prompt in between does not end what the user says. What stands before the first round
    belongs to none.
    """
    starts: list[int] = []
    before: Role | None = None
    for index, speaker in enumerate(speakers):
        if speaker is Role.SYSTEM:
            continue
        if speaker is Role.USER and before is not Role.USER:
            starts.append(index)
        before = speaker
    return starts


def rounds_to_cut(count: int, keep: int, step: int) -> int:
    """Return how many of `count` rounds to cut so that at least the last `keep` stay.

    It is a multiple of `step` where it can be: for so many rounds the same ones stay, and with them
    the prefix that a model server keeps of a prompt.
    """
    old = max(count - keep, 0)
    return old - old % step or old


@dataclass(frozen=True, slots=True)
class OldRounds:
    """What of a prompt's messages is to be summarised, and how the rest has to change for it."""

    turns: tuple[Turn, ...]
    """The messages that go."""
    texts: tuple[str, ...]
    """What goes with them, tools' results included."""
    gone: Gone
    """What to summarise: theirs, and the summaries that messages which stay have in front."""
    carrier: Text
    """What the user says where the summary is to stand."""
    rest: dict[Path, str]
    """Texts that stay, without the summaries that they had in front."""


def old_rounds(
    document: Document, turns: Sequence[Turn], *, keep: int, step: int, at_question: bool
) -> OldRounds | None:
    """Choose the rounds before the last `keep` ones; None when there are none to take.

    Of them stay system prompts and whole rounds with an image, a sound or a file, and no call of a
    tool is cut from its result. The summary's place is a text of the user's: it needs no message
    of its own, whose role some model's template would not take there.
    """
    starts = round_starts(Role.TOOL if turn.has_tool else turn.role for turn in turns)
    count = rounds_to_cut(len(starts), keep, step)
    ends = [*starts[1:], len(turns)]
    pairs: dict[Path, Ends] = {}
    if count:
        pairs = {turn.path: ends_in(document.get(turn.path)) for turn in turns if turn.has_tool}
    for cut in range(count, max(count - _MOST_TRIES, 0), -1):
        rounds = [turns[start:end] for start, end in zip(starts[:cut], ends, strict=False)]
        are_old = [not any(turn.has_media for turn in one) for one in rounds]
        going = [
            turn
            for one, is_old in zip(rounds, are_old, strict=True)
            for turn in one
            if is_old and turn.role is not Role.SYSTEM
        ]
        carrier = _said(turns[starts[-1 if at_question else cut]])
        if not going or carrier is None or _breaks_a_pair(pairs, going):
            continue
        summarised = [Gone(len(going), ())]
        rest: dict[Path, str] = {}
        last = turns[starts[cut] :]
        for one, is_old in zip((*rounds, last), (*are_old, False), strict=True):
            if is_old:
                summarised += _words(one)
                continue
            for text in filter(None, map(_said, one)):
                summary, without = take_summary(text.value)
                if summary.turns and without.strip():  # no message is emptied
                    summarised.append(summary)
                    rest[text.path] = without
        rest.setdefault(carrier.path, carrier.value)
        texts = tuple(text.value for turn in going for text in turn.texts)
        return OldRounds(tuple(going), texts, join(summarised), carrier, rest)
    return None


def take_old_rounds(document: Document, old: OldRounds, summary: str) -> None:
    """Put a summary in the place of old rounds."""
    carried = {old.carrier.path: f"{summary}\n\n{old.rest[old.carrier.path]}"}
    for path, value in {**old.rest, **carried}.items():
        document.set(path, value)
    for turn in reversed(old.turns):  # so that the places of those before stay
        document.remove(turn.path)


class Shaped(NamedTuple):
    """A transcript with a summary of so many turns in it, and what it cost and costs in tokens.

    Without a turn it is as it was: its old rounds are no longer than their summary would be.
    """

    text: str
    turns: int
    before: int
    after: int


def shape_transcript(text: str, keep: int, step: int, place: str, tokens: int) -> Shaped | None:
    """Put a summary of at most so many tokens in the place of a transcript's old rounds.

    Return None when there are none to take. `place` is the setting of `shape`. Takes up to 0.2 s.
    """
    before, parts = read_transcript(text)
    starts = round_starts(part.role or Role.SYSTEM for part in parts)
    cut = rounds_to_cut(len(starts), keep, step)
    if not cut:
        return None
    old = old_parts(parts, starts, cut, at_question=place == "question")
    said = condense(old.gone.words, parts[starts[-1]].words, tokens)
    summary = write_summary(old.gone.turns, said)
    went = sum(map(estimate_tokens, old.texts))
    came = estimate_tokens(summary)
    if not said or came >= went:
        return Shaped(text, 0, went, went)
    shaped = write_transcript(before, old.kept, summary, old.place)
    return Shaped(shaped, old.gone.turns, went, came)


def question_in(turns: Sequence[Turn]) -> str:
    """Return what the user said last."""
    for turn in reversed(turns):
        if turn.role is Role.USER and turn.texts:
            return "\n".join(take_summary(text.value)[1] for text in turn.texts)
    return ""


def _said(turn: Turn) -> Text | None:
    """Return the first text of the user's own words in a message."""
    if turn.role is not Role.USER:
        return None
    own = (text for text in turn.texts if text.role is Role.USER and len(text.path) <= _MOST_STEPS)
    return next(own, None)


def _words(turns: Sequence[Turn]) -> list[Gone]:
    """Return what was said in a round, as one text: an answer is read after its question."""
    gone: list[Gone] = []
    words: list[str] = []
    for turn in turns:
        for text in turn.texts:
            if turn.role is Role.SYSTEM:
                continue
            summary, rest = take_summary(text.value)
            if summary.turns:
                gone.append(summary)
            if not (text.role is Role.TOOL and rest.lstrip().startswith(_JSON_STARTS)):
                words.append(rest)
    return [*gone, Gone(0, ("\n".join(words),))]


def _breaks_a_pair(pairs: Mapping[Path, Ends], going: Sequence[Turn]) -> bool:
    gone = {turn.path for turn in going if turn.has_tool}
    if not gone:
        return False
    kept = [ends for path, ends in pairs.items() if path not in gone]
    return breaks_a_pair(kept, [pairs[path] for path in gone])
