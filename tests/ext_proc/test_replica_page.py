"""A simulated replica's metrics are those of the real servers, and count what happens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from ext_proc.adapters.replica_signals import PageReader, Said
from ext_proc.tools.replica_page import Names, Page

GOLDEN = Path(__file__).parent.parent / "golden"
BEGAN_S = 1_795_965_726.25
SCRAPED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:request_success_total",
    "process_start_time_seconds",
)


@dataclass(slots=True)
class Engine:
    waiting: int = 2
    running: int = 3
    usage: float = 0.25


def page_of(names: Names = Names.VLLM, model: str = "smollm2") -> Page:
    return Page(Engine(), model, began_s=BEGAN_S, block_tokens=16, blocks=100, names=names)


def samples(page: Page) -> dict[str, float]:
    lines = page.render().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def series(text: str) -> set[str]:
    """Return the lines of a page without their values, and `cache_config_info` by name alone."""
    names = re.findall(r"^([^#\n]\S*) \S+$", text, re.MULTILINE)
    return {re.sub(r"(?<=cache_config_info)\{.*", "", name) for name in names}


def test_every_line_of_the_page_stands_in_a_real_one() -> None:
    """Names, labels and their order, buckets: whoever reads vLLM 0.32 reads a replica."""
    real = series((GOLDEN / "vllm_page.txt").read_text())
    assert set() == series(page_of().render().decode()) - real


def test_the_kinds_of_the_page_are_the_real_ones() -> None:
    """A counter is a counter."""
    kinds = re.compile(r"^# TYPE (\S+ \w+)$", re.MULTILINE)
    real = set(kinds.findall((GOLDEN / "vllm_page.txt").read_text()))
    assert set() == set(kinds.findall(page_of().render().decode())) - real


@pytest.mark.parametrize("name", SCRAPED)
def test_what_pickers_read_is_there(name: str) -> None:
    """So that nothing has to be made up that a gateway goes by."""
    assert re.search(rf"^{name}[{{ ]", page_of().render().decode(), re.MULTILINE)


def test_the_settings_of_the_cache_have_the_labels_of_real_ones() -> None:
    """A subset of them, and the room for tokens in both ways that vLLM tells it."""
    real = (GOLDEN / "vllm_page.txt").read_text()
    label = re.compile(r'[{,](\w+)="')
    (line,) = re.findall(r"^vllm:cache_config_info.*$", page_of().render().decode(), re.MULTILINE)
    (real_line,) = re.findall(r"^vllm:cache_config_info.*$", real, re.MULTILINE)
    assert set() == set(label.findall(line)) - set(label.findall(real_line))


@pytest.mark.parametrize("names", list(Names))
def test_our_own_scraper_reads_the_page(names: Names) -> None:
    """The very reader that picks are made by."""
    page = page_of(names).render()
    expected = Said(2, 3, 0.25, None, 1_600, BEGAN_S, counted=0)
    assert expected == PageReader().read(page, whole=True)


def test_a_request_is_counted_from_its_slot_to_its_end() -> None:
    """Each number once, under the name that vLLM has for it."""
    page = page_of()
    page.render()  # what is kept of it is not stale afterwards
    page.admitted(prompt_tokens=100, cached=64, waited_s=0.5)
    page.started(prompt_tokens=100, cached=64, ttft_s=0.75, prefill_s=0.25)
    page.wrote(11)
    page.ended(tokens=11, whole_s=1.75, decode_s=1.0, reason="length")
    found = samples(page)
    labels = '{engine="0",model_name="smollm2"}'
    expected = {
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 64,
        "prompt_tokens_total": 100,
        "prompt_tokens_cached_total": 64,
        "generation_tokens_total": 11,
        "request_prefill_kv_computed_tokens_sum": 36,
        "request_queue_time_seconds_sum": 0.5,
        "time_to_first_token_seconds_sum": 0.75,
        "request_prefill_time_seconds_sum": 0.25,
        "e2e_request_latency_seconds_sum": 1.75,
        "request_decode_time_seconds_sum": 1.0,
        "inter_token_latency_seconds_count": 10,
    }
    assert expected == {name: found[f"vllm:{name}{labels}"] for name in expected}
    finished = (
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="smollm2"}'
    )
    assert 1 == found[finished]


def test_buckets_add_up() -> None:
    """Each holds all up to its bound, the bound with it."""
    page = page_of()
    for ttft_s in (0.001, 0.002, 0.04, 9_999.0):
        page.started(prompt_tokens=1, cached=0, ttft_s=ttft_s, prefill_s=0.0)
    found = samples(page)
    bucket = 'vllm:time_to_first_token_seconds_bucket{{engine="0",le="{}",model_name="smollm2"}}'
    counts = [found[bucket.format(bound)] for bound in ("0.001", "0.005", "0.04", "2560.0", "+Inf")]
    assert [1, 2, 3, 3, 4] == counts


def test_a_models_name_may_hold_anything() -> None:
    """It is written as Prometheus wants it."""
    assert r'model_name="a\"b\\c\nd"' in page_of(model='a"b\\c\nd').render().decode()
