"""How much a replica takes at once follows from what it says."""

from __future__ import annotations

from filters.live_slots import FIRST, LiveSlots
from filters.picking import ask_of
from filters.replica import Pick, Replica, Signals


def replica(picks: int, **said: float) -> Replica:
    one = Replica(0, "10.0.0.1:8000")
    ask = ask_of(b"", "")
    one.picks.update({number: Pick(number, one, ask, 0.0, 0, 0.0, 0.0) for number in range(picks)})
    waiting, running = int(said.get("waiting", 0)), int(said.get("running", picks))
    one.signals = Signals(0.0, waiting, running, said.get("kv", 0.0))
    return one


def sizes(slots: LiveSlots, *said: Replica) -> list[int]:
    found = []
    for one in said:
        slots.heard(one)
        found.append(slots.size)
    return found


def test_a_replica_that_keeps_up_gets_twice_as_many() -> None:
    """As long as it has all it may, up to a bound."""
    expected = [32, 64, 100]
    assert expected == sizes(LiveSlots(100), *(replica(number) for number in (FIRST, 32, 64)))


def test_one_that_has_less_than_it_may_shows_nothing() -> None:
    """Its bound stays as it is."""
    assert [FIRST] == sizes(LiveSlots(100), replica(FIRST - 1))


def test_where_requests_wait_only_one_of_them_may() -> None:
    """From then on it grows by an eighth."""
    slots = LiveSlots(100)
    assert [9] == sizes(slots, replica(16, waiting=8, running=8))
    assert [10, 11] == sizes(slots, replica(9), replica(10, waiting=1, running=9))


def test_one_whose_memory_is_full_gets_no_more_than_it_runs() -> None:
    """One at least: it has to be seen how it is later on."""
    slots = LiveSlots(100)
    assert [6, 1] == sizes(slots, replica(6, kv=0.95), replica(0, kv=0.99))


def test_what_others_have_there_is_not_left_for_us() -> None:
    """Other gateways share the replica."""
    slots, one = LiveSlots(100), replica(0)
    one.others_running, one.others_waiting = 5, 1
    assert FIRST - 6 == slots.ours(one)
    one.others_running = 50
    assert 0 == slots.ours(one)
