"""Loads for the comparison of routing strategies: who asks what, and when.

A load is an endless succession of sessions in virtual time, the same for the same seed. Prompts are
streams of tokens without text: what matters of them is where two of them begin alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple, TypeAlias

from blake3 import blake3

from ext_proc.tools.replica_model import BLOCK_TOKENS, Hardware

Label: TypeAlias = tuple[str, int]


class Tokens:
    """A stream of tokens that only grows, as the names of its whole blocks."""

    __slots__ = ("_begun", "chain", "count", "parts")

    def __init__(self) -> None:
        self.chain: list[int] = []
        """The name of each whole block, by all up to its end."""
        self.count = 0
        self.parts: list[tuple[Label, int]] = []
        """What it consists of."""
        self._begun: tuple[tuple[int, int, int], ...] = ()
        """What the block that is not whole yet consists of."""

    def copy(self) -> Tokens:
        """Return a stream that begins as this one does."""
        other = Tokens()
        other.chain, other.count, other._begun = self.chain.copy(), self.count, self._begun
        other.parts = self.parts.copy()
        return other

    def add(self, label: Label, tokens: int) -> Tokens:
        """Go on with so many tokens, the same wherever the label is; return the stream."""
        self.parts.append((label, tokens))
        # A string's own hash is another one in each process, and a beginning's home would be, too.
        mark = int.from_bytes(blake3(repr(label).encode()).digest(8), "little")
        chain, at = self.chain, 0
        if filled := self.count % BLOCK_TOKENS:
            at = min(tokens, BLOCK_TOKENS - filled)
            self._begun += ((mark, 0, at),)
            if filled + at == BLOCK_TOKENS:
                chain.append(hash((chain[-1] if chain else 0, self._begun)))
                self._begun = ()
        self.count += tokens
        while tokens - at >= BLOCK_TOKENS:
            chain.append(hash((chain[-1] if chain else 0, mark, at)))
            at += BLOCK_TOKENS
        if at < tokens:
            self._begun += ((mark, at, tokens - at),)
        return self


class Turn(NamedTuple):
    """One question of a session."""

    asked: int
    """Tokens new in it."""
    answered: int
    """Tokens of its answer."""
    pause_s: float = 0.0
    """What the reader takes before it asks, once it has the answer before."""


@dataclass(slots=True)
class Session:
    """Somebody's questions, each of which begins with all that was said before."""

    number: int
    said: Tokens
    turns: Sequence[Turn]
    asked: int = 0
    """How many of the turns were asked."""

    @property
    def pause_s(self) -> float | None:
        """How long until the next question; None when all were asked."""
        return self.turns[self.asked].pause_s if self.asked < len(self.turns) else None

    def ask(self) -> tuple[tuple[int, ...], int, int]:
        """Return the next question: its chain with that of its answer, and the tokens of both."""
        turn = self.turns[self.asked]
        self.asked += 1
        said, label = self.said, 2 * self.asked
        prompt = said.add((f"session {self.number}", label), turn.asked).count
        said.add((f"session {self.number}", label + 1), turn.answered)
        return tuple(said.chain), prompt, turn.answered


Sessions: TypeAlias = Iterator[tuple[float, Session]]


@dataclass(frozen=True, slots=True)
class Load:
    """A load and the machines it is meant for."""

    name: str
    about: str
    sessions: Callable[[random.Random, int], Sessions]
    """When each session begins, in seconds, for a seeded generator and a number of replicas."""
    hardware: Hardware = field(default_factory=Hardware)


def hastened(load: Load, speed: float) -> Load:
    """Return a load in which everything, machines and people, is so many times faster."""
    hardware = load.hardware
    fast = replace(
        hardware,
        step_s=hardware.step_s / speed,
        prefill_s=hardware.prefill_s / speed,
        decode_s=hardware.decode_s / speed,
        context_s=hardware.context_s / speed,
    )

    def sessions(rng: random.Random, replicas: int) -> Sessions:
        for at_s, session in load.sessions(rng, replicas):
            turns = [turn._replace(pause_s=turn.pause_s / speed) for turn in session.turns]
            yield at_s / speed, replace(session, turns=turns)

    return replace(load, sessions=sessions, hardware=fast)


def _prefixes(rng: random.Random, many: int, least: int, most: int) -> list[Tokens]:
    return [Tokens().add(("prefix", one), rng.randint(least, most)) for one in range(many)]


def _shared(
    rng: random.Random, replicas: int, rate: Callable[[float], float], begin_s: float = 0.0
) -> Sessions:
    """Single questions behind one of many system prompts, some of which are asked far more."""
    many = 25 * replicas
    prefixes = _prefixes(rng, many, 1_000, 6_000)
    weights = [1 / (rank + 1) ** 0.9 for rank in range(many)]
    at_s = begin_s
    for number in count():
        at_s += rng.expovariate(rate(at_s) * replicas)
        said = rng.choices(prefixes, weights)[0].copy()
        yield at_s, Session(number, said, [Turn(rng.randint(20, 600), rng.randint(30, 250))])


def _zipf(rng: random.Random, replicas: int) -> Sessions:
    return _shared(rng, replicas, lambda at_s: 2.3)


def _bursts(rng: random.Random, replicas: int) -> Sessions:
    return _shared(rng, replicas, lambda at_s: 4.2 if at_s % 60 < 12 else 0.7)


def _long(rng: random.Random, replicas: int) -> Sessions:
    at_s = 0.0
    for number in count():
        at_s += rng.expovariate(0.014 * replicas)
        said = Tokens().add(("document", number), rng.randint(15_000, 60_000))
        turns = [
            Turn(rng.randint(30, 200), rng.randint(50, 400), rng.expovariate(1 / 8))
            for _ in range(rng.randint(4, 16))
        ]
        yield at_s, Session(number, said, turns)


def _code(rng: random.Random, replicas: int) -> Sessions:
    prefixes = _prefixes(rng, 6, 3_000, 8_000)
    at_s = 0.0
    for number in count():
        at_s += rng.expovariate(0.07 * replicas)
        turns = [
            Turn(rng.randint(200, 1_500), rng.randint(50, 500), rng.expovariate(1 / 4))
            for _ in range(rng.randint(6, 20))
        ]
        yield at_s, Session(number, rng.choice(prefixes).copy(), turns)


def _nothing_shared(rng: random.Random, replicas: int) -> Sessions:
    at_s = 0.0
    for number in count():
        at_s += rng.expovariate(2.8 * replicas)
        turns = [Turn(rng.randint(200, 3_000), rng.randint(30, 300))]
        yield at_s, Session(number, Tokens(), turns)


LOADS: Final = {
    load.name: load
    for load in (
        Load(
            "shared",
            "system prompts of 1,000 to 6,000 tokens, 25 for each replica, asked as Zipf has it",
            _zipf,
        ),
        Load(
            "bursts",
            "the same, six times as many requests in 12 seconds of every minute",
            _bursts,
        ),
        Load(
            "long",
            "documents of 15,000 to 60,000 tokens, four to sixteen questions about each",
            _long,
            Hardware(cache_tokens=524_288),
        ),
        Load(
            "code",
            "sessions of 6 to 20 turns whose context grows, behind one of six system prompts",
            _code,
            Hardware(cache_tokens=262_144),
        ),
        Load("unshared", "prompts of 200 to 3,000 tokens that share nothing", _nothing_shared),
    )
}
