"""Take the time a vLLM replica would take, and count what it would count.

A request waits for a slot, then for its prefill, then for its tokens. Prefills run one after the
other, as they share one GPU; each takes `Speed.ttft_s` and the time of the prompt tokens that the
prefix cache does not hold. Metric names, labels and buckets are those of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import prometheus_client as prometheus
from prometheus_client.registry import CollectorRegistry

from ext_proc.tools.simulated_model import BYTES_PER_TOKEN, tokens_of

LABELS: Final = ("engine", "model_name")
SECONDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TTFT_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
GAP_SECONDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a replica is; a rate of 0 means that it takes no time."""

    ttft_s: float = 0.05
    prefill_rate: float = 8_000.0
    """Prompt tokens a second, shared by all requests of the replica."""
    decode_rate: float = 80.0
    """Answer tokens a second of one stream."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a replica holds at once; the defaults are those of vLLM on a 12 GB card."""

    slots: int = 256
    block_tokens: int = 16
    blocks: int = 4_096


class PrefixCache:
    """Blocks of prompts read before, the least recently used forgotten first.

    A block is known by the hash of everything up to its end, as in vLLM.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity: Final = capacity
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._held: Counter[bytes] = Counter()

    def chain(self, prompt: str) -> list[bytes]:
        """Return the hashes of the prompt's whole blocks, as many as the cache could hold."""
        size = self._capacity.block_tokens * BYTES_PER_TOKEN
        raw = prompt.encode(errors="replace")[: size * self._capacity.blocks]
        chain: list[bytes] = []
        last = b""
        for end in range(size, len(raw) + 1, size):
            last = hashlib.blake2b(last + raw[end - size : end], digest_size=8).digest()
            chain.append(last)
        return chain

    def hold(self, chain: list[bytes]) -> int:
        """Take the blocks into use and return how many of the first ones were known."""
        hits = 0
        for block in chain:
            if block not in self._known:
                break
            hits += 1
        for block in chain:
            self._known[block] = None
            self._known.move_to_end(block)
        self._held.update(chain)
        while len(self._known) > self._capacity.blocks:
            self._known.popitem(last=False)
        return hits

    def release(self, chain: list[bytes]) -> None:
        """Give blocks back; they stay known until others push them out."""
        self._held.subtract(chain)
        for block in chain:
            if not self._held[block]:
                del self._held[block]

    @property
    def held(self) -> int:
        """Blocks in use by running requests."""
        return len(self._held)


class Run:
    """One request in a slot."""

    def __init__(self, engine: Engine, prompt_tokens: int, cached_tokens: int, width: int) -> None:
        self.cached_tokens: Final = cached_tokens
        """Prompt tokens that need no prefill."""
        self._engine: Final = engine
        self._prompt_tokens: Final = prompt_tokens
        self._width: Final = width
        self._first_at = 0.0
        self._last_at = 0.0
        self._step = 0
        self.generated = 0
        self.reason = "abort"

    async def prefill(self, arrived: float) -> None:
        """Wait until the first token is there."""
        engine = self._engine
        speed, began = engine.speed, time.monotonic()
        work = 0.0
        if speed.prefill_rate:
            work = (self._prompt_tokens - self.cached_tokens) / speed.prefill_rate
        engine.prefilled_at = max(engine.prefilled_at, began) + work
        await _until(engine.prefilled_at + speed.ttft_s)
        self._first_at = self._last_at = time.monotonic()
        engine.meters.ttft.observe(self._first_at - arrived)
        engine.meters.prefill.observe(self._first_at - began)

    async def decode(self, step: int) -> None:
        """Wait until that many tokens of each answer are there."""
        if step <= self._step:
            return
        engine = self._engine
        if engine.speed.decode_rate:
            await _until(self._first_at + (step - 1) / engine.speed.decode_rate)
        at, gained = time.monotonic(), (step - self._step) * self._width
        if self._step:
            engine.meters.gap.observe((at - self._last_at) / (step - self._step))
        self._last_at, self._step = at, step
        self.generated += gained
        engine.decoded += gained
        engine.meters.generated.inc(gained)

    def finish(self, reason: str) -> None:
        """Say why it ended (`stop`, `length`); a run that never does was aborted."""
        self.reason = reason
        self._engine.meters.decode.observe(self._last_at - self._first_at)


class Engine:
    """What one replica computes with."""

    def __init__(self, model: str, speed: Speed, capacity: Capacity) -> None:
        self.speed: Final = speed
        self.capacity: Final = capacity
        self.cache: Final = PrefixCache(capacity)
        self.waiting = 0
        self.running = 0
        self.decoded = 0
        """Answer tokens of the requests that run; they hold KV blocks too."""
        self.prefilled_at = 0.0
        """When the prefills taken so far are done, in `time.monotonic` seconds."""
        self.meters: Final = Meters(self, model)
        self._slots: Final = asyncio.Semaphore(capacity.slots)

    @property
    def usage(self) -> float:
        """The share of KV blocks in use, 0 to 1."""
        # Each request has one block of its own that is not full yet.
        blocks = self.cache.held + self.running + self.decoded // self.capacity.block_tokens
        return min(1.0, blocks / self.capacity.blocks)

    @asynccontextmanager
    async def run(self, prompt: str, width: int = 1) -> AsyncIterator[Run]:
        """Take a slot, waiting for one if need be, and read the prompt; `width` answers follow."""
        arrived = time.monotonic()
        async with self._slot():
            meters = self.meters
            meters.queue.observe(time.monotonic() - arrived)
            tokens = tokens_of(prompt)
            chain = self.cache.chain(prompt)
            # vLLM always computes the last token, so a prompt is never cached whole.
            cached = min(self.cache.hold(chain) * self.capacity.block_tokens, max(0, tokens - 1))
            meters.prompt.inc(tokens)
            meters.queries.inc(tokens)
            meters.hits.inc(cached)
            meters.cached.inc(cached)
            meters.prompts.observe(tokens)
            run = Run(self, tokens, cached, width)
            try:
                await run.prefill(arrived)
                yield run
            finally:
                self.cache.release(chain)
                self.decoded -= run.generated
                meters.finished[run.reason].inc()
                meters.answers.observe(run.generated)
                meters.whole.observe(time.monotonic() - arrived)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()


class Meters:
    """The metrics of one replica, under vLLM's names."""

    def __init__(self, engine: Engine, model: str) -> None:
        registry = self._registry = CollectorRegistry()
        labels = {"engine": "0", "model_name": model}

        def gauge(name: str, text: str, read: Callable[[], float]) -> None:
            made = prometheus.Gauge(f"vllm:{name}", text, LABELS, registry=registry)
            made.labels(**labels).set_function(read)

        def counter(name: str, text: str) -> prometheus.Counter:
            return prometheus.Counter(f"vllm:{name}", text, LABELS, registry=registry).labels(
                **labels
            )

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
            return prometheus.Histogram(
                f"vllm:{name}", text, LABELS, registry=registry, buckets=buckets
            ).labels(**labels)

        gauge("num_requests_running", "Requests in execution.", lambda: engine.running)
        gauge("num_requests_waiting", "Requests waiting for a slot.", lambda: engine.waiting)
        gauge("kv_cache_usage_perc", "KV-cache usage; 1 is full.", lambda: engine.usage)
        self.queries = counter("prefix_cache_queries", "Prompt tokens looked up.")
        self.hits = counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.prompt = counter("prompt_tokens", "Prompt tokens read.")
        self.cached = counter("prompt_tokens_cached", "Prompt tokens that needed no prefill.")
        self.generated = counter("generation_tokens", "Tokens generated.")
        counter("num_preemptions", "Requests preempted; a simulated one never is.")
        success = prometheus.Counter(
            "vllm:request_success",
            "Requests ended, by reason.",
            ("engine", "finished_reason", "model_name"),
            registry=registry,
        )
        self.finished = {
            reason: success.labels(finished_reason=reason, **labels)
            for reason in ("stop", "length", "abort", "error")
        }
        self.prompts = histogram("request_prompt_tokens", "Prompt tokens.", TOKENS)
        self.answers = histogram("request_generation_tokens", "Tokens generated.", TOKENS)
        self.ttft = histogram("time_to_first_token_seconds", "Time to first token.", TTFT_SECONDS)
        self.gap = histogram("inter_token_latency_seconds", "Time between tokens.", GAP_SECONDS)
        self.whole = histogram("e2e_request_latency_seconds", "Time of a request.", SECONDS)
        self.queue = histogram("request_queue_time_seconds", "Time waiting.", SECONDS)
        self.prefill = histogram("request_prefill_time_seconds", "Time in prefill.", SECONDS)
        self.decode = histogram("request_decode_time_seconds", "Time in decode.", SECONDS)
        capacity = engine.capacity
        config = {
            "block_size": str(capacity.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(capacity.blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        prometheus.Gauge(
            "vllm:cache_config_info", "The cache's settings.", tuple(config), registry=registry
        ).labels(**config).set(1)

    def render(self) -> bytes:
        """Return the exposition text."""
        return prometheus.generate_latest(self._registry)


async def _until(when: float) -> None:
    wait = when - time.monotonic()
    if wait > 0:
        await asyncio.sleep(wait)
