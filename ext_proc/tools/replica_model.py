"""What a model server does with its requests, step by step, without a clock of its own.

The engine is of vLLM's kind: each step has room for so many tokens; every answer being written
takes one, prefills share the rest in the order they came, in chunks. Blocks of prompts and answers
stay in memory until their room is needed, least recently used first, and a prompt that begins with
such blocks is spared their prefill.

The blocks of a chunk can be found from the moment it is planned, as in vLLM: who comes in behind it
finds them, even in the same step.

One model serves two forms: `simulate` steps it in real time, `bench routing` in virtual time.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

BLOCK_TOKENS: Final = 64  # four blocks of vLLM's: only whole ones are shared


@dataclass(frozen=True, slots=True)
class Hardware:
    """How fast a replica is and how much it holds; about an 8B model in half precision on 24 GB."""

    step_s: float = 0.008
    """What a step takes whatever is in it: weights are read, kernels started."""
    prefill_s: float = 1 / 10_000
    """A token of a prompt, at its beginning."""
    prefill_doubles: int = 32_768
    """At this position a token of a prompt takes twice as long: it looks back at all before it."""
    decode_s: float = 0.000_1
    """A token of an answer, as one of a batch."""
    context_s: float = 0.000_000_02
    """Each token of the context of each answer being written: it is read at every step."""
    step_tokens: int = 2_048
    """Most tokens of a step."""
    slots: int = 256
    """Most requests at once."""
    cache_tokens: int = 131_072
    """Tokens that the memory for keys and values holds."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens of a block."""

    def prefill(self, position: int, tokens: int) -> float:
        """Return the seconds for so many tokens of a prompt from `position` on."""
        return self.prefill_s * tokens * (1 + (position + tokens / 2) / self.prefill_doubles)


class Work:
    """A request at a replica. `chain` names the blocks of prompt and answer, each by all before."""

    __slots__ = (
        "answer_tokens", "arrived_s", "cached", "chain", "computed", "finished_s", "first_s",
        "left", "named", "prompt_tokens", "reserved",
    )  # fmt: skip

    def __init__(self, chain: Sequence[int], prompt_tokens: int, answer_tokens: int) -> None:
        self.chain: Final = chain
        self.prompt_tokens: Final = prompt_tokens
        self.answer_tokens: Final = answer_tokens
        self.arrived_s = 0.0
        self.first_s = 0.0
        """When its first token was written; 0 before."""
        self.finished_s = 0.0
        self.cached = 0
        """Tokens of the prompt that needed no prefill."""
        self.computed = 0
        self.left = answer_tokens
        self.named = 0
        """Blocks at the beginning of `chain` that it holds and others can find."""
        self.reserved = 0
        """Blocks of memory that it holds under no name yet."""


class BlockWatch(Protocol):
    """Who is told which blocks can be found at a replica."""

    def stored(self, work: Work, first: int, end: int) -> None:
        """Know that blocks of a request's chain, from `first` to before `end`, are there anew."""

    def removed(self, blocks: Sequence[int]) -> None:
        """Know that blocks are gone."""

    def cleared(self) -> None:
        """Know that all are."""


class BlockCache:
    """The memory for keys and values: blocks in use, and those that may be used again."""

    def __init__(self, blocks: int, watch: BlockWatch | None = None) -> None:
        self.blocks: Final = blocks
        self._watch: Final = watch
        self._used: Final[dict[int, int]] = {}
        """How many requests use a block."""
        self._free: Final[OrderedDict[int, None]] = OrderedDict()
        self._unnamed = 0
        self.evicted = 0

    def __contains__(self, block: int) -> bool:
        return block in self._used or block in self._free

    @property
    def usage(self) -> float:
        """What part is in use, 0 to 1, as vLLM counts it: what may be thrown away is free."""
        return min(1.0, (len(self._used) + self._unnamed) / self.blocks)

    def held(self, chain: Sequence[int]) -> int:
        """Return how many blocks at the beginning of `chain` are here."""
        for index, block in enumerate(chain):
            if block not in self:
                return index
        return len(chain)

    def reserve(self, chain: Sequence[int], blocks: int) -> bool:
        """Take `chain`, which is here, into use, and room for `blocks` more; tell if there was."""
        used, free = self._used, self._free
        fresh = sum([block not in used for block in chain])
        if len(used) + fresh + self._unnamed + blocks > self.blocks:
            return False
        for block in chain:
            free.pop(block, None)
            used[block] = used.get(block, 0) + 1
        self._unnamed += blocks
        over = len(self._used) + len(self._free) + self._unnamed - self.blocks
        if over > 0:
            gone = [self._free.popitem(last=False)[0] for _ in range(over)]
            self.evicted += over
            if self._watch is not None:
                self._watch.removed(gone)
        return True

    def name(self, blocks: Sequence[int]) -> int:
        """Give reserved room to `blocks`, computed now; return how much room that took."""
        used, free = self._used, self._free
        for block in blocks:
            free.pop(block, None)
            used[block] = used.get(block, 0) + 1
        self._unnamed -= len(blocks)
        return len(blocks)

    def release(self, chain: Sequence[int], reserved: int) -> None:
        """Let go of `chain` and of room that never got a name; the end of a chain goes first."""
        self._unnamed -= reserved
        used, free = self._used, self._free
        for block in reversed(chain):
            users = used.pop(block, 0)
            if users > 1:
                used[block] = users - 1
            elif users:
                free[block] = None

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._used.clear()
        self._free.clear()
        self._unnamed = 0
        if self._watch is not None:
            self._watch.cleared()


class Engine:
    """One replica. `begin` plans a step and returns how long it takes; `end` makes it done.

    While nothing but answers are written, one plan spans as many steps as all of them go on for:
    `cut` ends it at the step in which a request arrives.
    """

    def __init__(self, hardware: Hardware, watch: BlockWatch | None = None) -> None:
        self.hardware: Final = hardware
        self.cache: Final = BlockCache(hardware.cache_tokens // hardware.block_tokens, watch)
        self._watch: Final = watch
        self.waiting: Final[deque[Work]] = deque()
        self.running: Final[list[Work]] = []
        self.busy_s = 0.0
        self.worked_s = 0.0
        """What of that went into tokens, not into steps as such."""
        self.prefilled = 0
        """Tokens of prompts that were computed."""
        self._chunks: list[tuple[Work, int]] = []
        self._writing: list[Work] = []
        self._steps = 0
        self._step_s = 0.0

    @property
    def prefilling(self) -> bool:
        """Whether the step under way has a part of some prompt in it."""
        return bool(self._chunks)

    @property
    def planned(self) -> dict[int, int]:
        """The tokens of prompts in the step under way, by the `id` of their requests."""
        return {id(work): tokens for work, tokens in self._chunks}

    @property
    def step_s(self) -> float:
        """How long each step of the plan takes."""
        return self._step_s

    @property
    def beside_s(self) -> float:
        """What a step takes beside prefill: itself, and the answers being written."""
        hardware, writing = self.hardware, self._writing
        context = sum(work.prompt_tokens + work.answer_tokens - work.left for work in writing)
        return hardware.step_s + len(writing) * hardware.decode_s + context * hardware.context_s

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def prompt_blocks(self, work: Work) -> Sequence[int]:
        """Return the names of the whole blocks of a request's prompt."""
        return work.chain[: work.prompt_tokens // self.hardware.block_tokens]

    def arrive(self, work: Work, now_s: float) -> None:
        """Take a request."""
        work.arrived_s = now_s
        self.waiting.append(work)

    def begin(self) -> float:
        """Plan what comes next; return its seconds, 0 when there is nothing to do."""
        hardware = self.hardware
        self._writing = [work for work in self.running if work.computed >= work.prompt_tokens]
        room = hardware.step_tokens - len(self._writing)
        self._chunks = []
        seconds = 0.0
        for work in self.running:
            if room > 0 and work.computed < work.prompt_tokens:
                room, seconds = self._plan_chunk(work, room, seconds)
        while self.waiting and room > 0 and len(self.running) < hardware.slots:
            if not self._admit(self.waiting[0]):
                break
            work = self.waiting.popleft()
            self.running.append(work)
            room, seconds = self._plan_chunk(work, room, seconds)
        if not self.running:
            self._steps = 0
            return 0.0
        self._steps = 1 if self._chunks else min(work.left for work in self._writing)
        context = sum(work.prompt_tokens + work.answer_tokens - work.left for work in self._writing)
        context += len(self._writing) * self._steps // 2
        writing_s = len(self._writing) * hardware.decode_s + context * hardware.context_s
        self._step_s = hardware.step_s + seconds + writing_s
        return self._steps * self._step_s

    def cut(self, elapsed_s: float) -> float:
        """End the plan with the step that runs `elapsed_s` after it began; return its seconds."""
        steps = max(1, math.ceil(elapsed_s / self._step_s)) if self._step_s else 1
        self._steps = min(self._steps, steps)
        return self._steps * self._step_s

    def end(self, now_s: float) -> tuple[list[Work], list[Work]]:
        """Make the plan done; return who wrote a first token, and who is finished."""
        self.busy_s += self._steps * self._step_s
        self.worked_s += self._steps * max(0.0, self._step_s - self.hardware.step_s)
        firsts: list[Work] = []
        finished: list[Work] = []
        for work in self._writing:
            work.left -= self._steps
        for work, tokens in self._chunks:
            work.computed += tokens
            self.prefilled += tokens
            if work.computed >= work.prompt_tokens:
                work.first_s = now_s
                work.left -= 1
                firsts.append(work)
        for work in [*self._writing, *firsts]:
            if work.left <= 0:
                work.finished_s = now_s
                finished.append(work)
                self.running.remove(work)
                self._name(work, len(work.chain))
                self._release(work)
        return firsts, finished

    def drop(self, work: Work) -> None:
        """Forget a request whose client went away; what it computed can still be found."""
        if work in self.waiting:
            self.waiting.remove(work)
        elif work in self.running:
            self.running.remove(work)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not work]
            self._writing = [one for one in self._writing if one is not work]
            self._release(work)

    def clear(self) -> list[Work]:
        """Forget everything, as a restart does; return the requests that were there."""
        works = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self.cache.clear()
        self._chunks, self._writing, self._steps, self._step_s = [], [], 0, 0.0
        return works

    def _name(self, work: Work, blocks: int) -> None:
        """Let others find so many blocks of a request."""
        if self._watch is not None:
            self._tell(self._watch, work, blocks)
        work.reserved -= self.cache.name(work.chain[work.named : blocks])
        work.named = max(work.named, blocks)

    def _tell(self, watch: BlockWatch, work: Work, blocks: int) -> None:
        """Tell which of them nobody could find so far."""
        first = work.named
        for index in range(work.named, min(blocks, len(work.chain))):
            if work.chain[index] in self.cache:
                if first < index:
                    watch.stored(work, first, index)
                first = index + 1
        if first < min(blocks, len(work.chain)):
            watch.stored(work, first, min(blocks, len(work.chain)))

    def _release(self, work: Work) -> None:
        self.cache.release(work.chain[: work.named], work.reserved)
        work.reserved = 0

    def _plan_chunk(self, work: Work, room: int, seconds: float) -> tuple[int, float]:
        tokens = min(room, work.prompt_tokens - work.computed)
        self._chunks.append((work, tokens))
        whole = (work.computed + tokens) // self.hardware.block_tokens
        self._name(work, min(len(self.prompt_blocks(work)), whole))
        return room - tokens, seconds + self.hardware.prefill(work.computed, tokens)

    def _admit(self, work: Work) -> bool:
        """Give a request its memory, if there is enough."""
        blocks, block_tokens = self.prompt_blocks(work), self.hardware.block_tokens
        held = self.cache.held(blocks)
        if held * block_tokens >= work.prompt_tokens:
            held -= 1  # the last token is always computed: the first answer comes of it
        needed = -(-(work.prompt_tokens + work.answer_tokens) // block_tokens) - held
        if not self.cache.reserve(blocks[:held], needed):
            return False
        work.reserved, work.named = needed, held
        work.cached = work.computed = held * block_tokens
        return True
