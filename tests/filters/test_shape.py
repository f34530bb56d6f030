"""Shaping a conversation: what stays, what becomes a summary, and what never changes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import CONTINUE, Cut, Exchange, Prompt, Role, Turn
from filters.bounds import MOST_TEXTS
from filters.dialects.base import BodyPrompt
from filters.document import Document
from filters.rounds import round_starts
from filters.shape import ShapeConfig, ShapeFilter
from filters.transcript import take_summary
from tests.conversations import DIALECTS, Round, conversation, messages_of
from tests.exchanges import CHATS, WORDS, ask, exchange_of
from tests.fakes import FakeClock, FakeTokens, FakeWorkers, drive, fake_ports
from tests.golden_cases import written

T = TypeVar("T")

PADDING = "The valley has hills, rivers, two mills and an old road that nobody uses. " * 6
SMALL = ShapeConfig(limit=200)


def shaped(exchange: Exchange, config: ShapeConfig = SMALL, **ports: Any) -> bytes:
    shape = ShapeFilter(config, None, fake_ports(**ports))
    assert CONTINUE is drive(shape.on_request(exchange))
    return exchange.prompt.document.render()


def again(exchange: Exchange, body: bytes) -> Exchange:
    """Return the exchange in which a shaped body comes in."""
    return exchange_of(exchange.dialect.name, body, exchange.head.path)


def rounds(count: int, **last: Any) -> list[Round]:
    """Return a conversation of so many long rounds and a short last question."""
    said = [Round(f"Number {i} is {1000 + i}. {PADDING}", f"Noted {i}.") for i in range(count)]
    return [*said, Round("What was number 1?", **last)]


def values(prompt: Prompt, *roles: Role) -> list[str]:
    return [text.value for turn in prompt.turns() if turn.role in roles for text in turn.texts]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_last_rounds_stay_and_the_others_become_a_summary(dialect: str) -> None:
    """It stands in front of the first message that stays, and counts every message that went."""
    said = rounds(7)
    exchange = conversation(dialect, said, system="Be brief.")
    before = messages_of(dialect, json.loads(exchange.prompt.document.raw))
    after = messages_of(dialect, written(shaped(exchange)))
    summary, first = take_summary(values(exchange.prompt, Role.USER)[0])
    assert (10, said[5].question) == (summary.turns, first)
    assert ["Number 1 is 1001."] == [one for one in _sentences(summary.words[0]) if "1001" in one]
    assert len(before) - 10 == len(after)
    assert written(json.dumps(before[-4:]).encode()) == after[-4:]
    assert ["Be brief."] == values(exchange.prompt, Role.SYSTEM)
    assert 10 == exchange.notes["shape.turns"]


def _sentences(text: str) -> list[str]:
    return [f"{one.strip()}." for one in text.split(".") if one.strip()]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_asked_for_survives(dialect: str) -> None:
    """The last question chooses what the summary says."""
    said = [
        Round(f"Keep in mind: {name} likes {food}. {PADDING}", "I will.") for name, food in FOOD
    ]
    exchange = conversation(dialect, [*said, Round("What does Mira like to eat?")])
    shaped(exchange)
    assert "Mira likes plums" in "".join(values(exchange.prompt, Role.USER))


FOOD = [("Olga", "rice"), ("Mira", "plums"), ("Ivo", "soup"), ("Ada", "bread"), ("Bo", "figs")] * 2


@pytest.mark.parametrize("dialect", CHATS)
def test_a_prompt_under_the_limit_keeps_its_bytes(dialect: str) -> None:
    """However many rounds it has."""
    short = [Round("Yes?", "No."), Round("Why?", "So."), Round("When?", "Now."), Round("Who?")]
    if dialect in DIALECTS:
        exchange = conversation(dialect, short)
    else:
        exchange = ask(dialect, "[User]: Yes?\n[Model]: No.\n" * 8)
    assert exchange.prompt.document.raw is shaped(exchange)
    assert [] == exchange.cuts


@pytest.mark.parametrize("dialect", CHATS)
def test_a_single_long_question_keeps_its_bytes(dialect: str) -> None:
    """There is no older round to take."""
    exchange = ask(dialect, PADDING * 20)
    assert exchange.prompt.document.raw is shaped(exchange)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_summary_may_stand_before_the_question(dialect: str) -> None:
    """Then the prompt's beginning is the same for as many rounds as go in a step."""
    config = ShapeConfig(limit=760, place="question")
    texts: list[list[str]] = []
    for count in (7, 8, 9, 10):
        exchange = conversation(dialect, rounds(count))
        shaped(exchange, config)
        texts.append(values(exchange.prompt, Role.USER, Role.ASSISTANT))
    assert texts[0][:-1] == texts[1][: len(texts[0]) - 1] == texts[2][: len(texts[0]) - 1]
    assert [True, True, True] == [
        take_summary(one[-1])[1] == "What was number 1?" for one in texts[:3]
    ]
    assert [8, 8, 8, 16] == [take_summary(one[-1])[0].turns for one in texts]


def test_rounds_go_in_steps_where_that_is_enough() -> None:
    """Of seven old rounds four go: the others are there in the next prompt as well."""
    exchange = conversation("openai.chat", rounds(9))
    shaped(exchange, ShapeConfig(limit=1_000))
    assert 8 == take_summary(values(exchange.prompt, Role.USER)[0])[0].turns


def test_what_is_still_too_long_is_summarised_once_more() -> None:
    """The first summary goes into the second, and the turns add up."""
    exchange = conversation("openai.chat", rounds(9))
    shaped(exchange, ShapeConfig(limit=300))
    assert 14 == take_summary(values(exchange.prompt, Role.USER)[0])[0].turns
    assert 5 == len(exchange.prompt.turns())
    assert ["shape.rounds"] * 2 == [cut.rule for cut in exchange.cuts]


def test_a_shaped_prompt_that_goes_on_keeps_one_summary() -> None:
    """A client that sends back what Forebay made of its prompt: the turns add up."""
    exchange = conversation("openai.chat", rounds(7))
    body = json.loads(shaped(exchange))
    longer = [Round(PADDING, "Noted."), Round(PADDING, "Noted."), Round("What was number 1?")]
    body["messages"] += messages_of(
        "openai.chat", json.loads(conversation("openai.chat", longer).prompt.document.raw)
    )
    second = exchange_of("openai.chat", json.dumps(body).encode(), exchange.head.path)
    shaped(second)
    said = "".join(values(second.prompt, Role.USER))
    assert 1 == said.count("[Summary of prior")
    assert 14 == take_summary(said)[0].turns
    assert "Number 1 is 1001." in said


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_round_with_an_image_stays_whole(dialect: str) -> None:
    """Nothing here can say what an image shows."""
    said = rounds(7)
    said[1] = Round(f"Look at this. {PADDING}", "I see a cat.", media=True)
    exchange = conversation(dialect, said)
    shaped(exchange)
    assert [said[1].question, "I see a cat."] == values(exchange.prompt, Role.USER, Role.ASSISTANT)[
        :2
    ]
    assert 1 == sum(turn.has_media for turn in exchange.prompt.turns())


def test_a_round_of_tools_goes_whole_and_what_they_found_in_json_is_not_quoted() -> None:
    """The answer after it says what matters."""
    said = rounds(7)
    said[1] = Round(f"Look it up. {PADDING}", "Number 1 is 1001, it says.", calls=2)
    exchange = conversation("openai.chat", said)
    body = shaped(exchange)
    assert b"call_1_0" not in body
    assert b"found" not in body
    assert b"Number 1 is 1001, it says." in body


def test_an_image_between_two_summaries_leaves_one() -> None:
    """The first stood in front of the round with the image, which stays."""
    said = rounds(9)
    said[4] = Round(f"Look at this. {PADDING}", "I see a cat.", media=True)
    exchange = conversation("openai.chat", said)
    shaped(exchange, ShapeConfig(limit=300))
    found = [take_summary(text)[0].turns for text in values(exchange.prompt, Role.USER)]
    assert [0, 12, 0, 0] == found
    assert ["shape.rounds"] * 2 == [cut.rule for cut in exchange.cuts]


def test_a_message_that_is_a_summary_alone_is_not_emptied() -> None:
    """A user may write one."""
    only = "[Summary of prior 3 turns]: it was long"
    exchange = conversation("openai.chat", [*rounds(6)[:6], Round(only)])
    shaped(exchange)
    assert only == values(exchange.prompt, Role.USER)[-1]


def test_a_result_that_comes_after_the_next_question_stays_with_its_call() -> None:
    """The responses endpoint takes results late; the rounds in between stay as well."""
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "x"}
    messages = [{"role": "user", "content": PADDING} for _ in range(8)]
    answers = [{"role": "assistant", "content": "Noted."} for _ in range(8)]
    turns: list[Any] = [one for pair in zip(messages, answers, strict=True) for one in pair]
    turns.insert(5, call)
    turns.append(result)
    body = json.dumps({"model": "m", "input": turns}).encode()
    exchange = exchange_of("openai.responses", body, "/v1/responses")
    left = json.loads(shaped(exchange))["input"]
    assert [call, result] == [one for one in left if "call_id" in one]
    assert 4 == take_summary(left[0]["content"])[0].turns


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize("place", ["start", "question"])
def test_a_transcript_in_a_text_is_shaped(dialect: str, place: Any) -> None:
    """What stands before it, its system prompts and the cue for the answer stay."""
    lines = [
        f"[User]: Number {i} is {1000 + i}. {PADDING}\n[Model]: Noted {i}.\n" for i in range(7)
    ]
    text = "".join(("Go on.\n[System]: Be kind.\n", *lines, "[User]: What was number 1?\n[Model]:"))
    exchange = ask(dialect, text)
    shaped(exchange, ShapeConfig(limit=200, place=place))
    (after,) = values(exchange.prompt, Role.USER)
    mark = after.index("[Summary of prior 10 turns]: ")
    assert after.startswith("Go on.\n[System]: Be kind.\n[")
    assert after.endswith("[User]: What was number 1?\n[Model]:")
    assert (after.index("[User]") > mark) == (place == "start")
    assert "1001" in after
    assert "".join(lines[5:]) in after
    body = exchange.prompt.document.render()
    assert body == shaped(again(exchange, body), ShapeConfig(limit=200, place=place))


def test_several_prompts_in_one_request_are_no_conversation() -> None:
    """Each is completed by itself."""
    body = json.dumps({"model": "m", "prompt": [PADDING] * 9}).encode()
    assert body == shaped(exchange_of("openai.completions", body, "/v1/completions"))


def test_inputs_to_embed_are_no_conversation() -> None:
    """A transcript to embed is embedded whole."""
    body = json.dumps({"model": "m", "input": f"[User]: {PADDING}\n[Model]: x\n" * 9}).encode()
    assert body == shaped(exchange_of("openai.embeddings", body, "/v1/embeddings"))


def test_a_summary_that_cannot_be_had_leaves_the_prompt_as_it_was() -> None:
    """The note says why."""
    workers = FakeWorkers()
    workers.failing = True
    exchange = conversation("openai.chat", rounds(7))
    assert exchange.prompt.document.raw is shaped(exchange, workers=workers)
    assert ("no summary", []) == (exchange.notes["shape.skip"], exchange.cuts)
    assert "fake workers: told to fail" == exchange.notes["shape.why"]


def test_rounds_that_are_shorter_than_their_summary_stay() -> None:
    """It would win nothing."""
    said = [Round("Hm?", "Mm."), Round("Ah?", "Oh."), *rounds(3)]
    exchange = conversation("openai.chat", said[:2] + said[2:])
    assert exchange.prompt.document.raw is shaped(exchange, ShapeConfig(limit=200, rounds=4))
    assert "nothing to win" == exchange.notes["shape.skip"]


def test_a_cut_says_what_went_and_what_came() -> None:
    """In tokens of the texts that went, and of the summary with its mark."""
    exchange = conversation("openai.chat", rounds(7))
    gone = values(exchange.prompt, Role.USER, Role.ASSISTANT)[:10]
    shaped(exchange, ShapeConfig(limit=200, step=1))
    tokens = fake_ports().tokens.estimate
    kept = values(exchange.prompt, Role.USER)[0].partition("\n\n")[0]
    assert [Cut("shape.rounds", sum(map(tokens, gone)), tokens(kept))] == exchange.cuts


def test_the_proxy_waits_for_all_summaries_together() -> None:
    """`deadline` bounds them, however many there are."""
    assert 1.0 == ShapeFilter.longest_wait_s(ShapeConfig())


# --- Bounds --------------------------------------------------------------------------------------


MOST_LISTINGS = 8  # of the turns: before and after each of two tries, and for transcripts


class Metered(FakeTokens):
    """Keeps how many texts and characters it was asked to estimate."""

    def __init__(self) -> None:
        self.texts = self.chars = 0

    def estimate(self, text: str) -> int:
        self.texts += 1
        self.chars += len(text)
        return super().estimate(text)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("answer", ["", "Noted."])
def test_a_conversation_of_thousands_of_messages_stays(dialect: str, answer: str) -> None:
    """It is not even estimated."""
    exchange = conversation(dialect, [Round(PADDING, answer) for _ in range(5_000)])
    tokens = Metered()
    assert exchange.prompt.document.raw is shaped(exchange, tokens=tokens)
    assert ({"shape.skip": "size"}, 0) == (exchange.notes, tokens.texts)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("media", [False, True])
def test_what_cannot_be_shaped_is_gone_through_a_few_times(
    dialect: str, media: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of the user's in a row, or rounds with images: not once for each of them."""
    answer = "I see." if media else ""
    said = [Round(PADDING, answer, media=media) for _ in range(1_000 if media else 2_000)]
    exchange = conversation(dialect, said)
    tokens = Metered()
    listed = 0
    turns = BodyPrompt.turns

    def count(prompt: BodyPrompt) -> Sequence[Turn]:
        nonlocal listed
        listed += 1
        return turns(prompt)

    monkeypatch.setattr(BodyPrompt, "turns", count)
    assert exchange.prompt.document.raw is shaped(exchange, tokens=tokens)
    assert ({}, []) == (exchange.notes, exchange.cuts)
    assert tokens.chars <= 2 * 65_536
    assert listed <= MOST_LISTINGS


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_long_conversation_within_bounds_is_shaped(dialect: str) -> None:
    """A million characters in two thousand messages."""
    exchange = conversation(dialect, [Round(PADDING[:450], PADDING[:450])] * 1_000)
    tokens = Metered()
    shaped(exchange, ShapeConfig(limit=1_000), tokens=tokens)
    assert 6 == len(exchange.prompt.turns()) - 2
    assert tokens.chars < 4 * 65_536


def test_a_conversation_of_megabytes_stays() -> None:
    """It would hold up the worker, and sending it everybody else."""
    exchange = conversation("openai.chat", [Round(PADDING * 30, "Noted.") for _ in range(100)])
    tokens = Metered()
    assert exchange.prompt.document.raw is shaped(exchange, tokens=tokens)
    assert ({"shape.skip": "size"}, 0) == (exchange.notes, tokens.texts)


def test_a_conversation_of_thousands_of_texts_stays() -> None:
    """However few messages have them, and however short each is."""
    part = {"type": "text", "text": "Noted."}
    messages = [{"role": "user", "content": [part] * (MOST_TEXTS // 4 + 1)}] * 4
    body = json.dumps({"model": "m", "messages": messages}).encode()
    exchange, tokens = exchange_of("openai.chat", body, "/v1/chat/completions"), Metered()
    assert body is shaped(exchange, tokens=tokens)
    assert ({"shape.skip": "size"}, 0) == (exchange.notes, tokens.texts)


def test_calls_of_tools_with_too_many_values_stay() -> None:
    """All of them are looked at for what belongs together."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {"values": [0] * 150_000}}
    messages = [
        {"role": "user", "content": PADDING * 4},
        {"role": "assistant", "content": [call]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}],
        },
    ] * 2
    body = json.dumps({"model": "m", "max_tokens": 1, "messages": messages}).encode()
    exchange = exchange_of("anthropic.messages", body, "/v1/messages")
    assert body is shaped(exchange)
    assert {"shape.skip": "size"} == exchange.notes


def transcripts(count: int, rounds: int) -> Exchange:
    """Return an exchange with so many transcripts, each a text of one message."""
    lines = f"[User]: {PADDING}\n[Model]: Noted.\n" * rounds
    parts = [{"type": "text", "text": f"{lines}[User]: Why?"} for _ in range(count)]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    return exchange_of("openai.chat", body, "/v1/chat/completions")


def test_transcripts_that_are_too_much_together_stay() -> None:
    """However short each is."""
    exchange = transcripts(9, 70)
    workers = FakeWorkers()
    assert exchange.prompt.document.raw is shaped(exchange, workers=workers)
    assert ({"shape.skip": "size"}, []) == (exchange.notes, workers.calls)


def test_transcripts_are_shaped_while_there_is_time() -> None:
    """The deadline is that of all together; what was shaped stays shaped."""
    clock = FakeClock()

    class Slow(FakeWorkers):
        async def run(self, work: Callable[..., T], *arguments: Any, deadline_s: float) -> T:
            clock.advance(0.6)
            return await super().run(work, *arguments, deadline_s=deadline_s)

    exchange = transcripts(4, 8)
    workers = Slow()
    shape = ShapeFilter(ShapeConfig(limit=500), None, fake_ports(clock, workers=workers))
    drive(shape.on_request(exchange))
    assert ["shape_transcript"] * 2 == workers.calls
    assert [True, True, False, False] == [
        text.startswith("[Summary of prior ") for text in values(exchange.prompt, Role.USER)
    ]
    assert ("no summary", "no time left") == (
        exchange.notes["shape.skip"],
        exchange.notes["shape.why"],
    )


# --- Any conversation ----------------------------------------------------------------------------

ANY_ROUND = st.builds(
    Round,
    question=st.sampled_from(
        ["Why?", "天空为什么是蓝色的？", f"A. {PADDING}", f"B. {PADDING * 2}"]
    ),
    answer=st.sampled_from(["", "So.", PADDING]),
    calls=st.integers(0, 2),
    media=st.sampled_from([False, False, False, True]),
)


@pytest.mark.slow
@given(
    st.sampled_from(DIALECTS),
    st.lists(ANY_ROUND, min_size=1, max_size=12),
    st.sampled_from(["start", "question"]),
    st.integers(1, 5),
)
def test_of_any_conversation_no_call_is_cut_from_its_result(
    dialect: str, said: list[Round], place: Any, step: int
) -> None:
    """Messages stay as they are or go, but for the summary in front of one; twice changes nothing.

    Where no two messages of one role stood together none do afterwards, and the user is first.
    """
    config = ShapeConfig(limit=150, place=place, step=step)
    said = [
        replace(one, question=f"{i}: {one.question}", answer=one.answer and f"{i}: {one.answer}")
        for i, one in enumerate(said)
    ]
    exchange = conversation(dialect, said, system="Be brief.")
    raw = exchange.prompt.document.raw
    before, whole = messages_of(dialect, written(raw)), list(exchange.prompt.turns())
    body = shaped(exchange, config)
    after = messages_of(dialect, written(body))
    turns = exchange.prompt.turns()
    summaries = [take_summary(text)[0] for text in values(exchange.prompt, Role.USER)]
    assert len(whole) - len(turns) == sum(summary.turns for summary in summaries)
    assert sum(bool(summary.turns) for summary in summaries) <= 1
    for message in after:
        if message not in before:
            _without_summary(message)
        assert message in before
    assert [one for one in before if one in after] == after
    starts = round_starts(Role.TOOL if turn.has_tool else turn.role for turn in whole)
    last = len(whole) - starts[max(-len(starts), -3)]
    assert before[-last:] == after[-last:]
    _assert_paired(before, after)
    assert _repeated_roles(after) <= _repeated_roles(before)
    assert _others(dialect, raw) == _others(dialect, body)
    assert body == shaped(again(exchange, body), config)


@pytest.mark.slow
@given(st.lists(ANY_ROUND, min_size=4, max_size=10), st.lists(st.integers(0, 9), min_size=20))
def test_no_result_that_comes_late_is_cut_from_its_call(
    said: list[Round], delays: list[int]
) -> None:
    """The responses endpoint takes results after whatever was said meanwhile."""
    exchange = conversation("openai.responses", said)
    body = json.loads(exchange.prompt.document.raw)
    before = body["input"]
    results = [one for one in before if one.get("type") == "function_call_output"]
    for result, delay in zip(results, delays, strict=False):
        place = before.index(result)
        before.remove(result)
        before.insert(place + delay, result)
    late = exchange_of("openai.responses", json.dumps(body).encode(), exchange.head.path)
    _assert_paired(before, json.loads(shaped(late))["input"])


def _assert_paired(before: list[Any], after: list[Any]) -> None:
    """All that names a call is there as often as it was, or is gone."""
    names = re.compile(r'(?:call|toolu)_\d+_\d+|"place": "\d+\.\d+"')
    there, left = (Counter(names.findall(json.dumps(one))) for one in (before, after))
    assert {name: there[name] for name in left} == left


def _without_summary(message: dict[str, Any]) -> None:
    """Take the summary out of a decoded message."""
    for key in ("content", "parts"):
        if isinstance(message.get(key), str):
            message[key] = take_summary(message[key])[1]
        elif isinstance(message.get(key), list):
            part = next(one for one in message[key] if "text" in one)
            part["text"] = take_summary(part["text"])[1]


def _repeated_roles(messages: list[Any]) -> int:
    roles = [
        one.get("role") for one in messages if one.get("role") in ("user", "assistant", "model")
    ]
    return sum(one == other for one, other in pairwise(roles))


def _others(dialect: str, body: bytes) -> Any:
    decoded = written(body)
    messages_of(dialect, decoded).clear()
    return decoded


@pytest.mark.slow
@given(st.text(max_size=40) | st.sampled_from(["[User]: a", "[Model]: b", "```", "[System]: c"]))
def test_any_text_may_stand_in_a_transcript(text: str) -> None:
    """Whatever is in it, shaping ends and shapes nothing more the second time."""
    body = json.dumps({"model": "m", "prompt": f"[User]: {PADDING}\n{text}\n[Model]: x\n" * 6})
    try:
        exchange = exchange_of("openai.completions", body.encode(), "/v1/completions")
    except UnicodeEncodeError:
        return
    first = shaped(exchange)
    assert Document(first).root["model"] == "m"
    assert first == shaped(again(exchange, first))


def test_every_dialect_has_its_conversations() -> None:
    """All that take messages are tested above."""
    assert {*DIALECTS, "openai.completions"} == set(WORDS)
