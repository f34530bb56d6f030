"""Remember which replica has which beginnings of prompts in its cache, as far as is known.

A prompt is a chain of blocks, each named by everything up to its end. So a replica that holds a
block holds those before it: the index evicts the ends of chains first, as model servers do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

ENTRY_BYTES: Final = 190
"""A block at a replica: its place in the order of use, its share of the owners' table. Measured."""
MOST_BYTES: Final = 64 << 20
"""For all replicas of a pool: 64 of them know 350,000 tokens each in blocks of 64, or more."""


class PrefixIndex:
    """Blocks by replica. Replicas are numbers from 0 on; a set of them is the bits of an integer.

    Each replica has room for so many tokens, and forgets the blocks used least recently. All of
    them together take `most_bytes`, about, of which each has its equal share.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most: Final = most_bytes // ENTRY_BYTES
        self._owners: Final[dict[int, int]] = {}
        self._held: Final[dict[int, OrderedDict[int, int]]] = {}
        self._room: Final[dict[int, int]] = {}
        self._tokens: Final[dict[int, int]] = {}
        self._entered: Final[dict[int, int]] = {}

    @property
    def size(self) -> int:
        """Bytes in use, about."""
        return ENTRY_BYTES * sum(map(len, self._held.values()))

    def add(self, replica: int, room_tokens: int) -> None:
        """Take a replica in, or change how much it holds."""
        self._room[replica] = room_tokens
        self._held.setdefault(replica, OrderedDict())
        self._tokens.setdefault(replica, 0)
        self._entered.setdefault(replica, 0)
        for one in self._held:
            self._fit(one)

    def room(self, replica: int) -> int:
        """Return how many tokens a replica is taken to hold."""
        return self._room[replica]

    def entered(self, replica: int) -> int:
        """Return how many tokens a replica was given, all in all, that it did not hold."""
        return self._entered[replica]

    def remove(self, replica: int) -> None:
        """Forget a replica."""
        self.clear(replica)
        del self._held[replica], self._room[replica]
        del self._tokens[replica], self._entered[replica]

    def clear(self, replica: int) -> None:
        """Forget what a replica holds: it was started anew."""
        self._disown(replica, self._held[replica])
        self._held[replica].clear()
        self._tokens[replica] = 0

    def match(self, blocks: Sequence[int], replicas: int) -> list[tuple[int, int]]:
        """Return how many blocks each set of `replicas` holds from the beginning on, most first.

        Sets without any are left out. Few blocks are looked at: between two places with the same
        owners nothing changes.
        """
        owners_of = self._owners.get
        if not blocks or not (first := owners_of(blocks[0], 0) & replicas):
            return []
        found: list[tuple[int, int]] = []
        # Ranges in which owners fall from one set to another, the deepest looked at first.
        ranges = [(0, first, len(blocks), 0)]
        while ranges:
            low, at_low, high, at_high = ranges.pop()
            while high - low > 1:
                middle = (low + high) // 2
                at_middle = owners_of(blocks[middle], 0) & at_low | at_high
                if at_middle == at_high:
                    high = middle
                    continue
                if at_middle != at_low:
                    ranges.append((low, at_low, middle, at_middle))
                low, at_low = middle, at_middle
            found.append((high, at_low & ~at_high))
        return found

    def record(self, replica: int, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Say that a replica will hold `blocks`, each of so many `tokens`, used just now."""
        held = self._held[replica]
        known = len(blocks)
        while known and blocks[known - 1] not in held:
            known -= 1
        self._enter(replica, blocks[known:], tokens[known:])
        use = held.move_to_end
        try:
            for block in reversed(blocks[:known]):
                use(block)
        except KeyError:  # it was forgotten, though another prompt goes on behind it
            lost = [at for at in range(known) if blocks[at] not in held]
            self._enter(replica, [blocks[at] for at in lost], [tokens[at] for at in lost])
            for block in reversed(blocks):
                use(block)
        self._fit(replica)

    def forget(self, replica: int, blocks: Iterable[int]) -> None:
        """Say that a replica does not hold `blocks` after all: what brought them there failed."""
        held = self._held[replica]
        gone: list[int] = []
        for block in blocks:
            size = held.pop(block, None)
            if size is not None:
                self._tokens[replica] -= size
                gone.append(block)
        self._disown(replica, gone)

    def _enter(self, replica: int, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        held, owners, bit = self._held[replica], self._owners, 1 << replica
        for block, size in zip(reversed(blocks), reversed(tokens), strict=True):
            held[block] = size
            owners[block] = owners.get(block, 0) | bit
        added = sum(tokens)
        self._tokens[replica] += added
        self._entered[replica] += added

    def _fit(self, replica: int) -> None:
        held, room, tokens = self._held[replica], self._room[replica], self._tokens[replica]
        most = self._most // len(self._held)
        if tokens <= room and len(held) <= most:
            return
        gone: list[int] = []
        while tokens > room or len(held) > most:
            block, size = held.popitem(last=False)
            tokens -= size
            gone.append(block)
        self._tokens[replica] = tokens
        self._disown(replica, gone)

    def _disown(self, replica: int, blocks: Iterable[int]) -> None:
        owners, others = self._owners, ~(1 << replica)
        for block in blocks:
            left = owners[block] & others
            if left:
                owners[block] = left
            else:
                del owners[block]
