"""What is answered from the store, how it reads, and what is never kept."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any, Final

import aiohttp
import pytest

from filters.dialects import DIALECTS
from filters.json_spans import spans
from tests.calls import Ask, Caller, Reply, ask_for, streamed_text, text_of
from tests.exchanges import CHATS
from tests.exchanges import ask as exchange
from tests.gateway import Gateway, Seen

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
CHAT: Final = "openai.chat"
every_dialect = pytest.mark.parametrize("dialect", CHATS)


async def twice(
    gateway: Gateway, call: Caller, first: Ask, second: Ask | None = None, **commands: str
) -> tuple[Reply, Reply, Seen]:
    """Ask on the faq profile, with `commands` the first time; return what the second time did."""
    with gateway.watch():
        before = await call(first, "faq", None, **commands)
    with gateway.watch() as seen:
        after = await call(second or first, "faq")
    return before, after, seen


def unstamped(dialect: str, reply: bytes) -> bytes:
    """Return the very bytes of a reply but for its ids and times."""
    plain = json.loads(reply)
    stamps = DIALECTS[dialect].stamps(plain, exchange(dialect, "").prompt)
    for start, end in sorted(spans(reply, stamps).values(), reverse=True):
        reply = reply[:start] + reply[end:]
    return reply


# --- Hits ----------------------------------------------------------------------------------------


@every_dialect
async def test_a_hit_says_that_it_is_one(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """The stored reply comes, with an id and a time of its own, and with what headers say of it."""
    miss, hit, seen = await twice(gateway, call, ask_for(dialect, question))
    assert ("MISS", "forebay; fwd=miss") == (miss.cache, miss.headers["cache-status"])
    assert "age" not in miss.headers
    assert ("HIT", 200, []) == (hit.cache, hit.status, seen.received)
    assert unstamped(dialect, miss.body) == unstamped(dialect, hit.body)
    if dialect != "gemini.generate" or b"responseId" in miss.body:
        assert miss.body != hit.body
    status, _, ttl = hit.headers["cache-status"].partition("ttl=")
    assert "forebay; hit; " == status
    assert 269 <= int(ttl) + int(hit.headers["age"]) <= 300
    told = ("x-model-quality", "x-forebay-profile", "content-type")
    assert ["FULL", "faq", "application/json"] == [hit.headers[name] for name in told]


@every_dialect
@pytest.mark.parametrize("stream_first", [False, True], ids=["kept-plain", "kept-streamed"])
async def test_an_answer_is_delivered_as_the_client_asked(
    gateway: Gateway, call: Caller, question: str, dialect: str, stream_first: bool
) -> None:
    """Kept from a plain reply it streams, and kept from a stream it comes plain."""
    plain, stream = (ask_for(dialect, question, stream=value) for value in (False, True))
    asks = (stream, plain) if stream_first else (plain, stream)
    replies = await twice(gateway, call, *asks)
    streamed, whole = replies[:2] if stream_first else (replies[1], replies[0])
    assert "HIT" == replies[1].cache
    assert "text/event-stream" == streamed.headers["content-type"].partition(";")[0]
    assert "application/json" == whole.headers["content-type"]
    assert text_of(dialect, whole.body) == streamed_text(dialect, stream, streamed)


@pytest.mark.parametrize("other", ["plain", "sse"])
@pytest.mark.parametrize("array_first", [False, True])
async def test_geminis_array_is_a_third_delivery_of_the_same_answer(
    gateway: Gateway, call: Caller, question: str, other: str, array_first: bool
) -> None:
    """Without `alt=sse` its stream is one JSON array."""
    array = ask_for("gemini.generate", question, array=True)
    single = ask_for("gemini.generate", question, stream=other == "sse")
    asks = (array, single) if array_first else (single, array)
    replies = await twice(gateway, call, *asks)
    came, told = replies[:2] if array_first else (replies[1], replies[0])
    text = (
        streamed_text("gemini.generate", single, told)
        if other == "sse"
        else text_of("gemini.generate", told.body)
    )
    assert "HIT" == replies[1].cache
    assert "application/json" == came.headers["content-type"]
    assert text == streamed_text("gemini.generate", array, came)


async def test_white_space_makes_no_other_question(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Runs of spaces and line ends in prose, and the body's own formatting, are not its meaning."""
    first = ask_for(CHAT, f"{question}  Be\nbrief.")
    body = json.dumps(json.loads(ask_for(CHAT, f"{question} Be brief. ").body), indent=4)
    _, again, _ = await twice(gateway, call, first, Ask(first.path, body.encode()))
    assert "HIT" == again.cache


@pytest.mark.parametrize(
    "other",
    [
        {"question": "notable"},
        {"question": "no\ttable?"},
        {"system": "Be brief."},
        {"temperature": 0.5},
        {"seed": 2},
        {"more": {"model": "another"}},
        {"more": {"tools": [{"type": "function", "function": {"name": "f"}}]}},
        {"more": {"logprobs": True}},
    ],
    ids=str,
)
async def test_whatever_changes_the_meaning_makes_another_question(
    gateway: Gateway, call: Caller, question: str, other: dict[str, Any]
) -> None:
    """Words, system prompt, model, tools and every parameter are in the key."""
    options = {"seed": 1, **other}
    words = options.pop("question", "no table")
    first = ask_for(CHAT, f"{question} no table", seed=1)
    second = ask_for(CHAT, f"{question} {words}", **options)
    _, again, _ = await twice(gateway, call, first, second)
    assert "MISS" == again.cache


async def test_profiles_share_no_answers(gateway: Gateway, call: Caller, question: str) -> None:
    """Another profile may have prepared the prompt in another way."""
    asked = ask_for(CHAT, question, temperature=0)
    await twice(gateway, call, asked)
    assert "MISS" == (await call(asked)).cache


# --- Cache-Control -------------------------------------------------------------------------------


async def test_no_store_bypasses_and_keeps_nothing(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """Neither this answer nor the sighting counts."""
    asked = ask_for(CHAT, question)
    with gateway.watch():
        first = await call(asked, "faq", {"cache-control": "no-store"})
    second = await call(asked, "faq")
    assert ("BYPASS", "forebay; fwd=bypass; detail=no-store") == (
        first.cache,
        first.headers["cache-status"],
    )
    assert "MISS" == second.cache


async def test_no_cache_asks_the_model_again_and_keeps_what_it_says(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """A stored answer is passed over, and the next one takes its place."""
    asked = ask_for(CHAT, question)
    await twice(gateway, call, asked)
    with gateway.watch() as seen:
        fresh = await call(asked, "faq", {"cache-control": "no-cache"}, tokens="7")
    hit = await call(asked, "faq")
    assert (1, "MISS") == (len(seen.received), fresh.cache)
    assert "forebay; fwd=request" == fresh.headers["cache-status"]
    assert ("HIT", unstamped(CHAT, fresh.body)) == (hit.cache, unstamped(CHAT, hit.body))


@every_dialect
async def test_who_wants_only_what_is_stored_is_told_so_in_the_providers_words(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """504 where there is nothing, without a call of the model; the stored answer where there is."""
    asked, only = ask_for(dialect, question), {"cache-control": "only-if-cached"}
    with gateway.watch() as seen:
        refused = await call(asked, "faq", only)
    assert (504, "MISS", []) == (refused.status, refused.cache, seen.received)
    assert "forebay; detail=only-if-cached" == refused.headers["cache-status"]
    expected = DIALECTS[dialect].error(504, "no stored answer fits, and the request wants no other")
    assert json.loads(expected) == refused.json
    await twice(gateway, call, asked)
    assert "HIT" == (await call(asked, "faq", only)).cache


# --- What may not be answered twice --------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "options", "detail"),
    [
        (CHAT, {"temperature": 0.7}, "temperature"),
        (CHAT, {}, "temperature"),
        (CHAT, {"temperature": 0, "more": {"n": 2}}, "choices"),
        ("gemini.generate", {"temperature": 1}, "temperature"),
        ("anthropic.messages", {"temperature": 1}, "temperature"),
        (
            "openai.responses",
            {"temperature": 0, "more": {"previous_response_id": "resp_1"}},
            "stateful",
        ),
    ],
)
async def test_the_default_profile_bypasses_with_a_reason(
    call: Caller, question: str, dialect: str, options: dict[str, Any], detail: str
) -> None:
    """What would vary, or depends on what a provider remembers, is never looked up."""
    reply = await call(ask_for(dialect, question, **options))
    assert ("BYPASS", f"forebay; fwd=bypass; detail={detail}") == (
        reply.cache,
        reply.headers["cache-status"],
    )


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 7}], ids=str)
async def test_the_default_profile_takes_what_is_deterministic(
    call: Caller, question: str, options: dict[str, Any]
) -> None:
    """Temperature 0, or a seed and no temperature."""
    assert "MISS" == (await call(ask_for(CHAT, question, **options))).cache


# --- What is never kept --------------------------------------------------------------------------


@pytest.fixture
def direct(http: aiohttp.ClientSession, gateway: Gateway) -> Caller:
    """Call the upstream itself."""
    return Caller(http, gateway.upstream.url)


@every_dialect
@pytest.mark.parametrize("status", [400, 429, 500, 503, 529])
async def test_an_upstreams_error_passes_as_it_is_and_is_not_kept(
    gateway: Gateway, call: Caller, direct: Caller, question: str, dialect: str, status: int
) -> None:
    """Status and body are the upstream's own; the next client asks again."""
    asked = ask_for(dialect, question)
    expected = await direct(asked, status=str(status))
    failed, again, _ = await twice(gateway, call, asked, status=str(status))
    assert (status, expected.body) == (failed.status, failed.body)
    assert (200, "MISS") == (again.status, again.cache)


@every_dialect
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("close", ["0", "40", "300", "3 chunks"])
async def test_an_answer_that_was_cut_off_is_not_kept(
    gateway: Gateway, call: Caller, question: str, dialect: str, stream: bool, close: str
) -> None:
    """The client learns it too: from a broken connection, or a 5xx if no byte had gone out yet."""
    if close == "3 chunks" and not stream:
        close = "301"  # a plain reply is one chunk
    asked = ask_for(dialect, question, stream=stream)
    cut, again, seen = await twice(gateway, call, asked, close=close)
    if cut.status != 200:
        said = {502: "the model server broke off its answer"}.get(cut.status)
        assert (said or "no model server can take the request") == cut.json["error"]["message"]
    assert cut.cut or cut.status in (502, 503)
    assert ("MISS", 1) == (again.cache, len(seen.received))


@every_dialect
async def test_a_stream_without_its_last_event_is_not_kept(
    gateway: Gateway, call: Caller, question: str, dialect: str
) -> None:
    """The connection ended as it should, but the answer may be half of one."""
    asked = ask_for(dialect, question, stream=True)
    half, again, seen = await twice(gateway, call, asked, no_done="1")
    assert (200, False) == (half.status, half.cut)
    assert ("MISS", 1) == (again.cache, len(seen.received))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_compressed_answer_passes_and_is_not_kept(
    gateway: Gateway, call: Caller, question: str, stream: bool
) -> None:
    """Its bytes say nothing without unpacking them; the client unpacks them itself."""
    asked = ask_for(CHAT, question, stream=stream)
    packed, again, _ = await twice(gateway, call, asked, gzip="1")
    unpacked = gzip.decompress(packed.body)
    plain = Reply(packed.status, packed.headers, unpacked)
    text = streamed_text(CHAT, asked, plain) if stream else text_of(CHAT, unpacked)
    assert "gzip" == packed.headers["content-encoding"]
    assert question in text
    assert "MISS" == again.cache


async def test_the_upstream_is_asked_for_plain_bytes_where_they_will_be_read(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """A client's Accept-Encoding goes on only where Forebay does not look at the reply."""
    offer = {"accept-encoding": "gzip"}
    asked = ask_for(CHAT, question, temperature=0)
    with gateway.watch(exchanges=2) as seen:
        await call(asked, "raw", offer)
        await call(asked, "faq", offer)
    assert ["gzip", None] == [each.headers.get("accept-encoding") for each in seen.received]


@pytest.mark.parametrize(("tokens", "kept"), [(256, True), (257, False)])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_an_answer_of_more_than_256_tokens_is_not_kept(
    gateway: Gateway, call: Caller, question: str, stream: bool, tokens: int, kept: bool
) -> None:
    """Streams are counted by what they say, not by their bytes."""
    more = {"stream_options": {"include_usage": True}} if stream else {}
    asked = ask_for(CHAT, question, stream=stream, more=more)
    _, again, _ = await twice(gateway, call, asked, tokens=str(tokens))
    assert ("HIT" if kept else "MISS") == again.cache


async def test_an_answer_that_hit_its_limit_is_not_kept(
    gateway: Gateway, call: Caller, question: str
) -> None:
    """It stopped because it had to."""
    _, again, _ = await twice(gateway, call, ask_for(CHAT, question, more={"max_tokens": 3}))
    assert "MISS" == again.cache


# --- Streams as they are found -------------------------------------------------------------------


@every_dialect
@pytest.mark.parametrize("line_end", ["lf", "crlf"])
@pytest.mark.parametrize("size", [5, 61])
async def test_a_stream_cut_anywhere_passes_byte_for_byte_and_is_kept(
    gateway: Gateway,
    call: Caller,
    direct: Caller,
    question: str,
    dialect: str,
    line_end: str,
    size: int,
) -> None:
    """Cuts inside events, line ends and characters change nothing, nor do comments between."""
    asked = ask_for(dialect, question, stream=True)
    stream = b": comment\n\n" + (await direct(asked, tokens="6")).body.replace(b"\r\n", b"\n")
    if line_end == "crlf":
        stream = stream.replace(b"\n", b"\r\n")
    cuts = [stream[:size], *(stream[at : at + 61] for at in range(size, len(stream), 61))]
    sse = ",".join(base64.b64encode(cut).decode() for cut in cuts)
    passed, again, _ = await twice(gateway, call, asked, sse=sse)
    assert stream == passed.body
    assert ("MISS", "HIT") == (passed.cache, again.cache)
    assert streamed_text(dialect, asked, passed) == streamed_text(dialect, asked, again)


@pytest.mark.parametrize(
    "body", [b"", b"\n", b"data: not json\n\n", b"data: {}\n\n", b"event: x", b"\xff\xfe\n\n"]
)
async def test_a_stream_that_means_nothing_passes_and_is_not_kept(
    gateway: Gateway, call: Caller, question: str, body: bytes
) -> None:
    """What cannot be read reaches the client all the same, where nothing was said with an error."""
    asked = ask_for(CHAT, question, stream=True)
    sse = base64.b64encode(body).decode()
    passed, again, _ = await twice(gateway, call, asked, sse=sse)
    assert (200, body) == (passed.status, passed.body[: len(body)])
    assert (0 if body.startswith(b"data: ") else 1) == passed.body.count(b'data: {"error":')
    assert "MISS" == again.cache


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("behind", "asked_again"),
    [
        (b"garbage", "HIT"),
        (b"\xff\xfe\x00\n\n", "HIT"),
        (b": comment\n\n", "HIT"),
        (b"event: x", "HIT"),
        (b"data: {not json\n\n", "MISS"),
    ],
)
async def test_what_stands_behind_the_end_of_a_stream_passes(
    gateway: Gateway,
    call: Caller,
    direct: Caller,
    question: str,
    behind: bytes,
    asked_again: str,
    *,
    apart: bool,
) -> None:
    """The answer in front of it is kept without it; not where it is an event that nobody can read.

    Whether it comes with the end or by itself.
    """
    asked = ask_for(CHAT, question, stream=True)
    whole = await direct(asked)
    stream = whole.body
    assert stream.endswith(b"data: [DONE]\n\n")
    cuts = [stream, behind] if apart else [stream + behind]
    sse = ",".join(base64.b64encode(cut).decode() for cut in cuts)
    passed, again, _ = await twice(gateway, call, asked, sse=sse)
    assert (200, stream + behind) == (passed.status, passed.body)
    assert ("MISS", asked_again) == (passed.cache, again.cache)
    assert streamed_text(CHAT, asked, whole) == streamed_text(CHAT, asked, again)
    assert again.body.endswith(b"data: [DONE]\n\n")
