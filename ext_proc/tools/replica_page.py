"""The metrics of a simulated replica, under the names and labels of vLLM 0.32 or of SGLang.

Written out by hand: twenty times a second each replica is asked, and what did not change since is
not written again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

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
TOKENS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0)
REASONS: Final = ("stop", "length", "abort", "error")


class Names(StrEnum):
    """Whose names stand in the page."""

    VLLM = "vllm"
    SGLANG = "sglang"


class Lines(Protocol):
    """A part of the page."""

    def text(self) -> str:
        """Return its lines, each ended."""


class Gauges:
    """One value or several, read anew for each page."""

    def __init__(self, name: str, text: str, read: Mapping[str, Callable[[], float]]) -> None:
        self._head: Final = f"# HELP {name} {text}\n# TYPE {name} gauge\n"
        self._read: Final = [(f"{name}{labels}", one) for labels, one in read.items()]

    def text(self) -> str:
        """See `Lines`."""
        lines = [f"{name} {float(read())!r}\n" for name, read in self._read]
        return self._head + "".join(lines)


class Total:
    """A count that only grows, for each of some labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], began_s: float) -> None:
        self._head: Final = f"# HELP {name}_total {text}\n# TYPE {name}_total counter\n"
        self._name: Final = name
        self._values: Final = dict.fromkeys(labels, 0.0)
        self._created: Final = _created(name, text, labels, began_s)
        self._text = ""

    def add(self, amount: float, labels: str) -> None:
        """Count so much more."""
        self._values[labels] += amount
        self._text = ""

    def text(self) -> str:
        """See `Lines`."""
        if not self._text:
            values = self._values.items()
            lines = [f"{self._name}_total{labels} {value!r}\n" for labels, value in values]
            self._text = self._head + "".join(lines) + self._created
        return self._text


class Spread:
    """A histogram."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: str, began_s: float
    ) -> None:
        self._head: Final = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        self._name: Final = name
        self._labels: Final = labels
        self._bounds: Final = bounds
        self._counts: Final = [0] * (len(bounds) + 1)
        # The labels stand in the order of their names: `le` between `engine` and `model_name`.
        front, comma, rest = labels.partition('",')
        begins = [f'{name}_bucket{front}{comma}le="{bound!r}",{rest}' for bound in bounds]
        self._begins: Final = [*begins, f'{name}_bucket{front}{comma}le="+Inf",{rest}']
        self._created: Final = _created(name, text, (labels,), began_s)
        self._sum = 0.0
        self._text = ""

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or the same so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times
        self._text = ""

    def text(self) -> str:
        """See `Lines`."""
        if not self._text:
            lines, so_far = [], 0
            for begin, count in zip(self._begins, self._counts, strict=True):
                so_far += count
                lines.append(f"{begin} {float(so_far)!r}\n")
            lines.append(f"{self._name}_count{self._labels} {float(so_far)!r}\n")
            lines.append(f"{self._name}_sum{self._labels} {self._sum!r}\n")
            self._text = self._head + "".join(lines) + self._created
        return self._text


def _created(name: str, text: str, labels: Sequence[str], began_s: float) -> str:
    lines = [f"{name}_created{one} {began_s!r}\n" for one in labels]
    return f"# HELP {name}_created {text}\n# TYPE {name}_created gauge\n" + "".join(lines)


class Read(Protocol):
    """Where gauges are read."""

    @property
    def waiting(self) -> int:
        """Requests that wait."""

    @property
    def running(self) -> int:
        """Requests that run."""

    @property
    def usage(self) -> float:
        """The share of the memory for keys and values in use."""


class Page:
    """What one replica counts; `render` writes it."""

    def __init__(
        self,
        read: Read,
        model: str,
        *,
        began_s: float,
        block_tokens: int,
        blocks: int,
        names: Names = Names.VLLM,
    ) -> None:
        self._lines: Final[list[Lines]] = []
        self._began_s: Final = began_s
        self._prefix: Final = f"{names}:"
        quoted = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        engine = "engine" if names is Names.VLLM else "engine_type"
        value = "0" if names is Names.VLLM else "unified"
        self._labels: Final = f'{{{engine}="{value}",model_name="{quoted}"}}'
        self._reasons: Final = {
            reason: f'{{engine="0",finished_reason="{reason}",model_name="{quoted}"}}'
            for reason in REASONS
        }
        self._gauge_of_process(began_s)
        self._vllm = names is Names.VLLM
        if self._vllm:
            self._gauge("num_requests_running", "Requests that run.", lambda: read.running)
            self._gauge("num_requests_waiting", "Requests that wait.", lambda: read.waiting)
            self._gauge("kv_cache_usage_perc", "Use of the KV cache, 0 to 1.", lambda: read.usage)
        else:
            self._gauge("num_running_reqs", "Requests that run.", lambda: read.running)
            self._gauge("num_queue_reqs", "Requests that wait.", lambda: read.waiting)
            self._gauge("token_usage", "Use of the KV cache, 0 to 1.", lambda: read.usage)
            room = float(block_tokens * blocks)
            self._gauge("max_total_num_tokens", "Tokens of the KV cache.", lambda: room)
        self._queries = self._total("prefix_cache_queries", "Tokens looked for in the cache.")
        self._hits = self._total("prefix_cache_hits", "Tokens found in the cache.")
        self._prompt = self._total("prompt_tokens", "Tokens of prompts.", sglang=True)
        cached = "prompt_tokens_cached" if self._vllm else "cached_tokens"
        self._cached = self._total(cached, "Tokens of prompts not prefilled.", sglang=True)
        self._generated = self._total("generation_tokens", "Tokens of answers.", sglang=True)
        self._total("num_preemptions", "Requests put off; none ever is.")
        self._finished = self._total(
            "request_success", "Requests ended, by reason.", list(self._reasons.values())
        )
        self._prompts = self._spread("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self._answers = self._spread("request_generation_tokens", "Tokens of an answer.", TOKENS)
        self._computed = self._spread(
            "request_prefill_kv_computed_tokens", "Tokens of a prompt that were prefilled.", TOKENS
        )
        self._ttft = self._spread(
            "time_to_first_token_seconds", "To the first token.", TTFT_SECONDS, sglang=True
        )
        self._gap = self._spread(
            "inter_token_latency_seconds", "Between tokens.", GAP_SECONDS, sglang=True
        )
        self._whole = self._spread(
            "e2e_request_latency_seconds", "Of a whole request.", SECONDS, sglang=True
        )
        self._queue = self._spread("request_queue_time_seconds", "Spent waiting.", SECONDS)
        self._prefill = self._spread("request_prefill_time_seconds", "Of the prefill.", SECONDS)
        self._decode = self._spread("request_decode_time_seconds", "Of the answer.", SECONDS)
        if self._vllm:
            self._config(block_tokens, blocks)

    def admitted(self, prompt_tokens: int, cached: int, waited_s: float) -> None:
        """Count a request that no longer waits."""
        self._queries.add(prompt_tokens, self._labels)
        self._hits.add(cached, self._labels)
        self._cached.add(cached, self._labels)
        self._queue.observe(waited_s)

    def started(self, prompt_tokens: int, cached: int, ttft_s: float, prefill_s: float) -> None:
        """Count a first token."""
        self._prompt.add(prompt_tokens, self._labels)
        self._prompts.observe(prompt_tokens)
        self._computed.observe(prompt_tokens - cached)
        self._ttft.observe(ttft_s)
        self._prefill.observe(prefill_s)

    def wrote(self, tokens: int) -> None:
        """Count tokens of answers."""
        if tokens:
            self._generated.add(tokens, self._labels)

    def ended(self, tokens: int, whole_s: float, decode_s: float, reason: str) -> None:
        """Count a request that ended, however it did."""
        self._finished.add(1, self._reasons[reason])
        self._answers.observe(tokens)
        self._whole.observe(whole_s)
        self._decode.observe(decode_s)
        if tokens > 1:
            self._gap.observe(decode_s / (tokens - 1), tokens - 1)

    def render(self) -> bytes:
        """Return the page."""
        return "".join([lines.text() for lines in self._lines]).encode()

    def _gauge_of_process(self, began_s: float) -> None:
        name = "process_start_time_seconds"
        text = "Start time of the process since unix epoch in seconds."
        self._lines.append(Gauges(name, text, {"": lambda: began_s}))

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        self._lines.append(Gauges(self._prefix + name, text, {self._labels: read}))

    def _total(
        self, name: str, text: str, labels: Sequence[str] = (), *, sglang: bool = False
    ) -> Total:
        total = Total(self._prefix + name, text, labels or (self._labels,), self._began_s)
        if self._vllm or sglang:
            self._lines.append(total)
        return total

    def _spread(
        self, name: str, text: str, bounds: Sequence[float], *, sglang: bool = False
    ) -> Spread:
        spread = Spread(self._prefix + name, text, bounds, self._labels, self._began_s)
        if self._vllm or sglang:
            self._lines.append(spread)
        return spread

    def _config(self, block_tokens: int, blocks: int) -> None:
        labels = {
            "block_size": block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "kv_cache_size_tokens": block_tokens * blocks,
            "num_cpu_blocks": "None",
            "num_gpu_blocks": blocks,
            "prefix_caching_hash_algo": "sha256",
        }
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        name = self._prefix + "cache_config_info"
        self._lines.append(Gauges(name, "The cache's settings.", {f"{{{text}}}": lambda: 1.0}))
