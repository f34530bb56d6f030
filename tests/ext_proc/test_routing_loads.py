"""Loads ask the same again for the same seed, and prompts share what they are said to share."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.tools.replica_model import BLOCK_TOKENS
from ext_proc.tools.routing_loads import LOADS, Load, Tokens

EACH = pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)


def asked(load: Load, sessions: int, seed: int = 1) -> list[tuple[float, list[tuple[int, ...]]]]:
    """Return when each session begins and the chain of each of its questions."""
    rng = random.Random(seed)
    return [
        (at_s, [session.ask()[0] for _ in session.turns])
        for at_s, session in islice(load.sessions(rng, 4), sessions)
    ]


def alike(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return at how many blocks two chains begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, pair in pairs if len(set(pair)) > 1), len(one))


@EACH
def test_the_same_seed_asks_the_same(load: Load) -> None:
    """Two strategies are compared on the very same prompts at the very same times."""
    assert asked(load, 20) == asked(load, 20)


@EACH
def test_another_seed_asks_something_else(load: Load) -> None:
    """So a figure can be checked with another one."""
    assert [at_s for at_s, _ in asked(load, 5)] != [at_s for at_s, _ in asked(load, 5, seed=2)]


@EACH
def test_a_turn_begins_with_all_that_was_said_before(load: Load) -> None:
    """The answer before it included, up to the last whole block."""
    for _, session in islice(load.sessions(random.Random(3), 4), 10):
        before: tuple[int, ...] = ()
        while session.pause_s is not None:
            chain, prompt, answer = session.ask()
            assert before == chain[: len(before)]
            assert (prompt + answer) // BLOCK_TOKENS == len(chain)
            before = chain


@pytest.mark.slow
@EACH
def test_more_replicas_are_asked_more(load: Load) -> None:
    """Twice as many get twice as many sessions in the same time, about."""

    def end_s(replicas: int) -> float:
        rng = random.Random(5)
        *_, (at_s, _) = islice(load.sessions(rng, replicas), 400 * replicas)
        return at_s

    assert pytest.approx(end_s(8), rel=0.2) == end_s(4)


def test_system_prompts_are_shared_and_some_far_more_than_others() -> None:
    """Zipf has it that a few are asked by many."""
    firsts = [turns[0][0] for _, turns in asked(LOADS["shared"], 500)]
    counts = sorted((firsts.count(first) for first in set(firsts)), reverse=True)
    assert counts[0] > 5 * counts[len(counts) // 2]


def test_nothing_is_shared_where_nothing_is_to_be() -> None:
    """Not even a first block."""
    firsts = [turns[0][0] for _, turns in asked(LOADS["unshared"], 200)]
    assert len(firsts) == len(set(firsts))


@given(st.lists(st.integers(0, 200), max_size=8))
def test_a_stream_has_a_name_for_each_whole_block(pieces: list[int]) -> None:
    """However it was put together."""
    stream = Tokens()
    for number, tokens in enumerate(pieces):
        stream.add(("piece", number), tokens)
    assert sum(pieces) == stream.count
    assert sum(pieces) // BLOCK_TOKENS == len(stream.chain) == len(set(stream.chain))


@given(st.lists(st.integers(1, 200), min_size=2, max_size=6), st.data())
def test_streams_are_alike_up_to_the_block_in_which_they_differ(
    pieces: list[int], data: st.DataObject
) -> None:
    """A block is named by everything up to its end."""
    differs = data.draw(st.integers(0, len(pieces) - 1))
    one, other = Tokens(), Tokens()
    for number, tokens in enumerate(pieces):
        one.add(("piece", number), tokens)
        other.add(("else" if number == differs else "piece", number), tokens)
    same = sum(pieces[:differs]) // BLOCK_TOKENS
    assert same == alike(tuple(one.chain), tuple(other.chain))


def test_a_copy_goes_on_alone() -> None:
    """What is added to it is not added to what it was copied from."""
    stream = Tokens().add(("prefix", 0), 100)
    copy = stream.copy().add(("question", 0), 100)
    assert (100, 200, 1, 3) == (stream.count, copy.count, len(stream.chain), len(copy.chain))
