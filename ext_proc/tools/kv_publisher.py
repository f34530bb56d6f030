"""Tell which blocks a simulated replica holds, as vLLM does: over ZeroMQ, in msgpack.

A batch of events is three frames: the topic, the number of the batch in 8 bytes, big end first,
and its payload `[time, [event, ...], rank]`. An event is an array that begins with its kind; later
releases of vLLM send maps in the place of arrays, with the kind under `type`. Who missed a batch
sends its number to the second socket, and gets that one and all after it, ended by number -1.
https://github.com/vllm-project/vllm/blob/main/vllm/distributed/kv_events.py
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ext_proc.tools.replica_model import Work
from ext_proc.tools.replica_tokens import TextWork
from filters.errors import ConfigError

if TYPE_CHECKING:
    import zmq.asyncio as asyncio_zmq
    from zmq import Socket

HOST: Final = "127.0.0.1"
TOPIC: Final = b""  # vLLM's, unless told otherwise
KEPT_BATCHES: Final = 10_000  # as vLLM
MOST_WAITING: Final = 100_000  # messages for a slow subscriber; likewise
END: Final = (-1).to_bytes(8, "big", signed=True)
MEDIUM: Final = "GPU"


class Form(StrEnum):
    """How events are written."""

    ARRAYS = "arrays"
    MAPS = "maps"


_FIELDS: Final = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size"),
        *("lora_id", "medium", "lora_name"),
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


class BlockEvents:
    """Collects what happened to blocks since it was last asked."""

    def __init__(self, block_tokens: int, form: Form = Form.ARRAYS) -> None:
        self._block_tokens: Final = block_tokens
        self._form: Final = form
        self._events: list[Any] = []

    def stored(self, work: Work, first: int, end: int) -> None:
        """See `BlockWatch`."""
        assert isinstance(work, TextWork)  # replicas that answer requests have no other
        chain, size = work.chain, self._block_tokens
        self._add(
            "BlockStored",
            list(chain[first:end]),
            chain[first - 1] if first else None,
            work.tokens(first * size, end * size),
            size,
            *(None, MEDIUM, None),
        )

    def removed(self, blocks: Sequence[int]) -> None:
        """See `BlockWatch`."""
        self._add("BlockRemoved", list(blocks), MEDIUM)

    def cleared(self) -> None:
        """See `BlockWatch`."""
        self._add("AllBlocksCleared")

    def take(self, now_s: float) -> bytes:
        """Return the payload of a batch, empty when nothing happened."""
        if not self._events:
            return b""
        events, self._events = self._events, []
        if self._form is Form.ARRAYS:
            return msgspec.msgpack.encode([now_s, events, 0])
        return msgspec.msgpack.encode({"ts": now_s, "events": events, "data_parallel_rank": 0})

    def _add(self, kind: str, *values: Any) -> None:
        if self._form is Form.ARRAYS:
            self._events.append([kind, *values])
        else:
            self._events.append({"type": kind, **dict(zip(_FIELDS[kind], values, strict=True))})


class Publisher:
    """Two sockets: one that events go out on, one where those that were missed can be had."""

    def __init__(self, port: int = 0, replay_port: int = 0) -> None:
        """Listen at two ports, 0 for free ones; raise `OSError` when one is taken."""
        zmq = load_zmq()
        self._context: Final[asyncio_zmq.Context] = zmq.asyncio.Context()
        self._number = 0
        self._batches: Final[deque[tuple[int, bytes]]] = deque(maxlen=KEPT_BATCHES)
        # Sending to subscribers never waits: what one does not take in time is lost for it.
        self._events: Final[Socket[bytes]] = zmq.Socket(self._context, zmq.PUB)
        self._replay: Final[asyncio_zmq.Socket] = self._context.socket(zmq.ROUTER)
        self._events.set_hwm(MOST_WAITING)
        try:
            self.port: Final = _bind(self._events, port)
            self.replay_port: Final = _bind(self._replay, replay_port)
        except zmq.ZMQError as error:
            self._destroy()
            raise OSError(error.errno, zmq.strerror(error.errno)) from None
        self._task: Final = asyncio.create_task(self._replay_on())

    def publish(self, payload: bytes) -> None:
        """Send a batch."""
        number, self._number = self._number, self._number + 1
        self._batches.append((number, payload))
        self._events.send_multipart((TOPIC, number.to_bytes(8, "big"), payload))

    def close(self) -> None:
        """Close the sockets."""
        self._task.cancel()
        self._destroy()

    def _destroy(self) -> None:
        self._events.close(linger=0)
        self._replay.close(linger=0)
        self._context.destroy(linger=0)

    async def _replay_on(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:  # who asks, an empty one, the number
                continue
            who, empty, first = frames
            for number, payload in list(self._batches):
                if number >= int.from_bytes(first, "big"):
                    await self._replay.send_multipart(
                        (who, empty, number.to_bytes(8, "big"), payload)
                    )
            await self._replay.send_multipart((who, empty, END, b""))


def load_zmq() -> Any:
    """Return pyzmq; raise `ConfigError` without it."""
    try:
        import zmq
        import zmq.asyncio
    except ImportError:
        raise ConfigError(
            "--kv-events", "needs pyzmq; install it with pip install 'forebay[kv-events]'"
        ) from None
    return zmq


def publish_now(publisher: Publisher, events: BlockEvents) -> None:
    """Send what happened since the last time, if anything did."""
    if payload := events.take(time.time()):
        publisher.publish(payload)


def _bind(socket: Any, port: int) -> int:
    socket.bind(f"tcp://{HOST}:{port or '*'}")
    return int(socket.last_endpoint.rpartition(b":")[2])
