"""The bundled model: how often it is right, where nothing was learnt by heart."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection
from importlib import resources
from typing import Final

import msgspec
import pytest

from ext_proc.tools.train import (
    DATA,
    GOAL,
    JUDGED,
    call_costs_us,
    right_domains,
    right_intents,
    tried,
)
from ext_proc.tools.train_data import DOMAINS, LANGUAGES, make_requests, read_split
from filters.intent_model import MODEL_FILE, Guess, IntentModel, Weights, bundled_model
from filters.intent_rules import ruled
from filters.intent_text import (
    CHINESE_EDGE_CHARS,
    EDGE_CHARS,
    edges,
    laid_out,
    marks,
)
from filters.scripts import is_chinese
from filters.templates import template

MOST_BYTES: Final = 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", JUDGED])
def test_nine_of_ten_held_out_requests_and_more_are_told(split: str) -> None:
    """At least 92 % of intents and of domains, written by hand and never trained on."""
    held_out = tried(bundled_model(), split)
    assert len(held_out) >= 300
    assert right_intents(held_out) >= GOAL
    assert right_domains(held_out) >= GOAL


@pytest.mark.parametrize("split", ["test", JUDGED])
def test_the_held_out_requests_are_balanced(split: str) -> None:
    """Each language has 12 to 14 of each intent, and of each domain at least 20."""
    requests = read_split(DATA / "intents", split)
    for language in LANGUAGES:
        own = [one for one in requests if one.language == language]
        assert set(Counter(one.intent for one in own).values()) <= {12, 13, 14}
        assert min(Counter(one.domain for one in own).values()) >= 20
        assert set(DOMAINS) == {one.domain for one in own}
        assert set(bundled_model().intents) == {one.intent for one in own}


def test_what_a_call_costs_is_measured_over_all_of_a_split() -> None:
    """In rising order, so that the middle and the longest can be read from it."""
    taken = call_costs_us(bundled_model(), JUDGED)
    assert len(read_split(DATA / "intents", JUDGED)) == len(taken)
    assert sorted(taken) == taken
    assert taken[0] > 0


@pytest.mark.slow
def test_no_held_out_request_is_trained_on() -> None:
    """Nor one that differs in case, digits or punctuation alone; some greetings everybody uses."""
    trained = {laid_out(one.text) for one in make_requests(DATA / "intents")}
    held_out = read_split(DATA / "intents", "test")
    held_out += [one for one in read_split(DATA / "intents", JUDGED) if one.intent != "greeting"]
    assert [] == [one.text for one in held_out if laid_out(one.text) in trained]


def test_the_training_data_is_the_same_every_time() -> None:
    """Chance has a seed."""
    assert make_requests(DATA / "intents", 2) == make_requests(DATA / "intents", 2)


def test_the_model_is_small() -> None:
    """Under 2 MB in the package."""
    data = resources.files("filters").joinpath("data", MODEL_FILE).read_bytes()
    assert len(data) < MOST_BYTES


def bundled_weights() -> Weights:
    data = resources.files("filters").joinpath("data", MODEL_FILE).read_bytes()
    return msgspec.msgpack.decode(data, type=Weights)


def told_plainly(weights: Weights, found: Collection[str]) -> Guess:
    """Return what weights say of the marks found, mark by mark and in floating point."""
    labels = len(weights.intents) + len(weights.domains)
    sums = [float(bias) for bias in weights.biases]
    for mark in found:
        row = weights.weights[weights.marks.index(mark) * labels :][:labels]
        for label, weight in enumerate(struct.unpack(f"{labels}b", row)):
            sums[label] += weight
    told: list[tuple[str, float]] = []
    for names, scale in (
        (weights.intents, weights.intent_scale),
        (weights.domains, weights.domain_scale),
    ):
        own, sums = sums[: len(names)], sums[len(names) :]
        powers = [math.exp((one - max(own)) * scale / math.sqrt(len(found) or 1)) for one in own]
        told.append((names[powers.index(1.0)], 1 / sum(powers)))
    return Guess(*told[0], *told[1])


@pytest.mark.parametrize(
    "text",
    [
        "Please summarise this contract: the tenant pays in advance, and for what he breaks.",
        "用Python写一个函数，把列表里的数字从小到大排好。谢谢！",
        "Translate “good morning” into Chinese, 然后列出三种说法。",
        "x",
        "",
    ],
)
def test_a_guess_is_the_sum_of_the_weights_of_all_marks_in_the_layout(text: str) -> None:
    """Each mark counts once, wherever it stands; what is all but impossible is left out."""
    weights, layout = bundled_weights(), laid_out(text)
    plain = told_plainly(weights, [mark for mark in weights.marks if mark in layout])
    guess = IntentModel(weights).guess(layout)
    assert plain.intent == guess.intent
    assert pytest.approx(plain.score, abs=0.01) == guess.score
    assert pytest.approx(plain.domain_score, abs=0.01) == guess.domain_score


def test_no_number_of_marks_runs_over() -> None:
    """The first 256 in the order of the alphabet count; each weighs as much as a byte can."""
    marks = [f"{number:03}" for number in range(300)]
    weights = Weights(
        ["a", "b"], ["general", "code"], marks, bytes([127, 129] * 600), [255] * 4, 1, 1
    )
    guess = IntentModel(weights).guess(" ".join(marks))
    assert ("a", 1.0, "general", 1.0) == guess


def test_every_intent_has_a_template_in_both_languages() -> None:
    """Each has the slot for the user's words exactly once."""
    for intent in bundled_model().intents:
        for language in LANGUAGES:
            text = template(intent, language)
            assert text is not None
            assert 1 == text.count("{prompt}")
    assert template("no_such_intent", "en") is None


def test_a_text_without_a_known_mark_is_a_toss_up() -> None:
    """No label is likely."""
    guess = bundled_model().guess("")
    assert guess.score < 0.5
    assert guess.domain_score < 0.7


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("", " ^  ^ "),
        ("Is it 3.5?", " ^ is it 0 ^ 0 ?  ^ "),
        ("Sum up. Now!", " ^ sum up ^ now ^  ^ "),
        ("用Python3写一个“函数”，谢谢。", " ^ 用 python0 写一个 函数  ^ 谢谢 ^  ^ "),
        ("a=b{c}, 5%", " ^ a = b = c =  ^ 0 +  ^ "),
        ("Don’t “naïve” CAFÉ", " ^ don t  naïve  café ^ "),
        ("l\u0435g\u0430l \u03b1dvice", " ^ legal advice ^ "),
    ],
)
def test_a_layout_shows_words_clauses_and_numbers(text: str, layout: str) -> None:
    """What a mark is made of."""
    assert layout == laid_out(text)


def test_half_a_surrogate_pair_is_no_word() -> None:
    """A JSON escape can make one."""
    assert " ^ half  ?  of two ^ " == laid_out("half \ud800 of two")


def test_marks_are_parts_of_the_layout() -> None:
    """So that what was learnt is what is found."""
    for text in ("Please list all the rivers in Peru?", "请把这份合同翻译成英文。OK？", "写Go代码"):
        layout = laid_out(text)
        assert [] == [mark for mark in marks(layout) if mark not in layout]


def test_both_ends_of_what_was_said_are_looked_at() -> None:
    """As much of Chinese as says as much."""
    long = "a" * 1_000 + "b" * 1_000
    assert "a" * EDGE_CHARS + "\n" + "b" * EDGE_CHARS == edges([long])
    assert "请" * CHINESE_EDGE_CHARS + "\n" + "b" * CHINESE_EDGE_CHARS == edges(
        ["请" * 1_000, long]
    )
    assert "short" == edges(["short"])


@pytest.mark.parametrize(
    ("text", "chinese"),
    [("请总结", True), ("请用 Python 写代码", True), ("What does 你好 mean in English?", False)],
)
def test_the_language_is_the_writers(text: str, chinese: bool) -> None:
    """A quoted word does not make a text Chinese."""
    assert chinese == is_chinese(text)


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("Summarise it", "summarise"),
        ("Hi, can you please summarize this", "summarise"),
        ("请帮我总结一下", "summarise"),
        ("你好，请列出", "list"),
        ("How many are there?", "count"),
        ("Is it wet? Yes or no?", "yes_no"),
        ("Thanks!", "greeting"),
        ("翻译成英文：你好", "translate"),
        ("How do I summarise a book?", None),
        ("List comprehensions are slow, why?", None),
        ("Hello world in C", None),
        ("怎么总结一本书？", None),
        ("translate3d is slow in CSS", None),
    ],
)
def test_a_rule_decides_only_clear_cases(text: str, intent: str | None) -> None:
    """The word must open the request, behind politeness at most."""
    assert intent == ruled(laid_out(text))
