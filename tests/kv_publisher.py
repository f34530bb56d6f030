"""Tell what a model server's prefix cache holds, as vLLM tells it: over ZeroMQ, in msgpack.

Three frames: topic, number in 8 bytes, payload. Who sends a number to the second socket gets all
batches from that one on, as far as they are kept, and then number -1. Written by the public format,
https://github.com/vllm-project/vllm/blob/main/vllm/distributed/kv_events.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

PATIENCE_S = 60.0
POLL_MS = 5
END = (-1).to_bytes(8, "big", signed=True)


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(Event, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = "GPU"
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None = "GPU"
    group_idx: int | None = None


class AllBlocksCleared(Event, tag="AllBlocksCleared"):
    pass


def payload(*events: Event, ts: float = 1_700_000_000.0, maps: bool = False) -> bytes:
    """Write a batch: as arrays, or as later versions do."""
    if not maps:
        return msgspec.msgpack.encode(Batch(ts, list(events), 0))
    written = [
        {
            "type": type(event).__name__,
            **{name: getattr(event, name) for name in event.__struct_fields__},
        }
        for event in events
    ]
    return msgspec.msgpack.encode({"ts": ts, "events": written, "data_parallel_rank": 0})


def stored(
    tokens: Sequence[int],
    size: int = 16,
    *,
    first: int = 0,
    salt: int = 0,
    **more: Any,
) -> BlockStored:
    """Tell of the whole blocks of a prompt from one on; `salt` makes hashes of another server."""
    whole = len(tokens) // size
    hashes: list[int | bytes] = [hash_of(tokens[: size * (at + 1)], salt) for at in range(whole)]
    return BlockStored(
        hashes[first:],
        hashes[first - 1] if first else None,
        list(tokens[first * size : whole * size]),
        size,
        **more,
    )


def removed(
    tokens: Sequence[int], size: int = 16, *, first: int = 0, salt: int = 0
) -> BlockRemoved:
    """Tell that the blocks of a prompt are gone from one on, the last first."""
    whole = len(tokens) // size
    hashes: list[int | bytes] = [
        hash_of(tokens[: size * (at + 1)], salt) for at in range(first, whole)
    ]
    return BlockRemoved(hashes[::-1])


def hash_of(tokens: Sequence[int], salt: int) -> int:
    return hash((salt, *tokens)) & ((1 << 64) - 1)


class KvPublisher:
    """`async with KvPublisher() as publisher:` publishes at `port` and has `replay_port`.

    `keeps` says how many batches can be had again; with None, nobody answers there.
    """

    def __init__(
        self,
        port: int = 0,
        replay_port: int = 0,
        *,
        host: str = "127.0.0.1",
        topic: str = "",
        keeps: int | None = 10_000,
    ) -> None:
        self.port = port
        self.replay_port = replay_port
        self._host = host
        self.replays = 0
        self._topic = topic.encode()
        self._keeps = keeps
        self._kept: list[tuple[int, bytes]] = []
        self._number = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.XPUB)  # a PUB that tells who subscribes
        self._replay = self._context.socket(zmq.ROUTER)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    async def __aenter__(self) -> Self:
        self._events.set(zmq.SNDHWM, 100_000)
        self.port = _bind(self._events, self._host, self.port)
        self.replay_port = _bind(self._replay, self._host, self.replay_port)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        await asyncio.to_thread(self._thread.join)
        self._events.close(linger=0)
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Wait until somebody listens."""

        def wait() -> None:
            assert self._events.poll(int(PATIENCE_S * 1_000)), "nobody subscribes"
            assert self._events.recv().startswith(b"\x01")

        await asyncio.to_thread(wait)

    def publish(self, *events: Event, lost: bool = False, maps: bool = False) -> None:
        """Publish a batch; one that is lost on its way can still be had again."""
        self.send(payload(*events, maps=maps), lost=lost)

    def send(self, body: bytes, *, lost: bool = False) -> None:
        number, self._number = self._number, self._number + 1
        if self._keeps:
            self._kept = [*self._kept, (number, body)][-self._keeps :]
        if not lost:
            self._events.send_multipart((self._topic, number.to_bytes(8, "big"), body))

    def send_raw(self, *frames: bytes) -> None:
        self._events.send_multipart(frames)

    def _serve(self) -> None:
        while not self._ends.is_set():
            if not self._replay.poll(POLL_MS):
                continue
            who, empty, first = self._replay.recv_multipart()
            self.replays += 1
            if self._keeps is None:
                continue
            for number, body in list(self._kept):
                if number >= int.from_bytes(first, "big"):
                    self._replay.send_multipart((who, empty, number.to_bytes(8, "big"), body))
            self._replay.send_multipart((who, empty, END, b""))
        self._replay.close(linger=0)


def _bind(socket: zmq.Socket[bytes], host: str, port: int) -> int:
    socket.bind(f"tcp://{host}:{port or '*'}")
    bound = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return int(bound.rstrip(b"\0").rpartition(b":")[2])
