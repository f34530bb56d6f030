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
        for block in self._held[replica]:
            self._disown(replica, block)
        self._held[replica].clear()
        self._tokens[replica] = 0

    def match(self, blocks: Sequence[int], replicas: int) -> list[tuple[int, int]]:
        """Return how many blocks each set of `replicas` holds from the beginning on, most first.

        Sets without any are left out. Few blocks are looked at: between two places with the same
        owners nothing changes.
        """
        owners = self._owners
        if not blocks or not (first := owners.get(blocks[0], 0) & replicas):
            return []
        found: list[tuple[int, int]] = []
        # Ranges in which owners fall from one set to another, the deepest looked at first.
        last = len(blocks)
        ranges = [(0, first, last, 0)]
        while ranges:
            low, at_low, high, at_high = ranges.pop()
            if at_low == at_high:
                continue
            if high - low == 1:
                found.append((high, at_low & ~at_high))
                continue
            middle = (low + high) // 2
            at_middle = owners.get(blocks[middle], 0) & at_low | at_high
            ranges.append((low, at_low, middle, at_middle))
            ranges.append((middle, at_middle, high, at_high))
        return found

    def record(self, replica: int, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """Say that a replica will hold `blocks`, each of so many `tokens`, used just now."""
        held, owners, bit = self._held[replica], self._owners, 1 << replica
        added = 0
        for block, size in zip(reversed(blocks), reversed(tokens), strict=True):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = size
                owners[block] = owners.get(block, 0) | bit
                added += size
        if added:
            self._tokens[replica] += added
            self._entered[replica] += added
            self._fit(replica)

    def forget(self, replica: int, blocks: Iterable[int]) -> None:
        """Say that a replica does not hold `blocks` after all: what brought them there failed."""
        held = self._held[replica]
        for block in blocks:
            size = held.pop(block, None)
            if size is not None:
                self._tokens[replica] -= size
                self._disown(replica, block)

    def _fit(self, replica: int) -> None:
        held, room = self._held[replica], self._room[replica]
        most = self._most // len(self._held)
        while self._tokens[replica] > room or len(held) > most:
            block, size = held.popitem(last=False)
            self._tokens[replica] -= size
            self._disown(replica, block)

    def _disown(self, replica: int, block: int) -> None:
        left = self._owners[block] & ~(1 << replica)
        if left:
            self._owners[block] = left
        else:
            del self._owners[block]
