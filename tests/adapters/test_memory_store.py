"""The in-process store stays within its bytes."""

from __future__ import annotations

import os
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.adapters.memory_store import ENTRY_BYTES, SIGHTINGS_SHARE, Lost, MemoryStore
from tests.fakes import FakeClock, PortWait, drive


def small_store(answers: int, clock: FakeClock | None = None) -> MemoryStore:
    """Return a store with room for just so many answers with 1-byte keys and values."""
    room = answers * (ENTRY_BYTES + 2)
    return MemoryStore(clock or FakeClock(), room * SIGHTINGS_SHARE // (SIGHTINGS_SHARE - 1))


def test_the_least_recently_read_answer_goes_first() -> None:
    """Reading keeps an answer alive."""
    store = small_store(answers=2)
    drive(store.put(b"a", b"1", 60))
    drive(store.put(b"b", b"2", 60))
    drive(store.get(b"a"))
    drive(store.put(b"c", b"3", 60))
    assert [b"1", None, b"3"] == [drive(store.get(key)) for key in (b"a", b"b", b"c")]


def test_one_big_answer_displaces_as_many_as_it_needs() -> None:
    """Room is counted in bytes, not in answers."""
    store = small_store(answers=4)
    for key in (b"a", b"b", b"c", b"d"):
        drive(store.put(key, b"1", 60))
    drive(store.put(b"big", b"x" * ENTRY_BYTES, 60))
    kept = [drive(store.get(key)) for key in (b"a", b"b", b"c", b"d")]
    assert [None, None, b"1", b"1"] == kept


def test_an_answer_bigger_than_the_store_is_not_kept() -> None:
    """It displaces nothing, and what stood under its key is out of date and goes."""
    store = small_store(answers=2)
    drive(store.put(b"a", b"1", 60))
    drive(store.put(b"b", b"2", 60))
    drive(store.put(b"b", b"x" * 10_000, 60))
    assert [b"1", None] == [drive(store.get(key)) for key in (b"a", b"b")]


def test_a_replaced_answer_gives_its_room_back() -> None:
    """The size is what is kept, however often it was put."""
    store = small_store(answers=2)
    for _ in range(100):
        drive(store.put(b"a", b"1", 60))
    assert ENTRY_BYTES + 2 == store.size


def test_an_answer_found_over_its_time_gives_its_room_back() -> None:
    """Expired answers do not count for ever."""
    clock = FakeClock()
    store = MemoryStore(clock, 100_000)
    drive(store.put(b"a", b"1", 60))
    clock.advance(60)
    drive(store.get(b"a"))
    assert (0, 0) == (len(store), store.size)


def test_answers_that_nobody_asks_for_again_give_their_room_back() -> None:
    """Each put looks at a few: after as many puts as there are answers none is over its time."""
    clock = FakeClock()
    store = MemoryStore(clock, 1_000_000)
    for number in range(300):
        drive(store.put(b"short %d" % number, b"1", 10))
        drive(store.put(b"long %d" % number, b"1", 10_000))
    clock.advance(10)
    for _ in range(600):
        drive(store.put(b"one", b"1", 10))
    assert (301, 300) == (len(store), store.lost[Lost.TIME])
    for number in range(300):
        assert b"1" == drive(store.get(b"long %d" % number))


def test_what_was_lost_is_counted_by_its_reason() -> None:
    """Time and room are different reasons to look at the settings."""
    clock = FakeClock()
    store = small_store(answers=2, clock=clock)
    for key in (b"a", b"b", b"c"):
        drive(store.put(key, b"1", 60))
    drive(store.put(b"d", b"x" * 10_000, 60))
    clock.advance(60)
    drive(store.get(b"c"))
    assert {Lost.ROOM: 1, Lost.SIZE: 1, Lost.TIME: 1, Lost.SIGHTINGS: 0} == store.lost


@given(st.lists(st.tuples(st.sampled_from("pgat"), st.integers(0, 9)), max_size=200))
def test_any_order_of_calls_keeps_the_books_right(calls: list[tuple[str, int]]) -> None:
    """What is found is what a store without bounds would find, or nothing; its room adds up."""
    clock = FakeClock()
    store = small_store(answers=5, clock=clock)
    expected: dict[bytes, tuple[int, bytes]] = {}
    for number, (call, which) in enumerate(calls):
        key = b"%d" % which
        match call:
            case "p":
                value = b"%d" % (number % 10)
                drive(store.put(key, value, which + 1))
                expected[key] = (clock.monotonic_ns() + (which + 1) * 10**9, value)
            case "g":
                ends_ns, value = expected.get(key, (0, b""))
                assert drive(store.get(key)) in (
                    (None, value) if ends_ns > clock.monotonic_ns() else (None,)
                )
            case "a":
                clock.advance(which / 4)
            case _:
                drive(store.put(key, b"", 0))
                expected.pop(key, None)
        assert store.size == len(store) * (ENTRY_BYTES + 2) <= 5 * (ENTRY_BYTES + 2)


def test_the_sightings_of_endless_keys_stay_within_their_share() -> None:
    """Whoever sends a different prompt each time cannot fill the memory, and is counted."""
    store = MemoryStore(FakeClock(), 1_000_000)
    for number in range(30_000):
        drive(store.sighted(b"%d" % number, 3600, 5))
    assert store.size <= 1_000_000 // SIGHTINGS_SHARE
    assert 2 == drive(store.sighted(b"29999", 3600, 5))
    assert store.lost[Lost.SIGHTINGS] > 0


def test_the_process_takes_no_more_memory_than_the_size() -> None:
    """The overhead counted for each entry is what Python takes."""
    size = 512 * 1024
    tracemalloc.start()
    store = MemoryStore(FakeClock(), size)
    for _ in range(5_000):
        key = os.urandom(32)
        drive(store.put(key, os.urandom(200), 60))
        drive(store.sighted(key, 60, 5))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.8 * size < used < 1.1 * size


def test_no_caller_is_suspended() -> None:
    """A request that the memory answers needs no task and no turn of the loop."""
    waits: list[PortWait] = []
    store = MemoryStore(FakeClock(), 100_000)
    drive(store.put(b"a", b"1", 60), waits)
    drive(store.get(b"a"), waits)
    drive(store.sighted(b"a", 60, 5), waits)
    assert [] == waits


def test_closing_lets_go_of_everything() -> None:
    """A closed store holds no memory."""
    store = MemoryStore(FakeClock(), 100_000)
    drive(store.put(b"a", b"1", 60))
    drive(store.sighted(b"a", 60, 5))
    drive(store.close())
    assert (0, 0) == (len(store), store.size)
