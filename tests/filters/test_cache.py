"""The response cache: what is answered from it, what is kept in it, and what never is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from filters.api import CONTINUE, Answer, Delta, Exchange, Finish, Need, Outcome
from filters.cache import CacheFilter
from filters.cache_record import Record, read_record, write_record
from filters.cache_settings import CacheConfig
from filters.dialects import DIALECTS
from filters.document import encode, parse
from filters.errors import FilterError
from filters.json_spans import spans
from filters.units import Duration, Size
from tests.exchanges import CHATS, answer, ask, exchange_of, reply_head
from tests.fakes import FakeClock, FakeStore, drive, fake_ports
from tests.golden_cases import GOLDEN


def without_usage(reply: bytes) -> bytes:
    return encode({key: value for key, value in parse(reply).items() if key != "usage"})


def without_stamps(dialect: str, reply: bytes) -> bytes:
    """Return the very bytes of a reply but for its ids and times."""
    plain = parse(reply)
    stamps = DIALECTS[dialect].stamps(plain, ask(dialect, "").prompt)
    kept = reply
    for start, end in sorted(spans(reply, stamps).values(), reverse=True):
        kept = kept[:start] + b"STAMP" + kept[end:]
    return kept


FIRST = CacheConfig(admit_after=1, any_temperature=True)


class Gateway:
    """A cache filter per exchange over one store, and the upstream it may spare."""

    def __init__(self, config: CacheConfig = FIRST) -> None:
        self.clock = FakeClock()
        self.store = FakeStore(self.clock)
        self.ports = fake_ports(self.clock, store=self.store)
        self.config = config

    def look_up(self, exchange: Exchange) -> tuple[CacheFilter, Any]:
        cache = CacheFilter(self.config, CacheFilter.prepare(self.config), self.ports)
        return cache, drive(cache.on_request(exchange))

    def send(
        self,
        exchange: Exchange,
        reply: bytes,
        *,
        content_type: str = "application/json",
        status: int = 200,
        outcome: Outcome = Outcome.COMPLETE,
    ) -> Any:
        """Look up, and on a miss let the upstream say `reply`; return the verdict."""
        cache, verdict = self.look_up(exchange)
        if verdict is not CONTINUE or not exchange.needs & Need.REPLY:
            return verdict
        exchange.reply_head = reply_head(content_type, status)
        drive(cache.on_response(exchange))
        assert [reply] == [delta.raw for delta in cache.on_delta(exchange, Delta(reply))]
        drive(cache.on_finish(exchange, outcome))
        return verdict


@pytest.mark.parametrize("dialect", CHATS)
def test_the_second_identical_request_is_answered_with_the_bytes_of_the_first(dialect: str) -> None:
    """But for id and time it is the provider's reply, with the headers of RFC 9111 and RFC 9211."""
    gateway = Gateway()
    first = ask(dialect, "why?")
    assert CONTINUE is gateway.send(first, answer(dialect))
    assert "MISS" == first.client_headers["x-cache"] == first.upstream_headers["x-cache"]
    assert "forebay; fwd=miss" == first.client_headers["cache-status"]
    gateway.clock.advance(2.5)
    hit = gateway.send(ask(dialect, "why?"), b"")
    assert isinstance(hit, Answer)
    assert (200, without_stamps(dialect, answer(dialect))) == (
        hit.status,
        without_stamps(dialect, hit.body),
    )
    headers = dict(hit.headers)
    status, _, ttl = headers.pop("cache-status").partition("ttl=")
    assert {"content-type": "application/json", "x-cache": "HIT", "age": "2"} == headers
    assert "forebay; hit; " == status
    ((ends_ns, _),) = gateway.store.values.values()
    assert (ends_ns - gateway.clock.monotonic_ns()) // 10**9 == int(ttl)


@pytest.mark.parametrize("dialect", CHATS)
def test_one_answer_serves_plain_and_streaming_clients(dialect: str) -> None:
    """What was stored plain is replayed as a stream, and what was stored from it reads the same."""
    gateway = Gateway()
    gateway.send(ask(dialect, "why?"), answer(dialect, "word " * 30))
    streamed = gateway.send(ask(dialect, "why?", stream=True), b"")
    assert isinstance(streamed, Answer)
    assert "text/event-stream" == streamed.headers["content-type"]
    other = Gateway()
    miss = ask(dialect, "why?", stream=True)
    other.send(miss, streamed.body, content_type="text/event-stream")
    plain = other.send(ask(dialect, "why?"), b"")
    assert isinstance(plain, Answer)
    reply = DIALECTS[dialect].read_reply(parse(plain.body))
    assert "word " * 30 == reply.text


def test_an_unreadable_record_is_a_miss_with_a_reason() -> None:
    """What somebody else wrote under the key is not served, and a good answer takes its place."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    (key,) = gateway.store.values
    drive(gateway.store.put(key, b"{}", 60))
    miss = ask("openai.chat", "why?")
    assert CONTINUE is gateway.send(miss, answer("openai.chat"))
    assert ("miss", "foreign") == (miss.notes["cache"], miss.notes["cache.unreadable"])
    assert isinstance(gateway.send(ask("openai.chat", "why?"), b""), Answer)


def test_a_record_whose_body_is_no_json_is_a_miss_with_a_reason() -> None:
    """A client that streams cannot be answered with it, nor can anybody from then on."""
    gateway = Gateway()
    first = ask("openai.chat", "why?")
    gateway.send(first, answer("openai.chat"))
    ((key, (_, stored)),) = gateway.store.values.items()
    record = read_record(stored)
    assert isinstance(record, Record)
    spoilt = msgspec.structs.replace(record, body=b"<html>", marks=())
    drive(gateway.store.put(key, write_record(spoilt), 60))
    miss = ask("openai.chat", "why?", stream=True)
    assert CONTINUE is gateway.look_up(miss)[1]
    assert ("miss", "damaged") == (miss.notes["cache"], miss.notes["cache.unreadable"])


def test_an_answer_from_the_future_serves_no_longer_than_another() -> None:
    """A clock that was an hour ahead is set right."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    ((key, (_, stored)),) = gateway.store.values.items()
    record = read_record(stored)
    assert isinstance(record, Record)
    ahead = msgspec.structs.replace(record, at=record.at + 3600, ends=record.ends + 3600)
    drive(gateway.store.put(key, write_record(ahead), 60))
    hit = gateway.look_up(ask("openai.chat", "why?"))[1]
    assert isinstance(hit, Answer)
    assert ("0", "forebay; hit; ttl=300") == (hit.headers["age"], hit.headers["cache-status"])


def test_an_answer_that_a_store_keeps_too_long_is_a_miss() -> None:
    """The record says itself when it ends."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    ((key, (_, record)),) = gateway.store.values.items()
    drive(gateway.store.put(key, record, 9999))
    gateway.clock.advance(300)
    miss = ask("openai.chat", "why?")
    assert CONTINUE is gateway.send(miss, b"")
    assert "cache.unreadable" not in miss.notes


def test_an_answer_ends_with_its_time() -> None:
    """After the TTL the upstream is asked again."""
    gateway = Gateway(CacheConfig(admit_after=1, any_temperature=True, ttl=Duration("10s")))
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    gateway.clock.advance(10)
    assert CONTINUE is gateway.send(ask("openai.chat", "why?"), b"")


def test_a_pattern_is_admitted_at_its_fifth_sighting_within_the_window() -> None:
    """What is asked once is not worth its place."""
    gateway = Gateway(CacheConfig())
    needs = []
    for _ in range(6):
        exchange = ask("openai.chat", "why?", temperature=0)
        gateway.look_up(exchange)
        needs.append(bool(exchange.needs & Need.REPLY))
    assert [False] * 4 + [True] * 2 == needs


def test_sightings_are_forgotten_after_the_window() -> None:
    """Five in two hours are not five in one."""
    gateway = Gateway(CacheConfig(admit_after=2, any_temperature=True))
    gateway.look_up(ask("openai.chat", "why?"))
    gateway.clock.advance(3600)
    late = ask("openai.chat", "why?")
    gateway.look_up(late)
    assert not late.needs & Need.REPLY


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "temperature"),
        ({"temperature": 0.7}, "temperature"),
        ({"temperature": 0.7, "seed": 1}, "temperature"),
        ({"temperature": False}, "temperature"),
        ({"temperature": 0}, None),
        ({"temperature": 0.0}, None),
        ({"seed": 1}, None),
        ({"temperature": 0, "n": 2}, "choices"),
        ({"temperature": 0, "n": 1}, None),
    ],
)
def test_only_deterministic_requests_are_looked_up(
    parameters: dict[str, Any], reason: str | None
) -> None:
    """Temperature 0, or none with a seed; and one choice."""
    gateway = Gateway(CacheConfig())
    exchange = ask("openai.chat", "why?", more=parameters)
    gateway.look_up(exchange)
    if reason is None:
        assert "MISS" == exchange.client_headers["x-cache"]
    else:
        assert "BYPASS" == exchange.client_headers["x-cache"]
        assert f"forebay; fwd=bypass; detail={reason}" == exchange.client_headers["cache-status"]
        assert [] == gateway.store.calls


def test_a_request_that_rests_on_the_providers_memory_is_not_looked_up() -> None:
    """A previous response's id says nothing about what was said."""
    gateway = Gateway()
    exchange = ask("openai.responses", "and?", more={"previous_response_id": "r1"})
    gateway.look_up(exchange)
    assert "stateful" == exchange.notes["cache.why"]


def test_embeddings_are_deterministic() -> None:
    """The same text has the same vector, whatever the cache's rule for temperatures."""
    gateway = Gateway(CacheConfig(admit_after=1))
    body = b'{"model": "e", "input": "text"}'
    vector = (
        b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1]}],'
        b'"model":"e","usage":{"prompt_tokens":1,"total_tokens":1}}'
    )
    gateway.send(exchange_of("openai.embeddings", body, "/v1/embeddings"), vector)
    hit = gateway.send(exchange_of("openai.embeddings", body, "/v1/embeddings"), b"")
    assert isinstance(hit, Answer)
    assert vector == hit.body


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"not json", "incomplete"),
        (b"[]", "None"),
        (answer("openai.chat").replace(b'"stop"', b'"length"'), "length"),
        (answer("openai.chat").replace(b'"stop"', b'"content_filter"'), "filtered"),
        (answer("openai.chat").replace(b'"stop"', b"null"), "None"),
        (answer("openai.chat", tokens=257), "tokens"),
        (without_usage(answer("openai.chat", "word " * 300)), "tokens"),
        (answer("openai.chat")[:-1] + b',"error":{"message":"overloaded"}}', "error"),
    ],
)
def test_what_is_no_whole_short_answer_is_not_kept(reply: bytes, why: str) -> None:
    """Cut, filtered, unfinished, failed and long answers are wrong or wasteful a second time."""
    gateway = Gateway()
    exchange = ask("openai.chat", "why?")
    gateway.send(exchange, reply)
    assert {} == gateway.store.values
    assert why == exchange.notes["cache.skip"]


@pytest.mark.parametrize(
    "case",
    [
        "anthropic.messages/server-tools-done",
        "gemini.generate/provider-tools",
        "openai.chat/tool-choice",
        "openai.responses/hosted-tools",
    ],
)
def test_what_rests_on_a_tool_is_not_kept(case: str) -> None:
    """A search, a program that ran, a call that was forced: all end as any answer does."""
    gateway = Gateway()
    exchange = ask(case.partition("/")[0], "why?")
    reply = (GOLDEN / case / "reply.json").read_bytes()
    assert Finish.STOP is exchange.dialect.read_reply(parse(reply)).finish
    gateway.send(exchange, reply)
    assert {} == gateway.store.values
    assert "tool" == exchange.notes["cache.skip"]


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    ("words", "member", "kept"), [(6_000, 1, 1), (1, 30_000, 1), (6_000, 30_000, 0)]
)
def test_what_would_be_replayed_as_megabytes_is_not_kept(
    dialect: str, words: int, member: int, kept: int
) -> None:
    """A long member is repeated in each of the pieces of a long text."""
    gateway = Gateway()
    reply = parse(answer(dialect, "word " * words)) | {"x": "y" * member}
    gateway.send(ask(dialect, "why?"), encode(reply))
    assert kept == len(gateway.store.values)


@pytest.mark.parametrize("status", [201, 206, 400, 429, 500, 503])
def test_only_a_success_is_kept(status: int) -> None:
    """Errors and the proxy's own replies are no answers."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"), status=status)
    assert {} == gateway.store.values


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.COMPLETE])
def test_only_what_ended_well_is_kept(outcome: Outcome) -> None:
    """Whoever left first leaves half an answer."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"), outcome=outcome)
    assert {} == gateway.store.values


def test_a_stream_without_its_end_is_not_kept() -> None:
    """A stream that just stops may have lost its tail."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat", "word " * 30))
    whole = gateway.send(ask("openai.chat", "why?", stream=True), b"")
    assert isinstance(whole, Answer)
    other = Gateway()
    cut = whole.body.replace(b"data: [DONE]\n\n", b"")
    assert cut != whole.body
    other.send(ask("openai.chat", "why?", stream=True), cut, content_type="text/event-stream")
    assert {} == other.store.values


def test_an_answer_of_too_many_bytes_is_let_go_early() -> None:
    """Memory is bounded while the answer is collected, not only when it is stored."""
    gateway = Gateway(CacheConfig(admit_after=1, any_temperature=True, max_answer=Size("1KiB")))
    exchange = ask("openai.chat", "why?")
    gateway.send(exchange, answer("openai.chat", "x" * 2000))
    assert "size" == exchange.notes["cache.skip"]
    huge = ask("openai.chat", "why?")
    gateway.send(huge, answer("openai.chat", "x" * 200_000))
    assert "size" == huge.notes["cache.skip"]
    assert {} == gateway.store.values


@pytest.mark.parametrize(
    ("directive", "status"),
    [
        ("no-cache", "forebay; fwd=request"),
        ("max-age=1", "forebay; fwd=request"),
        ("min-fresh=299", "forebay; fwd=request"),
        ("max-stale=60, max-age=60, min-fresh=60", "forebay; hit; ttl="),
        ("only-if-cached", "forebay; hit; ttl="),
    ],
)
def test_cache_status_says_why_a_request_went_on(directive: str, status: str) -> None:
    """RFC 9211: there was an answer, but none the client takes; or there was none."""
    gateway = Gateway()
    missed = ask("openai.chat", "why?", headers={"cache-control": "max-age=1"})
    gateway.send(missed, answer("openai.chat"))
    assert "forebay; fwd=miss" == missed.client_headers["cache-status"]
    gateway.clock.advance(5)
    exchange = ask("openai.chat", "why?", headers={"cache-control": directive})
    _, verdict = gateway.look_up(exchange)
    headers = verdict.headers if isinstance(verdict, Answer) else exchange.client_headers
    assert headers["cache-status"].startswith(status)


@pytest.mark.parametrize(
    ("headers", "options", "failing", "x_cache", "detail"),
    [
        ("only-if-cached", {}, False, "MISS", "only-if-cached"),
        ("only-if-cached, no-cache", {}, False, "MISS", "only-if-cached"),
        ("only-if-cached, no-store", {}, False, "BYPASS", "no-store"),
        ("only-if-cached", {"more": {"n": 2}}, False, "BYPASS", "choices"),
        ("only-if-cached", {}, True, "BYPASS", "store"),
    ],
)
def test_who_wants_only_what_is_stored_is_told_that_nothing_is(
    headers: str, options: dict[str, Any], failing: bool, x_cache: str, detail: str
) -> None:
    """RFC 9111, 5.2.1.7: 504, whatever the reason; nothing went on, and nothing is counted."""
    gateway = Gateway()
    gateway.store.failing = failing
    exchange = ask("openai.chat", "why?", headers={"cache-control": headers}, **options)
    with pytest.raises(FilterError) as refused:
        gateway.look_up(exchange)
    assert 504 == refused.value.status
    told = exchange.client_headers
    assert (x_cache, f"forebay; detail={detail}") == (told["x-cache"], told["cache-status"])
    assert {} == gateway.store.sightings


def test_an_answer_that_calls_a_tool_is_kept_only_where_the_profile_says_so() -> None:
    """A call that is made again may do something twice; declared tools alone do nothing."""
    reply = parse(answer("openai.chat"))
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    choice = reply["choices"][0]
    choice |= {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": [call]}}
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    for allowed, body, kept in (
        (False, answer("openai.chat"), True),
        (False, encode(reply), False),
        (True, encode(reply), True),
    ):
        gateway = Gateway(CacheConfig(admit_after=1, any_temperature=True, tools=allowed))
        gateway.send(ask("openai.chat", "why?", more=tools), body)
        assert kept is isinstance(
            gateway.look_up(ask("openai.chat", "why?", more=tools))[1], Answer
        )


LONG = "word " * 500
TOOL_RESULT = {"role": "tool", "tool_call_id": "1", "content": "r"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}


@pytest.mark.parametrize(
    ("messages", "ttl_s"),
    [
        ([{"role": "user", "content": "q"}], 300),
        ([{"role": "system", "content": LONG}, {"role": "user", "content": "q"}], 300),
        ([{"role": "user", "content": LONG}], 120),
        ([{"role": "assistant", "content": "a"}, {"role": "user", "content": "q"}], 120),
        ([TOOL_RESULT, {"role": "user", "content": "q"}], 120),
        ([{"role": "user", "content": [IMAGE]}], 120),
    ],
    ids=["question", "system", "document", "conversation", "tool", "image"],
)
def test_what_rests_on_more_than_a_question_is_kept_for_a_shorter_time(
    messages: list[Any], ttl_s: int
) -> None:
    """What it rests on may be another soon."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "", more={"messages": messages}), answer("openai.chat"))
    ((ends_ns, _),) = gateway.store.values.values()
    left_s = (ends_ns - gateway.clock.monotonic_ns()) / 1e9
    assert ttl_s * 0.9 <= left_s <= ttl_s


def test_a_shorter_ttl_holds_for_what_is_stored_already() -> None:
    """What the settings say counts, not what they said when it was stored."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    gateway.config = CacheConfig(admit_after=1, any_temperature=True, ttl=Duration("10s"))
    gateway.clock.advance(9)
    hit = gateway.look_up(ask("openai.chat", "why?"))[1]
    assert "forebay; hit; ttl=1" == hit.headers["cache-status"]
    gateway.clock.advance(1)
    assert CONTINUE is gateway.look_up(ask("openai.chat", "why?"))[1]


@pytest.mark.parametrize(
    ("directive", "x_cache", "stored"),
    [
        ("no-store", "BYPASS", False),
        ("no-cache", "MISS", True),
        ("max-age=1", "MISS", True),
        ("max-age=60", "HIT", None),
    ],
)
def test_the_clients_cache_control_is_honoured(
    directive: str, x_cache: str, stored: bool | None
) -> None:
    """RFC 9111, 5.2.1: no-store keeps out, no-cache asks again, max-age limits the age."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat", "old"))
    gateway.clock.advance(5)
    exchange = ask("openai.chat", "why?", headers={"cache-control": directive})
    verdict = gateway.send(exchange, answer("openai.chat", "fresh"))
    headers = verdict.headers if isinstance(verdict, Answer) else exchange.client_headers
    assert x_cache == headers["x-cache"]
    later = gateway.send(ask("openai.chat", "why?"), b"")
    assert isinstance(later, Answer)
    assert (b"fresh" if stored else b"old") in later.body


def test_a_store_that_fails_is_a_bypass() -> None:
    """Cache down is a slower answer, never an error."""
    gateway = Gateway()
    gateway.store.failing = True
    exchange = ask("openai.chat", "why?")
    assert CONTINUE is gateway.send(exchange, answer("openai.chat"))
    assert "BYPASS" == exchange.client_headers["x-cache"]
    assert "forebay; fwd=bypass; detail=store" == exchange.client_headers["cache-status"]
    assert not exchange.needs & Need.REPLY


def test_a_record_nobody_can_read_is_a_miss() -> None:
    """Whatever lies in the store, the upstream answers."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat"))
    for key, (ends_ns, _) in list(gateway.store.values.items()):
        gateway.store.values[key] = (ends_ns, b"\x00rubbish")
    exchange = ask("openai.chat", "why?")
    assert CONTINUE is gateway.send(exchange, answer("openai.chat"))
    assert "MISS" == exchange.client_headers["x-cache"]


def test_a_hit_says_what_quality_it_was_answered_with() -> None:
    """A quantised model's answer does not become a full one by being stored."""
    gateway = Gateway()
    exchange = ask("openai.chat", "总结")
    exchange.client_headers["x-model-quality"] = "BEST_EFFORT"
    gateway.send(exchange, answer("openai.chat"))
    hit = gateway.send(ask("openai.chat", "总结"), b"")
    assert isinstance(hit, Answer)
    assert "BEST_EFFORT" == hit.headers["x-model-quality"]


def test_a_hit_counts_what_it_saved() -> None:
    """The tokens the upstream counted the first time are those it was spared."""
    gateway = Gateway()
    gateway.send(ask("openai.chat", "why?"), answer("openai.chat", tokens=7))
    exchange = ask("openai.chat", "why?")
    gateway.send(exchange, b"")
    assert (5, 7) == (exchange.notes["saved.input_tokens"], exchange.notes["saved.output_tokens"])
