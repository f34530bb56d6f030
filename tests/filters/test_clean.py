"""Cleaning a whole prompt: which of its texts are touched."""

import base64
import random
from typing import Any, Final

import msgspec
import pytest

from filters.api import CONTINUE, Cut, Exchange
from filters.bounds import MOST_CHARS, MOST_TEXTS
from filters.clean import MOST_CHARS_HERE, CleanConfig, CleanFilter
from filters.cleaning import MOST_TAGS
from filters.document import encode
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import FakeTokens, FakeWorkers, drive, fake_ports

PARAGRAPH: Final = "The ferry leaves at six in the morning and at four in the afternoon."


def cleaned(exchange: Exchange, config: CleanConfig | None = None, **others: Any) -> bytes:
    config = config or CleanConfig()
    clean = CleanFilter(config, CleanFilter.prepare(config), fake_ports(**others))
    assert CONTINUE is drive(clean.on_request(exchange))
    return exchange.prompt.document.render()


@pytest.mark.parametrize("dialect", CHATS)
def test_what_the_user_wrote_is_cleaned(dialect: str) -> None:
    """In every provider's words; the note says how many characters went."""
    exchange = ask(dialect, "<p>so   much</p>   space")
    body = cleaned(exchange)
    assert ask(dialect, "so much\nspace").prompt.document.raw == body
    assert 11 == exchange.notes["clean.chars"]


@pytest.mark.parametrize("dialect", [name for name in CHATS if name != "openai.completions"])
def test_the_system_prompt_stays(dialect: str) -> None:
    """Its author laid it out on purpose."""
    exchange = ask(dialect, "hi", system="Rules:   <b>one</b>\n\n\n\ntwo")
    assert exchange.prompt.document.raw == cleaned(exchange)


@pytest.mark.parametrize("dialect", CHATS)
def test_a_clean_prompt_keeps_its_bytes(dialect: str) -> None:
    """Nothing to do is nothing done."""
    exchange = ask(dialect, "a plain question\nin two lines")
    assert cleaned(exchange) is exchange.prompt.document.raw


def test_earlier_answers_and_tool_results_stay() -> None:
    """Only the user's texts are the user's."""
    body = (
        b'{"model":"m","messages":[{"role":"assistant","content":"a   b"},'
        b'{"role":"tool","tool_call_id":"1","content":"c   d"},'
        b'{"role":"user","content":"e   f"}]}'
    )
    expected = body.replace(b"e   f", b"e f")
    assert expected == cleaned(exchange_of("openai.chat", body, "/v1/chat/completions"))


def test_a_question_about_markup_keeps_the_markup_of_its_other_parts() -> None:
    """The question may stand in one part and the page in another."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":['
        b'{"type":"text","text":"Which tag is wrong?"},{"type":"text","text":"<ul><li>x</ul>"}]}]}'
    )
    assert body == cleaned(exchange_of("openai.chat", body, "/v1/chat/completions"))


DIRTY: Final = {
    "html": ("Who is <b>Ann</b>?", "Who is Ann?"),
    "media": (f"See data:image/png;base64,{'A' * 400} there.", "See [image/png, 300 B] there."),
    "padding": ("What is it?<pad><pad>", "What is it?"),
    "zero_width": ("What is\u200b it?", "What is it?"),
    "white_space": ("What   is it?", "What is it?"),
    "greetings": ("Hi! Hi! What is it?", "Hi! What is it?"),
    "repeats": (f"{PARAGRAPH}\n\n{PARAGRAPH}\n\nWhy?", f"{PARAGRAPH}\n\nWhy?"),
}
ALL_OFF: Final = dict.fromkeys(DIRTY, False)


@pytest.mark.parametrize("rule", DIRTY)
def test_each_rule_has_its_switch(rule: str) -> None:
    """Alone it does its work, and without it nothing does."""
    dirty, expected = DIRTY[rule]
    only = msgspec.convert(ALL_OFF | {rule: True}, CleanConfig)
    others = msgspec.convert({rule: False}, CleanConfig)
    assert ask("openai.chat", expected).prompt.document.raw == cleaned(
        ask("openai.chat", dirty), only
    )
    exchange = ask("openai.chat", dirty)
    assert exchange.prompt.document.raw is cleaned(exchange, others)


def test_context_that_has_nothing_to_do_with_the_question_goes_where_asked() -> None:
    """The question may stand in one part of the message and the context in another."""
    about = ["the old mill", "sour dough", "a sonnet", "good pans", "fishing"]
    context = "\n\n".join(f"A paragraph about {one}, {'on and ' * 9}on." for one in about)
    parts = [{"type": "text", "text": f"Notes:\n\n{context}\n\nEnd."}]
    parts.append({"type": "text", "text": "Where is the mill?"})
    body = encode({"model": "m", "messages": [{"role": "user", "content": parts}]})
    exchange = exchange_of("openai.chat", body, "/v1/chat/completions")
    assert body is cleaned(exchange)
    assert b"fishing" not in cleaned(exchange, CleanConfig(relevance=True))
    assert ["clean.relevance"] == [cut.rule for cut in exchange.cuts]


@pytest.mark.parametrize("dialect", [name for name in CHATS if name != "openai.completions"])
def test_a_system_prompt_is_cleaned_where_asked(dialect: str) -> None:
    """But its greetings and repetitions are its author's."""
    system = f"Hello! Hello!\n\n<p>Be   brief.</p>\n\n{PARAGRAPH}\n\n{PARAGRAPH}"
    expected = f"Hello! Hello!\n\nBe brief.\n\n{PARAGRAPH}\n\n{PARAGRAPH}"
    exchange = ask(dialect, "why?", system=system)
    body = cleaned(exchange, CleanConfig(system=True))
    assert ask(dialect, "why?", system=expected).prompt.document.raw == body


@pytest.mark.parametrize("dialect", CHATS)
def test_every_edit_is_counted(dialect: str) -> None:
    """Rule by rule, in tokens of the text before it and after it."""
    tokens = FakeTokens()
    exchange = ask(dialect, "Hi! Hi!   Who is <b>Ann</b>?")
    cleaned(exchange, tokens=tokens)
    texts = ["Hi! Hi!   Who is <b>Ann</b>?", "Hi! Hi!   Who is Ann?", "Hi! Hi! Who is Ann?"]
    counts = [tokens.estimate(text) for text in (*texts, "Hi! Who is Ann?")]
    rules = ["clean.html", "clean.white_space", "clean.greetings"]
    assert [Cut(*each) for each in zip(rules, counts[:3], counts[1:], strict=True)] == exchange.cuts


def test_an_image_in_a_text_counts_as_base64() -> None:
    """Within 5 % of what o200k makes of it, where an estimate of prose finds a third."""
    data = base64.b64encode(random.Random(1).randbytes(3_000)).decode()
    exchange = ask("openai.chat", f"What is this? data:image/png;base64,{data}")
    tokens = FakeTokens()
    cleaned(exchange, tokens=tokens)
    (cut,) = exchange.cuts
    assert ("clean.media", tokens.estimate("What is this? [image/png, 3 KB]")) == (
        cut.rule,
        cut.after,
    )
    assert pytest.approx(2721, rel=0.05) == cut.before - cut.after


def test_a_greeting_of_an_earlier_message_is_repeated_later() -> None:
    """In the messages of one conversation; one that says nothing else keeps it."""
    said = ["Hello! What is it?", "Hello! And this?", "Hello!", "Thanks! Hello! And that?"]
    left = ["Hello! What is it?", "And this?", "Hello!", "Thanks! And that?"]
    assert _talk(left) == cleaned(exchange_of("openai.chat", _talk(said), "/v1/chat/completions"))


def _talk(questions: list[str]) -> bytes:
    messages: list[dict[str, str]] = []
    for question in questions:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "x"}]
    return encode({"model": "m", "messages": messages[:-1]})


def test_texts_that_are_no_conversation_keep_their_greetings() -> None:
    """Several prompts of one request are as many beginnings."""
    body = encode({"model": "m", "prompt": ["Hello! What is it?", "Hello! And this?"]})
    assert body == cleaned(exchange_of("openai.completions", body, "/v1/completions"))


def test_a_system_prompt_that_names_the_task_is_heard() -> None:
    """What is to be translated keeps its repetitions, what is to be coded its markup."""
    for system, question in [
        ("You translate what you are given.", f"Hi! Hi!\n\n{PARAGRAPH}\n\n{PARAGRAPH}"),
        ("You write CSS.", "<p>Make it <b>red</b></p>"),
    ]:
        exchange = ask("openai.chat", question, system=system)
        assert exchange.prompt.document.raw is cleaned(exchange)


def test_what_is_embedded_keeps_its_repetitions() -> None:
    """A vector stands for the text as it is; markup and gaps go."""
    body = encode({"model": "m", "input": ["Hi! Hi!   <b>x</b>", f"{PARAGRAPH}\n\n{PARAGRAPH}"]})
    expected = encode({"model": "m", "input": ["Hi! Hi! x", f"{PARAGRAPH}\n\n{PARAGRAPH}"]})
    assert expected == cleaned(exchange_of("openai.embeddings", body, "/v1/embeddings"))


@pytest.mark.parametrize("gap", ["\n\n", "\n \n", "\n\t\n", "\r\n\r\n", "\n\r\n", "\n\n  "])
def test_a_repetition_goes_whatever_the_gap_before_it(gap: str) -> None:
    """Also where nothing tidies gaps."""
    exchange = ask("openai.chat", gap.join([PARAGRAPH, PARAGRAPH, "Why?"]))
    config = CleanConfig(white_space=False)
    assert encode(gap.join([PARAGRAPH, "Why?"])) in cleaned(exchange, config)


@pytest.mark.parametrize("last", ["Which platform?", "哪个站台？", "什么时候开船，从哪里出发？"])
def test_a_repetition_goes_whatever_stands_right_behind_it(last: str) -> None:
    """What is said there was not said before, but is no part of it."""
    exchange = ask("openai.chat", "\n\n".join([PARAGRAPH, PARAGRAPH, last]))
    assert encode(f"{PARAGRAPH}\n\n{last}") in cleaned(exchange)


@pytest.mark.parametrize("dialect", CHATS)
def test_a_long_prompt_is_cleaned_by_the_workers(dialect: str) -> None:
    """It takes milliseconds, and everybody else would wait."""
    workers = FakeWorkers()
    exchange = ask(dialect, "a   b" + "c" * MOST_CHARS_HERE)
    assert b"a b" in cleaned(exchange, workers=workers)
    assert ["clean_passages"] == workers.calls


def test_a_long_prompt_stays_where_no_worker_is_free() -> None:
    """The note says so."""
    workers = FakeWorkers()
    workers.failing = True
    exchange = ask("openai.chat", "a   b" + "c" * MOST_CHARS_HERE)
    assert exchange.prompt.document.raw is cleaned(exchange, workers=workers)
    assert "workers" == exchange.notes["clean.skip"]


@pytest.mark.parametrize(
    "texts", [["a   b" + "c" * (MOST_CHARS // 3)] * 3, ["a   b"] * (MOST_TEXTS + 1)]
)
def test_what_is_too_much_in_all_stays(texts: list[str]) -> None:
    """Others wait while a prompt is cleaned: its texts are bounded together, not one by one."""
    messages = [{"role": "user", "content": text} for text in texts]
    body = encode({"model": "m", "messages": messages})
    exchange = exchange_of("openai.chat", body, "/v1/chat/completions")
    assert body is cleaned(exchange)
    assert "size" == exchange.notes["clean.skip"]


def test_a_page_of_very_many_tags_keeps_them() -> None:
    """Spacing costs less, and is tidied."""
    exchange = ask("openai.chat", "<b>" * (MOST_TAGS + 1) + "a   b")
    assert b"<b>a b" in cleaned(exchange)
    assert "tags" == exchange.notes["clean.skip"]
