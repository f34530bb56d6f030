"""A picker knows who has what to do, and picks from those that are there."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from filters.picking import (
    EXPLORE_S,
    MOST_COUNTED_S,
    MOST_REFUSALS,
    PROBE_S,
    Picker,
    ask_of,
    number_of,
)
from filters.prefill_cost import PrefillCost
from filters.prefix_blocks import MOST_NAMED_BYTES
from filters.replica import (
    LATE_S,
    RECENT_S,
    STALE_S,
    SUSPECT_S,
    Ask,
    Pick,
    Replica,
    Signals,
    home_of,
)
from filters.strategies import STRATEGIES, Blend, Expected

ROOM = 1_000_000
A, B, C, D = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"
EVERY = tuple(STRATEGIES)


def cost() -> PrefillCost:
    return PrefillCost(token_s=1e-4, doubles=32_768, decode_s=1e-3, base_s=0.01)


def made(strategy: str = "expected", *addresses: str, explore: float = 0.0) -> Picker:
    """Return a picker over `addresses`, four unless they are said, with foreseeable dice."""
    costs = cost()
    picker = Picker(
        STRATEGIES[strategy](costs),
        costs,
        explore=explore,
        rng=random.Random(7).random,
        name=strategy,
    )
    for address in addresses or (A, B, C, D):
        picker.add(address, ROOM)
    return picker


def asked(text: str = "", tokens: int = 1_000, *, watched: bool = True) -> Ask:
    """Return a prompt of so many tokens that begins with `text` over and over."""
    return ask_of(((text or "x") * 4 * tokens).encode()[: 4 * tokens], "m", watched=watched)


def numbers() -> Iterator[str]:
    return (f"{number} " for number in range(1_000_000))


@pytest.mark.parametrize("strategy", EVERY)
def test_nobody_is_picked_where_nobody_is(strategy: str) -> None:
    """A pool may have lost all its replicas."""
    picker = made(strategy, A)
    picker.remove(A)
    with pytest.raises(LookupError):
        picker.pick(asked(), 0.0)


@pytest.mark.parametrize("strategy", EVERY)
def test_only_those_allowed_are_picked(strategy: str) -> None:
    """Whoever asks may say who comes into question; strangers among them are nobody."""
    picker = made(strategy, explore=0.5)
    texts = numbers()
    picks = [picker.pick(asked(next(texts)), 0.0, {B, D, "10.9.9.9:1"}) for _ in range(40)]
    assert {B, D} == {address for pick in picks for address in pick.addresses}


def test_a_subset_of_strangers_is_nobody() -> None:
    """Another replica than those allowed is no answer."""
    with pytest.raises(LookupError):
        made().pick(asked(), 0.0, {"10.9.9.9:1"})


@pytest.mark.parametrize("strategy", EVERY)
def test_the_second_address_is_another_replica(strategy: str) -> None:
    """It is where the request goes when the first one takes no connection."""
    picker = made(strategy, A, B)
    first, second = picker.pick(asked(), 0.0).addresses
    assert {A, B} == {first, second}


def test_one_replica_alone_has_no_second() -> None:
    """There is nothing to fall back on."""
    assert (A,) == made("expected", A).pick(asked(), 0.0).addresses


def test_a_prompt_goes_where_its_beginning_is() -> None:
    """The rest of it costs less there than all of it elsewhere."""
    picker = made()
    first = picker.pick(asked("a", 4_000), 0.0)
    picker.started(first, 1.0)
    picker.ended(first, 2.0)
    again = picker.pick(asked("a", 4_096), 3.0)
    assert (first.replica, 4_000 // 64 * 64) == (again.replica, again.held)


def test_a_prompt_leaves_its_beginning_behind_where_too_much_waits() -> None:
    """Twice its own prefill is less than what is owed there."""
    picker = made("expected", A, B)
    assert isinstance(picker.strategy, Expected)
    picker.strategy.balance_s = 0.0
    first = picker.pick(asked("a", 1_000), 0.0)
    others = [picker.pick(asked("a", 1_000), 0.0).replica for _ in range(200)]
    assert {first.replica.address, *(one.address for one in others)} == {A, B}


def test_equals_are_picked_in_turns_of_the_dice() -> None:
    """Four Forebays that start at the same time must not all begin with the same replica."""
    picker = made("random")
    picked = {picker.pick(asked(), 0.0).replica.address for _ in range(60)}
    assert {A, B, C, D} == picked


def test_round_robin_takes_each_in_its_turn() -> None:
    """All have the same number of requests."""
    picker = made("round_robin")
    picked = [picker.pick(asked(), 0.0).replica.address for _ in range(8)]
    assert [2] * 4 == [picked.count(address) for address in (A, B, C, D)]


def test_the_least_load_counts_what_others_sent() -> None:
    """What a replica says of itself is more than what was sent from here."""
    picker = made("least_load", A, B)
    picker.heard(A, Signals(0.0, waiting=3, running=5))
    assert [B] * 8 == [picker.pick(asked(), 0.1).replica.address for _ in range(8)]


def test_what_is_said_twice_is_counted_once() -> None:
    """Our own requests are among those that a replica speaks of."""
    picker = made("least_load", A)
    for _ in range(3):
        picker.pick(asked(), 0.0)
    picker.heard(A, Signals(0.1, waiting=2, running=1))
    assert 3 == picker.replicas[A].queue(0.1)


def test_expectation_counts_the_queue_of_others() -> None:
    """Each of them is taken to be a prompt such as those sent from here."""
    picker = made("expected", A, B)
    picker.heard(A, Signals(0.0, waiting=2))
    assert [B, B] == [picker.pick(asked(f"{at} "), 0.1).replica.address for at in range(2)]


@pytest.mark.parametrize("strategy", EVERY)
def test_a_replica_that_says_nothing_is_picked_all_the_same(strategy: str) -> None:
    """A scrape that failed says something of the way there, not of the model."""
    picker = made(strategy, A, B)
    for address in (A, B):
        picker.heard(address, Signals(0.0, waiting=1))
    texts = numbers()
    picked = {picker.pick(asked(next(texts)), 2 * STALE_S).replica.address for _ in range(40)}
    assert {A, B} == picked


@pytest.mark.parametrize(("now_s", "picked"), [(0.1, {B}), (2 * STALE_S, {A, B})])
def test_what_a_replica_said_long_ago_counts_for_nothing(now_s: float, picked: set[str]) -> None:
    """Whoever waited there may have gone."""
    picker, texts = made("expected", A, B), numbers()
    picker.heard(A, Signals(0.0, waiting=9))
    found: set[str] = set()
    for _ in range(20):
        pick = picker.pick(asked(next(texts)), now_s)
        picker.ended(pick, now_s, good=False)
        found.add(pick.replica.address)
    assert picked == found


def test_figures_that_stand_still_are_not_believed() -> None:
    """An exporter that is stuck goes on saying what it said."""
    picker = made("least_load", A)
    for tenth in range(60):
        picker.heard(A, Signals(tenth / 10, waiting=9, kv_usage=0.3))
        if tenth == 55:
            picker.pick(asked(), 5.5)
    assert 1 == picker.replicas[A].queue(6.0)


def test_figures_of_an_idle_replica_stand_still_and_are_believed() -> None:
    """Nothing happened that they would have to show."""
    picker = made("least_load", A)
    for tenth in range(60):
        picker.heard(A, Signals(tenth / 10, waiting=9, kv_usage=0.3))
    assert 9 == picker.replicas[A].queue(6.0)


def test_the_blend_leaves_full_memory_alone() -> None:
    """The last of the three scores decides where the others are equal."""
    picker = made("blend", A, B)
    picker.heard(A, Signals(0.0, kv_usage=0.9))
    picker.heard(B, Signals(0.0, kv_usage=0.2))
    assert B == picker.pick(asked(), 0.1).replica.address


def test_weights_can_be_changed_while_picks_are_under_way() -> None:
    """The next pick goes by the ones it finds."""
    picker = made("blend", A, B)
    assert isinstance(picker.strategy, Blend)
    first = picker.pick(asked("a", 4_000), 0.0)
    picker.strategy.prefix, picker.strategy.queue = 0.0, 3.0
    assert first.replica is not picker.pick(asked("a", 4_000), 0.1).replica


@pytest.mark.parametrize(("ahead", "stays"), [(3_900, True), (4_300, False)])
def test_affinity_leaves_a_replica_with_too_much_to_do(ahead: int, stays: bool) -> None:
    """What it owes to others costs more than the prefix of 4,000 tokens saves."""
    picker = made("affinity", A, B)
    picker.started(picker.pick(asked("a", 4_000), 0.0, {A}), 0.0)
    picker.pick(asked("b", ahead), 0.0, {A})
    assert (A if stays else B) == picker.pick(asked("a", 4_000), 0.0).replica.address


def holding(picker: Picker, address: str, text: bytes) -> None:
    """Let a replica hold a prompt, and have nothing to do."""
    pick = picker.pick(ask_of(text, "m"), 0.0, {address})
    picker.started(pick, 0.0)
    picker.ended(pick, 0.0)


FOUR_FIFTHS = b"a" * 12_800
FIVE_FIFTHS = FOUR_FIFTHS + b"b" * 3_200


def test_for_affinity_four_fifths_of_a_prompt_are_as_good_as_all_of_it() -> None:
    """Of two that hold so much the one with less to do is picked, before one that is idle."""
    picker = made("affinity", A, B, C)
    holding(picker, A, FIVE_FIFTHS)
    holding(picker, B, FOUR_FIFTHS)
    for address, tokens in ((A, 128), (B, 64)):
        picker.started(picker.pick(asked("c", tokens), 0.0, {address}), 0.0)
    assert B == picker.pick(ask_of(FIVE_FIFTHS, "m"), 1.0).replica.address


def test_for_the_blend_four_fifths_of_a_prompt_are_as_good_as_all_of_it() -> None:
    """The little memory that one has more decides."""
    picker = made("blend", A, B)
    holding(picker, A, FIVE_FIFTHS)
    holding(picker, B, FOUR_FIFTHS)
    picker.heard(A, Signals(0.0, kv_usage=0.2))
    picker.heard(B, Signals(0.0, kv_usage=0.1))
    assert B == picker.pick(ask_of(FIVE_FIFTHS, "m"), 1.0).replica.address


def test_exploration_pays_for_no_prefill() -> None:
    """A copy of what another replica holds would take the place of something else."""
    picker = made(explore=1.0)
    long = asked("a", int(10 * EXPLORE_S / 1e-4))
    first = picker.pick(long, 0.0)
    assert {first.replica} == {picker.pick(long, 1.0).replica for _ in range(20)}


def test_exploration_does_not_wait_behind_a_long_prompt() -> None:
    """What is learned is not worth half a minute of somebody's time."""
    picker = made("expected", A, B, explore=1.0)
    busy = picker.pick(asked("a", 100_000), 0.0).replica
    texts = numbers()
    for at in range(20):
        pick = picker.pick(asked(next(texts), 100), float(at) / 10)
        assert busy is not pick.replica
        picker.ended(pick, at / 10)


def test_who_has_as_many_as_it_should_is_left_while_another_has_room() -> None:
    """Whatever it holds of the prompt; where nobody has room, all come into question."""
    picker = made("expected", A, B)
    full, free = picker.replicas[A], picker.replicas[B]
    for replica in (full, free):
        replica.most = 1
    first = picker.pick(asked("a", 4_000), 0.0)
    second = picker.pick(asked("a", 4_000), 0.0)
    assert first.replica is not second.replica
    third = picker.pick(asked("a", 4_000), 0.0)
    assert third.replica in (full, free)


def test_a_prompt_that_takes_minutes_leaves_its_replica_no_less_liked_for_it() -> None:
    """Four seconds of it count as work: afterwards that replica is used again."""
    picker = made("expected", A)
    picker.pick(asked("a", 300_000), 0.0)
    replica = picker.replicas[A]
    assert replica.owed(0.0) > 100
    assert math.isclose(MOST_COUNTED_S / RECENT_S, replica.worked(0.0))


def test_short_prompts_do_not_wait_beside_a_replica_that_rests_after_a_long_one() -> None:
    """Of six that come at once it has some, as soon as each of the others has one."""
    picker = made("expected", A, B, C)
    long = picker.pick(asked("a", 100_000), 0.0)
    picker.started(long, 20.0)
    picker.ended(long, 20.0)
    texts = numbers()
    shorts = [picker.pick(asked(next(texts), 2_000), 30.0).replica.address for _ in range(6)]
    assert {A, B, C} == set(shorts)
    assert 1 <= shorts.count(long.replica.address) <= 2


@pytest.mark.parametrize(("running", "share"), [(0, 0.8), (1, 0.4), (9, 0.08)])
@pytest.mark.parametrize("explores", [True, False])
def test_the_more_all_have_to_do_the_less_is_explored(
    running: int, share: float, explores: bool
) -> None:
    """With nine requests at each, a tenth of what is explored while they are idle."""
    costs = cost()
    rolls = iter((0.0, share - 0.01 if explores else share + 0.01, 0.0))
    picker = Picker(STRATEGIES["expected"](costs), costs, explore=0.8, rng=rolls.__next__)
    for address in (A, B):
        picker.add(address, ROOM)
        picker.heard(address, Signals(0.0, running=running))
    pick = picker.pick(asked("", 64), 0.1)
    assert (B if explores else A, explores) == (pick.replica.address, "exploring" in pick.why)


def test_exploration_says_so() -> None:
    """Who reads why must see that it was no mistake."""
    picker = made(explore=1.0)
    texts = numbers()
    whys = [picker.pick(asked(next(texts), 64), 0.0).why for _ in range(20)]
    assert any(why.startswith("expected, exploring: ") for why in whys)


class Raises:
    """A strategy with a bug."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        raise ZeroDivisionError


class TooFew:
    """Another one."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        return [0.0]


class NoNumbers:
    """A third one."""

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        return [math.nan] * len(replicas)


@pytest.mark.parametrize("strategy", [Raises(), TooFew(), NoNumbers()])
def test_whatever_a_strategy_does_the_least_loaded_is_picked(
    strategy: Raises | TooFew | NoNumbers,
) -> None:
    """And it is counted, and said."""
    picker = made("expected", A, B)
    picker.strategy = strategy
    first, second = picker.pick(asked(), 0.0), picker.pick(asked(), 0.0)
    assert {A, B} == {first.replica.address, second.replica.address}
    assert (2, "least_load") == (picker.failed, second.strategy)


@pytest.mark.parametrize(("took_s", "strategy"), [(0.0009, "expected"), (0.002, "least_load")])
def test_no_longer_is_looked_for_who_holds_what_than_a_moment(took_s: float, strategy: str) -> None:
    """The prompt's beginning is at the busy one, where the least loaded one is another."""
    ticks = iter((0.0, 0.0, 10.0, 10.0 + took_s))
    costs = cost()
    picker = Picker(
        STRATEGIES["expected"](costs), costs, explore=0, name="expected", stopwatch=ticks.__next__
    )
    picker.add(A, ROOM)
    first = picker.pick(asked(), 0.0)
    picker.started(first, 0.1)
    picker.add(B, ROOM)
    second = picker.pick(asked(), 0.2)
    expected = {"expected": (A, 0, "expected"), "least_load": (B, 1, "least_load, hurried")}
    assert expected[strategy] == (second.replica.address, picker.hurried, second.strategy)


def test_why_names_the_best_with_weights_and_tokens() -> None:
    """Enough to understand a pick from its note."""
    picker = made("least_load", A, B)
    picker.heard(A, Signals(0.0, running=2))
    assert f"least_load: {B} 0 (0), {A} 2 (0)" == picker.pick(asked(), 0.1).why


def test_no_more_of_a_prompt_is_named_than_takes_a_moment() -> None:
    """All of it is counted."""
    long = ask_of(b"x" * (2 * MOST_NAMED_BYTES), "m")
    assert MOST_NAMED_BYTES // 4 == long.ends[-1]
    assert MOST_NAMED_BYTES // 2 == long.tokens


def test_tenants_share_no_beginnings() -> None:
    """Their caches are salted apart."""
    picker = made("expected", A)
    picker.pick(ask_of(b"x" * 4_000, "one"), 0.0)
    assert 0 == picker.pick(ask_of(b"x" * 4_000, "other"), 0.0).held


def test_a_failed_request_leaves_no_beginning_behind() -> None:
    """Nobody knows how much of it was prefilled."""
    picker = made("expected", A)
    picker.ended(picker.pick(asked("a"), 0.0), 0.1, good=False)
    assert 0 == picker.pick(asked("a"), 0.2).held


def test_what_was_there_before_a_failed_request_stays() -> None:
    """Another one brought it."""
    picker = made("expected", A)
    picker.ended(picker.pick(asked("a", 1_024), 0.0), 0.1)
    picker.ended(picker.pick(asked("a", 2_048), 0.2), 0.3, good=False)
    assert 1_024 == picker.pick(asked("a", 2_048), 0.4).held


def test_a_replica_begun_anew_holds_and_owes_nothing() -> None:
    """Its cache went with the process."""
    picker = made("expected", A)
    picker.pick(asked("a"), 0.0)
    picker.restarted(A)
    assert (0.0, 0) == (picker.replicas[A].owed(0.0), picker.pick(asked("a"), 0.0).held)


def test_requests_at_a_removed_replica_end_without_a_trace() -> None:
    """Its number belongs to another replica by then."""
    picker = made("expected", A)
    pick = picker.pick(asked("a"), 0.0)
    picker.remove(A)
    other = picker.add(B, ROOM)
    kept = picker.pick(asked("a"), 0.1)
    picker.ended(pick, 0.2, good=False)
    assert pick.replica.number == other.number
    assert kept.ask.ends[-1] == picker.pick(asked("a"), 0.3).held


def test_the_least_number_free_is_given_again() -> None:
    """The sets of the index are as long as there are replicas, however often they come and go."""
    picker = made()
    picker.remove(B)
    picker.remove(C)
    assert [1, 2, 4] == [picker.add(f"10.0.1.{at}:1", ROOM).number for at in range(3)]


def test_a_replica_added_twice_keeps_what_it_has() -> None:
    """It only has other room."""
    picker = made("expected", A)
    picker.pick(asked("a"), 0.0)
    picker.add(A, ROOM // 2)
    assert 1 == len(picker.replicas[A].picks)


def test_a_first_token_settles_what_was_asked_before() -> None:
    """A replica prefills in the order of arrival."""
    picker = made("expected", A)
    first, second, third = (picker.pick(asked(text), 0.0) for text in "abc")
    picker.started(second, 0.5)
    assert [True, True, False] == [pick.started for pick in (first, second, third)]
    assert third.prefill_s == pytest.approx(picker.replicas[A].owed(0.5))


# --- Gateways that share replicas ----------------------------------------------------------------


def shared() -> Picker:
    """Return a picker whose replicas serve others as well, and whose prompts are mostly held."""
    picker = made("expected")
    assert isinstance(picker.strategy, Expected)
    picker.strategy.balance_s = 0.0
    for at in range(800):
        for address in (A, B, C, D):
            picker.heard(address, Signals(at / 100, running=4))
        pick = picker.pick(asked("a", 2_048), at / 100)
        picker.started(pick, at / 100)
        picker.ended(pick, at / 100)
    return picker


def test_gateways_agree_on_where_a_beginning_is_at_home() -> None:
    """Neither knows of the other's picks; a replica prefills it once, not each of them."""
    one, other = shared(), shared()
    texts = numbers()
    agreed = 0
    for _ in range(40):
        ask = asked(next(texts), 2_048)
        first, second = one.pick(ask, 20.0), other.pick(ask, 20.0)
        agreed += first.replica.address == second.replica.address
        one.ended(first, 20.0, good=False)
        other.ended(second, 20.0, good=False)
    assert agreed == 40


def test_who_serves_alone_looks_for_no_home() -> None:
    """All that is known is what was sent from here, and that is all there is."""
    picker = made("expected")
    asks = [asked("a", 2_048) for _ in range(3)]
    for ask in asks:
        picker.ended(picker.pick(ask, 0.0), 0.0)
    assert [0.0] * 3 == [ask.hope for ask in asks]


def test_homes_are_spread_and_stay_where_others_go() -> None:
    """Whoever leaves gives away its own beginnings, and no others."""
    picker = made("expected", *(f"10.0.0.{at}:1" for at in range(8)))
    keys = tuple(replica.key for replica in picker.replicas.values())
    places = [number_of(str(at).encode()) for at in range(4_000)]

    def homes(among: tuple[int, ...]) -> list[int]:
        return [among[home_of(place, among)] for place in places]

    before, after = homes(keys), homes(keys[1:])
    counts = [before.count(key) for key in keys]
    moved = [old for old, other in zip(before, after, strict=True) if old != other]
    assert (400 < min(counts), max(counts) < 600) == (True, True)
    assert {keys[0]} == set(moved)


def test_a_place_is_the_same_in_every_process() -> None:
    """It is no hash of Python's own."""
    assert 2_179_733_580_478_890_686 == ask_of(b"a question", "m").place


# --- Replicas that do not answer -----------------------------------------------------------------


def late(picker: Picker, address: str) -> tuple[Pick, float]:
    """Have a request at `address` wait too long; return it and the time."""
    pick = picker.pick(asked("late"), 0.0, {address})
    return pick, LATE_S + 3 * pick.expected_s


@pytest.mark.parametrize("strategy", EVERY)
def test_a_late_replica_is_avoided(strategy: str) -> None:
    """Nothing started there since a first token should have come."""
    picker = made(strategy)
    _, now_s = late(picker, A)
    picked = {picker.pick(asked(), now_s).replica.address for _ in range(40)}
    assert [A] == [one.address for one in picker.avoided(now_s)]
    assert picked <= {B, C, D}


def test_a_replica_where_others_start_is_not_late() -> None:
    """It only has more to do than was thought."""
    picker = made("expected", A, B)
    early = picker.pick(asked("a"), 0.0, {A})
    _, now_s = late(picker, A)
    picker.started(early, now_s - 0.1)
    assert [] == picker.avoided(now_s)


def test_a_replica_that_served_a_moment_ago_may_be_late() -> None:
    """What it is asked after that has to start as well."""
    picker = made("expected", A, B)
    picker.started(picker.pick(asked("a"), 0.0, {A}), 0.1)
    _, late_s = late(picker, A)
    now_s = 0.1 + late_s + 0.1
    assert [B] * 4 == [picker.pick(asked(f"{at} "), now_s).replica.address for at in range(4)]
    assert [A] == [one.address for one in picker.avoided(now_s)]


def test_the_oldest_request_alone_says_whether_a_replica_is_late() -> None:
    """Every pick looks at every replica, and a late one may have hundreds that wait."""
    picker, looked = made("expected", A, B), list[int]()

    class Seen(dict[int, Pick]):
        def values(self) -> Any:
            for number, pick in self.items():
                looked.append(number)
                yield pick

    picks = [picker.pick(asked(), 0.0, {A}) for _ in range(3)]
    picker.replicas[A].unstarted = Seen(picker.replicas[A].unstarted)
    assert ([], [picks[0].number]) == (picker.avoided(0.0), looked)


def test_a_request_nobody_watches_makes_nothing_late() -> None:
    """Its answer comes in one piece when all of it is written."""
    picker = made("expected", A)
    picker.pick(asked(watched=False), 0.0)
    assert [] == picker.avoided(100.0)


def test_a_request_nobody_watches_makes_its_replica_suspect() -> None:
    """Its answer may take that long, or never come: it is worth a question."""
    picker = made("expected", A, B)
    pick = picker.pick(asked(watched=False), 0.0, {A})
    soon, later = picker.suspects(SUSPECT_S), picker.suspects(SUSPECT_S + 0.1)
    picker.back(A, SUSPECT_S + 0.1)
    asked_now = picker.suspects(SUSPECT_S + 0.2)
    picker.ended(pick, SUSPECT_S + 0.3)
    assert ([], [A], [], []) == (
        soon,
        [one.address for one in later],
        asked_now,
        picker.suspects(10 * SUSPECT_S),
    )


def test_a_replica_with_prefill_to_do_is_not_suspect() -> None:
    """Whoever asked it would wait behind that."""
    picker = made("expected", A)
    picker.pick(asked(watched=False), 0.0)
    picker.pick(asked("a", 100_000), 3.0)
    assert [] == picker.suspects(SUSPECT_S + 0.1)


def test_a_client_that_gives_up_does_not_make_a_late_replica_good() -> None:
    """It had its time."""
    picker = made("expected", A, B)
    pick, now_s = late(picker, A)
    picker.ended(pick, now_s, good=False)
    assert [A] == [one.address for one in picker.avoided(now_s)]


def test_a_client_that_gives_up_early_says_nothing_of_a_replica() -> None:
    """It would not have waited for another one either."""
    picker = made("expected", A, B)
    picker.ended(picker.pick(asked(), 0.0, {A}), 0.1, good=False)
    assert [] == picker.avoided(10.0)


def test_a_replica_that_refused_is_avoided_at_once() -> None:
    """There is nothing to wait for."""
    picker = made("expected", A, B)
    picker.refused(A, 0.0)
    assert {B} == {picker.pick(asked(), 0.0).replica.address for _ in range(10)}


def test_a_replica_that_says_again_and_again_that_it_cannot_serve_is_avoided() -> None:
    """It does so at once, and would always have the least to do."""
    picker = made("least_load", A, B)
    for _ in range(MOST_REFUSALS):
        assert [] == picker.avoided(0.0)
        picker.ended(picker.pick(asked(), 0.0, {A}), 0.0, good=False, ill=True)
    assert [A] == [one.address for one in picker.avoided(0.0)]
    picker.back(A, 0.0)
    picker.ended(picker.pick(asked(), 0.0, {A}), 0.0, good=False, ill=True)
    assert [] == picker.avoided(0.0)


def test_a_replica_that_serves_others_may_say_that_it_cannot() -> None:
    """It has too much to do, or does not like the prompt."""
    picker = made("least_load", A, B)
    for _ in range(MOST_REFUSALS):
        picker.started(picker.pick(asked(), 0.0, {A}), 0.0)
        for _ in range(MOST_REFUSALS - 1):
            picker.ended(picker.pick(asked(), 0.0, {A}), 0.0, good=False, ill=True)
    assert [] == picker.avoided(0.0)


def test_one_request_at_a_time_tries_an_avoided_replica() -> None:
    """The next one only when it came to nothing, and a while later."""
    picker = made("least_load", A, B)
    picker.refused(A, 0.0)
    probe = picker.pick(asked(), PROBE_S)
    others = {picker.pick(asked(), PROBE_S).replica.address for _ in range(5)}
    picker.ended(probe, 2 * PROBE_S, good=False)
    soon = picker.pick(asked(), 2 * PROBE_S)
    later = picker.pick(asked(), 3 * PROBE_S)
    assert ((A, B), {B}, (B,), (A, B)) == (
        probe.addresses,
        others,
        soon.addresses,
        later.addresses,
    )


def test_a_replica_is_back_when_something_starts_there() -> None:
    """The probe was answered."""
    picker = made("least_load", A, B)
    picker.refused(A, 0.0)
    picker.started(picker.pick(asked(), PROBE_S), PROBE_S + 0.1)
    assert [] == picker.avoided(PROBE_S + 0.1)


def test_a_replica_is_back_when_somebody_says_so() -> None:
    """A picker that sends no probes is told by who does."""
    picker = made("least_load", A, B)
    picker.probes = False
    picker.refused(A, 0.0)
    before = {picker.pick(asked(), 9.0).replica.address for _ in range(5)}
    picker.back(A, 9.0)
    assert ({B}, A) == (before, picker.pick(asked(), 9.0).replica.address)


def test_a_request_that_was_lost_does_not_hold_against_a_replica_that_is_back() -> None:
    """Its client goes on waiting for what nobody writes."""
    picker = made("expected", A, B)
    _, now_s = late(picker, A)
    before = [one.address for one in picker.avoided(now_s)]
    picker.back(A, now_s)
    assert ([A], []) == (before, picker.avoided(now_s + 0.1))


def test_where_all_are_avoided_all_are_tried() -> None:
    """Any of them is better than none."""
    picker = made("round_robin", A, B)
    picker.refused(A, 0.0)
    picker.refused(B, 0.0)
    assert {A, B} == {picker.pick(asked(), 0.0).replica.address for _ in range(4)}


def test_a_request_served_elsewhere_is_counted_there() -> None:
    """The first replica refused it, and is avoided."""
    picker = made("expected", A, B)
    pick = picker.pick(asked("a"), 0.0, {A})
    moved = picker.moved(pick, B, 0.1)
    assert ([0, 1], [A]) == (
        [len(picker.replicas[address].picks) for address in (A, B)],
        [one.address for one in picker.avoided(0.1)],
    )
    picker.ended(moved, 0.2)
    assert {} == picker.replicas[B].picks


# --- Whatever happens ----------------------------------------------------------------------------


class Books(RuleBasedStateMachine):
    """Replicas come and go, requests are sent, start, move and end: what is counted is what is."""

    def __init__(self) -> None:
        super().__init__()
        self.picker = made("expected", explore=0.1)
        self.now_s = 0.0
        self.picks: list[Pick] = []
        self.removed: list[Replica] = []

    @rule(strategy=st.sampled_from(EVERY))
    def change_strategy(self, strategy: str) -> None:
        self.picker.strategy = STRATEGIES[strategy](self.picker.cost)

    @rule(address=st.sampled_from((A, B, C, D)), room=st.integers(0, 5_000))
    def add(self, address: str, room: int) -> None:
        self.picker.add(address, room)

    @rule(address=st.sampled_from((A, B, C, D)))
    def remove(self, address: str) -> None:
        if address in self.picker.replicas:
            self.removed.append(self.picker.replicas[address])
        self.picker.remove(address)

    @precondition(lambda self: self.picker.replicas)
    @rule(
        text=st.text("ab", max_size=3),
        tokens=st.integers(0, 3_000),
        watched=st.booleans(),
        subset=st.none() | st.sets(st.sampled_from((A, B, C, D)), min_size=1),
    )
    def pick(self, text: str, tokens: int, watched: bool, subset: set[str] | None) -> None:
        there = set(self.picker.replicas)
        allowed = there if subset is None else there & subset
        if not allowed:
            with pytest.raises(LookupError):
                self.picker.pick(asked(text, tokens), self.now_s, subset)
            return
        pick = self.picker.pick(asked(text, tokens, watched=watched), self.now_s, subset)
        assert set(pick.addresses) <= allowed
        assert 0 <= pick.held <= tokens
        assert pick.why
        self.picks.append(pick)

    @precondition(lambda self: self.picks)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.picker.started(data.draw(st.sampled_from(self.picks)), self.now_s)

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), good=st.booleans())
    def end(self, data: st.DataObject, good: bool) -> None:
        pick = data.draw(st.sampled_from(self.picks))
        self.picks.remove(pick)
        self.picker.ended(pick, self.now_s, good=good)
        self.picker.ended(pick, self.now_s, good=good)  # twice is once
        self.picker.started(pick, self.now_s)  # and what starts after its end changes no count

    @precondition(lambda self: self.picks)
    @rule(data=st.data(), address=st.sampled_from((A, B, C, D)))
    def move(self, data: st.DataObject, address: str) -> None:
        pick = data.draw(st.sampled_from(self.picks))
        self.picks.remove(pick)
        self.picks.append(self.picker.moved(pick, address, self.now_s))

    @rule(address=st.sampled_from((A, B, C, D)), waiting=st.integers(0, 9))
    def hear(self, address: str, waiting: int) -> None:
        self.picker.heard(address, Signals(self.now_s, waiting, waiting))

    @rule(address=st.sampled_from((A, B, C, D)))
    def refuse(self, address: str) -> None:
        self.picker.refused(address, self.now_s)

    @rule(address=st.sampled_from((A, B, C, D)))
    def restart(self, address: str) -> None:
        self.picker.restarted(address)

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def counts_are_those_of_requests_under_way(self) -> None:
        under_way = {pick.number: pick for pick in self.picks}
        for replica in (*self.picker.replicas.values(), *self.removed):
            assert replica.picks.keys() <= under_way.keys()
            assert replica.unstarted.keys() <= replica.picks.keys()
            assert sum(pick.ask.tokens for pick in replica.picks.values()) == replica.tokens
            assert replica.owed(self.now_s) >= 0

    @invariant()
    def numbers_are_those_of_replicas(self) -> None:
        numbers = [replica.number for replica in self.picker.replicas.values()]
        assert len(set(numbers)) == len(numbers)
        assert all(number < 4 for number in numbers)

    def teardown(self) -> None:
        for pick in self.picks:
            self.picker.ended(pick, self.now_s)
        for replica in (*self.picker.replicas.values(), *self.removed):
            assert ({}, {}, 0) == (replica.picks, replica.unstarted, replica.tokens)


TestBooks = pytest.mark.slow(Books.TestCase)
