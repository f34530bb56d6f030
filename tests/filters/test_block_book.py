"""What replicas say they hold is found by a prompt's tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filters.block_book import MOST_BLOCK_SIZES, BlockBook, Chain, ids_of, kept_ends
from tests.kv_publisher import hash_of

SIZE = 16
ROOM = 1 << 20
PROMPT = list(range(1_000, 1_640))


def book_of(replicas: int = 2, **more: int) -> BlockBook:
    book = BlockBook(**more)
    for replica in range(replicas):
        book.add(replica, ROOM)
    return book


def store(
    book: BlockBook,
    replica: int,
    tokens: Sequence[int],
    *,
    first: int = 0,
    size: int = SIZE,
    adapter: str = "",
    salts: Sequence[object] = (),
) -> None:
    """Say what a replica says whose hashes are its own."""
    hashes = hashes_of(replica, tokens, size)
    ids = ids_of(tokens[first * size : len(hashes) * size])
    parent = hashes[first - 1] if first else None
    book.stored(replica, hashes[first:], parent, ids, size, adapter, salts)


def hashes_of(replica: int, tokens: Sequence[int], size: int = SIZE) -> list[int]:
    return [hash_of(tokens[:end], replica) for end in range(size, len(tokens) + 1, size)]


def held(book: BlockBook, tokens: Sequence[int], model: str = "") -> dict[int, int]:
    """Return the tokens that each replica holds."""
    chain = book.chain(ids_of(tokens), model)
    assert chain is not None
    found = book.held(chain, (1 << 64) - 1)
    return {
        replica: end
        for end, owners in found
        for replica in range(owners.bit_length())
        if owners >> replica & 1
    }


def test_a_prompt_is_found_where_it_was_stored() -> None:
    """As far as it is the same."""
    book = book_of()
    store(book, 0, PROMPT)
    other = [*PROMPT[:256], *range(400)]
    assert ({0: 640}, {0: 256}) == (held(book, PROMPT), held(book, other))


def test_replicas_with_hashes_of_their_own_agree() -> None:
    """Hashes of vLLM differ from process to process."""
    book = book_of()
    store(book, 0, PROMPT)
    store(book, 1, PROMPT[:320])
    assert {0: 640, 1: 320} == held(book, PROMPT)


def test_blocks_come_behind_those_before() -> None:
    """A prompt is stored chunk by chunk."""
    book = book_of()
    store(book, 0, PROMPT[:100])
    store(book, 0, PROMPT, first=6)
    assert {0: 640} == held(book, PROMPT)


def test_blocks_behind_unknown_ones_are_counted() -> None:
    """Nobody can tell what they continue."""
    book = book_of()
    store(book, 0, PROMPT, first=6)
    store(book, 1, PROMPT[:64])
    assert ({1: 64}, 34) == (held(book, PROMPT), book.orphans)


def test_what_was_removed_is_not_held() -> None:
    """The end goes first, as in vLLM."""
    book = book_of()
    store(book, 0, PROMPT)
    book.removed(0, hashes_of(0, PROMPT)[20:])
    assert ({0: 320}, 20) == (held(book, PROMPT), book.known(0))


def test_what_was_stored_twice_is_held_until_removed_twice() -> None:
    """Two requests may compute the same block at a time."""
    book = book_of()
    store(book, 0, PROMPT)
    store(book, 0, PROMPT)
    hashes = hashes_of(0, PROMPT)
    book.removed(0, hashes)
    once = held(book, PROMPT)
    book.removed(0, hashes)
    assert ({0: 640}, {}) == (once, held(book, PROMPT))


def test_strange_hashes_may_be_removed() -> None:
    """What was said of them was lost."""
    book = book_of()
    store(book, 0, PROMPT)
    book.removed(0, [1, b"2"])
    assert {0: 640} == held(book, PROMPT)


def test_a_hash_means_what_was_said_last() -> None:
    """Else who says one again and again with other tokens would fill the memory."""
    book = book_of()
    for number in range(3):
        book.stored(0, [7], None, ids_of([number] * 64), 64)
    assert [{}, {}, {0: 64}] == [held(book, [number] * 64) for number in range(3)]
    book.removed(0, [7])
    assert {} == held(book, [2] * 64)


@pytest.mark.parametrize("tokens", [0, 1, SIZE + 1, 63])
def test_a_prompt_of_less_than_a_block_is_nowhere(tokens: int) -> None:
    """It has none to be found by, whatever part of one it has."""
    book = book_of()
    store(book, 0, PROMPT)
    assert Chain([], (), tokens) == book.chain(ids_of(PROMPT[:tokens]))


def test_prompts_are_cut_as_most_replicas_do() -> None:
    """One that says something else keeps nobody from being found."""
    book = book_of(3)
    store(book, 0, PROMPT)
    store(book, 1, PROMPT)
    store(book, 2, PROMPT, size=1)
    assert {0: 640, 1: 640} == held(book, PROMPT)


def test_blocks_have_few_sizes() -> None:
    """To work out where blocks end takes long, and a model has one size or two."""
    book = book_of()
    sizes = range(16, 16 + MOST_BLOCK_SIZES)
    for size in sizes:
        store(book, 0, PROMPT, size=size)
    with pytest.raises(ValueError, match="expected blocks of 16, 17, 18, 19, 20, 21, 22, 23 tok"):
        store(book, 1, PROMPT, size=24)
    assert 0 == book.known(1)
    store(book, 1, PROMPT)


def test_who_is_cleared_holds_nothing() -> None:
    """Others do."""
    book = book_of()
    store(book, 0, PROMPT)
    store(book, 1, PROMPT)
    book.clear(0)
    assert ({1: 640}, 0) == (held(book, PROMPT), book.known(0))


def test_who_was_removed_may_come_back() -> None:
    """Its number may be another's by then."""
    book = book_of()
    store(book, 0, PROMPT)
    book.remove(0)
    book.add(0, ROOM)
    assert {} == (held(book, PROMPT) if book.block_tokens else {})


def test_adapters_have_blocks_of_their_own() -> None:
    """A prompt for one that nobody spoke of is the base model's."""
    book = book_of()
    store(book, 0, PROMPT)
    store(book, 1, PROMPT, adapter="sql")
    found = (held(book, PROMPT), held(book, PROMPT, "sql"), held(book, PROMPT, "qwen"))
    assert ({0: 640}, {1: 640}, {0: 640}) == found


def test_salted_blocks_are_not_found() -> None:
    """They are somebody else's, or of another image."""
    book = book_of()
    store(book, 0, PROMPT, salts=[None] * 8 + ["image"])
    assert {0: 128} == held(book, PROMPT)


def test_what_was_sent_counts_as_held_until_it_is_withdrawn() -> None:
    """A replica says that it holds a prompt only once it has read it."""
    book = book_of()
    store(book, 1, PROMPT[:64])
    chain = book.chain(ids_of(PROMPT))
    assert chain is not None
    book.expect(0, chain)
    sent = held(book, PROMPT)
    book.withdraw(0, chain, 128)
    assert ({0: 640, 1: 64}, {0: 128, 1: 64}) == (sent, held(book, PROMPT))


def test_nothing_is_known_before_a_replica_spoke() -> None:
    """Nobody knows how large its blocks are."""
    assert book_of().chain(ids_of(PROMPT)) is None


@pytest.mark.parametrize("size", [0, -1, 8_193])
def test_blocks_have_a_size(size: int) -> None:
    """Nothing is entered."""
    book = book_of()
    with pytest.raises(ValueError, match="expected 1 blocks"):
        book.stored(0, [1], None, ids_of(range(16)), size)
    assert 0 == book.known(0)


def test_blocks_have_all_their_tokens() -> None:
    """Nothing is entered."""
    book = book_of()
    with pytest.raises(ValueError, match="expected 2 blocks of 16, got 16"):
        book.stored(0, [1, 2], None, ids_of(range(16)), 16)
    assert 0 == book.known(0)


@pytest.mark.parametrize("size", [1, 16, 48, 64, 100, 256, 1_056])
def test_few_ends_are_kept_far_back(size: int) -> None:
    """They are ends of the model server's blocks."""
    ends = kept_ends(size)
    assert all(end % size == 0 for end in ends)
    assert len(ends) <= 225
    assert ends[0] >= size


def test_memory_is_bounded() -> None:
    """The oldest are forgotten, and found no more."""
    book = book_of(1, most_bytes=200 * 100)
    for number in range(20):
        store(book, 0, [number, *range(159)])
    assert (100, 100) == (book.known(0), book.dropped)
    assert {0: 128} == held(book, [19, *range(159)])
    assert {} == held(book, [0, *range(159)])
    assert book.size <= 200 * 100 * 2


def test_tokens_are_numbers() -> None:
    """They fit into 32 bits."""
    for wrong in ([-1], [1 << 32]):
        with pytest.raises(ValueError, match="expected tokens"):
            ids_of(wrong)


def test_sizes_of_a_chain_are_those_between_ends() -> None:
    """The first begins at 0."""
    assert (64, 64, 32) == Chain((1, 2, 3), (64, 128, 160), 170).sizes


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_the_book_agrees_with_a_cache(seed: int, replicas: int) -> None:
    """Whatever is stored, shared and evicted from the end, held is what is there."""
    rng = random.Random(seed)
    book = book_of(replicas)
    there: list[dict[int, tuple[int, ...]]] = [{} for _ in range(replicas)]
    prompts = [tuple(rng.choices(range(3), k=2)) for _ in range(6)]
    whole = [[token for word in prompt for token in [word] * 64] for prompt in prompts]
    for _ in range(30):
        at, tokens = rng.randrange(replicas), rng.choice(whole)
        hashes = hashes_of(at, tokens)
        first = next((n for n, one in enumerate(hashes) if one not in there[at]), len(hashes))
        if rng.random() < 0.6:
            if first < len(hashes):
                store(book, at, tokens, first=first)
                there[at] |= {one: tuple(tokens) for one in hashes[first:]}
        elif there[at]:
            longer = [one for one in hashes[rng.randrange(len(hashes)) :] if one in there[at]]
            behind = [
                one
                for one, of in there[at].items()
                if any(cut in hashes_of(at, of) for cut in longer)
                and hashes_of(at, of).index(one)
                >= min(hashes_of(at, of).index(cut) for cut in longer if cut in hashes_of(at, of))
            ]
            book.removed(at, behind)
            for one in behind:
                del there[at][one]
    if not book.block_tokens:
        return
    for tokens in whole:
        expected = {}
        for at in range(replicas):
            hashes = hashes_of(at, tokens)
            first = next((n for n, one in enumerate(hashes) if one not in there[at]), len(hashes))
            if end := first * SIZE // 64 * 64:
                expected[at] = end
        assert expected == held(book, tokens)
