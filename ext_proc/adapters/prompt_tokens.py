"""Cut requests into the tokens their model reads, so that replicas' blocks are found by them."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from tokenizers import Tokenizer

from ext_proc.adapters.chat_template import ChatTemplate, Unreadable, Written
from ext_proc.adapters.kv_settings import READ_S
from ext_proc.adapters.models_folder import read_tokenizer
from filters.block_book import ids_of

A = TypeVar("A")
R = TypeVar("R")

AT_ONCE_CHARS: Final = 1_000
"""So much is cut at once, in 0.3 ms; more of it is left to a thread."""
MOST_WAITING: Final = 8
CACHE_BYTES: Final = 16 << 20
PIECE_BYTES: Final = 200
"""What a piece takes beside its characters and tokens, about."""
_PROBE: Final = "Hello,  world\nyou 你好 x"


class TokenCutter:
    """Cuts prompts of one model. Pieces between special tokens are remembered: chats grow."""

    def __init__(self, folder: Path, cache_bytes: int = CACHE_BYTES) -> None:
        """Read tokenizer and template of a model's folder; raise `PortError`."""
        self._tokenizer: Final = read_tokenizer(folder)
        self._tokenizer.no_truncation()
        self.template: Final = ChatTemplate(folder)
        self._most: Final = cache_bytes
        self._cached: Final[OrderedDict[str, bytes]] = OrderedDict()
        self._bytes = 0
        self._marks = _marks(self._tokenizer)
        if self._marks is not None and not self._cuts_well(self._marks):
            self._marks = None

    def pieces(self, written: Written) -> list[str]:
        """Return what can be cut apart from each other."""
        text = written.text
        if self._marks is None or written.special:
            return [text]
        starts = [match.start() for match in self._marks.finditer(text)]
        edges = [0, *(start for start in starts if start), len(text)]
        return [text[start:end] for start, end in pairwise(edges)]

    def missing(self, pieces: list[str]) -> list[str]:
        """Return the pieces that are not remembered."""
        return [piece for piece in dict.fromkeys(pieces) if piece not in self._cached]

    def cut(self, pieces: list[str]) -> dict[str, bytes]:
        """Return the tokens of each piece; raise `Unreadable`. May run in any thread."""
        return {piece: self._ids(piece, special=False) for piece in pieces}

    def join(self, pieces: list[str]) -> bytes:
        """Return the tokens of all pieces; those not remembered are cut; raise `Unreadable`."""
        parts: list[bytes] = []
        for piece in pieces:
            ids = self._cached.get(piece)
            if ids is None:
                ids = self._ids(piece, special=False)
                self.remember({piece: ids})
            else:
                self._cached.move_to_end(piece)
            parts.append(ids)
        return b"".join(parts)

    def remember(self, cut: Mapping[str, bytes]) -> None:
        """Keep what pieces were cut into."""
        for piece, ids in cut.items():
            size = PIECE_BYTES + len(piece) + len(ids)
            if piece in self._cached or size > self._most // 4:
                continue
            self._cached[piece] = ids
            self._bytes += size
            while self._bytes > self._most:
                old, old_ids = self._cached.popitem(last=False)
                self._bytes -= PIECE_BYTES + len(old) + len(old_ids)

    def whole(self, text: str) -> bytes:
        """Return the tokens of a text, with those that the tokenizer adds. In any thread."""
        return self._ids(text, special=True)

    def _ids(self, text: str, *, special: bool) -> bytes:
        try:  # a batch of one, for it lets other threads run meanwhile
            cut = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more exact
            raise Unreadable(f"{type(error).__name__} in its tokenizer") from None
        return ids_of(cut[0].ids)

    def _cuts_well(self, marks: re.Pattern[str]) -> bool:
        """Tell whether pieces give the tokens of the whole: some tokenizers mark a text's start."""
        for token in self._tokenizer.get_added_tokens_decoder().values():
            if marks.fullmatch(token.content):
                mark = token.content
                text = mark.join(("", _PROBE, f" {_PROBE} ", "\n", "", _PROBE))
                pieces = self.pieces(Written(text, special=False))
                apart = b"".join(self._ids(piece, special=False) for piece in pieces)
                return apart == self._ids(text, special=False)
        return False


def _marks(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return what finds the tokens at which a tokenizer cuts a text before anything else."""
    added = tokenizer.get_added_tokens_decoder().values()
    texts = {
        token.content
        for token in added
        if token.special and not (token.lstrip or token.rstrip or token.single_word)
    }
    if not texts:
        return None
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


@dataclass(slots=True)
class Read:
    """How prompts were read, in numbers."""

    good: int = 0
    unreadable: int = 0
    late: int = 0


class PromptReader:
    """Reads requests as their model does, long ones in a thread of its own."""

    def __init__(self, cutter: TokenCutter, deadline_s: float = READ_S) -> None:
        self.read_so_far: Final = Read()
        self._cutter: Final = cutter
        self._deadline_s: Final = deadline_s
        self._threads: Final = ThreadPoolExecutor(1, "prompt-tokens")
        self._waiting = 0

    async def read(self, body: Any) -> bytes | None:
        """Return the tokens of a request; None if it cannot be read, or not in time."""
        counts = self.read_so_far
        try:
            if not isinstance(body, dict):
                raise Unreadable("no object")
            ids = await self._tokens(self._cutter.template.write(body))
        except Unreadable:
            counts.unreadable += 1
            return None
        if ids is None:
            counts.late += 1
        else:
            counts.good += 1
        return ids

    def close(self) -> None:
        """End the thread once it is through with what it has."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _tokens(self, written: Written) -> bytes | None:
        cutter, text = self._cutter, written.text
        if written.special:
            if len(text) <= AT_ONCE_CHARS:
                return cutter.whole(text)
            return await self._elsewhere(cutter.whole, text)
        pieces = cutter.pieces(written)
        missing = cutter.missing(pieces)
        if sum(map(len, missing)) > AT_ONCE_CHARS:
            cut = await self._elsewhere(cutter.cut, missing, cutter.remember)
            if cut is None:
                return None
        return cutter.join(pieces)

    async def _elsewhere(
        self, work: Callable[[A], R], given: A, keep: Callable[[R], None] | None = None
    ) -> R | None:
        """Work in the thread; what is late is kept all the same."""
        if self._waiting >= MOST_WAITING:
            return None
        self._waiting += 1

        def done(future: asyncio.Future[R]) -> None:
            self._waiting -= 1
            if keep is not None and not future.cancelled() and future.exception() is None:
                keep(future.result())

        future = asyncio.get_running_loop().run_in_executor(self._threads, work, given)
        future.add_done_callback(done)
        await asyncio.wait((future,), timeout=self._deadline_s)
        return future.result() if future.done() else None
