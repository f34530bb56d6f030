"""In virtual time: whatever is believed of the machines at first, nobody waits longer for it."""

from __future__ import annotations

import pytest

from ext_proc.tools.routing_loads import LOADS
from ext_proc.tools.routing_run import Run
from filters.prefill_cost import PrefillCost

REPLICAS = 4
REQUESTS = 1_500


def played(load: str, factor: float, *, learns: bool) -> tuple[float, PrefillCost]:
    """Return the 95th percentile of waits, and what is believed at the end.

    At first a token is believed to take `factor` times what it does.
    """
    run = Run(LOADS[load], "expected", REPLICAS)
    cost, hardware = run.picker.cost, LOADS[load].hardware
    cost.token_s = factor * hardware.prefill_s
    cost.doubles = hardware.prefill_doubles
    run.picker.learns = learns
    return run.go(REQUESTS).percentile(0.95), cost


@pytest.mark.slow
@pytest.mark.parametrize("load", ["shared", "unshared", "code"])
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_what_is_wrong_by_five_times_is_learned(load: str, factor: float) -> None:
    """The constants come near the truth, and waits near those of who knew it from the start."""
    right_s, _ = played(load, 1.0, learns=False)
    learned_s, cost = played(load, factor, learns=True)
    truth = LOADS[load].hardware.prefill_s
    assert 0.6 * truth < cost.token_s < 1.4 * truth
    assert learned_s < 1.15 * right_s
