"""Keep account of what replicas say they hold, block by block, and find it by a prompt's tokens.

A model server names a block by a hash of its own, and says once which tokens it has and which block
it follows. From these come names of our own, the same at every replica, which a prompt that was
cut into tokens has as well.
"""

from __future__ import annotations

import secrets
import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from statistics import mode
from struct import iter_unpack
from typing import Final, TypeAlias

from filters.prefix_blocks import block_ends
from filters.prefix_index import PrefixIndex

Hash: TypeAlias = int | bytes
"""A model server's own name of a block."""

ID_BYTES: Final = 4
MOST_TOKENS: Final = 131_072
"""What stands behind that in a prompt is not told apart, as in `filters.prefix_blocks`."""
BLOCK_BYTES: Final = 200
"""A block of a replica: its hash, what it is in our names, its place in the order. Measured."""
MOST_BYTES: Final = 64 << 20
"""For all replicas of a pool: they may hold 5 million tokens in blocks of 16."""
MOST_BLOCK_TOKENS: Final = 8_192
MOST_BLOCK_SIZES: Final = 8
"""Of one pool's replicas, who run one model: where blocks of a size end takes up to 0.1 s."""
_SALT: Final = secrets.randbits(62)  # nobody outside can choose tokens whose names agree
_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt in tokens, cut where blocks are accounted for."""

    names: Sequence[int]
    ends: Sequence[int]
    """In tokens."""
    tokens: int
    """Of the whole prompt."""
    shared: bool = False
    """Who asks may profit from what others asked."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The tokens of each block."""
        return _sizes_of(tuple(self.ends))


def ids_of(tokens: Iterable[int]) -> bytes:
    """Return tokens as names are made of them; raise `ValueError` for what is none."""
    try:
        ids = array("I", tokens)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"expected tokens, got {error}") from None
    if sys.byteorder == "big":  # pragma: no cover - names only have to agree with each other
        ids.byteswap()
    return ids.tobytes()


@lru_cache(64)
def kept_ends(block_tokens: int) -> tuple[int, ...]:
    """Return where blocks end that are accounted for: few, far back in a prompt.

    They are those in which a block of `filters.prefix_blocks` ends, so that a prompt of 100,000
    tokens has some 200 of them.
    """
    grid = block_ends(MOST_TOKENS)
    return tuple(
        end
        for end in range(block_tokens, MOST_TOKENS + 1, block_tokens)
        if bisect_right(grid, end) > bisect_right(grid, end - block_tokens)
    )


@lru_cache(256)  # prompts have no more numbers of blocks than that
def _sizes_of(ends: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(end - start for start, end in pairwise((0, *ends)))


@lru_cache(64)
def _sizes(block_tokens: int) -> Mapping[int, int]:
    """Return the tokens of each block that is accounted for, by where it ends."""
    ends = kept_ends(block_tokens)
    return {end: end - start for start, end in pairwise((0, *ends))}


@lru_cache(1_024)
def _root(adapter: str) -> int:
    return hash((_SALT, adapter)) & _MASK


class BlockBook:
    """What the replicas of a pool hold, as they say. They are numbers from 0 on.

    What is sent to one is entered too: it will hold that once it has read it, and will say so.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.index: Final = PrefixIndex(most_bytes)
        """Whole prompts' blocks by our names."""
        self.orphans = 0
        """Blocks behind one that is not known: what was said of that one was lost."""
        self.dropped = 0
        """Blocks forgotten for want of memory."""
        self.block_tokens = 0
        """Of the model server's blocks; 0 before one said so."""
        self._most: Final = most_bytes // BLOCK_BYTES
        # The hash of each block that a replica holds, and what it is: our name for the chain up to
        # its end, and above that where it ends.
        self._blocks: Final[dict[int, OrderedDict[Hash, int]]] = {}
        self._copies: Final[dict[int, dict[Hash, int]]] = {}
        """How often a replica holds a block beyond once: two requests may compute it at a time."""
        self._told: Final[dict[int, set[int]]] = {}
        """The names in the index that a replica spoke of; the others were sent there."""
        self._losses: Final[dict[int, int]] = {}
        self._adapters: Final[set[str]] = set()
        self._block_sizes: Final[set[int]] = set()
        """Those that anybody spoke of."""
        self._block_size: Final[dict[int, int]] = {}
        """That of each replica."""

    @property
    def size(self) -> int:
        """Bytes in use, about."""
        return self.index.size + BLOCK_BYTES * sum(map(len, self._blocks.values()))

    def known(self, replica: int) -> int:
        """Return how many blocks a replica said it holds."""
        return len(self._blocks.get(replica, ()))

    def losses(self, replica: int) -> int:
        """Return a number that grows whenever a replica holds less."""
        return self._losses[replica]

    def add(self, replica: int, room_tokens: int) -> None:
        """Take a replica in, or change how much it holds at most."""
        self._blocks.setdefault(replica, OrderedDict())
        self._copies.setdefault(replica, {})
        self._told.setdefault(replica, set())
        self._losses.setdefault(replica, 0)
        self.index.add(replica, room_tokens)

    def remove(self, replica: int) -> None:
        """Forget a replica."""
        del self._blocks[replica], self._copies[replica]
        del self._told[replica], self._losses[replica]
        self._block_size.pop(replica, None)
        self.index.remove(replica)

    def clear(self, replica: int) -> None:
        """Take a replica to hold nothing."""
        self._blocks[replica].clear()
        self._copies[replica].clear()
        self._told[replica].clear()
        self._losses[replica] += 1
        self.index.clear(replica)

    def chain(self, ids: bytes, model: str = "", *, shared: bool = False) -> Chain | None:
        """Cut a prompt, given by its `ids_of`; None before it is known how.

        `model` counts where it is an adapter of which a replica spoke.
        """
        size = self.block_tokens
        if not size:
            return None
        tokens = len(ids) // ID_BYTES
        ends = kept_ends(size)
        ends = ends[: bisect_right(ends, tokens)]
        named = memoryview(ids)[: ends[-1] * ID_BYTES if ends else 0]
        blocks = iter_unpack(f"{size * ID_BYTES}s", named)
        names: list[int] = []
        name = _root(model if model in self._adapters else "")
        at = 0
        for end in ends:
            for (block,) in islice(blocks, (end - at) // size):
                name = hash((name, block)) & _MASK
            names.append(name)
            at = end
        return Chain(names, ends, tokens, shared)

    def stored(
        self,
        replica: int,
        hashes: Sequence[Hash],
        parent: Hash | None,
        ids: bytes,
        block_tokens: int,
        adapter: str = "",
        salts: Sequence[object] = (),
    ) -> None:
        """Say that a replica holds blocks of these tokens behind `parent`, its prompt's own first.

        `salts` are what tells blocks apart beside their tokens. Raise `ValueError` for what cannot
        be: nothing is entered then.
        """
        step = block_tokens * ID_BYTES
        if not 0 < block_tokens <= MOST_BLOCK_TOKENS or len(ids) != len(hashes) * step:
            tokens = len(ids) // ID_BYTES
            raise ValueError(f"expected {len(hashes)} blocks of {block_tokens}, got {tokens}")
        self._say_size(replica, block_tokens)
        blocks, copies = self._blocks[replica], self._copies[replica]
        if adapter and len(self._adapters) < 1_024:
            self._adapters.add(adapter)
        if parent is None:
            name, depth = _root(adapter), 0
        elif (known := blocks.get(parent)) is not None:
            name, depth = known & _MASK, known >> 64
        else:
            self.orphans += len(hashes)
            return
        kept = _sizes(block_tokens)
        gone: list[int] = []
        names: list[int] = []
        sizes: list[int] = []
        for number, block in enumerate(hashes):
            name = hash((name, ids[number * step : (number + 1) * step])) & _MASK
            if number < len(salts) and salts[number] is not None:
                name = hash((name, repr(salts[number]))) & _MASK
            depth += block_tokens
            what = depth << 64 | name
            if (before := blocks.get(block)) == what:
                copies[block] = copies.get(block, 0) + 1
            elif before is not None:  # no hash has two meanings: the first one's end was lost
                gone.append(before & _MASK)
                copies.pop(block, None)
            blocks[block] = what
            if depth in kept:
                names.append(name)
                sizes.append(kept[depth])
        if gone:
            self._forget(replica, gone)
        if names:
            self.index.record(replica, names, sizes)
            self._told[replica].update(names)
        self._fit(replica)

    def removed(self, replica: int, hashes: Iterable[Hash]) -> None:
        """Say that a replica holds blocks no more."""
        blocks, copies = self._blocks[replica], self._copies[replica]
        gone: list[int] = []
        for block in hashes:
            if block in copies:
                left = copies[block] - 1
                if left:
                    copies[block] = left
                else:
                    del copies[block]
                continue
            known = blocks.pop(block, None)
            if known is not None:
                gone.append(known & _MASK)
        self._forget(replica, gone)

    def expect(self, replica: int, chain: Chain) -> None:
        """Say that a prompt was sent to a replica, or that it has read it."""
        self.index.record(replica, chain.names, chain.sizes)

    def withdraw(self, replica: int, chain: Chain, held: int) -> None:
        """Say that a replica did not read a prompt of which it held so many tokens."""
        told = self._told[replica]
        kept = bisect_right(chain.ends, held)
        self.index.forget(replica, [name for name in chain.names[kept:] if name not in told])
        self._losses[replica] += 1

    def held(self, chain: Chain, replicas: int) -> list[tuple[int, int]]:
        """Return how many tokens of a prompt each set of `replicas` holds, if any."""
        found = self.index.match(chain.names, replicas)
        return [(chain.ends[blocks - 1], owners) for blocks, owners in found]

    def _say_size(self, replica: int, block_tokens: int) -> None:
        """Take the size of a replica's blocks; prompts are cut as most of the replicas do."""
        if self._block_size.get(replica) == block_tokens:
            return
        sizes = self._block_sizes
        if block_tokens not in sizes and len(sizes) >= MOST_BLOCK_SIZES:
            known = ", ".join(map(str, sorted(sizes)))
            raise ValueError(f"expected blocks of {known} tokens, got {block_tokens}")
        sizes.add(block_tokens)
        self._block_size[replica] = block_tokens
        self.block_tokens = mode(self._block_size.values())

    def _fit(self, replica: int) -> None:
        blocks = self._blocks[replica]
        over = len(blocks) - self._most // len(self._blocks)
        for _ in range(over):
            block, known = blocks.popitem(last=False)
            self._copies[replica].pop(block, None)
            self._forget(replica, (known & _MASK,))
            self.dropped += 1

    def _forget(self, replica: int, names: Sequence[int]) -> None:
        self.index.forget(replica, names)
        self._told[replica].difference_update(names)
        self._losses[replica] += 1
