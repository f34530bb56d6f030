"""The cost of a prefill is learned from what prefills took, whatever was believed before."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.prefill_cost import BASE_S, DECODE_S, DOUBLES, TOKEN_S, Prefill, PrefillCost

TRUE = PrefillCost(token_s=1e-4, doubles=32_768, decode_s=5e-4, base_s=0.01)


def took(prefill: Prefill, cost: PrefillCost = TRUE) -> float:
    """Return what a prefill takes in truth."""
    return cost.seconds(prefill.held, prefill.tokens) + cost.decode_s * prefill.queue + cost.base_s


def some(rng: random.Random) -> Prefill:
    """Return a prompt as they come: most of them short, and many of them held in part."""
    tokens = round(math.exp(rng.uniform(math.log(50), math.log(60_000))))
    return Prefill(rng.choice((0, 0, tokens // 2, tokens * 9 // 10)), tokens, rng.randint(0, 40))


def learned(factor: float, times: int, *, noise: float = 0.0) -> PrefillCost:
    """Return what is believed after so many prefills, by somebody `factor` from the truth."""
    rng = random.Random(3)
    cost = PrefillCost(TRUE.token_s * factor, TRUE.doubles, TRUE.decode_s * factor)
    for _ in range(times):
        prefill = some(rng)
        cost.learn([prefill], took(prefill) * math.exp(rng.gauss(0, noise)))
    return cost


def worst_error(cost: PrefillCost) -> float:
    """Return by which factor the cost of some prompt is wrong at most."""
    prompts = [Prefill(0, 500, 5), Prefill(0, 8_000, 5), Prefill(0, 60_000, 5)]
    prompts.append(Prefill(40_000, 42_000, 5))
    return max(math.exp(abs(math.log(took(one, cost) / took(one)))) for one in prompts)


def test_a_token_far_back_costs_more() -> None:
    """It looks at all before it."""
    assert TRUE.seconds(0, 1_000) == pytest.approx(0.1 * (1 + 500 / 32_768))
    assert TRUE.seconds(32_768, 33_768) == pytest.approx(0.1 * (2 + 500 / 32_768))


@pytest.mark.parametrize("factor", [0.2, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_it_is_learned_whatever_was_believed(factor: float, noise: float) -> None:
    """Some hundred prefills of all lengths make of five times too much what it is, about."""
    assert worst_error(learned(factor, 400, noise=noise)) < 1.35


def test_what_is_right_stays() -> None:
    """There is nothing to learn where nothing is wrong."""
    cost = PrefillCost(TRUE.token_s, TRUE.doubles, TRUE.decode_s, TRUE.base_s)
    for at in range(100):
        prefill = some(random.Random(at))
        cost.learn([prefill], took(prefill))
    assert TRUE.constants() == pytest.approx(cost.constants())


def test_several_in_one_step_are_learned_from_together() -> None:
    """They have the beginning in common, and share the rest."""
    prefills = [Prefill(0, 1_000, 0)] * 4
    cost = PrefillCost(TRUE.token_s, TRUE.doubles, TRUE.decode_s, TRUE.base_s)
    cost.learn(prefills, 4 * TRUE.seconds(0, 1_000) + TRUE.base_s)
    assert TRUE.constants() == pytest.approx(cost.constants())


@pytest.mark.parametrize("seconds", [3_600.0, 1e-9])
def test_one_that_hung_moves_little(seconds: float) -> None:
    """Two in a hundred, however much."""
    cost = learned(1.0, 4_000)
    before = took(Prefill(0, 8_000, 5), cost)
    cost.learn([Prefill(0, 8_000, 5)], seconds)
    assert before == pytest.approx(took(Prefill(0, 8_000, 5), cost), rel=0.021)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_nonsense_teaches_nothing(seconds: float) -> None:
    """A clock may have been set, and what was cut short has no length."""
    cost = PrefillCost()
    cost.learn([Prefill(0, 1_000, 0)], seconds)
    assert (PrefillCost().constants(), 0) == (cost.constants(), cost.seen)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200_000),
            st.integers(0, 200_000),
            st.integers(0, 1_000),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=60,
    )
)
def test_constants_stay_between_bounds(seen: list[tuple[int, int, int, float]]) -> None:
    """Whatever is seen."""
    cost = PrefillCost()
    for held, more, queue, seconds in seen:
        for _ in range(5):
            cost.learn([Prefill(held, held + more, queue)], seconds)
    for value, (least, most) in zip(
        cost.constants().values(), (TOKEN_S, DOUBLES, DECODE_S, BASE_S), strict=True
    ):
        assert least <= value <= most
