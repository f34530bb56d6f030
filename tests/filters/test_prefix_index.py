"""The index says what each replica holds, and holds no more than it may."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from filters.prefix_index import ENTRY_BYTES, PrefixIndex

TOKENS = 64
ALL = 0b1111


def chain(name: str) -> list[int]:
    """Return the names of a prompt's blocks: one for each letter, by all letters up to it."""
    return [hash(name[: end + 1]) for end in range(len(name))]


def record(index: PrefixIndex, replica: int, name: str) -> None:
    index.record(replica, chain(name), [TOKENS] * len(name))


def held(index: PrefixIndex, name: str, replicas: int = ALL) -> dict[int, int]:
    """Return how many blocks each replica holds, those that hold none left out."""
    found = {}
    for blocks, owners in index.match(chain(name), replicas):
        for replica in range(8):
            if owners >> replica & 1:
                assert replica not in found
                found[replica] = blocks
    return found


@pytest.fixture
def index() -> PrefixIndex:
    made = PrefixIndex()
    for replica in range(4):
        made.add(replica, 100 * TOKENS)
    return made


def test_an_empty_index_matches_nothing(index: PrefixIndex) -> None:
    """No replica holds anything yet."""
    assert {} == held(index, "abc")


def test_an_empty_prompt_matches_nothing(index: PrefixIndex) -> None:
    """A prompt shorter than a block has no names."""
    record(index, 0, "abc")
    assert [] == index.match([], ALL)


def test_each_replica_holds_what_its_prompts_began_with(index: PrefixIndex) -> None:
    """The longest common beginning counts, whatever followed it there."""
    record(index, 0, "abcdef")
    record(index, 1, "abx")
    record(index, 2, "zbc")
    assert {0: 4, 1: 2} == held(index, "abcdzz")


def test_only_replicas_asked_for_are_told(index: PrefixIndex) -> None:
    """A subset of a pool may be all that a request can go to."""
    record(index, 0, "ab")
    record(index, 1, "ab")
    assert {1: 2} == held(index, "ab", 0b0010)


def test_what_failed_is_forgotten(index: PrefixIndex) -> None:
    """The end of a prompt that never was prefilled is not there."""
    record(index, 0, "abcdef")
    index.forget(0, chain("abcdef")[3:])
    assert {0: 3} == held(index, "abcdef")


def test_what_was_forgotten_amid_a_prompt_is_held_once_it_is_asked_again(
    index: PrefixIndex,
) -> None:
    """A prompt that failed may have been the beginning of a longer one."""
    record(index, 0, "abcdef")
    index.forget(0, chain("abcd")[2:])
    size = index.size
    record(index, 0, "abcdef")
    index.add(0, 5 * TOKENS)
    assert (4 * ENTRY_BYTES, {0: 5}) == (size, held(index, "abcdef"))


def test_what_another_replica_has_is_not_forgotten(index: PrefixIndex) -> None:
    """A block has more owners than one."""
    record(index, 0, "abc")
    record(index, 1, "abc")
    index.forget(0, chain("abc"))
    assert {1: 3} == held(index, "abc")


def test_a_replica_started_anew_holds_nothing(index: PrefixIndex) -> None:
    """Its memory is empty, and so is what is known of it."""
    record(index, 0, "abc")
    index.clear(0)
    assert ({}, 0) == (held(index, "abc"), index.size)


def test_a_replica_removed_is_matched_no_more(index: PrefixIndex) -> None:
    """Another may take its number."""
    record(index, 0, "abc")
    index.remove(0)
    index.add(0, 100 * TOKENS)
    assert {} == held(index, "abc")


def test_the_end_of_the_prompt_used_least_recently_goes_first(index: PrefixIndex) -> None:
    """So what is left of it is still a beginning."""
    index.add(0, 8 * TOKENS)
    record(index, 0, "abcde")
    record(index, 0, "xyzuv")
    assert ({0: 3}, {0: 5}) == (held(index, "abcde"), held(index, "xyzuv"))


def test_a_prompt_used_again_stays(index: PrefixIndex) -> None:
    """Recently is when it was last asked."""
    index.add(0, 8 * TOKENS)
    record(index, 0, "abc")
    record(index, 0, "xyz")
    record(index, 0, "abc")
    record(index, 0, "uvw")
    assert ({0: 3}, {0: 2}) == (held(index, "abc"), held(index, "xyz"))


def test_less_room_is_less_held(index: PrefixIndex) -> None:
    """A replica that says how much it has is believed at once."""
    record(index, 0, "abcdef")
    index.add(0, 2 * TOKENS)
    assert ({0: 2}, 2 * ENTRY_BYTES) == (held(index, "abcdef"), index.size)


def test_all_replicas_together_are_bounded() -> None:
    """The more there are, the less is known of each."""
    index = PrefixIndex(8 * ENTRY_BYTES)
    index.add(0, 100 * TOKENS)
    record(index, 0, "abcdefghij")
    before = held(index, "abcdefghij")
    index.add(1, 100 * TOKENS)
    record(index, 1, "abcdefghij")
    assert ({0: 8}, {0: 4, 1: 4}) == (before, held(index, "abcdefghij"))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.text("ab", min_size=1, max_size=12)), max_size=12),
    st.text("ab", max_size=12),
)
def test_as_many_blocks_are_found_as_by_looking_at_each(
    prompts: Sequence[tuple[int, str]], asked: str
) -> None:
    """Few are looked at; the answer is that of looking at all."""
    index = PrefixIndex()
    beginnings: dict[int, set[str]] = {}
    for replica in range(4):
        index.add(replica, 10_000 * TOKENS)
    for replica, prompt in prompts:
        record(index, replica, prompt)
        beginnings.setdefault(replica, set()).update(
            prompt[: end + 1] for end in range(len(prompt))
        )
    expected = {}
    for replica, known in beginnings.items():
        depth = max((end for end in range(len(asked) + 1) if asked[:end] in known), default=0)
        if depth:
            expected[replica] = depth
    assert expected == held(index, asked)


class Bounded(RuleBasedStateMachine):
    """Whatever is recorded, forgotten and removed: no room is exceeded and nothing is left over."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.rooms: dict[int, int] = {}

    @rule(replica=st.integers(0, 2), blocks=st.integers(0, 20))
    def add(self, replica: int, blocks: int) -> None:
        self.rooms[replica] = blocks
        self.index.add(replica, blocks * TOKENS)

    @rule(replica=st.integers(0, 2), prompt=st.text("ab", max_size=8))
    def record(self, replica: int, prompt: str) -> None:
        if replica in self.rooms:
            record(self.index, replica, prompt)

    @rule(replica=st.integers(0, 2), prompt=st.text("ab", max_size=8), kept=st.integers(0, 8))
    def forget(self, replica: int, prompt: str, kept: int) -> None:
        if replica in self.rooms:
            self.index.forget(replica, chain(prompt)[kept:])

    @rule(replica=st.integers(0, 2))
    def remove(self, replica: int) -> None:
        if self.rooms.pop(replica, None) is not None:
            self.index.remove(replica)

    @invariant()
    def no_room_is_exceeded(self) -> None:
        assert self.index.size <= ENTRY_BYTES * sum(self.rooms.values())

    @invariant()
    def only_those_there_are_matched(self) -> None:
        for prompt in ("aaaaaaaa", "abababab", "b"):
            assert held(self.index, prompt).keys() <= self.rooms.keys()


TestBounded = Bounded.TestCase
