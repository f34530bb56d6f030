"""When two requests ask the same thing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filters.bounds import MOST_CHARS
from filters.cache_folding import fold_all, fold_white_space
from filters.cache_key import cache_key
from filters.document import encode
from tests.exchanges import CHATS, ask, exchange_of

CODE = "Explain:\n```python\nif x:\n    y = 1\n```"


def key(dialect: str = "openai.chat", question: str = "why is it so?", **options: Any) -> bytes:
    return cache_key(ask(dialect, question, **options))


@pytest.mark.parametrize("dialect", CHATS)
def test_white_space_in_prose_does_not_count(dialect: str) -> None:
    """Spaces, tabs and line breaks are laid out, not said."""
    plain = key(dialect, "why is it so?")
    assert plain == key(dialect, "  why   is\r\nit \t so?\n")
    assert plain != key(dialect, "why isit so?")


def test_no_table_is_not_notable() -> None:
    """A run becomes one space, never none."""
    assert key(question="no table") != key(question="notable")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CODE, CODE.replace("    y", "  y")),
        ("a `x  y` b", "a `x y` b"),
        ("def f():\n    return 1", "def f():\n  return 1"),
        ("if a:\n\t\tb()", "if a: b()"),
        ("if a:\n \tb()", "if a: b()"),
        ("name\t\tage", "name\tage"),
        ('{"a":  1}', '{"a": 1}'),
    ],
)
def test_white_space_in_code_counts(one: str, other: str) -> None:
    """Fenced, inline, indented, JSON, or in a table's empty cell: there it is meaning."""
    assert key(question=one) != key(question=other)


def test_white_space_in_a_tools_result_counts() -> None:
    """Names that stand one a line are not prose."""

    def of(result: str) -> bytes:
        messages = [{"role": "tool", "tool_call_id": "1", "content": result}]
        body = encode({"model": "m", "messages": messages})
        return cache_key(exchange_of("openai.chat", body, "/v1/chat/completions"))

    assert of("my file\nyours") != of("my\nfile yours")


@pytest.mark.parametrize("dialect", CHATS)
def test_streaming_does_not_count(dialect: str) -> None:
    """How an answer is delivered does not change it."""
    assert key(dialect) == key(dialect, stream=True)


def test_whether_usage_is_wanted_does_not_count() -> None:
    """`stream_options` is about delivery."""
    plain = key(stream=True)
    assert plain == key(stream=True, more={"stream_options": {"include_usage": True}})


@pytest.mark.parametrize("dialect", CHATS)
@pytest.mark.parametrize(
    "difference",
    [
        {"question": "why was it so?"},
        {"system": "You are a lawyer."},
        {"temperature": 0.1},
        {"tenant": "another"},
        {"profile": "faq"},
        {"headers": {"anthropic-version": "2024-01-01"}},
        {"headers": {"openai-organization": "org"}},
        {"headers": {"azureml-model-deployment": "blue"}},
        {"headers": {":authority": "api.example"}},
        {"more": {"tools": [{"name": "t"}]}},
        {"more": {"model": "other", "x": 1}},
        {"more": {"unknown_member": 1}},
        {"more": {"user": "u"}},
    ],
    ids=str,
)
def test_everything_that_may_change_the_answer_counts(
    dialect: str, difference: dict[str, Any]
) -> None:
    """Question, system prompt, parameters, tools, tenant, profile, host, API, unknown members."""
    assert key(dialect) != key(dialect, **difference)


def test_dialects_never_share_answers() -> None:
    """A reply is in one provider's words."""
    assert len(CHATS) == len({key(dialect) for dialect in CHATS})


def test_the_order_of_members_does_not_count() -> None:
    """JSON objects have none."""
    message = {"role": "user", "content": "q"}
    one = encode({"model": "m", "messages": [message], "temperature": 0})
    other = encode({"temperature": 0, "messages": [message], "model": "m"})
    path = "/v1/chat/completions"
    assert cache_key(exchange_of("openai.chat", one, path)) == cache_key(
        exchange_of("openai.chat", other, path)
    )


def test_geminis_model_is_in_its_path() -> None:
    """Two models with one body are two requests; the key in the query is the tenant's matter."""
    body = encode({"contents": [{"parts": [{"text": "q"}]}]})

    def at(path: str) -> bytes:
        return cache_key(exchange_of("gemini.generate", body, path))

    plain = at("/v1beta/models/a:generateContent")
    assert plain == at("/v1beta/models/a:generateContent?key=k&alt=json")
    assert plain != at("/v1beta/models/b:generateContent")
    assert plain == at("/v1beta/models/a:streamGenerateContent?alt=sse")
    assert plain != at("/v1beta/models/a:generateContent?safety=off")
    assert plain != at("/v1/projects/p/locations/l/publishers/google/models/a:generateContent")


def test_azures_deployment_is_in_its_path() -> None:
    """The deployment is the model there, whatever the body says."""
    body = encode({"model": "m", "messages": [{"role": "user", "content": "q"}]})

    def at(deployment: str) -> bytes:
        path = f"/openai/deployments/{deployment}/chat/completions?api-version=1"
        return cache_key(exchange_of("openai.chat", body, path))

    assert at("one") != at("two")


def test_a_colon_in_a_path_is_no_method() -> None:
    """Only in its last part, where Gemini's stands: a prefix or a deployment may have one."""
    body = encode({"model": "m", "messages": [{"role": "user", "content": "q"}]})
    paths = ("/at:1/v1/chat/completions", "/at:2/v1/chat/completions", "/at/v1/chat/completions")
    assert 3 == len({cache_key(exchange_of("openai.chat", body, path)) for path in paths})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a=1&a=2", "a=2&a=1"),
        ("a=%FE", "a=%FF"),
        ("KEY=1", "KEY=2"),
        ("alt=sse;key=1", "alt=sse;key=2"),
    ],
)
def test_queries_that_are_read_differently_differ(one: str, other: str) -> None:
    """By order, by bytes that are no text, by a name like `key`, by a semicolon as a separator."""
    body = ask("openai.chat", "q").prompt.document.raw
    path = "/v1/chat/completions"
    assert cache_key(exchange_of("openai.chat", body, f"{path}?{one}")) != cache_key(
        exchange_of("openai.chat", body, f"{path}?{other}")
    )


def test_texts_that_are_too_much_in_all_count_as_they_stand() -> None:
    """Others wait while they are folded."""
    more = "x" * MOST_CHARS
    assert key(question="a b", system=more) != key(question="a  b", system=more)


def test_a_part_cannot_lend_bytes_to_its_neighbour() -> None:
    """Parts are hashed with their lengths."""
    assert key(profile="ab", tenant="c") != key(profile="a", tenant="bc")


def test_looking_a_request_up_does_not_edit_it() -> None:
    """The key folds a copy; the body goes out as it came."""
    exchange = ask("openai.chat", "why   so?")
    cache_key(exchange)
    assert exchange.prompt.document.raw == exchange.prompt.document.render()


def test_a_key_can_be_read() -> None:
    """Profile, the beginning of the tenant, and 192 bits: two meet by chance once in 2^96."""
    shown = key(tenant="0123456789abcdef" * 2, profile="faq").decode()
    assert re.fullmatch("faq:0123456789abcdef:[0-9a-f]{48}", shown), shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a \n b", "a b"), ("", ""), ("   ", ""), ("总 结", "总 结"), ("x\u3000y", "x y")],
)
def test_folding(text: str, expected: str) -> None:
    """Runs become one space and the ends none."""
    assert expected == fold_white_space(text)


SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]


@given(st.text(st.sampled_from([*SPACES, "a", "b", "总", "é", "."]), max_size=40))
def test_what_is_prose_keeps_its_words_and_nothing_else(text: str) -> None:
    """Whatever white space stands between two words, one space does in the key."""
    assume("\t" not in text and not re.search(r"\n[ ]", text))  # columns and indentation
    assert " ".join(text.split()) == fold_white_space(text)


PARTS = [
    "a",
    "b.",
    "é",
    "总",
    "\0",
    "def f():",
    "|",
    "`x  y`",
    "$",
    '{"a":  1}',
    *SPACES,
    "\n",
    " ",
]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), max_size=4))
def test_many_texts_are_folded_as_each_would_be(texts: list[str]) -> None:
    """Whether one look at all of them is enough or not."""
    assert [*map(fold_white_space, texts)] == [*fold_all(texts)]


@pytest.mark.parametrize("text", ["a\n  b", "é\n  b", "a\tb", "a  b", "a\0 b ", "", " ", "a\r\nb"])
@pytest.mark.parametrize("others", [[], ["x\n\ny"], ["总 结", ""]])
def test_a_text_is_folded_by_itself_whatever_stands_beside_it(text: str, others: list[str]) -> None:
    """Its lines and the marks in it, not those of its neighbours, say how."""
    texts = [text, *others, text]
    assert [*map(fold_white_space, texts)] == [*fold_all(texts)]
    assert [fold_white_space(text)] == [*fold_all([text])]
