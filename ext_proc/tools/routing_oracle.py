"""The yardstick of routing strategies: expects from what replicas really hold and have to do.

It looks no further ahead than one request, as every strategy here; but what the others have to
guess or to count for themselves it reads off the replicas, to the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ext_proc.tools.replica_model import BLOCK_TOKENS, Engine, Work
from filters.replica import Ask, Replica


class Oracle:
    """Weighs as `Expected` does, from the truth. `work` has to be set before each pick."""

    def __init__(
        self, engines: Sequence[Engine], ends_s: Sequence[float], own_weight: float = 2.0
    ) -> None:
        self._engines: Final = engines
        self._ends_s: Final = ends_s
        """When the plan of each is done."""
        self.own_weight = own_weight
        self.work: Work | None = None

    def weigh(
        self, ask: Ask, replicas: Sequence[Replica], held: Sequence[int], now_s: float
    ) -> list[float]:
        """See `Strategy`."""
        assert self.work is not None
        return [self._weight(replica.number, self.work, now_s) for replica in replicas]

    def _weight(self, at: int, work: Work, now_s: float) -> float:
        engine = self._engines[at]
        hardware, planned = engine.hardware, engine.planned
        wait_s = max(0.0, self._ends_s[at] - now_s)
        if engine.running and not engine.prefilling:
            wait_s = min(wait_s, engine.step_s)  # it is cut at the next step
        # What requests ahead will have computed by then is there for whom comes behind them.
        soon: set[int] = set()
        tokens, ahead_s = 0, 0.0
        for one in engine.running:
            done = one.computed + planned.get(id(one), 0)
            if done < one.prompt_tokens:
                soon.update(engine.prompt_blocks(one)[one.named :])
                tokens += one.prompt_tokens - done
                ahead_s += hardware.prefill(done, one.prompt_tokens - done)
        for one in engine.waiting:
            there = _held(engine, soon, one)
            soon.update(engine.prompt_blocks(one)[there // BLOCK_TOKENS :])
            tokens += one.prompt_tokens - there
            ahead_s += hardware.prefill(there, one.prompt_tokens - there)
        there = _held(engine, soon, work)
        tokens += work.prompt_tokens - there
        own_s = hardware.prefill(there, work.prompt_tokens - there)
        steps = math.ceil(tokens / hardware.step_tokens)
        return wait_s + ahead_s + self.own_weight * own_s + steps * engine.beside_s


def _held(engine: Engine, soon: set[int], work: Work) -> int:
    """Return how many tokens of a prompt the engine holds, or will once `soon` is computed."""
    blocks, cache = engine.prompt_blocks(work), engine.cache
    low, high = 0, min(len(blocks), (work.prompt_tokens - 1) // BLOCK_TOKENS)
    while low < high:  # who holds a block holds all before it
        middle = (low + high) // 2
        if blocks[middle] in cache or blocks[middle] in soon:
            low = middle + 1
        else:
            high = middle
    return low * BLOCK_TOKENS
