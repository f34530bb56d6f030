"""Memory answers first, never longer than the shared store allows, and alone when that is down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ext_proc.adapters.layered_store import LayeredStore
from ext_proc.adapters.memory_store import MemoryStore
from tests.fakes import FakeClock, FakeStore, drive


@dataclass
class Levels:
    """A replica's two levels, and another replica's view of the lower one."""

    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.far = FakeStore(self.clock)
        self.near = MemoryStore(self.clock, 1_000_000)
        self.store = LayeredStore(self.near, self.far, longest_s=10)

    def get(self, key: bytes) -> bytes | None:
        return drive(self.store.get(key))


def test_the_second_look_does_not_reach_the_shared_store() -> None:
    """What another replica put is copied into memory when it is first asked for."""
    levels = Levels()
    drive(levels.far.put(b"key", b"value", 60))
    levels.far.calls.clear()
    assert [b"value"] * 3 == [levels.get(b"key") for _ in range(3)]
    assert [("find", b"key")] == levels.far.calls


def test_what_was_put_is_found_in_memory_and_in_the_shared_store() -> None:
    """Other replicas find it, and this one need not ask."""
    levels = Levels()
    drive(levels.store.put(b"key", b"value", 60))
    assert (b"value", b"value") == (drive(levels.near.get(b"key")), drive(levels.far.get(b"key")))
    assert (b"value", 60.0) == drive(levels.far.find(b"key"))


def test_a_copy_ends_with_the_value() -> None:
    """A value with two seconds left does not get ten more."""
    levels = Levels()
    drive(levels.far.put(b"key", b"value", 12))
    levels.clock.advance(10)
    assert b"value" == levels.get(b"key")
    levels.clock.advance(2)
    assert levels.get(b"key") is None


def test_what_is_purged_from_the_shared_store_is_gone_from_memory_soon() -> None:
    """After `longest_s` everybody sees it."""
    levels = Levels()
    drive(levels.store.put(b"put", b"value", 60))
    drive(levels.far.put(b"copied", b"value", 60))
    levels.get(b"copied")
    levels.far.values.clear()
    levels.clock.advance(9.9)
    assert [b"value"] * 2 == [levels.get(key) for key in (b"put", b"copied")]
    levels.clock.advance(0.1)
    assert [None] * 2 == [levels.get(key) for key in (b"put", b"copied")]


def test_a_value_without_an_end_is_copied_for_the_longest_time() -> None:
    """Somebody may have put it there by hand."""
    levels = Levels()

    class Endless(FakeStore):
        async def find(self, key: bytes) -> tuple[bytes, float] | None:
            return b"value", math.inf

    store = LayeredStore(levels.near, Endless(levels.clock), longest_s=10)
    assert b"value" == drive(store.get(b"key"))
    levels.clock.advance(10)
    assert drive(levels.near.get(b"key")) is None


def test_memory_serves_while_the_shared_store_is_down() -> None:
    """What it has is a hit, what it has not is a miss, and what is put is kept for a while."""
    levels = Levels()
    drive(levels.store.put(b"before", b"value", 60))
    levels.far.failing = True
    drive(levels.store.put(b"during", b"value", 60))
    assert [b"value", b"value", None] == [levels.get(key) for key in (b"before", b"during", b"no")]
    levels.clock.advance(10)
    assert [None, None] == [levels.get(key) for key in (b"before", b"during")]


def test_sightings_are_counted_here_while_the_shared_store_is_down() -> None:
    """They begin at one: late, and never early."""
    levels = Levels()
    counts = [drive(levels.store.sighted(b"key", 3600, 5)) for _ in range(3)]
    levels.far.failing = True
    counts += [drive(levels.store.sighted(b"key", 3600, 5)) for _ in range(6)]
    levels.far.failing = False
    counts.append(drive(levels.store.sighted(b"key", 3600, 5)))
    assert [1, 2, 3, 1, 2, 3, 4, 5, 5, 4] == counts


def test_a_refreshed_answer_takes_the_place_of_the_copy() -> None:
    """Who asked the model again finds what it said, in both."""
    levels = Levels()
    drive(levels.store.put(b"key", b"old", 60))
    drive(levels.store.put(b"key", b"fresh", 60))
    assert (b"fresh", b"fresh") == (levels.get(b"key"), drive(levels.far.get(b"key")))


def test_closing_lets_go_of_both() -> None:
    """Nothing is left in memory, nothing connected."""
    levels = Levels()
    drive(levels.store.put(b"key", b"value", 60))
    drive(levels.store.close())
    assert (0, {}) == (len(levels.near), levels.far.values)
