"""Cleaning a whole prompt: which of its texts are touched."""

import pytest

from filters.api import CONTINUE, Exchange
from filters.bounds import MOST_CHARS, MOST_TEXTS
from filters.clean import CleanConfig, CleanFilter
from filters.cleaning import MOST_TAGS
from filters.document import encode
from tests.exchanges import CHATS, ask, exchange_of
from tests.fakes import drive, fake_ports


def cleaned(exchange: Exchange, config: CleanConfig | None = None) -> bytes:
    config = config or CleanConfig()
    clean = CleanFilter(config, CleanFilter.prepare(config), fake_ports())
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


def test_each_rule_has_its_switch() -> None:
    """`html: false` and `white_space: false` leave everything."""
    exchange = ask("openai.chat", "<b>a</b>   b")
    off = CleanConfig(html=False, white_space=False)
    assert exchange.prompt.document.raw == cleaned(exchange, off)


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
