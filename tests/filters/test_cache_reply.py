"""A stored answer is a reply of its own each time, in the words of whoever asks."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final

import pytest

from filters.api import CONTINUE, Answer, Delta, Dialect, Exchange, Outcome, Reply, Usage
from filters.cache import CacheFilter
from filters.cache_settings import CacheConfig
from filters.dialects import DIALECTS
from filters.document import encode, parse
from tests.exchanges import CHATS, answer, ask, reply_head
from tests.fakes import FakeClock, FakeStore, drive, fake_ports
from tests.golden_cases import GOLDEN

TALKS: Final = [name for name in CHATS if name != "openai.completions"]
"""Dialects in which one asks and the other answers."""


class Kept:
    """A cache, and the answers it gives."""

    def __init__(self, **settings: Any) -> None:
        self.config = CacheConfig(admit_after=1, any_temperature=True, **settings)
        self.clock = FakeClock(1_700_000_000.0)
        self.ports = fake_ports(self.clock, store=FakeStore(self.clock))

    def _filter(self) -> CacheFilter:
        return CacheFilter(self.config, CacheFilter.prepare(self.config), self.ports)

    def keep(self, exchange: Exchange, reply: bytes, took_s: float = 0.0) -> None:
        cache = self._filter()
        assert CONTINUE is drive(cache.on_request(exchange))
        exchange.reply_head = reply_head()
        drive(cache.on_response(exchange))
        list(cache.on_delta(exchange, Delta(reply)))
        self.clock.advance(took_s)
        drive(cache.on_finish(exchange, Outcome.COMPLETE))

    def hit(self, exchange: Exchange) -> Answer:
        found = self.ask(exchange)
        assert isinstance(found, Answer), exchange.notes
        return found

    def ask(self, exchange: Exchange) -> Any:
        cache = self._filter()
        verdict = drive(cache.on_request(exchange))
        drive(cache.on_finish(exchange, Outcome.GONE))
        return verdict


def bare(dialect: Dialect, body: bytes) -> tuple[dict[Any, Any], Any]:
    """Return what a reply has of stamps, and all else."""
    plain = parse(body)
    stamps = dialect.stamps(plain, ask(dialect.name, "").prompt)
    found = {}
    for path in stamps:
        parent = plain
        for step in path[:-1]:
            parent = parent[step]
        found[path] = parent.pop(path[-1])
    return found, plain


# --- Ids and times -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "id_form"),
    [
        ("openai.chat/plain", "chatcmpl-[0-9a-f]{32}"),
        ("openai.completions/plain", "cmpl-[0-9a-f]{32}"),
        ("openai.responses/plain", "(?:resp|msg)_[0-9a-f]{32}"),
        ("anthropic.messages/plain", "msg_[0-9a-f]{32}"),
        ("gemini.generate/plain", "[0-9a-f]{32}"),
    ],
)
def test_every_hit_has_an_id_of_its_own_and_the_time_of_its_own(case: str, id_form: str) -> None:
    """All else is the stored reply, and the id is of the same kind."""
    dialect = DIALECTS[case.partition("/")[0]]
    reply = (GOLDEN / case / "reply.json").read_bytes()
    kept = Kept()
    kept.keep(ask(dialect.name, "why?"), reply)
    kept.clock.advance(7)
    first, rest = bare(dialect, reply)
    ids = [str(value) for value in first.values() if isinstance(value, str)]
    for _ in range(2):
        stamps, other = bare(dialect, kept.hit(ask(dialect.name, "why?")).body)
        assert (first.keys(), rest) == (stamps.keys(), other)
        for path, value in stamps.items():
            if isinstance(value, str) and path[-1] != "createTime":
                assert re.fullmatch(id_form, value), value
                ids.append(value)
            elif isinstance(value, int | float):
                assert 1_700_000_007 == value
    assert len(ids) == len(set(ids)) >= 3


@pytest.mark.parametrize("dialect", CHATS)
def test_all_events_of_a_stream_name_one_id(dialect: str) -> None:
    """It is one reply."""
    reply = parse(answer(dialect, "word " * 30))
    name = "responseId" if dialect == "gemini.generate" else "id"
    reply[name] = "chatcmpl-old_one"
    kept = Kept()
    kept.keep(ask(dialect, "why?"), encode(reply))
    stream = kept.hit(ask(dialect, "why?", stream=True)).body
    assert b"old_one" not in stream
    ids = set(re.findall(rb'"(?:id|responseId)":"(chatcmpl-[0-9a-f]{32})"', stream))
    assert 1 == len(ids)


@pytest.mark.parametrize(
    ("dialect", "store", "kept_id"),
    [
        ("openai.chat", True, True),
        ("openai.chat", False, False),
        ("openai.responses", True, True),
        ("openai.responses", None, True),
        ("openai.responses", False, False),
    ],
)
def test_the_id_of_a_reply_that_the_provider_keeps_stays(
    dialect: str, store: bool | None, kept_id: bool
) -> None:
    """A client may go on with it: `previous_response_id` must name what is there."""
    reply = parse(answer(dialect)) | {"id": "resp_kept"}
    exchanges = [ask(dialect, "why?", more={"store": store}) for _ in range(2)]
    cache = Kept()
    cache.keep(exchanges[0], encode(reply))
    assert kept_id is (b"resp_kept" in cache.hit(exchanges[1]).body)


def test_items_beside_reasoning_keep_their_ids() -> None:
    """Encrypted reasoning is bound to them."""
    reply = parse(answer("openai.responses"))
    reply["output"].insert(0, {"type": "reasoning", "id": "rs_1", "summary": []})
    cache = Kept()
    cache.keep(ask("openai.responses", "why?"), encode(reply))
    hit = parse(cache.hit(ask("openai.responses", "why?")).body)
    assert ["rs_1", "m1"] == [item["id"] for item in hit["output"]]
    assert reply["id"] != hit["id"]


def test_the_time_of_vertex_ai_is_written_as_it_writes_it() -> None:
    """RFC 3339, in UTC."""
    reply = parse(answer("gemini.generate")) | {"createTime": "2024-01-01T00:00:00.123456Z"}
    cache = Kept()
    cache.keep(ask("gemini.generate", "why?"), encode(reply))
    hit = parse(cache.hit(ask("gemini.generate", "why?")).body)
    assert "2023-11-14T22:13:20Z" == hit["createTime"]


def test_a_text_that_is_the_id_stays() -> None:
    """Only the id's own place is written anew."""
    reply = parse(answer("openai.chat", '"id":"chatcmpl-1"')) | {"id": "chatcmpl-1"}
    reply["choices"][0]["id"] = "chatcmpl-1"
    cache = Kept()
    cache.keep(ask("openai.chat", "why?"), encode(reply))
    hit = parse(cache.hit(ask("openai.chat", "why?")).body)
    assert reply["choices"] == hit["choices"]
    assert "chatcmpl-1" != hit["id"]


def test_a_hit_says_how_long_the_model_took() -> None:
    """That is what the client was spared."""
    cache = Kept()
    cache.keep(ask("openai.chat", "why?"), answer("openai.chat"), took_s=1.25)
    exchange = ask("openai.chat", "why?")
    cache.hit(exchange)
    assert 1250 == exchange.notes["saved.ms"]
    assert str(exchange.notes["cache.key"]).startswith("default:tenant:")


# --- Across dialects -----------------------------------------------------------------------------


def plainly(dialect: str, **options: Any) -> Exchange:
    """Ask a question that every dialect can ask."""
    more = options.pop("more", {})
    if dialect == "gemini.generate":
        config = {"temperature": 0, "maxOutputTokens": 100}
        more = {"generationConfig": config | more.pop("generationConfig", {})} | more
    else:
        limit = {"openai.responses": "max_output_tokens"}.get(dialect, "max_tokens")
        more = {"temperature": 0, limit: 100} | more
    return ask(dialect, "why?", more=more, **options)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(TALKS, 2)])
def test_a_plain_question_is_answered_in_every_dialect(
    first: str, second: str, stream: bool
) -> None:
    """Text, model and tokens are those of the stored answer; the words are the asking client's."""
    cache = Kept(across_dialects=True)
    cache.keep(plainly(first, system="Be brief."), answer(first, "word " * 30))
    exchange = plainly(second, system="Be brief.", stream=stream)
    hit = cache.hit(exchange)
    body: bytes | None = hit.body
    dialect = DIALECTS[second]
    if stream:
        framer = dialect.framer(hit.headers["content-type"], exchange.prompt)
        assert framer is not None
        body = dialect.assemble([*framer.feed(hit.body), *framer.close()])
        assert body is not None
    reply = dialect.read_reply(parse(body or b""))
    usage = reply.usage
    if stream and second == "openai.chat":  # which the client did not ask for
        usage = usage or Usage(5, 3)
    expected = ("word " * 30, "stop", "m", Usage(5, 3), False)
    assert expected == (reply.text, reply.finish, reply.model, usage, reply.has_tool)


@pytest.mark.parametrize("dialect", TALKS)
def test_dialects_share_nothing_unless_the_profile_says_so(dialect: str) -> None:
    """By default a reply is one provider's."""
    cache = Kept()
    cache.keep(plainly(dialect), answer(dialect))
    for other in set(TALKS) - {dialect}:
        assert CONTINUE is cache.ask(plainly(other))


@pytest.mark.parametrize("dialect", TALKS)
@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"top_k": 3},
        {"unknown": None},
        {"metadata": {"user_id": "u"}},
    ],
    ids=str,
)
def test_what_one_provider_alone_may_act_on_makes_no_question_of_all(
    dialect: str, more: dict[str, Any]
) -> None:
    """It is asked as a request of its dialect, and answered as one."""
    cache = Kept(across_dialects=True)
    cache.keep(plainly(dialect, more=dict(more)), answer(dialect))
    for other in set(TALKS) - {dialect}:
        assert CONTINUE is cache.ask(plainly(other))
    assert isinstance(cache.ask(plainly(dialect, more=dict(more))), Answer)


@pytest.mark.parametrize(
    "difference",
    [
        {"headers": {"anthropic-beta": "b"}},
        {"headers": {"anthropic-version": "2024-01-01"}},
        {"headers": {"anthropic-version": "2026-10-21"}},  # which refuses a temperature
        {"headers": {"openai-organization": "o"}},
        {"headers": {":authority": "elsewhere"}},
        {"system": "Be brief."},
        {"tenant": "other"},
        {"profile": "other"},
    ],
    ids=str,
)
@pytest.mark.parametrize("dialect", TALKS)
def test_differences_count_in_every_dialect(dialect: str, difference: dict[str, Any]) -> None:
    """As they do within one."""
    cache = Kept(across_dialects=True)
    cache.keep(plainly(dialect), answer(dialect))
    for other in TALKS:
        assert CONTINUE is cache.ask(plainly(other, **difference))


def test_large_seeds_that_differ_in_the_last_digit_differ() -> None:
    """A float has no room for them, nor for one of 400 digits at all."""
    cache = Kept(across_dialects=True)
    cache.keep(ask("openai.chat", "why?", seed=2**53), answer("openai.chat"))
    for seed in (2**53 + 1, 10**400):
        assert CONTINUE is cache.ask(ask("openai.chat", "why?", seed=seed))
    same = ask("openai.chat", "why?", more={"seed": float(2**53)})
    assert isinstance(cache.ask(same), Answer)


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
def test_versions_that_answer_a_plain_question_alike_share_it(version: str) -> None:
    """Where nothing says how to sample, all known ones do."""
    cache = Kept(across_dialects=True)
    cache.keep(ask("openai.chat", "why?", more={"max_tokens": 100}), answer("openai.chat"))
    headers = {"anthropic-version": version}
    assert isinstance(cache.ask(ask("anthropic.messages", "why?", headers=headers)), Answer)


def test_a_completion_is_no_answer_to_a_question() -> None:
    """It goes on with a text."""
    cache = Kept(across_dialects=True)
    cache.keep(plainly("openai.completions"), answer("openai.completions"))
    for other in TALKS:
        assert CONTINUE is cache.ask(plainly(other))


@pytest.mark.parametrize("dialect", CHATS)
def test_what_is_written_reads_as_it_was_meant(dialect: str) -> None:
    """Text, finish, model and every count."""
    view = DIALECTS[dialect]
    reply = Reply("an\n“answer”", None, Usage(9, 4, 2), "m")
    read = view.read_reply(view.write(reply, "name", 1))
    assert (reply.text, "stop", reply.usage, "m") == (
        read.text,
        read.finish,
        read.usage,
        read.model,
    )
