"""What model servers say is understood in the words of each of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.adapters.replica_signals import MOST_LINE_BYTES, MOST_SERIES, PageReader, Said

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_page.txt"

OLD_VLLM = b"""\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 7.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_cpu_blocks="0",num_gpu_blocks="2000"} 1.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 500.0
"""
SGLANG = b"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0",pp_rank="0"} 5.0
sglang:num_running_reqs{model_name="m",tp_rank="1",pp_rank="0"} 5.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m",tp_rank="0",priority=""} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",priority="9"} 4.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m",tp_rank="0"} 0.28
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="m",tp_rank="0",dp_rank="0"} 60000
sglang:max_total_num_tokens{model_name="m",tp_rank="0",dp_rank="1"} 60000
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 2000.0
"""
TENSORRT = b"""\
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 2.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
# TYPE trtllm_request_success_total counter
trtllm_request_success_total{finished_reason="length",model_name="m"} 3.0
trtllm_request_success_total{finished_reason="stop",model_name="m"} 4.0
"""
LLAMA = b"""\
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.5
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 6
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 70
"""


def test_a_page_of_vllm() -> None:
    """One that vLLM 0.32 gave."""
    page = GOLDEN.read_bytes()
    assert Said(0, 0, 0.0, None, 46_592, 1795965650.4, 119) == PageReader().read(page, whole=True)


@pytest.mark.parametrize(
    ("page", "kind", "said"),
    [
        (OLD_VLLM, "vllm", Said(3, 7, 0.25, None, 32_000, counted=1_500)),
        (SGLANG, "sglang", Said(4, 5, 0.28, None, 120_000, counted=2_000)),
        (TENSORRT, "tensorrt_llm", Said(1, 2, 0.62, counted=7)),
        (LLAMA, "llama.cpp", Said(6, 1, 0.5, counted=70)),
    ],
)
def test_pages_of_other_servers(page: bytes, kind: str, said: Said) -> None:
    """Each has its own names for the same."""
    reader = PageReader()
    assert said == reader.read(page, whole=True)
    assert reader.server is not None
    assert kind == reader.server.name


def test_what_rarely_changes_is_not_looked_for_each_time() -> None:
    """It stands far back in a long page."""
    reader = PageReader()
    reader.read(OLD_VLLM, whole=True)
    assert Said(3, 7, 0.25) == reader.read(OLD_VLLM, whole=False)


def test_a_server_without_memory_figures_is_taken_to_have_room() -> None:
    """llama.cpp tells them no more."""
    page = LLAMA[LLAMA.index(b"# TYPE llamacpp:requests_processing") :]
    assert Said(6, 1, 0.0, counted=70) == PageReader().read(page, whole=True)


def test_engines_of_one_server_are_added_up() -> None:
    """Data parallelism has several behind one address; the fullest memory counts."""
    page = (
        b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
        b'vllm:num_requests_waiting{engine="0"} 4\nvllm:num_requests_waiting{engine="1"} 8\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.1\nvllm:kv_cache_usage_perc{engine="1"} 0.7\n'
    )
    assert Said(12, 3, 0.7) == PageReader().read(page, whole=True)


def test_a_name_is_not_the_beginning_of_another() -> None:
    """Those that wait are told by reason as well."""
    page = (
        b'vllm:num_requests_running 1\nvllm:num_requests_waiting_by_reason{reason="a"} 5\n'
        b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 2\n"
        b'vllm:num_requests_waiting_by_reason{reason="b"} 5\n'
    )
    assert Said(2, 1, 0.0) == PageReader().read(page, whole=True)


@pytest.mark.parametrize(
    ("line", "share"),
    [
        (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 100\n', 0.75),
        (b'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.5\n', 0.5),
        (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 9223372036854775794\n', None),
    ],
)
def test_gpus_are_read_where_they_are_told(line: bytes, share: float | None) -> None:
    """DCGM writes a very great number for one that it does not know."""
    said = PageReader().read(LLAMA + line, whole=True)
    assert said is not None
    assert share == said.gpu_usage


@pytest.mark.parametrize("rooms", [(b"-5",), (b"0",), (b"-1e308", b"-1e308"), (b"1e308",)])
def test_room_that_cannot_be_says_nothing(rooms: tuple[bytes, ...]) -> None:
    """A cache of less than nothing would have no end of blocks to throw away."""
    lines = [b"sglang:max_total_num_tokens %b\n" % room for room in rooms]
    page = b"sglang:num_running_reqs 1\n" + b"".join(lines)
    assert Said(0, 1, 0.0) == PageReader().read(page, whole=True)


def test_so_many_series_are_read_and_no_more() -> None:
    """Everybody else waits while a page is read."""
    page = b"llamacpp:requests_processing 1\n" * (MOST_SERIES + 100)
    assert Said(0, MOST_SERIES, 0.0) == PageReader().read(page, whole=True)


def test_no_line_is_read_that_has_no_end() -> None:
    """Labels have to be looked through."""
    label = b'{a="' + b"x" * MOST_LINE_BYTES + b'"} 1'
    assert PageReader().read(b"llamacpp:requests_processing" + label, whole=True) is None


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"x", b""])
def test_what_is_no_number_says_nothing(value: bytes) -> None:
    """Whoever counts nothing says nothing of itself."""
    assert PageReader().read(b"llamacpp:requests_processing " + value, whole=True) is None


def test_a_value_may_have_a_time() -> None:
    """Behind it, in milliseconds."""
    page = b'vllm:num_requests_running{a="} 9"} 3 1795965650400\nvllm:num_requests_waiting 2 17\n'
    assert Said(2, 3, 0.0) == PageReader().read(page, whole=True)


def test_a_page_of_something_else_says_nothing() -> None:
    """Another service may listen there."""
    assert PageReader().read(b"up 1\n<html>", whole=True) is None


def test_a_server_that_became_another_is_understood_when_all_is_read() -> None:
    """Until then it says nothing."""
    reader = PageReader()
    reader.read(SGLANG, whole=True)
    assert [None, Said(6, 1, 0.5, counted=70)] == [
        reader.read(LLAMA, whole=whole) for whole in (False, True)
    ]


@given(st.binary(max_size=200), st.integers(0, 400), st.booleans())
def test_no_page_breaks_the_reader(junk: bytes, at: int, whole: bool) -> None:
    """Wherever it is cut and whatever is put there."""
    reader = PageReader()
    reader.read(OLD_VLLM, whole=True)
    for page in (OLD_VLLM[:at] + junk, OLD_VLLM[:at] + junk + OLD_VLLM[at:], junk):
        said = reader.read(page, whole=whole)
        assert said is None or (said.waiting >= 0 and said.running >= 0 and 0 <= said.kv_usage <= 1)
