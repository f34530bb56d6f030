"""Read the batches of events in which vLLM says what its prefix cache holds.

They are msgpack, as https://github.com/vllm-project/vllm/blob/main/vllm/distributed/kv_events.py
writes them: objects, or in versions before those the same fields as arrays. Fields and events that
are not known are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from filters.block_book import Hash, ids_of

MOST_BATCH_BYTES: Final = 4 << 20
"""A step of 131,072 tokens, all stored at once, takes a fifth of it."""
MOST_EVENTS: Final = 32_768
MOST_BLOCKS: Final = 32_768
"""Of a batch: a step of 131,072 tokens in blocks of 4. To enter as many takes 30 ms."""
MOST_TOKENS: Final = 262_144
"""Of an event."""
MOST_HASH_BYTES: Final = 64
MOST_NAME_CHARS: Final = 1_024
MOST_GROUPS: Final = 64
_TAGS: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_GPU: Final = (None, "GPU", "gpu")


@dataclass(frozen=True, slots=True)
class Stored:
    """A replica holds blocks, the first behind `parent`."""

    hashes: Sequence[Hash]
    parent: Hash | None
    ids: bytes
    """Of the tokens, as `filters.block_book.ids_of` writes them."""
    block_tokens: int
    adapter: str = ""
    salts: Sequence[object] = ()
    """What made each block's hash beside its tokens and the adapter; None: nothing."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A replica holds these blocks no more."""

    hashes: Sequence[Hash]


@dataclass(frozen=True, slots=True)
class Cleared:
    """A replica holds nothing any more."""


Said: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What a replica said at once."""

    at_s: float
    """On its own clock, in Unix time."""
    events: Sequence[Said]
    ignored: int = 0
    """Events that do not count: those of other memory than the GPU's, and unknown ones."""


_Hash: TypeAlias = int | Annotated[bytes, msgspec.Meta(max_length=MOST_HASH_BYTES)]
_Hashes: TypeAlias = Annotated[list[_Hash], msgspec.Meta(max_length=MOST_BLOCKS)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MOST_NAME_CHARS)]


class _BlockStored(msgspec.Struct, tag="BlockStored"):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: Annotated[list[int], msgspec.Meta(max_length=MOST_TOKENS)]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: _Name | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class _BlockRemoved(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None


class _AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _EventBatch(msgspec.Struct):
    ts: float
    events: list[msgspec.Raw]


class _BlockStoredArray(_BlockStored, tag="BlockStored", array_like=True):
    pass


class _BlockRemovedArray(_BlockRemoved, tag="BlockRemoved", array_like=True):
    pass


class _AllBlocksClearedArray(_AllBlocksCleared, tag="AllBlocksCleared", array_like=True):
    pass


class _EventBatchArray(_EventBatch, array_like=True):
    pass


_Known: TypeAlias = _BlockStored | _BlockRemoved | _AllBlocksCleared
_batch: Final[Callable[[bytes], _EventBatch]] = msgspec.msgpack.Decoder(_EventBatch).decode
_batch_array: Final[Callable[[bytes], _EventBatch]] = msgspec.msgpack.Decoder(
    _EventBatchArray
).decode
_event: Final[Callable[[msgspec.Raw], _Known]] = msgspec.msgpack.Decoder(_Known).decode
_event_array: Final[Callable[[msgspec.Raw], _Known]] = msgspec.msgpack.Decoder(
    _BlockStoredArray | _BlockRemovedArray | _AllBlocksClearedArray
).decode
_tag: Final = msgspec.msgpack.Decoder(Any)


class BatchReader:
    """Reads the batches of one replica.

    Models with layers of several kinds have a cache for each; a prompt is found by the layers that
    look back at all of it, so what is said of the others is passed over.
    """

    __slots__ = ("_others",)

    def __init__(self) -> None:
        self._others: Final[set[int]] = set()
        """Groups of layers that look back only so far."""

    def read(self, payload: bytes) -> Batch:
        """Return a batch; raise `ValueError` for what is none."""
        try:
            batch = _batch_array(payload) if _is_array(payload) else _batch(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if len(batch.events) > MOST_EVENTS:
            raise ValueError(f"expected at most {MOST_EVENTS} events, got {len(batch.events)}")
        said: list[Said] = []
        ignored = blocks = 0
        for raw in batch.events:
            event = _read_event(raw)
            one = None if event is None else self._neutral(event)
            if one is None:
                ignored += 1
                continue
            said.append(one)
            if not isinstance(one, Cleared):
                blocks += len(one.hashes)
                if blocks > MOST_BLOCKS:
                    raise ValueError(f"expected at most {MOST_BLOCKS} blocks, got more")
        return Batch(batch.ts, said, ignored)

    def _neutral(self, event: _Known) -> Said | None:
        if isinstance(event, _AllBlocksCleared):
            return Cleared()
        if event.medium not in _GPU:
            return None
        group = event.group_idx
        if isinstance(event, _BlockRemoved):
            return None if group in self._others else Removed(event.block_hashes)
        if not _looks_at_all(event):
            if group is not None and len(self._others) < MOST_GROUPS:
                self._others.add(group)
            return None
        adapter = event.lora_name or ("" if event.lora_id is None else f"#{event.lora_id}")
        salts: Sequence[object] = ()
        if event.extra_keys:
            salts = [
                [key for key in keys if key != adapter] or None if keys else None
                for keys in event.extra_keys
            ]
        return Stored(
            event.block_hashes,
            event.parent_block_hash,
            ids_of(event.token_ids),
            event.block_size,
            adapter,
            salts,
        )


def _looks_at_all(event: _BlockStored) -> bool:
    """Tell whether the layers look back at the whole prompt: by vLLM's own words for them."""
    kind = event.kv_cache_spec_kind
    if kind is None:
        return not event.kv_cache_spec_sliding_window
    return kind.startswith(("full", "mla", "sink_full"))


def _read_event(raw: msgspec.Raw) -> _Known | None:
    """Return an event, None for one of an unknown kind; raise `ValueError` for what is none."""
    array = _is_array(bytes(memoryview(raw)[:1]))
    try:
        return _event_array(raw) if array else _event(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        try:
            value = _tag.decode(raw)
            tag = value[0] if array else value["type"]
        except (msgspec.MsgspecError, RecursionError, LookupError, TypeError):
            tag = None
        if isinstance(tag, str) and tag not in _TAGS:
            return None
        raise ValueError(str(error)) from None


def _is_array(payload: bytes) -> bool:
    """Tell arrays from maps: https://github.com/msgpack/msgpack/blob/master/spec.md#formats."""
    return bool(payload) and (payload[0] & 0xF0 == 0x90 or payload[0] in (0xDC, 0xDD))
