"""Read what a model server says of itself from its Prometheus page, and no more of it than that.

Names: vLLM https://docs.vllm.ai/en/stable/usage/metrics/, SGLang
https://docs.sglang.io/references/production_metrics.html, TensorRT-LLM
https://nvidia.github.io/TensorRT-LLM/examples/prometheus_metrics.html, llama.cpp
https://github.com/ggml-org/llama.cpp/tree/master/tools/server, DCGM
https://docs.nvidia.com/datacenter/dcgm/latest/reference/dcgm-exporter-metrics.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MOST_REQUESTS: Final = 1_000_000
"""More at one replica is a mistake of whoever counted."""
MOST_ROOM_TOKENS: Final = 1 << 30
MOST_SERIES: Final = 1_024
"""Of one name: reading as many takes 2 ms. A replica has one for each of its engines, or ranks."""
MOST_LINE_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Said:
    """What a page says."""

    waiting: int
    running: int
    kv_usage: float
    gpu_usage: float | None = None
    room_tokens: int | None = None
    """How many tokens the memory for keys and values holds; None when it was not looked for."""
    began_s: float | None = None
    """When the process began, in Unix time; likewise."""
    counted: float | None = None
    """What it has counted since it began; likewise."""
    whole: bool = field(default=False, compare=False)
    """Whether that was looked for."""


@dataclass(frozen=True, slots=True)
class Server:
    """What one kind of model server calls it."""

    name: str
    waiting: bytes
    running: bytes
    kv_usage: tuple[bytes, ...]
    """The first of them that is there; none: it does not tell."""
    room: bytes = b""
    counts: bytes = b""
    """A counter: one that goes back is one of a process that began anew."""


SERVERS: Final = (
    Server(
        "vllm",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_running",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        counts=b"vllm:prompt_tokens_total",
    ),
    Server(
        "sglang",
        b"sglang:num_queue_reqs",
        b"sglang:num_running_reqs",
        (b"sglang:token_usage",),
        b"sglang:max_total_num_tokens",
        b"sglang:prompt_tokens_total",
    ),
    Server(
        "tensorrt_llm",
        b"trtllm_num_requests_waiting",
        b"trtllm_num_requests_running",
        (b"trtllm_kv_cache_utilization",),
        counts=b"trtllm_request_success_total",
    ),
    Server(
        "llama.cpp",
        b"llamacpp:requests_deferred",
        b"llamacpp:requests_processing",
        (b"llamacpp:kv_cache_usage_ratio",),  # until autumn 2025
        counts=b"llamacpp:prompt_tokens_total",
    ),
)
GPUS: Final = ((b"DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0), (b"DCGM_FI_DEV_GPU_UTIL", 100.0))
"""The share of time in which a GPU works, and what stands for all of it."""
VLLM_CONFIG: Final = b"vllm:cache_config_info"
BEGAN: Final = b"process_start_time_seconds"
# SGLang counts a request at every rank that shares its work, and again for each priority.
_COUNTED_ELSEWHERE: Final = re.compile(
    rb'[{,](?:[tp]p_rank="[1-9][0-9]*"|moe_ep_rank="[1-9][0-9]*"|priority="[^"]+")'
)
_LABEL: Final = re.compile(rb'[{,](kv_cache_size_tokens|num_gpu_blocks|block_size)="([0-9]+)"')


class PageReader:
    """Reads the pages of one replica, one after the other: it remembers which names are in them."""

    __slots__ = ("_gpu", "_kv", "server")

    def __init__(self) -> None:
        self.server: Server | None = None
        """Which kind it is; None until a page was understood."""
        self._kv = b""
        self._gpu: tuple[bytes, float] | None = None

    def read(self, page: bytes, *, whole: bool) -> Said | None:
        """Return what a page says, None if it is not one of a model server.

        `whole` looks also for what rarely changes, and for names not there before.
        """
        server = self.server
        if whole or server is None:
            server = self.server = next(
                (one for one in SERVERS if _first(page, one.running) is not None), None
            )
            if server is None:
                return None
            self._kv = next((one for one in server.kv_usage if _first(page, one) is not None), b"")
            self._gpu = next((one for one in GPUS if _first(page, one[0]) is not None), None)
        running = sum(_values(page, server.running, default=math.nan))
        if math.isnan(running):
            return None
        waiting = sum(_values(page, server.waiting))
        kv_usage = max(_values(page, self._kv), default=0.0) if self._kv else 0.0
        gpu_usage = None
        if self._gpu is not None:
            name, most = self._gpu
            shares = [value / most for value in _values(page, name) if 0 <= value <= most]
            gpu_usage = sum(shares) / len(shares) if shares else None
        return Said(
            _count(waiting),
            _count(running),
            min(1.0, max(0.0, kv_usage)),
            gpu_usage,
            _room(page, server) if whole else None,
            _first(page, BEGAN) if whole else None,
            _counted(page, server) if whole else None,
            whole,
        )


def _count(value: float) -> int:
    return int(min(MOST_REQUESTS, max(0.0, value)))


def _counted(page: bytes, server: Server) -> float | None:
    """Return what a server has counted, None where it does not say."""
    values = list(_values(page, server.counts))
    return sum(values) if values else None


def _room(page: bytes, server: Server) -> int | None:
    """Return how many tokens a replica's cache holds, of all its engines together."""
    tokens = 0
    if server.room:
        rooms = _values(page, server.room)
        tokens = int(sum(value for value in rooms if 0 < value < MOST_ROOM_TOKENS))
    elif server.name == "vllm":
        for line in _lines(page, VLLM_CONFIG):
            labels = {name: int(value) for name, value in _LABEL.findall(line)}
            blocks = labels.get(b"num_gpu_blocks", 0) * labels.get(b"block_size", 0)
            tokens += labels.get(b"kv_cache_size_tokens", blocks)
    return min(tokens, MOST_ROOM_TOKENS) or None


def _first(page: bytes, name: bytes) -> float | None:
    return next(_values(page, name), None)


def _values(page: bytes, name: bytes, *, default: float | None = None) -> Iterator[float]:
    """Return the values of all series of a name that are good numbers; `default` for none."""
    none = True
    for line in _lines(page, name):
        end = line.rfind(b"}")
        if end > 0 and _COUNTED_ELSEWHERE.search(line, 0, end):
            continue
        fields = line[end + 1 :].split(None, 1)  # a time may stand behind the value
        try:
            value = float(fields[0])
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            none = False
            yield value
    if none and default is not None:
        yield default


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    """Return what stands behind a name in each of its lines, which stand together in a page.

    Another name may begin with it, in front of them or behind.
    """
    at = 0 if page.startswith(name) else page.find(b"\n" + name) + 1
    if not at and not page.startswith(name):
        return
    found = False
    for _ in range(MOST_SERIES):
        begin = at + len(name)
        end = page.find(b"\n", begin)
        if end < 0:
            end = len(page)
        if page[begin : begin + 1] in (b"{", b" "):
            found = True
            yield page[begin : min(end, begin + MOST_LINE_BYTES)]
        elif found:
            return
        at = end + 1
        if not page.startswith(name, at):
            at = 0 if found else page.find(b"\n" + name, end) + 1
            if not at:
                return
