"""The books: one log line, the counts and the span of an exchange, and what they never show."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import logging
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import Counter

import filters
from ext_proc import session
from ext_proc.session import Facts
from ext_proc.telemetry import Telemetry
from ext_proc.telemetry.logs import Lines, describe_exception, parse_level
from ext_proc.telemetry.metrics import GAP_BOUNDS_S, MOST_CHILDREN, Children, Histogram
from ext_proc.telemetry.skips import reason_of
from ext_proc.telemetry.telemetry import MOST_WAITING, WRITE_AFTER_S, Later
from ext_proc.telemetry.traceparent import TraceParent, parse_traceparent
from filters.api import Cut, Finish, Outcome, Task, Usage
from filters.dialects import dialect_of
from filters.errors import ConfigError
from filters.routing import Rule
from tests.fakes import FakeClock
from tests.otlp import OtlpReceiver, attributes, otlp_receiver

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"
HANG_S = 60  # not a measure: what takes this long has hung


class Books:
    """Telemetry, the stream it logs to and the clock it reads."""

    def __init__(
        self,
        level: int = logging.WARNING,
        otlp_endpoint: str = "",
        stream: io.BytesIO | None = None,
        later: Later | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.stream = stream or io.BytesIO()
        self.telemetry = Telemetry.open(
            self.clock,
            self.stream,
            version="1.2.3",
            level=level,
            otlp_endpoint=otlp_endpoint,
            later=later,
        )

    def end(self, facts: Facts, traceparent: str | None = None, took_s: float = 0.0) -> None:
        record = self.telemetry.begin(facts.profile, traceparent)
        self.clock.advance(took_s)
        record.end(facts)

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def value(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"forebay_{name}", labels)


def facts(**changes: Any) -> Facts:
    """Return the facts of a plain exchange, with `changes`."""
    plain: Mapping[str, Any] = {
        "profile": "default",
        "dialect": dialect_of("POST", "/v1/chat/completions"),
        "model": "gpt-4o",
        "pool": "full",
        "quality": "FULL",
        "outcome": Outcome.FORWARDED,
        "stages": [("clean", 12_000), ("cache", 30_500)],
        "notes": {"cache": "miss"},
    }
    return Facts(**{**plain, **changes})


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest.fixture
async def traced(receiver: OtlpReceiver) -> AsyncIterator[Books]:
    receiver.resources.clear()
    books = Books(otlp_endpoint=receiver.endpoint)
    yield books
    await books.telemetry.close()


# --- The log line ---------------------------------------------------------------------------------


def test_an_exchange_is_one_line_that_says_what_is_known(books: Books) -> None:
    """Everything known is in the line, times in microseconds."""
    ended = facts(
        status=200,
        outcome=Outcome.COMPLETE,
        stream=True,
        usage=Usage(12, 34, 8),
        finish=Finish.STOP,
        first_token_ns=250_000_000,
    )
    books.end(ended, SAMPLED, took_s=1.5)
    assert [
        {
            "time": "2023-11-14T22:13:21.500000Z",
            "level": "info",
            "event": "exchange",
            "profile": "default",
            "dialect": "openai.chat",
            "model": "gpt-4o",
            "stream": True,
            "pool": "full",
            "quality": "FULL",
            "outcome": "complete",
            "status": 200,
            "us": 1_500_000.0,
            "stages_us": {"clean": 12.0, "cache": 30.5},
            "tokens": {"input": 12, "output": 34, "cached": 8},
            "finish": "stop",
            "ttft_us": 250_000.0,
            "notes": {"cache": "miss"},
            "trace_id": TRACE_ID,
        }
    ] == books.lines


def test_the_line_says_what_was_cut_and_asked_for(books: Books) -> None:
    """Tokens before and after, summed by rule."""
    books.end(facts(cuts=CUTS, task=Task("translate", "legal", 0.93, expert=True)))
    (line,) = books.lines
    assert {"clean.html": [110, 45], "shape.rounds": [900, 128]} == line["cuts"]
    assert {"intent": "translate", "domain": "legal", "score": 0.93, "expert": True} == line["task"]


def test_what_is_not_known_is_left_out(books: Books) -> None:
    """A request that is no LLM call makes a short line."""
    books.end(Facts("default"))
    (line,) = books.lines
    assert {"time", "level", "event", "profile", "outcome", "us"} == line.keys()


def test_an_exchange_is_logged_whatever_the_level() -> None:
    """The level is for everything else."""
    books = Books(level=logging.ERROR)
    books.end(facts())
    assert 1 == len(books.lines)


def test_a_line_stays_one_line_and_short(books: Books) -> None:
    """Neither line feeds nor megabytes in a model's name get through."""
    books.end(facts(model='a\n"b' + "x" * 1_000_000, notes={"why": "y" * 1_000_000}))
    (line,) = books.lines
    assert (128, 128) == (len(line["model"]), len(line["notes"]["why"]))
    assert len(books.stream.getvalue()) < 2_000


def test_a_model_of_broken_text_is_logged_all_the_same(books: Books) -> None:
    """JSON may carry half a surrogate pair, which no UTF-8 can."""
    books.end(facts(model="half \ud800"))
    assert 1 == len(books.lines)


def test_a_second_end_does_nothing(books: Books) -> None:
    """An exchange is in the books once."""
    record = books.telemetry.begin("default", None)
    record.end(facts())
    record.end(facts())
    assert 1 == len(books.lines)
    assert 0 == books.value("in_flight")


def test_a_log_that_cannot_be_written_harms_nobody(books: Books) -> None:
    """Lost lines are counted."""
    books.stream.close()
    books.end(facts())
    assert 1 == books.value("log_lines_lost")


# --- Written together -----------------------------------------------------------------------------


class Writes(io.BytesIO):
    """A stream that knows how often it was written to."""

    times = 0

    def write(self, data: Any) -> int:
        self.times += 1
        return super().write(data)


class Timer:
    """Calls nothing by itself."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, after_s: float, call: Callable[[], None]) -> None:
        self.set.append((after_s, call))


def test_exchanges_that_wait_are_written_in_one_go() -> None:
    """One timer serves all of them, and each line has the time of its own end."""
    timer, stream = Timer(), Writes()
    books = Books(stream=stream, later=timer)
    books.end(facts(model="one"))
    books.clock.advance(0.01)
    books.end(facts(model="two"))
    assert [] == books.lines
    assert 0 == books.value("in_flight")
    ((after_s, write),) = timer.set
    assert WRITE_AFTER_S == after_s
    books.clock.advance(1)
    write()
    assert 1 == stream.times
    assert [
        ("one", "2023-11-14T22:13:20Z"),
        ("two", "2023-11-14T22:13:20.010000Z"),
    ] == [(line["model"], line["time"]) for line in books.lines]
    assert 2 == books.value("cache_total", profile="default", outcome="miss")


def test_a_timer_that_finds_nothing_writes_nothing() -> None:
    """What it was set for may have been written before."""
    timer, stream = Timer(), Writes()
    books = Books(stream=stream, later=timer)
    books.end(facts())
    books.telemetry.write()
    timer.set[0][1]()
    assert 1 == stream.times


def test_many_exchanges_do_not_wait_for_the_timer() -> None:
    """Writing all of them takes a time in which nobody else is served."""
    timer, stream = Timer(), Writes()
    books = Books(stream=stream, later=timer)
    for _ in range(2 * MOST_WAITING + 1):
        books.end(facts())
    assert 2 * MOST_WAITING == len(books.lines)
    assert 2 == stream.times


async def test_closing_writes_what_waits() -> None:
    """No line is lost to a stop."""
    books = Books(later=Timer())
    books.end(facts())
    await books.telemetry.close()
    assert 1 == len(books.lines)


def test_lines_that_are_lost_together_are_counted_each() -> None:
    """The count says how many exchanges nobody can look up."""
    books = Books(later=Timer())
    books.end(facts())
    books.end(facts())
    books.stream.close()
    books.telemetry.write()
    assert 2 == books.value("log_lines_lost")


# --- Other logs -----------------------------------------------------------------------------------


def test_a_call_below_the_level_writes_nothing(books: Books) -> None:
    """WARN is the default, so that info and debug are silent."""
    books.telemetry.log.info("unseen")
    books.telemetry.log.debug("unseen")
    books.telemetry.log.warning("seen", port=1)
    assert [("warning", "seen", 1)] == [
        (line["level"], line["event"], line["port"]) for line in books.lines
    ]


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 30), ("WARN", 30), ("warning", 30), ("DEBUG", 10), ("Info", 20), ("ERROR", 40)],
)
def test_a_level_is_read_in_any_case(text: str, level: int) -> None:
    """Nothing set means WARN."""
    assert level == parse_level(text)


def test_an_unknown_level_is_a_config_error() -> None:
    """The start stops with what was expected."""
    with pytest.raises(ConfigError) as caught:
        parse_level("loud")
    expected = 'FOREBAY_LOG_LEVEL: expected DEBUG, INFO, WARN or ERROR, got "loud"'
    assert expected == str(caught.value)


def test_an_exception_is_logged_by_type_and_place_only(books: Books) -> None:
    """Its text may quote a prompt."""
    try:
        raise KeyError("my secret prompt")
    except KeyError:
        books.telemetry.log.exception("broke")
    (line,) = books.lines
    assert "KeyError" == line["error"]
    assert "test_telemetry.py" in line["at"][-1]
    assert b"secret" not in books.stream.getvalue()


def test_a_field_without_an_exception_stays_as_it_is() -> None:
    """Only what was raised is described."""
    assert {"event": "x"} == describe_exception(None, "info", {"event": "x", "exc_info": None})


def test_a_failed_stream_is_counted_and_its_error_not_quoted(books: Books) -> None:
    """Type and place are enough to find a bug."""
    try:
        raise ValueError("my secret prompt")
    except ValueError as error:
        books.telemetry.stream_failed("bug", error)
    (line,) = books.lines
    assert ("stream failed", "bug", "ValueError") == (line["event"], line["reason"], line["error"])
    assert b"secret" not in books.stream.getvalue()
    assert 1 == books.value("stream_failures_total", reason="bug")


def test_what_libraries_log_becomes_lines_of_ours(books: Books) -> None:
    """One format on the stream, and no error's text in it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    books.telemetry.take_library_logs()
    try:
        logging.getLogger("some.library").warning("it %s\nValueError('my secret prompt')", "broke")
        logging.getLogger("some.library").info("unseen")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = books.lines
    assert ("warning", "it broke", "some.library") == (
        line["level"],
        line["event"],
        line["logger"],
    )


def test_one_line_is_written_at_a_time() -> None:
    """The exporter logs from a thread of its own; its lines must not mix with the loop's."""

    class Watched(io.BytesIO):
        def write(self, data: Any) -> int:
            held.append(lines._lock.locked())
            return super().write(data)

    held: list[bool] = []
    lines = Lines(Watched())
    lines.write(b"x")
    assert [True] == held


def test_a_pipe_that_nobody_reads_stops_nobody() -> None:
    """What does not fit into it is lost, and whole lines follow when it is read again."""
    written = {b"short", b"l" * (3 * select.PIPE_BUF - 1)}
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb") as writer:  # noqa: PTH123 - no paths
        lines = Lines(writer)
        for line in sorted(written) * 100:
            lines.write(line)
        assert 0 < lines.lost < 200
        os.set_blocking(reading, False)
        whole = [line for line in reader.read().split(b"\n") if line in written]
        assert 200 - lines.lost == len(whole)
        with lines.together():
            pass
        with lines.together():
            for _ in range(100):
                lines.write(b"m" * 100)
        assert [b"m" * 100] * 100 == [line for line in reader.read().splitlines() if line]


# --- Metrics --------------------------------------------------------------------------------------


def test_an_exchange_is_counted_by_profile_dialect_quality_and_outcome(books: Books) -> None:
    """Full and best effort are counted apart."""
    books.end(facts())
    books.end(facts(quality="BEST_EFFORT"))
    counted = [
        books.value(
            "requests_total",
            profile="default",
            dialect="openai.chat",
            quality=quality,
            outcome="forwarded",
        )
        for quality in ("FULL", "BEST_EFFORT")
    ]
    assert [1, 1] == counted


def test_open_exchanges_are_in_flight(books: Books) -> None:
    """Every begin without its end counts."""
    first = books.telemetry.begin("default", None)
    books.telemetry.begin("default", None)
    assert 2 == books.value("in_flight")
    first.end(facts())
    assert 1 == books.value("in_flight")


def test_each_stage_is_timed(books: Books) -> None:
    """The stage's name is the filter's."""
    books.end(facts())
    assert 1 == books.value("stage_seconds_count", stage="clean")
    assert pytest.approx(30.5e-6) == books.value("stage_seconds_sum", stage="cache")


def test_the_whole_exchange_is_timed(books: Books) -> None:
    """From the request's head to the end."""
    books.end(facts(), took_s=2.0)
    labels = {"profile": "default", "quality": "FULL", "outcome": "forwarded"}
    assert 2.0 == books.value("exchange_seconds_sum", **labels)


def test_the_first_token_and_the_gaps_are_timed_where_they_are_seen(books: Books) -> None:
    """A reply nobody read has neither."""
    books.end(facts())
    books.end(facts(first_token_ns=300_000_000, token_gaps_ns=[10_000_000, 30_000_000]))
    labels = {"profile": "default", "quality": "FULL"}
    assert (1, 0.3) == (
        books.value("ttft_seconds_count", **labels),
        books.value("ttft_seconds_sum", **labels),
    )
    assert 2 == books.value("inter_token_seconds_count", **labels)
    assert pytest.approx(0.04) == books.value("inter_token_seconds_sum", **labels)


@given(st.lists(st.integers(0, 20_000_000_000), min_size=1))
def test_gaps_fall_into_the_buckets_that_hold_them(gaps_ns: list[int]) -> None:
    """A bucket counts all values up to its bound, as Prometheus has it."""
    histogram = Histogram("gaps", "Gaps", ("profile",), GAP_BOUNDS_S)
    histogram.observe_all(("default",), gaps_ns[1:])
    histogram.observe(("default",), gaps_ns[0])
    (family,) = histogram.collect()
    counted = {s.labels["le"]: s.value for s in family.samples if s.name == "gaps_bucket"}
    expected = {
        str(bound): sum(gap <= round(bound * 1e9) for gap in gaps_ns) for bound in GAP_BOUNDS_S
    }
    assert {**expected, "+Inf": len(gaps_ns)} == counted


def test_tokens_are_counted_by_direction(books: Books) -> None:
    """In, out, and those in the upstream's prefix cache."""
    books.end(facts(usage=Usage(12, 34, 8)))
    labels = {"profile": "default", "quality": "FULL"}
    assert [12, 34, 8] == [
        books.value("tokens_total", direction=direction, **labels)
        for direction in ("in", "out", "cached")
    ]


def test_a_hit_saves_the_tokens_of_its_answer(books: Books) -> None:
    """What was not asked again is counted as saved."""
    notes = {"cache": "hit", "saved.input_tokens": 12, "saved.output_tokens": 34}
    books.end(facts(outcome=Outcome.ANSWERED, notes=notes | {"saved.ms": 1500}))
    labels = {"profile": "default", "quality": "FULL"}
    assert [46, 12, 34, 1.5, 1] == [
        books.value("tokens_total", direction="saved", **labels),
        books.value("cache_saved_tokens_total", profile="default", direction="in"),
        books.value("cache_saved_tokens_total", profile="default", direction="out"),
        books.value("cache_saved_seconds_total", profile="default"),
        books.value("cache_total", profile="default", outcome="hit"),
    ]


@pytest.mark.parametrize(
    ("notes", "changes", "result"),
    [
        ({"cache.stored": 512}, {"outcome": Outcome.COMPLETE}, "stored"),
        ({"cache.skip": "tokens"}, {"outcome": Outcome.COMPLETE}, "tokens"),
        ({"cache.skip": "a client's own words"}, {"outcome": Outcome.COMPLETE}, "other"),
        ({}, {"status": 503}, "status"),
        ({}, {"outcome": Outcome.FORWARDED}, "sightings"),
        ({}, {"outcome": Outcome.GONE, "status": 200}, "incomplete"),
    ],
)
def test_what_became_of_an_answer_is_counted_by_profile(
    notes: dict[str, str | int], changes: dict[str, Any], result: str, books: Books
) -> None:
    """Stored, or why not, by a few fixed words."""
    said = {"cache": "miss", "cache.sightings": 1, **notes}
    books.end(facts(profile="faq", notes=said, **changes))
    assert 1 == books.value("cache_admissions_total", profile="faq", result=result)


@pytest.mark.parametrize("cache", ["hit", "bypass"])
def test_what_was_not_asked_for_is_no_admission(cache: str, books: Books) -> None:
    """A hit has no answer of its own, and a bypass none that would be kept."""
    books.telemetry.caches("faq")
    books.end(facts(profile="faq", notes={"cache": cache}))
    counts = (
        sample.value
        for family in books.telemetry.registry.collect()
        for sample in family.samples
        if sample.name == "forebay_cache_admissions_total"
    )
    assert [0] == list(counts)


CUTS = [Cut("clean.html", 100, 40), Cut("shape.rounds", 900, 128), Cut("clean.html", 10, 5)]


def test_what_rules_cut_is_counted_before_and_after(books: Books) -> None:
    """The difference is what the model need not read."""
    books.end(facts(cuts=CUTS))
    assert [110, 45, 900, 128] == [
        books.value("cut_tokens_total", rule=rule, when=when)
        for rule in ("clean.html", "shape.rounds")
        for when in ("before", "after")
    ]


def test_tasks_are_counted_by_intent_and_domain(books: Books) -> None:
    """What the gateway is used for."""
    books.end(facts(task=Task("translate", "legal", 0.93)))
    assert 1 == books.value("tasks_total", intent="translate", domain="legal")


def test_a_failed_filter_is_counted_by_its_note(books: Books) -> None:
    """The pipeline notes what failed; the books read the notes."""
    books.end(facts(notes={"clean.failed": "KeyError", "cache": "miss"}))
    assert 1 == books.value("filter_errors_total", filter="clean")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("size", "size"),
        ("every word counts: translate", "every word counts"),
        ("workers: late in the queue", "workers"),
        ("intent greeting", "intent"),
        ("light: status 503", "other"),
        ("sized", "other"),
        ("x" * 1_000, "other"),
        (7, "other"),
    ],
)
def test_what_a_filter_left_as_it_was_is_counted_by_reason(
    books: Books, said: str | int, reason: str
) -> None:
    """Words of a prompt or of the system are no label: the reason is a phrase of a closed set."""
    books.end(facts(notes={"budget.skip": said}))
    assert 1 == books.value("skips_total", filter="budget", reason=reason)


def test_every_phrase_that_the_filters_write_down_is_a_known_reason() -> None:
    """`other` is for the words of other systems: a phrase of ours belongs in the list."""
    written = {
        phrase
        for path in (*Path(filters.__file__).parent.glob("*.py"), Path(session.__file__))
        for phrase in re.findall(
            r'skip(?:", |\(exchange, )"([^"]+)"', path.read_text(encoding="utf-8")
        )
    }
    assert {"size", "tags", "nothing to win"} <= written
    assert set() == {phrase for phrase in written if reason_of(phrase) == "other"}


def test_what_the_profile_set_is_counted_by_what_it_is(books: Books) -> None:
    """Once for each request, however many terms were explained."""
    notes = {"params.temperature": 0.0, "params.terms": 3, "params.review": "required"}
    books.end(facts(notes=notes))
    assert {"temperature": 1, "glossary": 1, "review": 1, "max_tokens": 0, "thinking": 0} == {
        change: books.value("params_total", change=change)
        for change in ("temperature", "glossary", "review", "max_tokens", "thinking")
    }


def test_requests_for_an_expert_are_counted_by_trade_and_pool(books: Books) -> None:
    """A trade without an expert of its own is among the tasks only."""
    task = Task("code", "code", 0.9, expert=True)
    books.end(facts(task=task, notes={"classify.pool": "coders"}))
    books.end(facts(task=task, notes={"classify.why": "model"}))
    assert 1 == books.value("experts_total", domain="code", pool="coders")
    assert 2 == books.value("tasks_total", intent="code", domain="code")


def test_where_requests_went_is_counted_by_pool_rule_and_length(books: Books) -> None:
    """Those that were refused went nowhere; without a decision nothing is counted."""
    notes = {"route.rule": Rule.LENGTH, "route.bucket": "32K"}
    books.end(facts(pool="long", notes=notes))
    books.end(facts(pool="best_effort", notes={"route.rule": Rule.LOW_RISK}))
    books.end(facts(pool="", notes={"route.refused": 400, "route.bucket": "over"}))
    books.end(facts(pool="", notes={"route.refused": 429}))
    books.end(facts(pool="full", notes={"route.why": "high risk: sue"}))
    assert [1, 1, 1, 1] == [
        books.value("routes_total", pool=pool, rule=rule, bucket=bucket)
        for pool, rule, bucket in (
            ("long", "length", "32K"),
            ("best_effort", "low_risk", "unknown"),
            ("none", "too_long", "over"),
            ("none", "busy", "unknown"),
        )
    ]
    assert books.value("routes_total", pool="full", rule="own", bucket="unknown") is None


def test_the_estimate_of_a_prompt_is_counted_beside_what_the_provider_counts(books: Books) -> None:
    """It is there before the answer, and where nobody reads the answer."""
    books.end(facts(notes={"budget.tokens": 700}))
    labels = {"profile": "default", "quality": "FULL"}
    assert 700 == books.value("tokens_total", direction="estimated", **labels)


def test_store_and_settings_are_counted(books: Books) -> None:
    """Who else has something to tell has a method for it."""
    books.telemetry.store_failed("redis", "get")
    books.telemetry.store_bypassed("redis", "put")
    books.telemetry.store_searched("redis", found=False)
    books.telemetry.store_unreadable("redis", "damaged")
    books.telemetry.config_reloaded(good=True)
    books.telemetry.config_reloaded(good=False)
    assert [1, 1, 1, 1, 1, 1] == [
        books.value("store_unreadable_total", store="redis", reason="damaged"),
        books.value("store_errors_total", store="redis", op="get"),
        books.value("store_bypassed_total", store="redis", op="put"),
        books.value("store_searches_total", store="redis", result="none"),
        books.value("config_reloads_total", result="taken"),
        books.value("config_reloads_total", result="refused"),
    ]


def test_questions_of_our_own_are_counted_by_cluster_and_outcome(books: Books) -> None:
    """And their time by cluster: nothing else of them is known here."""
    for outcome in ("answered", "late", "late"):
        books.telemetry.upstream_asked("light", outcome, 0.5)
    assert [1, 2, 1.5] == [
        books.value("upstream_requests_total", cluster="light", outcome="answered"),
        books.value("upstream_requests_total", cluster="light", outcome="late"),
        books.value("upstream_seconds_sum", cluster="light"),
    ]


def test_what_did_not_happen_yet_counts_zero(books: Books) -> None:
    """A rate misses the first count of a series that was not there before."""
    books.telemetry.caches("faq")
    assert [0, 0, 0] == [
        books.value("cache_total", profile="faq", outcome="hit"),
        books.value("config_reloads_total", result="refused"),
        books.value("stream_failures_total", reason="bug"),
    ]


def test_too_many_profiles_are_counted_together(books: Books) -> None:
    """A guard against a mistake: profiles come from the settings."""
    for number in range(MOST_CHILDREN + 2):
        books.telemetry.metrics.cache.add((f"p{number}", "hit"))
    assert [1, 2] == [
        books.value("cache_total", profile=f"p{MOST_CHILDREN - 1}", outcome="hit"),
        books.value("cache_total", profile="other", outcome="other"),
    ]


def test_a_value_kept_elsewhere_is_read_when_metrics_are(books: Books) -> None:
    """The store's size, for one."""
    sizes = [10.0]
    books.telemetry.read("store_bytes", "Bytes in use", lambda: sizes[-1])
    sizes.append(20.0)
    assert 20 == books.value("store_bytes")


def test_the_running_version_is_shown(books: Books) -> None:
    """One series says what runs."""
    (build,) = [
        sample
        for family in books.telemetry.registry.collect()
        for sample in family.samples
        if sample.name == "forebay_build_info"
    ]
    assert "1.2.3" == build.labels["version"]


def test_label_values_without_end_share_one_series() -> None:
    """Whatever goes wrong with a label, the memory stays bounded."""
    counter = Counter("sample", "A sample", ["label"], registry=None)
    children, histogram = Children(counter), Histogram("gaps", "Gaps", ("label",), (1.0,))
    for number in range(MOST_CHILDREN + 50):
        children[(str(number),)].inc()
        histogram.observe((str(number),), 1)
    (counted,), (gaps,) = counter.collect(), histogram.collect()
    totals = {s.labels["label"]: s.value for s in counted.samples if s.name == "sample_total"}
    sums = {s.labels["label"]: s.value for s in gaps.samples if s.name == "gaps_count"}
    assert (MOST_CHILDREN + 1, 50) == (len(totals), totals["other"])
    assert totals == sums


# --- Server-Timing --------------------------------------------------------------------------------


def test_stage_times_are_written_in_milliseconds(books: Books) -> None:
    """The unit of `Server-Timing` is the millisecond."""
    stages = [("clean", 120_000), ("cache", 50_499)]
    assert "clean;dur=0.120, cache;dur=0.050" == books.telemetry.server_timing(stages)


def test_no_stages_are_an_empty_value(books: Books) -> None:
    """Nothing ran, nothing is said."""
    assert "" == books.telemetry.server_timing([])


# --- Traceparent ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sampled"),
    [(SAMPLED, True), (UNSAMPLED, False), (SAMPLED.replace("00-", "01-", 1) + "-more", True)],
)
def test_a_traceparent_is_read(text: str, sampled: bool) -> None:
    """Fields that a later version appends do not matter."""
    assert TraceParent(TRACE_ID, SPAN_ID, sampled) == parse_traceparent(text)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        SAMPLED.upper(),
        SAMPLED.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-0",
        f"00-{TRACE_ID}-{SPAN_ID}-01\n",
    ],
)
def test_a_malformed_traceparent_is_none(text: str | None) -> None:
    """It starts no trace and breaks nothing."""
    assert parse_traceparent(text) is None


@given(st.text())
def test_no_text_breaks_the_reading_of_a_traceparent(text: str) -> None:
    """Any client can send any text."""
    parse_traceparent(text)


# --- Spans ----------------------------------------------------------------------------------------


async def test_a_sampled_exchange_is_a_span_below_the_callers(
    traced: Books, receiver: OtlpReceiver
) -> None:
    """Trace and parent are those of the header; name and attributes those of GenAI."""
    ended = facts(
        status=200, outcome=Outcome.COMPLETE, usage=Usage(12, 34), finish=Finish.STOP, stages=()
    )
    traced.end(ended, SAMPLED, took_s=2.0)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert (TRACE_ID, SPAN_ID) == (span.trace_id.hex(), span.parent_span_id.hex())
    assert ("chat gpt-4o", Span.SPAN_KIND_SERVER) == (span.name, span.kind)
    assert 2_000_000_000 == span.end_time_unix_nano - span.start_time_unix_nano
    assert 1_700_000_002_000_000_000 == span.end_time_unix_nano
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 34,
        "gen_ai.response.finish_reasons": ["stop"],
        "http.response.status_code": 200,
        "forebay.profile": "default",
        "forebay.dialect": "openai.chat",
        "forebay.pool": "full",
        "forebay.quality": "FULL",
        "forebay.outcome": "complete",
        "forebay.stream": False,
        "forebay.cache": "miss",
    } == attributes(span)


async def test_what_decided_for_pool_and_replica_is_told_in_the_span(
    traced: Books, receiver: OtlpReceiver
) -> None:
    """The rule, its reason and the alternatives, and who was weighed with whom."""
    notes = {
        "route.rule": Rule.STAGE,
        "route.why": "stage: in the place of full",
        "route.alternatives": "full (own)",
        "route.tokens": 700,
        "route.bucket": "2K",
        "stage.trial": "canary: coming for full",
        "pick.replica": "10.0.0.1:8000",
        "pick.why": "expected: 10.0.0.1:8000 0.12 (640)",
        "pick.held": 640,
        "pick.expected_ms": 12,
    }
    traced.end(facts(pool="coming", notes=notes), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    told = attributes(span)
    expected = {"forebay.pool": "coming"} | {f"forebay.{key}": note for key, note in notes.items()}
    assert expected == {key: told.get(key) for key in expected}


async def test_each_stage_is_an_event_where_it_ended(traced: Books, receiver: OtlpReceiver) -> None:
    """The trace shows what took how long."""
    traced.end(facts(), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert [("clean", 12_000, 12.0), ("cache", 42_500, 30.5)] == [
        (
            event.name,
            event.time_unix_nano - span.start_time_unix_nano,
            event.attributes[0].value.double_value,
        )
        for event in span.events
    ]


async def test_the_service_is_named_forebay(traced: Books, receiver: OtlpReceiver) -> None:
    """Jaeger lists it under this name."""
    traced.end(facts(), SAMPLED)
    await traced.telemetry.close()
    receiver.wait_for(1)
    named = {
        pair.key: pair.value.string_value for pair in receiver.resources[0].resource.attributes
    }
    assert ("forebay", "1.2.3") == (named["service.name"], named["service.version"])


async def test_an_unsampled_exchange_has_no_span(traced: Books, receiver: OtlpReceiver) -> None:
    """The proxy decided; its trace id still stands in the log line."""
    traced.end(facts(), UNSAMPLED)
    await traced.telemetry.close()
    assert ([], TRACE_ID) == (receiver.spans, traced.lines[0]["trace_id"])


async def test_an_exchange_without_a_caller_starts_a_trace(
    traced: Books, receiver: OtlpReceiver
) -> None:
    """Where the proxy does not trace, Forebay's span is the root, named in the log line."""
    traced.end(facts())
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert (b"", traced.lines[0]["trace_id"]) == (span.parent_span_id, span.trace_id.hex())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"outcome": Outcome.FAILED}, "failed"),
        ({"outcome": Outcome.REFUSED}, "refused"),
        ({"outcome": Outcome.COMPLETE, "status": 503}, "503"),
    ],
)
async def test_what_went_wrong_is_an_error_of_the_span(
    traced: Books, receiver: OtlpReceiver, changes: Mapping[str, Any], error: str
) -> None:
    """Jaeger shows it in red."""
    traced.end(facts(**changes), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert (Status.STATUS_CODE_ERROR, error) == (span.status.code, attributes(span)["error.type"])


@pytest.mark.parametrize("status", [0, 200, 404, 429])
async def test_a_clients_own_error_is_none_of_the_span(
    traced: Books, receiver: OtlpReceiver, status: int
) -> None:
    """Server spans are not in error for a 4xx."""
    traced.end(facts(status=status), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert Status.STATUS_CODE_UNSET == span.status.code


async def test_a_span_says_what_was_cut_and_asked_for(
    traced: Books, receiver: OtlpReceiver
) -> None:
    """Tokens before and after, summed by rule."""
    traced.end(facts(cuts=CUTS, task=Task("translate", "legal", 0.93)), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    said = attributes(span)
    assert (110, 45) == tuple(said["forebay.cut.clean.html"])
    assert ("translate", "legal", 0.93) == tuple(
        said[f"forebay.{name}"] for name in ("intent", "domain", "intent_score")
    )


async def test_long_texts_are_cut_in_spans_too(traced: Books, receiver: OtlpReceiver) -> None:
    """A client's megabyte of model name is not carried around."""
    traced.end(facts(model="m" * 1_000_000, notes={"why": "y" * 1_000_000}), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert len(span.SerializeToString()) < 2_000


async def test_broken_text_does_not_lose_a_batch(traced: Books, receiver: OtlpReceiver) -> None:
    """Half a surrogate pair becomes a question mark."""
    traced.end(facts(model="half \ud800"), SAMPLED)
    await traced.telemetry.close()
    (span,) = receiver.wait_for(1)
    assert "chat half ?" == span.name


async def test_spans_are_counted_as_they_go_out(traced: Books, receiver: OtlpReceiver) -> None:
    """What ended and what was delivered can be compared."""
    for _ in range(3):
        traced.end(facts(), SAMPLED)
    await traced.telemetry.close()
    assert [3, 3] == [
        traced.value("spans_total", result=result) for result in ("ended", "exported")
    ]


@pytest.mark.slow
async def test_a_dead_receiver_is_said_once_and_nothing_grows() -> None:
    """Spans are lost and counted, the log stays quiet, a stop stays quick."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        books = Books(otlp_endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}")
        for _ in range(2500):
            books.end(facts(), SAMPLED)
        async with asyncio.timeout(HANG_S):
            await books.telemetry.close(bound_s=0.1)
    others = [line["event"] for line in books.lines if line["event"] != "exchange"]
    assert ["spans are lost"] == others
    assert 0 < (books.value("spans_total", result="failed") or 0) <= 2500


async def test_a_receiver_that_never_answers_does_not_hold_up_the_stop() -> None:
    """Connections are taken and then nothing comes."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        books = Books(otlp_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        books.end(facts(), SAMPLED)
        async with asyncio.timeout(HANG_S):
            await books.telemetry.close(bound_s=0.1)


def test_without_a_receiver_no_tracer_is_made(books: Books) -> None:
    """No endpoint, no spans; the trace id is logged all the same."""
    books.end(facts(), SAMPLED)
    assert (None, TRACE_ID) == (books.telemetry.spans, books.lines[0]["trace_id"])


def test_facts_are_all_a_line_can_show() -> None:
    """Neither headers nor bodies reach the books, for facts have no field for them."""
    assert {
        "profile",
        "dialect",
        "model",
        "pool",
        "quality",
        "stream",
        "status",
        "outcome",
        "stages",
        "notes",
        "cuts",
        "task",
        "usage",
        "finish",
        "broken",
        "first_token_ns",
        "token_gaps_ns",
    } == {field.name for field in dataclasses.fields(Facts)}


def test_only_streams_that_had_to_wait_count_as_held(books: Books) -> None:
    """For as long as their note says."""
    for held_ms in (0, 250):
        books.end(facts(notes={"pace.held_ms": held_ms}))
    assert 0.25 == books.value("pace_held_seconds_sum", profile="default")
    assert 1 == books.value("pace_held_seconds_count", profile="default")
