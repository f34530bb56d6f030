"""The model of a replica takes the time, and keeps the blocks, that a model server would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.tools.replica_model import BLOCK_TOKENS, BlockCache, Engine, Hardware, Work

HARDWARE = Hardware(cache_tokens=64 * BLOCK_TOKENS, slots=4, step_tokens=256)


def chain(name: str) -> list[int]:
    """Return the names of blocks: one for each letter, by all letters up to it."""
    return [hash(name[: end + 1]) for end in range(len(name))]


def work(prompt: str, answer: str = "Z") -> Work:
    """Return a request with a block for each letter."""
    return Work(chain(prompt + answer), len(prompt) * BLOCK_TOKENS, len(answer) * BLOCK_TOKENS)


def drain(engine: Engine, now_s: float = 0.0) -> tuple[float, list[Work]]:
    """Step until nothing is left to do; return when that was, and what finished in order."""
    finished: list[Work] = []
    while seconds := engine.begin():
        now_s += seconds
        finished += engine.end(now_s)[1]
    return now_s, finished


def test_an_idle_engine_plans_nothing() -> None:
    """No request, no step."""
    assert 0 == Engine(HARDWARE).begin()


def test_a_prompt_is_prefilled_in_chunks_and_answered_a_token_a_step() -> None:
    """Three chunks of 256 tokens for 640, then one step for every token but the first."""
    engine = Engine(HARDWARE)
    one = work("abcdefghij")
    engine.arrive(one, 0.0)
    chunks = 0
    now_s = 0.0
    while not one.first_s:
        now_s += engine.begin()
        engine.end(now_s)
        chunks += 1
    assert (3, 0, 640) == (chunks, one.cached, engine.prefilled)
    expected_s = 3 * HARDWARE.step_s + HARDWARE.prefill(0, 640)
    assert expected_s == pytest.approx(one.first_s)
    assert BLOCK_TOKENS - 1 == one.left
    ended_s, finished = drain(engine, now_s)
    assert [one] == finished
    assert ended_s == one.finished_s > one.first_s + (BLOCK_TOKENS - 1) * HARDWARE.step_s


def test_the_beginning_that_is_there_is_not_prefilled_again() -> None:
    """The next turn of a conversation has the last one, its answer included, in front."""
    engine = Engine(HARDWARE)
    engine.arrive(work("abcd", "Z"), 0.0)
    now_s, _ = drain(engine)
    turn = work("abcdZef")
    engine.arrive(turn, now_s)
    drain(engine, now_s)
    assert 5 * BLOCK_TOKENS == turn.cached


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt that is there whole still needs a step for its first token."""
    engine = Engine(HARDWARE)
    engine.arrive(work("abcd"), 0.0)
    now_s, _ = drain(engine)
    again = work("abcd")
    engine.arrive(again, now_s)
    drain(engine, now_s)
    assert 3 * BLOCK_TOKENS == again.cached


def test_who_finds_no_memory_waits_for_it() -> None:
    """Prompt and answer are reserved together: an answer that was begun is never thrown away."""
    engine = Engine(HARDWARE)
    large, next_one = work("a" * 40, "Z"), work("b" * 40, "Z")
    engine.arrive(large, 0.0)
    engine.arrive(next_one, 0.0)
    engine.begin()
    assert (1, 1) == (len(engine.running), len(engine.waiting))
    engine.end(0.1)
    _, finished = drain(engine, 0.1)
    assert [large, next_one] == finished


def test_no_more_run_at_once_than_there_are_slots() -> None:
    """The others wait in the order they came."""
    engine = Engine(HARDWARE)
    for letter in "abcdefg":
        engine.arrive(work(letter), 0.0)
    engine.begin()
    assert (4, 3, 7) == (len(engine.running), len(engine.waiting), engine.load)


def test_a_plan_of_many_steps_is_cut_where_a_request_arrives() -> None:
    """It begins with the next step, not when the answers before it end."""
    engine = Engine(HARDWARE)
    engine.arrive(work("a", "Z" * 4), 0.0)
    engine.begin()
    engine.end(1.0)
    whole_s = engine.begin()
    step_s = whole_s / (4 * BLOCK_TOKENS - 1)
    assert pytest.approx(11 * step_s) == engine.cut(10.5 * step_s)
    engine.end(2.0)
    assert 4 * BLOCK_TOKENS - 1 - 11 == engine.running[0].left


def test_later_tokens_of_a_prompt_take_longer() -> None:
    """Each looks back at all before it."""
    hardware = Hardware()
    assert hardware.prefill(0, 1_000) < hardware.prefill(30_000, 1_000)
    assert pytest.approx(hardware.prefill(0, 500) + hardware.prefill(500, 500)) == (
        hardware.prefill(0, 1_000)
    )


@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=20), st.text("Z", min_size=1, max_size=3)),
        max_size=20,
    )
)
def test_all_are_answered_and_nothing_stays_in_use(asked: list[tuple[str, str]]) -> None:
    """Whatever prompts share, the memory in use is that of requests that run."""
    engine = Engine(HARDWARE)
    sent = [work(prompt, answer) for prompt, answer in asked]
    for one in sent:
        engine.arrive(one, 0.0)
    _, finished = drain(engine)
    assert {id(one) for one in sent} == {id(one) for one in finished}
    assert (0, 0, 0.0) == (engine.load, sum(one.reserved for one in sent), engine.cache.usage)


def test_a_cache_evicts_the_ends_of_what_was_used_least_recently() -> None:
    """So what is left of a prompt is still its beginning."""
    cache = BlockCache(6)
    for name in ("abcd", "xyz"):
        assert cache.reserve([], len(name))
        cache.name(chain(name))
        cache.release(chain(name), 0)
    assert (3, 3, 1) == (cache.held(chain("abcd")), cache.held(chain("xyz")), cache.evicted)


def test_who_comes_behind_finds_what_is_being_computed() -> None:
    """Two prompts that begin alike, in one step: the second one's beginning is not computed."""
    engine = Engine(HARDWARE)
    one, other = work("abX"), work("abY")
    engine.arrive(one, 0.0)
    engine.arrive(other, 0.0)
    drain(engine)
    assert (0, 2 * BLOCK_TOKENS, 4 * BLOCK_TOKENS) == (one.cached, other.cached, engine.prefilled)


def test_the_work_that_went_into_tokens_is_what_steps_take_beyond_themselves() -> None:
    """A replica that only steps has nothing to show for it."""
    engine = Engine(HARDWARE)
    engine.arrive(work("abcd", "Z"), 0.0)
    drain(engine)
    steps = 1 + BLOCK_TOKENS - 1
    assert pytest.approx(engine.busy_s - steps * HARDWARE.step_s) == engine.worked_s


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_request_that_is_dropped_leaves_no_memory_in_use(steps: int) -> None:
    """While it waits, in its prefill or in its answer; what it computed can still be found."""
    engine = Engine(HARDWARE)
    gone, stays = work("abcdefgh"), work("xyz")
    engine.arrive(stays, 0.0)
    engine.arrive(gone, 0.0)
    for _ in range(steps):
        engine.begin()
        engine.cut(0.0)
        engine.end(1.0)
    engine.drop(gone)
    engine.drop(gone)  # a second time changes nothing
    _, finished = drain(engine)
    assert [stays] == finished
    assert (0, 0.0, 0) == (engine.load, engine.cache.usage, gone.reserved)


def test_a_request_can_be_dropped_in_the_middle_of_a_step() -> None:
    """The step goes on for the others."""
    engine = Engine(HARDWARE)
    gone, stays = work("ab"), work("xy")
    engine.arrive(gone, 0.0)
    engine.arrive(stays, 0.0)
    engine.begin()
    engine.drop(gone)
    firsts, _ = engine.end(1.0)
    assert [stays] == firsts


def test_a_restart_forgets_everything() -> None:
    """Those who were there are told apart from those who come."""
    engine = Engine(HARDWARE)
    there = [work(letter) for letter in "abcdef"]
    for one in there:
        engine.arrive(one, 0.0)
    engine.begin()
    assert there == engine.clear()
    assert (0, 0.0, 0.0) == (engine.load, engine.begin(), engine.cache.usage)
    assert 0 == engine.cache.held(chain("a"))


class Watch:
    """Keeps count of what is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.held: set[int] = set()

    def stored(self, work: Work, first: int, end: int) -> None:
        blocks = list(work.chain[first:end])
        self.told.append(("stored", blocks))
        assert not self.held & set(blocks)
        self.held.update(blocks)

    def removed(self, blocks: Sequence[int]) -> None:
        self.told.append(("removed", list(blocks)))
        assert set(blocks) <= self.held
        self.held.difference_update(blocks)

    def cleared(self) -> None:
        self.told.append(("cleared", []))
        self.held.clear()


def test_blocks_are_told_as_their_chunks_are_planned() -> None:
    """Those of the prompt chunk by chunk, those of the answer at its end."""
    watch = Watch()
    engine = Engine(HARDWARE, watch)
    engine.arrive(work("abcdef", "Z"), 0.0)
    drain(engine)
    names = chain("abcdefZ")
    assert [("stored", names[:4]), ("stored", names[4:6]), ("stored", names[6:])] == watch.told


def test_blocks_that_are_there_are_not_told_again() -> None:
    """In the middle of a chain, too: the end of another one may have gone before."""
    watch = Watch()
    engine = Engine(HARDWARE, watch)
    engine.arrive(work("ab"), 0.0)
    now_s, _ = drain(engine)
    engine.arrive(work("abcd"), now_s)
    drain(engine, now_s)
    names = [block for kind, blocks in watch.told for block in blocks if kind == "stored"]
    assert len(set(names)) == len(names)


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=20), st.text("Z", min_size=1, max_size=3)),
        max_size=20,
    )
)
def test_who_keeps_count_knows_what_the_cache_holds(asked: list[tuple[str, str]]) -> None:
    """Nothing is told twice, nothing is removed that was not there, and nothing is forgotten."""
    watch = Watch()
    engine = Engine(HARDWARE, watch)
    seen: set[int] = set()
    for prompt, answer in asked:
        one = work(prompt, answer)
        engine.arrive(one, 0.0)
        drain(engine)
        seen.update(one.chain)
    assert {block for block in seen if block in engine.cache} == watch.held
    engine.clear()
    assert set() == watch.held


def test_blocks_may_be_smaller() -> None:
    """As small as those of a server: a prompt's beginning is found more exactly."""
    engine = Engine(replace(HARDWARE, block_tokens=16, cache_tokens=1_024))
    one, other = Work([1, 2, 3, 4], 70, 1), Work([1, 2, 3, 5], 70, 1)
    engine.arrive(one, 0.0)
    now_s, _ = drain(engine)
    engine.arrive(other, now_s)
    drain(engine, now_s)
    assert (48, 0.0) == (other.cached, engine.cache.usage)
